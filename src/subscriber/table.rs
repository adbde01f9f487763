use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};

use super::handle::Readable;
use super::subscription::{PAUSE, Source};
use super::{ReceiveError, Sample, Subscriber, TopicKind};
use crate::clock::saturate;
use crate::id::{Meta, Sequence};
use crate::layout::ByteRange;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::table::Stamp;
use crate::memory::Region;
use crate::payload::{DecodeError, Decoded, Payload, Raw, Schema, encode_unchecked};
use crate::repository::table::{
    self, CellMemory, Interest, Looked, Scan, SnapshotScan, TableReader, TableTopic,
};
use crate::repository::{ChangedKey, ReadFailure, Reader as _, Taken, Verified};

/// Receives the newest value of each key of a table topic.
///
/// [`Self::changes`] returns each key that has changed since it was last asked, once, with its newest value and the number of values
/// that this one replaced; its cost follows the number of changes. [`Self::get`] reads the newest value of one key,
/// [`Self::snapshot`] all of them as of one commit. All keys are received unless the subscriber asks for some: by [key](Self::only_keys),
/// [prefix](Self::only_prefix), [pattern](Self::only_glob) or [predicate](Self::only). It then reads only the cells of these keys.
///
/// The generic methods receive changes too, as pairs of a key and its value, `None` if the key was removed.
///
/// ```
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let publishing = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let mut quotes = publishing.table_publisher::<String, f64>("fx").open()?;
/// quotes.put_batch([("EURUSD", &1.0841), ("USDJPY", &151.2)])?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let mut subscriber = node.table_subscriber::<String, f64>("shm:quotes/fx").open()?;
/// assert_eq!(subscriber.get("USDJPY")?.map(|sample| sample.value), Some(151.2));
/// assert_eq!(subscriber.changes().count(), 2);
///
/// quotes.put("EURUSD", &1.0842)?;
/// quotes.put("EURUSD", &1.0843)?;
/// quotes.remove("USDJPY")?;
/// let mut changes = subscriber.changes().collect::<Result<Vec<_>, _>>()?;
/// changes.sort_by(|a, b| a.key.cmp(&b.key));
/// assert_eq!((changes[0].value, changes[0].replaced), (Some(1.0843), 1));
/// assert_eq!((changes[1].key.as_str(), changes[1].value), ("USDJPY", None));
/// # Ok(())
/// # }
/// ```
pub type TableSubscriber<K, V> = Subscriber<TableTopic, (K, Option<V>)>;

/// A change of a key: its newest value, or its removal.
///
/// Send and Sync if key and value are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change<K, V> {
    /// The key.
    pub key: K,
    /// Its newest value; `None` if it was removed.
    pub value: Option<V>,
    /// Where and when it was published: the commit of the value. If a removal was noticed only by another key in its place, the
    /// sequence is the first at which it may have happened, and the time the last.
    pub meta: Meta,
    /// How often the key has changed since it was added, this change included: its own sequence.
    pub number: u64,
    /// Values of this key that this one replaced before they were received. For the first change received of a key that existed
    /// before the subscriber, it is 0.
    pub replaced: u64,
    /// It is the first change of this key that the subscriber receives since the key was added.
    pub is_new: bool,
}

/// The changes of a table: see [`TableSubscriber::changes`].
///
/// Send, not Sync: it may be sent to another thread, and is used by one at a time.
#[derive(Debug)]
pub struct Changes<'a, K, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    subscriber: &'a mut TableSubscriber<K, V>,
    is_over: bool,
}

/// All entries of a table as of one commit.
///
/// Send and Sync if keys and values are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot<K, V> {
    /// The commit: the snapshot has the value of each key after it.
    pub sequence: Sequence,
    /// The entries, in no particular order.
    pub entries: Vec<SnapshotEntry<K, V>>,
    /// Keys that are missing, because their entries are damaged in the publisher's memory.
    pub damaged: usize,
    /// Keys that are missing, because their values have [expired](crate::PublisherBuilder::lifespan).
    pub expired: usize,
}

/// A key and its value in a [`Snapshot`].
///
/// Send and Sync if key and value are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotEntry<K, V> {
    /// The key.
    pub key: K,
    /// Its value.
    pub value: V,
    /// Where and when that was published.
    pub meta: Meta,
    /// How often the key had changed since it was added.
    pub number: u64,
}

