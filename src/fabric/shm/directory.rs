//! The runtime directory, where the nodes of one user on one host discover each other.
//!
//! A node has two files in it: `NAME.node`, its entry, which its process keeps locked while it runs,
//! and `NAME.sock`, its Unix socket, which is `NAME.bind` until it listens with its final mode. The lock, not the file, shows that the
//! node is alive; the next node that starts removes the files of dead nodes.
//!
//! The directory is `FABRICAST_RUNTIME_DIR`, else `fabricast` in `XDG_RUNTIME_DIR`, else
//! `/tmp/fabricast-UID`. A node that claims a name creates it if it is missing. A directory that others than its owner can write is
//! refused, and so is one of another user, unless it was named explicitly and its owner has opened it to a group of this process: see
//! [`RuntimeDirectory::open_to`]. Root may read any that it names explicitly. Other content is ignored:
//! an entry is a regular file, and opening it never blocks.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::entry::{ENTRY_LEN, NameEntry};
use crate::clock::{Clock, SystemClock, saturate};
use crate::fabric::{Address, FabricError, NodeListing};
use crate::id::NodeName;
use crate::memory::{FileHolder, check_file_limit};

/// The environment variable with the runtime directory.
const VARIABLE: &str = "FABRICAST_RUNTIME_DIR";
/// The suffix of an entry.
const ENTRY_SUFFIX: &str = ".node";
/// The suffix of a socket.
const SOCKET_SUFFIX: &str = ".sock";
/// The suffix of a socket that does not listen yet. Not longer, so that both paths fit.
const BINDING_SUFFIX: &str = ".bind";
/// Attempts to lock an entry while another process holds an exclusive lock: its owner, or briefly a node that sweeps.
const LOCK_ATTEMPTS: u32 = 20;
/// Limit on waiting for processes that list nodes: each holds a shared lock briefly, or for long if it is stopped.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two attempts to lock an entry.
const LOCK_PAUSE: Duration = Duration::from_millis(2);
/// Flags for opening an entry: symbolic links are not followed, FIFOs do not block, and no terminal becomes controlling.
const ENTRY_FLAGS: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// Longest path of a Unix socket, bytes (`sun_path` of unix(7), less the final zero).
const SOCKET_PATH_LEN_MAX: usize = 107;

/// The runtime directory, which may not exist until a node claims a name.
#[derive(Debug)]
pub(crate) struct RuntimeDirectory {
    path: PathBuf,
    /// Whether the user named it; otherwise it is the default, in a directory where any user may create it.
    is_chosen: bool,
    /// The group whose members may connect to the nodes that claim a name.
    group: Option<Gid>,
    /// The open directory, once found.
    file: OnceLock<OwnedFd>,
}

/// A claimed node name. Dropping it releases the name.
#[derive(Debug)]
pub(super) struct Claim {
    node: NodeName,
    directory: OwnedFd,
    /// The path to bind the node's socket at.
    pub(super) binding_address: PathBuf,
    /// The group whose members may connect to it.
    pub(super) group: Option<Gid>,
    /// Holds the lock.
    entry: File,
}

/// Returns the runtime directory of nodes that are given none: that of the environment (`FABRICAST_RUNTIME_DIR`, or `fabricast` in
/// `XDG_RUNTIME_DIR`), or else `/tmp/fabricast-UID`. It need not be there. Allocates; does not block.
///
/// ```
/// println!("nodes meet in {}", fabricast::default_runtime_dir().display());
/// ```
pub fn default_runtime_dir() -> PathBuf {
    let of_user = || format!("/tmp/fabricast-{}", rustix::process::getuid().as_raw()).into();
    of_environment().unwrap_or_else(of_user)
}

fn of_environment() -> Option<PathBuf> {
    let of = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    of(VARIABLE).or_else(|| of("XDG_RUNTIME_DIR").map(|base| base.join("fabricast")))
}

impl RuntimeDirectory {
    /// Returns the directory that the environment names.
    pub(crate) fn from_environment() -> Result<Self, FabricError> {
        let is_chosen = of_environment().is_some();
        Self { path: default_runtime_dir(), is_chosen, group: None, file: OnceLock::new() }.checked()
    }

