use std::io;

use super::PublishError;
use super::log::{LogPublisher, admit, commit, deliver_part, refused};
use super::log_landing::LogLanding;
use super::output::Output;
use crate::id::Sequence;
use crate::layout::log::frame_len;
use crate::payload::Raw;
use crate::repository::Writer as _;
use crate::repository::log::StagedRecord;

/// A buffer for the next record: [`LogPublisher::loan`] returns it, and appended bytes go straight into the repository's ring.
/// Dropping the loan publishes nothing.
///
/// It implements [`io::Write`], so that encoders can write to it; a write that does not fit is partial, and returns 0 when the
/// buffer is full.
///
/// Send, not Sync: it may be sent to another thread, and is used by one at a time.
#[derive(Debug)]
#[must_use = "a loan that is not committed publishes nothing"]
pub struct LogLoan<'a> {
    staged: StagedRecord<'a>,
    output: &'a mut Output<LogLanding>,
}

impl LogPublisher<Raw> {
    /// Reserves space for the next record in the ring, so that the caller can write a long one in pieces, without gathering it first.
    /// It reserves as much as the longest record takes, and gives up the oldest records there, whether or not the loan is committed.
    /// Does not allocate. Where the publisher permits [gating](crate::Gating), it waits until no gating subscriber needs those records;
    /// otherwise it does not block.
    ///
    /// ```
    /// use fabricast::{Node, Raw};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("camera")?.runtime_dir(dir.path()).open()?;
    /// let mut frames = node.log_publisher::<Raw>("left").payload_len_max(1 << 20).open()?;
    /// let mut frame = frames.loan()?;
    /// for row in 0..480_u16 {
    ///     frame.append(&[row.to_le_bytes(); 640].concat())?;
    /// }
    /// assert_eq!(frame.commit().get(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`PublishError::Blocked`] when a gating subscriber still needs those records after the timeout. [`PublishError::NodeFailed`] when
    /// the node's thread has panicked.
    pub fn loan(&mut self) -> Result<LogLoan<'_>, PublishError> {
        self.loan_by(true)
    }

    /// Reserves space like [`Self::loan`], but does not wait for subscribers. Does not block.
    ///
    /// # Errors
    ///
    /// [`PublishError::Blocked`] when a gating subscriber still needs the records there: try again later. [`PublishError::NodeFailed`]
    /// when the node's thread has panicked.
    pub fn try_loan(&mut self) -> Result<LogLoan<'_>, PublishError> {
        self.loan_by(false)
    }

    fn loan_by(&mut self, may_wait: bool) -> Result<LogLoan<'_>, PublishError> {
        self.output.check_served()?;
        let Self { writer, output, .. } = self;
        let now_ns = output.realtime_ns();
        let frames_len = frame_len(writer.geometry().payload_len_max());
        if output.gate.is_permitted() {
            let admitted = admit(writer, output, frames_len, (now_ns, may_wait));
            admitted.map_err(|error| refused(output, error, may_wait))?;
        }
        let before = (writer.last(), writer.committed_end());
        writer.reserve(now_ns);
        deliver_part(writer, output, before, now_ns);
        Ok(LogLoan { staged: writer.stage(now_ns), output })
    }
}

impl LogLoan<'_> {
    /// Appends bytes to the record. Neither blocks nor allocates.
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

    /// Publishes the record, together with all appended before, and returns its sequence.
    pub fn commit(self) -> Sequence {
        let (now_ns, len) = (self.output.realtime_ns(), self.len());
        let writer = self.staged.finish(now_ns);
        self.output.add_bytes(len);
        commit(writer, self.output, now_ns);
        writer.last()
    }
}

impl io::Write for LogLoan<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (fitting, _) = bytes.split_at(bytes.len().min(self.remaining()));
        self.append(fitting).map_err(io::Error::other)?;
        Ok(fitting.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
