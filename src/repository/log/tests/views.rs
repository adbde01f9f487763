//! Records taken in place: by a reader whose publisher overwrites nothing that is not released.

use std::collections::VecDeque;

use super::*;
use crate::layout::WORD;
use crate::layout::header::HOT_OFFSET;
use crate::layout::log::{HOT_START, LANDING_CONSUMED, frame_len};
use crate::repository::log::Viewed;

/// The longest payload here: several pieces, and not whole words.
const LEN_MAX: usize = 40_001;

/// A writer that waits for its reader, by pull or by push.
struct Gated {
    writer: LogWriter,
    reader: LogReader,
    /// The landing region, by push.
    landing: Option<Region>,
    /// Up to where it is written.
    delivered: u64,
}

impl Gated {
    fn new(is_landing: bool) -> Self {
        let writer = writer(1 << 18, LEN_MAX);
        let landing =
            is_landing.then(|| Region::allocate(writer.region().len(), Protection::PeersWrite).unwrap());
        let reader = reader(&writer, LogStart::At(Sequence::new(1)));
        Self { writer, reader, landing, delivered: 0 }
    }

    fn memory(&self) -> &Region {
        self.landing.as_ref().unwrap_or(self.writer.region())
    }

    /// Publishes a record unless the reader still needs what it overwrites. Returns whether it did.
    fn try_publish(&mut self, payload: &[u8]) -> bool {
        let until = self.writer.gives_up(frame_len(payload.len()));
        if until.is_some_and(|until| until > self.reader.released(self.landing.is_some())) {
            return false;
        }
        let sequence = self.writer.last().get() + 1;
        self.writer.append(payload, sequence).unwrap();
        self.writer.commit(sequence);
        self.deliver();
        true
    }

    /// Writes what is new to the landing region, as far as the reader's consumed position allows.
    fn deliver(&mut self) {
        let Some(landing) = &self.landing else { return };
        let (geometry, end) = (self.writer.geometry(), self.writer.committed_end());
        assert!(end - landing.load(LANDING_CONSUMED) <= geometry.capacity() as u64, "it is gated");
        let ranges = geometry.ranges(self.delivered, end);
        let line = HOT_OFFSET..HOT_OFFSET + crate::layout::LINE;
        let words = ranges.into_iter().flat_map(|range| range.offset..range.offset + range.len).chain(line);
        words.step_by(WORD).for_each(|offset| landing.store(offset, self.writer.region().load(offset)));
        self.delivered = end;
    }

    fn view(&mut self) -> Option<Viewed> {
        let Self { writer, reader, landing, .. } = self;
        reader.view(landing.as_ref().unwrap_or(writer.region()), landing.is_some())
    }

    fn end_view(&mut self) {
        let Self { writer, reader, landing, .. } = self;
        reader.end_view(landing.as_ref().unwrap_or(writer.region()), landing.is_some());
    }

    /// Takes a record to private memory.
    fn take(&mut self) -> Option<Vec<u8>> {
        let Self { writer, reader, landing, .. } = self;
        let taken = reader.take_held().map(Ok);
        let taken = taken.or_else(|| match landing {
            None => reader.poll(writer.region()).transpose(),
            Some(landing) => reader.follow(landing, WriteOrder::Words, || 0).transpose(),
        });
        taken.map(|taken| match came(reader, taken) {
            Next::Record(record) => record.payload.to_vec(),
            Next::Lost(lost) => panic!("{lost:?}"),
        })
    }

    /// The bytes in view, as they are now.
    fn bytes(&self, viewed: &Viewed) -> Vec<u8> {
        let mut bytes = vec![0; viewed.len];
        self.memory().copy_out_bytes(viewed.offset, &mut bytes);
        bytes
    }
}

#[test]
fn record_in_view_is_kept_and_each_record_is_received_once() {
    for is_landing in [false, true] {
        each_seed(amount(15, 300), |seed| {
            let mut random = Random::new(seed);
            let mut gated = Gated::new(is_landing);
            let mut unread: VecDeque<Vec<u8>> = VecDeque::new();
            let (mut in_place, mut number) = (0, 0_u64);
            for _ in 0..400 {
                // As many as the ring takes, or fewer.
                let most = random.below(12);
                for _ in 0..most {
                    let len = if random.once_in(3) { random.index(200) } else { random.index(LEN_MAX + 1) };
                    number += 1;
                    let payload: Vec<u8> =
                        (0..len as u64).map(|at| (at ^ (number * 31)).to_le_bytes()[0]).collect();
                    if !gated.try_publish(&payload) {
                        number -= 1;
                        break;
                    }
                    unread.push_back(payload);
                }
                for _ in 0..random.below(8) {
                    let viewed = if random.once_in(4) { None } else { gated.view() };
                    let Some(viewed) = viewed else {
                        assert_eq!(gated.take(), unread.pop_front(), "seed {seed}");
                        continue;
                    };
                    in_place += 1;
                    let expected = unread.pop_front().expect("a record");
                    // The publisher goes on until it would have to wait.
                    for _ in 0..random.below(20) {
                        let payload = vec![random.next().to_le_bytes()[0]; random.index(LEN_MAX + 1)];
                        if !gated.try_publish(&payload) {
                            break;
                        }
                        number += 1;
                        unread.push_back(payload);
                    }
                    assert!(viewed.is_intact(gated.memory()));
                    assert_eq!(gated.bytes(&viewed), expected, "seed {seed}");
                    // Some views are leaked.
                    if !random.once_in(5) {
                        gated.end_view();
                    }
                }
            }
            while let Some(payload) = gated.take() {
                assert_eq!(Some(payload), unread.pop_front(), "seed {seed}");
            }
            assert!(unread.is_empty(), "seed {seed}");
            assert_eq!(gated.reader.counts().received, number);
            assert!(in_place > 50, "seed {seed}: only {in_place} in place");
        });
    }
}