    /// Opens this directory. An error if it exists and is unusable, or cannot be created.
    pub(crate) fn open(path: &Path) -> Result<Self, FabricError> {
        Self { path: path.to_owned(), is_chosen: true, group: None, file: OnceLock::new() }.checked()
    }

    /// Opens the directory and the nodes that claim a name here to the members of this group: they find these nodes and connect to them.
    pub(crate) fn open_to(self, group: Option<u32>) -> Self {
        Self { group: group.map(Gid::from_raw), ..self }
    }

    fn checked(self) -> Result<Self, FabricError> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if self.find()?.is_none() && parent.is_some_and(|parent| !parent.is_dir()) {
            return Err(self.unusable(&"its parent directory does not exist"));
        }
        Ok(self)
    }

    /// The directory, if it exists.
    fn find(&self) -> Result<Option<&OwnedFd>, FabricError> {
        if let Some(file) = self.file.get() {
            return Ok(Some(file));
        }
        Ok(self.open_checked()?.map(|file| self.file.get_or_init(|| file)))
    }

    /// Opens the directory that has the name now, if there is one. One of another user must have been named explicitly: any user may have
    /// created this user's default directory.
    fn open_checked(&self) -> Result<Option<OwnedFd>, FabricError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let file = match rustix::fs::open(&self.path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                return Err(FabricError::system("open the runtime directory")(errno));
            }
            Err(errno) => {
                let link = std::fs::read_link(&self.path);
                let why = link
                    .map(|to| format!("it is a symbolic link to {}, which is not followed", to.display()));
                return Err(self.unusable(&why.unwrap_or_else(|_| errno.to_string())));
            }
        };
        let stat = rustix::fs::fstat(&file).map_err(|errno| self.unusable(&errno))?;
        let user = rustix::process::geteuid();
        let may_read = || self.is_chosen && (user.is_root() || is_open_to_this_process(&stat));
        if stat.st_uid != user.as_raw() && !may_read() {
            let advice = ", who can open it to a group of this user to read (--shm-group)";
            let advice = if self.is_chosen { advice } else { "" };
            return Err(self.unusable(&format!("it belongs to user {}{advice}", stat.st_uid)));
        }
        if stat.st_mode & 0o022 != 0 {
            return Err(self.unusable(&"other users may write to it"));
        }
        Ok(Some(file))
    }

    /// The directory, created if missing.
    fn find_or_make(&self) -> Result<&OwnedFd, FabricError> {
        match rustix::fs::mkdir(&self.path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(self.unusable(&errno)),
        }
        let directory = self.find()?.ok_or_else(|| self.unusable(&Errno::NOENT))?;
        let stat = rustix::fs::fstat(directory).map_err(|errno| self.unusable(&errno))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(self.unusable(&format!("it belongs to user {}", stat.st_uid)));
        }
        if let Some(group) = self.group {
            self.open_directory_to(directory, &stat, group)?;
        }
        Ok(directory)
    }

    /// Lets the members of this group read the directory. Which nodes they can connect to, the sockets decide.
    fn open_directory_to(&self, directory: &OwnedFd, stat: &Stat, group: Gid) -> Result<(), FabricError> {
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.contains(Mode::RGRP | Mode::XGRP) {
            let other = Gid::from_raw(stat.st_gid);
            let why = format!("it is open to group {other}, and a node in it is to be open to group {group}");
            return if other == group { Ok(()) } else { Err(self.unusable(&why)) };
        }
        if !holds_only_nodes(directory)? {
            let why = "it holds other files, which the group could reach then: choose an empty directory, or open this one yourself \
                       (chgrp, chmod g+rx)";
            return Err(self.unusable(&why));
        }
        let given = rustix::fs::fchown(directory, None, Some(group));
        given.map_err(|errno| self.unusable(&not_given(group, errno)))?;
        let mode = mode | Mode::RGRP | Mode::XGRP;
        rustix::fs::fchmod(directory, mode).map_err(|errno| self.unusable(&errno))
    }

    fn unusable(&self, why: &dyn std::fmt::Display) -> FabricError {
        FabricError::RuntimeDirectory { path: self.path.display().to_string(), why: why.to_string() }
    }

    /// Returns what converts a refusal to do this with a node's file to an error.
    fn refused<E: Into<io::Error>>(&self, what: &'static str, file: &str) -> impl Fn(E) -> FabricError {
        move |refusal| {
            let path = self.path.join(file).display().to_string();
            FabricError::NodeFile { what, path, source: refusal.into() }
        }
    }

    /// Claims a node's name, and removes the files of dead nodes.
    pub(super) fn claim(&self, node: &NodeName) -> Result<Claim, FabricError> {
        let directory = self.find_or_make()?;
        sweep(directory);
        let name = format!("{node}{ENTRY_SUFFIX}");
        check_file_limit(ENTRY_LEN as u64).map_err(self.refused("write", &name))?;
        match self.claim_file(directory, node, &name) {
            // The process that took it may have ended during the last attempt.
            Err(FabricError::NameHeld { .. }) => self.claim_file(directory, node, &name),
            outcome => outcome,
        }
    }

    /// Claims a node's name by the file of this name.
    fn claim_file(&self, directory: &OwnedFd, node: &NodeName, name: &str) -> Result<Claim, FabricError> {
        let deadline_ns = SystemClock.monotonic_ns().saturating_add(saturate(LOCK_TIMEOUT));
        let mut attempts = 0;
        while attempts < LOCK_ATTEMPTS {
            let entry = open_entry(directory, name, OFlags::RDWR | OFlags::CREATE)
                .and_then(|entry| entry.ok_or_else(|| io::Error::other("not a regular file: remove it")))
                .map_err(self.refused("open", name))?;
            if let Err(errno) = rustix::fs::flock(&entry, FlockOperation::NonBlockingLockExclusive) {
                if !matches!(errno, Errno::WOULDBLOCK | Errno::INTR) {
                    return Err(self.refused("lock", name)(errno));
                }
                if rustix::fs::flock(&entry, FlockOperation::NonBlockingLockShared).is_err() {
                    attempts += 1;
                } else if SystemClock.monotonic_ns() >= deadline_ns {
                    // No process owns the name: its owner's lock would have excluded this one.
                    let path = self.path.join(name).display().to_string();
                    return Err(FabricError::NameLocked { node: node.clone(), path });
                }
                drop(entry);
                SystemClock.pause(LOCK_PAUSE);
                continue;
            }
            if is_named(directory, &entry, name) {
                if let Err(error) = self.announce(directory, node, &entry) {
                    // An entry without a node, such as an empty one in a file system that is full.
                    if is_named(directory, &entry, name) {
                        let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
                    }
                    return Err(error);
                }
                return Ok(Claim {
                    node: node.clone(),
                    directory: directory
                        .try_clone()
                        .map_err(FabricError::system("share the runtime directory"))?,
                    binding_address: self.address_of(node, BINDING_SUFFIX)?,
                    group: self.group,
                    entry,
                });
            }
            attempts += 1;
        }
        let process = self.entry(node).ok().flatten().map_or(0, |entry| entry.process);
        let node = node.clone();
        if matches!(FileHolder::of(process.into()), FileHolder::ChildOf(_)) {
            let path = self.path.join(name).display().to_string();
            return Err(FabricError::NameHeld { node, process, path });
        }
        Err(FabricError::NameInUse { node, process })
    }

    /// Writes the entry of a node, and removes what a dead node of that name has left of its socket.
    fn announce(&self, directory: &OwnedFd, node: &NodeName, mut entry: &File) -> Result<(), FabricError> {
        let process = std::process::id();
        let content = NameEntry { node: node.clone(), process, started_ns: SystemClock.realtime_ns() };
        entry
            .set_len(0)
            .and_then(|()| entry.write_all(&content.emit()))
            .map_err(self.refused("write", &format!("{node}{ENTRY_SUFFIX}")))?;
        // One that a dead node has left may be open to another group.
        let given = self.group.map_or(Ok(()), |group| rustix::fs::fchown(entry, None, Some(group)));
        let mode = Mode::RUSR | Mode::WUSR | if self.group.is_some() { Mode::RGRP } else { Mode::empty() };
        given
            .and_then(|()| rustix::fs::fchmod(entry, mode))
            .map_err(self.refused("set the group of", &format!("{node}{ENTRY_SUFFIX}")))?;
        for suffix in [SOCKET_SUFFIX, BINDING_SUFFIX] {
            let socket = format!("{node}{suffix}");
            match rustix::fs::unlinkat(directory, &socket, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.refused("remove", &socket)(errno)),
            }
        }
        Ok(())
    }

    /// The path to connect to the node's socket. An error if the runtime directory is missing.
    pub(super) fn socket_address(&self, node: &NodeName) -> Result<PathBuf, FabricError> {
        self.address_of(node, SOCKET_SUFFIX)
    }

    /// The path of a node's file as the address of a socket: through the open directory if the direct path is too long. That is for a
    /// directory that is checked each time: the one that was checked first may be gone since, or there may have been none, and then another
    /// user may have made one of that name.
    fn address_of(&self, node: &NodeName, suffix: &str) -> Result<PathBuf, FabricError> {
        let name = format!("{node}{suffix}");
        let direct = self.path.join(&name);
        let no_node = || FabricError::NoSuchNode { address: Address::shm(node) };
        if direct.as_os_str().as_bytes().len() <= SOCKET_PATH_LEN_MAX {
            return self.open_checked()?.map(|_| direct).ok_or_else(no_node);
        }
        let directory = self.find()?.ok_or_else(no_node)?;
        Ok(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()).into())
    }

    /// All readable entries, by name.
    pub(super) fn entries(&self) -> Result<Vec<NodeListing>, FabricError> {
        let Some(directory) = self.find()? else { return Ok(Vec::new()) };
        let mut entries = Vec::new();
        for node in names(directory)? {
            match self.entry(&node) {
                Ok(entry) => entries.extend(entry),
                // Without descriptors no entry can be read, which does not mean that none exist.
                Err(error) if error.is_shortage() => return Err(error),
                Err(_) => {}
            }
        }
        entries.sort_by(|one: &NodeListing, other| one.node.cmp(&other.node));
        Ok(entries)
    }

    /// The entry of this node, if it exists and is readable.
    pub(super) fn entry(&self, node: &NodeName) -> Result<Option<NodeListing>, FabricError> {
        let Some(directory) = self.find()? else { return Ok(None) };
        let name = format!("{node}{ENTRY_SUFFIX}");
        let file = match open_entry(directory, &name, OFlags::RDONLY) {
            Ok(Some(file)) => file,
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(self.refused("open", &name)(error));
            }
            Ok(None) | Err(_) => return Ok(None),
        };
        let mut bytes = Vec::with_capacity(ENTRY_LEN + 1);
        let read = (&file).take(ENTRY_LEN as u64 + 1).read_to_end(&mut bytes);
        read.map_err(self.refused("read", &name))?;
        // The lock is free if the process is dead; closing the file releases it again.
        let alive = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err();
        let entry = NameEntry::parse(&bytes).filter(|entry| entry.node == *node);
        Ok(entry.map(|it| NodeListing {
            node: it.node,
            process: it.process,
            started_ns: it.started_ns,
            alive,
        }))
    }
}

