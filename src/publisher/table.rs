use std::borrow::Borrow;

use serde::{Serialize, de::DeserializeOwned};

use super::handle::{PublishedKind, Publisher, Writable};
use super::notices::News;
use super::output::Output;
use super::table_landing::TableLanding;
use super::{LenLimit, PublishError, PublisherError};
use crate::id::Sequence;
use crate::layout::GeometryError;
use crate::layout::table::TableGeometry;
use crate::limits;
use crate::payload::{EncodeError, Schema, encode};
use crate::repository::Writer as _;
use crate::repository::table::{TableCommit, TableTopic, TableWriter, Unplaced};

/// Publishes the newest value of each key of a table topic.
///
/// A commit makes changes visible, all with one sequence. [`Self::put`] and [`Self::remove`] change one key and commit;
/// [`Self::put_batch`] commits many changes at once, at less cost for each; with [`Self::stage`], [`Self::stage_removal`] and
/// [`Self::commit`] the caller decides. Keys are added while the publisher runs, up to the declared capacity, which a removed key
/// frees for another one.
///
/// Two keys are the same if they encode to the same bytes: sets and maps without an order are not usable as keys. A borrowed form
/// that encodes to the same bytes, such as a `str` for a `String`, may stand for a key. Dropping the publisher commits what is staged.
///
/// ```
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let mut quotes = node.table_publisher::<String, (f64, f64)>("fx").capacity(100).open()?;
/// assert_eq!(quotes.put("EURUSD", &(1.0841, 1.0843))?.get(), 1);
/// assert_eq!(quotes.put_batch([("EURUSD", &(1.0842, 1.0844)), ("USDJPY", &(151.20, 151.22))])?.get(), 2);
/// assert_eq!(quotes.remove("EURUSD")?.map(|sequence| sequence.get()), Some(3));
/// assert_eq!(quotes.len(), 1);
/// # Ok(())
/// # }
/// ```
pub type TablePublisher<K, V> = Publisher<TableTopic, (K, Option<V>)>;

