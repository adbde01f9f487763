use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use zeroize::Zeroizing;

use super::key::{KeyName, Keys};
use super::parse::{KeyringError, keys_of};
use crate::clock::{Clock as _, SystemClock};
use crate::limits;

/// The bits of a mode that give rights to others than the owner.
const OTHERS: u32 = 0o077;
/// The bits of a mode.
const MODE: u32 = 0o7777;

/// Keys with which nodes prove to each other what they may do. `docs/security.md` describes the lines of a keyring and what is protected.
///
/// A keyring of a file follows it: before each new session the node compares the file with what was read, and reads it again if it
/// differs. Clones share their keys.
///
/// ```
/// use fabricast::{Keyring, Node};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let text = format!("desk read md {}", "0123456789abcdef".repeat(4));
/// let keyring = Keyring::from_text(&text)?;
/// let node = Node::builder().name("quotes")?.keys(keyring.clone());
/// # let node = node.runtime_dir(dir.path());
/// let node = node.open()?;
/// let mut publisher = node.state_publisher::<String>("md/tokyo").open()?;
/// publisher.publish(&"sunny".to_owned())?;
///
/// let stranger = Node::builder().runtime_dir(dir.path()).open()?;
/// assert!(stranger.state_subscriber::<String>("shm:quotes/md/tokyo").open().is_err());
/// let desk = Node::builder().runtime_dir(dir.path()).keys(keyring).open()?;
/// let mut subscriber = desk.state_subscriber::<String>("shm:quotes/md/tokyo").open()?;
/// assert_eq!(subscriber.try_receive()?.map(|sample| sample.value).as_deref(), Some("sunny"));
/// # Ok(())
/// # }
/// ```
///
/// Send and Sync.
#[derive(Clone)]
pub struct Keyring {
    inner: Arc<KeyringInner>,
}

struct KeyringInner {
    /// The file, if it is one.
    path: Option<PathBuf>,
    read: Mutex<ReadKeys>,
}

/// The keys that were read last.
struct ReadKeys {
    keys: Arc<Keys>,
    version: Option<FileVersion>,
    /// What was found last, if it could not be used.
    unusable: Option<UnusableFile>,
    /// Why, until it is reported.
    trouble: Option<KeyringError>,
}

/// What could not be used.
#[derive(Clone, Copy, Debug)]
struct UnusableFile {
    /// `None` if there was none.
    version: Option<FileVersion>,
    /// When to read it again though it is the same, ns; `None` if only another one can be used.
    again_ns: Option<u64>,
}

