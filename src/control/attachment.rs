use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of an attachment. The subscriber chooses it; it is meaningless outside the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct AttachmentId(u32);

impl AttachmentId {
    /// Creates the attachment number.
    pub(crate) const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub(crate) const fn get(self) -> u32 {
        self.0
    }

    /// Returns the next number; it wraps around.
    #[must_use]
    pub(crate) const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

impl fmt::Display for AttachmentId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
