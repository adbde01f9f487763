use std::fmt;
use std::hash::Hash;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    AnySubscriber, Attachment, FeedSubscriber, Granted, LogSubscriber, Source, StateSubscriber,
    SubscriberHandle, Subscription, TableSubscriber, TopicEnd, Watched,
};
use crate::clock::SystemClock;
use crate::fabric::{ByteRange, Completion, FabricError, RemoteRead};
use crate::id::{Delivery, Epoch, Incarnation, Kind, Sequence, TopicName};
use crate::layout::WORD;
use crate::layout::description::{Described, Description};
use crate::layout::header::HOT_SEQUENCE;
use crate::limits;
use crate::memory::{FileBytes, Protection, Region, RepositoryFileError};
use crate::payload::{Payload, Schema};
use crate::repository::feed::FeedRecord;
use crate::repository::log::LogStart;
use crate::repository::{GrantedAt, SubscriberStats};
use crate::sync::atomic::{AtomicBool, Ordering};

/// The repository of a [warm](crate::PublisherBuilder::warm) publisher, read from its file: without the publisher, after it has ended, or
/// beside it.
///
/// Its subscribers receive the same samples as those of the publisher's node, with checks of each, and then the end, if no publisher has
/// the file. They copy what they read with system calls: the file may be in any file system, and one that is cut is an error. Values do not
/// expire.
///
/// ```
/// use fabricast::{LogStart, Node, ReceiveError, RepositoryFile};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let memory = tempfile::tempdir_in("/dev/shm")?;
/// # let path = memory.path().join("trades");
/// let node = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// let mut trades = node.log_publisher::<f64>("EURUSD").warm(&path).open()?;
/// trades.publish(&1.0841)?;
/// // Or its process is killed.
/// drop(trades);
///
/// let file = RepositoryFile::open(&path)?;
/// assert_eq!((file.topic().as_str(), file.is_live()), ("EURUSD", false));
/// let mut records = file.log_subscriber::<f64>(LogStart::Earliest)?;
/// assert_eq!(records.try_receive()?.map(|sample| sample.value), Some(1.0841));
/// assert!(matches!(records.try_receive(), Err(ReceiveError::Ended { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RepositoryFile {
    bytes: Arc<FileBytes>,
    described: Described,
    samples: Vec<String>,
    region_len_max: usize,
}

