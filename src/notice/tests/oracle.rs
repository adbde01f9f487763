//! Whatever a network does to notices, a mailbox holds only announced values, never goes back, and gets each once.

use super::*;

const STEPS: usize = 400;
/// The last of the topics has no subscription.
const TOPICS: usize = 5;

/// What the network does besides losing, duplicating and delaying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// Nothing.
    Honest,
    /// Flips bits, cuts datagrams, and injects those of others.
    Hostile,
}

/// A mailbox, and what it may contain.
#[derive(Debug)]
struct Reader {
    topic: usize,
    mailbox: Arc<Mailbox>,
    last: Sequence,
    last_piece: Sequence,
}

#[derive(Debug)]
struct World {
    random: Random,
    network: Network,
    pair: Pair,
    /// Another node with topics of the same names and, though impossible, the same keys.
    stranger: Pair,
    readers: Vec<Reader>,
    /// The newest sequence of each topic.
    newest: [u64; TOPICS],
    /// The inline pieces sent, by topic and sequence.
    pieces: HashMap<(usize, u64), Vec<u64>>,
    delayed: Vec<Parcel>,
    /// The topics with a queued notice, and how often one was queued, and queued again.
    queued: BTreeSet<usize>,
    deferred: u64,
    coalesced: u64,
    /// Unicast to the receiver, and whether it is on.
    alone: Arc<dyn UnicastSender>,
    is_unicast: bool,
    unicast_sent: u64,
    /// Datagrams put into the inbox, those of the stranger among them, and the entries of the others.
    delivered: u64,
    strange: u64,
    delivered_entries: u64,
}

fn topic(index: usize) -> TopicId {
    TopicId::new(index as u64 + 1)
}

fn key(index: usize) -> NoticeKey {
    NoticeKey::new([index.to_le_bytes()[0]; 16])
}

