//! Repository files: memory that outlives its process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::file_limit::check_file_limit;
use crate::clock::{Clock, SystemClock};

/// The magic number of tmpfs (`statfs(2)`).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
/// Attempts to open a file that is replaced meanwhile.
const ATTEMPTS_MAX: u32 = 8;
/// How long a reader that asks whether a file is locked has a lock of its own, at most.
const READER_PAUSE: Duration = Duration::from_millis(1);

/// Why a repository file cannot be used: see [`PublisherBuilder::warm`](crate::PublisherBuilder::warm) and
/// [`RepositoryFile`](crate::RepositoryFile).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepositoryFileError {
    /// Another publisher has the file.
    #[error("{path} is in use by {holder}: end that publisher first, or choose another file", path = .path.display())]
    InUse {
        /// The file.
        path: PathBuf,
        /// The process that has it, as far as is known.
        holder: FileHolder,
    },
    /// A publisher's file is not in a tmpfs.
    #[error(
        "{path} is not in a tmpfs, so that publishing would wait for a disk: choose a file in /dev/shm or in another tmpfs",
        path = .path.display()
    )]
    NotTmpfs {
        /// The file.
        path: PathBuf,
    },
    /// The file may be changed by others.
    #[error("{path} is not accepted: {why}", path = .path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Why, and what to do.
        why: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {what} {path}{}", .len.map_or_else(String::new, |len| format!(" ({len} bytes)")), path = .path.display())]
    System {
        /// What was attempted.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The bytes that it needs, if they were refused.
        len: Option<u64>,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file is not a repository, or one of another layout version, or its header is damaged.
    #[error(
        "{path} holds no repository that this program can use: choose another file, or remove it if a publisher has made it",
        path = .path.display()
    )]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with its header.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file has another length than its header says, or is shorter than a header.
    #[error(
        "{path} has {found} bytes instead of {expected}: it was cut or extended, or is not a repository, so nothing of it is \
         read: choose another file, or remove it if a publisher has made it",
        path = .path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// The length by its header, bytes.
        expected: u64,
        /// Its length, bytes.
        found: u64,
    },
    /// The file holds another repository than the program declares.
    #[error(
        "{path} holds {found}, and this program declares {expected}: remove the file to begin anew, declare the same, or choose another \
         file",
        path = .path.display()
    )]
    Differs {
        /// The file.
        path: PathBuf,
        /// What the file holds.
        found: String,
        /// What the program declares.
        expected: String,
    },
    /// The content of the file is not what a publisher leaves, whenever it ends.
    #[error(
        "{path} is damaged ({what}, at byte {offset}), so that publishing cannot go on: read what is left with `fabricast tail file:PATH` \
         or `get file:PATH`, then remove it, or choose another file",
        path = .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is damaged.
        what: &'static str,
        /// Where.
        offset: usize,
    },
    /// The repository is larger than the program allows.
    #[error("the repository in {path} has {len} bytes, over the limit of {max}: raise region_len_max", path = .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A subscriber of the repository could not be opened.
    #[error("{path} cannot be read", path = .path.display())]
    Unread {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Only one of the two files of a feed exists.
    #[error("{missing} is missing, the other file of the feed in {path}: remove {path} to begin anew, or choose another file",
        path = .path.display(), missing = .missing.display())]
    Half {
        /// The file that exists.
        path: PathBuf,
        /// The one that does not.
        missing: PathBuf,
    },
}

/// The process that has a locked file: a repository, or the entry of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileHolder {
    /// This process.
    Process(u64),
    /// A process that this one has forked, after it has ended itself; or this one, in another container.
    ChildOf(u64),
    /// Unknown: the file is just being made.
    Unknown,
}

impl FileHolder {
    /// Returns who has a file that is locked, given the process that it names, 0 if none.
    pub(crate) fn of(process: u64) -> Self {
        let number = i32::try_from(process).ok().and_then(Pid::from_raw);
        match number.map(has_ended) {
            None => Self::Unknown,
            Some(true) => Self::ChildOf(process),
            Some(false) => Self::Process(process),
        }
    }
}

/// Whether a process has ended, also one for whose end its parent has not waited yet. False if that cannot be found out.
fn has_ended(process: Pid) -> bool {
    match rustix::process::pidfd_open(process, PidfdFlags::empty()) {
        Ok(descriptor) => {
            let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
            rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
        }
        // Linux before 5.3, and some sandboxes, have no such descriptors.
        Err(_) => rustix::process::test_kill_process(process) == Err(Errno::SRCH),
    }
}

