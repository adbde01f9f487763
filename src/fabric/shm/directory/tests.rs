//! The runtime directory.

use rustix::fs::FileType;
use rustix::process::{Pid, WaitId, WaitIdOptions};

use super::*;
use crate::testkit::skip::skip;

fn directory() -> (tempfile::TempDir, RuntimeDirectory) {
    let holder = tempfile::tempdir().unwrap();
    let directory = RuntimeDirectory::open(&holder.path().join("run")).unwrap();
    assert!(directory.find_or_make().is_ok());
    (holder, directory)
}

fn node(name: &str) -> NodeName {
    name.parse().unwrap()
}

#[test]
fn a_name_is_taken_once_and_free_after() {
    let (_holder, directory) = directory();
    let claim = directory.claim(&node("a")).unwrap();
    let error = directory.claim(&node("a")).unwrap_err();
    let process = std::process::id();
    assert!(matches!(error, FabricError::NameInUse { process: found, .. } if found == process), "{error}");
    assert!(directory.entry(&node("a")).unwrap().unwrap().alive);
    drop(claim);
    assert_eq!(directory.entry(&node("a")).unwrap(), None);
    directory.claim(&node("a")).unwrap();
}

/// As in a file system that is full, in which it cannot be written.
#[test]
fn entry_that_cannot_be_completed_is_removed() {
    let (holder, directory) = directory();
    let socket = holder.path().join(format!("run/a{SOCKET_SUFFIX}"));
    std::fs::create_dir(&socket).unwrap();
    let error = directory.claim(&node("a")).unwrap_err();
    assert!(matches!(error, FabricError::NodeFile { what: "remove", .. }), "{error}");
    assert!(!holder.path().join("run/a.node").exists());
    std::fs::remove_dir(&socket).unwrap();
    directory.claim(&node("a")).unwrap();
}

/// It has the descriptors of the one that took the name, for whose end its parent need not have waited.
#[test]
fn name_that_a_forked_process_keeps_is_told() {
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let id = WaitId::Pid(Pid::from_child(&ended));
    rustix::process::waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
    check_kept_name(ended.id());
    ended.wait().unwrap();
    check_kept_name(ended.id());
}