impl<K, V> TableSubscriber<K, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Receives the next change, if there is one. Does not block, and allocates only what decoding does, and for removed keys.
    ///
    /// # Errors
    ///
    /// Those of [`Subscriber::try_receive`].
    #[inline]
    pub fn try_change(&mut self) -> Result<Option<Change<K, V>>, ReceiveError> {
        let Some(Sample { value: (key, value), meta, conflated }) = self.try_receive()? else {
            return Ok(None);
        };
        let ChangedKey { number, is_new, .. } = self.core.reader.changed();
        Ok(Some(Change { key, value, meta, number, replaced: conflated, is_new }))
    }

    /// Returns an iterator over the changes available now: every key that has changed since the last call, once. A key that was removed
    /// and added again may come twice, as removed and then as new. A damaged entry is an error, after which the iterator continues with
    /// the next key. It ends when all commits up to its first call are received, and after an error that repeats, such as the end of
    /// the topic. Over a wire it also ends while a read is in flight.
    pub fn changes(&mut self) -> Changes<'_, K, V> {
        Changes { subscriber: self, is_over: false }
    }

    /// Returns the newest value of a key; `None` if the table does not have it, or it has
    /// [expired](crate::PublisherBuilder::lifespan). Changes are still received afterwards. In shared memory
    /// it does not block. Over a wire it reads now, which takes a round trip, and more for keys that were added since keys were last
    /// learnt; the first call reads every entry, unless [`Self::changes`] has.
    ///
    /// # Errors
    ///
    /// Those of [`Subscriber::try_receive`]. [`ReceiveError::Damaged`] while the key's entry is damaged.
    pub fn get<Q>(&mut self, key: &Q) -> Result<Option<Sample<V>>, ReceiveError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let Ok(encoded) = encode_unchecked(key) else { return Ok(None) };
        let Some(taken) = self.core.look_up(&encoded)? else { return Ok(None) };
        let Verified { meta, payload, .. } = self.core.reader.verified(taken);
        if self.core.subscription.has_expired(meta.published_ns) {
            return Ok(None);
        }
        match <(K, Option<V>)>::decode(payload) {
            Ok((_, value)) => Ok(value.map(|value| Sample { value, meta, conflated: 0 })),
            Err(source) => Err(ReceiveError::Decode { sequence: meta.sequence, source }),
        }
    }

    /// Reads all entries of the wanted keys as of one commit. What the publisher changes meanwhile is read again, for up to
    /// `timeout`. In shared memory it does not wait; over a wire it takes several round trips. Allocates: for each key of the
    /// capacity about 64 bytes, and the entries. Changes are still received afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`Subscriber::try_receive`]; [`ReceiveError::Contended`] when the publisher changed keys too fast during the timeout.
    pub fn snapshot(&mut self, timeout: Duration) -> Result<Snapshot<K, V>, ReceiveError> {
        let (scan, sequence) = self.core.take_snapshot(saturate(timeout))?;
        let decoded = self.core.valid_entries(&scan).map(|entry| {
            let decoded = <(K, Option<V>)>::decode(entry.bytes);
            let sequence = entry.meta.sequence;
            match decoded {
                Ok((key, Some(value))) => {
                    Ok(SnapshotEntry { key, value, meta: entry.meta, number: entry.number })
                }
                Ok((_, None)) => {
                    let source = DecodeError::Malformed { reason: "a removed key has a value".into() };
                    Err(ReceiveError::Decode { sequence, source })
                }
                Err(source) => Err(ReceiveError::Decode { sequence, source }),
            }
        });
        let entries: Vec<_> = decoded.collect::<Result<_, _>>()?;
        let expired = scan.entries(&self.core.reader).count() - entries.len();
        Ok(Snapshot { sequence, entries, damaged: scan.damaged(), expired })
    }

    /// Receives only these keys from now on. A key that was not received before is received at once, if it has a value.
    pub fn only_keys<'q, Q>(&mut self, keys: impl IntoIterator<Item = &'q Q>)
    where
        Q: Serialize + ?Sized + 'q,
        K: Borrow<Q>,
    {
        let keys: std::collections::HashSet<Vec<u8>> =
            keys.into_iter().filter_map(|key| encode_unchecked(key).ok()).collect();
        self.core.reader.set_interest(Interest::Those(Box::new(move |key| keys.contains(key))));
    }

    /// Receives only the keys for which this returns true, from now on: see [`Self::only_keys`]. It is called for keys that are
    /// known, for each key that is added, and for each entry of a snapshot.
    pub fn only(&mut self, wants: impl Fn(&K) -> bool + Send + 'static) {
        let wants = move |key: &[u8]| K::decode(key).is_ok_and(|key: K| wants(&key));
        self.core.reader.set_interest(Interest::Those(Box::new(wants)));
    }

    /// Receives only the keys that begin with this text, from now on: see [`Self::only_keys`].
    pub fn only_prefix(&mut self, prefix: &str)
    where
        K: AsRef<str>,
    {
        self.only(with_prefix(prefix));
    }

    /// Receives only the keys that match this pattern, from now on: see [`Self::only_keys`]. `*` stands for any characters, `?` for
    /// one; every other character stands for itself.
    pub fn only_glob(&mut self, pattern: &str)
    where
        K: AsRef<str>,
    {
        self.only(with_pattern(pattern));
    }

    /// Receives all keys from now on: see [`Self::only_keys`].
    pub fn all_keys(&mut self) {
        self.core.reader.set_interest(Interest::All);
    }

    /// Returns the keys that the subscriber knows and wants. Those added since the last [`Self::changes`] are not among them. Allocates.
    pub fn keys(&self) -> Vec<K> {
        decoded(self.core.reader.keys())
    }

    /// Returns the wanted keys whose entries are damaged in the publisher's memory: their newest values cannot be received until the
    /// publisher changes them again, or [`Self::get`] or [`Self::snapshot`] reads them intact. Allocates.
    pub fn suspects(&self) -> Vec<K> {
        decoded(self.core.reader.suspects())
    }
}

