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

use super::{LogReader, Taken, UNBOUNDED};
use crate::id::Sequence;
use crate::layout::header::HOT_SEQUENCE;
use crate::layout::log::{HOT_END, LANDING_TAKEN};
use crate::limits;
use crate::memory::Region;

impl LogReader {
    /// The next record in a landing region where all writes appear in order, or what is missing before it; `None` when there is
    /// none yet.
    #[inline]
    pub(crate) fn follow(&mut self, memory: &Region) -> Option<Taken> {
        self.follow_if(memory, |_| true)
    }

    /// The same where only whole writes appear in order. What is wrong is waited for, but not for ever: see
    /// [`limits::ARRIVAL_SETTLED_NS`]. The time is only asked for then.
    #[inline]
    pub(crate) fn follow_late(&mut self, memory: &Region, now_ns: impl Fn() -> u64) -> Option<Taken> {
        let has_settled = |reader: &mut Self| {
            reader.has_settled(memory.load_acquire(HOT_END), now_ns(), limits::ARRIVAL_SETTLED_NS)
        };
        self.follow_if(memory, has_settled)
    }

    #[inline]
    fn follow_if(&mut self, memory: &Region, stays_wrong: impl Fn(&mut Self) -> bool) -> Option<Taken> {
        let is_bounded = self.bound != UNBOUNDED;
        let mut taken = if is_bounded { self.poll_if(memory, &stays_wrong) } else { None };
        if taken.is_none() {
            let newest = Sequence::new(memory.load(HOT_SEQUENCE));
            if std::mem::replace(&mut self.bound, newest) != newest {
                taken = self.poll_if(memory, &stays_wrong);
            }
        }
        let part = self.geometry.capacity() as u64 / limits::LOG_TAKEN_PARTS;
        let unsaid = self.position.wrapping_sub(self.said);
        if unsaid >= part || (unsaid > 0 && taken.is_none()) {
            self.said = self.position;
            self.say_from = self.position.saturating_add(part);
            // Release: what was copied was copied before this is seen, and the publisher writes there again.
            memory.store_release(LANDING_TAKEN, self.position);
        }
        taken
    }
}
