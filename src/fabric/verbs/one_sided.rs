//! Regions of peers, read and written by the device.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use super::device;
use super::endpoint::{BatchTracker, Endpoint, INLINE_LEN_MAX, Posted};
use super::error::VerbsError;
use super::message::Descriptor;
use super::region::VerbsRegistered;
use super::sys::{MemoryRegion, Operation, Remote, RemoteAccess, Slice};
use crate::fabric::{
    ArrivalAnnouncer, ByteRange, Completion, Exposure, FabricError, Offer, Placement, Registration,
    RemoteRead, RemoteWrite, Revocation, Write, check_bounds, check_writes,
};
use crate::limits;
use crate::limits::verbs::READ_LEN;
use crate::memory::{MemoryError, Protection, Region, WORD};

/// Bytes that the largest packet carries.
const PACKET_LEN_MAX: usize = 4096;
/// READs posted at a time, and how often: a value of any length leaves the queue room for others.
const READS_IN_BATCH: usize = 64;
const PARTS_UNDER_WAY: usize = 2;

/// A region received from a peer.
#[derive(Debug)]
pub(super) struct VerbsOffer {
    endpoint: Arc<Endpoint>,
    remote: Descriptor,
}

impl VerbsOffer {
    /// The peer's description of the region.
    pub(super) fn new(endpoint: Arc<Endpoint>, remote: Descriptor) -> Self {
        Self { endpoint, remote }
    }

    fn check(&self, exposure: Exposure, why: &'static str, len_min: usize) -> Result<(), FabricError> {
        if self.remote.exposure != exposure {
            return Err(FabricError::Access { why });
        }
        if self.remote.len < len_min as u64 {
            return Err(MemoryError::Unfit { why: "it is shorter than agreed" }.into());
        }
        Ok(())
    }
}

impl Offer for VerbsOffer {
    fn open_read(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteRead>, FabricError> {
        if !self.endpoint.is_reliable() {
            return Err(FabricError::Access { why: "an unreliable connection supports push only" });
        }
        self.check(Exposure::Read, "the peer exposed it for writing", len_min)?;
        Ok(Box::new(VerbsRead::new(self.endpoint, self.remote, len_min)?))
    }

    fn open_write(self: Box<Self>, len_min: usize) -> Result<Box<dyn RemoteWrite>, FabricError> {
        self.check(Exposure::Write, "the peer exposed it read-only", len_min)?;
        let Self { endpoint, remote } = *self;
        let (tracker, source, waiting) = (Arc::default(), Weak::new(), VecDeque::new());
        let (placement, endpoint) = (endpoint.placement(), Arc::downgrade(&endpoint));
        let (len, fetching) = (len_min, Fetching::default());
        Ok(Box::new(VerbsWrite { endpoint, placement, remote, len, tracker, source, waiting, fetching }))
    }
}

/// A peer's region, read into a local mirror.
#[derive(Debug)]
struct VerbsRead {
    endpoint: Arc<Endpoint>,
    remote: Descriptor,
    /// The local mirror.
    target: Arc<MemoryRegion>,
    tracker: Arc<BatchTracker>,
    /// What is still to be posted of the ranges, in order: it waits for the send queue, or for earlier parts.
    waiting: VecDeque<ByteRange>,
}

impl VerbsRead {
    fn new(endpoint: Arc<Endpoint>, remote: Descriptor, len: usize) -> Result<Self, FabricError> {
        let mirror = Arc::new(Region::allocate(len.max(WORD), Protection::PeersRead)?.unshared());
        let target = Arc::new(device::register(&endpoint.domain, &mirror, RemoteAccess::None, true)?);
        Ok(Self { endpoint, remote, target, tracker: Arc::default(), waiting: VecDeque::new() })
    }