impl World {
    fn new(seed: u64) -> Self {
        let (pair, stranger) = (Pair::new(), Pair::new());
        for index in 0..TOPICS {
            pair.sender.register(topic(index), key(index)).unwrap();
            stranger.sender.register(topic(index), key(index)).unwrap();
        }
        let reader = |topic_index| {
            let mailbox = pair.receiver.subscribe(topic(topic_index), Epoch::FIRST, keys(key(topic_index)));
            Reader { topic: topic_index, mailbox, last: Sequence::NONE, last_piece: Sequence::NONE }
        };
        let readers = [0, 0, 1, 2, 3].map(reader).into();
        let alone = pair.way(TICKET);
        Self {
            random: Random::new(seed),
            network: if seed.is_multiple_of(2) { Network::Honest } else { Network::Hostile },
            pair,
            stranger,
            readers,
            newest: [0; TOPICS],
            pieces: HashMap::new(),
            delayed: Vec::new(),
            queued: BTreeSet::new(),
            deferred: 0,
            coalesced: 0,
            alone,
            is_unicast: false,
            unicast_sent: 0,
            delivered: 0,
            strange: 0,
            delivered_entries: 0,
        }
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0..=4 => self.announce(),
            5 => {
                // It may be behind the publishers.
                let behind = self.random.below(3);
                let mut notices = self.heartbeat(behind);
                self.random.shuffle(&mut notices);
                self.pair.sender.heartbeat(notices).unwrap();
            }
            6 => {
                if !self.pair.sender.flush().unwrap() {
                    self.queued.clear();
                }
            }
            7 => {
                let room = self.random.index(4);
                *self.pair.wire.room.lock() = self.random.once_in(2).then_some(room);
            }
            8 => {
                self.is_unicast = !self.is_unicast;
                if self.is_unicast {
                    self.pair
                        .sender
                        .add_unicast((PeerAddress::Unknown, SECRET), Arc::clone(&self.alone))
                        .unwrap();
                } else {
                    self.pair.sender.remove_unicast(&self.alone);
                }
            }
            9 => self.receive(),
            _ => self.carry(),
        }
    }

    fn announce(&mut self) {
        let index = self.random.index(TOPICS);
        self.newest[index] += 1;
        let notice = notice(topic(index), self.newest[index]);
        let (words, first) = (self.random.index(200), self.random.index(4096));
        let inline = self.pair.inline(first, words).filter(|_| self.random.once_in(2) && words > 0);
        if inline.is_some() {
            let bytes = (first..first + words).map(|word| word as u64).collect();
            self.pieces.insert((index, self.newest[index]), bytes);
        }
        let refused = *self.pair.wire.refused.lock();
        let is_queued = self.pair.sender.announce(&notice, inline).unwrap();
        if !is_queued {
            self.queued.clear();
        } else if *self.pair.wire.refused.lock() > refused {
            self.deferred += 1;
            self.coalesced += u64::from(!self.queued.insert(index));
        }
        if self.random.once_in(4) {
            self.stranger
                .sender
                .announce(&Notice { sequence: Sequence::new(1 << 40), ..notice }, None)
                .unwrap();
        }
    }

    fn heartbeat(&self, behind: u64) -> Vec<Notice> {
        (0..TOPICS).map(|index| notice(topic(index), self.newest[index].saturating_sub(behind))).collect()
    }

    /// Passes everything sent through the network.
    fn carry(&mut self) {
        for parcel in self.stranger.wire.take() {
            self.strange += 1;
            self.put(&parcel);
        }
        for parcel in self.pair.wire.take() {
            self.unicast_sent += u64::from(parcel.0.is_some());
            match self.random.below(8) {
                0 => {}
                1 => self.delayed.push(parcel),
                2 => (0..2).for_each(|_| self.put_entries(&parcel)),
                3 if self.network == Network::Hostile => self.put_damaged(parcel),
                _ => self.put_entries(&parcel),
            }
        }
        while self.random.once_in(2) && !self.delayed.is_empty() {
            let index = self.random.index(self.delayed.len());
            let parcel = self.delayed.swap_remove(index);
            self.put_entries(&parcel);
        }
    }

    fn put_damaged(&mut self, (mut receiver, mut bytes): Parcel) {
        match self.random.below(5) {
            0 => bytes.truncate(self.random.index(bytes.len())),
            1 => bytes.iter_mut().for_each(|byte| *byte = self.random.next().to_le_bytes()[0]),
            2 => receiver = receiver.xor(Some(TICKET.to_vec())),
            _ => {
                let at = self.random.index(bytes.len());
                bytes[at] ^= 1 << self.random.below(8);
            }
        }
        self.put(&(receiver, bytes));
    }

    fn put_entries(&mut self, parcel: &Parcel) {
        self.delivered_entries += u64::from(parcel.1[6]);
        self.put(parcel);
    }

    fn put(&mut self, parcel: &Parcel) {
        self.delivered += 1;
        self.pair.inbox.put(parcel);
    }

    fn receive(&mut self) {
        while self.pair.receiver.turn(1).unwrap() {}
        self.check_counts();
        let mut words = Vec::new();
        for reader in &mut self.readers {
            let hint = reader.mailbox.hint();
            assert!(hint >= reader.last && hint.get() <= self.newest[reader.topic]);
            reader.last = hint;
            while self.random.once_in(2)
                && let Some(piece) = reader.mailbox.take(&mut words)
            {
                let sequence = piece.sequence;
                assert!(sequence > reader.last_piece, "a piece came twice, or out of order");
                reader.last_piece = sequence;
                assert_eq!(piece, notice(topic(reader.topic), sequence.get()));
                assert_eq!(Some(&words), self.pieces.get(&(reader.topic, sequence.get())));
            }
        }
    }

    /// Every datagram counts once, and every entry too.
    fn check_counts(&self) {
        let counts = self.pair.receiver.counts();
        assert_eq!(counts.datagrams, self.delivered);
        let entries = counts.entries + counts.stale + counts.foreign + counts.other_epoch + counts.forged;
        if self.network == Network::Honest {
            assert_eq!((entries, counts.other_channel), (self.delivered_entries, self.strange));
            assert_eq!((counts.malformed, counts.forged, counts.other_epoch), (0, 0, 0));
        } else {
            assert!(entries >= self.delivered_entries && counts.other_channel >= self.strange);
            assert!(counts.malformed + counts.other_channel <= counts.datagrams);
        }
        assert!(counts.inline_dropped <= counts.inline_taken);
    }
}

#[test]
fn whatever_the_network_does_only_announced_values_are_accepted() {
    let mut seen = [NoticeCounts::default(); 2];
    let (mut sent, mut seeds) = ([0; 3], 0);
    each_seed(200, |seed| {
        let mut world = World::new(seed);
        (0..STEPS).for_each(|_| world.step());
        seeds += 1;

        // The next heartbeat that arrives makes up for losses.
        *world.pair.wire.room.lock() = None;
        world.carry();
        world.pair.sender.heartbeat(world.heartbeat(0)).unwrap();
        world.pair.wire.take().iter().for_each(|parcel| world.put_entries(parcel));
        world.receive();
        for reader in &world.readers {
            assert_eq!(reader.last.get(), world.newest[reader.topic]);
        }
        let counts = world.pair.receiver.counts();
        let sum = &mut seen[usize::from(world.network == Network::Hostile)];
        sum.datagrams += counts.datagrams;
        sum.entries += counts.entries;
        sum.stale += counts.stale;
        sum.lost += counts.lost;
        sum.forged += counts.forged;
        sum.malformed += counts.malformed;
        sum.inline_taken += counts.inline_taken;
        let counts = [world.deferred, world.coalesced, world.unicast_sent];
        sent.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    });
    println!("honest: {:?}", seen[0]);
    println!("hostile: {:?}", seen[1]);
    println!("deferred, coalesced, unicast: {sent:?}");
    if seeds > 1 {
        for NoticeCounts { datagrams, entries, stale, lost, inline_taken, .. } in seen {
            assert!([datagrams, entries, stale, lost, inline_taken].iter().all(|count| *count > 0));
        }
        assert!(seen[1].forged > 0 && seen[1].malformed > 0, "nothing was forged or damaged");
        assert!(sent.iter().all(|count| *count > 0));
    }
}
