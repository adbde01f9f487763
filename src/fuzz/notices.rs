//! Datagrams of notices, at a receiver whose key they have or do not have.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::input::Input;
use super::regions::{EPOCH, TOPIC};
use crate::fabric::{ChannelReceiver, Datagram, DatagramReach, FabricError};
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::notice::{DatagramDraft, DatagramHeader, parse};
use crate::layout::{ByteRange, WORD};
use crate::memory::{Protection, Region};
use crate::notice::{Inline, Mailbox, Notice, NoticeKey, NoticeKeys, NoticeReceiver};

const KEY: NoticeKey = NoticeKey::new([7; 16]);
const CHANNEL: u64 = 5;
/// The most datagrams of an input.
const DATAGRAMS_MAX: usize = 100;

/// Datagrams that wait to be received.
#[derive(Clone, Debug, Default)]
struct Inbox(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl ChannelReceiver for Inbox {
    fn return_ticket(&self) -> &[u8] {
        &[]
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Datagram>, FabricError> {
        let Some(bytes) = self.0.lock().pop_front() else { return Ok(None) };
        let len = bytes.len().min(into.len());
        into.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
        Ok(Some(Datagram { len, reach: DatagramReach::Multicast }))
    }

    fn passed_over(&self) -> u64 {
        0
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

/// Each datagram is raw bytes, or notices with the right key, some of whose bytes are then changed.
pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let inbox = Inbox::default();
    let receiver = NoticeReceiver::new(Box::new(inbox.clone()), CHANNEL);
    let keys = |key| NoticeKeys { shared: key, own: key, trusts_shared: true };
    let mailbox = receiver.subscribe(TOPIC, EPOCH, keys(KEY));
    let other = receiver.subscribe(TopicId::new(3), EPOCH, keys(NoticeKey::new([8; 16])));
    let memory = Region::allocate(4096, Protection::PeersRead).expect("a page");
    (0..512).for_each(|word| memory.store(word * WORD, word as u64));
    let (mut now_ns, mut newest) = (0, Sequence::NONE);
    for _ in 0..DATAGRAMS_MAX {
        if input.is_empty() {
            break;
        }
        let datagram = match input.byte() % 4 {
            0 => {
                let len = input.short().into();
                input.bytes(len).to_vec()
            }
            choice => {
                let (bytes, sequence) = sealed(&mut input, &memory, &KEY);
                // Entries whose bytes are unchanged are genuine, whatever happened to the others.
                newest = newest.max(sequence);
                if choice == 1 { damaged(bytes, &mut input) } else { bytes }
            }
        };
        read(&datagram);
        inbox.0.lock().push_back(datagram);
        now_ns += u64::from(input.byte()) << 20;
        let _ = receiver.turn(now_ns);
        take(&mailbox, newest);
        assert_eq!(other.hint(), Sequence::NONE, "a notice of another key");
        let _ = (receiver.reach(now_ns), receiver.beacon(), mailbox.take_gap());
    }
    let counts = receiver.counts();
    assert!(counts.datagrams <= DATAGRAMS_MAX as u64);
}

/// What a mailbox hands out was sealed with its key.
fn take(mailbox: &Mailbox, newest: Sequence) {
    assert!(mailbox.hint() <= newest, "{} was not announced", mailbox.hint());
    let mut words = Vec::new();
    while let Some(notice) = mailbox.take(&mut words) {
        assert!((notice.topic, notice.epoch) == (TOPIC, EPOCH) && notice.sequence <= newest);
        let first = words.first().copied().unwrap_or_default();
        assert!(words.iter().zip(first..).all(|(word, expected)| *word == expected), "{words:?}");
    }
}

/// A datagram of notices with this key, and the newest sequence of the mailbox's topic.
fn sealed(input: &mut Input<'_>, memory: &Region, key: &NoticeKey) -> (Vec<u8>, Sequence) {
    let mut draft = DatagramDraft::new(1024).expect("room for entries");
    let mut newest = Sequence::NONE;
    for _ in 0..=input.byte() % 4 {
        let sequence = Sequence::new(1 + u64::from(input.byte()));
        let choice = input.byte();
        let topic = if choice.is_multiple_of(8) { TopicId::new(9) } else { TOPIC };
        let epoch = if choice % 8 == 1 { Epoch::new(99).unwrap_or(EPOCH) } else { EPOCH };
        let len = usize::from(choice >> 4) * WORD;
        let range = ByteRange { offset: input.index(256) * WORD, len };
        let inline = (len > 0).then_some(Inline { memory, range, records: 1 });
        let position = if choice.is_multiple_of(2) { 0 } else { len as u64 + u64::from(input.short()) };
        if topic == TOPIC && epoch == EPOCH {
            newest = newest.max(sequence);
        }
        draft.push(&Notice { topic, epoch, sequence, position, published_ns: 1 }, key, inline);
    }
    let choice = input.byte();
    let header = DatagramHeader {
        is_beacon: choice.is_multiple_of(2),
        is_unicast: choice % 4 == 3,
        channel: if choice % 16 == 15 { 6 } else { CHANNEL },
        number: 1 + if choice % 16 == 14 { input.word() >> 1 } else { input.byte().into() },
    };
    (draft.seal(&header).to_vec(), newest)
}

/// The datagram with one to three bits flipped, or cut: not what was sealed.
fn damaged(mut bytes: Vec<u8>, input: &mut Input<'_>) -> Vec<u8> {
    if input.byte().is_multiple_of(4) {
        bytes.truncate(input.index(bytes.len()));
        return bytes;
    }
    let index = input.index(bytes.len());
    if let Some(byte) = bytes.get_mut(index) {
        *byte ^= 1 << (input.byte() % 8);
    }
    bytes
}

/// Parses a datagram without a receiver.
fn read(bytes: &[u8]) {
    let mut words = vec![0_u64; bytes.len().div_ceil(WORD)];
    let target: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    target.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let Ok((_, entries)) = parse(&words, bytes.len()) else { return };
    let inline: usize = entries.map(|entry| entry.map_or(0, |entry| entry.inline.len())).sum();
    assert!(inline * WORD <= bytes.len(), "more inline bytes than the datagram has");
}

/// A raw datagram with the key of nobody, and programs of random steps.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let memory = Region::allocate(4096, Protection::PeersRead).unwrap();
    let program = [1, 2, 0x32, 4, 5, 6, 7, 0x43, 9, 10, 11, 12, 1, 1];
    let (bytes, _) = sealed(&mut Input::new(&program), &memory, &NoticeKey::new([9; 16]));
    let len = u16::try_from(bytes.len()).unwrap().to_le_bytes();
    let raw = [&[0][..], &len, &bytes, &[1]].concat();
    [vec![raw], super::tests::programs(4, 1)].concat()
}
