//! Checks the repository against its own rules: imports go down, `unsafe` stays in its places with an argument, files and
//! functions stay small, nothing is left unfinished. Each rule is one test; a failure names file, line and rule.
//!
//! ARCHITECTURE.md explains the rules. The tests in `scanner` show that each can fail.

use std::fs;
use std::path::Path;

use self::cycles::import_cycles;
use self::source::{NamedPath, Source, is_word_char};

#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/source.rs"]
mod source;

/// Modules of the library with their layers. A module imports from lower layers only, and never from its own.
const LAYERS: &[(&str, u32)] = &[
    ("id", 0),
    ("limits", 0),
    ("chain", 0),
    ("checksum", 0),
    ("clock", 0),
    ("event", 0),
    ("random", 0),
    ("sync", 0),
    ("keyring", 1),
    ("memory", 1),
    ("payload", 1),
    ("layout", 2),
    ("fabric", 2),
    ("metrics", 2),
    ("repository", 3),
    ("control", 3),
    ("notice", 3),
    ("measure", 4),
    ("publisher", 4),
    ("subscriber", 4),
    ("node", 5),
    ("inspect", 5),
    ("error", 6),
    ("fuzz", 6),
    ("models", 6),
    ("testkit", 6),
];

/// The imports inside layer 0.
const GROUND_IMPORTS: &[(&str, &str)] =
    &[("id", "limits"), ("event", "id"), ("clock", "limits"), ("clock", "sync")];

/// Imports that the layers would allow, or that may tempt tests, but that are forbidden.
const FORBIDDEN_IMPORTS: &[(&str, &str, &str)] = &[
    ("fabric", "layout", "a fabric moves bytes and never looks at them"),
    ("fabric", "payload", "a fabric moves bytes and never looks at them"),
    ("fabric", "repository", "a fabric moves bytes and never looks at them"),
    ("fabric", "control", "a fabric moves bytes and never looks at them"),
    ("layout", "fabric", "layout knows bytes and no transport"),
];

/// The modules that `testkit` may use besides layer 0. Its conformance suites may use everything.
const TESTKIT_IMPORTS: &[&str] = &["memory", "fabric"];

/// Where `unsafe` is allowed.
const UNSAFE_PLACES: &[&str] = &["src/memory", "src/fabric/verbs/sys"];
/// Where the binding to the C libraries may be named.
const RDMA_SYS_PLACE: &str = "src/fabric/verbs/sys";
const SAFETY_ARGUMENT_LEN_MIN: usize = 40;

const FILE_LEN_MAX: usize = 600;
const FUNCTION_LEN_MAX: usize = 70;
const EXAMPLE_LEN_MAX: usize = 80;
/// Examples whose files may be longer, and why. An example of several files is a folder.
const LONG_EXAMPLES: &[(&str, usize, &str)] = &[
    ("examples/market_data", 300, "three programs in one file: a feed, a book and a watcher"),
    ("examples/market_feed", 300, "a matching engine, its feed, five subscribers, and two lines"),
];
const LINE_LEN_MAX: usize = 140;

const CODEC_FILES: &[&str] = &["src/control/codec.rs", "src/payload/bincode.rs"];

/// The modules that may name a kind of topic, and those that may decide by it.
const KIND_NAMERS: &[&str] =
    &["id", "layout", "repository", "control", "publisher", "subscriber", "bin", "testkit"];
const KIND_MATCHERS: &[&str] = &["src/id", "src/layout", "src/repository", "src/control/message"];

/// Text forbidden in the repository, in halves so that this file does not contain it.
const FOREIGN_TEXT: &[(&str, &str)] =
    &[("../sha", "red"), ("/wo", "rk/"), ("/ho", "me/"), ("/ro", "ot/"), ("arti", "factory")];

#[test]
fn imports_go_down() {
    hold(imports(&library()));
}

#[test]
fn files_of_a_module_do_not_import_each_other_in_a_cycle() {
    hold(import_cycles(&library()));
}

#[test]
fn providers_are_named_by_fabric_and_node_only() {
    hold(provider_names(&library()));
}

#[test]
fn unsafe_stays_in_its_places_and_is_argued_for() {
    let mut sources = library();
    sources.extend(read("examples"));
    hold(unsafe_code(&sources));
}

#[test]
fn files_are_small() {
    hold(long_files(&library()));
}

