//! The page of measurements shows what the samples show that `tools/bench` keeps, and the tool reads what it has written.
#![cfg(feature = "cli")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use self::figures::aims::{self, Bound};
use self::figures::data::{Data, Ratios, Sample, Spread};
use self::figures::files::Files;
use self::figures::lab::{Interrupt, Lab, Programs};
use self::figures::list::{FIGURES, Fabric};
use self::figures::programs::{self, Row};
use self::figures::virtual_machine::{Missing, VirtualMachine};
use self::figures::{lab, machine, page};

#[expect(dead_code, reason = "these tests measure nothing")]
#[path = "../benches/figures/main.rs"]
mod figures;

#[test]
fn page_and_plots_show_the_samples() {
    let problems = figures::problems(Path::new(env!("CARGO_MANIFEST_DIR"))).expect("a page and samples");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn sample(series: &str, round: u32, placement: &str, ns: f64) -> Sample {
    let (series, placement) = (series.to_owned(), Some(placement.to_owned()));
    Sample { series, x: 64, round, placement, values: BTreeMap::from([("ns".to_owned(), ns)]) }
}

fn data() -> Data {
    let samples = vec![
        sample("pull", 1, "far", 300.0),
        sample("floor", 1, "far", 100.0),
        sample("pull", 2, "near", 70.0),
        sample("floor", 2, "mixed", 50.0),
        sample("pull", 3, "far", 400.0),
        sample("floor", 3, "far", 100.0),
    ];
    Data { figure: "it".to_owned(), rounds: 3, commit: "c0ffee".to_owned(), samples, ..Data::default() }
}

#[test]
fn samples_of_the_usual_placement_count() {
    let data = data();
    assert_eq!(data.placement(), Some("far"));
    assert_eq!(data.placed(), (6, 4));
    assert_eq!(data.median(("pull", 64, "ns")), Some(350.0));
    let ratio = data.ratio(("pull", 64, "ns"), ("floor", 64, "ns")).expect("two rounds");
    assert_eq!((ratio.min, ratio.median, ratio.max), (3.0, 3.5, 4.0));
    assert_eq!(data.median(("push", 64, "ns")), None);
}

#[test]
fn samples_are_read_as_they_were_written() {
    let data = data();
    let text = data.emit().expect("text");
    assert_eq!(text.lines().filter(|line| line.contains("\"series\"")).count(), 6, "one line for each");
    assert_eq!(Data::parse(&text).expect("data"), data);
}

#[test]
fn a_block_of_a_page_is_replaced_and_nothing_else() {
    let before = "a\n<!-- figure: x -->\nold\n<!-- end -->\nb\n<!-- figure: y -->\n<!-- end -->\nc\n";
    let after = page::replaced(before, "x", "new\n").expect("a block");
    assert_eq!(after, before.replace("old", "new"));
    assert_eq!(page::content(&after, "x").expect("a block"), "new\n");
    assert_eq!(page::content(&after, "y").expect("a block"), "");
    assert_eq!(page::names(&after).collect::<Vec<_>>(), ["x", "y"]);
    for (page, why) in [("a\n", "no block"), ("<!-- figure: x -->\n", "no end")] {
        assert!(page::replaced(page, "x", "new\n").is_err(), "{why}");
    }
    assert!(page::replaced(&before.repeat(2), "x", "new\n").is_err(), "two blocks");
}

#[test]
fn medians_of_a_bench_are_read_by_name_and_argument() {
    let text = "\
state          fastest       │ slowest       │ median        │ mean          │ samples │ iters
├─ check                     │               │               │               │         │
│  ├─ 64       1.5 ns        │ 9 ns          │ 2.5 ns        │ 3 ns          │ 1       │ 1
│  │           1 GB/s        │ 1 GB/s        │ 1 GB/s        │ 1 GB/s        │         │
│  ╰─ 1024     1.5 µs        │ 9 µs          │ 2.5 µs        │ 3 µs          │ 1       │ 1
├─ join        1 ms          │ 1 ms          │ 4 ms          │ 1 ms          │ 1       │ 1
╰─ text                      │               │               │               │         │
   ╰─ alone    1 s           │ 1 s           │ 2 s           │ 1 s           │ 1       │ 1
";
    let found: Vec<_> = lab::medians(text).into_iter().map(|((name, x), ns)| (name, x, ns)).collect();
    let expected = [("check", 64, 2.5), ("check", 1024, 2500.0), ("join", 0, 4e6), ("text/alone", 0, 2e9)];
    assert_eq!(found, expected.map(|(name, x, ns)| (name.to_owned(), x, ns)));
}

#[test]
fn runs_of_a_round_count_as_their_median() {
    let mut data = data();
    data.samples.push(sample("pull", 1, "far", 500.0));
    data.samples.push(sample("pull", 1, "far", 900.0));
    assert_eq!(data.spread(("pull", 64, "ns")), Some(Spread { min: 400.0, median: 450.0, max: 500.0 }));
    // 500 to 100, and 400 to 100.
    assert_eq!(data.ratio(("pull", 64, "ns"), ("floor", 64, "ns")).map(|ratio| ratio.median), Some(4.5));
}

#[test]
fn the_placement_decided_for_counts_though_most_samples_have_another() {
    let data = Data { wanted_placement: Some("near".to_owned()), ..data() };
    assert_eq!(data.placement(), Some("near"));
    assert_eq!(data.median(("pull", 64, "ns")), Some(70.0));
    assert_eq!(data.rounds_of_cells(), BTreeMap::from([(("pull", 64), 1), (("floor", 64), 0)]));
}

#[test]
fn a_caption_counts_the_rounds_that_are_used() {
    let block = page::Block { name: "it", tables: vec![], plots: vec![] };
    let caption = |data: &Data| block.emit(data).replace('\n', " ");
    let few = caption(&data());
    assert!(
        few.contains("Medians of 2 to 3 rounds") && few.contains("floor at 64 (2), pull at 64 (2)"),
        "{few}"
    );
    assert!(few.contains("(4 samples; 2 of other placements are not used)"), "{few}");
    let mut samples = data().samples;
    samples.push(sample("pull", 2, "far", 350.0));
    samples.push(sample("floor", 2, "far", 110.0));
    let all = caption(&Data { samples, ..data() });
    assert!(all.contains("Medians of 3 rounds") && !all.contains("fewer"), "{all}");
}

/// Writes a program. Another process does: one that this process writes may still be open in a child of another test.
fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    let write = r#"printf '#!/bin/sh\n%s' "$2" >"$1" && chmod +x "$1""#;
    let status = Command::new("sh").args(["-c", write, "sh"]).arg(&path).arg(text).status();
    assert!(status.expect("a shell").success());
    path
}

