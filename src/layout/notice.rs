//! Notices: datagrams that report that topics have reached a sequence.
//!
//! A notice is a hint. It may be lost, duplicated, late or forged; a subscriber that believes a forged one reads the
//! repository in vain, and one that misses a notice reads it later. A notice may carry what it reports inline: for a state topic
//! the newest slot as in the repository, for a log topic the newest frames as in the ring. These have
//! their own checksums, and are checked like fetched ones.
//!
//! ```text
//! datagram
//! 00  u32  magic "FBN1"
//! 04  u16  version: 1
//! 06  u8   entries: at least 1
//! 07  u8   flags: 1 beacon, 2 unicast
//! 08  u64  channel: random, not zero, a new one for each incarnation of the sender
//! 10  u64  number: 1 for the first datagram of the channel, then counting up
//! 18  entries, without gaps
//!
//! entry
//! 00  u64  topic
//! 08  u64  epoch
//! 10  u64  sequence: the newest one
//! 18  u64  position: log: where the ring ends behind that record; state: 0
//! 20  u64  time of publishing, ns since the Unix epoch
//! 28  u32  inline length, bytes, a multiple of 8
//! 2c  u32  inline records: how many records the inline bytes hold
//! 30  u64  MAC, first half: SipHash-2-4 of 128 bits of the datagram's header, the entry up to here and the inline bytes
//! 38  u64  MAC, second half
//! 40  inline bytes
//! ```
//!
//! A beacon asks the receivers to acknowledge it on their sessions. A unicast datagram
//! went to one receiver, in addition to the multicast one with the same number.
//!
//! The inline frames of a log are in its ring from `position - inline length` to `position`, in one run, and end with the
//! reported record.
//!
//! The key of the MAC comes over the session: a peer without access to a topic cannot forge its notices. For multicast all subscribers of
//! the topic have the same key; for unicast each session has its own, which the others do not know.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::{ByteRange, WORD, halves, joined};
use crate::id::{Epoch, Sequence, TopicId};
use crate::memory::Region;

/// Words of a datagram's header.
const HEADER_WORDS: usize = 3;
/// Words of an entry that the MAC covers.
const FIELD_WORDS: usize = 6;
/// Words of the MAC.
const MAC_WORDS: usize = 2;
/// Words of an entry without its inline bytes.
const ENTRY_WORDS: usize = FIELD_WORDS + MAC_WORDS;
/// Bytes of a datagram's header.
pub(crate) const HEADER_LEN: usize = HEADER_WORDS * WORD;
/// Bytes of an entry without its inline bytes.
pub(crate) const ENTRY_LEN: usize = ENTRY_WORDS * WORD;
/// Most entries of a datagram.
const ENTRIES_MAX: usize = u8::MAX as usize;

/// `FBN1`, in datagram order.
const MAGIC: u32 = u32::from_le_bytes(*b"FBN1");
/// The version of the whole datagram.
const NOTICE_VERSION: u16 = 1;
/// The flag of a beacon.
const BEACON: u8 = 1;
/// The flag of a unicast datagram.
const UNICAST: u8 = 2;

const _: () = assert!(HEADER_LEN == 0x18 && ENTRY_LEN == 0x40);

/// A report about a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The topic.
    pub(crate) topic: TopicId,
    /// Its incarnation.
    pub(crate) epoch: Epoch,
    /// The newest sequence.
    pub(crate) sequence: Sequence,
    /// For a log, the end of that record in the ring. Otherwise 0.
    pub(crate) position: u64,
    /// Its publish time, ns since the Unix epoch.
    pub(crate) published_ns: u64,
}

/// A part of the topic's repository that travels with a notice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inline<'a> {
    /// The repository.
    pub(crate) memory: &'a Region,
    /// Which part of it.
    pub(crate) range: ByteRange,
    /// The number of its records.
    pub(crate) records: u32,
}

/// The key for the notices of one topic. Its `Debug` output hides it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoticeKey([u8; 16]);

impl NoticeKey {
    /// Creates a key from these bytes.
    pub(crate) const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns its bytes, for a grant.
    pub(crate) const fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// Returns the key for notices of this key's topic by unicast, in the session with this secret. Those who know this key, and not the
    /// secret, do not know it.
    pub(crate) fn for_session(&self, secret: &Self) -> Self {
        let mut hasher = SipHasher24::new_with_key(&secret.0);
        hasher.write(&self.0);
        let key = hasher.finish128();
        Self(bytemuck::cast([key.h1, key.h2]))
    }