    /// Posts as much of what waits as one batch may have.
    fn post_part(&mut self) -> Result<Posted, FabricError> {
        let each = self.endpoint.message_len_max.min(READ_LEN);
        let count = READS_IN_BATCH.min(self.endpoint.batch_len_max() as usize);
        let operation = |(offset, len)| Operation::Read {
            local: Slice { region: &self.target, offset, len },
            remote: at(&self.remote, offset),
        };
        let parts = self.waiting.iter().flat_map(|range| pieces(*range, each)).take(count);
        let posted = self.endpoint.post(&self.tracker, &self.target, parts.clone().map(operation))?;
        if posted == Posted::Yes {
            let len = parts.map(|(_, len)| len as usize).sum();
            drop_front(&mut self.waiting, len);
        }
        Ok(posted)
    }
}

impl RemoteRead for VerbsRead {
    fn mirror(&self) -> &Arc<Region> {
        self.target.region()
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn post(&mut self, ranges: &[ByteRange]) -> Result<Completion, FabricError> {
        let len = common_len(self.target.region().len(), self.remote.len);
        check_bounds(len, ranges.iter().copied())?;
        if ranges.iter().all(|range| range.len == 0) {
            return Ok(Completion::Done);
        }
        self.waiting.clear();
        self.waiting.extend(ranges.iter().filter(|range| range.len > 0));
        self.post_part()?;
        Ok(Completion::Pending)
    }

    fn poll(&mut self) -> Result<Completion, FabricError> {
        let under_way = self.endpoint.under_way(&self.tracker)?;
        if self.waiting.is_empty() {
            return Ok(if under_way == 0 { Completion::Done } else { Completion::Pending });
        }
        // One part is on the wire while the next one waits in the queue.
        if under_way < PARTS_UNDER_WAY {
            self.post_part()?;
        }
        Ok(Completion::Pending)
    }

    fn headers(&self, len: usize) -> Result<Option<Box<dyn RemoteRead>>, FabricError> {
        Ok(Some(Box::new(Self::new(Arc::clone(&self.endpoint), self.remote, len)?)))
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        self.endpoint.wait_for(&self.tracker)
    }
}

/// A peer's region, written by the local device.
#[derive(Debug)]
struct VerbsWrite {
    /// Held weakly: a publisher may keep this while it publishes nothing, which must not keep the queue pair
    /// alive.
    endpoint: Weak<Endpoint>,
    placement: Placement,
    remote: Descriptor,
    /// The agreed length in bytes.
    len: usize,
    tracker: Arc<BatchTracker>,
    /// The source of the last batch. It ends with the session.
    source: Weak<MemoryRegion>,
    /// Batches that wait for the send queue, with their sources.
    waiting: VecDeque<(Arc<MemoryRegion>, Vec<Write>)>,
    fetching: Fetching,
}

/// A word being fetched from a writable region.
#[derive(Debug, Default)]
struct Fetching {
    tracker: Arc<BatchTracker>,
    /// Its destination, created on first use: the first word.
    target: Option<Arc<MemoryRegion>>,
    is_under_way: bool,
}

impl VerbsWrite {
    /// Does this with the endpoint, as long as the session has it.
    fn with_endpoint<T>(
        &mut self,
        act: impl FnOnce(&mut Self, &Arc<Endpoint>) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        let endpoint = self.endpoint.upgrade().ok_or(FabricError::Closed)?;
        let outcome = act(self, &endpoint);
        let_go(endpoint);
        outcome
    }

    fn try_post(
        &self,
        endpoint: &Endpoint,
        source: &Arc<MemoryRegion>,
        writes: &[Write],
    ) -> Result<Posted, FabricError> {
        let (remote, max) = (&self.remote, endpoint.message_len_max);
        let packet_len = cut_at(writes, max, endpoint.lossy_packet_len(), endpoint.batch_len_max());
        let mut words = [0; INLINE_LEN_MAX as usize / WORD];
        let (carried, bytes) = carry(source.region(), writes, &mut words, endpoint.inline_len_max());
        let copied = move |(offset, len)| Operation::Write {
            local: Slice { region: source, offset, len },
            remote: at(remote, offset),
        };
        let operations = writes.iter().flat_map(move |write| {
            let (inline, range) = match write {
                Write::Range(range) if carried == Some(*range) => inlined(remote, range.offset, bytes),
                Write::Range(range) => (None, *range),
                Write::Line { offset, words } => inlined(remote, *offset, words),
                Write::Word { offset, word } => inlined(remote, *offset, std::slice::from_ref(word)),
            };
            inline.into_iter().chain(pieces(range, write_len(range.len, max, packet_len)).map(copied))
        });
        // An empty batch is complete only after all batches before it, so an empty write is queued behind them.
        let is_empty = operations.clone().next().is_none();
        let nothing = Operation::WriteInline { bytes: &[], remote: at(remote, 0) };
        endpoint.post(&self.tracker, source, operations.chain(is_empty.then_some(nothing)))
    }