/// A command whose processors are apart until the given call, where it measures values of 1,024 bytes.
fn moving(folder: &Path, until: u32) -> Lab {
    let calls = folder.join("calls").display().to_string();
    let text = format!(
        r#"echo "$*" >>{calls}
for size in $(echo "$*" | sed 's/.*--size \([0-9,]*\).*/\1/' | tr , ' '); do
    placement=near
    if [ "$size" = 1024 ] && [ "$(wc -l <{calls})" -lt {until} ]; then placement=far; fi
    echo "{{\"mode\":\"pull\",\"fabric\":\"shm\",\"size\":$size,\"placement\":\"$placement\"}}"
done
"#
    );
    let programs = Programs::new(vec![script(folder, "fabricast", &text)]);
    let mut lab = Lab::new(programs, false, Interrupt::default()).expect("processors");
    lab.round = 1;
    lab
}

/// The sizes of the calls after the five that decide for a placement.
fn sizes_of_calls(folder: &Path) -> Vec<String> {
    let calls = fs::read_to_string(folder.join("calls")).expect("calls");
    let size = |call: &str| call.split(' ').skip_while(|word| *word != "--size").nth(1).map(str::to_owned);
    calls.lines().skip(5).filter_map(size).collect()
}

#[test]
fn sizes_of_another_placement_are_measured_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lab = moving(folder.path(), 8);
    let lines = lab.perf(&["pull", "--size", "64,1024"]).expect("lines");
    assert_eq!(lab.data.wanted_placement.as_deref(), Some("near"));
    assert_eq!(lines.len(), 4);
    assert_eq!(sizes_of_calls(folder.path()), ["64,1024", "1024", "1024"]);
    assert!(lab.rounds_to_repeat().is_empty());
}

