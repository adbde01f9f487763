use serde::{Serialize, de::DeserializeOwned};

use crate::id::{Epoch, Incarnation, Sequence};
use crate::layout::log::frame_len;
use crate::limits;
use crate::payload::Payload as _;
use crate::repository::Reader as _;
use crate::repository::feed::{FeedRecord, RECORD_HEAD_LEN};
use crate::repository::table::{SnapshotEntry as SnapshotBytes, SnapshotScan};
use crate::subscriber::table::{SnapshotEntry, TableSubscriber};
use crate::subscriber::{LogSubscriber, ReceiveError, Sample, TopicEnd};

/// The least that a record takes in the ring of a log, bytes: its frame's header, and the head of the record.
pub(super) const RECORD_LEN_MIN: usize = frame_len(RECORD_HEAD_LEN);

/// Where a feed's records and cuts come from: one publisher, or several.
pub(super) trait FeedSource<K, R, V> {
    /// The last record that was received or reported lost.
    fn last(&self) -> Sequence;

    /// The epoch of the feed; `None` before a publisher was found.
    fn epoch(&self) -> Option<Epoch>;

    /// The time by the node's clock, ns.
    fn now_ns(&self) -> u64;

    /// How many keys the feed may have.
    fn capacity(&self) -> usize;

    /// Takes the next record.
    fn try_record(&mut self) -> Result<Option<Sample<FeedRecord<K, R>>>, ReceiveError>;

    /// Gives up the records up to this one, which never come: the log has ended. Returns the first of them and their number, if any.
    fn give_up(&mut self, last: Sequence) -> Option<(Sequence, u64)>;

    /// Log and table have ended.
    fn has_ended(&self) -> bool;

    /// Whether a publisher of the epoch is attached, so that what is awaited may come.
    fn is_attached(&self) -> bool;

    /// The newest record of the log when it was last read; `None` if that is unknown.
    fn newest(&self) -> Option<Sequence>;

    /// Whether all tables are known not to have reached this record.
    fn is_before(&self, sequence: Sequence) -> bool;

    /// Whether the log has ended, and cannot have had this record.
    fn is_beyond_end(&self, sequence: Sequence) -> bool;

    /// Reads a table for one pass. `None` if it has not reached this record, or the cut is not complete yet; then its scan is kept.
    fn read_cut(
        &mut self,
        at_least: Sequence,
        has_ended: bool,
        reading: &mut CutReading<K, V>,
    ) -> Result<Option<KnownCut<K, V>>, ReceiveError>;
}

/// What was read so far to find a cut.
pub(super) struct CutReading<K, V> {
    /// The tables that are not read to the end.
    pub(super) scans: Vec<CutScan>,
    /// Of those that are, but with damaged entries: the cut with the fewest.
    pub(super) damaged: Option<KnownCut<K, V>>,
    /// These tables.
    damaged_of: Vec<Incarnation>,
    /// The table with whose last cut the log did not agree: not read while there are others.
    pub(super) avoided: Option<Incarnation>,
}

/// A cut that is being read, of a table of this incarnation.
pub(super) struct CutScan {
    pub(super) of: Incarnation,
    pub(super) scan: SnapshotScan,
}

/// The entries of a table as of one event.
pub(super) struct KnownCut<K, V> {
    /// The incarnation of the table.
    pub(super) of: Incarnation,
    pub(super) sequence: Sequence,
    pub(super) entries: Vec<SnapshotEntry<K, V>>,
    /// How many are damaged, or not of the type.
    pub(super) unreadable: usize,
    /// Those of them whose keys are known.
    pub(super) unreadable_keys: Vec<K>,
}

/// The log and the table of one publisher.
pub(super) struct OneSource<'a, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    pub(super) log: &'a mut LogSubscriber<FeedRecord<K, R>>,
    pub(super) table: &'a mut TableSubscriber<K, V>,
}