#[test]
fn functions_are_small() {
    let mut sources = library();
    sources.extend(read("examples"));
    hold(long_functions(&sources));
}

#[test]
fn examples_are_small() {
    hold(long_examples(&read("examples")));
}

#[test]
fn atomics_come_from_the_facade() {
    hold(std_atomics(&library()));
}

#[test]
fn nothing_is_left_unfinished() {
    let mut sources = library();
    for folder in ["examples", "tests", "benches"] {
        sources.extend(read(folder).into_iter().filter(|source| !source.path.starts_with("tests/tidy")));
    }
    hold(unfinished(&sources));
}

#[test]
fn tests_do_not_sleep() {
    hold(sleeps(&read("tests")));
}

#[test]
fn bincode_is_named_in_its_two_files_only() {
    hold(bincode_names(&library()));
}

#[test]
fn the_binding_to_c_is_named_in_its_place_only() {
    hold(rdma_sys_names(&library()));
}

#[test]
fn only_layout_and_repository_decide_by_kind() {
    hold(kind_names(&library()));
}

#[test]
fn text_is_about_this_repository_only() {
    let mut failures = Vec::new();
    for (path, text) in repository_text() {
        failures.extend(foreign_text(&path, &text));
    }
    hold(failures);
}

#[test]
fn lines_are_short() {
    let mut failures = Vec::new();
    for (path, text) in repository_text() {
        failures.extend(long_lines(&path, &text));
    }
    hold(failures);
}

#[track_caller]
fn hold(failures: Vec<String>) {
    assert!(failures.is_empty(), "{} found:\n\n{}\n", failures.len(), failures.join("\n"));
}

fn imports(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources {
        let module = top_module(source);
        if matches!(module, "lib" | "bin") {
            failures.extend(root_imports(source, module));
            continue;
        }
        if layer(module).is_none() {
            failures.push(source.failure(0, &unknown_module(module)));
            continue;
        }
        if module == "testkit" && !source.only_for_tests {
            let rule = "`testkit` is declared behind `#[cfg(test)]` in src/lib.rs";
            failures.push(source.failure(0, rule));
        }
        for path in source.paths() {
            let Some(target) = source.resolved(&path).and_then(|path| path.into_iter().next()) else {
                continue;
            };
            if let Some(reason) = forbidden(source, module, &path, &target) {
                failures.push(source.failure(path.at, &reason));
            }
        }
    }
    failures
}

/// Why the import is forbidden; `None` if it is allowed.
fn forbidden(source: &Source, from: &str, path: &NamedPath, to: &str) -> Option<String> {
    if from == to {
        return None;
    }
    let named = path.segments.join("::");
    if let Some((.., reason)) = FORBIDDEN_IMPORTS.iter().find(|rule| (rule.0, rule.1) == (from, to)) {
        return Some(format!("`{from}` must not name `{to}` (`{named}`): {reason}"));
    }
    let is_test = source.is_test(path.at);
    let Some(to_layer) = layer(to) else {
        let is_item = to == "*" || to.starts_with(char::is_uppercase);
        let reason = format!("`{named}` comes from src/lib.rs: import it from the module that defines it");
        return if is_item { Some(reason).filter(|_| !is_test) } else { Some(unknown_module(to)) };
    };
    if from == "testkit" {
        let allowed = to_layer == 0 || TESTKIT_IMPORTS.contains(&to) || is_conformance(&source.path);
        let reason = format!(
            "`testkit` stands on layer 0, memory and fabric; only its conformance suites use `{named}`"
        );
        return if allowed { None } else { Some(reason) };
    }
    let from_layer = layer(from)?;
    if to == "testkit" {
        return if is_test { None } else { Some(format!("`{named}` is for tests, this code is not")) };
    }
    if is_test {
        let reason = format!(
            "a test of `{from}` (layer {from_layer}) imports upward from `{to}` (layer {to_layer}): `{named}`"
        );
        return if to_layer <= from_layer { None } else { Some(reason) };
    }
    let allowed = to_layer < from_layer || GROUND_IMPORTS.contains(&(from, to));
    let reason =
        format!("`{from}` (layer {from_layer}) must not import from `{to}` (layer {to_layer}): `{named}`");
    if allowed { None } else { Some(reason) }
}