impl<K, V> TablePublisher<K, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    /// Publishes a value of a key, together with all changes staged before, and returns the sequence of the commit.
    ///
    /// # Errors
    ///
    /// [`PublishError::KeyTooLong`] and [`PublishError::TooLong`] when key or value are longer than declared,
    /// [`PublishError::Full`] when the key is new and the table has no capacity for it, [`PublishError::Encode`] when its type fails
    /// to encode, [`PublishError::NodeFailed`] when the node's thread has panicked. In these cases nothing changes.
    #[inline]
    pub fn put<Q>(&mut self, key: &Q, value: &V) -> Result<Sequence, PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let began_ns = self.output.realtime_ns();
        self.stage_at(key, value, (None, began_ns))?;
        self.commit_at(began_ns);
        Ok(self.newest())
    }

    /// Publishes values of keys with one commit, and returns the newest sequence. Of several values of one key the last remains.
    ///
    /// # Errors
    ///
    /// Those of [`Self::put`]. The values before the failed one are published; the others are not.
    #[inline]
    pub fn put_batch<'v, Q, I>(&mut self, entries: I) -> Result<Sequence, PublishError>
    where
        I: IntoIterator<Item = (&'v Q, &'v V)>,
        Q: Serialize + ?Sized + 'v,
        K: Borrow<Q>,
        V: 'v,
    {
        let began_ns = self.output.realtime_ns();
        let mut entries = entries.into_iter();
        let staged = loop {
            // A few entries ahead, so that the memory that they change arrives from the caches meanwhile.
            let mut ahead = [None; BATCH_AHEAD];
            let count =
                ahead.iter_mut().zip(entries.by_ref()).map(|(slot, entry)| *slot = Some(entry)).count();
            let (ahead, _) = ahead.split_at(count);
            let mut cells = [None; BATCH_AHEAD];
            cells
                .iter_mut()
                .zip(ahead.iter().flatten())
                .for_each(|(cell, (key, _))| *cell = self.prefetch(*key));
            let mut entries = ahead.iter().flatten().zip(cells);
            let staged =
                entries.try_for_each(|((key, value), cell)| self.stage_at(*key, value, (cell, began_ns)));
            if staged.is_err() || count < BATCH_AHEAD {
                break staged;
            }
        };
        self.commit_at(began_ns);
        staged.map(|()| self.newest())
    }

    /// Removes a key, together with all changes staged before. Returns the sequence of the commit; `None` if the table does not have
    /// the key.
    ///
    /// # Errors
    ///
    /// [`PublishError::Encode`] and [`PublishError::NodeFailed`], as for [`Self::put`].
    pub fn remove<Q>(&mut self, key: &Q) -> Result<Option<Sequence>, PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let began_ns = self.output.realtime_ns();
        let was_there = self.remove_at(key, began_ns)?;
        self.commit_at(began_ns);
        Ok(was_there.then(|| self.newest()))
    }

    /// Stages a value of a key for the next commit. It replaces a value that is staged for this key.
    ///
    /// # Errors
    ///
    /// Those of [`Self::put`]. In these cases nothing changes, and what is staged is kept.
    #[inline]
    pub fn stage<Q>(&mut self, key: &Q, value: &V) -> Result<(), PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let now_ns = self.output.realtime_ns();
        self.stage_at(key, value, (None, now_ns))
    }

    /// Stages the removal of a key for the next commit. Returns whether the table has it.
    ///
    /// # Errors
    ///
    /// Those of [`Self::remove`].
    pub fn stage_removal<Q>(&mut self, key: &Q) -> Result<bool, PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let now_ns = self.output.realtime_ns();
        self.remove_at(key, now_ns)
    }

    /// Makes all staged changes visible. Returns the newest sequence.
    #[inline]
    pub fn commit(&mut self) -> Sequence {
        let now_ns = self.output.realtime_ns();
        self.commit_at(now_ns);
        self.newest()
    }

    /// Returns whether the table has this key. Staged changes count.
    ///
    /// # Errors
    ///
    /// [`PublishError::Encode`] when the type of the key fails to encode.
    pub fn contains<Q>(&mut self, key: &Q) -> Result<bool, PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let len = self.encode_key(key)?;
        let key = len.and_then(|len| self.writer.held().get(..len));
        Ok(key.is_some_and(|key| self.writer.has(key)))
    }

    /// Returns the number of keys. Staged changes count.
    pub fn len(&self) -> usize {
        self.writer.keys()
    }

    /// Returns whether the table has no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of keys that the table may have.
    pub fn capacity(&self) -> usize {
        self.writer.geometry().capacity()
    }

    #[inline]
    fn stage_at<Q>(
        &mut self,
        key: &Q,
        value: &V,
        (expected, now_ns): (Option<usize>, u64),
    ) -> Result<(), PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        self.output.check_served()?;
        let Self { writer, parts, .. } = self;
        let staged = stage(writer, (expected, now_ns), |writer| {
            let [key_schema, value_schema] = parts.as_ref().ok_or_else(no_entries)?;
            let key_len = encode_key(writer, key, key_schema)?;
            let max = writer.geometry().payload_len_max();
            let encoded = encode_value(writer, key_len, value, value_schema);
            Ok((key_len, encoded.map_err(|error| LenLimit::Entry.refused(error, max))?))
        });
        staged.map_err(|error| self.output.failed(error))
    }

    /// Fetches the memory that a value of this key will change. Returns the key's cell.
    #[inline]
    fn prefetch<Q>(&mut self, key: &Q) -> Option<usize>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        let Self { writer, parts, .. } = self;
        let [schema, _] = parts.as_ref().filter(|_| writer.is_large())?;
        let len = encode(key, schema, writer.room()).ok()?;
        writer.prefetch(len)
    }

    fn remove_at<Q>(&mut self, key: &Q, now_ns: u64) -> Result<bool, PublishError>
    where
        Q: Serialize + ?Sized,
        K: Borrow<Q>,
    {
        self.output.check_served()?;
        let len = self.encode_key(key)?;
        Ok(len.is_some_and(|len| self.writer.stage_removal(len, now_ns)))
    }

    /// Encodes a key into the writer's room, and returns its length; `None` if it is longer than any key of the table.
    fn encode_key<Q: Serialize + ?Sized>(&mut self, key: &Q) -> Result<Option<usize>, PublishError> {
        let Self { writer, parts, .. } = self;
        let encoded =
            parts.as_ref().ok_or_else(no_entries).and_then(|[schema, _]| encode_key(writer, key, schema));
        match encoded {
            Ok(len) => Ok(Some(len)),
            Err(PublishError::KeyTooLong { .. }) => Ok(None),
            Err(error) => Err(self.output.failed(error)),
        }
    }

    #[inline]
    fn commit_at(&mut self, began_ns: u64) {
        commit(&mut self.writer, &mut self.output, began_ns);
    }
}

#[cfg(test)]
impl<T: crate::payload::Payload> Publisher<TableTopic, T> {
    /// Damages the newest entry of an encoded key.
    pub(crate) fn damage(&mut self, key: &[u8]) {
        self.writer.room().split_at_mut(key.len()).0.copy_from_slice(key);
        self.writer.damage(key.len());
    }

    /// Pretends that this commit is the newest, until the next one.
    pub(crate) fn pretend(&self, newest: u64) {
        self.writer.pretend(Sequence::new(newest));
    }

    /// Pretends that, and that it has changed every page.
    pub(crate) fn pretend_everywhere(&self, newest: u64) {
        self.writer.pretend_everywhere(Sequence::new(newest));
    }