fn check_kept_name(process: u32) {
    let (holder, directory) = directory();
    let path = holder.path().join("run/a.node");
    std::fs::write(&path, NameEntry { node: node("a"), process, started_ns: 1 }.emit()).unwrap();
    let inherited = File::open(&path).unwrap();
    rustix::fs::flock(&inherited, FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = directory.claim(&node("a")).unwrap_err();
    assert!(matches!(error, FabricError::NameHeld { process: told, .. } if told == process), "{error}");
    let (told, path) = (error.to_string(), path.display().to_string());
    assert!(told.contains(&format!("fuser {path}")), "{told}");
    drop(inherited);
    directory.claim(&node("a")).unwrap();
}

#[test]
fn a_dead_node_is_listed_as_gone_and_removed_by_the_next() {
    let (holder, directory) = directory();
    let dead = NameEntry { node: node("dead"), process: 1, started_ns: 1 };
    std::fs::write(holder.path().join("run/dead.node"), dead.emit()).unwrap();
    std::fs::write(holder.path().join("run/dead.sock"), b"").unwrap();
    std::fs::write(holder.path().join("run/dead.bind"), b"").unwrap();
    let entries = directory.entries().unwrap();
    assert_eq!((entries.len(), entries[0].alive), (1, false));
    let _claim = directory.claim(&node("b")).unwrap();
    let left: Vec<_> = std::fs::read_dir(holder.path().join("run")).unwrap().collect();
    assert_eq!(left.len(), 1);
}

#[test]
fn garbage_in_the_directory_is_passed_over() {
    let (holder, directory) = directory();
    for name in ["x.node", "..node", "y", "z.sock"] {
        std::fs::write(holder.path().join("run").join(name), b"garbage").unwrap();
    }
    assert_eq!(directory.entries().unwrap(), []);
    directory.claim(&node("x")).unwrap();
}

#[test]
fn only_a_node_that_takes_a_name_makes_the_directory() {
    let holder = tempfile::tempdir().unwrap();
    let path = holder.path().join("run");
    let directory = RuntimeDirectory::open(&path).unwrap();
    assert_eq!((directory.entries().unwrap(), directory.entry(&node("a")).unwrap()), (vec![], None));
    assert!(!path.exists());
    let other = RuntimeDirectory::open(&path).unwrap();
    let _claim = other.claim(&node("a")).unwrap();
    assert!(directory.entry(&node("a")).unwrap().unwrap().alive, "it is found later");
    assert!(RuntimeDirectory::open(&path.join("a.node")).is_err(), "not a directory");
}

#[test]
fn irregular_files_are_ignored_but_block_a_node_of_that_name() {
    let (holder, directory) = directory();
    let path = |name: &str| holder.path().join("run").join(name);
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo.node"), FileType::Fifo, mode, 0).unwrap();
    std::fs::create_dir(path("dir.node")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket.node")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", path("link.node")).unwrap();
    assert_eq!(directory.entries().unwrap(), []);
    for name in ["fifo", "dir", "socket", "link"] {
        assert_eq!(directory.entry(&node(name)).unwrap(), None, "{name}");
        let error = directory.claim(&node(name)).unwrap_err();
        let is_named = |found: &str| Path::new(found) == path(&format!("{name}.node"));
        assert!(matches!(&error, FabricError::NodeFile { path, .. } if is_named(path)), "{error}");
    }
}

#[test]
fn a_directory_open_to_others_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let holder = tempfile::tempdir().unwrap();
    let path = holder.path().join("open");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = RuntimeDirectory::open(&path).unwrap_err();
    assert!(error.to_string().contains("FABRICAST_RUNTIME_DIR"), "{error}");
    let link = holder.path().join("link");
    std::os::unix::fs::symlink(holder.path(), &link).unwrap();
    let error = RuntimeDirectory::open(&link).unwrap_err().to_string();
    let parts = [link.to_str().unwrap(), "symbolic link", &holder.path().display().to_string()];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn a_name_can_be_taken_after_a_slow_process_has_listed_its_entry() {
    let (holder, directory) = directory();
    let dead = NameEntry { node: node("x"), process: 1, started_ns: 1 };
    std::fs::write(holder.path().join("run/x.node"), dead.emit()).unwrap();
    let lister = File::open(holder.path().join("run/x.node")).unwrap();
    rustix::fs::flock(&lister, FlockOperation::NonBlockingLockShared).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            SystemClock.pause(Duration::from_millis(200));
            drop(lister);
        });
        directory.claim(&node("x")).unwrap();
    });
}

#[test]
fn other_users_directory_is_refused() {
    if !rustix::process::geteuid().is_root() {
        let error = RuntimeDirectory::open(Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("it belongs to user"), "{error}");
    }
}

#[test]
fn root_reads_a_directory_of_another_user_and_takes_no_name_there() {
    let (holder, directory) = directory();
    let _claim = directory.claim(&node("a")).unwrap();
    let path = holder.path().join("run");
    if let Err(error) = std::os::unix::fs::chown(&path, Some(65_534), None) {
        return skip("other-users", &format!("no directory can be given to another user ({error})"));
    }
    let looking = RuntimeDirectory::open(&path).unwrap();
    assert!(looking.entry(&node("a")).unwrap().unwrap().alive);
    let error = looking.claim(&node("b")).unwrap_err().to_string();
    assert!(error.contains("it belongs to user 65534"), "{error}");
    assert_eq!(looking.entries().unwrap().len(), 1);
    let default = RuntimeDirectory { path, is_chosen: false, group: None, file: OnceLock::new() };
    let error = default.checked().unwrap_err().to_string();
    assert!(error.contains("it belongs to user 65534"), "anybody may create the default: {error}");
}

