//! Log topics.

use super::*;
use crate::layout::log::{FrameCheck, FrameHeader, LogGeometry, frame_len};
use crate::repository::Writer as _;
use crate::repository::log::{Appended, LogWriter};

/// Bytes of the ring: a few hundred records.
const CAPACITY: usize = 1 << 15;

/// A publisher, and a subscriber with notices.
struct World {
    writer: LogWriter,
    net: Net,
    receiver: Arc<NoticeReceiver>,
    subscriber: LogSubscriber<Raw>,
    /// The next record.
    next: u64,
    /// The first forged record received, unless contradicted since.
    forged: Option<u64>,
    lapped: u64,
    contradictions: u64,
}

fn payload(number: u64) -> Vec<u8> {
    vec![number.to_le_bytes()[0] & 0x7f; usize::try_from(number * 7 % LEN_MAX as u64).unwrap() + 1]
}

/// A flaw of a forged frame.
#[derive(Clone, Copy, Debug)]
enum Flaw {
    /// Its sequence.
    Sequence(u64),
    /// Its checksum.
    Checksum,
    /// Its length: the frame extends beyond the datagram.
    Len,
}

const FLAWS: [Flaw; 5] =
    [Flaw::Sequence(1), Flaw::Sequence(1 << 63), Flaw::Sequence(u64::MAX), Flaw::Checksum, Flaw::Len];

/// So many forged frames, in separate memory. The last one may have a flaw.
fn forged_frames(first: u64, count: u64, len: usize, flaw: Option<Flaw>) -> (Region, ByteRange) {
    let check = FrameCheck::new(topic_id(), EPOCH);
    let mut words = Vec::new();
    for sequence in first..first + count {
        let flaw = flaw.filter(|_| sequence + 1 == first + count);
        let payload = vec![FORGED; len];
        let sequence = if let Some(Flaw::Sequence(wrong)) = flaw { wrong } else { sequence };
        let (sequence, payload_len) = (Sequence::new(sequence), u32::try_from(len).unwrap());
        let header = FrameHeader { sequence, payload_len, crc: 0, published_ns: 5 };
        let mut header = FrameHeader { crc: check.of(&header, &payload), ..header };
        header.crc ^= u32::from(matches!(flaw, Some(Flaw::Checksum)));
        header.payload_len += if let Some(Flaw::Len) = flaw { 8 } else { 0 };
        words.extend(header.emit());
        let padded: Vec<u8> = payload.into_iter().chain([0; WORD]).take(frame_len(len) - 24).collect();
        words.extend(padded.chunks(WORD).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())));
    }
    let memory = Region::allocate(1 << 16, Protection::PeersRead).unwrap();
    words.iter().enumerate().for_each(|(index, word)| memory.store(index * WORD, *word));
    (memory, ByteRange { offset: 0, len: words.len() * WORD })
}

impl World {
    fn new(seed: u64) -> Self {
        Self::starting(seed, LogStart::Earliest)
    }

    fn starting(seed: u64, start: LogStart) -> Self {
        Self::trusting((seed, true), start)
    }

    /// A world whose subscriber takes inline records from multicast if it trusts what other subscribers could have sent.
    fn trusting((seed, trusts_shared): (u64, bool), start: LogStart) -> Self {
        let geometry = LogGeometry::new(CAPACITY, LEN_MAX).unwrap();
        let memory = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
        let line = Geometry::from(geometry).static_header(EPOCH, topic_id(), 0);
        let writer = LogWriter::new(Arc::clone(&memory), geometry, &line);
        let Ends { net, receiver, subscription, .. } =
            subscribe((seed, trusts_shared), &memory, geometry.into());
        let subscriber = LogSubscriber::open(subscription, start).unwrap();
        let (forged, lapped, contradictions) = (None, 0, 0);
        let next = subscriber.next_sequence().get();
        Self { writer, net, receiver, subscriber, next, forged, lapped, contradictions }
    }

    fn newest(&self) -> u64 {
        self.writer.last().get()
    }

    fn publish(&mut self, count: u64) {
        self.publish_so(count, true);
    }

    /// Publishes so many records, inline or not.
    fn publish_so(&mut self, count: u64, is_inline: bool) {
        let first = self.newest() + 1;
        for number in first..first + count {
            self.writer.append(&payload(number), number).unwrap();
        }
        let now_ns = self.net.now_ns();
        let Some(Appended { newest, positions, count }) = self.writer.commit(now_ns) else { return };
        let memory = Arc::clone(self.writer.region());
        let range = self.writer.geometry().range(positions);
        let records = u32::try_from(count).unwrap();
        let range = range.filter(|_| is_inline);
        let inline = range.map(|range| Inline { memory: &memory, range, records });
        self.net.tell([newest.get(), positions[1]], inline);
    }

