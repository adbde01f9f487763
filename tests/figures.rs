//! The page of measurements shows what the samples show that `tools/bench` keeps, and the tool reads what it has written.
#![cfg(feature = "cli")]

use std::collections::BTreeMap;
use std::path::Path;

use self::figures::data::{Data, Sample};
use self::figures::{lab, page};

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
