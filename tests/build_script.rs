//! What the build script reports when the feature `verbs` lacks a dependency.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

#[path = "../rdma-sys/build/requirements.rs"]
#[allow(dead_code, reason = "the build script uses all of them")]
mod script;

/// The supported versions of libclang.
const SUPPORTED: std::ops::RangeInclusive<u32> = 13..=22;

fn complaint(found: &[PathBuf]) -> String {
    script::judge_clang(found, "it is not installed").expect_err("a complaint")
}

/// A folder with a libclang of this version, as Debian installs it.
fn install(root: &Path, version: u32) -> PathBuf {
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
fn every_supported_libclang_is_accepted() {
    let root = tempfile::tempdir().unwrap();
    let folders: Vec<PathBuf> = SUPPORTED.map(|version| install(root.path(), version)).collect();
    for folder in &folders {
        assert_eq!(script::judge_clang(&script::named_clang(folder), ""), Ok(()));
        assert_eq!(script::judge_clang(&script::named_clang(&folder.join("libclang.so")), ""), Ok(()));
    }
    let all: Vec<PathBuf> = folders.iter().flat_map(|folder| script::clangs_in(folder)).collect();
    assert_eq!(script::judge_clang(&all, ""), Ok(()));
}

#[test]
fn too_new_libclang_is_refused_and_an_older_one_named() {
    let root = tempfile::tempdir().unwrap();
    let (old, new) = (install(root.path(), 14), install(root.path(), SUPPORTED.end() + 1));
    let alone = complaint(&script::named_clang(&new));
    assert!(
        alone.starts_with("libclang 23 (")
            && alone.contains("is newer than 22")
            && alone.contains("apt-get install"),
        "{alone}"
    );
    // The newest is chosen, wherever the others are.
    let both = complaint(&[script::clangs_in(&old), script::clangs_in(&new)].concat());
    assert!(both.ends_with(&format!("set LIBCLANG_PATH={}", old.display())), "{both}");
}

#[test]
fn libclang_without_a_version_in_its_name_is_judged_by_its_own_report() {
    let root = tempfile::tempdir().unwrap();
    let unnamed = root.path().join("libclang.so");
    File::create(&unnamed).unwrap();
    assert_eq!(script::judge_clang(&script::named_clang(&unnamed), ""), Ok(()));

    let reported = |version| script::judge_version(version, "clang version", &script::clangs_in(root.path()));
    for version in SUPPORTED.map(Some).chain([None]) {
        assert_eq!(reported(version), Ok(()), "{version:?}");
    }
    let complaint = reported(Some(23)).unwrap_err();
    assert!(["libclang 23", "22"].iter().all(|part| complaint.contains(part)), "{complaint}");
}

#[test]
fn missing_libclang_is_reported_with_advice() {
    let complaint = complaint(&script::named_clang(Path::new("/nonexistent")));
    assert!(complaint.contains("no libclang is found, it is not installed; `apt-get install"), "{complaint}");
    assert!(complaint.contains("LIBCLANG_PATH="), "{complaint}");
}

#[test]
fn missing_libraries_are_reported_with_advice() {
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
    // A pkg-config that finds everything, in no folder.
    let complaint = script::check_library(OsStr::new("/bin/true"), ("x", "1", "no/such.h")).unwrap_err();
    assert!(complaint.contains("the header no/such.h"), "{complaint}");
}

#[test]
fn headers_that_libclang_cannot_read_are_quoted_in_one_line() {
    let error = "clang diagnosed error: a.h:1:1: fatal error: 'b.h' file not found\n\n  a.h:2:1: error: c\n";
    let complaint = script::unreadable(error);
    assert!(complaint.contains("'b.h' file not found; a.h:2:1: error: c"), "{complaint}");
    assert!(!complaint.contains('\n') && !complaint.contains("libclang-common"), "{complaint}");
    // libclang without its own headers, as in a wheel.
    let complaint = script::unreadable("sched.h:29:10: fatal error: 'stddef.h' file not found");
    assert!(complaint.contains("install libclang-common-N-dev"), "{complaint}");
}