    /// A source as registered with this device; mostly that of the last batch.
    fn registered(
        &mut self,
        endpoint: &Arc<Endpoint>,
        source: &Registration,
    ) -> Result<Arc<MemoryRegion>, FabricError> {
        if let Some(last) = self.source.upgrade().filter(|last| Arc::ptr_eq(last.region(), source.region())) {
            return Ok(last);
        }
        let entry = source.entries::<VerbsRegistered>().next();
        let entry =
            entry.ok_or(FabricError::Access { why: "its source is registered with another fabric" })?;
        let found = entry.local(endpoint)?;
        self.source = Arc::downgrade(&found);
        Ok(found)
    }

    fn post_to(
        &mut self,
        endpoint: &Arc<Endpoint>,
        source: &Registration,
        writes: &[Write],
    ) -> Result<Completion, FabricError> {
        let source = self.registered(endpoint, source)?;
        self.catch_up(endpoint)?;
        if !self.waiting.is_empty() || self.try_post(endpoint, &source, writes)? == Posted::NoRoom {
            let max = limits::verbs::WAITING_BATCHES_MAX;
            if self.waiting.len() >= max {
                return Err(VerbsError::QueueFull { max }.into());
            }
            self.waiting.push_back((source, writes.to_vec()));
        }
        Ok(Completion::Pending)
    }

    fn in_flight_of(&mut self, endpoint: &Endpoint) -> Result<usize, FabricError> {
        let under_way = endpoint.under_way(&self.tracker)?;
        if self.waiting.is_empty() {
            return Ok(under_way);
        }
        self.catch_up(endpoint)?;
        Ok(endpoint.under_way(&self.tracker)? + self.waiting.len())
    }

    fn fetch_from(&mut self, endpoint: &Endpoint, offset: usize) -> Result<Option<u64>, FabricError> {
        let Fetching { tracker, target, is_under_way } = &mut self.fetching;
        let target = match target {
            Some(target) => target,
            None => {
                let region = Arc::new(Region::allocate(WORD, Protection::PeersRead)?.unshared());
                let registered = device::register(&endpoint.domain, &region, RemoteAccess::None, true)?;
                target.insert(Arc::new(registered))
            }
        };
        if *is_under_way {
            let is_done = endpoint.under_way(tracker)? == 0;
            *is_under_way = !is_done;
            return Ok(is_done.then(|| target.region().load_acquire(0)));
        }
        let len = u32::try_from(WORD).unwrap_or(u32::MAX);
        let local = Slice { region: target, offset: 0, len };
        let operation = Operation::Read { local, remote: at(&self.remote, offset) };
        *is_under_way = endpoint.post(tracker, target, std::iter::once(operation))? == Posted::Yes;
        Ok(None)
    }

    /// Posts waiting batches while the send queue accepts them.
    fn catch_up(&mut self, endpoint: &Endpoint) -> Result<(), FabricError> {
        while let Some((source, writes)) = self.waiting.front() {
            if self.try_post(endpoint, source, writes)? == Posted::NoRoom {
                break;
            }
            self.waiting.pop_front();
        }
        Ok(())
    }
}

impl RemoteWrite for VerbsWrite {
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        check_writes(common_len(self.len, self.remote.len), source, writes)?;
        if writes.iter().all(|write| write.target().len == 0) && self.in_flight()? == 0 {
            return Ok(Completion::Done);
        }
        self.with_endpoint(|this, endpoint| this.post_to(endpoint, source, writes))
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        self.with_endpoint(|this, endpoint| this.in_flight_of(endpoint))
    }

    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError> {
        if self.placement == Placement::Lossy {
            return Err(FabricError::Access { why: "an unreliable connection supports push only" });
        }
        check_bounds(common_len(self.len, self.remote.len), [ByteRange { offset, len: WORD }].into_iter())?;
        self.with_endpoint(|this, endpoint| this.fetch_from(endpoint, offset))
    }

