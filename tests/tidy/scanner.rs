//! Shows on small sources that each rule finds its violations, and nothing else.

use super::*;

fn source(path: &str, text: &str) -> Vec<Source> {
    vec![Source::new(path, text)]
}

/// Whether the rule finds exactly these lines.
#[track_caller]
fn found(failures: &[String], places: &[&str]) {
    let found: Vec<String> = failures.iter().map(|failure| failure.split(": ").take(1).collect()).collect();
    assert_eq!(found, places, "{failures:#?}");
}

#[test]
fn upward_and_sideways_imports_are_found() {
    let text = "use crate::fabric::Endpoint;\nuse crate::memory::Region;\nuse crate::{id, repository::{Writer, self}};\n\
                fn f() -> crate::node::Node { super::super::control::x() }\n";
    found(
        &imports(&source("src/layout/state.rs", text)),
        &[
            "src/layout/state.rs:1",
            "src/layout/state.rs:3",
            "src/layout/state.rs:3",
            "src/layout/state.rs:4",
            "src/layout/state.rs:4",
        ],
    );
}

#[test]
fn downward_and_own_imports_are_not_found() {
    let text = "//! use crate::node::Node;\nuse std::fmt;\nuse crate::{id::{Kind, Epoch}, limits};\nuse super::header;\n\
                const TEXT: &str = \"crate::node::Node\"; /* crate::node::X /* nested */ crate::node */\n\
                mod inner { use super::super::header; use super::*; }\nuse crate::layout::table;\n";
    found(&imports(&source("src/layout/state.rs", text)), &[]);
}

#[test]
fn the_ground_layer_has_its_own_list() {
    found(&imports(&source("src/id.rs", "use crate::limits;\nuse crate::event::Event;\n")), &["src/id.rs:2"]);
    for (from, to) in GROUND_IMPORTS {
        assert!(layer(from) == Some(0) && layer(to) == Some(0), "{from} -> {to}");
    }
    // Repeatedly removing the modules that import none of the rest must remove all: there is no cycle.
    let mut left = GROUND_IMPORTS.to_vec();
    for _ in 0..GROUND_IMPORTS.len() {
        let importers: Vec<&str> = left.iter().map(|(from, _)| *from).collect();
        left.retain(|(_, to)| importers.contains(to));
    }
    assert!(left.is_empty(), "layer 0 imports in a circle: {left:?}");
}

#[test]
fn the_seam_is_kept_in_tests_too() {
    let text = "use crate::payload::Schema;\n#[cfg(test)]\nmod tests {\n    use crate::layout::state;\n}\n";
    found(&imports(&source("src/fabric/mod.rs", text)), &["src/fabric/mod.rs:1", "src/fabric/mod.rs:4"]);
}

#[test]
fn tests_may_use_testkit_and_neighbours_but_not_what_is_above() {
    let text = "use crate::testkit::A;\n#[cfg(test)]\nmod tests {\n    use crate::testkit::B;\n    use crate::notice::C;\n    \
                use crate::node::D;\n}\n";
    found(&imports(&source("src/control/mod.rs", text)), &["src/control/mod.rs:1", "src/control/mod.rs:6"]);
}

#[test]
fn testkit_is_gated_and_stands_low() {
    let mut sources =
        source("src/testkit/mod.rs", "use crate::memory::Region;\nuse crate::control::Codec;\n");
    sources.push(Source::new("src/testkit/conformance.rs", "use crate::node::Node;\n"));
    found(
        &imports(&sources),
        &["src/testkit/mod.rs:1", "src/testkit/mod.rs:2", "src/testkit/conformance.rs:1"],
    );

    sources.push(Source::new(
        "src/lib.rs",
        "#[cfg(any(test, feature = \"testkit\"))]\n#[doc(hidden)]\npub mod testkit;\n",
    ));
    mark_test_files(&mut sources);
    found(&imports(&sources), &["src/testkit/mod.rs:2"]);
}

#[test]
fn a_module_without_a_layer_is_found() {
    found(&imports(&source("src/helpers.rs", "")), &["src/helpers.rs:1"]);
    let text = "use crate::helpers::X;\nuse crate::NodeName;\nuse crate::*;\n";
    found(
        &imports(&source("src/node/mod.rs", text)),
        &["src/node/mod.rs:1", "src/node/mod.rs:2", "src/node/mod.rs:3"],
    );
}