#[test]
fn a_round_is_measured_again_for_what_it_lacks() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut lab = moving(folder.path(), 11);
    let arguments = ["pull", "--size", "64,1024"];
    lab.perf(&arguments).expect("lines");
    assert_eq!(sizes_of_calls(folder.path()), ["64,1024", "1024", "1024", "1024"], "it gives up");
    lab.perf(&["push", "--size", "64"]).expect("lines");
    assert_eq!(lab.rounds_to_repeat(), BTreeSet::from([1]));
    let again = lab.perf(&arguments).expect("lines");
    assert_eq!(
        again.iter().map(|line| (line.size(), line.placement())).collect::<Vec<_>>(),
        [(1024, Some("near"))]
    );
    assert!(lab.perf(&["push", "--size", "64"]).expect("lines").is_empty(), "it lacks nothing");
    assert!(lab.rounds_to_repeat().is_empty());
}

/// Set-up by a tool that prints and ends like this.
fn set_up(text: &str, interrupt: &Interrupt) -> Result<(), Missing> {
    let folder = tempfile::tempdir().expect("a folder");
    let tool = script(folder.path(), "soft-roce", text);
    VirtualMachine { tool, folder: folder.path().join("out") }.set_up(interrupt)
}

#[test]
fn a_machine_that_cannot_run_differs_from_one_that_failed() {
    let interrupt = Interrupt::default();
    assert!(set_up("echo Ready", &interrupt).is_ok());
    let skipped = set_up("echo 'SKIPPED: no room'; exit 77", &interrupt);
    assert!(matches!(&skipped, Err(Missing::Unavailable(reason)) if reason == "no room"), "{skipped:?}");
    let failed = set_up("exit 1", &interrupt);
    assert!(matches!(failed, Err(Missing::Failed(_))), "{failed:?}");
    interrupt.interrupt();
    let interrupted = set_up("echo Ready", &interrupt);
    assert!(matches!(interrupted, Err(Missing::Failed(_))), "{interrupted:?}");
}

#[test]
fn figures_that_the_machine_did_not_measure_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted: Vec<_> = FIGURES.iter().filter(|figure| figure.fabric == Fabric::Verbs).collect();
    let (measured, others) = wanted.split_first().expect("figures");
    let machine = VirtualMachine { tool: "false".into(), folder: folder.path().to_owned() };
    let path = folder.path().join(measured.name.to_owned() + ".json");
    fs::write(path, data().emit().expect("text")).expect("a file");
    let kept = std::cell::RefCell::new(Vec::new());
    let keep = |figure: &figures::list::Figure, _: &Data| {
        kept.borrow_mut().push(figure.name);
        Ok(())
    };
    let missing = machine.take_over(&wanted, &keep).expect_err("a figure is missing").to_string();
    assert_eq!(*kept.borrow(), [measured.name]);
    assert!(others.iter().all(|figure| missing.contains(figure.name)), "{missing}");
    assert!(machine.take_over(&wanted[..1], &keep).is_ok());
}

#[test]
fn figures_over_verbs_have_names_of_their_own() {
    for figure in FIGURES {
        assert_eq!(figure.name.starts_with("verbs-"), figure.fabric == Fabric::Verbs, "{}", figure.name);
    }
}

#[test]
fn an_rdma_device_is_found_by_its_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    };
    write("rxe0/parent", "eth0\n");
    write("rxe0/ports/1/gids/0", "fe80:0000:0000:0000:5054:00ff:fe77:0000\n");
    write("rxe0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
    write("rxe0/ports/1/gid_attrs/types/1", "RoCE v2\n");
    write("rxe0/ports/1/link_layer", "Ethernet\n");
    write("mlx4_0/ports/2/gids/0", "fe80:0000:0000:0000:0002:c903:0000:0001\n");
    write("mlx4_0/ports/2/gid_attrs/types/0", "IB/RoCE v1\n");
    write("mlx4_0/ports/2/link_layer", "InfiniBand\n");
    let device = |address: &str| machine::device(folder.path(), address.parse().expect("an address"));
    assert_eq!(device("10.77.0.1").as_deref(), Some("rxe0, RoCE v2, soft-RoCE"));
    assert_eq!(device("fe80::2:c903:0:1").as_deref(), Some("mlx4_0, InfiniBand"));
    assert_eq!(device("10.77.0.2"), None);
}

