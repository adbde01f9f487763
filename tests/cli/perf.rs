//! `fabricast perf`: what it prints and how it ends, not how fast it is.

use std::fs::File;
use std::time::Duration;

use fabricast::Raw;
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::support::{Place, Running, fields, json, wait_until};

pub(crate) const FIELDS: [&str; 20] = [
    "awake",
    "connect",
    "contents",
    "fabric",
    "gb_per_s",
    "iterations",
    "lost",
    "max_ns",
    "mode",
    "msgs_per_s",
    "p50_ns",
    "p999_ns",
    "p99_ns",
    "placement",
    "rejected",
    "size",
    "subscribers",
    "times",
    "torn_retries",
    "verified",
];

#[test]
fn each_size_has_a_line_with_the_named_fields_beside_its_floor() {
    let _turn = turn();
    let place = Place::new();
    for mode in ["pull", "push", "notify"] {
        let sizes = ["perf", mode, "--size", "8,1003,70000"];
        let ended =
            place.run(&[&sizes[..], &["--iterations", "3", "--floor", "--json", "--cpus", "any"]].concat());
        let lines: Vec<&str> = ended.printed().lines().collect();
        assert_eq!(lines.len(), 6);
        for (index, line) in lines.iter().enumerate() {
            let mut names = fields(line);
            names.sort();
            assert_eq!(names, FIELDS);
            let figures = json(line);
            assert_eq!(figures["size"], [8, 1003, 70_000][index / 2]);
            assert_eq!(figures["fabric"], "shm");
            assert_eq!(figures["iterations"], 3);
            assert_eq!((&figures["times"], &figures["awake"]), (&json("\"round-trip\""), &json("null")));
            assert!(figures["p50_ns"].as_u64().unwrap() <= figures["max_ns"].as_u64().unwrap());
            assert!(["near", "far", "mixed"].contains(&figures["placement"].as_str().unwrap()));
            if index % 2 == 0 {
                assert_eq!((&figures["mode"], &figures["verified"]), (&json("\"floor\""), &json("null")));
            } else {
                assert_eq!(figures["mode"], mode);
                assert_eq!(figures["rejected"], 0);
                // Both ends verify each round trip, warm-up included.
                assert!(figures["verified"].as_u64().unwrap() >= 306);
            }
        }
    }
}

