//! Programs in which one end does all the work, and the other sleeps: rdma-1, rdma-1e, rdma-2, write and read.

use super::end::{End, Far};
use super::error::ProgramError;
use super::figures::Figures;
use super::plan::Program;

/// The number of the block that is only read.
pub(super) const CONSTANT: u64 = 1;
/// WRITEs between two blocks that are read back, outside the time that counts.
const READ_BACK_EVERY: u64 = 16;

/// WRITEs each block and READs it back.
pub(super) fn write_and_read(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    let (mut ping, mut pong) = (end.outbox(), end.outbox());
    ping.write(&end.near, 0, far.block(0));
    // The completion of the READ covers a WRITE without one, so that both are posted together.
    let is_chained = end.plan.program == Program::Rdma2;
    ping.set_signaled(0, !is_chained);
    if is_chained {
        ping.read(&end.near, 1, far.block(0));
        ping.set_signaled(1, true);
    } else {
        pong.read(&end.near, 1, far.block(0));
        pong.set_signaled(0, true);
    }
    let returned = end.near.block(1);
    end.run_rounds(
        |end, number| {
            ping.fill(0, number, &mut end.scratch);
            if is_chained {
                ping.post(&end.resources.queue_pair, 2)?;
                return end.await_sent();
            }
            end.post_and_await(&mut ping)?;
            end.post_and_await(&mut pong)
        },
        |end, number| Ok(end.compare_read(&returned, number, number)),
    )
}

/// READs the peer's block, and WRITEs it back to another place.
pub(super) fn read_and_write(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    let (mut ping, mut pong, mut back) = (end.outbox(), end.outbox(), end.outbox());
    ping.read(&end.near, 0, far.block(0));
    pong.write(&end.near, 1, far.block(1));
    back.read(&end.near, 2, far.block(1));
    ping.set_signaled(0, true);
    pong.set_signaled(0, true);
    back.set_signaled(0, true);
    let (read, returned) = (end.near.block(0), end.near.block(2));
    end.run_rounds(
        |end, number| {
            read.clear(number, &mut end.scratch);
            end.post_and_await(&mut ping)?;
            pong.fill(0, number, &mut end.scratch);
            end.post_and_await(&mut pong)
        },
        |end, number| {
            let is_whole = end.compare_read(&read, number, CONSTANT);
            if is_whole {
                end.post_and_await(&mut back)?;
                end.verify_all(&returned, number);
            }
            Ok(is_whole)
        },
    )
}

/// WRITEs blocks, each acknowledged by the peer's device.
pub(super) fn write(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    let (mut ping, mut back) = (end.outbox(), end.outbox());
    ping.write(&end.near, 0, far.block(0));
    back.read(&end.near, 1, far.block(0));
    ping.set_signaled(0, true);
    back.set_signaled(0, true);
    let returned = end.near.block(1);
    end.run_rounds(
        |end, number| {
            ping.fill(0, number, &mut end.scratch);
            end.post_and_await(&mut ping)
        },
        |end, number| {
            let is_read_back = number.is_multiple_of(READ_BACK_EVERY);
            if is_read_back {
                end.post_and_await(&mut back)?;
                end.compare_read(&returned, number, number);
            }
            Ok(is_read_back)
        },
    )
}

/// READs blocks.
pub(super) fn read(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    let mut ping = end.outbox();
    ping.read(&end.near, 0, far.block(0));
    ping.set_signaled(0, true);
    let read = end.near.block(0);
    end.run_rounds(
        |end, number| {
            read.clear(number, &mut end.scratch);
            end.post_and_await(&mut ping)
        },
        |end, number| Ok(end.compare_read(&read, number, CONSTANT)),
    )
}
