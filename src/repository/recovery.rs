//! What recoveries of all kinds share: how a writer continues the repository of one that is gone.

use std::sync::Arc;

use super::Writer;
use crate::id::Sequence;
use crate::layout::header::StaticHeader;
use crate::limits;
use crate::memory::Region;

/// A writer that can continue the repository of another one, which is gone.
pub(crate) trait Recover: Writer + Sized {
    /// Takes a region that holds a repository of this geometry and header, and makes it what its writer would have left after the last
    /// commit that readers can have seen. Subscribers may be reading it meanwhile. Checks everything that was committed and can be read.
    ///
    /// # Panics
    ///
    /// When the region is shorter than its geometry, which is a mistake of the caller.
    fn recover(
        region: Arc<Region>,
        geometry: Self::Geometry,
        line: &StaticHeader,
        continued: &Continued,
    ) -> Result<Self, Damage>;
}

/// What is known of the repository besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Continued {
    /// The sequence before that of its first value.
    pub(crate) after: Sequence,
    /// Of the log of a feed: the newest sequence of its table, which was committed first.
    pub(crate) until: Option<Sequence>,
}

/// Bytes that no writer leaves, whenever it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// What they should be.
    pub(crate) what: &'static str,
    /// Where they are.
    pub(crate) offset: usize,
}

impl Continued {
    /// Checks a newest sequence, which is at this offset. Returns it, or the sequence before the first value.
    pub(super) fn check_newest(&self, newest: Sequence, offset: usize) -> Result<Sequence, Damage> {
        let possible = self.after.get()..=limits::SEQUENCE_MAX;
        match newest {
            Sequence::NONE => Ok(self.after),
            newest if possible.contains(&newest.get()) => Ok(newest),
            _ => Err(Damage { what: "the newest sequence", offset }),
        }
    }
}

#[cfg(test)]
mod tests;
