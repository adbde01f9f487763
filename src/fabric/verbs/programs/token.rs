//! Programs in which both ends WRITE and poll their memory, so that a block is its own message: rdma-3 and uc-write.

use super::end::{End, Far, POLLS, Wait};
use super::error::ProgramError;
use super::figures::Figures;
use super::rounds::{LOST_NS, Rounds};
use super::wire::Message;

/// WRITEs each block and waits for the peer's.
pub(super) fn drive(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    let mut ping = end.outbox();
    ping.write(&end.near, 0, far.block(0));
    let pong = end.exposed_block()?;
    let limit_ns = (!end.plan.program.is_reliable()).then_some(LOST_NS);
    let mut rounds = Rounds::begin(&end.plan);
    while let Some(number) = rounds.next() {
        ping.fill(0, number, &mut end.scratch);
        end.post(&mut ping)?;
        if end.await_memory(limit_ns, || pong.holds(number).then_some(()))?.is_none() {
            rounds.lost(&mut end.seen)?;
            continue;
        }
        end.verify_written(&pong, number)?;
        rounds.done();
        end.check(number)?;
    }
    Ok(rounds.durations.figures())
}

/// Copies each block that the peer WRITEs, and WRITEs it back, until the peer says that it has finished.
pub(super) fn answer(end: &mut End<'_>, far: Far) -> Result<Message, ProgramError> {
    let mut pong = end.outbox();
    pong.write(&end.near, 0, far.block(0));
    let (ping, is_reliable) = (end.exposed_block()?, end.plan.program.is_reliable());
    let (mut last, mut wait) = (0, Wait::default());
    loop {
        // Of a reliable connection the next number is known, which is quicker to compare with.
        let poll = || match is_reliable {
            true => ping.holds(last + 1).then_some(last + 1),
            false => ping.number().filter(|number| *number > last),
        };
        let Some(number) = (0..POLLS).find_map(|_| poll()) else {
            if let Some(arrival) = end.try_receive()?
                && let Some(message) = end.on_message(arrival)?
            {
                return Ok(message);
            }
            end.keep_waiting(&mut wait)?;
            continue;
        };
        (last, wait) = (number, Wait::default());
        end.verify_written(&ping, number)?;
        pong.copy(0, &ping, number, &mut end.scratch);
        end.post(&mut pong)?;
        end.check(number)?;
    }
}
