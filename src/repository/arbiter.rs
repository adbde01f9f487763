use std::fmt::Debug;

use crate::id::{Meta, Sequence};

/// Decides which values of several *lines*, publishers of the same values, a subscriber receives: of each the first to arrive. It
/// compares sequences, and never looks at values.
pub(crate) trait Arbiter: Debug + Send {
    /// Begins with this many lines after this value. Forgets everything before.
    fn begin(&mut self, last: Sequence, lines: usize);

    /// This line has attached to a publisher, perhaps another one than before: it has yet to show which keys that has.
    fn join(&mut self, _line: usize) {}

    /// Decides about a value of this line, and counts it as received if it is the first.
    fn judge(&mut self, line: usize, arrival: &Arrival<'_>) -> Verdict;

    /// Returns the last value that was received or skipped.
    fn last(&self) -> Sequence;

    /// Returns the last value received, where a sequence names one value.
    fn newest_value(&self) -> Option<Sequence> {
        None
    }

    /// Returns whether every value counts, and [`Verdict::Early`] is possible.
    fn wants_each(&self) -> bool {
        false
    }

    /// Goes on after this value, forwards or backwards.
    fn skip_to(&mut self, last: Sequence);

    /// This line has received the values of all wanted keys as of this commit, and has these keys. Cheap if that is not new.
    fn complete(&mut self, _line: usize, _until: Meta, _has_key: &dyn Fn(&[u8]) -> bool) {}

    /// Forgets what lines have shown to be complete or gone, because one was wrong. All lines offer their values once more.
    fn doubt(&mut self) {}

    /// Returns the next key that is gone. No line has said so: it was removed while the line was away that had brought it.
    fn take_removed(&mut self) -> Option<GoneKey> {
        None
    }

    /// Forgets the keys that are not wanted any more. Others may be wanted that were not before.
    fn retain_keys(&mut self, _is_wanted: &dyn Fn(&[u8]) -> bool) {}
}

/// A value that a line offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival<'a> {
    pub(crate) meta: Meta,
    /// Values between the last one of the line and this one.
    pub(crate) conflated: u64,
    /// More on a change of a table, whose key it begins with.
    pub(crate) changed: Option<ChangedKey>,
    pub(crate) payload: &'a [u8],
}

/// More on a change of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangedKey {
    /// Bytes of the key.
    pub(crate) key_len: usize,
    /// How often it changed since it was added.
    pub(crate) number: u64,
    /// It was not reported before.
    pub(crate) is_new: bool,
    /// It has a value.
    pub(crate) is_present: bool,
    /// The commit that added it. If it has no value: what earlier commits and this one added of it is removed.
    pub(crate) added: Sequence,
    /// Cells of the table.
    pub(crate) capacity: usize,
}

/// A key that a line has shown to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GoneKey {
    pub(crate) key: Box<[u8]>,
    /// How often it has changed.
    pub(crate) number: u64,
    /// The commit of that line as of which it is gone.
    pub(crate) meta: Meta,
}

/// A decision of an [`Arbiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is received.
    First {
        /// Values that it replaced, of whatever line.
        conflated: u64,
        /// It is the first of its key.
        is_new: bool,
    },
    /// It was received before, or a later one of the key was.
    Duplicate,
    /// Others before it are missing.
    Early,
}
