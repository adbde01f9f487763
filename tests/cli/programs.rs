//! `fabricast perf ping-pong` and `fabricast perf blast`: what they refuse anywhere, and all modes where there is an RDMA device.

use super::support::Place;

/// The modes of ping-pong.
const MODES: [&str; 13] = [
    "rdma-1",
    "rdma-1e",
    "rdma-2",
    "rdma-3",
    "write-ack",
    "read-ack",
    "send",
    "send-event",
    "write",
    "read",
    "uc-send",
    "uc-write",
    "ud-send",
];

#[test]
fn modes_and_their_options_are_in_the_help() {
    let help = Place::new().run(&["perf", "--help"]);
    for part in MODES.iter().chain(&["--inline", "--sge", "--signal-every", "--depth", "--chain", "--events"])
    {
        assert!(help.printed().contains(part), "{part}");
    }
}

#[test]
fn options_that_do_not_fit_the_mode_are_refused() {
    let place = Place::new();
    let refused: [(&[&str], &str); 16] = [
        (&["ping-pong"], "--mode"),
        (&["blast"], "--mode"),
        (&["blast", "--mode", "send"], "write or read"),
        (&["ping-pong", "--mode", "read", "--inline", "64"], "--inline"),
        (&["ping-pong", "--mode", "read-ack", "--inline", "64"], "--inline"),
        (&["blast", "--mode", "read", "--inline", "64"], "--inline"),
        (&["ping-pong", "--mode", "rdma-1", "--signal-every", "4"], "--signal-every"),
        (&["ping-pong", "--mode", "rdma-2", "--depth", "4"], "--depth"),
        (&["ping-pong", "--mode", "send", "--chain", "4"], "--chain"),
        (&["ping-pong", "--mode", "rdma-3", "--events"], "--events"),
        (&["ping-pong", "--mode", "send", "--slots", "4"], "--slots"),
        (&["ping-pong", "--mode", "send", "--floor"], "--floor"),
        (&["ping-pong", "--mode", "send", "--fabric", "shm"], "--fabric"),
        (&["ping-pong", "--mode", "send", "--connect", "shm:lab"], "--connect rdma://"),
        (&["ping-pong", "--mode", "send", "--connect", "10.77.0.1"], "--connect rdma://"),
        (&["blast", "--serve", "--mode", "write"], "--serve"),
    ];
    for (arguments, part) in refused {
        place.run(&[&["perf"], arguments].concat()).assert_failure(2, &[part]);
    }
    for mode in ["pull", "stream", "wake"] {
        place.run(&["perf", mode, "--mode", "send"]).assert_failure(2, &["--mode", "perf ping-pong"]);
        place.run(&["perf", mode, "--depth", "4"]).assert_failure(2, &["--depth", "perf ping-pong"]);
    }
}

/// On a host without a device, too.
#[test]
#[cfg(feature = "verbs")]
fn numbers_that_contradict_each_other_are_refused_with_what_would_fit() {
    let place = Place::new();
    let refused: [(&[&str], &str); 10] = [
        (&["ping-pong", "--mode", "send", "--sge", "40"], "--sge 40 is not from 1 to 32"),
        (&["ping-pong", "--mode", "send", "--depth", "16385"], "--depth 16385 is not from 1 to 16384"),
        (&["ping-pong", "--mode", "send", "--signal-every", "0"], "--signal-every 0"),
        (
            &["ping-pong", "--mode", "send", "--signal-every", "100000"],
            "use a --signal-every of at most 128\n",
        ),
        (
            &["ping-pong", "--mode", "send", "--signal-every", "200"],
            "use a --signal-every of at most 128, or a --depth of at least 200\n",
        ),
        (
            &["blast", "--mode", "write", "--signal-every", "126"],
            "use a --signal-every of at most 113, or a --depth of at least 144\n",
        ),
        (&["blast", "--mode", "write", "--chain", "0"], "--chain 0 is not from 1 to 128"),
        (&["blast", "--mode", "write", "--chain", "500"], "use a smaller --chain, or a greater --depth\n"),
        (&["blast", "--mode", "write", "--chain", "20000"], "use a smaller --chain\n"),
        (&["ping-pong", "--mode", "send", "--size", "64,1G"], "--size"),
    ];
    for (arguments, part) in refused {
        place.run(&[&["perf"], arguments].concat()).assert_failure(2, &[part]);
    }
}

#[test]
#[cfg(not(feature = "verbs"))]
fn build_without_verbs_says_so() {
    let place = Place::new();
    place.run(&["perf", "ping-pong", "--mode", "send"]).assert_failure(2, &["--features verbs"]);
    place.run(&["perf", "blast", "--serve"]).assert_failure(2, &["--features verbs"]);
}

