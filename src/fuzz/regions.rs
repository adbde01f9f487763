//! Regions of any kind: what reports read, and a repository that its reader copies, fetches or has written to it, whose memory
//! changes under it.

use std::sync::Arc;

use super::input::Input;
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::header::{COUNTERS_LEN, COUNTERS_OFFSET, STATIC_OFFSET, StaticHeader};
use crate::layout::progress::Progress;
use crate::layout::{ByteRange, Geometry, WORD, clock};
use crate::memory::{Protection, Region};
use crate::metrics;
use crate::repository::{Fetch, Finding, Reader, Taken, Verified, WriteOrder};

pub(super) const TOPIC: TopicId = TopicId::new(77);
pub(super) const EPOCH: Epoch = Epoch::FIRST;
/// The most steps of an input.
pub(super) const STEPS_MAX: usize = 400;
/// The most calls in a row that may yield something without new memory.
const TAKES_MAX: usize = 200;
/// Calls that together find everything that does not change meanwhile, also by way of an index that is read while it changes.
const ROUNDS: usize = 64;
/// Every value with so many wrong bits differs from every other in its CRC-32 at the lengths used here.
const FLIPS_MAX: u32 = 3;

/// Headers, counters, clock lines and progress slots.
pub(super) fn headers(bytes: &[u8]) {
    let mut words: Vec<u64> = Vec::new();
    let mut input = Input::new(bytes);
    while !input.is_empty() && words.len() < 512 {
        words.push(input.word());
    }
    let memory = Region::allocate(4096, Protection::PeersWrite).expect("a page");
    memory.copy_in(0, &words);
    let mut head = [0; StaticHeader::WORDS];
    memory.copy_out(STATIC_OFFSET, &mut head);
    let parsed = StaticHeader::parse(&head);
    // A header of any numbers, as a grant states them.
    let stated = parsed.or_else(|_| {
        words.resize(StaticHeader::WORDS, 0);
        let fields = words.first_chunk().copied().unwrap_or_default();
        StaticHeader::parse(&resealed(fields))
    });
    if let Ok(header) = stated
        && let Ok(geometry) = Geometry::of(&header)
    {
        assert_eq!(geometry.static_header(header.epoch, header.topic, header.schema_hash), header);
        assert!(geometry.region_len() as u64 == header.numbers.region_len);
        let _ = (geometry.facts(), geometry.end_offset());
        if geometry.region_len() <= memory.len() {
            let _ = geometry.held(&memory);
        }
    }
    let counters = metrics::read(&memory, COUNTERS_OFFSET, COUNTERS_LEN);
    assert!(counters.iter().all(|counter| !counter.name.chars().any(char::is_control)));
    let _ = (clock::ClockLine::read(&memory), Progress::load(&memory));
}

/// The words of a header with the checksum that they need.
fn resealed(mut words: [u64; StaticHeader::WORDS]) -> [u64; StaticHeader::WORDS] {
    let [rest @ .., check] = &mut words;
    *check = crate::checksum::crc32(bytemuck::cast_slice(rest)).into();
    words
}

/// How the reader receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Mapped,
    Fetched,
    Landing(WriteOrder),
}

/// A value as a reader has taken it.
pub(super) struct Received<'a, R> {
    pub(super) reader: &'a R,
    pub(super) value: Verified<'a>,
    /// All words that the reader can have read were written by a writer, or have a few wrong bits: the value was published.
    pub(super) is_genuine: bool,
    /// Bits that are wrong.
    pub(super) flips: u32,
}

/// A repository, and what its reader sees of it: the repository itself, or a mirror or landing region.
pub(super) struct World<R: Reader> {
    pub(super) repository: Arc<Region>,
    memory: Arc<Region>,
    len: usize,
    pub(super) reader: R,
    way: Way,
    now_ns: u64,
    fetching: Option<Fetch<R::Purpose>>,
    /// The words in flight.
    words: Vec<usize>,
    flips: u32,
    /// Words were written that no writer has written.
    is_forged: bool,
}

impl<R: Reader> World<R> {
    pub(super) fn new(input: &mut Input<'_>, repository: &Arc<Region>, len: usize, reader: R) -> Self {
        let way = match input.byte() % 5 {
            0 => Way::Mapped,
            1 => Way::Fetched,
            2 => Way::Landing(WriteOrder::Words),
            3 => Way::Landing(WriteOrder::Writes),
            _ => Way::Landing(WriteOrder::FinalWrites),
        };
        let memory = match way {
            Way::Mapped => Arc::clone(repository),
            _ => Arc::new(Region::allocate(len, Protection::PeersWrite).expect("a mirror")),
        };
        let (words, repository) = (Vec::new(), Arc::clone(repository));
        let (fetching, flips, is_forged) = (None, 0, false);
        Self { repository, memory, len, reader, way, now_ns: 0, fetching, words, flips, is_forged }
    }