    fn placement(&self) -> Placement {
        self.placement
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        let trackers = [Arc::clone(&self.tracker), Arc::clone(&self.fetching.tracker)];
        Arc::new(VerbsRevocation { endpoint: Weak::clone(&self.endpoint), trackers })
    }

    fn announcer(&self) -> Option<Arc<dyn ArrivalAnnouncer>> {
        // A write that is lost wakes nobody, and one more that wakes could be lost, too.
        let is_reliable = self.placement != Placement::Lossy;
        let (endpoint, tracker) = (Weak::clone(&self.endpoint), Arc::clone(&self.tracker));
        is_reliable.then(|| Arc::new(VerbsAnnouncer { endpoint, tracker }) as _)
    }
}

/// Has the writes to one region wake the peer.
#[derive(Debug)]
struct VerbsAnnouncer {
    endpoint: Weak<Endpoint>,
    tracker: Arc<BatchTracker>,
}

impl ArrivalAnnouncer for VerbsAnnouncer {
    fn begin(&self, token: u32) {
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.begin_waking(&self.tracker, token);
            let_go(endpoint);
        }
    }
}

/// Revokes the writes to one region, and the fetches of its words.
#[derive(Debug)]
struct VerbsRevocation {
    endpoint: Weak<Endpoint>,
    trackers: [Arc<BatchTracker>; 2],
}

impl Revocation for VerbsRevocation {
    fn revoke(&self) -> Completion {
        // Without an endpoint no queue pair can write.
        let revoke = |endpoint: Arc<Endpoint>| {
            self.trackers.each_ref().map(|tracker| endpoint.revoke(tracker)) == [true; 2]
        };
        let is_done = self.endpoint.upgrade().is_none_or(revoke);
        if is_done { Completion::Done } else { Completion::Pending }
    }
}

/// Returns an endpoint borrowed from its session. If the session has ended meanwhile, this is the last reference:
/// another thread then drains its queue pair, so that the publisher does not wait for it.
fn let_go(endpoint: Arc<Endpoint>) {
    if let Some(last) = Arc::into_inner(endpoint) {
        let draining =
            std::thread::Builder::new().name("fabricast-drain".to_owned()).spawn(move || drop(last));
        if let Err(error) = draining {
            tracing::debug!(target: "fabricast", %error, "a queue pair was drained in the thread of its publisher");
        }
    }
}

/// A location in a peer's region.
fn at(remote: &Descriptor, offset: usize) -> Remote {
    Remote { address: remote.address + offset as u64, key: remote.key }
}

/// Words that travel inline in their work request, and the empty range left to copy.
fn inlined<'a>(remote: &Descriptor, offset: usize, words: &'a [u64]) -> (Option<Operation<'a>>, ByteRange) {
    let operation = Operation::WriteInline { bytes: bytemuck::cast_slice(words), remote: at(remote, offset) };
    (Some(operation), ByteRange { offset, len: 0 })
}

/// Splits off the first range short enough to travel inline, and copies its words here.
fn carry<'a>(
    source: &Region,
    writes: &[Write],
    words: &'a mut [u64],
    len_max: usize,
) -> (Option<ByteRange>, &'a [u64]) {
    let short = writes.iter().find_map(|write| match write {
        Write::Range(range) if (1..=len_max.min(size_of_val(words))).contains(&range.len) => Some(*range),
        _ => None,
    });
    let (words, _) = words.split_at_mut(short.map_or(0, |range| range.len / WORD));
    if let Some(ByteRange { offset, .. }) = short {
        source.copy_out(offset, words);
    }
    (short, words)
}

