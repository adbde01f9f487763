use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use self::sessions::{SECRET, keys};
use super::*;
use crate::fabric::{
    ByteRange, ChannelReceiver, ChannelSender, Datagram, DatagramReach, FabricError, PeerAddress, Sent,
    UnicastSender,
};
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::WORD;
use crate::layout::notice::{DatagramDraft, DatagramHeader, ENTRY_LEN, HEADER_LEN};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::testkit::random::{Random, each_seed};

mod incarnations;
mod numbers;
mod oracle;
mod sessions;
mod waiting;

/// Datagrams of this length hold fifteen entries without inline bytes.
const MTU: usize = 1024;
const TICKET: &[u8] = b"here";
const T: TopicId = TopicId::new(7);
const KEY: NoticeKey = NoticeKey::new([1; 16]);

/// What was sent: the receiver, if by unicast, and the bytes.
type Parcel = (Option<Vec<u8>>, Vec<u8>);

/// A channel in memory, which keeps datagrams until a test puts them into an inbox.
#[derive(Debug, Default)]
struct Wire {
    sent: Mutex<Vec<Parcel>>,
    /// Multicast datagrams that it still accepts; `None` for any number.
    room: Mutex<Option<usize>>,
    /// How often it was full.
    refused: Mutex<usize>,
    /// It fails every send.
    is_broken: Mutex<bool>,
}

/// Datagrams to be received, and how each came.
#[derive(Clone, Debug, Default)]
struct Inbox(Arc<Mutex<Arrived>>);

type Arrived = VecDeque<(Vec<u8>, DatagramReach)>;

impl ChannelSender for Wire {
    fn ticket(&self) -> &[u8] {
        b"there"
    }

    fn datagram_len_max(&self) -> usize {
        MTU
    }

    fn send(&self, datagram: &[u8]) -> Result<Sent, FabricError> {
        if *self.is_broken.lock() {
            return Err(FabricError::Access { why: "it is broken" });
        }
        if let Some(room) = &mut *self.room.lock() {
            let Some(left) = room.checked_sub(1) else {
                *self.refused.lock() += 1;
                return Ok(Sent::Full);
            };
            *room = left;
        }
        assert!(datagram.len() <= MTU);
        self.sent.lock().push((None, datagram.to_vec()));
        Ok(Sent::Done)
    }
}

/// Unicast to one receiver.
#[derive(Debug)]
struct Way {
    wire: Arc<Wire>,
    ticket: Vec<u8>,
}

impl UnicastSender for Way {
    fn send(&self, datagram: &[u8]) -> Result<Sent, FabricError> {
        if self.ticket == b"nobody" {
            return Err(FabricError::Access { why: "it is unreachable" });
        }
        self.wire.sent.lock().push((Some(self.ticket.clone()), datagram.to_vec()));
        Ok(Sent::Done)
    }
}

