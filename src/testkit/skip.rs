//! Tests that cannot run on every machine.

use std::io::Write;

/// Checks that may be skipped, separated by commas.
const ALLOW_SKIP: &str = "FABRICAST_TEST_ALLOW_SKIP";
/// The file from which `tools/test` reads the skipped checks: the harness hides the output of passing tests.
const SKIPPED: &str = "FABRICAST_TEST_SKIPPED";

/// Skips a check that cannot run on this machine.
///
/// # Panics
///
/// Unless `FABRICAST_TEST_ALLOW_SKIP` names the check: nothing is skipped silently.
#[track_caller]
pub(crate) fn skip(name: &str, why: &str) {
    let allowed = std::env::var(ALLOW_SKIP).unwrap_or_default();
    assert!(is_allowed(&allowed, name), "cannot run here: {why}; {ALLOW_SKIP}={name} leaves it out");
    println!("SKIPPED: {name}: {why}");
    if let Some(path) = std::env::var_os(SKIPPED) {
        let mut file = std::fs::File::options().create(true).append(true).open(path).expect("a file");
        writeln!(file, "{name}: {}", why.to_uppercase()).expect("room for a line");
    }
}

fn is_allowed(allowed: &str, name: &str) -> bool {
    allowed.split(',').any(|allowed| allowed.trim() == name)
}
