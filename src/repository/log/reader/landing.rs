//! Reading a log's landing region.
//!
//! A landing region is read like a mapped repository: all frames before the end are whole, because they were written
//! before it, and the start is moved before frames after it are overwritten. Without lossy writes it has no index. Its
//! reader stores its consumed position there, and the publisher overwrites nothing from there on unless it has given it up.
//!
//! A publisher that laps its ring while a write is in flight may have written frames of later rounds, even uncommitted
//! ones. If any sequence is acceptable, the reader waits for one after the newest record. An invalid frame was given
//! up, if writes take time, and the start that says so is on its way: only a frame that stays invalid without it is reported as
//! damaged. If writes may be lost, that start may be lost too, so an invalid frame is reported as damaged at once.

use super::{LogReader, UNBOUNDED};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::log::LANDING_CONSUMED;
use crate::limits;
use crate::memory::Region;
use crate::repository::{ReadFailure, Taken};

impl LogReader {
    /// Takes the next record of a landing region. Reports an invalid frame only if this says that it is final.
    #[inline]
    pub(super) fn follow_if(
        &mut self,
        memory: &Region,
        stays_wrong: impl Fn(&mut Self) -> bool,
    ) -> Result<Option<Taken>, ReadFailure> {
        self.forget_view();
        let is_bounded = self.bound != UNBOUNDED;
        let mut taken = if is_bounded { self.poll_if(memory, &stays_wrong) } else { Ok(None) };
        if matches!(taken, Ok(None)) {
            let newest = Sequence::new(memory.load(HOT_SEQUENCE));
            if std::mem::replace(&mut self.bound, newest) != newest {
                taken = self.poll_if(memory, &stays_wrong);
            }
        }
        self.say(memory, matches!(taken, Ok(None)));
        taken
    }

    /// Stores the consumed position, if there is nothing more to take, or a part of the ring was consumed.
    #[inline]
    pub(super) fn say(&mut self, memory: &Region, is_all: bool) {
        let part = self.geometry.capacity() as u64 / limits::LOG_TAKEN_PARTS;
        let unsaid = self.position.wrapping_sub(self.said);
        if unsaid >= part || (unsaid > 0 && is_all) {
            self.said = self.position;
            self.say_from = self.position.saturating_add(part);
            // Release: the frames were copied before this is visible, after which the publisher may overwrite them.
            memory.store_release(LANDING_CONSUMED, self.position);
        }
    }
}
