//! The runtime directory: where the nodes of one user on one host find each other.
//!
//! A node has two files in it: `NAME.node`, its entry, on which its process holds a lock for as long as it runs,
//! and `NAME.sock`, the Unix socket it listens at. The lock, not the file, tells whether the node lives; the files
//! of dead nodes are removed by the next node that starts.
//!
//! The directory is `FABRICAST_RUNTIME_DIR`, or else `fabricast` in `XDG_RUNTIME_DIR`, or else
//! `/tmp/fabricast-UID`. It is made when it is missing, and refused when it belongs to, or is open to, others.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::entry::{ENTRY_LEN, Entry};
use crate::clock::{Clock, SystemClock};
use crate::fabric::{FabricError, NodeEntry};
use crate::id::NodeName;

/// The variable that says where the runtime directory is.
const VARIABLE: &str = "FABRICAST_RUNTIME_DIR";
/// Ends the name of an entry.
const ENTRY_SUFFIX: &str = ".node";
/// Ends the name of a socket.
const SOCKET_SUFFIX: &str = ".sock";
/// Attempts to lock an entry: somebody who lists nodes holds a lock for an instant.
const LOCK_ATTEMPTS: u32 = 20;
/// Pause between two attempts to lock an entry.
const LOCK_PAUSE: Duration = Duration::from_millis(2);
/// Longest path of a Unix socket, bytes (`sun_path` of unix(7), less the final zero).
const SOCKET_PATH_LEN_MAX: usize = 107;

/// The open runtime directory.
#[derive(Debug)]
pub(crate) struct RuntimeDirectory {
    path: PathBuf,
    file: OwnedFd,
}

/// A node's name, taken. Given up when dropped.
#[derive(Debug)]
pub(super) struct Claim {
    node: NodeName,
    directory: OwnedFd,
    socket_address: PathBuf,
    /// Holds the lock.
    _entry: File,
}

impl RuntimeDirectory {
    /// The directory that the environment names.
    pub(crate) fn from_environment() -> Result<Self, FabricError> {
        let of = |variable| std::env::var_os(variable).filter(|value: &OsString| !value.is_empty());
        let path = of(VARIABLE).map(PathBuf::from).unwrap_or_else(|| {
            let user = rustix::process::getuid().as_raw();
            let own = || PathBuf::from(format!("/tmp/fabricast-{user}"));
            of("XDG_RUNTIME_DIR").map_or_else(own, |base| PathBuf::from(base).join("fabricast"))
        });
        Self::open(&path)
    }

    /// This directory, made if it is missing.
    pub(crate) fn open(path: &Path) -> Result<Self, FabricError> {
        let unusable = |why: &dyn std::fmt::Display| FabricError::RuntimeDirectory {
            path: path.display().to_string(),
            why: why.to_string(),
        };
        let made = rustix::fs::mkdir(path, Mode::RWXU);
        if let Err(errno) = made
            && errno != Errno::EXIST
        {
            return Err(unusable(&errno));
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| unusable(&errno))?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| unusable(&errno))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(unusable(&format!("it belongs to user {}", stat.st_uid)));
        }
        if stat.st_mode & 0o022 != 0 {
            return Err(unusable(&"other users may write to it"));
        }
        Ok(Self { path: path.to_owned(), file })
    }

    /// Takes a node's name, and removes what dead nodes have left.
    pub(super) fn claim(&self, node: &NodeName) -> Result<Claim, FabricError> {
        self.sweep();
        let name = format!("{node}{ENTRY_SUFFIX}");
        for attempt in 0..LOCK_ATTEMPTS {
            if attempt > 0 {
                SystemClock.pause(LOCK_PAUSE);
            }
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let entry = rustix::fs::openat(&self.file, &name, flags, Mode::RUSR | Mode::WUSR);
            let entry = entry.map_err(system("make the node's entry"))?;
            if rustix::fs::flock(&entry, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let mut entry = File::from(entry);
            if self.is_named(&entry, &name) {
                self.announce(node, &mut entry)?;
                return Ok(Claim {
                    node: node.clone(),
                    directory: self.file.try_clone().map_err(io("share the runtime directory"))?,
                    socket_address: self.socket_address(node)?,
                    _entry: entry,
                });
            }
        }
        let process = self.entry(node).ok().flatten().map_or(0, |entry| entry.process);
        Err(FabricError::NameInUse { node: node.clone(), process })
    }

    /// The path to bind or connect the node's socket: through the open directory where the direct one is too long.
    pub(super) fn socket_address(&self, node: &NodeName) -> Result<PathBuf, FabricError> {
        let name = format!("{node}{SOCKET_SUFFIX}");
        let direct = self.path.join(&name);
        if direct.as_os_str().as_bytes().len() <= SOCKET_PATH_LEN_MAX {
            return Ok(direct);
        }
        Ok(PathBuf::from(format!("/proc/self/fd/{}/{name}", self.file.as_raw_fd())))
    }

    /// All entries that can be read, by name.
    pub(super) fn entries(&self) -> Result<Vec<NodeEntry>, FabricError> {
        let mut entries: Vec<NodeEntry> =
            self.names()?.into_iter().filter_map(|node| self.entry(&node).ok().flatten()).collect();
        entries.sort_by(|one, other| one.node.cmp(&other.node));
        Ok(entries)
    }

    /// The entry of this node, if there is one that can be read.
    pub(super) fn entry(&self, node: &NodeName) -> Result<Option<NodeEntry>, FabricError> {
        let name = format!("{node}{ENTRY_SUFFIX}");
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.file, &name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(system("read the node's entry")(errno)),
        };
        let mut bytes = Vec::with_capacity(ENTRY_LEN + 1);
        let read = (&file).take(ENTRY_LEN as u64 + 1).read_to_end(&mut bytes);
        read.map_err(io("read the node's entry"))?;
        // The lock is free when the process is dead; it is given back when the file is closed.
        let alive = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err();
        let entry = Entry::parse(&bytes).filter(|entry| entry.node == *node);
        Ok(entry.map(|Entry { node, process, started_ns }| NodeEntry { node, process, started_ns, alive }))
    }

    /// The names of all entries.
    fn names(&self) -> Result<Vec<NodeName>, FabricError> {
        let listing = rustix::fs::Dir::read_from(&self.file).map_err(system("list the runtime directory"))?;
        let names = listing.filter_map(|item| {
            let item = item.ok()?;
            item.file_name().to_str().ok()?.strip_suffix(ENTRY_SUFFIX)?.parse().ok()
        });
        Ok(names.collect())
    }

    /// Removes the files of dead nodes. What cannot be removed stays, and harms nobody.
    fn sweep(&self) {
        for node in self.names().unwrap_or_default() {
            let name = format!("{node}{ENTRY_SUFFIX}");
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(file) = rustix::fs::openat(&self.file, &name, flags, Mode::empty()) else { continue };
            let file = File::from(file);
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if locked && self.is_named(&file, &name) {
                remove(&self.file, &node);
            }
        }
    }

    /// Whether this open file is still the one of that name: its owner may have removed it meanwhile.
    fn is_named(&self, file: &File, name: &str) -> bool {
        let named = rustix::fs::statat(&self.file, name, AtFlags::SYMLINK_NOFOLLOW);
        named.is_ok_and(|named| file.metadata().is_ok_and(|own| own.ino() == named.st_ino))
    }

    fn announce(&self, node: &NodeName, entry: &mut File) -> Result<(), FabricError> {
        let process = std::process::id();
        let content = Entry { node: node.clone(), process, started_ns: SystemClock.realtime_ns() };
        entry
            .set_len(0)
            .and_then(|()| entry.write_all(&content.emit()))
            .map_err(io("write the node's entry"))?;
        match rustix::fs::unlinkat(&self.file, format!("{node}{SOCKET_SUFFIX}"), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(system("remove a dead node's socket")(errno)),
        }
    }
}

