//! The clock line of a repository: how its times follow from the host's monotonic clock.
//!
//! ```text
//! c0  u64  version: odd while the line is written, 0 before it was
//! c8  u64  time namespace of the publisher's process, 0: unknown
//! d0  u64  anchor: a time minus the monotonic clock at that moment, ns, modulo 2^64
//! d8  u64  the first time after the last leap, ns since the Unix epoch
//! e0  u64  its length, ns; 0: there was none
//! e8  u64  the first time after the leap before
//! f0  u64  its length, ns; 0: there was none
//! f8  u64  zero
//! ```

use super::header::HOT_OFFSET;
use super::{LINE, WORD};
use crate::clock::{Leap, Timeline};
use crate::limits;
use crate::memory::Region;
use crate::sync::atomic::{Ordering, fence};

/// The offset of the line: behind the hot line.
pub(crate) const CLOCK_OFFSET: usize = HOT_OFFSET + LINE;
/// Words of the line behind the version.
const WORDS: usize = LINE / WORD - 1;
/// Attempts to read the line while it is written, which is rare.
const ATTEMPTS: u32 = 8;

const _: () = assert!(WORDS > 2 + 2 * limits::CLOCK_LEAPS);

/// The times of a repository, and whose monotonic clock they follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockLine {
    /// The time namespace of the publisher's process.
    pub(crate) namespace: u64,
    /// The times.
    pub(crate) timeline: Timeline,
}

impl ClockLine {
    /// Writes the line. It has one writer at a time.
    pub(crate) fn write(&self, region: &Region) {
        let Self { namespace, timeline: Timeline { anchor_ns, leaps } } = *self;
        let mut words = [0; WORDS];
        let leaps = leaps.into_iter().flat_map(|Leap { from_ns, by_ns }| [from_ns, by_ns]);
        words
            .iter_mut()
            .zip([namespace, anchor_ns].into_iter().chain(leaps))
            .for_each(|(word, it)| *word = it);
        let version = region.load(CLOCK_OFFSET) & !1;
        region.store(CLOCK_OFFSET, version.wrapping_add(1));
        // Release: a reader that sees one of the words below sees the odd version, or a later one, afterwards.
        fence(Ordering::Release);
        region.copy_in(CLOCK_OFFSET + WORD, &words);
        region.store_release(CLOCK_OFFSET, version.wrapping_add(2));
    }

    /// Reads the line; `None` if it was never written, or is not whole.
    pub(crate) fn read(region: &Region) -> Option<Self> {
        (0..ATTEMPTS).find_map(|_| {
            let version = region.load_acquire(CLOCK_OFFSET);
            let mut words = [0; WORDS];
            region.copy_out(CLOCK_OFFSET + WORD, &mut words);
            // Acquire: pairs with the fence of the writer.
            fence(Ordering::Acquire);
            let is_whole = version != 0 && version.is_multiple_of(2) && region.load(CLOCK_OFFSET) == version;
            is_whole.then(|| Self::parse(&words))
        })
    }

    fn parse(words: &[u64; WORDS]) -> Self {
        let [namespace, anchor_ns, rest @ ..] = *words;
        let mut leaps = [Leap::default(); limits::CLOCK_LEAPS];
        let (pairs, _) = rest.as_chunks();
        leaps.iter_mut().zip(pairs).for_each(|(leap, [from_ns, by_ns])| {
            *leap = Leap { from_ns: *from_ns, by_ns: *by_ns };
        });
        Self { namespace, timeline: Timeline { anchor_ns, leaps } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Protection;

    fn region() -> Region {
        Region::allocate(4096, Protection::PeersRead).unwrap()
    }

    fn line() -> ClockLine {
        let leaps = [Leap { from_ns: 30, by_ns: 3 }, Leap { from_ns: 20, by_ns: 2 }];
        ClockLine { namespace: 7, timeline: Timeline { anchor_ns: u64::MAX, leaps } }
    }

    #[test]
    fn golden_words() {
        let region = region();
        assert_eq!(ClockLine::read(&region), None);
        line().write(&region);
        let mut words = [0; 8];
        region.copy_out(0xc0, &mut words);
        assert_eq!(words, [2, 7, u64::MAX, 30, 3, 20, 2, 0]);
        assert_eq!(ClockLine::read(&region), Some(line()));
        line().write(&region);
        assert_eq!(region.load(0xc0), 4);
    }

    /// A writer that died in the middle must not lead its readers astray.
    #[test]
    fn line_that_is_being_written_is_not_read() {
        let region = region();
        line().write(&region);
        region.store(CLOCK_OFFSET, 3);
        assert_eq!(ClockLine::read(&region), None);
        line().write(&region);
        assert_eq!(ClockLine::read(&region), Some(line()));
    }

    #[test]
    fn no_reader_gets_a_part_of_two_lines() {
        let region = region();
        let of = |number| ClockLine {
            namespace: number,
            timeline: Timeline { anchor_ns: number, leaps: [Leap { from_ns: number, by_ns: number }; 2] },
        };
        std::thread::scope(|scope| {
            scope.spawn(|| (1..20_000).for_each(|number| of(number).write(&region)));
            scope.spawn(|| {
                let mut last = 0;
                while last < 10_000 {
                    if let Some(line) = ClockLine::read(&region) {
                        assert_eq!(line, of(line.namespace));
                        assert!(line.namespace >= last);
                        last = line.namespace;
                    }
                }
            });
        });
    }
}
