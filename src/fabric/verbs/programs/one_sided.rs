//! Programs in which one end does all the work, and the other sleeps: rdma-1, rdma-1e, rdma-2, write and read.

use super::end::{End, Far, Rounds};
use super::error::ProgramError;
use super::figures::Figures;
use super::pattern::is_whole;
use super::plan::Program;

/// The number of the block that is only read.
pub(super) const CONSTANT: u64 = 1;

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
    let mut rounds = Rounds::begin(&end.plan);
    while let Some(number) = rounds.next() {
        ping.fill(0, number, &mut end.scratch);
        if is_chained {
            ping.post(&end.resources.queue_pair, 2)?;
        } else {
            ping.post(&end.resources.queue_pair, 1)?;
            end.await_sent()?;
            pong.post(&end.resources.queue_pair, 1)?;
        }
        end.await_sent()?;
        rounds.done();
        end.verify_ends(&returned, number);
        if is_whole(number, end.len()) {
            end.verify_all(&returned, number);
            rounds.again();
        }
        end.check(number)?;
    }
    Ok(rounds.durations.figures())
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
    let mut rounds = Rounds::begin(&end.plan);
    while let Some(number) = rounds.next() {
        read.clear(number, &mut end.scratch);
        ping.post(&end.resources.queue_pair, 1)?;
        end.await_sent()?;
        pong.fill(0, number, &mut end.scratch);
        pong.post(&end.resources.queue_pair, 1)?;
        end.await_sent()?;
        rounds.done();
        end.verify_ends(&read, CONSTANT);
        if is_whole(number, end.len()) {
            end.verify_all(&read, CONSTANT);
            back.post(&end.resources.queue_pair, 1)?;
            end.await_sent()?;
            end.verify_all(&returned, number);
            rounds.again();
        }
        end.check(number)?;
    }
    Ok(rounds.durations.figures())
}

/// WRITEs blocks, each acknowledged by the peer's device.
pub(super) fn write(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    let (mut ping, mut back) = (end.outbox(), end.outbox());
    ping.write(&end.near, 0, far.block(0));
    back.read(&end.near, 1, far.block(0));
    ping.set_signaled(0, true);
    back.set_signaled(0, true);
    let returned = end.near.block(1);
    let mut rounds = Rounds::begin(&end.plan);
    while let Some(number) = rounds.next() {
        ping.fill(0, number, &mut end.scratch);
        ping.post(&end.resources.queue_pair, 1)?;
        end.await_sent()?;
        rounds.done();
        if number.is_multiple_of(READ_BACK_EVERY) {
            back.post(&end.resources.queue_pair, 1)?;
            end.await_sent()?;
            end.verify_ends(&returned, number);
            if is_whole(number, end.len()) {
                end.verify_all(&returned, number);
            }
            rounds.again();
        }
        end.check(number)?;
    }
    Ok(rounds.durations.figures())
}

/// WRITEs between two blocks that are read back, outside the time that counts.
const READ_BACK_EVERY: u64 = 16;

/// READs blocks.
pub(super) fn read(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    let mut ping = end.outbox();
    ping.read(&end.near, 0, far.block(0));
    ping.set_signaled(0, true);
    let read = end.near.block(0);
    let mut rounds = Rounds::begin(&end.plan);
    while let Some(number) = rounds.next() {
        read.clear(number, &mut end.scratch);
        ping.post(&end.resources.queue_pair, 1)?;
        end.await_sent()?;
        rounds.done();
        end.verify_ends(&read, CONSTANT);
        if is_whole(number, end.len()) {
            end.verify_all(&read, CONSTANT);
            rounds.again();
        }
        end.check(number)?;
    }
    Ok(rounds.durations.figures())
}
