//! Logs that a publisher writes into a landing region.
//!
//! Such a region is read as a repository that stands in place: all frames before the end are whole, because they were written
//! before it, and the start is moved before anything behind it is overwritten. It has no index, but where writes may be lost. Its
//! reader says there how far it has come, and nothing from there on is overwritten unless the publisher has given it up.
//!
//! A publisher that goes round its ring while a write is under way may have written frames of later rounds, even some that are not
//! committed. Where any sequence will do, one behind the newest record is waited for. What is not right for its place was given
//! up, where writes take their time, and the start that says so is on its way: only what stays wrong without that is told as
//! damaged. Where writes may be lost, that start may be lost too, and nothing is waited for: what is not right is told as damaged.

use super::{LogReader, UNBOUNDED};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::log::LANDING_TAKEN;
use crate::limits;
use crate::memory::Region;
use crate::repository::{ReadFailure, Taken};

impl LogReader {
    /// The next record in a landing region. What is wrong is only told as such if this says that it stays so.
    #[inline]
    pub(super) fn follow_if(
        &mut self,
        memory: &Region,
        stays_wrong: impl Fn(&mut Self) -> bool,
    ) -> Result<Option<Taken>, ReadFailure> {
        let is_bounded = self.bound != UNBOUNDED;
        let mut taken = if is_bounded { self.poll_if(memory, &stays_wrong) } else { Ok(None) };
        if matches!(taken, Ok(None)) {
            let newest = Sequence::new(memory.load(HOT_SEQUENCE));
            if std::mem::replace(&mut self.bound, newest) != newest {
                taken = self.poll_if(memory, &stays_wrong);
            }
        }
        let part = self.geometry.capacity() as u64 / limits::LOG_TAKEN_PARTS;
        let unsaid = self.position.wrapping_sub(self.said);
        if unsaid >= part || (unsaid > 0 && matches!(taken, Ok(None))) {
            self.said = self.position;
            self.say_from = self.position.saturating_add(part);
            // Release: what was copied was copied before this is seen, and the publisher writes there again.
            memory.store_release(LANDING_TAKEN, self.position);
        }
        taken
    }
}