/// As in the floor: what carries the number is right, and what carries other bytes is not.
#[test]
fn stream_of_numbers_is_verified() {
    let _turn = turn();
    let place = Place::new();
    let stream = ["perf", "stream", "--size", "64,70000", "--iterations", "300", "--json", "--cpus", "any"];
    let block = ["--policy", "block", "--in-place"];
    for more in [&["--floor"][..], &block] {
        let ended = place.run(&[&stream[..], &["--contents", "number"], more].concat());
        let streams = ended.printed().lines().map(json).filter(|line| line["mode"] == "stream");
        let counts: Vec<_> =
            streams.map(|line| (line["verified"].clone(), line["rejected"].clone())).collect();
        assert_eq!(counts, vec![(300.into(), 0.into()); 2], "{more:?}");
    }
    place.run(&["perf", "pull", "--contents", "number"]).assert_failure(2, &["--contents", "`perf stream`"]);
    let serving =
        place.start(&["perf", "stream", "--serve", "--node", "lab", "--contents", "number", "--cpus", "any"]);
    serving.line();
    let ended =
        place.run(&["perf", "stream", "--connect", "shm:lab", "--iterations", "300", "--cpus", "any"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let parts = ["right 0 of 300", "wrong 300", "--contents"];
    assert!(parts.iter().all(|part| ended.error.contains(part)), "{ended:?}");
    serving.signal(Signal::INT);
    assert_eq!(serving.end().code, Some(0));
}

#[test]
fn a_stream_is_verified_whole_and_loses_nothing() {
    let _turn = turn();
    let place = Place::new();
    let arguments = ["--size", "64,1003,70000", "--iterations", "300", "--json", "--cpus", "any"];
    for (subscribers, more) in [(1, &["--floor"][..]), (2, &["--batch", "7", "--capacity", "2000000"])] {
        let number = subscribers.to_string();
        let stream = ["perf", "stream", "--subscribers", &number];
        let ended = place.run(&[&stream[..], &arguments, more].concat());
        let lines: Vec<&str> = ended.printed().lines().collect();
        for (line, size) in lines.chunks(lines.len() / 3).zip([64, 1003, 70_000]) {
            for line in line {
                let mut names = fields(line);
                names.sort();
                assert_eq!(names, FIELDS);
                assert_eq!(
                    (&json(line)["size"], &json(line)["p50_ns"]),
                    (&json(&size.to_string()), &json("null"))
                );
            }
            let figures: Vec<_> = line.iter().map(|line| json(line)).collect();
            let (stream, floors) = figures.split_last().unwrap();
            assert_eq!((&stream["mode"], &stream["fabric"]), (&json("\"stream\""), &json("\"shm\"")));
            assert_eq!((&stream["iterations"], &stream["lost"]), (&json("300"), &json("0")));
            assert_eq!((&stream["verified"], &stream["rejected"]), (&(300 * subscribers).into(), &json("0")));
            assert!(["near", "far", "mixed"].contains(&stream["placement"].as_str().unwrap()));
            assert!(stream["gb_per_s"].as_f64().unwrap() > 0.0);
            let modes: Vec<_> = floors.iter().map(|floor| floor["mode"].as_str().unwrap()).collect();
            assert_eq!(modes, if subscribers == 1 { vec!["memcpy", "floor", "checked"] } else { vec![] });
        }
    }
}

#[test]
fn lossy_stream_counts_lost_records() {
    let _turn = turn();
    // On one processor only one of the two processes runs at a time, so the ring is lapped.
    stay_on_one_processor();
    let arguments = ["perf", "stream", "--lossy", "--capacity", "4096", "--batch", "16", "--size", "64"];
    let ended =
        Place::new().run(&[&arguments[..], &["--iterations", "20000", "--json", "--cpus", "any"]].concat());
    let figures = json(ended.printed().trim_end());
    let number = |name: &str| figures[name].as_u64().unwrap();
    assert_eq!((number("iterations"), number("rejected")), (20_000, 0));
    assert_eq!(number("verified") + number("lost"), 20_000);
    assert!(number("lost") > 0, "{figures}");
}

#[test]
fn blocking_stream_loses_nothing_where_a_lossy_one_does() {
    let _turn = turn();
    stay_on_one_processor();
    for delivery in ["pull", "push"] {
        let arguments = ["perf", "stream", "--policy", "block", "--capacity", "4096", "--batch", "16"];
        let more = ["--delivery", delivery, "--subscribers", "2", "--iterations", "20000"];
        let ended = Place::new().run(&[&arguments[..], &more, &["--json", "--cpus", "any"]].concat());
        let figures = json(ended.printed().trim_end());
        let number = |name: &str| figures[name].as_u64().unwrap();
        assert_eq!((number("verified"), number("lost"), number("rejected")), (40_000, 0, 0), "{figures}");
    }
    let arguments =
        ["perf", "stream", "--policy", "disconnect", "--capacity", "4096", "--iterations", "200000"];
    let arguments = [&arguments[..], &["--batch", "16"]].concat();
    Place::new().run(&[&arguments[..], &["--cpus", "any"]].concat()).assert_failure(1, &["disconnected"]);
}

/// Pins this thread, and the processes that it starts, to the first available processor.
fn stay_on_one_processor() -> usize {
    let usable = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| usable.is_set(*cpu)).expect("a processor");
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
    first
}

#[test]
fn impossible_streams_are_reported() {
    let place = Place::new();
    let parts = ["--delivery, --batch, --capacity and --lossy", "--serve"];
    place.run(&["perf", "stream", "--serve", "--lossy"]).assert_failure(2, &parts);
    let several = ["perf", "stream", "--connect", "shm:lab", "--subscribers", "2"];
    place.run(&several).assert_failure(2, &["--connect", "--subscribers"]);
    let nobody = ["perf", "stream", "--connect", "shm:lab", "--wait", "0.05", "--cpus", "any"];
    let ended = place.run(&nobody);
    assert!(ended.code == Some(3) && ended.error.contains("shm:lab"), "{ended:?}");
    let parts = ["--batch, --capacity, --lossy, --policy, --in-place and --contents", "`perf stream`"];
    place.run(&["perf", "pull", "--batch", "2"]).assert_failure(2, &parts);
    let parts = ["--delivery", "`perf stream`", "`perf wake`"];
    place.run(&["perf", "notify", "--delivery", "push"]).assert_failure(2, &parts);
    place.run(&["perf", "stream", "--slots", "8"]).assert_failure(2, &["--slots", "--capacity"]);
    let parts = ["100 records of 1000 bytes", "100000 bytes", "--capacity"];
    let sizes = ["perf", "stream", "--size", "1000", "--batch", "100", "--capacity", "100000"];
    place.run(&sizes).assert_failure(2, &parts);
}

#[test]
fn an_interrupt_ends_a_stream_with_all_its_processes() {
    let _turn = turn();
    let place = Place::new();
    let running =
        place.start(&["perf", "stream", "--for", "600", "--subscribers", "2", "--json", "--cpus", "any"]);
    let address = format!("shm:perf-{}-0", running.process());
    wait_until("records", || {
        place.list(&[&address]).iter().any(|row| row["sequence"].as_u64().is_some_and(|newest| newest > 0))
    });
    let others = children(running.process(), 2);
    ended_quietly(running, Signal::TERM);
    wait_until("the others to end", || others.iter().all(|process| parent(*process).is_none()));
}

#[test]
fn default_output_is_a_table() {
    let _turn = turn();
    let ended = Place::new().run(&["perf", "pull", "--iterations", "3", "--cpus", "any"]);
    let lines: Vec<Vec<&str>> =
        ended.printed().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["mode", "size", "round"]);
    assert_eq!(lines[1][..3], ["pull", "64", "3"]);
}

