use std::fmt;
use std::ops::{Deref, DerefMut};

use super::{PublishError, TryPublishError};
use crate::id::Sequence;

/// A buffer in the publisher's private memory for the next value, to fill in place and commit: see
/// [`StatePublisher::claim`](super::StatePublisher::claim) and [`LogPublisher::claim`](super::LogPublisher::claim). Dropping it
/// publishes nothing.
///
/// The commit copies the value to the repository. The buffer cannot be the repository itself: subscribers of this process, and the
/// node's thread, may be reading there when it is claimed, and only find afterwards that what they read was given up. Writing there
/// through a reference would be a data race. A [`loan`](crate::LogPublisher::loan) writes there without a reference, from front to back.
///
/// It dereferences to the value, or to bytes for [`Raw`](crate::Raw). What it holds at first is unspecified: zeros, or bytes of
/// earlier values.
///
/// Send, not Sync: it may be sent to another thread, and is used by one at a time.
#[must_use = "a claim that is not committed publishes nothing"]
pub struct Claim<'a, V: ?Sized> {
    publisher: &'a mut (dyn ClaimBuffer<V> + Send),
    len: usize,
}

/// A publisher's private buffer for its next value.
pub(super) trait ClaimBuffer<V: ?Sized> {
    /// The value in the first bytes of the buffer.
    fn filled(&self, len: usize) -> &V;

    /// The same, to be filled.
    fn filled_mut(&mut self, len: usize) -> &mut V;

    /// Publishes the value, after a wait for subscribers if it may wait.
    fn publish_filled(&mut self, len: usize, may_wait: bool) -> Result<Sequence, PublishError>;
}

impl<'a, V: ?Sized> Claim<'a, V> {
    /// Claims a buffer of `len` bytes, which the publisher has.
    pub(super) fn new(publisher: &'a mut (dyn ClaimBuffer<V> + Send), len: usize) -> Self {
        Self { publisher, len }
    }

    /// Publishes the value, with the records of a log appended before, and returns its sequence.
    ///
    /// # Errors
    ///
    /// [`PublishError::Blocked`] when a subscriber for which the publisher of a log waits has not read in time what the record would
    /// overwrite, [`PublishError::NodeFailed`] when the node's thread has panicked. Then nothing is published, and the value is gone.
    pub fn commit(self) -> Result<Sequence, PublishError> {
        self.publisher.publish_filled(self.len, true)
    }

    /// Publishes like [`Self::commit`], but does not wait for subscribers: on an error it returns the claim with the value. Does not
    /// block.
    ///
    /// ```
    /// use fabricast::{Node, Raw};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::builder().name("camera")?.runtime_dir(dir.path()).open()?;
    /// let mut frames = node.log_publisher::<Raw>("left").open()?;
    /// let mut claim = frames.claim(4)?;
    /// claim.copy_from_slice(b"data");
    /// match claim.try_commit() {
    ///     Ok(sequence) => assert_eq!(sequence.get(), 1),
    ///     Err(refused) if refused.is_blocked() => println!("a subscriber is slow: commit refused.value later"),
    ///     Err(refused) => return Err(refused.error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Self::commit`], with the claim.
    pub fn try_commit(self) -> Result<Sequence, TryPublishError<Self>> {
        self.publisher.publish_filled(self.len, false).map_err(|error| TryPublishError { value: self, error })
    }
}

impl<V: ?Sized> Deref for Claim<'_, V> {
    type Target = V;

    fn deref(&self) -> &V {
        self.publisher.filled(self.len)
    }
}

impl<V: ?Sized> DerefMut for Claim<'_, V> {
    fn deref_mut(&mut self) -> &mut V {
        self.publisher.filled_mut(self.len)
    }
}

impl<V: ?Sized> fmt::Debug for Claim<'_, V> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Claim").field("len", &self.len).finish_non_exhaustive()
    }
}
