use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use super::{Endpoint, FRAME_LEN, Work};
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

/// Frames of control messages.
impl Endpoint {
    /// Readable when [`Self::take_arrivals`] may have a frame.
    pub(in crate::fabric::verbs) fn wait_handle(&self) -> BorrowedFd<'_> {
        self.receive_channel.as_fd()
    }

    /// Takes the received frames, in order, and requests a notification for the next one.
    pub(in crate::fabric::verbs) fn take_arrivals(
        &self,
        into: &mut VecDeque<BufferedFrame>,
    ) -> Result<(), FabricError> {
        loop {
            self.poll_receives(into)?;
            if self.receive_channel.drain()? == 0 {
                return Ok(());
            }
            self.receive_queue.arm()?;
        }
    }

    fn poll_receives(&self, into: &mut VecDeque<BufferedFrame>) -> Result<(), SysError> {
        let mut completions = [WorkCompletion::default(); CHAIN_LEN_MAX];
        loop {
            let len = self.receive_queue.poll(&mut completions)?;
            let mut state = self.state.lock();
            for completion in completions.iter().take(len) {
                if completion.status == Status::Success {
                    state.completed += 1;
                    let buffer = u16::try_from(completion.wr_id).unwrap_or(u16::MAX);
                    let len = (completion.byte_len as usize).min(FRAME_LEN);
                    into.push_back(BufferedFrame { buffer, len });
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