/// For programs that do not know the types of keys and values: both are bytes, which [`Self::entry_schemas`] decode.
///
/// ```
/// use fabricast::{AnySubscriber, Decoded, Node, Raw};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let publishing = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let mut quotes = publishing.table_publisher::<String, f64>("fx").open()?;
/// quotes.put_batch([("EURUSD", &1.0841), ("USDJPY", &151.2)])?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let any = node.any_subscriber::<Raw>("shm:quotes/fx").open()?;
/// let AnySubscriber::Table(mut subscriber) = any else { return Err("not a table".into()) };
/// let [key_schema, value_schema] = subscriber.entry_schemas().ok_or("not a schema of entries")?;
/// subscriber.only_glob("EUR*");
/// let change = subscriber.try_change()?.ok_or("nothing published")?;
/// assert_eq!(key_schema.decode(change.key)?, Decoded::Value("EURUSD".into()));
/// let value = change.value.ok_or("removed")?;
/// assert_eq!(value_schema.decode(value)?, Decoded::Value(1.0841.into()));
/// # Ok(())
/// # }
/// ```
impl Subscriber<TableTopic, Raw> {
    /// Returns the schemas of keys and of values. Their type name is that of the entry. `None` if the topic's schema is not that of
    /// entries, which is never so for a [`TablePublisher`](crate::TablePublisher). Allocates.
    pub fn entry_schemas(&self) -> Option<[Schema; 2]> {
        self.schema().entry_parts()
    }

    /// Receives like [`TableSubscriber::try_change`], but leaves key and value as checked bytes, in the subscriber's private memory.
    /// Decodes nothing, and allocates only for removed keys.
    ///
    /// # Errors
    ///
    /// Those of [`Self::try_receive`].
    #[expect(clippy::type_complexity, reason = "a change of bytes is a change like any other")]
    pub fn try_change(&mut self) -> Result<Option<Change<&[u8], &[u8]>>, ReceiveError> {
        self.core.subscription.check_told()?;
        let Some(taken) = self.core.take_next()? else {
            self.core.rest();
            return Ok(None);
        };
        let ChangedKey { key_len, number, is_new, is_present, .. } = self.core.reader.changed();
        let Verified { meta, conflated, payload } = self.core.reader.verified(taken);
        let (key, value) = parts(payload, key_len);
        let value = is_present.then_some(value);
        Ok(Some(Change { key, value, meta, number, replaced: conflated, is_new }))
    }

    /// Reads all entries like [`TableSubscriber::snapshot`], as bytes. [`Snapshot::damaged`] is the number of entries that are missing
    /// because they are damaged.
    ///
    /// # Errors
    ///
    /// Those of [`TableSubscriber::snapshot`], except [`ReceiveError::Decode`].
    pub fn snapshot(&mut self, timeout: Duration) -> Result<Snapshot<Vec<u8>, Vec<u8>>, ReceiveError> {
        let (scan, sequence) = self.core.take_snapshot(saturate(timeout))?;
        let entries = self.core.valid_entries(&scan).map(|entry| {
            let (key, value) = parts(entry.bytes, entry.key_len);
            let (key, value) = (key.to_owned(), value.to_owned());
            SnapshotEntry { key, value, meta: entry.meta, number: entry.number }
        });
        let entries: Vec<_> = entries.collect();
        let expired = scan.entries(&self.core.reader).count() - entries.len();
        Ok(Snapshot { sequence, entries, damaged: scan.damaged(), expired })
    }

