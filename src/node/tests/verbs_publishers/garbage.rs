//! Hostile publishers that write anything to the landing regions exposed to them.

use super::*;
use crate::fabric::{ByteRange, RemoteWrite, Write};
use crate::layout::WORD;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::state::HEADER_WORDS;
use crate::repository::state::forgery;

/// The words of a slot with this payload, valid in every respect.
fn slot_of(stock: &Stock, epoch: Epoch, sequence: u64, payload: &[u8]) -> Vec<u64> {
    let (memory, range) = forgery::slot(TopicId::of(&stock.topic), epoch, sequence, payload);
    let mut words = vec![0; range.len / WORD];
    memory.copy_out(range.offset, &mut words);
    words
}

/// A slot that is damaged in one way of four, and how that is reported.
fn damaged(stock: &Stock, sequence: u64, random: &mut Random) -> (Vec<u64>, &'static str) {
    let mut slot = slot_of(stock, stock.epoch, sequence, &[0; 40]);
    let last = slot.len() - 1;
    match sequence % 4 {
        0 => {
            // The payload, or its checksum.
            slot[HEADER_WORDS + random.index(6)] ^= 1 << random.below(64);
            (slot, "Damaged")
        }
        1 => {
            slot[last] ^= 1 << random.below(64);
            (slot, "BrokenStamps")
        }
        2 => {
            slot[2] |= 1 << (7 + random.below(25));
            (slot, "ImpossibleLen")
        }
        _ => {
            let epoch = Epoch::new(stock.epoch.get() ^ (2 << random.below(63))).unwrap();
            (slot_of(stock, epoch, sequence, &[0; 40]), "ForeignEpoch")
        }
    }
}

/// A landing region at a subscriber, and what is written there.
struct Pusher {
    remote: Box<dyn RemoteWrite>,
    source: Registration,
    geometry: StateGeometry,
}

impl Pusher {
    fn new(liar: &mut Liar) -> Self {
        let geometry = liar.stock.geometry;
        let landing = liar.lies.iter_mut().find_map(|lie| lie.landings.pop()).unwrap();
        let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
        let source = liar.fabric.register(&region, Exposure::Read).unwrap();
        Self { remote: landing.open_write(geometry.region_len()).unwrap(), source, geometry }
    }

    fn write(&mut self, writes: &[Write]) {
        self.remote.post(&self.source, writes).unwrap();
        wait_until("writes", || self.remote.in_flight().unwrap() == 0);
    }

    /// Writes words of no meaning, large and small ones, to this range.
    fn scatter(&mut self, range: ByteRange, random: &mut Random) {
        for offset in (range.offset..range.offset + range.len).step_by(WORD) {
            let word = random.next() >> random.below(64);
            self.source.region().store(offset, word);
        }
        self.write(&[Write::Range(range)]);
    }

    /// Writes a slot, and names it in the hot line.
    fn publish(&mut self, sequence: u64, slot: &[u64]) {
        let offset = self.geometry.slot_offset(Sequence::new(sequence));
        self.source.region().copy_in(offset, slot);
        let slot = Write::Range(ByteRange { offset, len: slot.len() * WORD });
        self.write(&[slot, Write::Word { offset: HOT_SEQUENCE, word: sequence }]);
    }
}

/// Writes random words or damaged slots to a landing region.
fn spoil(pusher: &mut Pusher, stock: &Stock, last: u64, random: &mut Random) {
    let (words, next) = (stock.geometry.region_len() / WORD, last + 1 + random.below(3));
    match random.below(4) {
        0 => pusher.scatter(ByteRange { offset: 0, len: words * WORD }, random),
        1 => {
            let first = random.index(words);
            let len = (1 + random.index(words - first)) * WORD;
            pusher.scatter(ByteRange { offset: first * WORD, len }, random);
        }
        2 => {
            let mut slot = slot_of(stock, stock.epoch, next, &[0; 40]);
            let at = random.index(slot.len());
            slot[at] ^= 1 << random.below(64);
            pusher.publish(next, &slot);
        }
        _ => pusher.publish(next, &damaged(stock, next, random).0),
    }
}

/// Polls a subscriber to which no right value was written. Returns the error, if there is one.
fn look(subscriber: &mut StateSubscriber<Raw>) -> Option<ReceiveError> {
    match subscriber.try_receive() {
        Ok(None) => None,
        Ok(Some(sample)) => panic!("{sample:?} was taken for a value"),
        Err(error @ (ReceiveError::Ended { .. } | ReceiveError::Gone { .. })) => panic!("{error:?}"),
        Err(error) => Some(error),
    }
}

fn garbage_is_never_a_value(connect: RdmaConnect, port: u16) {
    const ROUNDS: u64 = 12;
    /// What is written in each round before a damaged value and a right one.
    const SPOILT: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let mut victim = Victim::open(&dir, connect, port);
    let at = address(port + 1);
    let mut liar = Liar::open(&dir, &at);
    let (node, target) = (victim.node.clone(), format!("{at}/t"));
    let open = || node.state_subscriber::<Raw>(target.as_str()).timeout(TIMEOUT).push().open();
    let mut subscriber = liar.meet(PLAIN, open).unwrap();
    let mut pusher = Pusher::new(&mut liar);
    let (mut errors, mut rounds) = (BTreeMap::<String, u32>::new(), 0);
    each_seed(ROUNDS, |seed| {
        let mut random = Random::new(seed);
        for _ in 0..SPOILT {
            spoil(&mut pusher, &liar.stock, subscriber.last().get(), &mut random);
            look(&mut subscriber)
                .into_iter()
                .for_each(|error| *errors.entry(variant(&error)).or_default() += 1);
            liar.turn(PLAIN);
        }
        // Later than all of these.
        let sequence = 4 * (subscriber.last().get() / 4) + u64::from(pusher.geometry.slot_count()) + seed % 4;
        let (slot, expected) = damaged(&liar.stock, sequence, &mut random);
        pusher.publish(sequence, &slot);
        wait_until(&format!("seed {seed}: {expected} of {sequence}"), || {
            liar.turn(PLAIN);
            let Some(error) = look(&mut subscriber) else { return false };
            *errors.entry(variant(&error)).or_default() += 1;
            variant(&error) == expected && subscriber.last().get() == sequence
        });
        pusher.publish(
            sequence + 1,
            &slot_of(&liar.stock, liar.stock.epoch, sequence + 1, &seed.to_le_bytes()),
        );
        let sample = receive(&mut subscriber);
        assert_eq!((sample.value, sample.meta.sequence.get()), (seed.to_le_bytes().to_vec(), sequence + 1));
        victim.receives(seed);
        rounds += 1;
    });
    assert_eq!(subscriber.stats().received, rounds);
    println!("{connect:?}: {errors:?}, {:?}", subscriber.stats());
}

#[test]
#[ignore = "needs an RDMA device"]
fn garbage_written_over_rdma_to_a_landing_region_is_never_a_value() {
    garbage_is_never_a_value(RdmaConnect::Manager, 7571);
}

#[test]
#[ignore = "needs an RDMA device"]
fn garbage_written_over_rdma_connected_by_tcp_to_a_landing_region_is_never_a_value() {
    garbage_is_never_a_value(RdmaConnect::Tcp, 7573);
}