/// Shows whether a file is the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    len: u64,
    mode: u32,
    owner: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Keyring {
    /// Reads the keyring in this file. Blocks for the file system.
    ///
    /// # Errors
    ///
    /// [`KeyringError`] when the file cannot be read, others than its owner have access to it, it belongs to another user, or a
    /// line is malformed.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, KeyringError> {
        let path = path.into();
        let (keys, version) = read(&path)?;
        let read = ReadKeys { keys: Arc::new(keys), version: Some(version), unusable: None, trouble: None };
        Ok(Self { inner: Arc::new(KeyringInner { path: Some(path), read: Mutex::new(read) }) })
    }

    /// Makes a keyring of lines as in a file, for secrets that come from elsewhere. The caller overwrites the text.
    ///
    /// # Errors
    ///
    /// [`KeyringError`] when a line is malformed, or there is none.
    pub fn from_text(lines: &str) -> Result<Self, KeyringError> {
        let keys = Arc::new(keys_of(lines.as_bytes())?);
        let read = Mutex::new(ReadKeys { keys, version: None, unusable: None, trouble: None });
        Ok(Self { inner: Arc::new(KeyringInner { path: None, read }) })
    }

    /// Returns a random secret for a new line, as 64 hexadecimal digits.
    ///
    /// # Errors
    ///
    /// The operating system has no random numbers.
    pub fn new_secret() -> Result<String, std::io::Error> {
        let secret = Zeroizing::new(crate::random::bytes()?);
        Ok(secret.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Reads the file again if it has changed, as each new session does, and returns whether the keys are new. On an error the
    /// previous keys stay in force. A node compares its sessions with the new keys within a second: those that the keys no longer permit
    /// end, or lose the topics that the keys no longer cover. Blocks for the file system.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn reload(&self) -> Result<bool, KeyringError> {
        let Some(path) = &self.inner.path else { return Ok(false) };
        let mut last = self.inner.read.lock();
        if last.version.is_some() && version_at(path)? == last.version {
            return Ok(false);
        }
        let (keys, version) = read(path)?;
        *last = ReadKeys { keys: Arc::new(keys), version: Some(version), unusable: None, trouble: None };
        Ok(true)
    }

    /// Returns the names of its keys, in the order of their lines.
    pub fn names(&self) -> Vec<KeyName> {
        self.inner.read.lock().keys.all.iter().map(|key| key.name().clone()).collect()
    }

    /// The keys in force. A file that cannot be used is left to [`Self::current`] to report.
    #[cfg(feature = "verbs")]
    pub(crate) fn in_force(&self) -> Arc<Keys> {
        self.refresh();
        Arc::clone(&self.inner.read.lock().keys)
    }

    /// The number of keys that were read last.
    #[cfg(feature = "verbs")]
    pub(crate) fn len(&self) -> usize {
        self.inner.read.lock().keys.all.len()
    }

    /// The keys in force for a new session, and why a changed file cannot be used, once for each change.
    pub(crate) fn current(&self) -> (Arc<Keys>, Option<KeyringError>) {
        self.refresh();
        let mut last = self.inner.read.lock();
        (Arc::clone(&last.keys), last.trouble.take())
    }

    /// Reads the file again if it has changed. What cannot be used is read seldom: a stranger may ask for it at any rate.
    fn refresh(&self) {
        let Some(path) = &self.inner.path else { return };
        let version = version_at(path).ok().flatten();
        let now_ns = SystemClock.monotonic_ns();
        let same = self.inner.read.lock().unusable.filter(|it| it.version == version);
        if same.is_some_and(|it| it.again_ns.is_none_or(|again_ns| now_ns < again_ns)) {
            return;
        }
        if let Err(error) = self.reload() {
            // A shortage of this process, for example, says nothing about the file, and a peer may have caused it.
            let may_pass = matches!(error, KeyringError::Unreadable { .. });
            let again_ns = may_pass.then(|| now_ns.saturating_add(limits::KEYRING_CHECK_NS));
            let mut last = self.inner.read.lock();
            last.unusable = Some(UnusableFile { version, again_ns });
            if !(may_pass && same.is_some()) {
                last.trouble = Some(error);
            }
        }
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Keyring").field("path", &self.inner.path).field("names", &self.names()).finish()
    }
}

impl FileVersion {
    fn of(found: &std::fs::Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            len: found.len(),
            mode: found.mode(),
            owner: found.uid(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

/// The version of the file now; `None` if there is none.
fn version_at(path: &Path) -> Result<Option<FileVersion>, KeyringError> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some(FileVersion::of(&found))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(KeyringError::Unreadable { path: path.to_owned(), source }),
    }
}

/// Reads and checks a file. What is checked is what is read: the file is opened once, and opening it never blocks.
fn read(path: &Path) -> Result<(Keys, FileVersion), KeyringError> {
    let unreadable = |source| KeyringError::Unreadable { path: path.to_owned(), source };
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let found = file.metadata().map_err(unreadable)?;
    let (path, mode, owner) = (path.to_owned(), found.mode() & MODE, found.uid());
    if !found.is_file() {
        return Err(KeyringError::NotAFile { path });
    }
    if mode & OTHERS != 0 {
        return Err(KeyringError::Mode { path, mode });
    }
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(KeyringError::Owner { path, owner });
    }
    if found.len() > limits::KEYRING_LEN_MAX as u64 {
        return Err(unusable(&path, KeyringError::TooLong));
    }
    // All at once: a buffer that grows would leave copies of the secrets behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(limits::KEYRING_LEN_MAX + 1));
    let mut file = file.take(limits::KEYRING_LEN_MAX as u64 + 1);
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    let keys = keys_of(&bytes).map_err(|error| unusable(&path, error))?;
    Ok((keys, FileVersion::of(&found)))
}

/// Says in which file this was found.
fn unusable(path: &Path, error: KeyringError) -> KeyringError {
    KeyringError::Content { path: path.to_owned(), source: Box::new(error) }
}
