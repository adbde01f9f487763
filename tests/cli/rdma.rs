//! The program over RDMA, on one host with a device: run by `tools/test` in a soft-RoCE machine.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Place, Running, json as parsed, wait_until};

/// The longest run without a wait for a peer, in emulation, and besides its start: well below the deadline of a connection, 3 s.
const AT_ONCE: Duration = Duration::from_secs(2);

#[expect(
    clippy::disallowed_methods,
    reason = "the tests look at the program from outside, by the real clock"
)]
fn now() -> Instant {
    Instant::now()
}

/// An address of this host that its RDMA device has: by default that of a machine of tools/soft-roce.
fn rdma(port: u16) -> String {
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    format!("rdma://{host}:{port}")
}

/// Starts `fabricast pub` at an RDMA address, and waits for its first value.
fn publish(place: &Place, port: u16) -> (Running, String) {
    let address = rdma(port);
    let target = format!("{address}/t");
    let mut publisher =
        place.start(&["pub", "--insecure", &target, "--node", "feed", "--epoch", "1", "--quiet"]);
    publisher.write("one");
    wait_until("the value", || place.list(&[&address]).iter().any(|row| row["sequence"] == 1));
    (publisher, target)
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn what_is_published_over_rdma_is_listed_shown_and_received() {
    let place = Place::new();
    let (mut publisher, target) = publish(&place, 7501);
    let listed = place.run(&["list", &rdma(7501), "--json"]);
    let row = parsed(listed.printed());
    assert_eq!((&row["node"], &row["topic"], &row["state"]), (&json!("feed"), &json!("t"), &json!("live")));
    // The same node, by shared memory.
    assert_eq!(place.list(&["shm:feed"])[0]["topic"], "t");

    let shown = place.run(&["info", &target]);
    assert!(shown.printed().contains(&format!("topic             {target}\n")), "{shown:?}");
    assert!(shown.printed().contains("state             live, heartbeat "), "{shown:?}");
    assert!(shown.printed().contains("rkey              ****************  (--show-keys"), "{shown:?}");
    let report = parsed(place.run(&["info", &target, "--json", "--show-keys"]).printed());
    assert_eq!((&report["topic"], &report["sequence"]), (&json!("t"), &json!(1)));
    for key in ["rkey", "address"] {
        assert_ne!(u64::from_str_radix(report[key].as_str().unwrap(), 16), Ok(0), "{key}");
    }

    assert_eq!(place.run(&["get", &target]).printed(), "\"one\"\n");
    assert_eq!(parsed(place.run(&["get", &target, "--json"]).printed())["value"], "one");
    let watches = ["pull", "push"]
        .map(|delivery| place.start(&["watch", &target, "--json", "--count", "2", "--delivery", delivery]));
    for (sequence, value) in [(1, "one"), (2, "two")] {
        if sequence > 1 {
            publisher.write(value);
        }
        for watch in &watches {
            let line = parsed(&watch.line());
            assert_eq!((&line["sequence"], &line["value"]), (&json!(sequence), &json!(value)));
        }
    }
    watches.into_iter().for_each(|watch| assert_eq!(watch.end().printed(), ""));
    publisher.end_input();
    assert_eq!(publisher.end().printed(), "");
    let ended = place.run(&["get", "rdma://127.0.0.1:7501/t"]);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.error.contains("127.0.0.1 is rarely"), "{ended:?}");
    // An attempt without a listener fails at once with either method, not at a deadline.
    let address = rdma(7501);
    let parts = [target.as_str(), address.as_str()];
    let run = |arguments: &[&str], parts: &[&str]| {
        let began = now();
        place.run(arguments).assert_failure(3, parts);
        began.elapsed()
    };
    let program = (0..3).map(|_| run(&["get", "shm:nobody/t"], &[])).min().unwrap();
    for connect in ["manager", "tcp"] {
        // An emulated machine is slow at times; a deadline would be waited for each time.
        let times = (0..5).map(|_| run(&["get", &target, "--rdma-connect", connect], &parts));
        let mut times = times.map(|took| took.saturating_sub(program));
        assert!(times.any(|took| took < AT_ONCE), "{connect}: every attempt waits");
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn queue_pairs_are_connected_by_the_chosen_method() {
    let place = Place::new();
    let (_publisher, target) = publish(&place, 7502);
    for connect in ["manager", "tcp", "tcp-unreliable"] {
        for delivery in ["pull", "push"] {
            let watch = ["watch", &target, "--count", "1", "--json", "--delivery", delivery];
            let ended = place.run(&[&watch[..], &["--rdma-connect", connect]].concat());
            if (connect, delivery) == ("tcp-unreliable", "pull") {
                assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{ended:?}");
                assert!(ended.error.contains("--rdma-connect"), "{ended:?}");
            } else {
                assert_eq!(parsed(ended.printed())["value"], "one", "{connect} {delivery}");
            }
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn hung_or_dead_publisher_is_reported_over_rdma() {
    let place = Place::new();
    let (mut publisher, target) = publish(&place, 7503);
    let pull = place.start(&["watch", &target, "--until-end"]);
    let push = place.start(&["watch", &target, "--until-end", "--delivery", "push"]);
    for watch in [&pull, &push] {
        assert!(watch.line().ends_with("\"one\""));
    }
    for (signal, sentence) in
        [(Signal::STOP, "the publisher is hung"), (Signal::CONT, "the publisher runs again")]
    {
        publisher.signal(signal);
        for watch in [&pull, &push] {
            let line = watch.error_line();
            assert!(line.contains(&format!("{target}: {sentence}")), "{line}");
        }
    }
    publisher.write("two");
    for watch in [&pull, &push] {
        assert!(watch.line().ends_with("\"two\""));
    }
    // A new connection does not tell a program that is stopped from a host that is down.
    publisher.signal(Signal::STOP);
    let address = rdma(7503);
    let parts = [address.as_str(), "check that its host is up, that its program is not stopped"];
    place.run(&["list", &address]).assert_failure(3, &parts);
    place.run(&["get", &target]).assert_failure(3, &parts);
    publisher.signal(Signal::KILL);
    for watch in [pull, push] {
        let ended = watch.end();
        assert_eq!(ended.code, Some(6), "{ended:?}");
        assert!(ended.error.contains("the publisher is gone: "), "{ended:?}");
    }
}

/// The nodes of two hosts may have the same name: by push their processes tell them apart.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn hung_publisher_is_reported_with_its_line_over_rdma() {
    let places = [Place::new(), Place::new()];
    let (_a, first) = publish(&places[0], 7506);
    let (b, second) = publish(&places[1], 7507);
    let watches = ["pull", "push"].map(|delivery| {
        places[0].start(&["watch", &first, "--line", &second, "--json", "--delivery", delivery])
    });
    for watch in &watches {
        assert_eq!(parsed(&watch.line())["value"], "one");
    }
    for (signal, name) in [(Signal::STOP, "hung"), (Signal::CONT, "recovered")] {
        b.signal(signal);
        for watch in &watches {
            let event = parsed(&watch.line());
            assert_eq!((&event["event"], &event["line"]), (&json!(name), &json!(second)), "{event}");
        }
    }
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn one_process_answers_over_rdma_what_another_measures() {
    let place = Place::new();
    let address = rdma(7504);
    let answering = place.start(&[
        "perf",
        "pull",
        "--insecure",
        "--serve",
        "--node",
        "lab",
        "--rdma",
        &address,
        "--cpus",
        "any",
    ]);
    wait_until("the address", || answering.line().contains(&address));
    for (mode, connect) in [("pull", "manager"), ("push", "tcp"), ("push", "tcp-unreliable")] {
        let measured = [
            "perf",
            mode,
            "--connect",
            &address,
            "--iterations",
            "2",
            "--json",
            "--cpus",
            "any",
            "--wait",
            "60s",
        ];
        let ended = place.run(&[&measured[..], &["--rdma-connect", connect]].concat());
        let figures = parsed(ended.printed().trim_end());
        assert_eq!((&figures["fabric"], &figures["rejected"]), (&json!("verbs"), &json!(0)));
        assert_eq!((&figures["iterations"], &figures["connect"]), (&json!(2), &json!(address)));
    }
    answering.signal(Signal::INT);
    assert_eq!(answering.end().code, Some(0));
}

/// The ports of this host at which something listens over TCP.
fn listening_ports() -> BTreeSet<u16> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
    let port = |row: &str| {
        let mut fields = row.split_whitespace().skip(1);
        let (local, _, state) = (fields.next()?, fields.next(), fields.next()?);
        // LISTEN.
        let port = local.split_once(':').filter(|_| state == "0A")?.1;
        Some(u16::from_str_radix(port, 16).expect("a hexadecimal number"))
    };
    table.lines().skip(1).filter_map(port).collect()
}

/// Only they have its key.
#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn processes_of_a_measurement_over_rdma_admit_no_others() {
    let place = Place::new();
    let measured = ["perf", "pull", "--fabric", "verbs", "--for", "600", "--json", "--cpus", "any"];
    let before = listening_ports();
    let measuring = place.start(&[&measured[..], &["--rdma-connect", "tcp"]].concat());
    let mut ports = BTreeSet::new();
    wait_until("two nodes that listen", || {
        ports = &listening_ports() - &before;
        ports.len() >= 2
    });
    for port in ports {
        let refused = place.run(&["list", &rdma(port), "--rdma-connect", "tcp"]);
        refused.assert_failure(4, &["it admits only nodes that prove one of its keys"]);
    }
    measuring.signal(Signal::INT);
    measuring.end();
    let stream =
        ["perf", "stream", "--fabric", "verbs", "--subscribers", "2", "--iterations", "300", "--wait", "60s"];
    place.run(&[&stream[..], &["--json", "--cpus", "any"]].concat()).printed();
}

#[test]
#[ignore = "needs an RDMA device: tools/soft-roce run"]
fn records_of_a_log_are_shown_and_streamed_over_rdma() {
    let place = Place::new();
    let address = rdma(7505);
    let target = format!("{address}/t");
    let mut publisher = place.start(&["pub", "--insecure", &target, "--node", "feed", "--kind", "log"]);
    publisher.write("one\ntwo\nthree");
    wait_until("the records", || place.list(&[&address]).iter().any(|row| row["sequence"] == 3));
    let shown = place.run(&["tail", &target, "--last", "2", "--json"]);
    let values: Vec<_> = shown.printed().lines().map(|line| parsed(line)["value"].clone()).collect();
    assert_eq!(values, ["two", "three"]);
    let follow = place.start(&["tail", &target, "--from", "3", "--follow", "--count", "2"]);
    assert!(follow.line().ends_with("\"three\""));
    publisher.write("four");
    assert!(follow.line().ends_with("\"four\""));
    assert_eq!(follow.end().printed(), "");
    assert_eq!(place.run(&["get", &target]).printed(), "\"four\"\n");
    let report = parsed(place.run(&["info", &target, "--json"]).printed());
    assert_eq!((&report["kind"], &report["first_sequence"]), (&json!("log"), &json!(1)));

    let stream = [
        "perf",
        "stream",
        "--fabric",
        "verbs",
        "--iterations",
        "300",
        "--json",
        "--cpus",
        "any",
        "--wait",
        "60s",
    ];
    let figures = parsed(place.run(&stream).printed().trim_end());
    assert_eq!((&figures["fabric"], &figures["verified"]), (&json!("verbs"), &json!(300)));
    assert_eq!((&figures["lost"], &figures["rejected"]), (&json!(0), &json!(0)));
}