    /// Computes the MAC of an entry.
    fn mac(&self, header: &[u64; HEADER_WORDS], fields: &[u64; FIELD_WORDS], inline: &[u64]) -> [u64; 2] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytemuck::cast_slice(header));
        hasher.write(bytemuck::cast_slice(fields));
        hasher.write(bytemuck::cast_slice(inline));
        let mac = hasher.finish128();
        [mac.h1, mac.h2]
    }
}

impl fmt::Debug for NoticeKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("NoticeKey")
    }
}

/// The part of a datagram that no sender of this version writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(&'static str);

/// The header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DatagramHeader {
    /// Whether the receivers should acknowledge it on their sessions.
    pub(crate) is_beacon: bool,
    /// Whether it was sent by unicast.
    pub(crate) is_unicast: bool,
    /// The sender's random number.
    pub(crate) channel: u64,
    /// Its number within the channel.
    pub(crate) number: u64,
}

impl DatagramHeader {
    /// Encodes the header.
    fn emit(&self, entries: u8) -> [u64; HEADER_WORDS] {
        let flags = (u8::from(self.is_beacon) * BEACON) | (u8::from(self.is_unicast) * UNICAST);
        let counts = u32::from(NOTICE_VERSION) | u32::from(entries) << 16 | u32::from(flags) << 24;
        [joined(MAGIC, counts), self.channel, self.number]
    }

    /// Decodes a header, and returns the number of entries that follow.
    fn parse(words: &[u64; HEADER_WORDS]) -> Result<(Self, u8), Malformed> {
        let [identity, channel, number] = *words;
        let (magic, _) = halves(identity);
        if magic != MAGIC {
            return Err(Malformed("magic number"));
        }
        let [.., version_low, version_high, entries, flags] = identity.to_le_bytes();
        let version = u16::from_le_bytes([version_low, version_high]);
        if version != NOTICE_VERSION {
            return Err(Malformed("version"));
        }
        let possible = |is_possible: bool, field| if is_possible { Ok(()) } else { Err(Malformed(field)) };
        possible(entries > 0, "number of entries")?;
        possible(flags & !(BEACON | UNICAST) == 0, "set of flags")?;
        possible(channel != 0, "channel")?;
        possible(number != 0, "number")?;
        let (is_beacon, is_unicast) = (flags & BEACON != 0, flags & UNICAST != 0);
        Ok((Self { is_beacon, is_unicast, channel, number }, entries))
    }
}

/// A datagram under construction, in memory allocated once.
#[derive(Debug)]
pub(crate) struct DatagramDraft {
    words: Box<[u64]>,
    /// Words in use.
    len: usize,
    /// Its notices, and their keys.
    entries: Vec<(Notice, NoticeKey)>,
}

impl DatagramDraft {
    /// Creates an empty datagram of up to this many bytes; `None` if that is too short for one entry.
    pub(crate) fn new(len_max: usize) -> Option<Self> {
        let words = len_max / WORD;
        let entries_max = words.checked_sub(HEADER_WORDS)? / ENTRY_WORDS;
        let entries = Vec::with_capacity(entries_max.min(ENTRIES_MAX));
        let words = vec![0; words].into();
        (entries_max > 0).then_some(Self { words, len: HEADER_WORDS, entries })
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.len = HEADER_WORDS;
        self.entries.clear();
    }

    /// Whether it has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns its notices, with their keys.
    pub(crate) fn notices(&self) -> &[(Notice, NoticeKey)] {
        &self.entries
    }

    /// Whether another entry fits, without inline bytes.
    pub(crate) fn has_room(&self) -> bool {
        self.entries.len() < ENTRIES_MAX && self.words.len() - self.len >= ENTRY_WORDS
    }