#[test]
fn one_process_answers_several_measurements() {
    let _turn = turn();
    let place = Place::new();
    let answering = place.start(&["perf", "push", "--serve", "--node", "lab", "--cpus", "any"]);
    assert!(answering.line().contains("shm:lab"));
    for _ in 0..2 {
        let measured = ["perf", "push", "--connect", "shm:lab", "--iterations", "100", "--size", "1003"];
        let ended = place.run(&[&measured[..], &["--json", "--cpus", "any"]].concat());
        let figures = json(ended.printed().trim_end());
        assert_eq!((&figures["iterations"], &figures["rejected"]), (&json("100"), &json("0")));
        assert_eq!(figures["connect"], "shm:lab");
    }
    answering.signal(Signal::INT);
    assert_eq!(answering.end().code, Some(0));
}

#[test]
fn one_process_receives_several_streams_in_turn() {
    let _turn = turn();
    let place = Place::new();
    let receiving = place.start(&["perf", "stream", "--serve", "--node", "lab", "--cpus", "any"]);
    assert!(receiving.line().ends_with("measure with `fabricast perf stream --connect shm:lab`"));
    let stream = ["perf", "stream", "--connect", "shm:lab", "--json", "--cpus", "any"];
    for delivery in ["pull", "push", "pull"] {
        let more = ["--size", "64,1003", "--iterations", "5000", "--delivery", delivery];
        let ended = place.run(&[&stream[..], &more].concat());
        for (line, size) in ended.printed().lines().zip([64, 1003]) {
            let figures = json(line);
            let number = |name: &str| figures[name].as_u64().unwrap();
            assert_eq!((number("size"), number("iterations"), number("verified")), (size, 5000, 5000));
            assert_eq!((number("lost"), number("rejected")), (0, 0));
            assert_eq!((&figures["connect"], &figures["fabric"]), (&json("\"shm:lab\""), &json("\"shm\"")));
        }
    }
    let lossy = ["--lossy", "--capacity", "4096", "--batch", "16", "--iterations", "20000"];
    let ended = place.run(&[&stream[..], &lossy].concat());
    let figures = json(ended.printed().trim_end());
    assert_eq!(figures["verified"].as_u64().unwrap() + figures["lost"].as_u64().unwrap(), 20_000);
    receiving.signal(Signal::INT);
    assert_eq!(receiving.end().code, Some(0));
}

#[test]
fn both_processes_of_a_stream_need_the_same_policy() {
    let _turn = turn();
    let place = Place::new();
    let serve = ["perf", "stream", "--serve", "--node", "lab", "--cpus", "any"];
    let measure = ["perf", "stream", "--connect", "shm:lab", "--iterations", "1000", "--wait", "600"];
    let measure = [&measure[..], &["--cpus", "any"]].concat();
    let block = ["--policy", "block"];
    let (lap, in_place) = (["--policy", "lap"], [&block[..], &["--in-place"]].concat());
    let cases: [(&[&str], &[&str], &[&str]); 4] = [
        (&[], &block, &lap),
        (&lap, &block, &[]),
        (&block, &[], &block),
        (&in_place, &["--policy", "disconnect"], &block),
    ];
    for (served, differs, named) in cases {
        let receiving = place.start(&[&serve[..], served].concat());
        let hint = [&["fabricast perf stream --connect shm:lab"][..], served].concat().join(" ");
        let line = receiving.line();
        assert!(line.ends_with(&format!("measure with `{hint}`")), "{line}");
        // Both deliveries, and the process goes on to receive.
        for delivery in ["pull", "push"] {
            let delivery = ["--delivery", delivery];
            let named = if named.is_empty() { &lap[..] } else { named };
            let parts = ["the other process has", &named.join(" "), "pass the same --policy to both"];
            place.run(&[&measure, differs, &delivery[..]].concat()).assert_failure(2, &parts);
            let ended = place.run(&[&measure, served, &delivery[..], &["--json"]].concat());
            assert_eq!(json(ended.printed().trim_end())["rejected"], 0);
        }
        receiving.signal(Signal::INT);
        assert_eq!(receiving.end().code, Some(0));
    }
}