/// Bytes per WRITE of a range of `len` bytes: about equal parts, in whole packets. One packet where packets may be lost: a lost
/// packet takes the rest of its WRITE along. soft-RoCE silently drops everything after it on that queue pair if it has seen the
/// beginning of a WRITE but not its end.
fn write_len(len: usize, len_max: u32, lossy_packet_len: Option<u32>) -> u32 {
    if let Some(packet_len) = lossy_packet_len
        && len.div_ceil(packet_len as usize) <= limits::verbs::PACKETS_MAX
    {
        return packet_len.min(len_max);
    }
    let count = (len + limits::verbs::WRITE_LEN / 2) / limits::verbs::WRITE_LEN;
    let each = len.div_ceil(count.clamp(1, limits::verbs::WRITES_MAX)).next_multiple_of(PACKET_LEN_MAX);
    u32::try_from(each).map_or(len_max, |each| each.min(len_max))
}

/// Bytes of a packet, if packets may be lost and the batch fits the send queue packet by packet.
fn cut_at(writes: &[Write], len_max: u32, lossy_packet_len: Option<u32>, batch_len_max: u32) -> Option<u32> {
    lossy_packet_len.filter(|len| requests(writes, len_max, *len) <= batch_len_max as usize)
}

/// Work requests of a batch that goes packet by packet.
fn requests(writes: &[Write], len_max: u32, packet_len: u32) -> usize {
    let requests = |write: &Write| match write {
        Write::Range(range) => pieces(*range, write_len(range.len, len_max, Some(packet_len))).count(),
        Write::Line { .. } | Write::Word { .. } => 1,
    };
    writes.iter().map(requests).sum()
}

/// Splits a range into pieces of at most one work request each.
fn pieces(range: ByteRange, len_max: u32) -> impl Iterator<Item = (usize, u32)> + Clone {
    let ByteRange { offset, len } = range;
    let step = (len_max as usize / WORD * WORD).max(WORD);
    let piece = move |done: usize| (offset + done, u32::try_from((len - done).min(step)).unwrap_or(len_max));
    (0..len).step_by(step).map(piece)
}

/// Removes this many bytes from the front of these ranges.
fn drop_front(ranges: &mut VecDeque<ByteRange>, mut len: usize) {
    while let Some(front) = ranges.front_mut() {
        if front.len > len {
            (front.offset, front.len) = (front.offset + len, front.len - len);
            return;
        }
        len -= front.len;
        ranges.pop_front();
    }
}