impl ChannelReceiver for Inbox {
    fn return_ticket(&self) -> &[u8] {
        TICKET
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Datagram>, FabricError> {
        let Some((bytes, reach)) = self.0.lock().pop_front() else { return Ok(None) };
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(Some(Datagram { len: bytes.len(), reach }))
    }

    fn passed_over(&self) -> u64 {
        3
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

impl Wire {
    fn take(&self) -> Vec<Parcel> {
        std::mem::take(&mut *self.sent.lock())
    }
}

impl Inbox {
    /// Delivers a datagram as the medium would.
    fn put(&self, (receiver, bytes): &Parcel) {
        let reach = if receiver.is_some() { DatagramReach::Unicast } else { DatagramReach::Multicast };
        self.0.lock().push_back((bytes.clone(), reach));
    }
}

/// A sender, a receiver, and the channel between them.
#[derive(Debug)]
struct Pair {
    wire: Arc<Wire>,
    sender: NoticeSender,
    inbox: Inbox,
    receiver: NoticeReceiver,
    memory: Region,
}

impl Pair {
    /// The last datagram was heard in this way, at this time.
    fn assert_heard(&self, reach: DatagramReach, heard_ns: u64) {
        let silent_ns = heard_ns + limits::NOTICE_SILENCE_NS;
        assert_eq!([silent_ns - 1, silent_ns].map(|ns| self.receiver.reach(ns)), [Some(reach), None]);
    }

    /// Unicast to the receiver with this ticket.
    fn way(&self, ticket: &[u8]) -> Arc<dyn UnicastSender> {
        Arc::new(Way { wire: Arc::clone(&self.wire), ticket: ticket.to_vec() })
    }

    fn new() -> Self {
        let wire = Arc::new(Wire::default());
        let sender = NoticeSender::new(Arc::clone(&wire) as Arc<dyn ChannelSender>).unwrap();
        let inbox = Inbox::default();
        let receiver = NoticeReceiver::new(Box::new(inbox.clone()), sender.identity);
        let memory = Region::allocate(1 << 16, Protection::PeersRead).unwrap();
        (0..memory.len() / WORD).for_each(|word| memory.store(word * WORD, word as u64));
        Self { wire, sender, inbox, receiver, memory }
    }

    /// A pair, and a mailbox of the registered topic [`T`].
    fn with_topic() -> (Self, Arc<Mailbox>) {
        let pair = Self::new();
        pair.sender.register(T, KEY).unwrap();
        let mailbox = pair.receiver.subscribe(T, Epoch::FIRST, keys(KEY));
        (pair, mailbox)
    }

    fn inline(&self, first_word: usize, words: usize) -> Option<Inline<'_>> {
        let range = ByteRange { offset: first_word * WORD, len: words * WORD };
        Some(Inline { memory: &self.memory, range, records: 1 })
    }

    /// Delivers everything sent; returns the number of datagrams.
    fn carry(&self) -> usize {
        let parcels = self.wire.take();
        parcels.iter().for_each(|parcel| self.inbox.put(parcel));
        parcels.len()
    }

    /// Delivers everything sent, and has it received.
    fn deliver(&self, now_ns: u64) -> NoticeCounts {
        self.carry();
        while self.receiver.turn(now_ns).unwrap() {}
        self.receiver.counts()
    }

    fn announce(&self, sequence: u64) -> bool {
        self.sender.announce(&notice(T, sequence), None).unwrap()
    }
}

fn notice(topic: TopicId, sequence: u64) -> Notice {
    let (epoch, sequence) = (Epoch::FIRST, Sequence::new(sequence));
    Notice { topic, epoch, sequence, position: sequence.get() * 4096, published_ns: sequence.get() + 1 }
}

/// The number of entries in each datagram, without inline bytes.
fn entries(parcels: &[Parcel]) -> Vec<usize> {
    parcels.iter().map(|(_, bytes)| (bytes.len() - HEADER_LEN) / ENTRY_LEN).collect()
}

#[test]
fn notice_reaches_every_mailbox_of_its_topic_with_its_bytes() {
    let (pair, first) = Pair::with_topic();
    let second = pair.receiver.subscribe(T, Epoch::FIRST, keys(KEY));
    let other = pair.receiver.subscribe(TopicId::new(8), Epoch::FIRST, keys(KEY));
    assert!(!first.has_news(Sequence::NONE));
    assert_eq!((pair.sender.ticket(), pair.receiver.return_ticket()), (&b"there"[..], TICKET));
    assert!(!pair.sender.announce(&notice(T, 3), pair.inline(100, 5)).unwrap());
    let counts = pair.deliver(1);
    let mut words = Vec::with_capacity(limits::NOTICE_DATAGRAM_LEN_MAX / WORD);
    for mailbox in [first, second] {
        assert!(mailbox.has_news(Sequence::new(2)) && !mailbox.has_news(Sequence::new(3)));
        assert_eq!(mailbox.hint(), Sequence::new(3));
        assert_eq!(mailbox.take(&mut words), Some(notice(T, 3)));
        assert_eq!(words, [100, 101, 102, 103, 104]);
        assert_eq!(mailbox.take(&mut words), None);
    }
    assert!(!other.has_news(Sequence::NONE) && other.take(&mut words).is_none());
    let expected =
        NoticeCounts { datagrams: 1, entries: 1, inline_taken: 2, passed_over: 3, ..Default::default() };
    assert_eq!(counts, expected);
}

#[test]
fn full_channel_queues_the_newest_notice_of_each_topic() {
    let (pair, mailbox) = Pair::with_topic();
    let topics: Vec<TopicId> = (100..120).map(TopicId::new).collect();
    topics.iter().for_each(|topic| pair.sender.register(*topic, KEY).unwrap());
    *pair.wire.room.lock() = Some(0);
    for sequence in 1..=4 {
        topics
            .iter()
            .for_each(|topic| assert!(pair.sender.announce(&notice(*topic, sequence), None).unwrap()));
    }
    assert!(pair.sender.flush().unwrap() && pair.wire.take().is_empty());
    pair.sender.forget(topics[0], KEY);

    // A commit takes along as many as fit, and a flush sends the rest.
    *pair.wire.room.lock() = Some(1);
    assert!(pair.sender.announce(&notice(T, 1), pair.inline(0, 8)).unwrap());
    assert!(pair.sender.flush().unwrap());
    *pair.wire.room.lock() = None;
    assert_eq!(pair.sender.flush().ok(), Some(false));
    assert_eq!(pair.sender.flush().ok(), Some(false));
    let mailboxes: Vec<_> =
        topics.iter().map(|it| pair.receiver.subscribe(*it, Epoch::FIRST, keys(KEY))).collect();
    let counts = pair.deliver(1);
    assert_eq!((counts.datagrams, counts.entries, counts.inline_taken), (2, 1 + 19, 1));
    assert_eq!(mailbox.hint(), Sequence::new(1));
    assert_eq!(mailboxes[0].hint(), Sequence::NONE);
    assert!(mailboxes[1..].iter().all(|mailbox| mailbox.hint() == Sequence::new(4)));
}

#[test]
fn queued_notice_is_not_sent_after_a_newer_one() {
    let (pair, _mailbox) = Pair::with_topic();
    *pair.wire.room.lock() = Some(0);
    assert!(pair.announce(1));
    *pair.wire.room.lock() = None;
    assert!(!pair.announce(2));
    assert_eq!(entries(&pair.wire.take()), [1]);
}

#[test]
fn inline_bytes_that_do_not_fit_are_omitted() {
    let (pair, mailbox) = Pair::with_topic();
    let words_max = (MTU - HEADER_LEN - ENTRY_LEN) / WORD;
    for (sequence, words) in [(1, words_max), (2, words_max + 1)] {
        pair.sender.announce(&notice(T, sequence), pair.inline(0, words)).unwrap();
    }
    let counts = pair.deliver(1);
    assert_eq!((counts.entries, counts.inline_taken, mailbox.hint()), (2, 1, Sequence::new(2)));
}

#[test]
fn heartbeat_makes_up_for_losses_and_asks_for_an_answer() {
    let pair = Pair::new();
    let topics: Vec<TopicId> = (0..40).map(TopicId::new).collect();
    topics.iter().for_each(|topic| pair.sender.register(*topic, KEY).unwrap());
    let mailboxes: Vec<_> =
        topics.iter().map(|it| pair.receiver.subscribe(*it, Epoch::FIRST, keys(KEY))).collect();
    topics.iter().for_each(|topic| assert!(!pair.sender.announce(&notice(*topic, 5), None).unwrap()));
    assert_eq!(pair.wire.take().len(), 40, "all of them are lost");
    assert_eq!(pair.receiver.beacon(), None);

    let newest = topics.iter().map(|topic| notice(*topic, 5)).chain([notice(TopicId::new(99), 1)]);
    assert!(!pair.sender.heartbeat(newest).unwrap());
    assert_eq!(entries(&pair.wire.sent.lock()), [15, 15, 10], "an unregistered topic is omitted");
    let counts = pair.deliver(1);
    assert_eq!((counts.entries, counts.lost), (40, 0), "the first datagram shows no loss");
    assert!(mailboxes.iter().all(|mailbox| mailbox.hint() == Sequence::new(5)));
    assert_eq!(pair.receiver.beacon(), Some(DatagramReach::Multicast));
    assert_eq!(pair.receiver.beacon(), None);
    assert!(!pair.sender.heartbeat([]).unwrap() && pair.wire.take().is_empty());
}

#[test]
fn heartbeat_queues_what_does_not_fit() {
    let pair = Pair::new();
    let topics: Vec<TopicId> = (0..40).map(TopicId::new).collect();
    topics.iter().for_each(|topic| pair.sender.register(*topic, KEY).unwrap());
    *pair.wire.room.lock() = Some(1);
    assert!(pair.sender.heartbeat(topics.iter().map(|topic| notice(*topic, 5))).unwrap());
    *pair.wire.room.lock() = None;
    assert!(!pair.sender.flush().unwrap());
    assert_eq!(entries(&pair.wire.take()), [15, 15, 10]);
    assert_eq!(*pair.wire.refused.lock(), 1, "it was tried once, not for each datagram");
}

/// A heartbeat is composed beside the publishers, and may be behind them.
#[test]
fn hint_never_goes_back() {
    let (pair, mailbox) = Pair::with_topic();
    pair.announce(5);
    pair.sender.heartbeat([notice(T, 3)]).unwrap();
    assert_eq!(pair.deliver(1).entries, 2);
    assert_eq!(mailbox.hint(), Sequence::new(5));
    assert!(mailbox.has_news(Sequence::new(4)));

    *pair.wire.room.lock() = Some(0);
    assert!(pair.announce(7) && pair.sender.heartbeat([notice(T, 6)]).unwrap());
    *pair.wire.room.lock() = None;
    assert!(!pair.sender.flush().unwrap());
    pair.deliver(1);
    assert_eq!(mailbox.hint().get(), 7, "the newest queued notice was sent");
}

#[test]
fn datagram_by_multicast_and_unicast_counts_once_and_shows_both() {
    for order in [[0, 1], [1, 0]] {
        let (pair, mailbox) = Pair::with_topic();
        pair.sender.add_unicast((host(1), SECRET), pair.way(TICKET)).unwrap();
        pair.sender.announce(&notice(T, 1), pair.inline(0, 2)).unwrap();
        pair.sender.heartbeat([notice(T, 1)]).unwrap();
        let parcels = pair.wire.take();
        assert_eq!(parcels.iter().filter(|(receiver, _)| receiver.as_deref() == Some(TICKET)).count(), 2);
        for pick in order.into_iter().chain(order.map(|at| at + 2)) {
            pair.inbox.put(&parcels[pick]);
        }
        let counts = pair.deliver(9);
        assert_eq!((counts.entries, counts.stale, counts.inline_taken, counts.lost), (2, 2, 1, 0));
        assert_eq!(mailbox.hint(), Sequence::new(1));
        assert_eq!(pair.receiver.beacon(), Some(DatagramReach::Multicast));
        pair.assert_heard(DatagramReach::Multicast, 9);
    }
}

#[test]
fn receiver_of_unicast_only_reports_it() {
    let (pair, mailbox) = Pair::with_topic();
    assert_eq!(pair.receiver.reach(1), None);
    pair.sender.add_unicast((host(1), SECRET), pair.way(pair.receiver.return_ticket())).unwrap();
    pair.sender.heartbeat([notice(T, 1)]).unwrap();
    let parcels = pair.wire.take();
    pair.inbox.put(&parcels[1]);
    pair.deliver(1000);
    assert!(mailbox.has_news(Sequence::NONE));
    assert_eq!(pair.receiver.beacon(), Some(DatagramReach::Unicast));
    let last = 1000 + limits::NOTICE_SILENCE_NS;
    pair.assert_heard(DatagramReach::Unicast, 1000);

    // A datagram forwarded in another way than it was sent says nothing about either.
    for (sequence, pick, receiver) in [(2, 0, Some(TICKET.to_vec())), (3, 1, None)] {
        pair.announce(sequence);
        let (_, bytes) = pair.wire.take().swap_remove(pick);
        pair.inbox.put(&(receiver, bytes));
        pair.deliver(last);
        assert_eq!(mailbox.hint().get(), sequence);
        assert_eq!(pair.receiver.reach(last), None);
    }
}

fn host(number: u8) -> PeerAddress {
    PeerAddress::Network([10, 0, 0, number].into())
}

#[test]
fn unicast_receivers_are_bounded_and_independent() {
    let (pair, _mailbox) = Pair::with_topic();
    let nobody = pair.way(b"nobody");
    pair.sender.add_unicast((host(0), SECRET), Arc::clone(&nobody)).unwrap();
    for number in 1..u8::try_from(limits::UNICAST_RECEIVERS_MAX).unwrap() {
        pair.sender
            .add_unicast((host(number / 8), SECRET), pair.way(&u64::from(number).to_le_bytes()))
            .unwrap();
    }
    assert_eq!(pair.sender.add_unicast((host(99), SECRET), pair.way(TICKET)), Err(RegisterError::Receivers));
    pair.announce(1);
    let (unicast, multicast): (Vec<_>, Vec<_>) = pair.wire.take().into_iter().partition(|it| it.0.is_some());
    assert_eq!((multicast.len(), unicast.len()), (1, 63), "one of the 64 receivers is nobody");
    // Removing an unknown receiver does nothing.
    pair.sender.remove_unicast(&pair.way(b"nobody"));
    assert_eq!(pair.sender.add_unicast((host(99), SECRET), pair.way(TICKET)), Err(RegisterError::Receivers));
    (0..2).for_each(|_| pair.sender.remove_unicast(&nobody));
    // Another host has as many as one may have.
    assert_eq!(
        pair.sender.add_unicast((host(7), SECRET), pair.way(TICKET)),
        Err(RegisterError::ReceiversOfPeer)
    );
    pair.sender.add_unicast((host(99), SECRET), pair.way(TICKET)).unwrap();
}

#[test]
fn broken_channel_queues_nothing_and_still_sends_unicast() {
    let (pair, mailbox) = Pair::with_topic();
    pair.sender.add_unicast((host(1), SECRET), pair.way(TICKET)).unwrap();
    *pair.wire.room.lock() = Some(0);
    assert!(pair.announce(1));
    *pair.wire.is_broken.lock() = true;
    assert!(pair.sender.flush().is_err() && !pair.sender.flush().unwrap());
    assert!(pair.sender.announce(&notice(T, 2), None).is_err());
    assert!(pair.sender.heartbeat([notice(T, 2)]).is_err());
    assert!(!pair.sender.flush().unwrap());
    assert_eq!(pair.deliver(1).entries, 3);
    assert_eq!(mailbox.hint(), Sequence::new(2));
}

#[test]
fn topics_are_bounded() {
    let pair = Pair::new();
    for number in 0..limits::TOPICS_MAX as u64 {
        pair.sender.register(TopicId::new(number), KEY).unwrap();
    }
    assert_eq!(pair.sender.register(TopicId::new(u64::MAX), KEY), Err(RegisterError::Topics));
    pair.sender.register(TopicId::new(3), KEY).unwrap();
    pair.sender.forget(TopicId::new(4), KEY);
    pair.sender.register(TopicId::new(u64::MAX), KEY).unwrap();
}

#[test]
fn replayed_and_overtaken_datagrams_change_nothing_but_a_counter() {
    let (pair, mailbox) = Pair::with_topic();
    (1..=3).for_each(|sequence| assert!(!pair.announce(sequence)));
    let parcels = pair.wire.take();
    for pick in [2, 0, 1, 2, 2] {
        pair.inbox.put(&parcels[pick]);
    }
    let counts = pair.deliver(1);
    assert_eq!((counts.datagrams, counts.entries, counts.stale), (5, 1, 4));
    assert_eq!(mailbox.hint(), Sequence::new(3));
    pair.inbox.put(&parcels[2]);
    pair.deliver(1000);
    // A replay does not count.
    pair.assert_heard(DatagramReach::Multicast, 1);
}

#[test]
fn datagrams_for_other_receivers_are_only_counted() {
    let (pair, mailbox) = Pair::with_topic();
    let stranger = TopicId::new(8);
    pair.sender.register(stranger, KEY).unwrap();
    pair.sender.announce(&notice(stranger, 1), None).unwrap();
    let other_epoch = Notice { epoch: Epoch::new(2).unwrap(), ..notice(T, 1) };
    pair.sender.announce(&other_epoch, None).unwrap();
    pair.sender.register(T, NoticeKey::new([2; 16])).unwrap();
    pair.announce(1);
    let second = Pair::new();
    second.sender.register(T, KEY).unwrap();
    second.announce(1);
    pair.inbox.put(&second.wire.take()[0]);
    pair.inbox.put(&(None, b"FBN1 and something else.".to_vec()));
    let counts = pair.deliver(1);
    let expected = NoticeCounts {
        datagrams: 5,
        malformed: 1,
        other_channel: 1,
        foreign: 1,
        other_epoch: 1,
        forged: 1,
        passed_over: 3,
        ..Default::default()
    };
    assert_eq!(counts, expected);
    assert_eq!((mailbox.hint(), pair.receiver.reach(1)), (Sequence::NONE, None));
    assert!(!mailbox.take_gap());
}

#[test]
fn missing_datagrams_are_counted_and_mark_every_mailbox_once() {
    let (pair, mailbox) = Pair::with_topic();
    let other = pair.receiver.subscribe(TopicId::new(8), Epoch::FIRST, keys(KEY));
    let stranger = TopicId::new(9);
    pair.sender.register(stranger, KEY).unwrap();
    (1..=6).for_each(|sequence| assert!(!pair.announce(sequence)));
    // Datagrams of other topics are not missing, if they arrive.
    (1..=5).for_each(|sequence| _ = pair.sender.announce(&notice(stranger, sequence), None).unwrap());
    pair.announce(7);
    let parcels = pair.wire.take();
    [1, 2].iter().for_each(|pick| pair.inbox.put(&parcels[*pick]));
    assert_eq!((pair.deliver(1).lost, mailbox.take_gap()), (0, false), "the first one begins the count");
    [5].iter().for_each(|pick| pair.inbox.put(&parcels[*pick]));
    assert_eq!(pair.deliver(1).lost, 2);
    assert!(mailbox.take_gap() && !mailbox.take_gap() && other.take_gap());
    [6, 7, 7, 9, 11].iter().for_each(|pick| pair.inbox.put(&parcels[*pick]));
    let counts = pair.deliver(1);
    assert_eq!((counts.lost, counts.foreign), (2 + 2, 4));
    let late = pair.receiver.subscribe(T, Epoch::FIRST, keys(KEY));
    assert!(mailbox.take_gap() && !late.take_gap());
}

#[test]
fn pieces_beyond_the_capacity_are_dropped_but_not_the_hint() {
    let (pair, mailbox) = Pair::with_topic();
    let words = 100;
    let fitting = limits::NOTICE_INLINE_HELD_LEN / WORD / (words + 4);
    for sequence in 1..=fitting as u64 + 2 {
        pair.sender.announce(&notice(T, sequence), pair.inline(sequence.try_into().unwrap(), words)).unwrap();
        pair.deliver(1);
    }
    let counts = pair.receiver.counts();
    assert_eq!((counts.inline_taken, counts.inline_dropped), (fitting as u64 + 2, fitting as u64));
    assert_eq!(mailbox.hint().get(), fitting as u64 + 2);
    let mut into = vec![5; 7];
    for sequence in [fitting as u64 + 1, fitting as u64 + 2] {
        assert_eq!(mailbox.take(&mut into), Some(notice(T, sequence)));
        assert_eq!((into.len(), into[0], into[99]), (100, sequence, sequence + 99));
    }
    assert_eq!(mailbox.take(&mut into), None);
}

#[test]
fn dropped_mailbox_is_forgotten() {
    let (pair, mailbox) = Pair::with_topic();
    let second = pair.receiver.subscribe(T, Epoch::FIRST, keys(KEY));
    drop(mailbox);
    pair.announce(1);
    assert_eq!(pair.deliver(1).entries, 1);
    assert!(second.has_news(Sequence::NONE));
    drop(second);
    pair.announce(2);
    pair.announce(3);
    let counts = pair.deliver(1);
    assert_eq!((counts.entries, counts.foreign), (2, 1));
}

#[test]
fn turn_ends_however_much_arrives() {
    let (pair, mailbox) = Pair::with_topic();
    let max = u64::from(limits::NOTICES_PER_TURN_MAX);
    (1..=max + 1).for_each(|sequence| assert!(!pair.announce(sequence)));
    pair.carry();
    assert!(pair.receiver.turn(1).unwrap());
    assert_eq!(mailbox.hint().get(), max);
    assert!(!pair.receiver.turn(1).unwrap());
    assert_eq!(mailbox.hint().get(), max + 1);
    assert!(pair.receiver.wait_handle().unwrap().is_none());
}

#[test]
fn publishers_and_subscribers_share_both_ends() {
    const ROUNDS: u64 = 2000;
    let pair = Pair::new();
    let topics: Vec<TopicId> = (0..3).map(TopicId::new).collect();
    topics.iter().for_each(|topic| pair.sender.register(*topic, KEY).unwrap());
    let mailboxes: Vec<_> =
        topics.iter().map(|it| pair.receiver.subscribe(*it, Epoch::FIRST, keys(KEY))).collect();
    std::thread::scope(|scope| {
        for (topic, mailbox) in topics.iter().zip(&mailboxes) {
            let pair = &pair;
            scope.spawn(move || {
                for sequence in 1..=ROUNDS {
                    pair.sender.announce(&notice(*topic, sequence), None).unwrap();
                }
            });
            scope.spawn(move || {
                let mut last = Sequence::NONE;
                while last.get() < ROUNDS {
                    pair.receiver.turn(1).unwrap();
                    if mailbox.has_news(last) {
                        let hint = mailbox.hint();
                        assert!(hint > last);
                        last = hint;
                    }
                    std::thread::yield_now();
                }
            });
        }
        scope.spawn(|| {
            while mailboxes.iter().any(|mailbox| mailbox.hint().get() < ROUNDS) {
                let mut sent = pair.wire.sent.lock();
                sent.drain(..).for_each(|parcel| pair.inbox.put(&parcel));
                drop(sent);
                std::thread::yield_now();
            }
        });
    });
    let counts = pair.receiver.counts();
    assert_eq!((counts.datagrams, counts.entries, counts.lost), (3 * ROUNDS, 3 * ROUNDS, 0));
}

#[test]
fn keys_differ_and_do_not_show_themselves() {
    let (first, second) = (draw_key().unwrap(), draw_key().unwrap());
    assert_ne!(first, second);
    assert_eq!(format!("{first:?}"), "NoticeKey");
    assert_eq!(NoticeKey::new(first.bytes()), first);
}