/// The program uses only what users can use, and is compiled apart from the library.
fn root_imports(source: &Source, module: &str) -> Vec<String> {
    if module != "bin" {
        return Vec::new();
    }
    let mut failures = Vec::new();
    for path in source.paths() {
        let segments: Vec<&str> = path.segments.iter().map(String::as_str).collect();
        if segments.starts_with(&["fabricast", "testkit"]) {
            failures.push(
                source.failure(path.at, "the program uses the public API only, and `testkit` is not of it"),
            );
        }
    }
    for at in source.words("path") {
        if source.word_before(at) == Some("[") {
            failures
                .push(source.failure(at, "the program must not compile files of the library into itself"));
        }
    }
    failures
}

fn provider_names(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources {
        if matches!(top_module(source), "fabric" | "node" | "testkit" | "bin" | "lib") {
            continue;
        }
        for path in source.paths() {
            let full = source.resolved(&path).unwrap_or_else(|| path.segments.clone());
            let full: Vec<&str> = full.iter().map(String::as_str).collect();
            if matches!(full.as_slice(), ["fabric", "shm" | "verbs", ..]) {
                let rule =
                    format!("`{}`: only `fabric` and `node` name a provider", path.segments.join("::"));
                failures.push(source.failure(path.at, &rule));
            }
        }
    }
    failures
}

fn unsafe_code(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources {
        for at in source.words("unsafe") {
            if !UNSAFE_PLACES.iter().any(|place| is_within(&source.path, place)) {
                failures.push(source.failure(at, "`unsafe` outside memory and fabric::verbs::sys"));
                continue;
            }
            let next: Vec<&str> = source.words_from(at).skip(1).take(2).collect();
            let reason = match next.as_slice() {
                ["fn" | "extern", "("] => None,
                ["fn" | "trait", _] => undocumented(source, at),
                ["extern", _] if source.words_from(at).nth(2) == Some("fn") => undocumented(source, at),
                _ => unargued(source, at),
            };
            failures.extend(reason.map(|reason| source.failure(at, &reason)));
        }
    }
    failures
}

/// Whether the `unsafe fn` here has no `# Safety` in its documentation.
fn undocumented(source: &Source, at: usize) -> Option<String> {
    let lines: Vec<&str> = source.text.lines().take(source.line(at) - 1).map(str::trim).collect();
    let head = lines.iter().rev().take_while(|line| line.starts_with("///") || line.starts_with('#'));
    let documented = head.into_iter().any(|line| line.trim_start_matches('/').trim() == "# Safety");
    if documented { None } else { Some("the documentation has no `# Safety` section".to_owned()) }
}

/// Whether the unsafe block or implementation here has no `// SAFETY:` comment of some substance before its statement.
fn unargued(source: &Source, at: usize) -> Option<String> {
    let mut comment = Vec::new();
    for (line, code) in source
        .text
        .lines()
        .zip(source.code.lines())
        .take(source.line(at) - 1)
        .collect::<Vec<_>>()
        .iter()
        .rev()
    {
        let line = line.trim();
        if line.starts_with("//") {
            comment.push(line.trim_start_matches('/').trim());
        } else if !comment.is_empty() || line.is_empty() || code.trim_end().ends_with([';', '{', '}']) {
            break;
        }
    }
    comment.reverse();
    let comment = comment.join(" ");
    let Some((_, argument)) = comment.split_once("SAFETY:") else {
        return Some("no `// SAFETY:` comment before it".to_owned());
    };
    let len = argument.trim().chars().count();
    let short = format!(
        "its SAFETY comment is no argument: {len} characters, {SAFETY_ARGUMENT_LEN_MIN} are the least"
    );
    if len < SAFETY_ARGUMENT_LEN_MIN { Some(short) } else { None }
}

fn long_files(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources.iter().filter(|source| !is_test_file(source)) {
        let len = source.len_without_tests();
        if len > FILE_LEN_MAX {
            let rule = format!("{len} lines without its tests, {FILE_LEN_MAX} are the most");
            failures.push(source.failure(0, &rule));
        }
    }
    failures
}

fn long_functions(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources {
        for function in source.functions().into_iter().filter(|function| function.len > FUNCTION_LEN_MAX) {
            failures.push(format!(
                "{}:{}: function `{}` has {} lines, {FUNCTION_LEN_MAX} are the most",
                source.path, function.line, function.name, function.len
            ));
        }
    }
    failures
}