#[test]
fn the_program_uses_the_public_api() {
    let text = "use fabricast::testkit::Memory;\n#[path = \"../../control/mod.rs\"]\nmod control;\nuse crate::output::Line;\n";
    found(
        &imports(&source("src/bin/fabricast/main.rs", text)),
        &["src/bin/fabricast/main.rs:1", "src/bin/fabricast/main.rs:2"],
    );
}

#[test]
fn import_cycles_are_found() {
    let files = |files: &[(&str, &str)]| -> Vec<Source> {
        files.iter().map(|(path, text)| Source::new(path, text)).collect()
    };
    // Through a name that the parent hands on, and a module that is imported by itself.
    let three = files(&[
        ("src/layout/mod.rs", "mod a; mod b; mod c;\npub(crate) use b::B;\n"),
        ("src/layout/a.rs", "use super::B;\npub(crate) struct A(B);\n"),
        ("src/layout/b.rs", "use super::c;\npub(crate) struct B(c::C);\n"),
        ("src/layout/c.rs", "pub(crate) struct C(Box<super::a::A>);\n"),
    ]);
    found(&import_cycles(&three), &["src/layout/a.rs", "src/layout/b.rs", "src/layout/c.rs"]);
    assert!(
        import_cycles(&three)[0].ends_with("src/layout/b.rs -> src/layout/c.rs -> src/layout/a.rs"),
        "{three:?}"
    );
    // A parent that uses what its child defines, and a child that names what its parent does.
    let parent = "mod child;\npub(crate) use child::Part;\npub(crate) struct Whole(Part);\n";
    let child = "use super::Whole;\npub(crate) struct Part;\nimpl Whole {}\n";
    let pair = files(&[("src/control/state.rs", parent), ("src/control/state/child.rs", child)]);
    found(&import_cycles(&pair), &["src/control/state.rs", "src/control/state/child.rs"]);
    let program = files(&[
        ("src/bin/fabricast/main.rs", "mod get;\nfn main() { get::run() }\npub struct Exit;\n"),
        ("src/bin/fabricast/get.rs", "use crate::Exit;\npub fn run() {}\n"),
    ]);
    found(&import_cycles(&program), &["src/bin/fabricast/main.rs", "src/bin/fabricast/get.rs"]);
    let node = files(&[("src/node/a.rs", "use super::b::B;\n"), ("src/node/b.rs", "use super::a::A;\n")]);
    found(&import_cycles(&node), &["src/node/a.rs", "src/node/b.rs"]);
}

#[test]
fn imports_in_one_direction_are_no_cycle() {
    let files = [
        // It hands on what its child defines, and says its name as that of a module, in a test and in a comment.
        (
            "src/layout/mod.rs",
            "mod part;\npub use part::Part;\npub struct Whole; // Part\n#[cfg(test)]\nmod tests { use super::Part; }\n",
        ),
        (
            "src/layout/part.rs",
            "use super::{Whole, other};\nuse super::other::Other as O;\npub struct Part(Whole, O);\nfn f() { other::g() }\n",
        ),
        ("src/layout/other.rs", "use std::fmt;\nuse crate::id::Part;\npub struct Other;\npub fn g() {}\n"),
        ("src/layout/tests.rs", "use super::part::Part;\n"),
        ("src/id.rs", "pub struct Part;\n"),
    ];
    let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
    found(&import_cycles(&sources), &[]);
}

#[test]
fn provider_names_are_found() {
    let text = "use crate::fabric::{self, Endpoint, shm::Shm};\nfn f() { fabric::verbs::open() }\n";
    found(&provider_names(&source("src/publisher.rs", text)), &["src/publisher.rs:1", "src/publisher.rs:2"]);
    found(&provider_names(&source("src/node/builder.rs", text)), &[]);
}

#[test]
fn unsafe_is_found() {
    let text = "#![allow(unsafe_code)]\n// unsafe\nfn f() { let a = \"unsafe\"; unsafe { g() } }\n";
    found(&unsafe_code(&source("src/layout/state.rs", text)), &["src/layout/state.rs:3"]);
    found(
        &unsafe_code(&source("src/memoryless.rs", "unsafe impl Send for X {}\n")),
        &["src/memoryless.rs:1"],
    );
}

