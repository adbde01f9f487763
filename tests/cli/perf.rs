//! `fabricast perf`: what it prints and how it ends, not how fast it is.

use super::support::{Place, fields, json};

const FIELDS: [&str; 18] = [
    "connect",
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
    "publisher_cpu_ns_per_msg",
    "rejected",
    "size",
    "subscribers",
    "torn_retries",
    "verified",
];

#[test]
fn each_size_has_a_line_with_the_named_fields_beside_its_floor() {
    let place = Place::new();
    for mode in ["pull", "push"] {
        let sizes = ["perf", mode, "--size", "8,1000,70000"];
        let ended =
            place.run(&[&sizes[..], &["--iterations", "200", "--floor", "--json", "--cpus", "any"]].concat());
        let lines: Vec<&str> = ended.printed().lines().collect();
        assert_eq!(lines.len(), 6);
        for (index, line) in lines.iter().enumerate() {
            let mut names = fields(line);
            names.sort();
            assert_eq!(names, FIELDS);
            let figures = json(line);
            assert_eq!(figures["size"], [8, 1000, 70_000][index / 2]);
            assert_eq!(figures["fabric"], "shm");
            assert_eq!(figures["iterations"], 200);
            assert!(figures["p50_ns"].as_u64().unwrap() <= figures["max_ns"].as_u64().unwrap());
            assert!(["near", "far", "mixed"].contains(&figures["placement"].as_str().unwrap()));
            if index % 2 == 0 {
                assert_eq!((&figures["mode"], &figures["verified"]), (&json("\"floor\""), &json("null")));
            } else {
                assert_eq!(figures["mode"], mode);
                assert_eq!(figures["rejected"], 0);
                // Both ends verify each round trip, those of the warm-up included.
                assert!(figures["verified"].as_u64().unwrap() >= 400);
            }
        }
    }
}

#[test]
fn people_get_a_table() {
    let ended = Place::new().run(&["perf", "pull", "--iterations", "100", "--cpus", "any"]);
    let lines: Vec<Vec<&str>> =
        ended.printed().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["mode", "size", "round"]);
    assert_eq!(lines[1][..3], ["pull", "64", "100"]);
}

#[test]
fn one_process_answers_what_another_measures_again_and_again() {
    let place = Place::new();
    let answering = place.start(&["perf", "push", "--serve", "--node", "lab", "--cpus", "any"]);
    assert!(answering.line().contains("shm:lab"));
    for _ in 0..2 {
        let measured =
            ["perf", "push", "--connect", "shm:lab", "--iterations", "100", "--json", "--cpus", "any"];
        let ended = place.run(&measured);
        let figures = json(ended.printed().trim_end());
        assert_eq!((&figures["iterations"], &figures["rejected"]), (&json("100"), &json("0")));
        assert_eq!(figures["connect"], "shm:lab");
    }
    answering.signal(rustix::process::Signal::INT);
    assert_eq!(answering.end().code, Some(0));
}

#[test]
fn what_cannot_be_measured_is_told() {
    let place = Place::new();
    let told = |arguments: &[&str], code: i32, sentence: &str| {
        let ended = place.run(&[&["perf", "pull"], arguments].concat());
        assert_eq!((ended.code, ended.out.as_str()), (Some(code), ""), "{ended:?}");
        assert!(ended.error.contains(sentence), "{ended:?}");
        assert_eq!(
            ended.error.matches("fabricast: ").count(),
            usize::from(code != 2 || sentence.contains("power"))
        );
    };
    told(&["--connect", "shm:nobody", "--wait", "0.1"], 3, "no node listens at shm:nobody");
    told(&["--connect", "rdma://far"], 3, "this build has no verbs fabric");
    told(&["--slots", "3"], 2, "use a power of two");
    told(&["--cpus", "0,100000"], 2, "processors are numbered from 0");
    told(&["--size", "4"], 2, "4 is not in 8..");
    told(&["--cpus", "1000,0"], 1, "cannot run on processor");
}
