//! `docs/source-programs.md` against the command and the tests that it names.

use std::fs;

const PAGE: &str = include_str!("../../docs/source-programs.md");
const CONFORMANCE: &str = include_str!("../../src/testkit/conformance/mod.rs");

/// The code spans of a cell.
fn code_spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The cells of each row: program, document, what it teaches, command, what it printed.
fn rows() -> Vec<[&'static str; 5]> {
    let rows = PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    let cells = cells.filter_map(|cells| <[&str; 5]>::try_from(cells).ok());
    cells.filter(|[program, ..]| *program != "---" && *program != "program or design").collect()
}

/// The tests that the page names: file and function.
fn named_tests() -> Vec<(&'static str, &'static str)> {
    let spans = rows().into_iter().flatten().flat_map(code_spans);
    spans.filter(|span| span.contains(".rs::")).filter_map(|span| span.split_once("::")).collect()
}

#[test]
fn every_row_has_a_command_that_printed_something_or_a_test() {
    let rows = rows();
    assert!(rows.len() > 30, "{rows:?}");
    for [program, document, teaches, command, printed] in rows {
        let has_command = command.contains("`fabricast ");
        assert_eq!(!has_command, command == "a test", "{program}");
        assert!(has_command || printed.contains(".rs::"), "{program}");
        assert!(
            [program, document, teaches, printed].iter().all(|cell| !cell.trim().is_empty()),
            "{program}"
        );
    }
}

#[test]
fn tests_that_the_page_names_exist() {
    let named = named_tests();
    assert!(named.len() > 8, "{named:?}");
    named.into_iter().for_each(|(file, name)| assert_is_test(file, name));
}

/// Checks that this file has a test of this name.
#[track_caller]
pub(crate) fn assert_is_test(file: &str, name: &str) {
    let path = super::root().join(file);
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let (before, _) = text.split_once(&format!("fn {name}(")).unwrap_or_else(|| panic!("{file}: no {name}"));
    let is_test = before.lines().rev().take(4).any(|line| line.trim() == "#[test]");
    // A macro that lists functions makes tests of them, also of the behaviours of the conformance suite.
    let is_listed = text.contains("fn $name()") && text.lines().any(|line| line.trim() == format!("{name},"));
    let is_behaviour = file.contains("/conformance/") && CONFORMANCE.contains(name);
    assert!(is_test || is_listed || is_behaviour, "{file}: {name} is not a test");
}

#[cfg(feature = "cli")]
mod command {
    use std::collections::BTreeSet;
    use std::process::{Command, Output};

    use super::*;

    /// An option that no command has.
    const MISSPELT: &str = "--no-option-of-this-name";

    fn fabricast(arguments: &[String]) -> Output {
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
        command.args(arguments).env("FABRICAST_RUNTIME_DIR", directory.path());
        // Without a device each command ends at once, when its arguments have been checked.
        command.env("FABRICAST_RDMA_DEVICE", "no-device-of-this-name").stdin(std::process::Stdio::null());
        command.output().expect("the program runs")
    }

    /// The arguments of each command on the page: in the tables, and in the blocks.
    fn commands() -> BTreeSet<Vec<String>> {
        let in_tables = rows().into_iter().flat_map(|row| code_spans(row[3]));
        let in_blocks = PAGE.split("```text").skip(1).filter_map(|rest| rest.split("```").next());
        let in_blocks = in_blocks
            .flat_map(str::lines)
            .filter(|line| !line.starts_with("A| ") && !line.starts_with("B| "));
        let in_blocks =
            in_blocks.filter_map(|line| line.split_once("release/fabricast ").map(|(_, rest)| rest));
        let in_tables = in_tables.filter_map(|span| span.strip_prefix("fabricast "));
        let ends = |word: &&str| !word.starts_with(['<', '&', ';', '\'']);
        let words = |text: &str| {
            let text = text.split(['\'', ';']).next().unwrap_or_default().replace("$mode", "uc-send");
            text.split(' ').take_while(ends).filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        in_tables.chain(in_blocks).map(words).collect()
    }

    /// The names of the values in a part of the help.
    fn values_after(help: &str, heading: &str) -> BTreeSet<String> {
        let (_, rest) = help.split_once(heading).unwrap_or_else(|| panic!("no {heading:?}"));
        let (_, rest) = rest.split_once("Possible values:").expect("values");
        let values = rest.lines().skip(1).take_while(|line| !line.trim().is_empty()).map(str::trim);
        // A description may go on in the next line.
        values.filter_map(|line| line.strip_prefix("- ")?.split(':').next().map(str::to_owned)).collect()
    }

    #[test]
    fn commands_of_the_page_parse() {
        let commands = commands();
        assert!(commands.len() > 30, "{commands:?}");
        for mut arguments in commands {
            // The first argument that is wrong is reported: this one, once all before it were taken.
            arguments.extend(["--verbose", MISSPELT].map(str::to_owned));
            let ended = fabricast(&arguments);
            let error = String::from_utf8_lossy(&ended.stderr);
            assert!(error.contains(&format!("unexpected argument '{MISSPELT}'")), "{arguments:?}: {error}");
        }
    }

    /// What only the whole program can tell: that the options fit the mode.
    #[test]
    #[cfg(feature = "verbs")]
    fn commands_of_the_page_lack_nothing_but_a_device() {
        for arguments in commands() {
            if arguments.iter().any(|argument| argument == "shm") {
                continue;
            }
            let ended = fabricast(&arguments);
            let error = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(7), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn every_program_of_the_command_has_a_row() {
        let help = fabricast(&["perf".to_owned(), "--help".to_owned()]);
        let help = String::from_utf8(help.stdout).expect("text");
        let named: BTreeSet<(String, String)> = commands()
            .into_iter()
            .filter(|arguments| arguments[0] == "perf")
            .map(|arguments| {
                let mode = arguments.iter().position(|argument| argument == "--mode");
                (arguments[1].clone(), mode.map(|index| arguments[index + 1].clone()).unwrap_or_default())
            })
            .collect();
        let has = |perf: &str, mode: &str| named.contains(&(perf.to_owned(), mode.to_owned()));
        let modes = values_after(&help, "--mode <OPERATIONS>");
        assert!(modes.len() > 10, "{modes:?}");
        for mode in &modes {
            assert!(has("ping-pong", mode), "no row runs perf ping-pong --mode {mode}");
        }
        for mode in ["write", "read"] {
            assert!(has("blast", mode), "no row runs perf blast --mode {mode}");
        }
        // Streams are no program of the documents.
        for perf in values_after(&help, "<MODE>").iter().filter(|perf| *perf != "stream") {
            assert!(named.iter().any(|(name, _)| name == perf), "no row runs perf {perf}");
        }
    }
}