#[test]
fn unsafe_without_an_argument_is_found() {
    let text = "\
fn f() {
    // SAFETY: ffi
    unsafe { g() };
    let good =
        // SAFETY: the pointer comes from a Box that lives until the end of this function.
        unsafe { g() };
    // SAFETY: the pointer comes from a Box
    // that lives until the end of this function.
    let good =
        unsafe { g() };
    unsafe { g() };
}
unsafe impl Send for X {}
type Callback = unsafe fn(u8);
/// Reads.
///
/// # Safety
///
/// `at` must be aligned.
#[inline]
pub(crate) unsafe fn read(at: *const u8) {}
/// Reads.
unsafe fn bad(at: *const u8) {}
";
    let places = ["src/memory.rs:3", "src/memory.rs:11", "src/memory.rs:13", "src/memory.rs:23"];
    found(&unsafe_code(&source("src/memory.rs", text)), &places);
}

#[test]
fn long_functions_are_found() {
    let function = |len: usize| {
        format!("fn f<'a>(x: [u8; 2]) -> char {{\n{}    '}}'\n}}\n", "    g(\"{\");\n".repeat(len - 3))
    };
    found(&long_functions(&source("src/node/mod.rs", &function(70))), &[]);
    found(
        &long_functions(&source("src/node/mod.rs", &format!("\n{}", function(71)))),
        &["src/node/mod.rs:2"],
    );
    let method = format!("impl X {{ trait_method(); fn declared(&self); {} }}", function(71));
    found(&long_functions(&source("examples/a.rs", &method)), &["examples/a.rs:1"]);
}

#[test]
fn long_files_are_found() {
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// line\n".repeat(100));
    let file = |len: usize| "const A: u8 = 1;\n".repeat(len);
    found(&long_files(&source("src/node/mod.rs", &(file(600) + &tests))), &[]);
    found(&long_files(&source("src/node/mod.rs", &(file(601) + &tests))), &["src/node/mod.rs:1"]);
    found(
        &long_files(&source("src/node/mod.rs", &(file(550) + &tests + "const B: u8 = 2;\n"))),
        &["src/node/mod.rs:1"],
    );
    found(&long_files(&source("src/node/tests.rs", &file(601))), &[]);
}

#[test]
fn long_examples_are_found() {
    found(&long_examples(&source("examples/hello.rs", &"\n".repeat(80))), &[]);
    found(&long_examples(&source("examples/hello.rs", &"\n".repeat(81))), &["examples/hello.rs:1"]);
    found(&long_examples(&source("examples/market_data.rs", &"\n".repeat(300))), &[]);
    found(
        &long_examples(&source("examples/market_data.rs", &"\n".repeat(301))),
        &["examples/market_data.rs:1"],
    );
    found(&long_examples(&source("examples/market_feed/book.rs", &"\n".repeat(300))), &[]);
    found(
        &long_examples(&source("examples/market_feed/book.rs", &"\n".repeat(301))),
        &["examples/market_feed/book.rs:1"],
    );
}

#[test]
fn unfinished_work_is_found() {
    let text = "fn f() { todo!() }\nfn g() { dbg!(1); unimplemented!() }\n// FIXME later\n#[ignore]\n#[ignore = \"needs a device\"]\n";
    found(
        &unfinished(&source("src/a.rs", text)),
        &["src/a.rs:1", "src/a.rs:2", "src/a.rs:2", "src/a.rs:3", "src/a.rs:4"],
    );
    found(&unfinished(&source("src/a.rs", "// todo! HACKS, mktemp XXXXXX\nlet todo = dbg;\n")), &[]);
}

#[test]
fn sleeping_tests_are_found() {
    let text = "fn f() { std::thread::sleep(x); }\nuse std::thread::{self, sleep};\nfn g() { thread::park_timeout(x) }\n";
    found(&sleeps(&source("tests/a.rs", text)), &["tests/a.rs:1", "tests/a.rs:2"]);
}

#[test]
fn the_binding_to_c_is_found() {
    let text = "//! rdma_sys::ibv_mr\nuse rdma_sys::ibv_mr;\nfn f() { let a: *mut rdma_sys::ibv_cq; }\n";
    found(
        &rdma_sys_names(&source("src/fabric/verbs/device.rs", text)),
        &["src/fabric/verbs/device.rs:2", "src/fabric/verbs/device.rs:3"],
    );
    found(&rdma_sys_names(&source("src/fabric/verbs/sys/work.rs", text)), &[]);
    found(&rdma_sys_names(&source("src/fabric/verbs/sys.rs", text)), &[]);
}

#[test]
fn bincode_is_found() {
    let text =
        "//! bincode::config\nuse bincode::config;\nfn f() { bincode::encode(1); self::bincode::mine(); }\n";
    found(
        &bincode_names(&source("src/payload/mod.rs", text)),
        &["src/payload/mod.rs:2", "src/payload/mod.rs:3"],
    );
    found(&bincode_names(&source("src/control/codec.rs", text)), &[]);
}