    pub(super) fn way(&self) -> Way {
        self.way
    }

    /// What the reader reads.
    pub(super) fn memory(&self) -> &Region {
        &self.memory
    }

    /// Attaches another reader. Returns the one before.
    pub(super) fn replace(&mut self, reader: R) -> R {
        self.fetching = None;
        self.words.clear();
        std::mem::replace(&mut self.reader, reader)
    }

    /// The reader, and what it reads.
    pub(super) fn parts(&mut self) -> (&mut R, &Region) {
        (&mut self.reader, &self.memory)
    }

    /// Whether values that are taken now were published.
    pub(super) fn is_genuine(&self) -> bool {
        !self.is_forged && self.flips <= FLIPS_MAX
    }

    /// How many bits are wrong.
    pub(super) fn flips(&self) -> u32 {
        self.flips
    }

    /// Whether words were written that no writer has written, apart from wrong bits.
    pub(super) fn is_forged(&self) -> bool {
        self.is_forged
    }

    pub(super) fn forge(&mut self) {
        self.is_forged = true;
    }

    /// Receives everything available. Returns whether only the writer has written.
    pub(super) fn receive_all(&mut self, mut check: impl FnMut(Received<'_, R>)) -> bool {
        if let Way::Landing(_) = self.way {
            let offsets = (0..self.len).step_by(WORD);
            offsets.for_each(|offset| self.memory.store(offset, self.repository.load(offset)));
        }
        for _ in 0..ROUNDS {
            self.reader.look_closely();
            self.receive(&mut check);
            self.now_ns += 1 << 30;
        }
        !self.is_forged && self.flips == 0
    }

    /// One step that is the same for all kinds.
    pub(super) fn step(&mut self, choice: u8, input: &mut Input<'_>, mut check: impl FnMut(Received<'_, R>)) {
        match choice {
            0..=3 => self.receive(&mut check),
            4 => self.bring(input),
            5 => {
                let offset = self.offset(input);
                let bit = 1 << (input.byte() % 64);
                self.flips += 1;
                self.memory.store(offset, self.memory.load(offset) ^ bit);
            }
            6 => {
                let (offset, words) = (self.offset(input), input.words(16));
                self.is_forged = true;
                let fitting = words.len().min((self.len - offset) / WORD);
                self.memory.copy_in(offset, words.get(..fitting).unwrap_or_default());
            }
            7 => self.now_ns += u64::from(input.byte()) << 20,
            8 => {
                let (sequence, position, words) = (input.word(), input.word(), input.words(32));
                self.is_forged = true;
                self.take_inline(&words, (Sequence::new(sequence), position), &mut check);
            }
            9 => {
                // A peer says how many values it has published.
                self.is_forged = true;
                let _ = self.reader.give_up(Sequence::new(input.word() >> (input.byte() % 64)));
            }
            10 => self.reader.look_closely(),
            _ => self.reader.settle(&self.memory),
        }
    }

    /// An offset of a word: often near the hot line.
    fn offset(&self, input: &mut Input<'_>) -> usize {
        let words = self.len / WORD;
        let number = usize::from(input.short());
        let word = if number < 256 { STATIC_OFFSET / WORD + number % 64 } else { number - 256 };
        word % words * WORD
    }

    /// Copies words from the repository to what the reader sees, in any order.
    fn bring(&mut self, input: &mut Input<'_>) {
        if let Way::Fetched = self.way {
            let count = usize::from(input.byte());
            for _ in 0..count.min(self.words.len()) {
                let word = self.words.swap_remove(input.index(self.words.len()));
                self.memory.store(word, self.repository.load(word));
            }
            return;
        }
        let (offset, count) = (self.offset(input), usize::from(input.byte()));
        let end = self.len.min(offset + count * WORD);
        let copied = (offset..end).step_by(WORD);
        copied.for_each(|offset| self.memory.store_release(offset, self.repository.load(offset)));
    }

    /// Copies everything that is in flight.
    fn bring_all(&mut self) {
        for offset in std::mem::take(&mut self.words) {
            self.memory.store(offset, self.repository.load(offset));
        }
    }