#[cfg(feature = "verbs")]
pub(crate) mod machine {
    use rustix::process::Signal;
    use serde_json::{Value, json};

    use super::MODES;
    use crate::support::{Place, Running, json as parsed, wait_until};

    /// Modes over unreliable queue pairs, which librdmacm does not connect here.
    const UNRELIABLE: [&str; 3] = ["uc-send", "uc-write", "ud-send"];

    /// The address of the device at this port.
    pub(crate) fn address(port: u16) -> String {
        let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
        format!("rdma://{host}:{port}")
    }

    /// Runs a program, and returns the line of each size. No block was wrong, and none was lost; over an unreliable queue pair in one of
    /// three runs: a process that had no processor for a quarter of a second counts as one that has lost a block.
    #[track_caller]
    pub(crate) fn measure(place: &Place, arguments: &[&str]) -> Vec<Value> {
        let common = ["--json", "--cpus", "any", "--wait", "60s"];
        let is_unreliable = arguments.iter().any(|argument| UNRELIABLE.contains(argument));
        let mut attempts = if is_unreliable { 3 } else { 1 };
        loop {
            let ended = place.run(&[&["perf"], arguments, &common].concat());
            let lines: Vec<Value> = ended.printed().lines().map(parsed).collect();
            for line in &lines {
                assert_eq!((&line["fabric"], &line["rejected"]), (&json!("verbs"), &json!(0)), "{line}");
                assert!(line["verified"].as_u64() > Some(0) && line["whole"].as_u64() > Some(0), "{line}");
            }
            let lost = lines.iter().find(|line| line["lost"] != json!(0));
            attempts -= 1;
            match lost {
                None => return lines,
                Some(line) => assert!(attempts > 0, "{line}"),
            }
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn every_mode_of_ping_pong_runs_and_is_verified() {
        let place = Place::new();
        for mode in MODES {
            let way = if UNRELIABLE.contains(&mode) { "tcp" } else { "manager" };
            verify_ping_pong(&place, mode, way);
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn every_reliable_mode_of_ping_pong_runs_connected_over_tcp() {
        let place = Place::new();
        for mode in MODES.into_iter().filter(|mode| !UNRELIABLE.contains(mode)) {
            verify_ping_pong(&place, mode, "tcp");
        }
    }

    /// Runs a mode with queue pairs that are connected this way.
    fn verify_ping_pong(place: &Place, mode: &str, way: &str) {
        // Datagrams have one packet.
        let sizes = if mode == "ud-send" { "8,100,4096" } else { "8,100,9001" };
        let arguments = ["--iterations", "260", "--size", sizes, "--rdma-connect", way];
        let lines = measure(place, &[&["ping-pong", "--mode", mode], &arguments[..]].concat());
        assert_eq!(lines.len(), 3);
        for line in &lines {
            assert_eq!((&line["mode"], &line["program"]), (&json!("ping-pong"), &json!(mode)));
            assert_eq!((&line["iterations"], &line["connect"]), (&json!(260), &json!(way)));
            assert!(line["p50_ns"].as_u64() <= line["max_ns"].as_u64(), "{line}");
            // Every block of a mode without idle ends is verified by both.
            let is_one_sided = ["rdma-1", "rdma-1e", "rdma-2", "write", "read"].contains(&mode);
            let verified = if is_one_sided { None } else { Some(2 * 260) };
            assert!(verified.is_none_or(|count| line["verified"] == count), "{line}");
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn both_blasts_run_and_are_verified_with_any_chain() {
        let place = Place::new();
        for mode in ["write", "read"] {
            let numbers = [
                ["1", "1", "1"],
                ["16", "16", "128"],
                ["7", "3", "20"],
                ["7", "8", "20"],
                ["128", "1", "128"],
            ];
            for [chain, signal_every, depth] in numbers {
                let options = ["--chain", chain, "--signal-every", signal_every, "--depth", depth];
                let common = ["--iterations", "1001", "--size", "9001,64"];
                for line in measure(&place, &[&["blast", "--mode", mode], &options[..], &common].concat()) {
                    assert_eq!((&line["iterations"], &line["p50_ns"]), (&json!(1001), &json!(null)));
                    assert!(line["gb_per_s"].as_f64() > Some(0.0), "{line}");
                }
            }
            // Fewer completions, where the chain leaves no room for more.
            measure(&place, &["blast", "--mode", mode, "--chain", "100", "--iterations", "1001"]);
            let line = measure(&place, &["blast", "--mode", mode, "--for", "1s"]).remove(0);
            assert_idle(&line, "agent_cpu_ns", "client_cpu_ns");
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn options_of_work_requests_change_no_byte() {
        let place = Place::new();
        let options: [&[&str]; 5] = [
            &["--inline", "500"],
            &["--sge", "3"],
            &["--inline", "500", "--sge", "5"],
            &["--signal-every", "3", "--depth", "4"],
            &["--signal-every", "1"],
        ];
        for mode in ["rdma-3", "write-ack", "send", "send-event", "uc-send", "uc-write", "ud-send"] {
            for options in options {
                let common = ["--iterations", "200", "--size", "64,1001"];
                measure(&place, &[&["ping-pong", "--mode", mode], options, &common].concat());
            }
        }
        for mode in ["rdma-1", "rdma-1e", "rdma-2", "write"] {
            for options in [["--inline", "500", "--sge", "4"], ["--inline", "32", "--sge", "32"]] {
                let common = ["--iterations", "200", "--size", "64,1001"];
                measure(&place, &[&["ping-pong", "--mode", mode], &options[..], &common].concat());
            }
        }
        for mode in ["rdma-1", "write", "read", "write-ack", "read-ack", "uc-send", "ud-send"] {
            measure(&place, &["ping-pong", "--mode", mode, "--events", "--iterations", "200", "--sge", "2"]);
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn idle_agent_uses_no_processor() {
        let place = Place::new();
        for mode in ["rdma-1", "rdma-2", "write", "read"] {
            let line = measure(&place, &["ping-pong", "--mode", mode, "--for", "1s"]).remove(0);
            assert_idle(&line, "agent_cpu_ns", "client_cpu_ns");
        }
        let line = measure(&place, &["ping-pong", "--mode", "rdma-1e", "--for", "1s"]).remove(0);
        assert_idle(&line, "client_cpu_ns", "agent_cpu_ns");
    }

    /// One end has slept while the other worked. It was woken once, which takes a processor of an emulated machine milliseconds if the
    /// host is busy.
    #[track_caller]
    fn assert_idle(line: &Value, idle: &str, busy: &str) {
        let times = [idle, busy].map(|name| line[name].as_u64().unwrap());
        assert!(times[0] * 10 < times[1], "{line}");
    }

    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn what_the_device_or_the_method_does_not_do_is_refused() {
        let place = Place::new();
        let refused: [(&[&str], &str); 9] = [
            (
                &["blast", "--mode", "read", "--chain", "7", "--signal-every", "13", "--depth", "20"],
                "at least 21",
            ),
            (
                &["blast", "--mode", "write", "--signal-every", "64", "--chain", "100"],
                "--depth of at least 200",
            ),
            (
                &["ping-pong", "--mode", "send", "--depth", "16384", "--signal-every", "16384"],
                "smaller numbers",
            ),
            (&["ping-pong", "--mode", "ud-send", "--size", "4097"], "--size"),
            (&["ping-pong", "--mode", "send", "--inline", "65536"], "--inline"),
            (&["ping-pong", "--mode", "uc-send", "--rdma-connect", "manager"], "--rdma-connect tcp"),
            (&["ping-pong", "--mode", "send", "--rdma-connect", "tcp-unreliable"], "--rdma-connect"),
            (&["ping-pong", "--mode", "rdma-1", "--size", "1G"], "--size"),
            (&["blast", "--mode", "write", "--depth", "8"], "--depth"),
        ];
        for (arguments, part) in refused {
            place.run(&[&["perf"], arguments].concat()).assert_failure(2, &[part]);
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn missing_or_dying_peer_is_reported() {
        let place = Place::new();
        let address = address(7521);
        for (way, mode) in [("manager", "send"), ("tcp", "send"), ("tcp", "ud-send")] {
            let options = ["--connect", &address, "--wait", "300ms", "--rdma-connect", way];
            let ended = place.run(&[&["perf", "ping-pong", "--mode", mode], &options[..]].concat());
            ended.assert_failure(3, &[&address]);
        }
        for (way, mode) in
            [("manager", "rdma-3"), ("tcp", "send-event"), ("manager", "read-ack"), ("tcp", "uc-write")]
        {
            let agent = place.start(&["perf", "ping-pong", "--serve", "--rdma", &address, "--cpus", "any"]);
            wait_until("the address", || agent.line().contains(&address));
            let options = ["--connect", &address, "--for", "60", "--rdma-connect", way, "--cpus", "any"];
            let client = place.start(&[&["-v", "perf", "ping-pong", "--mode", mode], &options[..]].concat());
            wait_until("the connection", || client.error_line().contains("connected"));
            agent.signal(Signal::KILL);
            let ended = client.end();
            assert_eq!(ended.code, Some(6), "{way} {mode}: {ended:?}");
            assert!(ended.error.contains("the other process is gone"), "{ended:?}");
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn address_that_cannot_be_listened_at_is_a_wrong_argument() {
        let place = Place::new();
        let address = address(7523);
        let agent = place.start(&["perf", "ping-pong", "--serve", "--rdma", &address, "--cpus", "any"]);
        wait_until("the address", || agent.line().contains(&address));
        for (address, part) in [(&*address, "in use"), ("rdma://192.0.2.1:7523", "no active RDMA device")] {
            let serve = ["perf", "blast", "--serve", "--rdma", address, "--cpus", "any"];
            place.run(&serve).assert_failure(2, &[part]);
        }
    }

    /// A node and an agent that are taken for each other are told apart.
    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn node_and_agent_are_told_apart() {
        let place = Place::new();
        let (program, node) = (address(7524), address(7525));
        let agent = place.start(&["perf", "ping-pong", "--serve", "--rdma", &program, "--cpus", "any"]);
        wait_until("the agent", || agent.line().contains(&program));
        let answers =
            place.start(&["perf", "pull", "--serve", "--insecure", "--rdma", &node, "--cpus", "any"]);
        wait_until("the node", || answers.line().contains(&node));
        let pull = (["perf", "pull", "--connect", &program].to_vec(), "not a node of this version");
        let send = ["perf", "ping-pong", "--mode", "send", "--connect", &node].to_vec();
        for (arguments, sentence) in [pull, (send, "not a program of this version")] {
            for way in ["manager", "tcp"] {
                let options = ["--wait", "1s", "--cpus", "any", "--rdma-connect", way];
                let run = || place.run(&[&arguments, &options[..]].concat());
                // A machine that is slow at the moment does not connect within a second.
                let mut attempts = (0..5).map(|_| run());
                let told = attempts.find(|ended| !ended.error.contains("does not answer"));
                told.expect("it answers").assert_failure(3, &[sentence]);
            }
        }
        measure(&place, &["ping-pong", "--mode", "send", "--connect", &program, "--iterations", "200"]);
    }

    /// Waits until this client has connected, and it or a process that it has started has used its processor for a while since: its
    /// program runs.
    fn await_run(client: &Running) {
        wait_until("the connection", || client.error_line().contains("connected"));
        let process = client.process();
        let used = || {
            let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
            let children = children.unwrap_or_default();
            let children = children.split_whitespace().filter_map(|child| child.parse().ok());
            std::iter::once(process).chain(children).map(centiseconds).sum::<u64>()
        };
        let before = used();
        wait_until("the run", || used() > before + 30);
    }

    fn centiseconds(process: u32) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // In user mode and in the kernel.
        let times = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        times.filter_map(|time| time.parse::<u64>().ok()).sum()
    }

    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn one_process_serves_programs_until_it_is_interrupted() {
        let place = Place::new();
        let address = address(7522);
        let agent = place.start(&["perf", "blast", "--serve", "--rdma", &address, "--cpus", "any"]);
        wait_until("the address", || agent.line().contains(&address));
        for (verb, mode) in [("ping-pong", "rdma-3"), ("blast", "read"), ("ping-pong", "ud-send")] {
            let line = measure(&place, &[verb, "--mode", mode, "--connect", &address, "--iterations", "200"]);
            assert_eq!((line.len(), &line[0]["connect"]), (1, &json!(address)));
        }
        // A client that dies does not end it.
        let options = ["--mode", "rdma-1", "--connect", &address, "--for", "60", "--cpus", "any"];
        let client = place.start(&[&["-v", "perf", "ping-pong"], &options[..]].concat());
        await_run(&client);
        client.signal(Signal::KILL);
        let told = agent.error_line();
        assert!(
            told.contains("the other process is gone") && told.ends_with("; waiting for the next client"),
            "{told}"
        );
        assert!(told.contains("the program of the client at "), "{told}");
        measure(&place, &["ping-pong", "--mode", "send", "--connect", &address, "--iterations", "200"]);
        agent.signal(Signal::INT);
        assert_eq!(agent.end().code, Some(0));
    }

    /// Ctrl-C ends both processes quietly, also while one of them sleeps.
    #[test]
    #[ignore = "needs an RDMA device: tools/soft-roce run"]
    fn interrupted_program_ends_quietly() {
        let place = Place::new();
        let modes = [
            ("ping-pong", "rdma-1"),
            ("ping-pong", "rdma-1e"),
            ("ping-pong", "rdma-3"),
            ("ping-pong", "send-event"),
        ];
        for (verb, mode) in modes.into_iter().chain([("blast", "write"), ("blast", "read")]) {
            let client = place.start(&["-v", "perf", verb, "--mode", mode, "--for", "60", "--cpus", "any"]);
            await_run(&client);
            client.signal(Signal::INT);
            client.end().assert_nothing(130);
        }
    }
}