#[test]
fn refusal_that_will_not_change_ends_the_wait() {
    let place = Place::new();
    let node = place.node("lab");
    // Its values are of another type than those that are measured.
    let listener = node.state_listener::<u64>("pull").timeout(super::support::TIMEOUT).open().unwrap();
    let measuring =
        place.start(&["perf", "pull", "--connect", "shm:lab", "--wait", "600", "--json", "--cpus", "any"]);
    wait_until("the attempt", || listener.accept_timeout(Duration::from_millis(100)).is_err());
    measuring.end().assert_failure(4, &["shm:lab", "another type"]);
}

#[test]
fn records_in_place_need_a_stream_that_blocks() {
    let place = Place::new();
    let parts = ["--in-place", "`perf stream`"];
    place.run(&["perf", "pull", "--in-place"]).assert_failure(2, &parts);
    for policy in [&[][..], &["--policy", "lap"]] {
        let stream = [&["perf", "stream", "--in-place"][..], policy].concat();
        place.run(&stream).assert_failure(2, &["--in-place", "--policy block"]);
    }
    let help = place.run(&["perf", "--help"]);
    for part in ["records over 4 KiB in place", "[1 to 10000, default: 1000]"] {
        let words: Vec<&str> = help.printed().split_whitespace().collect();
        assert!(words.join(" ").contains(part), "{part:?} is missing in {help:?}");
    }
}

#[test]
fn impossible_measurements_are_reported() {
    let place = Place::new();
    let told = |arguments: &[&str], code: i32, sentence: &str| {
        let ended = place.run(&[&["perf", "pull"], arguments].concat());
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{ended:?}");
        assert!(ended.error.contains(sentence), "{ended:?}");
        assert_eq!(
            ended.error.matches("fabricast: ").count(),
            usize::from(code != 2 || ["slots", "processor 1000", "--rdma ADDRESS"].contains(&sentence))
        );
    };
    told(&["--connect", "shm:nobody", "--wait", "0.1"], 3, "shm:nobody");
    if cfg!(not(feature = "verbs")) {
        told(&["--connect", "rdma://far"], 7, "--features verbs");
    }
    told(&["--slots", "3"], 2, "slots");
    told(&["--cpus", "0,100000"], 2, "processors");
    told(&["--size", "4"], 2, "4 is not in 8..");
    told(&["--serve", "--node", "a b"], 2, "a b");
    told(&["--node", "lab"], 2, "--serve");
    told(&["--serve", "--fabric", "shm"], 2, "--rdma ADDRESS");
    told(&["--cpus", "1000,0"], 2, "processor 1000");
    told(&["--cpus", "0,1000"], 2, "processor 1000");
    told(&["--subscribers", "0"], 2, "0 is not in 1..=64");
    told(&["--subscribers", "65"], 2, "65 is not in 1..=64");
    let only = stay_on_one_processor();
    place.run(&["perf", "pull", "--cpus", "1000,0"]).assert_failure(2, &[&format!(" {only} ")]);
}

#[test]
fn counts_of_several_subscribing_processes_are_added() {
    let _turn = turn();
    let place = Place::new();
    let arguments = ["--iterations", "4", "--floor", "--json", "--cpus", "any", "--size", "1000"];
    for (mode, subscribers, least) in [("pull", 1, 408), ("pull", 3, 410), ("push", 3, 410)] {
        let number = subscribers.to_string();
        let ended = place.run(&[&["perf", mode, "--subscribers", &number], &arguments[..]].concat());
        let lines: Vec<_> = ended.printed().lines().map(json).collect();
        assert_eq!((&lines[0]["mode"], &lines[0]["subscribers"]), (&json("\"floor\""), &json("1")));
        assert_eq!((&lines[1]["subscribers"], &lines[1]["rejected"]), (&json(&number), &json("0")));
        // Both ends of a round trip see all of them, warm-up included; the others see at least the newest.
        assert!(lines[1]["verified"].as_u64().unwrap() >= least, "{lines:?}");
    }
}

