//! Programs in which both ends SEND: send, uc-send and ud-send.

use super::end::{End, malformed};
use super::error::ProgramError;
use super::figures::Figures;
use super::pattern::Block;
use super::places::Arrival;
use super::rounds::{LOST_NS, Rounds};
use super::time_limit::TimeLimit;
use super::wire::Message;

/// The number of the block that has arrived, if it shows one.
#[inline]
fn number_of(end: &End<'_>, arrival: Arrival) -> Option<u64> {
    end.resources.inbox.block(arrival)?.number()
}

/// SENDs each block and waits for the peer's.
pub(super) fn drive(end: &mut End<'_>) -> Result<Figures, ProgramError> {
    let mut ping = end.outbox();
    ping.send(&end.near, 0, &end.resources);
    let limit_ns = (!end.plan.program.is_reliable()).then_some(LOST_NS);
    let mut rounds = Rounds::begin(&end.plan);
    // Posted again when the next block is on its way.
    let mut taken: Option<Arrival> = None;
    while let Some(number) = rounds.next() {
        ping.fill(0, number, &mut end.scratch);
        end.post(&mut ping)?;
        if let Some(taken) = taken.take() {
            end.repost(taken)?;
        }
        let Some(arrival) = await_block(end, number, limit_ns)? else {
            rounds.lost(&mut end.seen)?;
            continue;
        };
        rounds.done();
        if let Some(block) = end.resources.inbox.block(arrival).cloned() {
            end.verify(&block, number);
        }
        taken = Some(arrival);
        end.check(number)?;
    }
    taken.map_or(Ok(()), |taken| end.repost(taken))?;
    Ok(rounds.durations.figures())
}

/// Waits for the answer with this number, over an unreliable connection for up to this time. Late answers are of blocks that count as
/// lost.
#[inline]
fn await_block(
    end: &mut End<'_>,
    number: u64,
    limit_ns: Option<u64>,
) -> Result<Option<Arrival>, ProgramError> {
    let is_lossy = limit_ns.is_some();
    let (mut limit, mut left_ns) = (limit_ns.map(TimeLimit::begin), limit_ns);
    loop {
        let Some(arrival) = end.receive(left_ns)? else { return Ok(None) };
        match number_of(end, arrival) {
            Some(found) if found == number && !arrival.is_message => return Ok(Some(arrival)),
            Some(found) if found < number && is_lossy => end.repost(arrival)?,
            // The answer to the first message, which was repeated.
            _ if arrival.is_message && is_lossy => end.repost(arrival)?,
            _ if arrival.is_message => return Err(malformed()),
            _ => {
                end.seen.wrong += 1;
                end.repost(arrival)?;
            }
        }
        left_ns = limit.as_mut().map(|limit| limit.left_ns(left_ns.unwrap_or(0)));
        if left_ns == Some(0) {
            return Ok(None);
        }
    }
}

/// SENDs back each block that arrives, until the peer says that it has finished.
pub(super) fn answer(end: &mut End<'_>) -> Result<Message, ProgramError> {
    let mut pong = end.outbox();
    pong.send(&end.near, 0, &end.resources);
    let (is_reliable, mut last) = (end.plan.program.is_reliable(), 0);
    // Over an unreliable connection some blocks are lost, and none comes twice.
    let is_next = |number: u64, last: u64| if is_reliable { number == last + 1 } else { number > last };
    loop {
        let Some(arrival) = end.receive(None)? else { continue };
        if arrival.is_message {
            if let Some(message) = end.on_message(arrival)? {
                return Ok(message);
            }
            continue;
        }
        let numbered =
            |block: &Block| Some((block.clone(), block.number().filter(|number| is_next(*number, last))?));
        let Some((block, number)) = end.resources.inbox.block(arrival).and_then(numbered) else {
            end.seen.wrong += 1;
            end.repost(arrival)?;
            continue;
        };
        last = number;
        pong.copy(0, &block, number, &mut end.scratch);
        end.post(&mut pong)?;
        end.check(number)?;
        // While the answer is on its way.
        end.verify(&block, number);
        end.repost(arrival)?;
    }
}
