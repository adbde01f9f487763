//! One-sided access with faults.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::connection::Session;
use super::failed;
use super::script::{Fault, Operation};
use crate::fabric::{
    ArrivalAnnouncer, ByteRange, Completion, FabricError, Placement, Registration, RemoteRead, RemoteWrite,
    Revocation, Write,
};
use crate::memory::Region;
use crate::memory::WORD;

/// Reads with faults. Changes to the bytes read (a flipped bit, a tear, old bytes) happen only in a mirror of their own, not in a
/// peer's memory.
#[derive(Debug)]
pub(super) struct FaultyRead {
    inner: Box<dyn RemoteRead>,
    session: Session,
    batch: Option<FaultyBatch>,
}

/// A batch of reads in flight.
#[derive(Debug)]
struct FaultyBatch {
    fault: Option<Fault>,
    /// The offsets of all its words, and their previous contents.
    before: Vec<(usize, u64)>,
    polls_left: u32,
    complete: bool,
}

impl FaultyBatch {
    fn new(fault: Option<Fault>, mirror: &Region, ranges: &[ByteRange]) -> Self {
        let offsets = ranges.iter().flat_map(|range| (range.offset..range.offset + range.len).step_by(WORD));
        // The fabric refuses ranges that do not fit.
        let inside = offsets.take_while(|offset| *offset < mirror.len());
        let before = inside.map(|offset| (offset, mirror.load(offset))).collect();
        let polls_left = if let Some(Fault::DelayRead { polls }) = fault { polls } else { 0 };
        Self { fault, before, polls_left, complete: false }
    }

    /// Applies the fault to the bytes of the mirror.
    fn spoil(&self, mirror: &Region) {
        match self.fault {
            Some(Fault::FlipBit { word, bit }) => {
                let Some(word) = word.checked_rem(self.before.len()) else { return };
                let (offset, _) = self.before[word];
                mirror.store(offset, mirror.load(offset) ^ 1 << (bit % u64::BITS));
            }
            Some(Fault::TearRead { at }) => self.restore(mirror, at),
            Some(Fault::ReplayOld) => self.restore(mirror, 0),
            _ => {}
        }
    }

    /// Restores the old bytes from this byte of the batch on.
    fn restore(&self, mirror: &Region, at: usize) {
        for (index, (offset, old)) in self.before.iter().enumerate() {
            let kept = at.saturating_sub(index * WORD).min(WORD);
            let mut bytes = old.to_le_bytes();
            bytes[..kept].copy_from_slice(&mirror.load(*offset).to_le_bytes()[..kept]);
            mirror.store(*offset, u64::from_le_bytes(bytes));
        }
    }
}

impl FaultyRead {
    pub(super) fn new(inner: Box<dyn RemoteRead>, session: Session) -> Self {
        Self { inner, session, batch: None }
    }

    /// The result of the batch, now complete.
    fn complete(&mut self) -> Result<Completion, FabricError> {
        let Some(batch) = &mut self.batch else { return Ok(Completion::Done) };
        if batch.polls_left > 0 {
            batch.polls_left -= 1;
            return Ok(Completion::Pending);
        }
        if !self.inner.is_mapped() {
            batch.spoil(self.inner.mirror());
        }
        let fault = batch.fault;
        self.batch = None;
        if fault == Some(Fault::FailRead) {
            self.session.end();
            return Err(failed("read the peer's memory"));
        }
        Ok(Completion::Done)
    }
}

impl RemoteRead for FaultyRead {
    /// Without faults: they are meant for the subscriber.
    fn headers(&self, len: usize) -> Result<Option<Box<dyn RemoteRead>>, FabricError> {
        self.inner.headers(len)
    }

    fn mirror(&self) -> &Arc<Region> {
        self.inner.mirror()
    }

    fn is_mapped(&self) -> bool {
        self.inner.is_mapped()
    }

    fn post(&mut self, ranges: &[ByteRange]) -> Result<Completion, FabricError> {
        let fault = self.session.script.next(Operation::Read);
        if fault == Some(Fault::DisconnectRead) {
            self.session.end();
        }
        if self.session.has_ended() {
            return Err(FabricError::Closed);
        }
        let mut batch = FaultyBatch::new(fault, self.inner.mirror(), ranges);
        batch.complete = self.inner.post(ranges)? == Completion::Done;
        let complete = batch.complete;
        self.batch = Some(batch);
        if complete { self.complete() } else { Ok(Completion::Pending) }
    }

    fn poll(&mut self) -> Result<Completion, FabricError> {
        if self.session.has_ended() {
            return Err(FabricError::Closed);
        }
        if !self.batch.as_ref().is_some_and(|batch| batch.complete)
            && self.inner.poll()? == Completion::Pending
        {
            return Ok(Completion::Pending);
        }
        if let Some(batch) = &mut self.batch {
            batch.complete = true;
        }
        self.complete()
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        self.inner.wait_handle()
    }
}

/// Writes with faults.
#[derive(Debug)]
pub(super) struct FaultyWrite {
    inner: Box<dyn RemoteWrite>,
    session: Session,
    polls_left: u32,
    fails: bool,
}

impl FaultyWrite {
    pub(super) fn new(inner: Box<dyn RemoteWrite>, session: Session) -> Self {
        Self { inner, session, polls_left: 0, fails: false }
    }

    /// The result of all batches, now complete.
    fn complete(&mut self) -> Result<Completion, FabricError> {
        if self.fails {
            self.session.end();
            return Err(failed("write the peer's memory"));
        }
        if self.polls_left > 0 {
            self.polls_left -= 1;
            return Ok(Completion::Pending);
        }
        Ok(Completion::Done)
    }
}

impl RemoteWrite for FaultyWrite {
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        if self.session.has_ended() {
            return Err(FabricError::Closed);
        }
        match self.session.script.next(Operation::Write) {
            Some(Fault::DelayWrite { polls }) => self.polls_left += polls,
            Some(Fault::FailWrite) => self.fails = true,
            _ => {}
        }
        match self.inner.post(source, writes)? {
            Completion::Done => self.complete(),
            Completion::Pending => Ok(Completion::Pending),
        }
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        if self.session.has_ended() {
            return Err(FabricError::Closed);
        }
        match self.inner.in_flight()? {
            // The delayed one is the last.
            0 => self.complete().map(|completion| usize::from(completion == Completion::Pending)),
            count => Ok(count),
        }
    }

    fn fetch_word(&mut self, offset: usize) -> Result<Option<u64>, FabricError> {
        if self.session.has_ended() {
            return Err(FabricError::Closed);
        }
        self.inner.fetch_word(offset)
    }

    fn placement(&self) -> Placement {
        self.inner.placement()
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        self.inner.revocation()
    }

    fn announcer(&self) -> Option<Arc<dyn ArrivalAnnouncer>> {
        self.inner.announcer()
    }
}