    /// Adds an entry, with its inline bytes if they fit. Returns false, unchanged, if the entry does not fit.
    pub(crate) fn push(&mut self, notice: &Notice, key: &NoticeKey, inline: Option<Inline<'_>>) -> bool {
        if !self.has_room() {
            return false;
        }
        let (_, rest) = self.words.split_at_mut(self.len);
        let Some((entry, body)) = rest.split_first_chunk_mut::<ENTRY_WORDS>() else { return false };
        let fitting = inline.filter(|inline| inline.range.len > 0 && inline.records > 0).and_then(|inline| {
            let len = u32::try_from(inline.range.len).ok()?;
            let target = body.get_mut(..inline.range.len / WORD)?;
            inline.memory.copy_out(inline.range.offset, target);
            Some((target.len(), joined(len, inline.records)))
        });
        let (inline_words, sizes) = fitting.unwrap_or_default();
        let Notice { topic, epoch, sequence, position, published_ns } = *notice;
        *entry = [topic.get(), epoch.get(), sequence.get(), position, published_ns, sizes, 0, 0];
        self.len += ENTRY_WORDS + inline_words;
        self.entries.push((*notice, *key));
        true
    }

    /// Returns the datagram's bytes under this header, each entry with its MAC. It may be sealed again under another one.
    pub(crate) fn seal(&mut self, header: &DatagramHeader) -> &[u8] {
        self.seal_with(header, |key| *key)
    }

    /// The same, for the session with this secret.
    pub(crate) fn seal_for(&mut self, header: &DatagramHeader, secret: &NoticeKey) -> &[u8] {
        self.seal_with(header, |key| key.for_session(secret))
    }

    fn seal_with(&mut self, header: &DatagramHeader, key_of: impl Fn(&NoticeKey) -> NoticeKey) -> &[u8] {
        let head = header.emit(u8::try_from(self.entries.len()).unwrap_or(u8::MAX));
        let (datagram, _) = self.words.split_at_mut(self.len);
        if let Some((first, mut rest)) = datagram.split_first_chunk_mut() {
            *first = head;
            for (_, key) in &self.entries {
                let Some((entry, behind)) = rest.split_first_chunk_mut::<ENTRY_WORDS>() else { break };
                let (inline, behind) = behind.split_at_mut(inline_words(entry));
                let [fields @ .., first, second] = entry;
                [*first, *second] = key_of(key).mac(&head, fields, inline);
                rest = behind;
            }
        }
        bytemuck::cast_slice(datagram)
    }
}

/// Words of an entry's inline bytes.
fn inline_words(entry: &[u64; ENTRY_WORDS]) -> usize {
    let [_, _, _, _, _, sizes, ..] = *entry;
    let (len, _) = halves(sizes);
    len as usize / WORD
}

/// Decodes the header of a datagram of `len` bytes at the start of these words, followed by its entries.
pub(crate) fn parse(words: &[u64], len: usize) -> Result<(DatagramHeader, Entries<'_>), Malformed> {
    let cut = Malformed("length");
    let words = if len.is_multiple_of(WORD) { words.get(..len / WORD) } else { None }.ok_or(cut)?;
    let (head, rest) = words.split_first_chunk().ok_or(cut)?;
    let (header, left) = DatagramHeader::parse(head)?;
    Ok((header, Entries { head, left, rest }))
}

/// The entries of a datagram. Ends after the last one, or with the first error.
#[derive(Clone, Debug)]
pub(crate) struct Entries<'a> {
    head: &'a [u64; HEADER_WORDS],
    left: u8,
    rest: &'a [u64],
}

/// An entry of a datagram. Untrusted until [`Self::is_authentic`] returns true.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    /// The notice.
    pub(crate) notice: Notice,
    /// The inline bytes.
    pub(crate) inline: &'a [u64],
    head: &'a [u64; HEADER_WORDS],
    words: &'a [u64; ENTRY_WORDS],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(left) = self.left.checked_sub(1) else {
            let behind = std::mem::take(&mut self.rest);
            return (!behind.is_empty()).then_some(Err(Malformed("length")));
        };
        let (next, rest) = match self.entry() {
            Ok((entry, rest)) => (Ok(entry), rest),
            Err(error) => (Err(error), Default::default()),
        };
        self.left = if next.is_ok() { left } else { 0 };
        self.rest = rest;
        Some(next)
    }
}