impl RepositoryFile {
    /// Opens the file at this path, and checks its header.
    ///
    /// # Errors
    ///
    /// [`RepositoryFileError`] when the file cannot be read, is not a repository file, was cut, or is damaged where it describes itself.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RepositoryFileError> {
        let bytes = FileBytes::open(path.as_ref())?;
        let described = Described::read(bytes.path(), bytes.len(), |offset, into| bytes.read(offset, into))?;
        let (samples, region_len_max) = (Vec::new(), limits::SUBSCRIBED_LEN_MAX_DEFAULT);
        Ok(Self { bytes: Arc::new(bytes), described, samples, region_len_max })
    }

    /// Gives an example value for types that validate their values: see
    /// [`PublisherBuilder::sample`](crate::PublisherBuilder::sample).
    pub fn sample(mut self, sample: impl Into<String>) -> Self {
        self.samples.push(sample.into());
        self
    }

    /// Sets the largest repository to read, in bytes; each subscriber allocates as much. The default is 256 MiB
    /// ([`limits::SUBSCRIBED_LEN_MAX_DEFAULT`]).
    pub fn region_len_max(self, region_len_max: usize) -> Self {
        Self { region_len_max, ..self }
    }

    /// Returns the topic's name.
    pub fn topic(&self) -> &TopicName {
        &self.described.description.name
    }

    /// Returns the kind of the topic.
    pub fn kind(&self) -> Kind {
        self.described.geometry.kind()
    }

    /// Returns the epoch of the topic.
    pub fn epoch(&self) -> Epoch {
        self.described.header.epoch
    }

    /// Returns the schema of the topic's values.
    pub fn schema(&self) -> &Schema {
        &self.described.schema
    }

    /// Returns whether a publisher has the file.
    pub fn is_live(&self) -> bool {
        self.bytes.is_kept()
    }

    /// Returns a subscriber of the topic, of any kind; of a log, it begins here. Allocates as much as the repository has.
    ///
    /// # Errors
    ///
    /// [`RepositoryFileError`] when the topic's values are not of this type, the repository is too large, or the file cannot be read.
    pub fn any_subscriber<T: Payload>(
        &self,
        start: LogStart,
    ) -> Result<AnySubscriber<T>, RepositoryFileError> {
        self.subscriber(None, start)
    }

    /// Returns a subscriber of the state in the file: see [`Self::any_subscriber`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::any_subscriber`]; also when the topic is not a state.
    pub fn state_subscriber<T: Payload>(&self) -> Result<StateSubscriber<T>, RepositoryFileError> {
        self.subscriber(Some(Kind::State), ())
    }

    /// Returns a subscriber of the log in the file: see [`Self::any_subscriber`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::any_subscriber`]; also when the topic is not a log.
    pub fn log_subscriber<T: Payload>(
        &self,
        start: LogStart,
    ) -> Result<LogSubscriber<T>, RepositoryFileError> {
        self.subscriber(Some(Kind::Log), start)
    }

    /// Returns a subscriber of the table in the file: see [`Self::any_subscriber`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::any_subscriber`]; also when the topic is not a table.
    pub fn table_subscriber<K, V>(&self) -> Result<TableSubscriber<K, V>, RepositoryFileError>
    where
        K: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    {
        self.subscriber(Some(Kind::Table), ())
    }

    /// Returns a subscriber of the feed whose log is in this file, and whose table is in the one with `.table` after its name. It begins
    /// with the values of all keys as of one event.
    ///
    /// # Errors
    ///
    /// Those of [`Self::any_subscriber`] and [`Self::open`], of either file.
    pub fn feed_subscriber<K, R, V>(&self) -> Result<FeedSubscriber<K, R, V>, RepositoryFileError>
    where
        K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
        R: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    {
        let table = Self { samples: self.samples.clone(), ..Self::open(self.table_path())? };
        let table = table.region_len_max(self.region_len_max);
        if table.epoch() != self.epoch() {
            let (found, expected) = (format!("epoch {}", table.epoch()), format!("epoch {}", self.epoch()));
            return Err(table.differs(found, expected));
        }
        let log = self.log_subscriber::<FeedRecord<K, R>>(LogStart::Newest)?;
        Ok(FeedSubscriber::of_records(self.topic().clone(), log, table.table_subscriber()?))
    }

    fn table_path(&self) -> PathBuf {
        let mut path = self.bytes.path().as_os_str().to_owned();
        path.push(".table");
        path.into()
    }

    fn subscriber<S: SubscriberHandle>(
        &self,
        kind: Option<Kind>,
        options: S::Options,
    ) -> Result<S, RepositoryFileError> {
        if let Some(expected) = kind.filter(|kind| *kind != self.kind()) {
            return Err(self.differs(format!("a {}", self.kind()), format!("a {expected}")));
        }
        let schema = S::Payload::schema_with(&self.samples).map_err(|error| self.unopened(error))?;
        if schema != Schema::raw() && schema.hash() != self.schema().hash() {
            let found = format!("values of another type ({})", self.schema().difference(&schema));
            return Err(self.differs(found, format!("the type {}", schema.type_name())));
        }
        let (len, max) = (self.described.geometry.region_len(), self.region_len_max);
        if len > max {
            return Err(RepositoryFileError::TooLarge { path: self.bytes.path().to_owned(), len, max });
        }
        let mirror = Region::allocate(len, Protection::PeersRead).map_err(|error| self.unopened(error))?;
        let memory =
            FileMemory { bytes: Arc::clone(&self.bytes), mirror: Arc::new(mirror), copy: Vec::new() };
        let attachment = FileAttachment::new(self);
        let subscription = Subscription::new(
            self.granted(attachment.newest()),
            Source::Remote(Box::new(memory)),
            Arc::new(attachment),
            Arc::new(SystemClock),
        );
        S::open(subscription, options).map_err(|error| self.unopened(error))
    }

    /// What a publisher's node would grant.
    fn granted(&self, newest: Sequence) -> Granted {
        let Described { header, geometry, description, schema } = &self.described;
        let Description { name, after, .. } = description;
        Granted {
            topic: name.clone(),
            topic_id: header.topic,
            delivery: Delivery::Pull,
            epoch: header.epoch,
            incarnation: Incarnation::any_of(header.epoch),
            geometry: *geometry,
            schema: schema.clone(),
            key: 0,
            address: 0,
            at: GrantedAt { newest, after: *after },
            peer: None,
            lifespan_ns: 0,
        }
    }

    fn differs(&self, found: String, expected: String) -> RepositoryFileError {
        RepositoryFileError::Differs { path: self.bytes.path().to_owned(), found, expected }
    }

    fn unopened(&self, error: impl std::error::Error + Send + Sync + 'static) -> RepositoryFileError {
        RepositoryFileError::Unread { path: self.bytes.path().to_owned(), source: Box::new(error) }
    }
}