    /// Receives only the keys for which this returns true of their bytes, from now on: see [`TableSubscriber::only`].
    pub fn only(&mut self, wants: impl Fn(&[u8]) -> bool + Send + 'static) {
        self.core.reader.set_interest(Interest::Those(Box::new(wants)));
    }

    /// Receives only the keys that match this pattern, from now on: see [`TableSubscriber::only_glob`]. A key that is not a text is
    /// matched by its JSON form.
    pub fn only_glob(&mut self, pattern: &str) {
        let pattern: Vec<char> = pattern.chars().collect();
        let schema = self.entry_schemas().map(|[key, _]| key);
        self.only(move |key| match schema.as_ref().map(|schema| schema.decode(key)) {
            Some(Ok(Decoded::Value(serde_json::Value::String(text)))) => matches(&pattern, &text),
            Some(Ok(Decoded::Value(other))) => matches(&pattern, &other.to_string()),
            _ => false,
        });
    }

    /// Returns the number of entries that the subscriber found damaged and that have not changed since. It counts all that it has
    /// read, also those whose keys are unknown because they were damaged from the beginning.
    pub fn suspect_count(&self) -> usize {
        self.core.reader.suspect_count()
    }
}

/// The key and the value of an entry, which are a presence byte apart.
fn parts(entry: &[u8], key_len: usize) -> (&[u8], &[u8]) {
    let (key, rest) = entry.split_at_checked(key_len).unwrap_or((entry, &[]));
    (key, rest.get(1..).unwrap_or_default())
}

/// The keys that are values of the type.
fn decoded<'k, K: DeserializeOwned + Serialize + Send + 'static>(
    keys: impl Iterator<Item = &'k [u8]>,
) -> Vec<K> {
    keys.filter_map(|key| K::decode(key).ok()).collect()
}

/// Whether a key begins with this text.
pub(super) fn with_prefix<K: AsRef<str>>(prefix: &str) -> impl Fn(&K) -> bool + Send + Sync + use<K> {
    let prefix = prefix.to_owned();
    move |key| key.as_ref().starts_with(&prefix)
}

/// Whether a key matches this pattern.
pub(super) fn with_pattern<K: AsRef<str>>(pattern: &str) -> impl Fn(&K) -> bool + Send + Sync + use<K> {
    let pattern: Vec<char> = pattern.chars().collect();
    move |key| matches(&pattern, key.as_ref())
}

/// Whether a text matches a pattern of `*`, `?` and other characters. Takes the product of their lengths at most.
pub(crate) fn matches(pattern: &[char], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut from) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        match (pattern.get(at), text.get(from)) {
            (Some('*'), _) => {
                star = Some((at, from));
                at += 1;
            }
            (Some('?'), Some(_)) => (at, from) = (at + 1, from + 1),
            (Some(expected), Some(found)) if expected == found => (at, from) = (at + 1, from + 1),
            // The last star takes one character more.
            _ => match &mut star {
                Some((star_at, star_from)) => {
                    *star_from += 1;
                    (at, from) = (*star_at + 1, *star_from);
                }
                None => return false,
            },
        }
    }
    pattern.get(at..).is_some_and(|rest| rest.iter().all(|left| *left == '*'))
}

impl<K, V> Iterator for Changes<'_, K, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    type Item = Result<Change<K, V>, ReceiveError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let change = self.subscriber.try_change().transpose();
        self.is_over = match &change {
            Some(Ok(_)) => false,
            Some(Err(error)) => !error.is_about_a_value(),
            None => true,
        };
        change
    }
}

impl TopicKind for TableTopic {}

impl Readable for TableTopic {
    type Reader = TableReader;
}

impl super::core::Core<TableReader> {
    /// Takes the entry of this key, if the table has it.
    fn look_up(&mut self, key: &[u8]) -> Result<Option<Taken>, ReceiveError> {
        let (mut removed_from, mut has_all) = (None, false);
        for _ in 0..ATTEMPTS_MAX {
            let Some(cell) = self.reader.cell_of(key) else {
                if has_all {
                    return Ok(None);
                }
                has_all = self.learn_keys()?;
                continue;
            };
            let ranges @ [version, ..] = self.reader.ranges_of(cell);
            let version = self.version_in_mirror(version);
            let memory = self.read_now(&ranges)?;
            let at =
                version.map_or(CellMemory::Mapped(&memory), |version| CellMemory::Mirror(&memory, version));
            let is_arriving = self.subscription.is_arriving();
            match self.reader.look_up(at, (cell, key), is_arriving)? {
                Looked::Found(taken) => return Ok(Some(taken)),
                Looked::Contended => {}
                Looked::Removed | Looked::Elsewhere if has_all && removed_from == Some(cell) => {
                    return Ok(None);
                }
                // It may have been added again since keys were last learnt.
                Looked::Removed | Looked::Elsewhere => {
                    removed_from = Some(cell);
                    has_all = self.learn_keys()?;
                }
            }
        }
        Err(ReadFailure::Contended { attempts: ATTEMPTS_MAX }.into())
    }