impl<'a> Entries<'a> {
    /// Returns the next entry, and the words after it.
    fn entry(&self) -> Result<(Entry<'a>, &'a [u64]), Malformed> {
        let cut = Malformed("length");
        let (words, behind) = self.rest.split_first_chunk::<ENTRY_WORDS>().ok_or(cut)?;
        let (inline, rest) = behind.split_at_checked(inline_words(words)).ok_or(cut)?;
        let [topic, epoch, sequence, position, published_ns, sizes, ..] = *words;
        let (inline_len, records) = halves(sizes);
        let epoch = Epoch::new(epoch).ok_or(Malformed("epoch"))?;
        if !(inline_len as usize).is_multiple_of(WORD) {
            return Err(Malformed("inline length"));
        }
        if (records == 0) != (inline_len == 0) || u64::from(records) > sequence {
            return Err(Malformed("number of inline records"));
        }
        if position != 0 && position < inline_len.into() {
            return Err(Malformed("position"));
        }
        let (topic, sequence) = (TopicId::new(topic), Sequence::new(sequence));
        let notice = Notice { topic, epoch, sequence, position, published_ns };
        Ok((Entry { notice, inline, head: self.head, words }, rest))
    }
}

impl Entry<'_> {
    /// Whether the entry, its inline bytes and the datagram's header come unchanged from a sender with the key.
    pub(crate) fn is_authentic(&self, key: &NoticeKey) -> bool {
        let [fields @ .., first, second] = self.words;
        let [first_mac, second_mac] = key.mac(self.head, fields, self.inline);
        // Compares both words, so that the time taken reveals nothing about the key.
        (first_mac ^ first) | (second_mac ^ second) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Protection;
    use crate::testkit::random::{Random, each_seed};

    const PAGE: &str = include_str!("../../docs/layouts.md");
    const KEY: NoticeKey = NoticeKey::new([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    const OTHER_KEY: NoticeKey = NoticeKey::new([7; 16]);
    const HEADER: DatagramHeader =
        DatagramHeader { is_beacon: true, is_unicast: false, channel: 0x1122_3344_5566_7788, number: 9 };

    fn notice() -> Notice {
        Notice {
            topic: TopicId::new(0x99),
            epoch: Epoch::new(0xabcd).unwrap(),
            sequence: Sequence::new(7),
            position: 0x40,
            published_ns: 5,
        }
    }

    /// Memory in which each word is its own index.
    fn memory() -> Region {
        let memory = Region::allocate(4096, Protection::PeersRead).unwrap();
        (0..512).for_each(|word| memory.store(word * WORD, word as u64));
        memory
    }

    fn draft() -> DatagramDraft {
        DatagramDraft::new(1024).unwrap()
    }

    /// A datagram with two entries under different keys: one with three inline words, one without.
    fn datagram() -> Vec<u64> {
        let (mut draft, memory) = (draft(), memory());
        let inline = Inline { memory: &memory, range: ByteRange { offset: 80, len: 24 }, records: 2 };
        assert!(draft.push(&notice(), &KEY, Some(inline)));
        assert!(draft.push(&Notice { topic: TopicId::new(3), ..notice() }, &OTHER_KEY, None));
        bytemuck::cast_slice(draft.seal(&HEADER)).to_vec()
    }

    /// Whether these words hold both entries of that datagram, unchanged.
    fn is_whole(words: &[u64], len: usize) -> bool {
        let Ok((_, entries)) = parse(words, len) else { return false };
        let checked: Vec<bool> = entries
            .zip([KEY, OTHER_KEY, KEY])
            .map(|(entry, key)| entry.is_ok_and(|entry| entry.is_authentic(&key)))
            .collect();
        checked == [true, true]
    }

    /// The named field in this section of the page of layouts, read from a datagram.
    fn field(section: &str, name: &str, bytes: &[u8]) -> u64 {
        let section = PAGE.split("\n## ").find(|it| it.lines().next() == Some(section)).unwrap();
        let row = section.lines().find(|row| row.starts_with("| 0x") && row.contains(&format!("| {name}")));
        let cells: Vec<&str> = row.unwrap_or_else(|| panic!("no {name}")).split('|').map(str::trim).collect();
        let offset = usize::from_str_radix(cells[1].trim_start_matches("0x"), 16).unwrap();
        let len = cells[2].trim_start_matches('u').parse::<usize>().unwrap() / 8;
        let mut word = [0; WORD];
        word[..len].copy_from_slice(&bytes[offset..offset + len]);
        u64::from_le_bytes(word)
    }

    #[test]
    fn golden_bytes() {
        let words = datagram();
        let bytes: &[u8] = bytemuck::cast_slice(&words);
        assert_eq!(&bytes[..8], b"FBN1\x01\0\x02\x01");
        assert_eq!(words[1..3], [0x1122_3344_5566_7788, 9]);
        assert_eq!(words[3..9], [0x99, 0xabcd, 7, 0x40, 5, joined(24, 2)]);
        assert_eq!(
            words[9..11],
            [0x2da7_6470_57cb_41e2, 0x39ac_4831_67f2_e3b8],
            "the MAC is {:016x?}",
            &words[9..11]
        );
        assert_eq!(words[11..14], [10, 11, 12]);
        assert_eq!(words[14..20], [3, 0xabcd, 7, 0x40, 5, 0]);
        assert_eq!(words.len(), 22);
    }

    #[test]
    fn key_of_a_session_is_neither_the_topics_nor_that_of_another_session() {
        let sessions = [NoticeKey::new([1; 16]), NoticeKey::new([2; 16])];
        let [first, second] = sessions.map(|secret| KEY.for_session(&secret));
        assert!(first != second && first != KEY && first == KEY.for_session(&sessions[0]));
        assert!(OTHER_KEY.for_session(&sessions[0]) != first, "each topic has its own");
        let mut draft = draft();
        assert!(draft.push(&notice(), &KEY, None));
        let words: Vec<u64> = bytemuck::cast_slice(draft.seal_for(&HEADER, &sessions[0])).to_vec();
        let entry = parse(&words, words.len() * WORD).unwrap().1.next().unwrap().unwrap();
        assert!(entry.is_authentic(&first) && !entry.is_authentic(&second) && !entry.is_authentic(&KEY));
    }

    /// The first of the authors' vectors of SipHash with 128 bits of output.
    #[test]
    fn check_value_of_the_mac() {
        let hasher = SipHasher24::new_with_key(&KEY.bytes()).finish128();
        let expected = *b"\xa3\x81\x7f\x04\xba\x25\xa8\xe6\x6d\xf6\x72\x14\xc7\x55\x02\x93";
        assert_eq!([hasher.h1.to_le_bytes(), hasher.h2.to_le_bytes()].concat(), expected);
    }

    #[test]
    fn the_page_of_layouts_says_where_the_fields_stand() {
        let words = datagram();
        let (head, entry) = bytemuck::cast_slice(&words).split_at(HEADER_LEN);
        let of_head = |name| field("Notice datagram", name, head);
        assert_eq!(of_head("magic"), u64::from(MAGIC));
        assert_eq!((of_head("version"), of_head("entries"), of_head("flags")), (1, 2, 1));
        assert_eq!((of_head("channel"), of_head("number")), (HEADER.channel, 9));
        let of_entry = |name| field("Notice entry", name, entry);
        assert_eq!((of_entry("topic"), of_entry("epoch"), of_entry("sequence")), (0x99, 0xabcd, 7));
        assert_eq!((of_entry("position"), of_entry("time of publishing")), (0x40, 5));
        assert_eq!((of_entry("inline length"), of_entry("inline records")), (24, 2));
        assert_eq!([of_entry("MAC, first half"), of_entry("MAC, second half")], words[9..11]);
    }

    #[test]
    fn entries_are_read_back() {
        let words = datagram();
        let (header, mut entries) = parse(&words, words.len() * WORD).unwrap();
        assert_eq!(header, HEADER);
        let first = entries.next().unwrap().unwrap();
        assert_eq!((first.notice, first.inline), (notice(), &[10, 11, 12][..]));
        assert!(first.is_authentic(&KEY) && !first.is_authentic(&OTHER_KEY));
        let second = entries.next().unwrap().unwrap();
        assert_eq!((second.notice.topic, second.inline.len()), (TopicId::new(3), 0));
        assert!(second.is_authentic(&OTHER_KEY) && entries.next().is_none());
    }

    #[test]
    fn a_sealed_datagram_can_be_sealed_for_one_receiver() {
        let mut draft = draft();
        assert!(draft.is_empty() && draft.push(&notice(), &KEY, None));
        let to_all = draft.seal(&HEADER).to_vec();
        let unicast = DatagramHeader { is_unicast: true, ..HEADER };
        let words: Vec<u64> = bytemuck::cast_slice(draft.seal(&unicast)).to_vec();
        let (header, mut entries) = parse(&words, words.len() * WORD).unwrap();
        assert!(header == unicast && entries.next().unwrap().unwrap().is_authentic(&KEY));
        assert_eq!(draft.seal(&HEADER), to_all);
    }

    #[test]
    fn every_flipped_bit_is_an_error_or_a_mismatch() {
        let words = datagram();
        assert!(is_whole(&words, words.len() * WORD));
        for bit in 0..words.len() * 64 {
            let mut flipped = words.clone();
            flipped[bit / 64] ^= 1 << (bit % 64);
            assert!(!is_whole(&flipped, words.len() * WORD), "word {} bit {}", bit / 64, bit % 64);
        }
    }

    #[test]
    fn every_cut_and_every_addition_is_an_error() {
        let mut words = datagram();
        let len = words.len() * WORD;
        words.extend([0; 20]);
        for cut in (0..=words.len() * WORD).filter(|cut| *cut != len) {
            let outcome: Result<Vec<()>, _> =
                parse(&words, cut).and_then(|(_, entries)| entries.map(|it| it.map(drop)).collect());
            assert!(outcome.is_err(), "{cut} bytes");
        }
        assert!(parse(&words, words.len() * WORD + WORD).is_err(), "longer than its memory");
    }

    #[test]
    fn random_bytes_make_no_notice() {
        each_seed(2000, |seed| {
            let mut random = Random::new(seed);
            let mut words: Vec<u64> = (0..random.below(80)).map(|_| random.next()).collect();
            // Half of them get past the header.
            if let [identity, ..] = words.as_mut_slice()
                && random.once_in(2)
            {
                let entries = u32::try_from(random.below(8)).unwrap();
                *identity = joined(MAGIC, 1 | (entries << 16));
                // And some past an entry.
                let lens = words.iter_mut().skip(HEADER_WORDS + 5).step_by(ENTRY_WORDS);
                lens.for_each(|sizes| *sizes = 0);
            }
            let len = words.len() * WORD;
            if let Ok((_, entries)) = parse(&words, len) {
                assert!(entries.flatten().all(|entry| !entry.is_authentic(&KEY)));
            }
        });
    }

    #[test]
    fn impossible_fields_are_named() {
        let field_of = |word: usize, value: u64| {
            let mut words = datagram();
            words[word] = value;
            match parse(&words, words.len() * WORD)
                .and_then(|(_, entries)| entries.collect::<Result<Vec<_>, _>>())
            {
                Err(Malformed(field)) => field,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(field_of(0, joined(MAGIC, 1)), "number of entries");
        assert_eq!(field_of(0, joined(MAGIC, 0x0401_0001)), "set of flags");
        assert_eq!((field_of(1, 0), field_of(2, 0), field_of(4, 0)), ("channel", "number", "epoch"));
        assert_eq!(field_of(6, 16), "position");
        assert_eq!(field_of(8, joined(25, 2)), "inline length");
        assert_eq!(field_of(8, 24), "number of inline records");
        assert_eq!(field_of(8, joined(24, 8)), "number of inline records");
    }

    #[test]
    fn entries_that_do_not_fit_lose_their_inline_bytes_or_are_refused() {
        assert!(DatagramDraft::new(HEADER_LEN + ENTRY_LEN - 1).is_none());
        let mut draft = DatagramDraft::new(HEADER_LEN + 2 * ENTRY_LEN + 16).unwrap();
        let memory = memory();
        let inline = |len| Some(Inline { memory: &memory, range: ByteRange { offset: 0, len }, records: 1 });
        assert!(draft.push(&notice(), &KEY, inline(4096)), "longer than the datagram");
        assert!(draft.push(&notice(), &KEY, inline(16)) && !draft.has_room());
        assert!(!draft.push(&notice(), &KEY, None));
        let words: Vec<u64> = bytemuck::cast_slice(draft.seal(&HEADER)).to_vec();
        let entries = parse(&words, words.len() * WORD).unwrap().1;
        let inline: Vec<usize> = entries.map(|entry| entry.unwrap().inline.len()).collect();
        assert_eq!((inline, draft.notices().len()), (vec![0, 2], 2));
        draft.clear();
        assert!(draft.is_empty() && draft.has_room());
    }
}