impl std::fmt::Display for FileHolder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process(process) => write!(out, "process {process}"),
            Self::ChildOf(process) => {
                write!(
                    out,
                    "process {process} of another container, or a process that it has forked before it ended (fuser names it)"
                )
            }
            Self::Unknown => out.write_str("another process"),
        }
    }
}

/// A file of this process in a tmpfs, which it alone may write. Dropping it lets another process have it.
///
/// The lock is an flock(2): that of a killed process is free at once. A process forked without exec has it, too, and would keep it beyond
/// the end of this one; [`Self::release`] frees it all the same.
#[derive(Debug)]
pub(crate) struct WarmFile {
    file: OwnedFd,
    path: PathBuf,
    len: u64,
}

/// The outcome of opening a file to write it.
#[derive(Debug)]
pub(crate) enum Opened {
    /// This process has it.
    Kept(WarmFile),
    /// There is none.
    Missing,
    /// Another process has it.
    Locked(FileBytes),
}

/// A file that is only read.
#[derive(Debug)]
pub(crate) struct FileBytes {
    file: OwnedFd,
    path: PathBuf,
    len: u64,
}

impl WarmFile {
    /// Opens the file at this path, and locks it.
    pub(crate) fn open(path: &Path) -> Result<Opened, RepositoryFileError> {
        let system = |what| system(what, path);
        for _ in 0..ATTEMPTS_MAX {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let file = match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(file) => file,
                Err(Errno::NOENT) => return Ok(Opened::Missing),
                Err(Errno::LOOP) => return Err(unfit(path, "it is a symbolic link: name the file itself")),
                Err(errno) => return Err(system("open")(errno)),
            };
            let stat = rustix::fs::fstat(&file).map_err(system("examine"))?;
            check_owner(path, &stat)?;
            check_tmpfs(path, &file)?;
            let len = len_of(&stat);
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    // A reader that asks whether it is locked has a shared lock for a moment.
                    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err() {
                        return Ok(Opened::Locked(FileBytes { file, path: path.to_owned(), len }));
                    }
                    SystemClock.pause(READER_PAUSE);
                    continue;
                }
                Err(errno) => return Err(system("lock")(errno)),
            }
            // Otherwise it was removed, and perhaps made anew, before it was locked.
            let is_same = |now: Stat| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino);
            if rustix::fs::lstat(path).is_ok_and(is_same) {
                return Ok(Opened::Kept(Self { file, path: path.to_owned(), len }));
            }
        }
        Err(system("open")(Errno::BUSY))
    }

    /// Makes a file of this length, of zeros, with all its pages. It has no name before [`Self::link`], so that nothing is left of one that
    /// is never finished.
    pub(crate) fn create(path: &Path, len: u64) -> Result<Self, RepositoryFileError> {
        let system = |what| system(what, path);
        let parent =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::open(parent, directory, Mode::empty()).map_err(system("find the directory of"))?;
        check_tmpfs(path, &directory)?;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&directory, ".", flags, Mode::RUSR | Mode::WUSR).map_err(system("create"))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(system("lock"))?;
        let created = Self { file, path: path.to_owned(), len };
        created.reserve()?;
        Ok(created)
    }

    /// Has every page of the file present: a tmpfs that is full is an error here, and not the end of the process at a store.
    pub(crate) fn reserve(&self) -> Result<(), RepositoryFileError> {
        let allocate = || rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.len);
        let allocated = check_file_limit(self.len).and_then(|()| rustix::io::retry_on_intr(allocate));
        allocated.map_err(|error| RepositoryFileError::System {
            what: "reserve the memory of",
            path: self.path.clone(),
            len: Some(self.len),
            source: error.into(),
        })
    }

    /// Gives the file its name. A process that opens it from then on finds it complete.
    pub(crate) fn link(&self) -> Result<(), RepositoryFileError> {
        let linked = rustix::fs::linkat(CWD, own_name(&self.file), CWD, &self.path, AtFlags::SYMLINK_FOLLOW);
        linked.map_err(|errno| match errno {
            // Another publisher has been faster.
            Errno::EXIST => {
                RepositoryFileError::InUse { path: self.path.clone(), holder: FileHolder::Unknown }
            }
            errno => system("create", &self.path)(errno),
        })
    }

    /// Removes the name of the file.
    pub(crate) fn unlink(&self) -> Result<(), RepositoryFileError> {
        rustix::fs::unlink(&self.path).map_err(system("remove", &self.path))
    }

    /// Lets another process have the file, also if a forked process has the descriptor.
    pub(crate) fn release(&self) {
        if let Err(errno) = rustix::fs::flock(&self.file, FlockOperation::Unlock) {
            tracing::debug!(target: "fabricast", %errno, "cannot unlock a repository file");
        }
    }

    /// Returns another descriptor of the file, for peers: it permits reading only.
    pub(super) fn for_readers(&self) -> Result<OwnedFd, RepositoryFileError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(own_name(&self.file), flags, Mode::empty());
        opened.map_err(system("open for subscribers", &self.path))
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its length, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills the buffer with the bytes at this offset.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), RepositoryFileError> {
        read_at(&self.file, offset, into).map_err(|source| failed("read", &self.path, source))
    }

    /// Writes these bytes at this offset.
    pub(crate) fn write(&self, mut offset: u64, mut bytes: &[u8]) -> Result<(), RepositoryFileError> {
        while !bytes.is_empty() {
            let write = || rustix::io::pwrite(&self.file, bytes, offset);
            let written = rustix::io::retry_on_intr(write).map_err(system("write", &self.path))?;
            bytes = bytes.get(written..).unwrap_or_default();
            offset += written as u64;
        }
        Ok(())
    }
}