/// Whether the directory of another user is open to a group of this process, so that this was meant.
fn is_open_to_this_process(stat: &Stat) -> bool {
    let group = Gid::from_raw(stat.st_gid);
    let is_member = || {
        let own = rustix::process::getgroups().unwrap_or_default();
        rustix::process::getegid() == group || own.contains(&group)
    };
    Mode::from_raw_mode(stat.st_mode).contains(Mode::RGRP | Mode::XGRP) && is_member()
}

/// Why something cannot be given to a group.
fn not_given(group: Gid, errno: Errno) -> String {
    match errno {
        Errno::PERM => {
            format!("this user does not belong to group {group}, and so cannot open it to that group")
        }
        errno => format!("it cannot be opened to group {group}: {errno}"),
    }
}

/// Whether nothing is there but files of nodes.
fn holds_only_nodes(directory: &OwnedFd) -> Result<bool, FabricError> {
    let listed = FabricError::system("list the runtime directory");
    let mut items = rustix::fs::Dir::read_from(directory).map_err(&listed)?;
    items.try_fold(true, |only_nodes, item| {
        let item = item.map_err(&listed)?;
        let name = item.file_name().to_bytes();
        let suffixes = [ENTRY_SUFFIX, SOCKET_SUFFIX, BINDING_SUFFIX];
        let is_of_node = suffixes.iter().any(|suffix| name.ends_with(suffix.as_bytes()));
        Ok(only_nodes && (is_of_node || name == b"." || name == b".."))
    })
}