impl<K, R, V> FeedSource<K, R, V> for OneSource<'_, K, R, V>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    R: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    fn last(&self) -> Sequence {
        self.log.last()
    }

    fn epoch(&self) -> Option<Epoch> {
        Some(self.log.epoch())
    }

    fn now_ns(&self) -> u64 {
        self.log.core.subscription.clock.monotonic_ns()
    }

    fn capacity(&self) -> usize {
        self.table.core.reader.geometry().capacity()
    }

    #[inline]
    fn try_record(&mut self) -> Result<Option<Sample<FeedRecord<K, R>>>, ReceiveError> {
        self.log.core.try_receive_decoded(|bytes, _| FeedRecord::<K, R>::decode(bytes))
    }

    fn give_up(&mut self, last: Sequence) -> Option<(Sequence, u64)> {
        self.log.core.reader.give_up(last)
    }

    fn has_ended(&self) -> bool {
        self.log.core.subscription.has_ended() && self.table.core.subscription.has_ended()
    }

    fn is_attached(&self) -> bool {
        true
    }

    fn newest(&self) -> Option<Sequence> {
        self.log.core.newest()
    }

    fn is_before(&self, sequence: Sequence) -> bool {
        self.table.core.is_before(sequence)
    }

    fn is_beyond_end(&self, sequence: Sequence) -> bool {
        let subscription = &self.log.core.subscription;
        let last = match subscription.end() {
            None => return false,
            Some(TopicEnd::Ended { published }) => published.get(),
            // No more than its ring had were still to come when the log was last read. A cut that was read so much later is refused, too:
            // nothing tells it from that of a damaged table.
            Some(TopicEnd::Gone { .. } | TopicEnd::Overtaken { .. }) => {
                let records_max = subscription.granted.geometry.region_len() / RECORD_LEN_MIN;
                self.log.last().get().saturating_add(records_max as u64)
            }
        };
        sequence.get() > last
    }

    fn read_cut(
        &mut self,
        at_least: Sequence,
        has_ended: bool,
        reading: &mut CutReading<K, V>,
    ) -> Result<Option<KnownCut<K, V>>, ReceiveError> {
        // A landing region may be behind.
        if !has_ended && self.is_before(at_least) {
            return Ok(None);
        }
        read_cut(self.table, &mut reading.scans)
    }
}

impl<K, V> CutReading<K, V> {
    /// Has read nothing.
    pub(super) fn new() -> Self {
        Self { scans: Vec::new(), damaged: None, damaged_of: Vec::new(), avoided: None }
    }

    /// Returns how often a table was read.
    pub(super) fn passes(&self) -> u32 {
        self.scans.iter().map(|CutScan { scan, .. }| scan.passes()).max().unwrap_or(0)
    }

    /// Returns whether the table of this incarnation was found to have damaged entries.
    pub(super) fn is_damaged(&self, of: Incarnation) -> bool {
        self.damaged_of.contains(&of)
    }

    /// Keeps a cut with damaged entries if it has fewer of them than others.
    pub(super) fn keep_damaged(&mut self, of: Incarnation, cut: KnownCut<K, V>) {
        self.damaged_of.push(of);
        if self.damaged.as_ref().is_none_or(|kept| cut.unreadable < kept.unreadable) {
            self.damaged = Some(cut);
        }
    }
}

/// Continues to read the table, for one pass. `None` if it is not complete yet.
pub(super) fn read_cut<K, V>(
    table: &mut TableSubscriber<K, V>,
    kept: &mut Vec<CutScan>,
) -> Result<Option<KnownCut<K, V>>, ReceiveError>
where
    K: Serialize + DeserializeOwned + Send + 'static,
    V: Serialize + DeserializeOwned + Send + 'static,
{
    // Taken away meanwhile: a panic in a predicate leaves it in the middle of a cell.
    let of = table.incarnation();
    let current = kept.iter().position(|it| it.of == of).map(|place| kept.swap_remove(place));
    let mut current = current.unwrap_or_else(|| CutScan { of, scan: SnapshotScan::new(&table.core.reader) });
    let CutScan { scan, .. } = &mut current;
    let Some(sequence) = table.core.continue_snapshot(scan)? else {
        // Of the last publishers of each line.
        if kept.len() >= limits::LINES_MAX {
            kept.remove(0);
        }
        kept.push(current);
        return Ok(None);
    };
    let (mut entries, mut unreadable, mut unreadable_keys) = (Vec::new(), scan.damaged(), Vec::new());
    for entry in scan.entries(&table.core.reader) {
        let SnapshotBytes { bytes, key_len, number, meta } = entry;
        match <(K, Option<V>)>::decode(bytes) {
            Ok((key, Some(value))) => entries.push(SnapshotEntry { key, value, meta, number }),
            Ok((_, None)) | Err(_) => {
                unreadable += 1;
                unreadable_keys.extend(bytes.get(..key_len).and_then(|key| K::decode(key).ok()));
            }
        }
    }
    Ok(Some(KnownCut { of, sequence, entries, unreadable, unreadable_keys }))
}
