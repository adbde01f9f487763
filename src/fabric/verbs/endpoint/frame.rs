use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use super::{Armed, Endpoint, FRAME_LEN, Work};
use crate::fabric::FabricError;
use crate::fabric::verbs::error::{Failure, VerbsError};
use crate::fabric::verbs::sys::{
    CHAIN_LEN_MAX, Operation, ReceiveRequest, Slice, Status, SysError, WorkCompletion,
};
use crate::memory::WORD;

/// A received frame, in its buffer.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric::verbs) struct BufferedFrame {
    buffer: u16,
    len: usize,
}

/// What a receive has received.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric::verbs) enum Arrival {
    Frame(BufferedFrame),
    /// A wake-up with this token, which has left the buffer as it was.
    Wake {
        token: u32,
        unused: BufferedFrame,
    },
}

impl Arrival {
    fn of(completion: &WorkCompletion) -> Self {
        let buffer = u16::try_from(completion.wr_id).unwrap_or(u16::MAX);
        match completion.immediate {
            Some(token) => Self::Wake { token, unused: BufferedFrame { buffer, len: 0 } },
            None => {
                let len = (completion.byte_len as usize).min(FRAME_LEN);
                Self::Frame(BufferedFrame { buffer, len })
            }
        }
    }
}

/// Frames of control messages.
impl Endpoint {
    /// Readable when [`Self::take_arrivals`] may have a frame.
    pub(in crate::fabric::verbs) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.receive_channel.as_fd()
    }

    /// Takes the events of a queue pair that receives nothing any more.
    pub(in crate::fabric::verbs) fn drop_events(&self) {
        if let Err(error) = self.receive_channel.drain() {
            tracing::debug!(target: "fabricast", %error, "the events of a session that is over cannot be taken");
        }
    }

    /// Takes what was received, in order, and requests an event for what comes next: for a message, or, with `for_wakes`, for anything.
    pub(in crate::fabric::verbs) fn take_arrivals(
        &self,
        into: &mut VecDeque<Arrival>,
        for_wakes: bool,
    ) -> Result<(), FabricError> {
        self.poll_receives(into)?;
        if self.receive_channel.drain()? > 0 {
            self.state.lock().armed = Armed::No;
        }
        // What arrives from now on has an event; what arrived before is polled here.
        if self.arm_receives(for_wakes)? {
            self.poll_receives(into)?;
        }
        Ok(())
    }

    /// Requests an event for the next message or, with `for_wakes`, for the next completion, unless that was requested already. Returns
    /// whether it was not: what arrived before has no event, so poll once more.
    pub(super) fn arm_receives(&self, for_wakes: bool) -> Result<bool, SysError> {
        let mut state = self.state.lock();
        match (state.armed, for_wakes) {
            (Armed::All, _) | (Armed::Messages, false) => return Ok(false),
            (_, true) => {
                self.receive_queue.arm()?;
                state.armed = Armed::All;
            }
            (Armed::No, false) => {
                self.receive_queue.arm_for_messages()?;
                state.armed = Armed::Messages;
            }
        }
        Ok(true)
    }

    fn poll_receives(&self, into: &mut VecDeque<Arrival>) -> Result<(), SysError> {
        let mut completions = [WorkCompletion::default(); CHAIN_LEN_MAX];
        loop {
            let len = self.receive_queue.poll(&mut completions)?;
            let mut state = self.state.lock();
            for completion in completions.iter().take(len) {
                if completion.status == Status::Success {
                    state.completed += 1;
                    into.push_back(Arrival::of(completion));
                } else {
                    // The send completions report why the queue pair failed.
                    self.poll_sends(&mut state);
                    self.fail_locked(&mut state, Failure::of(completion));
                }
            }
            if len < completions.len() {
                return Ok(());
            }
        }
    }

    /// Copies a frame out of its buffer.
    pub(in crate::fabric::verbs) fn read<'a>(
        &self,
        arrival: BufferedFrame,
        into: &'a mut [u64; FRAME_LEN / WORD],
    ) -> &'a [u8] {
        let (words, _) = into.split_at_mut(arrival.len.div_ceil(WORD));
        self.frames.region().copy_out(usize::from(arrival.buffer) * FRAME_LEN, words);
        let (frame, _) = bytemuck::cast_slice(words).split_at(arrival.len);
        frame
    }

    /// Posts the buffer of a frame again.
    pub(in crate::fabric::verbs) fn release(&self, arrival: BufferedFrame) -> Result<(), FabricError> {
        Ok(self.post_receive(arrival.buffer)?)
    }

    pub(super) fn post_receive(&self, buffer: u16) -> Result<(), SysError> {
        let (offset, len) = (usize::from(buffer) * FRAME_LEN, u32::try_from(FRAME_LEN).unwrap_or(u32::MAX));
        let local = Slice { region: &self.frames, offset, len };
        let request = ReceiveRequest { wr_id: buffer.into(), local };
        if self.state.lock().failure.is_some() {
            return Ok(());
        }
        self.queue_pair.post_receive(&[request]).map_err(|refused| refused.error)
    }

    /// Whether a frame can be sent.
    pub(in crate::fabric::verbs) fn takes_frame(&self) -> bool {
        let mut state = self.state.lock();
        self.poll_sends(&mut state);
        state.failure.is_none() && !state.send_buffers.is_empty() && state.work.free_len() > 0
    }

    /// Whether frames are in flight that the peer's device has not acknowledged.
    pub(in crate::fabric::verbs) fn has_frames_under_way(&self) -> bool {
        let mut state = self.state.lock();
        self.poll_sends(&mut state);
        state.frames_under_way > 0
    }

    /// Sends a frame; call only after [`Self::takes_frame`] returned true.
    pub(in crate::fabric::verbs) fn send(&self, frame: &[u8]) -> Result<(), FabricError> {
        let mut state = self.state.lock();
        if let Some(failure) = state.failure {
            return Err(failure.into());
        }
        let is_small = frame.len() <= self.inline_len_max();
        let buffer = if is_small { None } else { state.send_buffers.pop() };
        let operation = match buffer {
            None => Operation::SendInline { bytes: frame },
            Some(buffer) => {
                let offset = usize::from(buffer) * FRAME_LEN;
                self.frames.region().copy_in_bytes(offset, frame);
                let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
                Operation::Send { local: Slice { region: &self.frames, offset, len } }
            }
        };
        let id = state.work.begin(1, Work::Frame { buffer }).ok_or(VerbsError::PartlyPosted)?;
        state.frames_under_way += 1;
        // On failure the endpoint fails too: the frame has left its queue and cannot be put back.
        self.post_one(&mut state, id, operation)
    }
}