#[test]
fn a_module_called_bincode_is_not_the_crate() {
    for head in ["mod bincode;", "use super::{DecodeError, bincode};", "use crate::payload::bincode;"] {
        let text = format!(
            "{head}\nfn f() {{ bincode::encode(1); }}\nfn g() {{ ::bincode::encode(1); }}\nuse ::bincode::x;\n"
        );
        found(
            &bincode_names(&source("src/payload/pod.rs", &text)),
            &["src/payload/pod.rs:3", "src/payload/pod.rs:4"],
        );
    }
}

#[test]
fn decisions_by_kind_are_found() {
    let text = "fn f() { open(Kind::State); }\nfn g() { match topic.kind { _ => {} } }\n\
                fn h(e: E) { match e.kind() { ErrorKind::X => {} } }\nfn i() { match x() { Some(Kind::State) => {} } }\n\
                fn j() { match kind { MessageKind::A => {} } }\nfn k() { if let Some(Kind::State) = x() {} }\n\
                #[cfg(test)]\nmod tests { const A: Kind = Kind::State; }\n";
    found(&kind_names(&source("src/repository/mod.rs", text)), &[]);
    found(&kind_names(&source("src/publisher.rs", text)), &["src/publisher.rs:4", "src/publisher.rs:2"]);
    found(
        &kind_names(&source("src/node/mod.rs", text)),
        &["src/node/mod.rs:1", "src/node/mod.rs:4", "src/node/mod.rs:6", "src/node/mod.rs:2"],
    );
}

#[test]
fn foreign_text_is_found() {
    for (head, tail) in FOREIGN_TEXT {
        found(&foreign_text("docs/a.md", &format!("fine\nsee {head}{tail}x\n")), &["docs/a.md:2"]);
    }
    found(&foreign_text("docs/a.md", "shared memory at /dev/shm, network\n"), &[]);
}

#[test]
fn long_lines_are_found() {
    let text = format!("{}\n{}\n", "ä".repeat(140), "a".repeat(141));
    for path in ["docs/a.md", "src/a.rs", "tools/test", ".ci/run"] {
        found(&long_lines(path, &text), &[&format!("{path}:2")]);
    }
    for path in ["tests/data/a.rs", "docs/a.svg", "LICENSE-MIT"] {
        found(&long_lines(path, &text), &[]);
    }
    found(&long_lines("README.md", &format!("| {} |", "a".repeat(141))), &[]);
}

#[test]
fn literals_and_lifetimes_are_told_apart() {
    let text = r##"let a = 'x'; let b: &'static str = r#"a " b"#; let c = b'\'';
                let d = '\u{1F600}'; let e = 'é'; let r#fn = b"\"";"##;
    let source = Source::new("src/a.rs", text);
    assert_eq!(source.code.len(), text.len());
    let words: Vec<&str> = source.words_from(0).filter(|word| word.chars().all(is_word_char)).collect();
    assert_eq!(
        words,
        ["let", "a", "let", "b", "static", "str", "let", "c", "let", "d", "let", "e", "let", "r", "fn"]
    );
}

#[test]
fn conditions_for_tests_are_told_from_others() {
    let is_test = |condition: &str| {
        let text = format!("#[cfg({condition})]\n#[inline]\nfn f(a: [u8; 2]) {{ here(); }}\nfn g() {{}}\n");
        let source = Source::new("src/a.rs", &text);
        assert!(!source.is_test(text.find("fn g").unwrap()));
        source.is_test(text.find("here").unwrap())
    };
    for condition in [
        "test",
        "feature = \"testkit\"",
        "any(test, feature = \"testkit\")",
        "all(test, unix)",
        "any(test, fuzzing)",
    ] {
        assert!(is_test(condition), "{condition}");
    }
    for condition in ["not(test)", "unix", "feature = \"verbs\"", "any(test, unix)", "fabricast_skip_check"] {
        assert!(!is_test(condition), "{condition}");
    }
}

#[test]
fn atomics_that_pass_the_facade_by_are_found() {
    let text =
        "use std::sync::Arc;\nuse std::sync::atomic::AtomicU64;\nfn f() { std::sync::atomic::fence(x) }\n";
    let expected = ["src/node/mod.rs:2", "src/node/mod.rs:3"];
    found(&std_atomics(&source("src/node/mod.rs", text)), &expected);
    found(&std_atomics(&source("src/sync.rs", text)), &[]);
}