    fn pass(&mut self, ns: u64) {
        let position = [self.newest(), self.writer.committed_end()];
        self.net.pass(ns, position);
    }

    fn forge(&mut self, count: u64, len: usize, flaw: Option<Flaw>) {
        self.forge_at(0, count, len, flaw);
    }

    /// The same at so many bytes after or before the next record's place.
    fn forge_at(&mut self, shift: i64, count: u64, len: usize, flaw: Option<Flaw>) {
        let (newest, end) = (self.newest(), self.writer.committed_end());
        let (memory, range) = forged_frames(newest + 1, count, len, flaw);
        let position = (end + range.len as u64).wrapping_add_signed(shift);
        let records = u32::try_from(count).unwrap();
        self.net.forge([newest + count, position], Some(Inline { memory: &memory, range, records }));
    }

    fn receive(&mut self) {
        match self.subscriber.try_receive() {
            Ok(None) => {}
            Ok(Some(record)) => {
                assert_eq!(record.meta.sequence.get(), self.next);
                if record.value.first() == Some(&FORGED) {
                    assert_eq!(self.contradictions, 0, "{} after inline values were refused", self.next);
                    self.forged.get_or_insert(self.next);
                } else {
                    assert_eq!(record.value, payload(self.next));
                }
                self.next += 1;
            }
            Err(ReceiveError::Lapped { first_lost, count }) => {
                assert_eq!(first_lost.get(), self.next);
                self.next += count;
                self.lapped += count;
            }
            Err(ReceiveError::Contradicted { first, told, found }) => {
                self.contradictions += 1;
                assert!(found.get() <= self.newest() && told.get() == self.next - 1, "{found} {told}");
                assert_eq!(self.forged.take(), Some(first.get()));
                self.next = first.get();
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self) {
        match self.net.random.below(6) {
            0 => self.publish(1),
            1 => {
                let count = self.net.random.below(9);
                self.publish(count);
            }
            2 if self.net.random.once_in(8) => (0..90).for_each(|_| self.publish(4)),
            2 | 3 => {
                let ns = self.net.random.below(40_000_000);
                self.pass(ns);
            }
            _ => (0..self.net.random.below(30)).for_each(|_| self.receive()),
        }
    }

    /// Proceeds until the subscriber must have found everything.
    fn settle(&mut self) {
        let until_ns = self.net.now_ns() + TIMER_NS;
        while self.net.now_ns() < until_ns {
            self.pass(10_000_000);
            (0..5).for_each(|_| self.receive());
        }
        let mut turns = 0;
        while turns < 60 || (self.next <= self.newest() && turns < 4000) {
            self.receive();
            turns += 1;
        }
    }
}

#[test]
fn honest_network_never_makes_the_log_contradict_its_notices() {
    let (mut lapped, mut inline) = (0, 0);
    each_seed(1500, |seed| {
        let mut world = World::new(seed);
        (0..100).for_each(|_| world.step());
        world.settle();
        assert_eq!((world.next, world.contradictions, world.forged), (world.newest() + 1, 0, None));
        let stats = world.subscriber.stats();
        assert_eq!((stats.received + stats.lapped, stats.rejected), (world.newest(), 0));
        assert_eq!((stats.lapped, stats.withdrawn), (world.lapped, 0));
        lapped += stats.lapped;
        inline += world.receiver.counts().inline_taken;
    });
    println!("{inline} pieces came inline, {lapped} records were lapped");
    assert!(std::env::var("FABRICAST_SEED").is_ok() || (lapped > 0 && inline > 0));
}

/// Whatever a forger with the topic's key sends, every record is received as published, and forged ones are reported.
#[test]
fn forged_records_are_detected_and_the_real_ones_received() {
    let mut contradictions = 0;
    each_seed(300, |seed| {
        let mut world = World::new(seed);
        for _ in 0..6 {
            (0..15).for_each(|_| world.step());
            world.settle();
            let (count, len) = (1 + world.net.random.below(3), world.net.random.index(LEN_MAX) + 1);
            match world.net.random.below(5) {
                0 => world.forge(count, len, None),
                3 => {
                    let flaw = FLAWS[world.net.random.index(FLAWS.len())];
                    world.forge(count, len, Some(flaw));
                }
                4 => {
                    let shift = [-8, 8, 1 << 20, i64::MIN][world.net.random.index(4)];
                    world.forge_at(shift, count, len, None);
                }
                1 => {
                    let ahead = [1, 1 << 20, 1 << 63][world.net.random.index(3)];
                    let position = world.net.random.next() / 8 * 8;
                    let sequence = world.newest() + ahead;
                    world.net.forge([sequence, position], None);
                }
                _ => {}
            }
            (0..world.net.random.below(3)).for_each(|_| world.receive());
            let is_inline = world.net.random.once_in(2);
            world.publish_so(count, is_inline);
            (0..world.net.random.below(5)).for_each(|_| world.receive());
            world.publish(2);
            world.settle();
            assert_eq!((world.next, world.forged), (world.newest() + 1, None));
        }
        assert!(world.contradictions <= 1);
        let stats = world.subscriber.stats();
        assert_eq!(stats.received - stats.withdrawn + stats.lapped, world.newest());
        assert_eq!(world.receiver.counts().contradicted, world.contradictions);
        contradictions += world.contradictions;
    });
    println!("{contradictions} contradictions");
    assert!(contradictions > 0 || std::env::var("FABRICAST_SEED").is_ok());
}

/// A forged record may be as long as the real one, shorter or longer, and come before it or where there is none.
#[test]
fn forged_record_does_not_replace_the_real_one() {
    for (len, published) in [(7, 0), (7, 1), (29, 1), (64, 1), (64, 3), (1, 9)] {
        let mut world = World::new(0);
        (world.net.lose_permille, world.net.delay_ns_max) = (0, 0);
        for _ in 0..4 {
            world.publish(1);
            world.settle();
        }
        world.forge(1, len, None);
        (0..9).for_each(|_| world.receive());
        assert_eq!(world.forged, Some(5), "the subscriber takes it for the next one");
        (0..published).for_each(|_| world.publish(1));
        world.settle();
        let expected = (5 + published, 1, None);
        assert_eq!((world.next, world.contradictions, world.forged), expected, "{len} {published}");
        assert_eq!(world.subscriber.stats().withdrawn, 1);
        world.publish(3);
        world.settle();
        assert_eq!((world.next, world.contradictions), (8 + published, 1));
    }
}

/// An inline frame that is not a record was not received, so the real record is not compared with it.
#[test]
fn forged_frame_that_is_not_a_record_costs_no_real_record() {
    for (flaw, before) in FLAWS.into_iter().flat_map(|flaw| [(flaw, 0), (flaw, 2)]) {
        let mut world = World::new(0);
        (world.net.lose_permille, world.net.delay_ns_max) = (0, 0);
        for _ in 0..4 {
            world.publish(1);
            world.settle();
        }
        world.forge(before + 1, 16, Some(flaw));
        (0..9).for_each(|_| world.receive());
        // Those before it are forged, too, but are records.
        let contradictions = u64::from(before > 0);
        assert_eq!((world.next, world.contradictions), (5, contradictions), "{flaw:?} after {before}");
        world.publish_so(3, false);
        world.settle();
        assert_eq!((world.next, world.contradictions), (8, contradictions), "{flaw:?} after {before}");
        assert_eq!((world.subscriber.stats().withdrawn, world.lapped), (before, 0));
    }
}

/// They are not received, so there is nothing to withdraw.
#[test]
fn forged_records_before_the_start_are_not_contradicted() {
    for count in [1, 3] {
        let mut world = World::starting(0, LogStart::At(Sequence::new(8)));
        (world.net.lose_permille, world.net.delay_ns_max) = (0, 0);
        for _ in 0..4 {
            world.publish(1);
            world.settle();
        }
        world.forge(count, 16, None);
        (0..9).for_each(|_| world.receive());
        world.publish(6);
        world.settle();
        assert_eq!((world.next, world.contradictions), (11, 0));
        let stats = world.subscriber.stats();
        assert_eq!((stats.received, stats.withdrawn), (3, 0));
    }
}

/// Peers that prove keys are told apart: what all subscribers of a topic can make is then a hint, and never a record.
#[test]
fn records_that_other_subscribers_can_forge_are_read_before_they_are_received() {
    let mut untrusted = 0;
    each_seed(300, |seed| {
        let mut world = World::trusting((seed, false), LogStart::Earliest);
        for _ in 0..6 {
            (0..15).for_each(|_| world.step());
            world.settle();
            let (count, len) = (1 + world.net.random.below(3), world.net.random.index(LEN_MAX) + 1);
            world.forge(count, len, None);
            (0..9).for_each(|_| world.receive());
            world.publish(count);
            world.settle();
            assert_eq!((world.next, world.forged), (world.newest() + 1, None));
        }
        let (stats, counts) = (world.subscriber.stats(), world.receiver.counts());
        assert_eq!((world.contradictions, stats.contradicted, stats.withdrawn), (0, 0, 0));
        assert_eq!((counts.contradicted, counts.inline_taken), (0, 0));
        untrusted += counts.inline_untrusted;
    });
    assert!(untrusted > 0);
}