/// The length of a region with `len` bytes here and `remote_len` at the peer.
fn common_len(len: usize, remote_len: u64) -> usize {
    usize::try_from(remote_len).unwrap_or(usize::MAX).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_into_pieces_of_whole_words() {
        let cut = |offset, len, max| pieces(ByteRange { offset, len }, max).collect::<Vec<_>>();
        assert_eq!(cut(8, 0, 4096), []);
        assert_eq!(cut(8, 4096, 4096), [(8, 4096)]);
        assert_eq!(cut(8, 4104, 4096), [(8, 4096), (4104, 8)]);
        assert_eq!(cut(0, 24, 12), [(0, 8), (8, 8), (16, 8)]);
        assert_eq!(cut(0, 1 << 33, 1 << 31).len(), 4);
    }

    #[test]
    fn ranges_are_read_from_the_front() {
        let range = |offset, len| ByteRange { offset, len };
        let mut ranges = VecDeque::from([range(0, 64), range(128, 8), range(256, 4096)]);
        drop_front(&mut ranges, 32);
        assert_eq!(ranges, [range(32, 32), range(128, 8), range(256, 4096)]);
        drop_front(&mut ranges, 32);
        assert_eq!(ranges, [range(128, 8), range(256, 4096)]);
        drop_front(&mut ranges, 8 + 4088);
        assert_eq!(ranges, [range(4344, 8)]);
        drop_front(&mut ranges, 8);
        assert_eq!(ranges, []);
    }

    #[test]
    fn long_ranges_are_written_by_several_short_writes_but_not_by_too_many() {
        let cut = |len| {
            let cut = pieces(ByteRange { offset: 0, len }, write_len(len, 1 << 23, None)).collect::<Vec<_>>();
            assert_eq!(cut.iter().map(|(_, len)| *len as usize).sum::<usize>(), len);
            cut.into_iter().map(|(_, len)| len as usize / 1024).collect::<Vec<_>>()
        };
        assert_eq!((cut(8), cut(16 << 10), cut(33 << 10)), (vec![0], vec![16], vec![33]));
        // No short remainder of its own.
        assert_eq!((cut(64 << 10), cut(66 << 10)), (vec![32, 32], vec![36, 30]));
        assert_eq!(cut(limits::LOG_BATCH_LEN_MAX), [32; 32]);
        assert_eq!(cut(1 << 30).len(), 128, "as few as the device can");
        for len in (8..6 << 20).step_by(40_008) {
            assert!(cut(len).len() <= limits::verbs::WRITES_MAX, "{len}");
        }
    }

    #[test]
    fn lossy_ranges_are_written_packet_by_packet() {
        let lens = |len, packet_len| {
            let each = write_len(len, 1 << 23, Some(packet_len));
            let cut = pieces(ByteRange { offset: 8, len }, each).map(|(_, len)| len as usize);
            let lens = cut.collect::<Vec<_>>();
            assert_eq!(lens.iter().sum::<usize>(), len);
            lens
        };
        assert_eq!(lens(4096, 4096), [4096]);
        assert_eq!(lens(4104, 4096), [4096, 8]);
        assert_eq!(lens(256 << 10, 4096), [4096; 64]);
        // The longest batch of a log, and a payload of 64 KiB with the header of a value or a record.
        assert_eq!(lens(limits::LOG_BATCH_LEN_MIN, 1024), [1024; 64]);
        for header_len in [24, 64] {
            assert_eq!(lens((64 << 10) + header_len, 1024), [[1024; 64].as_slice(), &[header_len]].concat());
        }
        // More than the queue accepts.
        assert_eq!(lens(512 << 10, 4096), [32 << 10; 16]);
    }

    /// A device's queue may hold fewer work requests than a batch of a log has packets: two ranges of frames, the index, and the
    /// hot line before and behind them.
    #[test]
    fn a_batch_with_more_packets_than_a_queue_holds_uses_longer_writes() {
        let range = |len| Write::Range(ByteRange { offset: 0, len });
        let line = Write::Line { offset: 0, words: [0; 8] };
        let batch = [line, range(32 << 10), range(32 << 10), range(1024), line];
        for (packet_len, in_packets) in [(4096, 8 + 8 + 3), (1024, 32 + 32 + 3), (512, 64 + 64 + 4)] {
            assert_eq!(requests(&batch, 1 << 23, packet_len), in_packets);
            let cut = |batch_len_max| cut_at(&batch, 1 << 23, Some(packet_len), batch_len_max);
            assert_eq!(cut(u32::try_from(in_packets).unwrap()), Some(packet_len));
            assert_eq!(cut(u32::try_from(in_packets).unwrap() - 1), None);
        }
        assert_eq!(cut_at(&batch, 1 << 23, None, 256), None);
        // Both ranges are too long for it.
        assert_eq!(requests(&batch, 1 << 23, 256), 1 + 1 + 4 + 2);
    }

    #[test]
    fn ranges_outside_of_either_region_are_refused() {
        let check = |len, remote_len, offset, range_len| {
            check_bounds(common_len(len, remote_len), [ByteRange { offset, len: range_len }].into_iter())
                .is_ok()
        };
        assert!(check(4096, 4096, 0, 4096) && check(4096, 4096, 4096, 0) && check(4096, 8192, 4088, 8));
        for (offset, len) in [(0, 4104), (4096, 8), (4104, 0), (4, 8), (8, 4), (usize::MAX - 7, 8)] {
            assert!(!check(4096, 8192, offset, len) && !check(8192, 4096, offset, len), "{len} at {offset}");
        }
    }
}
