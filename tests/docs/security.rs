//! `SECURITY.md` against the tests that it names.

use super::source_programs::assert_is_test;

const POLICY: &str = include_str!("../../SECURITY.md");

#[test]
fn every_threat_has_a_test_that_exists() {
    let rows = POLICY.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let threats: Vec<&str> = rows.skip(1).collect();
    assert!(threats.len() > 10, "{threats:?}");
    for threat in threats {
        let spans = threat.split('`').skip(1).step_by(2);
        let tests: Vec<_> = spans.filter_map(|span| span.split_once(".rs::")).collect();
        assert!(!tests.is_empty(), "{threat}");
        tests.into_iter().for_each(|(file, name)| assert_is_test(&format!("{file}.rs"), name));
    }
}
