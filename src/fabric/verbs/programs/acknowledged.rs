//! Programs in which both ends access the other's memory, and SEND a message without contents that says so: write-ack and read-ack.

use super::end::{End, Far, malformed};
use super::error::ProgramError;
use super::figures::Figures;
use super::pattern::Block;
use super::wire::Message;

/// Waits for the peer's message. Returns it if it says that the peer has finished.
#[inline]
fn await_token(end: &mut End<'_>) -> Result<Option<Message>, ProgramError> {
    match end.receive(None)? {
        Some(arrival) if arrival.is_message => end.on_message(arrival),
        Some(arrival) => end.repost(arrival).map(|()| None),
        None => Ok(None),
    }
}

/// Waits for the peer's message of this round.
#[inline]
fn await_answer(end: &mut End<'_>) -> Result<(), ProgramError> {
    if await_token(end)?.is_some() { Err(malformed()) } else { Ok(()) }
}

/// WRITEs each block and acknowledges it, and waits until the peer has done so.
pub(super) fn write(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    let mut ping = end.outbox();
    ping.write(&end.near, 0, far.block(0));
    ping.token(&end.near);
    let pong = end.exposed_block()?;
    end.run_rounds(
        |end, number| {
            ping.fill(0, number, &mut end.scratch);
            end.post_last(&mut ping, 2)?;
            await_answer(end)
        },
        |end, number| {
            check(end, &pong, number);
            Ok(false)
        },
    )
}

/// WRITEs back each block that the peer has written and acknowledged, until the peer says that it has finished.
pub(super) fn answer_writes(end: &mut End<'_>, far: Far) -> Result<Message, ProgramError> {
    let mut pong = end.outbox();
    pong.write(&end.near, 0, far.block(0));
    pong.token(&end.near);
    let ping = end.exposed_block()?;
    for number in 1.. {
        if let Some(message) = await_token(end)? {
            return Ok(message);
        }
        check(end, &ping, number);
        end.check(number)?;
        pong.copy(0, &ping, number, &mut end.scratch);
        end.post_last(&mut pong, 2)?;
    }
    unreachable!("the numbers of blocks do not end")
}

/// Offers each block and says so, and READs the peer's when it has read this one.
pub(super) fn read(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    let (mut token, mut pong) = (end.outbox(), end.outbox());
    token.token(&end.near);
    pong.read(&end.near, 0, far.block(0));
    pong.set_signaled(0, true);
    let (ping, read) = (end.exposed_block()?, end.near.block(0));
    ping.fill_whole(0, &mut end.scratch);
    end.run_rounds(
        |end, number| {
            ping.fill(number, &mut end.scratch);
            // The completion of the READ covers it.
            token.post(&end.resources.queue_pair, 1)?;
            await_answer(end)?;
            end.post_and_await(&mut pong)
        },
        |end, number| {
            check(end, &read, number);
            Ok(false)
        },
    )
}

/// READs each block that the peer offers, and offers it in turn, until the peer says that it has finished.
pub(super) fn answer_reads(end: &mut End<'_>, far: Far) -> Result<Message, ProgramError> {
    let (mut token, mut ping) = (end.outbox(), end.outbox());
    token.token(&end.near);
    ping.read(&end.near, 0, far.block(0));
    ping.set_signaled(0, true);
    let (pong, read) = (end.exposed_block()?, end.near.block(0));
    for number in 1.. {
        if let Some(message) = await_token(end)? {
            return Ok(message);
        }
        end.post_and_await(&mut ping)?;
        check(end, &read, number);
        end.check(number)?;
        read.copy_to(&pong, number, &mut end.scratch);
        token.post(&end.resources.queue_pair, 1)?;
    }
    unreachable!("the numbers of blocks do not end")
}

/// Counts a block: the message behind it says that all of it is there.
#[inline]
fn check(end: &mut End<'_>, block: &Block, number: u64) {
    if block.holds(number) {
        end.verify(block, number);
    } else {
        end.seen.wrong += 1;
    }
}