    /// Publishes encoded bytes as the value of an encoded key.
    pub(crate) fn put_bytes(&mut self, key: &[u8], value: &[u8]) -> Result<Sequence, PublishError> {
        let now_ns = self.output.realtime_ns();
        stage(&mut self.writer, (None, now_ns), |writer| {
            let room = writer.room();
            let max = room.len();
            let too_long = || PublishError::TooLong { len: None, max, limit: LenLimit::Entry };
            let room = room.get_mut(..key.len() + 1 + value.len()).ok_or_else(too_long)?;
            room[..key.len()].copy_from_slice(key);
            room[key.len() + 1..].copy_from_slice(value);
            Ok((key.len(), room.len()))
        })?;
        commit(&mut self.writer, &mut self.output, now_ns);
        Ok(self.newest())
    }
}

/// Entries of a batch whose memory is fetched before they are staged.
const BATCH_AHEAD: usize = 16;

/// The schema is not that of entries, which only a type other than those of this module's publishers causes.
#[cold]
pub(super) fn no_entries() -> PublishError {
    PublishError::Encode(EncodeError::Refused { reason: "its type is not that of keys and values".into() })
}

/// Encodes a key into the writer's room. Returns its length.
#[inline]
pub(super) fn encode_key<Q: Serialize + ?Sized>(
    writer: &mut TableWriter,
    key: &Q,
    schema: &Schema,
) -> Result<usize, PublishError> {
    let max = writer.geometry().key_len_max();
    encode(key, schema, writer.room()).map_err(|error| match error {
        EncodeError::TooLong { .. } => PublishError::KeyTooLong { len: None, max },
        error => PublishError::Encode(error),
    })
}

/// Encodes a value into the writer's room, behind a key and the presence byte. Returns the length of the entry.
#[inline]
pub(super) fn encode_value<V: Serialize>(
    writer: &mut TableWriter,
    key_len: usize,
    value: &V,
    schema: &Schema,
) -> Result<usize, EncodeError> {
    let room = writer.room().get_mut(key_len + 1..).unwrap_or_default();
    Ok(key_len + 1 + encode(value, schema, room)?)
}

/// Stages what `fill` encodes into the writer's room. It returns the lengths of the key and of the entry.
#[inline]
pub(super) fn stage(
    writer: &mut TableWriter,
    (expected, now_ns): (Option<usize>, u64),
    fill: impl FnOnce(&mut TableWriter) -> Result<(usize, usize), PublishError>,
) -> Result<(), PublishError> {
    let (key_len, entry_len) = fill(writer)?;
    writer.stage_filled((key_len, entry_len), expected, now_ns).map_err(|unplaced| {
        let geometry = writer.geometry();
        match unplaced {
            Unplaced::KeyTooLong => {
                PublishError::KeyTooLong { len: Some(key_len), max: geometry.key_len_max() }
            }
            Unplaced::Full => PublishError::Full { capacity: geometry.capacity() },
        }
    })
}

/// Commits what is staged.
#[inline]
pub(super) fn commit(writer: &mut TableWriter, output: &mut Output<TableLanding>, began_ns: u64) {
    let Some(committed) = writer.commit(began_ns) else { return };
    let TableCommit { sequence, published_ns, len, .. } = committed;
    output.add_bytes(usize::try_from(len).unwrap_or(usize::MAX));
    output.deliver(&committed, || News { sequence, position: 0, published_ns, inline: None });
    output.measure(sequence, began_ns);
}

impl PublishedKind for TableTopic {}

/// The options of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableOptions {
    /// The keys that the table may have.
    pub(crate) capacity: usize,
    /// The longest key, bytes; by default what the largest payload leaves, within limits.
    pub(crate) key_len_max: Option<usize>,
}

impl Writable for TableTopic {
    type Options = TableOptions;
    const DEFAULTS: TableOptions =
        TableOptions { capacity: limits::TABLE_CAPACITY_DEFAULT, key_len_max: None };
    type Writer = TableWriter;
    type Landing = TableLanding;
    /// The schemas of keys and values.
    type Parts = Option<[Schema; 2]>;

    const LIMIT: LenLimit = LenLimit::Entry;

    fn parts(schema: &Schema, geometry: TableGeometry) -> Result<Self::Parts, PublisherError> {
        let (parts, max) = (schema.entry_parts(), geometry.key_len_max());
        match parts.as_ref().map(|[key, _]| key.value_len_min()) {
            Some(len) if len > max => Err(PublisherError::KeyLenMin { len, max }),
            _ => Ok(parts),
        }
    }

    /// Removals, which are shorter than values, do not count.
    fn len_min(schema: &Schema) -> usize {
        let Some([key, value]) = schema.entry_parts() else { return schema.value_len_min() };
        key.value_len_min().saturating_add(1).saturating_add(value.value_len_min())
    }

    fn geometry(options: TableOptions, payload_len_max: usize) -> Result<TableGeometry, GeometryError> {
        let fitting = limits::KEY_LEN_MAX_DEFAULT.min(payload_len_max.saturating_sub(1));
        TableGeometry::new(options.capacity, options.key_len_max.unwrap_or(fitting), payload_len_max)
    }

    fn finish(writer: &mut TableWriter, output: &mut Output<TableLanding>) {
        let now_ns = output.realtime_ns();
        commit(writer, output, now_ns);
    }
}