/// A file, read like the memory of another host.
struct FileMemory {
    bytes: Arc<FileBytes>,
    mirror: Arc<Region>,
    /// What is read, on its way to the mirror.
    copy: Vec<u64>,
}

impl RemoteRead for FileMemory {
    fn mirror(&self) -> &Arc<Region> {
        &self.mirror
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn post(&mut self, ranges: &[ByteRange]) -> Result<Completion, FabricError> {
        for ByteRange { offset, len } in ranges {
            self.copy.resize(len / WORD, 0);
            let read = self.bytes.read(*offset as u64, bytemuck::cast_slice_mut(&mut self.copy));
            let cut = "the repository file cannot be read any more: it was cut, or its disk fails";
            read.map_err(|_| FabricError::Access { why: cut })?;
            self.mirror.copy_in(*offset, &self.copy);
        }
        Ok(Completion::Done)
    }

    fn poll(&mut self) -> Result<Completion, FabricError> {
        Ok(Completion::Done)
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

impl fmt::Debug for FileMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("FileMemory").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// The publisher of a file, as far as its lock shows it.
#[derive(Debug)]
struct FileAttachment {
    bytes: Arc<FileBytes>,
    after: Sequence,
    /// No publisher had it once.
    has_ended: AtomicBool,
}

impl FileAttachment {
    fn new(file: &RepositoryFile) -> Self {
        let (bytes, after) = (Arc::clone(&file.bytes), file.described.description.after);
        Self { bytes, after, has_ended: AtomicBool::new(false) }
    }

    /// The newest sequence.
    fn newest(&self) -> Sequence {
        let mut newest = [0; WORD];
        let read = self.bytes.read(HOT_SEQUENCE as u64, &mut newest);
        read.map_or(self.after, |()| Sequence::new(u64::from_le_bytes(newest)).max(self.after))
    }
}

impl Watched for FileAttachment {
    fn has_ended(&self) -> bool {
        // Relaxed: what it covers is read by system calls.
        if !self.has_ended.load(Ordering::Relaxed) && !self.bytes.is_kept() {
            self.has_ended.store(true, Ordering::Relaxed);
        }
        self.has_ended.load(Ordering::Relaxed)
    }
}

impl Attachment for FileAttachment {
    fn end(&self) -> Option<TopicEnd> {
        self.has_ended().then(|| TopicEnd::Ended { published: self.newest() })
    }

    fn is_lasting(&self) -> bool {
        true
    }

    fn leave(&self, _: SubscriberStats) {}
}
