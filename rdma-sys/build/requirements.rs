//! Reports what is missing to generate the bindings, in one sentence each, before the generator fails.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The libraries of rdma-core, with the oldest supported version and a header of each.
const LIBRARIES: &[(&str, &str, &str)] =
    &[("libibverbs", "1.8.28", "infiniband/verbs.h"), ("librdmacm", "1.2.28", "rdma/rdma_cma.h")];
const INSTALL: &str = "apt-get install libibverbs-dev librdmacm-dev libclang-dev pkg-config";
/// The newest version of libclang that the bindings have been generated with and compared with C's structures.
const CLANG_VERSION_MAX: u32 = 22;
/// The folders searched for libclang, two levels deep.
const CLANG_ROOTS: &[&str] = &["/usr/local/lib", "/usr/local/lib64", "/usr/lib", "/usr/lib64"];
/// The environment variables that select other libraries.
pub(crate) const VARIABLES: &[&str] = &["LIBCLANG_PATH", "LLVM_CONFIG_PATH", "PKG_CONFIG", "PKG_CONFIG_PATH"];

/// Returns what is missing to generate the bindings, each with a remedy. Empty if nothing is.
pub(crate) fn missing() -> Vec<String> {
    let pkg_config = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let libraries = LIBRARIES.iter().map(|library| check_library(&pkg_config, *library));
    libraries.chain([check_clang()]).filter_map(Result::err).collect()
}

/// Checks that a library of rdma-core and its header are installed.
pub(crate) fn check_library(
    pkg_config: &OsStr,
    (name, version, header): (&str, &str, &str),
) -> Result<(), String> {
    let wanted = format!("{name} >= {version}");
    let ask = |what: &str, of: &str| Command::new(pkg_config).args([what, of]).output();
    let found = ask("--exists", &wanted)
        .map_err(|error| format!("{} does not run ({error}); `{INSTALL}`", pkg_config.display()))?;
    if !found.status.success() {
        return Err(format!("pkg-config does not find {wanted}; `{INSTALL}`, or set PKG_CONFIG_PATH"));
    }
    let folder = ask("--variable=includedir", name).map(|output| output.stdout).unwrap_or_default();
    let folder = String::from_utf8_lossy(&folder).trim().to_owned();
    let has_header =
        [folder.as_str(), "/usr/include"].iter().any(|folder| Path::new(folder).join(header).exists());
    if has_header { Ok(()) } else { Err(format!("the header {header} is missing; `{INSTALL}`")) }
}

/// Checks that a libclang is installed, and is not too new by its name.
fn check_clang() -> Result<(), String> {
    let nowhere = match env::var_os("LIBCLANG_PATH") {
        Some(_) => "LIBCLANG_PATH does not lead to one",
        None => "it is not installed",
    };
    judge_clang(&find_clangs(), nowhere)
}

/// The libclangs that bindgen chooses from.
pub(crate) fn find_clangs() -> Vec<PathBuf> {
    if let Some(path) = env::var_os("LIBCLANG_PATH") {
        return named_clang(Path::new(&path));
    }
    let mut folders = Vec::new();
    let llvm_config = env::var_os("LLVM_CONFIG_PATH").unwrap_or_else(|| "llvm-config".into());
    if let Ok(output) = Command::new(llvm_config).arg("--prefix").output() {
        let prefix = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        folders.extend([prefix.join("lib"), prefix.join("lib64")]);
    }
    folders.extend(env::var_os("LD_LIBRARY_PATH").iter().flat_map(env::split_paths));
    CLANG_ROOTS.iter().for_each(|root| add_folders(Path::new(root), 2, &mut folders));
    folders.iter().flat_map(|folder| clangs_in(folder)).collect()
}

/// The error if libclang cannot read the headers.
pub(crate) fn unreadable(error: &str) -> String {
    let lines: Vec<&str> = error.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let error = lines.join("; ");
    // Its own headers are a package of their own, and wheels and archives of libclang lack them.
    let advice = if error.contains("'stddef.h' file not found") {
        "; libclang lacks its own headers: install libclang-common-N-dev of its version N"
    } else {
        ""
    };
    format!("libclang cannot read the headers: {error}{advice}")
}

/// The files that `LIBCLANG_PATH` selects: one, or those of a folder.
pub(crate) fn named_clang(path: &Path) -> Vec<PathBuf> {
    let is_file = path.file_name().and_then(clang_name).is_some() && path.is_file();
    if is_file { vec![path.to_owned()] } else { clangs_in(path) }
}

/// Checks the name of the libclang that bindgen will choose.
pub(crate) fn judge_clang(found: &[PathBuf], nowhere: &str) -> Result<(), String> {
    let shown = |path: &&PathBuf| path.file_name().and_then(clang_name).unwrap_or_default();
    let Some(taken) = found.iter().max_by_key(shown) else {
        let set = "or set LIBCLANG_PATH, such as LIBCLANG_PATH=/usr/lib/llvm-19/lib";
        return Err(format!("no libclang is found, {nowhere}; `{INSTALL}`, {set}"));
    };
    judge_version(clang_version(taken), &taken.display().to_string(), found)
}

/// Refuses a version that is too new, and names the folder of an older one, if found.
pub(crate) fn judge_version(version: Option<u32>, origin: &str, found: &[PathBuf]) -> Result<(), String> {
    let Some(version) = version.filter(|version| *version > CLANG_VERSION_MAX) else {
        return Ok(());
    };
    let fit = found.iter().find(|path| clang_version(path).is_some_and(|it| it <= CLANG_VERSION_MAX));
    let advice = match fit.and_then(|path| path.parent()) {
        Some(folder) => format!("set LIBCLANG_PATH={}", folder.display()),
        None => "`apt-get install libclang-19-dev` and set LIBCLANG_PATH=/usr/lib/llvm-19/lib".to_owned(),
    };
    Err(format!(
        "libclang {version} ({origin}) is newer than {CLANG_VERSION_MAX}, the newest that the bindings were \
         tested with; {advice}"
    ))
}

/// The version in the name of a libclang, by which the newest is chosen. Empty if it has none; `None` for other names.
pub(crate) fn clang_name(name: &OsStr) -> Option<Vec<u32>> {
    let name = name.to_str()?;
    let version = match name {
        "libclang.so" => "",
        _ => name
            .strip_prefix("libclang.so.")
            .or_else(|| name.strip_prefix("libclang-")?.split(".so").next())?,
    };
    let is_library = name.contains(".so") && !name.contains("-cpp.");
    let numbers = version.split('.').filter_map(|part| part.parse().ok());
    is_library.then(|| numbers.collect())
}

/// The version of a libclang, by the name of the file that its links point to.
fn clang_version(path: &Path) -> Option<u32> {
    let file = fs::canonicalize(path).ok()?;
    clang_name(file.file_name()?)?.first().copied()
}

/// The libclangs of a folder.
pub(crate) fn clangs_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| clang_name(&entry.file_name()).is_some()).map(|entry| entry.path()).collect()
}

/// Adds a folder and its subfolders, this many levels deep.
fn add_folders(folder: &Path, levels: u32, folders: &mut Vec<PathBuf>) {
    folders.push(folder.to_owned());
    if levels > 0 {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.path().is_dir())
            .for_each(|entry| add_folders(&entry.path(), levels - 1, folders));
    }
}