/// The names of all entries.
fn names(directory: &OwnedFd) -> Result<Vec<NodeName>, FabricError> {
    let listing =
        rustix::fs::Dir::read_from(directory).map_err(FabricError::system("list the runtime directory"))?;
    let names = listing.filter_map(|item| {
        let item = item.ok()?;
        item.file_name().to_str().ok()?.strip_suffix(ENTRY_SUFFIX)?.parse().ok()
    });
    Ok(names.collect())
}

/// Removes the files of dead nodes. A file that cannot be removed stays and does no harm.
fn sweep(directory: &OwnedFd) {
    for node in names(directory).unwrap_or_default() {
        let name = format!("{node}{ENTRY_SUFFIX}");
        let Ok(Some(file)) = open_entry(directory, &name, OFlags::RDONLY) else { continue };
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if locked && is_named(directory, &file, &name) {
            remove(directory, &node);
        }
    }
}

/// Opens an entry. `None` if it is not a regular file: reading anything else may block for ever.
fn open_entry(directory: &OwnedFd, name: &str, flags: OFlags) -> io::Result<Option<File>> {
    match rustix::fs::openat(directory, name, flags | ENTRY_FLAGS, Mode::RUSR | Mode::WUSR).map(File::from) {
        Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
        Ok(_) | Err(Errno::ISDIR | Errno::NXIO | Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether this open file still has that name: its owner may have removed it meanwhile.
fn is_named(directory: &OwnedFd, file: &File, name: &str) -> bool {
    let named = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    named.is_ok_and(|named| file.metadata().is_ok_and(|own| own.ino() == named.st_ino))
}

impl Claim {
    /// Gives the socket, which was bound and listens, the name that peers connect to. Fails if another has it: a node that was stopped
    /// meanwhile takes nothing from its successor.
    pub(super) fn show_socket(&self) -> Result<(), Errno> {
        let [bound, shown] = [BINDING_SUFFIX, SOCKET_SUFFIX].map(|suffix| format!("{}{suffix}", self.node));
        rustix::fs::linkat(&self.directory, &bound, &self.directory, &shown, AtFlags::empty())?;
        rustix::fs::unlinkat(&self.directory, &bound, AtFlags::empty())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // If someone has removed the entry, another node may have claimed the name since, and has files of its own there.
        if is_named(&self.directory, &self.entry, &format!("{}{ENTRY_SUFFIX}", self.node)) {
            remove(&self.directory, &self.node);
        }
    }
}

/// Removes a node's files; the caller must hold its lock.
fn remove(directory: &OwnedFd, node: &NodeName) {
    for suffix in [SOCKET_SUFFIX, BINDING_SUFFIX, ENTRY_SUFFIX] {
        let removed = rustix::fs::unlinkat(directory, format!("{node}{suffix}"), AtFlags::empty());
        if let Err(errno) = removed
            && errno != Errno::NOENT
        {
            tracing::warn!(target: "fabricast", %node, %errno, "cannot remove a node's {suffix} file");
        }
    }
}

#[cfg(test)]
mod tests;
