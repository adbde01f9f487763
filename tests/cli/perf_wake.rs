//! `fabricast perf wake`: what it prints and how it ends, not how fast it is.

use rustix::process::Signal;

use super::perf::{FIELDS, turn};
use super::support::{Place, fields, json};

const SETTINGS: [&str; 3] = ["--json", "--cpus", "any"];

/// The same number as a JSON value.
#[track_caller]
fn number(figures: &serde_json::Value, name: &str) -> u64 {
    figures[name].as_u64().unwrap_or_else(|| panic!("{name} in {figures}"))
}

#[test]
fn each_size_has_a_line_with_the_named_fields_beside_its_floor() {
    let _turn = turn();
    let place = Place::new();
    for manner in [
        ["--delivery", "pull", "--sleep-in", "receive"],
        ["--delivery", "push", "--sleep-in", "receive"],
        ["--delivery", "pull", "--sleep-in", "wait-set"],
        ["--delivery", "push", "--sleep-in", "wait-set"],
    ] {
        let wake = ["perf", "wake", "--size", "8,1003", "--iterations", "100", "--floor"];
        let ended = place.run(&[&wake[..], &manner, &SETTINGS].concat());
        let lines: Vec<&str> = ended.printed().lines().collect();
        assert_eq!(lines.len(), 4);
        for (index, line) in lines.iter().enumerate() {
            let mut names = fields(line);
            names.sort();
            assert_eq!(names, FIELDS);
            let figures = json(line);
            assert_eq!(figures["size"], [8, 1003][index / 2]);
            assert_eq!((number(&figures, "iterations"), &figures["times"]), (100, &json("\"one-way\"")));
            assert!(["near", "far", "mixed"].contains(&figures["placement"].as_str().unwrap()));
            // On a busy machine any number may find it awake, but not all of them.
            assert!(number(&figures, "awake") < 100, "{figures}");
            let (half, most) = (number(&figures, "p50_ns"), number(&figures, "max_ns"));
            assert!(0 < half && half <= most, "{figures}");
            if index % 2 == 0 {
                assert_eq!((&figures["mode"], &figures["verified"]), (&json("\"floor\""), &json("null")));
            } else {
                assert_eq!((&figures["mode"], &figures["fabric"]), (&json("\"wake\""), &json("\"shm\"")));
                assert_eq!((number(&figures, "rejected"), number(&figures, "lost")), (0, 0));
                // Also those before each of the ten turns.
                assert_eq!(number(&figures, "verified"), 200);
            }
        }
    }
}

#[test]
fn others_sleep_beside_the_subscriber_that_answers() {
    let _turn = turn();
    let place = Place::new();
    for sleep_in in ["receive", "wait-set"] {
        let wake = ["perf", "wake", "--iterations", "20", "--subscribers", "3", "--sleep-in", sleep_in];
        let ended = place.run(&[&wake[..], &SETTINGS].concat());
        let figures = json(ended.printed().trim_end());
        assert_eq!((number(&figures, "subscribers"), number(&figures, "rejected")), (3, 0));
        // The one that answers receives all of them, warm-up included; the others at least the newest.
        assert!(number(&figures, "verified") >= 122, "{figures}");
    }
}

#[test]
fn one_process_is_woken_by_several_measurements() {
    let _turn = turn();
    let place = Place::new();
    let sleeping = place.start(&["perf", "wake", "--serve", "--node", "lab", "--cpus", "any"]);
    assert!(sleeping.line().ends_with("measure with `fabricast perf wake --connect shm:lab`"));
    for (delivery, sleep_in) in [("pull", "receive"), ("push", "wait-set"), ("pull", "receive")] {
        let wake = ["perf", "wake", "--connect", "shm:lab", "--iterations", "50", "--size", "64,1003"];
        let manner = ["--delivery", delivery, "--sleep-in", sleep_in];
        let ended = place.run(&[&wake[..], &manner, &SETTINGS].concat());
        for (line, size) in ended.printed().lines().zip([64, 1003]) {
            let figures = json(line);
            assert_eq!((number(&figures, "size"), number(&figures, "iterations")), (size, 50));
            assert_eq!((number(&figures, "rejected"), number(&figures, "verified")), (0, 60));
            // Both processes have one clock.
            assert_eq!(
                (&figures["connect"], &figures["times"]),
                (&json("\"shm:lab\""), &json("\"one-way\""))
            );
        }
    }
    sleeping.signal(Signal::INT);
    assert_eq!(sleeping.end().code, Some(0));
}

#[test]
fn rate_is_the_most_that_is_published() {
    let _turn = turn();
    let wake = ["perf", "wake", "--rate", "100", "--iterations", "30"];
    let figures = json(Place::new().run(&[&wake[..], &SETTINGS].concat()).printed().trim_end());
    let rate = figures["msgs_per_s"].as_f64().unwrap();
    // The first value after a warm-up of each turn may be due at once.
    assert!(0.0 < rate && rate < 151.0, "{figures}");
}

#[test]
fn default_output_is_a_table() {
    let _turn = turn();
    let ended = Place::new().run(&["perf", "wake", "--iterations", "3", "--cpus", "any"]);
    let lines: Vec<Vec<&str>> =
        ended.printed().lines().map(|line| line.split_whitespace().collect()).collect();
    let at = |name| lines[0].iter().position(|heading| *heading == name).unwrap();
    assert_eq!(lines[0][..3], ["mode", "size", "values"]);
    assert_eq!(lines[1][..3], ["wake", "64", "3"]);
    // Four headings of quantiles have two words.
    assert_eq!(lines[1][at("times") - 4], "one-way");
}

#[test]
fn impossible_measurements_are_reported() {
    let place = Place::new();
    let fails = |arguments: &[&str], parts: &[&str]| {
        place.run(&[&["perf"], arguments].concat()).assert_failure(2, parts);
    };
    fails(&["pull", "--sleep-in", "receive"], &["--sleep-in and --rate", "`perf wake`"]);
    fails(&["stream", "--rate", "5"], &["--sleep-in and --rate", "`perf wake`"]);
    fails(
        &["wake", "--batch", "5"],
        &["--batch, --capacity, --lossy, --policy, --in-place and --contents", "`perf stream`"],
    );
    for option in [["--rate", "5"], ["--sleep-in", "wait-set"], ["--delivery", "push"]] {
        fails(&["wake", "--serve", option[0], option[1]], &["--delivery, --sleep-in and --rate", "--serve"]);
    }
    let ended = place.run(&["perf", "wake", "--rate", "0"]);
    assert!(ended.code == Some(2) && ended.error.contains("0 is not in 1..=10000"), "{ended:?}");
    let nobody = ["perf", "wake", "--connect", "shm:lab", "--wait", "0.05", "--cpus", "any"];
    let ended = place.run(&nobody);
    assert!(ended.code == Some(3) && ended.error.contains("shm:lab"), "{ended:?}");
}