fn long_examples(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources {
        let budget = LONG_EXAMPLES.iter().find(|(place, ..)| is_within(&source.path, place));
        let len_max = budget.map_or(EXAMPLE_LEN_MAX, |(_, len_max, _)| *len_max);
        let len = source.text.lines().count();
        if len > len_max {
            failures.push(source.failure(0, &format!("an example of {len} lines, {len_max} are the most")));
        }
    }
    failures
}

fn unfinished(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources {
        for marker in ["todo", "unimplemented", "dbg"] {
            let calls = source.words(marker).filter(|at| source.words_from(*at).nth(1) == Some("!"));
            failures.extend(calls.map(|at| source.failure(at, &format!("`{marker}!` is left"))));
        }
        for (index, line) in source.text.lines().enumerate() {
            let marker =
                line.split(|char| !is_word_char(char)).find(|word| matches!(*word, "FIXME" | "XXX" | "HACK"));
            failures
                .extend(marker.map(|marker| format!("{}:{}: `{marker}` is left", source.path, index + 1)));
        }
        for at in source.words("ignore") {
            if source.word_before(at) == Some("[") && source.words_from(at).nth(1) == Some("]") {
                failures
                    .push(source.failure(at, "`#[ignore]` without a reason: write `#[ignore = \"why\"]`"));
            }
        }
    }
    failures
}

fn sleeps(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources {
        for path in source.paths() {
            if path.segments.ends_with(&["thread".to_owned(), "sleep".to_owned()]) {
                failures.push(
                    source.failure(path.at, "a test must wait for a condition, with a deadline, not sleep"),
                );
            }
        }
    }
    failures
}

fn std_atomics(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources.iter().filter(|source| top_module(source) != "sync") {
        for path in source.paths() {
            if path.segments.starts_with(&["std", "sync", "atomic"].map(str::to_owned)) {
                failures.push(source.failure(path.at, "atomics come from `crate::sync`"));
            }
        }
    }
    failures
}

fn bincode_names(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources.iter().filter(|source| !CODEC_FILES.contains(&source.path.as_str())) {
        let is_module = source.is_local("bincode");
        for path in source.paths() {
            let is_named = path.segments.first().is_some_and(|first| first == "bincode");
            if is_named && (path.is_absolute || !is_module) {
                let rule = format!("only {} name the crate bincode", CODEC_FILES.join(" and "));
                failures.push(source.failure(path.at, &rule));
            }
        }
    }
    failures
}

fn rdma_sys_names(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources.iter().filter(|source| !is_within(&source.path, RDMA_SYS_PLACE)) {
        let rule = format!("only {RDMA_SYS_PLACE} names the crate rdma_sys");
        failures.extend(source.words("rdma_sys").map(|at| source.failure(at, &rule)));
    }
    failures
}

fn kind_names(sources: &[Source]) -> Vec<String> {
    let mut failures = Vec::new();
    for source in sources.iter().filter(|source| !source.only_for_tests) {
        let may_name = KIND_NAMERS.contains(&top_module(source));
        let may_match = KIND_MATCHERS.iter().any(|place| is_within(&source.path, place));
        for at in source.words("Kind").filter(|at| !source.is_test(*at)) {
            let mut after = source.words_from(at).skip(1);
            if after.next() != Some("::") {
                continue;
            }
            let is_pattern = matches!(after.skip(1).find(|word| *word != ")"), Some("=>" | "|"));
            if !may_name {
                failures.push(source.failure(at, &format!("only {} name a kind", KIND_NAMERS.join(", "))));
            } else if is_pattern && !may_match {
                failures.push(source.failure(at, "only layout and repository decide by kind"));
            }
        }
        for at in source.words("match").filter(|at| !may_match && !source.is_test(*at)) {
            if decides_by_kind(source, at) {
                failures.push(source.failure(at, "only layout and repository decide by kind"));
            }
        }
    }
    failures
}

/// Whether the `match` here is on something called `kind`. Other types may use the name: `io::Error` has a method, and patterns
/// of another enum identify themselves; those of `Kind` are found anywhere.
fn decides_by_kind(source: &Source, at: usize) -> bool {
    let mut words = source.words_from(at).skip(1);
    let scrutinee: Vec<&str> = words.by_ref().take_while(|word| *word != "{").collect();
    let is_named = scrutinee
        .iter()
        .zip(scrutinee.iter().skip(1).chain([&"{"]))
        .any(|pair| *pair.0 == "kind" && *pair.1 != "(");
    is_named && matches!(words.next(), Some("Kind" | "Self" | "Some" | "None" | "Ok" | "Err" | "_"))
}

