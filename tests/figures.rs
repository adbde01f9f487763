//! The page of measurements shows what the samples show that `tools/bench` keeps.
#![cfg(feature = "cli")]

use std::path::Path;

#[expect(dead_code, reason = "this test only compares")]
#[path = "../benches/figures/main.rs"]
mod figures;

#[test]
fn page_and_plots_show_the_samples() {
    let problems = figures::problems(Path::new(env!("CARGO_MANIFEST_DIR"))).expect("a page and samples");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