    /// Learns the keys that were added or removed since keys were last learnt. Returns whether that succeeded for all of them.
    fn learn_keys(&mut self) -> Result<bool, ReceiveError> {
        let mut scan = Scan::default();
        self.reader.begin_keys(&mut scan);
        loop {
            let memory = self.read_now(scan.ranges())?;
            let is_mapped = !self.subscription.is_fetched();
            if let Some(has_all) = self.reader.step_keys(&mut scan, &memory, is_mapped) {
                return Ok(has_all);
            }
        }
    }

    /// Takes a snapshot.
    fn take_snapshot(&mut self, timeout_ns: u64) -> Result<(SnapshotScan, Sequence), ReceiveError> {
        let clock = Arc::clone(&self.subscription.clock);
        let began_ns = clock.monotonic_ns();
        let mut scan = SnapshotScan::new(&self.reader);
        loop {
            self.subscription.check_end()?;
            if let Some(sequence) = self.continue_snapshot(&mut scan)? {
                return Ok((scan, sequence));
            }
            if scan.passes() > PASSES_AT_ONCE {
                clock.pause(PAUSE);
            }
            if clock.monotonic_ns().saturating_sub(began_ns) >= timeout_ns {
                return Err(ReadFailure::Contended { attempts: scan.passes() }.into());
            }
        }
    }

    /// Returns the version there that the last fetch brought; `None` in mapped memory.
    fn version_in_mirror(&self, version: ByteRange) -> Option<Stamp> {
        let Source::Remote(remote) = &self.subscription.source else { return None };
        Some(Stamp::new(remote.mirror().load_acquire(version.offset)))
    }

    /// Returns whether mapped memory has not reached this commit.
    pub(super) fn is_before(&self, sequence: Sequence) -> bool {
        match &self.subscription.source {
            Source::Mapped(memory) | Source::Landing { region: memory, .. } => {
                memory.load_acquire(HOT_SEQUENCE) < sequence.get()
            }
            Source::Remote(_) | Source::Released(_) => false,
        }
    }

    /// The entries of a snapshot that have not expired.
    fn valid_entries<'a>(&'a self, scan: &'a SnapshotScan) -> impl Iterator<Item = table::SnapshotEntry<'a>> {
        let entries = scan.entries(&self.reader);
        entries.filter(|entry| !self.subscription.has_expired(entry.meta.published_ns))
    }

    /// Continues a snapshot to the end of a pass. Returns its commit if it is complete. Also after the topic has ended, as long as
    /// its memory can be read.
    pub(super) fn continue_snapshot(
        &mut self,
        scan: &mut SnapshotScan,
    ) -> Result<Option<Sequence>, ReceiveError> {
        let passes = scan.passes();
        while scan.passes() == passes {
            let memory = self.read_memory(scan.ranges())?;
            let is_arriving = self.subscription.is_arriving();
            let arriving_ns = is_arriving.then(|| self.subscription.clock.monotonic_ns());
            if let Some(sequence) = scan.step(&mut self.reader, &memory, arriving_ns) {
                return Ok(Some(sequence));
            }
        }
        Ok(None)
    }

    /// Returns the table's memory, in which these ranges are up to date. Fails once the topic has ended.
    fn read_now(&mut self, ranges: &[ByteRange]) -> Result<Arc<Region>, ReceiveError> {
        self.subscription.check_end()?;
        self.read_memory(ranges)
    }

    /// The same, also after the end.
    fn read_memory(&mut self, ranges: &[ByteRange]) -> Result<Arc<Region>, ReceiveError> {
        if self.subscription.has_ended() && self.subscription.is_shut() {
            self.subscription.check_end()?;
        }
        let read = self.subscription.read_now(&mut self.fetching, ranges);
        // Its end may be why it failed.
        read.or_else(|error| self.subscription.check_end().and(Err(error.into())))
    }
}

/// Passes of a snapshot without a pause between them.
const PASSES_AT_ONCE: u32 = 8;
/// Attempts to read an entry that keeps changing.
const ATTEMPTS_MAX: u32 = 64;