#[test]
fn record_in_view_is_not_released_and_the_ones_before_are() {
    let mut gated = Gated::new(false);
    assert!(gated.take().is_none());
    // From the first one on.
    for number in 0..3 {
        assert!(gated.try_publish(&[7; 10_000]));
        let before = number * frame_len(10_000) as u64;
        assert!(gated.view().is_some());
        assert_eq!(gated.reader.released(false), before);
        gated.end_view();
        assert_eq!(gated.reader.released(false), before + frame_len(10_000) as u64);
    }
}

/// A view that is leaked is never dropped.
#[test]
fn leaked_view_is_released_by_the_next_receive() {
    for is_landing in [false, true] {
        let mut gated = Gated::new(is_landing);
        assert!(gated.take().is_none() && gated.try_publish(&[7; 10_000]));
        assert!(gated.view().is_some());
        assert_eq!(gated.reader.released(is_landing), 0);
        assert!(gated.take().is_none());
        if !is_landing {
            assert_eq!(gated.reader.released(is_landing), frame_len(10_000) as u64);
        }
        assert!(gated.reader.in_view().is_none());
    }
}

#[test]
fn short_damaged_and_uncommitted_records_are_not_viewed() {
    let mut gated = Gated::new(false);
    assert!(gated.try_publish(&[1; 8]) && gated.take().is_some());
    assert!(gated.try_publish(&[2; 4000]) && gated.view().is_none());
    assert_eq!(gated.take(), Some(vec![2; 4000]));
    gated.writer.append(&[3; 5000], 3).unwrap();
    assert!(gated.view().is_none());
    gated.writer.commit(3);
    let viewed = gated.view().expect("a record");
    assert_eq!(gated.bytes(&viewed), [3; 5000]);
    gated.end_view();
    assert!(gated.try_publish(&[4; 5000]) && gated.try_publish(&[5; 5000]));
    let place = gated.writer.geometry().offset(gated.reader.released(false));
    gated.writer.region().store(place + 2048, 0);
    assert!(gated.view().is_none());
    let region = Arc::clone(gated.writer.region());
    let Some(Next::Lost(lost)) = poll(&mut gated.reader, &region) else { panic!("it is damaged") };
    assert_eq!(lost, Lost { first: Sequence::new(4), count: 1, reason: LossReason::Damaged });
}

#[test]
fn record_that_was_given_up_in_view_is_known() {
    for is_landing in [false, true] {
        let mut gated = Gated::new(is_landing);
        assert!(gated.try_publish(&[1; 8]) && gated.take().is_some() && gated.take().is_none());
        assert!(gated.try_publish(&[2; 30_000]));
        let viewed = gated.view().expect("a record");
        assert!(viewed.is_intact(gated.memory()));
        // A publisher that has let the reader go overwrites the record.
        for sequence in 3..20 {
            gated.writer.append(&[3; 30_000], sequence).unwrap();
            gated.writer.commit(sequence);
        }
        if let Some(landing) = &gated.landing {
            landing.store(HOT_START, gated.writer.region().load(HOT_START));
        }
        assert!(!viewed.is_intact(gated.memory()));
    }
}

/// A publisher that breaks the protocol writes while the record is read: words are the old or the new ones, and nothing else happens.
#[test]
fn words_in_view_are_whole_while_a_hostile_publisher_writes() {
    const OLD: u64 = 0x5555_5555_5555_5555;
    const NEW: u64 = 0xAAAA_AAAA_AAAA_AAAA;
    let mut gated = Gated::new(false);
    assert!(gated.try_publish(&[1; 8]) && gated.take().is_some());
    let payload = [OLD; 4096];
    assert!(gated.try_publish(bytemuck::cast_slice(&payload)));
    let viewed = gated.view().expect("a record");
    let region = Arc::clone(gated.writer.region());
    let offsets = || (viewed.offset..viewed.offset + viewed.len).step_by(WORD);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..200 {
                offsets().for_each(|offset| region.store(offset, if round % 2 == 0 { NEW } else { OLD }));
            }
        });
        for _ in 0..200 {
            let mut words = [0_u64; 4096];
            gated.memory().copy_out_bytes(viewed.offset, bytemuck::cast_slice_mut(&mut words));
            assert!(words.iter().all(|word| [OLD, NEW].contains(word)));
        }
    });
    gated.end_view();
    assert!(gated.try_publish(&[9; 8]));
    assert_eq!(gated.take(), Some(vec![9; 8]), "the records after it are received");
}