#[test]
fn verdicts_go_by_the_median() {
    let found = || Ratios::of(vec![1.0, 2.0, 0.5]);
    let table = aims::table(vec![
        ("a".to_owned(), Bound::AtMost(1.0), found()),
        ("b".to_owned(), Bound::AtMost(0.9), found()),
        ("c".to_owned(), Bound::AtLeast(1.0), found()),
        ("d".to_owned(), Bound::AtLeast(1.1), found()),
        ("e".to_owned(), Bound::AtLeast(1.1), None),
        ("f".to_owned(), Bound::AtLeast(0.5), found()),
        ("g".to_owned(), Bound::AtMost(0.4), found()),
    ]);
    let verdicts: Vec<_> = table.rows.iter().map(|row| row[3].as_str()).collect();
    let (met, missed) = ("met in 2 of 3 rounds", "missed in 2 of 3 rounds");
    assert_eq!(verdicts, [met, missed, met, missed, "not measured", "met", "missed"]);
}

#[test]
fn programs_are_compared_in_each_round() {
    let line = |figure: f64, other: f64| {
        let figures = format!(r#""figure":{figure},"beside":"ib_write_lat 64","its_figure":{other}"#);
        let aim = r#""ratio":9,"bound":"at most","limit":1.1,"met":true,"rounds":1"#;
        format!(r#"{{"program":"rdma-3 64","unit":"ns",{figures},{aim}}}"#)
    };
    let agent = r#"{"program":"rdma-1-agent-cpu 64","unit":"%","figure":0.025,"rounds":1}"#;
    let rounds = (1..).zip([(100.0, 50.0), (10.0, 10.0), (11.0, 10.0)]);
    let mut samples = Vec::new();
    for (round, (figure, other)) in rounds {
        for text in [line(figure, other), agent.to_owned()] {
            let Row { series, x, values } = Row::parse(&text).expect("a row");
            samples.push(Sample { series, x, round, placement: None, values: values.into_iter().collect() });
        }
    }
    let blocks = programs::show(&Data { rounds: 3, samples, ..Data::default() });
    let rows: Vec<String> =
        blocks[0].tables.iter().flat_map(|table| &table.rows).map(|row| row.join("; ")).collect();
    let expected = [
        "`rdma-3`; 64; 11.0 ns; `ib_write_lat`; 10.0 ns; 1.10 (1.00 to 2.00); at most 1.1: met in 2 of 3 rounds",
        "`rdma-1`; 64; 0.025 %",
    ];
    assert_eq!(rows, expected);
    for text in ["{}", "none", r#"{"program":"a 1","unit":"hours","figure":1}"#] {
        assert!(Row::parse(text).is_err(), "{text}");
    }
}

#[test]
fn what_a_killed_run_has_left_is_found_and_repaired() {
    let root = tempfile::tempdir().expect("a folder");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let copy = root.path().join("docs");
    fs::create_dir_all(copy.join("figures")).expect("a folder");
    fs::copy(docs.join("performance.md"), copy.join("performance.md")).expect("a page");
    for entry in fs::read_dir(docs.join("figures")).expect("samples") {
        let path = entry.expect("samples").path();
        fs::copy(&path, copy.join("figures").join(path.file_name().expect("a name"))).expect("samples");
    }
    let (files, figure) = (Files::new(&copy), FIGURES.first().expect("a figure"));
    // The samples are new; plots and page are not.
    let data = Data { commit: "c0ffee".to_owned(), ..files.samples(figure).expect("samples") };
    let path = copy.join(format!("figures/{}.json", figure.name));
    fs::write(&path, data.emit().expect("text")).expect("a file");
    let problems = figures::problems(root.path()).expect("a page").join("\n");
    assert!(problems.contains("performance.md") && problems.contains(".svg"), "{problems}");
    files.render(figure, &data).expect("a page and plots");
    assert_eq!(figures::problems(root.path()).expect("a page"), Vec::<String>::new());
    fs::write(&path, "{").expect("a file");
    let error = files.samples(figure).expect_err("no samples").to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
}