#[test]
fn several_processes_subscribe_to_a_measurement_by_another() {
    let _turn = turn();
    let place = Place::new();
    let answering = place.start(&["perf", "push", "--serve", "--node", "lab", "--cpus", "any"]);
    assert!(answering.line().contains("shm:lab"));
    let measured = ["perf", "push", "--connect", "shm:lab", "--subscribers", "2", "--iterations", "4"];
    let ended = place.run(&[&measured[..], &["--json", "--cpus", "any"]].concat());
    let figures = json(ended.printed().trim_end());
    assert_eq!((&figures["subscribers"], &figures["rejected"]), (&json("2"), &json("0")));
    assert!(figures["verified"].as_u64().unwrap() >= 55, "{figures}");
}

#[test]
fn an_interrupt_ends_the_wait_for_the_other_process() {
    let place = Place::new();
    let waiting =
        || place.start(&["perf", "pull", "--connect", "shm:lab", "--wait", "600", "--json", "--cpus", "any"]);
    for signal in [Signal::INT, Signal::TERM] {
        let nobody_is_there = waiting();
        wait_until("its topic", || place.list(&["shm:lab.ping"]).len() == 1);
        ended_quietly(nobody_is_there, signal);

        let node = place.node("lab");
        let listener = node.state_listener::<Raw>("pull").timeout(super::support::TIMEOUT).open().unwrap();
        let nobody_answers = waiting();
        let mut subscriber = None;
        wait_until("its values", || {
            subscriber = listener.accept_timeout(Duration::from_millis(100)).unwrap();
            subscriber.is_some()
        });
        ended_quietly(nobody_answers, signal);
    }
}

#[test]
fn an_interrupt_ends_a_measurement_with_all_its_processes() {
    let _turn = turn();
    let place = Place::new();
    let running = busy(&place, 3);
    let others = children(running.process(), 3);
    ended_quietly(running, Signal::TERM);
    wait_until("the others to end", || others.iter().all(|process| parent(*process).is_none()));
}

#[test]
fn started_processes_end_with_their_parent() {
    let _turn = turn();
    let place = Place::new();
    let running = busy(&place, 3);
    let others = children(running.process(), 3);
    running.signal(Signal::KILL);
    assert_eq!(running.end().code, None);
    wait_until("the others to end", || others.iter().all(|process| parent(*process).is_none()));
}

#[test]
fn killed_child_process_is_reported_at_once() {
    let _turn = turn();
    let place = Place::new();
    let running = busy(&place, 1);
    for process in children(running.process(), 1) {
        rustix::process::kill_process(Pid::from_raw(process).unwrap(), Signal::KILL).unwrap();
    }
    running.end().assert_failure(6, &["answering", "signal 9"]);
}

#[test]
fn failing_child_process_reports_its_error_once() {
    let _turn = turn();
    let place = Place::new();
    let sizes = ["perf", "pull", "--size", "64,64", "--for", "1", "--wait", "600", "--json", "--cpus", "any"];
    let mut running = place.hold(&sizes);
    // The name of the second process that it starts is in use.
    let name = format!("perf-{}-1", running.process());
    let _node = place.node(&name);
    running.write("go");
    assert_eq!(json(&running.line())["size"], 64);
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
    assert!(ended.error.contains(&name), "{ended:?}");
    assert_eq!(ended.error.matches("fabricast: ").count(), 1, "{ended:?}");
}

/// Busy processes measure in turn, so that they do not starve each other.
pub(crate) fn turn() -> File {
    let file = File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/perf.turn")).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    file
}

/// A long measurement that has begun to deliver to so many subscribers.
fn busy(place: &Place, subscribers: u32) -> Running {
    let number = subscribers.to_string();
    let running =
        place.start(&["perf", "pull", "--for", "600", "--subscribers", &number, "--json", "--cpus", "any"]);
    let address = format!("shm:perf-{}-0.ping", running.process());
    wait_until("values", || {
        place.list(&[&address]).iter().any(|row| row["sequence"].as_u64().is_some_and(|newest| newest > 0))
    });
    running
}

#[track_caller]
fn ended_quietly(running: Running, signal: Signal) {
    running.signal(signal);
    let ended = running.end();
    assert_eq!((ended.code, ended.out.as_str(), ended.error.as_str()), (Some(130), "", ""));
}

/// The processes that this one has started, so many.
#[track_caller]
fn children(process: u32, count: usize) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let children: Vec<i32> = processes.filter(|child| parent(*child) == Some(process)).collect();
    assert_eq!(children.len(), count);
    children
}

/// The parent of this process, if it lives.
fn parent(process: i32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}