/// A process looks for nodes before there is a directory, or goes on after it was removed: anybody may make the default one then.
#[test]
fn default_directory_that_another_user_makes_later_is_not_connected_to() {
    let holder = tempfile::tempdir().unwrap();
    let path = holder.path().join("run");
    for was_there in [false, true] {
        if was_there {
            std::fs::create_dir(&path).unwrap();
        }
        let default =
            RuntimeDirectory { path: path.clone(), is_chosen: false, group: None, file: OnceLock::new() };
        let default = default.checked().unwrap();
        let found = default.socket_address(&node("a"));
        assert_eq!(found.is_ok(), was_there, "{found:?}");
        if was_there {
            std::fs::remove_dir(&path).unwrap();
        }
        std::fs::create_dir(&path).unwrap();
        if let Err(error) = std::os::unix::fs::chown(&path, Some(65_534), None) {
            return skip("other-users", &format!("no directory can be given to another user ({error})"));
        }
        let error = default.socket_address(&node("a")).unwrap_err().to_string();
        assert!(error.contains("it belongs to user 65534"), "{error}");
        std::fs::remove_dir(&path).unwrap();
    }
}

/// A socket of that name in the current directory is another node's, or none.
#[test]
fn no_node_listens_in_a_missing_directory_of_a_long_path() {
    let holder = tempfile::tempdir().unwrap();
    let path = holder.path().join("x".repeat(SOCKET_PATH_LEN_MAX));
    let directory = RuntimeDirectory::open(&path).unwrap();
    let found = directory.socket_address(&node("a"));
    assert!(matches!(found, Err(FabricError::NoSuchNode { .. })), "{found:?}");
    let claim = directory.claim(&node("a")).unwrap();
    assert!(claim.binding_address.starts_with("/proc/self/fd"));
}

#[test]
fn name_that_a_stopped_listing_holds_is_reported_with_the_file_it_holds() {
    let (holder, directory) = directory();
    let path = holder.path().join("run/x.node");
    std::fs::write(&path, b"").unwrap();
    let lister = File::open(&path).unwrap();
    rustix::fs::flock(&lister, FlockOperation::NonBlockingLockShared).unwrap();
    let error = directory.claim(&node("x")).unwrap_err().to_string();
    let parts = ["the name x cannot be taken", &format!("fuser {}", path.display())];
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn many_processes_may_list_while_a_node_starts() {
    let (_holder, directory) = directory();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..500 {
                let entries = directory.entries().unwrap();
                let is_busy =
                    |it: &NodeListing| (it.node.as_str(), it.process) == ("busy", std::process::id());
                assert!(entries.len() <= 1 && entries.iter().all(is_busy), "{entries:?}");
            }
        });
        for _ in 0..100 {
            drop(directory.claim(&node("busy")).unwrap());
        }
    });
}

/// A process that was stopped, and whose files an administrator has removed so that another one could take its place, may run again.
#[test]
fn superseded_node_leaves_the_files_of_its_successor_alone() {
    let (_holder, directory) = directory();
    let name: NodeName = "p".parse().unwrap();
    let old = directory.claim(&name).unwrap();
    assert!(matches!(directory.claim(&name), Err(FabricError::NameInUse { .. })));
    std::fs::remove_file(directory.path.join("p.node")).unwrap();
    let next = directory.claim(&name).unwrap();
    std::fs::write(&next.binding_address, "").unwrap();
    next.show_socket().unwrap();
    // It was stopped before it listened.
    std::fs::write(&old.binding_address, "").unwrap();
    assert_eq!(old.show_socket(), Err(Errno::EXIST));
    drop(old);
    let socket = directory.socket_address(&name).unwrap();
    assert!(directory.entry(&name).unwrap().unwrap().alive && socket.exists());
    drop(next);
    assert!(directory.entry(&name).unwrap().is_none());
}
