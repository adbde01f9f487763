use std::io;

use super::PublishError;
use super::output::Output;
use super::state::{StatePublisher, deliver};
use super::state_landing::StateLanding;
use crate::id::Sequence;
use crate::payload::{Payload, Raw};
use crate::repository::state::StagedValue;

/// A buffer for the next value: [`StatePublisher::loan`] returns it, and appended bytes go straight into the repository's next
/// slot. The newest value stays readable. Dropping the loan publishes nothing.
///
/// It implements [`io::Write`], so that encoders can write to it; a write that does not fit is partial, and returns 0 when the
/// buffer is full.
///
/// Send, not Sync: it may be sent to another thread, and is used by one at a time.
#[derive(Debug)]
#[must_use = "a loan that is not committed publishes nothing"]
pub struct Loan<'a> {
    staged: StagedValue<'a>,
    output: &'a mut Output<StateLanding>,
}

impl StatePublisher<Raw> {
    /// Claims the next slot, so the caller can write a large value directly into the repository. Neither blocks nor allocates.
    ///
    /// ```
    /// use fabricast::{Node, Raw};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("camera")?.runtime_dir(dir.path()).open()?;
    /// let mut frames = node.state_publisher::<Raw>("left").payload_len_max(1 << 20).open()?;
    /// let mut frame = frames.loan();
    /// for row in 0..480_u16 {
    ///     frame.append(&[row.to_le_bytes(); 640].concat())?;
    /// }
    /// assert_eq!(frame.commit().get(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn loan(&mut self) -> Loan<'_> {
        Loan { staged: self.writer.stage(Raw::ENCODING.number()), output: &mut self.output }
    }
}

impl Loan<'_> {
    /// Appends bytes to the value. Neither blocks nor allocates.
    ///
    /// # Errors
    ///
    /// [`PublishError::TooLong`] when they do not fit; the loan is unchanged and stays usable. [`PublishError::NodeFailed`] when
    /// the node's thread has panicked.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), PublishError> {
        self.output.check_served()?;
        Ok(self.staged.append(bytes)?)
    }

    /// Returns the number of bytes appended so far.
    pub fn len(&self) -> usize {
        self.staged.len()
    }

    /// Returns whether nothing has been appended yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes that still fit.
    pub fn remaining(&self) -> usize {
        self.staged.remaining()
    }

    /// Publishes the appended bytes, and returns the sequence of the value.
    pub fn commit(self) -> Sequence {
        let now_ns = self.output.realtime_ns();
        let committed = self.staged.commit(now_ns);
        deliver(self.output, &committed);
        committed.sequence
    }
}

impl io::Write for Loan<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (fitting, _) = bytes.split_at(bytes.len().min(self.remaining()));
        self.append(fitting).map_err(io::Error::other)?;
        Ok(fitting.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