fn foreign_text(path: &str, text: &str) -> Vec<String> {
    let mut failures = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let lower = line.to_lowercase();
        for word in FOREIGN_TEXT
            .iter()
            .map(|(head, tail)| format!("{head}{tail}"))
            .filter(|word| lower.contains(word))
        {
            failures.push(format!(
                "{path}:{}: `{word}` is of no use to somebody who has the repository only",
                index + 1
            ));
        }
    }
    failures
}

fn long_lines(path: &str, text: &str) -> Vec<String> {
    let is_text = path
        .rsplit_once('.')
        .is_none_or(|(_, end)| matches!(end, "rs" | "md" | "toml" | "sh") || end.contains('/'));
    let is_data = path.split('/').any(|folder| folder == "data") || path.starts_with("LICENSE");
    if !is_text || is_data {
        return Vec::new();
    }
    let is_table = |line: &str| path.ends_with(".md") && line.trim_start().starts_with('|');
    let long =
        text.lines().enumerate().filter(|(_, line)| line.chars().count() > LINE_LEN_MAX && !is_table(line));
    long.map(|(index, line)| {
        format!(
            "{path}:{}: a line of {} characters, {LINE_LEN_MAX} are the most",
            index + 1,
            line.chars().count()
        )
    })
    .collect()
}

/// The module under src/ that the file belongs to; `lib` for the root, `bin` for the program.
fn top_module(source: &Source) -> &str {
    let inside = source.path.strip_prefix("src/").unwrap_or(&source.path);
    let end = inside.find(['/', '.']).unwrap_or(inside.len());
    inside.get(..end).unwrap_or(inside)
}

fn layer(module: &str) -> Option<u32> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|(_, layer)| *layer)
}

fn unknown_module(module: &str) -> String {
    format!("the module `{module}` has no layer: give it a layer in tests/tidy.rs and ARCHITECTURE.md")
}

fn is_conformance(path: &str) -> bool {
    path.starts_with("src/testkit/") && (path.contains("conformance") || path.contains("tests"))
}

/// Whether the file is the module of this path or one below it.
fn is_within(path: &str, place: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
}

/// Whether the file holds only tests; `testkit` is ordinary code, except for its users.
fn is_test_file(source: &Source) -> bool {
    source.only_for_tests && top_module(source) != "testkit"
}

/// The sources of the library and of the program.
fn library() -> Vec<Source> {
    let mut sources = read("src");
    assert!(sources.iter().any(|source| source.path == "src/lib.rs"), "src/lib.rs was not found");
    mark_test_files(&mut sources);
    sources
}

/// Marks the files whose modules are declared for tests only.
fn mark_test_files(sources: &mut [Source]) {
    let places: Vec<String> = sources.iter().flat_map(Source::test_modules).collect();
    for source in sources {
        source.only_for_tests |= places.iter().any(|place| is_within(&source.path, place));
    }
}

/// The Rust files in a folder of the repository; none if there is no such folder.
fn read(folder: &str) -> Vec<Source> {
    let mut files = Vec::new();
    collect_files(folder, &mut files);
    files.retain(|(path, _)| path.ends_with(".rs"));
    files.iter().map(|(path, text)| Source::new(path, text)).collect()
}

/// Every text file that is part of the repository, with its path.
fn repository_text() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in [".ci", ".config", "benches", "docs", "examples", "fuzz", "src", "tests", "tools"] {
        collect_files(folder, &mut files);
    }
    for entry in fs::read_dir(root()).expect("the root of the repository can be read").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") || name.ends_with(".toml") || name.starts_with("LICENSE") {
            files.extend(fs::read_to_string(entry.path()).ok().map(|text| (name, text)));
        }
    }
    files
}

/// Adds the text files below a folder, in the order of their paths.
fn collect_files(folder: &str, files: &mut Vec<(String, String)>) {
    let Ok(entries) = fs::read_dir(root().join(folder)) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // The corpus is bytes, even where they are text, and artifacts are inputs that cargo-fuzz has found.
        if is_folder && !["/target", "fuzz/corpus", "fuzz/artifacts"].iter().any(|end| path.ends_with(end)) {
            collect_files(&path, files);
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            files.push((path, text));
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[path = "tidy/scanner.rs"]
mod scanner;