impl Claim {
    /// The path to bind the node's socket at.
    pub(super) fn socket_address(&self) -> &Path {
        &self.socket_address
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        remove(&self.directory, &self.node);
    }
}

/// Removes a node's files; its lock must be held.
fn remove(directory: &OwnedFd, node: &NodeName) {
    for suffix in [SOCKET_SUFFIX, ENTRY_SUFFIX] {
        let removed = rustix::fs::unlinkat(directory, format!("{node}{suffix}"), AtFlags::empty());
        if let Err(errno) = removed
            && errno != Errno::NOENT
        {
            tracing::warn!(target: "fabricast", %node, %errno, "cannot remove a node's {suffix} file");
        }
    }
}

fn system(what: &'static str) -> impl Fn(Errno) -> FabricError {
    move |errno| FabricError::System { what, source: errno.into() }
}

fn io(what: &'static str) -> impl Fn(std::io::Error) -> FabricError {
    move |source| FabricError::System { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, RuntimeDirectory) {
        let holder = tempfile::tempdir().unwrap();
        let directory = RuntimeDirectory::open(&holder.path().join("run")).unwrap();
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
        assert!(
            matches!(error, FabricError::NameInUse { process: found, .. } if found == process),
            "{error}"
        );
        assert!(directory.entry(&node("a")).unwrap().unwrap().alive);
        drop(claim);
        assert_eq!(directory.entry(&node("a")).unwrap(), None);
        directory.claim(&node("a")).unwrap();
    }

    #[test]
    fn what_a_dead_node_left_is_seen_as_gone_and_removed_by_the_next() {
        let (holder, directory) = directory();
        let dead = Entry { node: node("dead"), process: 1, started_ns: 1 };
        std::fs::write(holder.path().join("run/dead.node"), dead.emit()).unwrap();
        std::fs::write(holder.path().join("run/dead.sock"), b"").unwrap();
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
    fn a_directory_open_to_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let holder = tempfile::tempdir().unwrap();
        let path = holder.path().join("open");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = RuntimeDirectory::open(&path).unwrap_err();
        assert!(error.to_string().contains("FABRICAST_RUNTIME_DIR"), "{error}");
        std::os::unix::fs::symlink(holder.path(), holder.path().join("link")).unwrap();
        assert!(RuntimeDirectory::open(&holder.path().join("link")).is_err());
    }

    #[test]
    fn many_processes_may_list_while_a_node_starts() {
        let (_holder, directory) = directory();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..500 {
                    let entries = directory.entries().unwrap();
                    let is_busy =
                        |it: &NodeEntry| (it.node.as_str(), it.process) == ("busy", std::process::id());
                    assert!(entries.len() <= 1 && entries.iter().all(is_busy), "{entries:?}");
                }
            });
            for _ in 0..100 {
                drop(directory.claim(&node("busy")).unwrap());
            }
        });
    }
}
