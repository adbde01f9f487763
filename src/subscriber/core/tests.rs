use std::os::fd::BorrowedFd;

use super::*;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::log::{HOT_END, HOT_START_SEQUENCE};
use crate::memory::Protection;
use crate::repository::log::LogReader;
use crate::sync::atomic::{AtomicU64, Ordering};

/// At each pause, one more word of a hot line arrives.
#[derive(Debug)]
struct ArrivingClock {
    landing: Region,
    pauses: AtomicU64,
}

impl Clock for ArrivingClock {
    fn monotonic_ns(&self) -> u64 {
        0
    }

    fn realtime_ns(&self) -> u64 {
        0
    }

    fn pause(&self, _: Duration) {
        let words = [HOT_SEQUENCE, HOT_END, HOT_EPOCH, HOT_START_SEQUENCE];
        let next = self.pauses.fetch_add(1, Ordering::Relaxed);
        self.landing.store(*words.get(usize::try_from(next).expect("a few")).expect("all words came"), 7);
    }

    fn pause_until(&self, _: BorrowedFd<'_>, duration: Duration) {
        self.pause(duration);
    }
}

/// One that began without the start would take the records before it for lost.
#[test]
fn a_log_begins_once_its_whole_hot_line_has_arrived() {
    let landing = Region::allocate(4096, Protection::PeersRead).expect("memory");
    let clock = ArrivingClock { landing, pauses: AtomicU64::new(0) };
    await_beginning::<LogReader>(&clock.landing, Epoch::new(7).expect("an epoch"), &clock)
        .expect("it arrives");
    assert_eq!(clock.landing.load(HOT_START_SEQUENCE), 7);
}