    /// Takes what a notice holds: of a writer, unless it was forged before.
    pub(super) fn take_inline(
        &mut self,
        words: &[u64],
        (sequence, position): (Sequence, u64),
        check: &mut impl FnMut(Received<'_, R>),
    ) {
        // No reader of a log takes them before it has begun, and none takes them while a fetch is in flight.
        if self.way != Way::Fetched || self.fetching.is_some() || !self.reader.has_begun() {
            return;
        }
        self.reader.expect_inline();
        if let Finding::Taken(taken) = self.reader.take_inline(words, sequence, position) {
            self.check(taken, check);
        }
    }

    /// Receives what there is.
    fn receive(&mut self, check: &mut impl FnMut(Received<'_, R>)) {
        for _ in 0..TAKES_MAX {
            let taken = match self.way {
                _ if !self.reader.has_begun() && self.way != Way::Fetched => {
                    self.reader.settle(&self.memory);
                    continue;
                }
                Way::Mapped => match self.reader.take_held() {
                    Some(taken) => Ok(Some(taken)),
                    None => self.reader.poll(&self.memory),
                },
                Way::Landing(order) => {
                    let now_ns = self.now_ns;
                    self.reader.follow(&self.memory, order, || now_ns)
                }
                Way::Fetched => match self.reader.take_held() {
                    Some(taken) => Ok(Some(taken)),
                    None => self.take_fetched(check),
                },
            };
            match taken {
                Ok(Some(taken)) => self.check(taken, check),
                Ok(None) if !self.reader.has_more() => return,
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn take_fetched(
        &mut self,
        check: &mut impl FnMut(Received<'_, R>),
    ) -> Result<Option<Taken>, crate::repository::ReadFailure> {
        let now_ns = self.now_ns;
        if let Some(taken) = self.reader.take_fetched(&self.memory, || now_ns).transpose() {
            return taken.map(Some);
        }
        let Some(fetched) = self.fetching.take() else {
            let fetch = self.reader.plan();
            self.post(&fetch);
            self.fetching = Some(fetch);
            return Ok(None);
        };
        self.bring_all();
        match self.reader.check(&self.memory, &fetched, self.now_ns)? {
            Finding::Taken(taken) => return Ok(Some(taken)),
            Finding::More(fetch) => {
                self.post(&fetch);
                self.fetching = Some(fetch);
            }
            Finding::Something => {
                let now_ns = self.now_ns;
                while let Some(taken) = self.reader.take_fetched(&self.memory, || now_ns)? {
                    self.check(taken, check);
                }
            }
            Finding::Nothing => {}
        }
        let _ = self.reader.newest_fetched(&self.memory, &fetched);
        Ok(None)
    }

    fn post(&mut self, fetch: &Fetch<R::Purpose>) {
        let ranges = self.reader.ranges(fetch);
        let end = |range: &ByteRange| range.offset + range.len;
        assert!(ranges.iter().all(|range| end(range) <= self.len), "{ranges:?}: the region has {}", self.len);
        let offsets = ranges.iter().flat_map(|range| (range.offset..end(range)).step_by(WORD));
        self.words = offsets.collect();
    }

    fn check(&self, taken: Taken, check: &mut impl FnMut(Received<'_, R>)) {
        let value = self.reader.verified(taken);
        check(Received { reader: &self.reader, value, is_genuine: self.is_genuine(), flips: self.flips });
    }
}

impl<R> Received<'_, R> {
    /// Words of the reader's memory before and after the payload.
    pub(super) fn around<'a>(&self, held: &'a [u64], before: usize) -> (&'a [u64], &'a [u64]) {
        let address = |words: *const u8| words.addr();
        let from = address(self.value.payload.as_ptr()) - address(held.as_ptr().cast());
        let behind = (from + self.value.payload.len()).div_ceil(WORD);
        let run = held.get(from / WORD - before..from / WORD).expect("a header before it");
        (run, held.get(behind..).unwrap_or_default())
    }
}

/// The payload of this value: its length and content depend on the number only.
pub(super) fn payload(number: u64, len_max: usize) -> Vec<u8> {
    let mut word = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let len = usize::try_from(word >> 40).unwrap_or(0) % (len_max + 1);
    let next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let [.., byte] = word.to_le_bytes();
        byte
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Headers of each kind, and the memory of a page in front of them.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    use crate::layout::log::LogGeometry;
    use crate::layout::state::StateGeometry;
    use crate::layout::table::TableGeometry;
    let geometries: [Geometry; 3] = [
        StateGeometry::new(4, 100).unwrap().into(),
        LogGeometry::new(4096, 200).unwrap().into(),
        TableGeometry::new(3, 8, 64).unwrap().into(),
    ];
    let page = |geometry: &Geometry| {
        let memory = Arc::new(Region::allocate(4096, Protection::PeersRead).unwrap());
        memory.copy_in(STATIC_OFFSET, &geometry.static_header(EPOCH, TOPIC, 5).emit());
        let mut table = metrics::Counters::new(Arc::clone(&memory), COUNTERS_OFFSET, COUNTERS_LEN);
        table.add("values", metrics::Unit::Count, 3).unwrap();
        (0..4096_usize / WORD).flat_map(|word| memory.load(word * WORD).to_le_bytes()).collect()
    };
    geometries.iter().map(page).collect()
}