impl Drop for WarmFile {
    fn drop(&mut self) {
        // A process that is being forked at the moment has the descriptor, and the lock with it.
        self.release();
    }
}

impl AsFd for WarmFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl FileBytes {
    /// Opens the file at this path, in any file system, to read it.
    pub(crate) fn open(path: &Path) -> Result<Self, RepositoryFileError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(system("open", path))?;
        let stat = rustix::fs::fstat(&file).map_err(system("examine", path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(unfit(path, "it is not a regular file: name one that a publisher has made"));
        }
        Ok(Self { file, path: path.to_owned(), len: len_of(&stat) })
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its length when it was opened, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills the buffer with the bytes at this offset.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), RepositoryFileError> {
        read_at(&self.file, offset, into).map_err(|source| failed("read", &self.path, source))
    }

    /// Returns whether a publisher has the file. Briefly keeps one that is being opened from it, which then tries again.
    pub(crate) fn is_kept(&self) -> bool {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                // It cannot fail: the lock is held.
                let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
                false
            }
            // A file system without such locks has no publishers.
            Err(errno) => errno == Errno::WOULDBLOCK,
        }
    }
}

/// The name of an open file, by which it can be linked and opened again.
fn own_name(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn len_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Checks that only this user can write, and cut, the file.
fn check_owner(path: &Path, stat: &Stat) -> Result<(), RepositoryFileError> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(unfit(path, "it is not a regular file: choose another name"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(unfit(path, "it belongs to another user, who could cut it: choose another file"));
    }
    if Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
        return Err(unfit(
            path,
            "other users may write it: take that away with chmod go-w, or choose another file",
        ));
    }
    Ok(())
}

fn check_tmpfs(path: &Path, file: &OwnedFd) -> Result<(), RepositoryFileError> {
    match is_tmpfs(file.as_fd()).map_err(system("find the file system of", path))? {
        true => Ok(()),
        false => Err(RepositoryFileError::NotTmpfs { path: path.to_owned() }),
    }
}

/// Whether the file is in a tmpfs.
pub(super) fn is_tmpfs(file: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(rustix::fs::fstatfs(file)?.f_type == TMPFS_MAGIC)
}

fn read_at(file: &OwnedFd, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *into, offset))?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        into = into.split_at_mut(read).1;
        offset += read as u64;
    }
    Ok(())
}

fn unfit(path: &Path, why: &'static str) -> RepositoryFileError {
    RepositoryFileError::Unfit { path: path.to_owned(), why }
}

fn failed(what: &'static str, path: &Path, source: io::Error) -> RepositoryFileError {
    RepositoryFileError::System { what, path: path.to_owned(), len: None, source }
}

fn system(what: &'static str, path: &Path) -> impl Fn(Errno) -> RepositoryFileError {
    move |errno| failed(what, path, errno.into())
}
