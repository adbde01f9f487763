//! What `build.rs` says when something is missing to build the feature `verbs`.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

#[path = "../build.rs"]
#[allow(dead_code, reason = "its `main` is run by cargo")]
mod script;

fn complaint(found: &[PathBuf]) -> String {
    script::judge_clang(found, "it is not installed").expect_err("a complaint")
}

/// A folder with a libclang of this version, as Debian installs it.
fn install(root: &Path, version: &str) -> PathBuf {
    let folder = root.join(format!("llvm-{version}"));
    std::fs::create_dir(&folder).expect("a folder");
    File::create(folder.join(format!("libclang-{version}.so.{version}.0.6"))).expect("a file");
    File::create(folder.join(format!("libclang-cpp.so.{version}"))).expect("a file");
    symlink(format!("libclang-{version}.so.{version}.0.6"), folder.join(format!("libclang-{version}.so")))
        .expect("a file");
    symlink(format!("libclang-{version}.so"), folder.join("libclang.so")).expect("a file");
    folder
}

#[test]
fn versions_of_libclang_are_read_from_file_names() {
    let cases: [(&str, Option<&[u32]>); 8] = [
        ("libclang.so", Some(&[])),
        ("libclang.so.18.1", Some(&[18, 1])),
        ("libclang-14.so", Some(&[14])),
        ("libclang-14.0.6.so", Some(&[14, 0, 6])),
        ("libclang-14.so.14.0.6", Some(&[14])),
        ("libclang-cpp.so.14", None),
        ("libclang.a", None),
        ("libclangAST.so", None),
    ];
    for (name, version) in cases {
        assert_eq!(script::clang_name(OsStr::new(name)).as_deref(), version, "{name}");
    }
}

#[test]
fn a_libclang_that_is_too_new_is_refused_and_an_older_one_named() {
    let root = tempfile::tempdir().unwrap();
    let old = install(root.path(), "14");
    assert_eq!(script::judge_clang(&script::named_clang(&old), ""), Ok(()));
    assert_eq!(script::judge_clang(&script::named_clang(&old.join("libclang.so")), ""), Ok(()));

    let new = install(root.path(), "16");
    let alone = complaint(&script::named_clang(&new));
    assert!(alone.contains("libclang 16") && alone.contains("apt-get install libclang-14-dev"), "{alone}");
    let both = complaint(&[script::clangs_in(&old), script::clangs_in(&new)].concat());
    assert!(both.ends_with(&format!("set LIBCLANG_PATH={}", old.display())), "{both}");
}

#[test]
fn a_libclang_that_is_missing_is_named_with_what_to_do() {
    let complaint = complaint(&script::named_clang(Path::new("/nonexistent")));
    assert!(complaint.contains("no libclang is found, it is not installed; `apt-get install"), "{complaint}");
    assert!(complaint.contains("LIBCLANG_PATH="), "{complaint}");
}

#[test]
fn libraries_that_are_missing_are_named_with_what_to_do() {
    let library = ("libibverbs", "1.8.28", "infiniband/verbs.h");
    let cases =
        [("/nonexistent/pkg-config", "does not run"), ("/bin/false", "does not find libibverbs >= 1.8.28")];
    for (pkg_config, what) in cases {
        let complaint = script::check_library(OsStr::new(pkg_config), library).unwrap_err();
        assert!(
            complaint.contains(what) && complaint.contains("apt-get install libibverbs-dev"),
            "{complaint}"
        );
    }
    // A pkg-config that finds all, and in no folder.
    let complaint = script::check_library(OsStr::new("/bin/true"), ("x", "1", "no/such.h")).unwrap_err();
    assert!(complaint.contains("the header no/such.h is not there"), "{complaint}");
}
