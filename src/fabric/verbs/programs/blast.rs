//! Programs that move as many blocks as possible, while the other end sleeps: blast write and blast read.
//!
//! The blocks are a ring, posted in chains. The run has parts, after each of which the time stands still: everything in flight is
//! awaited, and every byte of the ring is compared. Meanwhile both ends of each block change, and those of a READ are compared.

use std::collections::VecDeque;

use super::end::{CHECK_NS, End, Far};
use super::error::ProgramError;
use super::figures::Figures;
use super::outbox::Outbox;
use super::plan::Program;
use crate::clock::{Clock, SystemClock};

/// Most parts of a run.
const PARTS_MAX: u64 = 10;
/// Rounds of the ring in a part, so that the ends of parts hardly matter.
const PART_ROUNDS: u64 = 8;

/// The number of the block with this index that is only read.
pub(super) fn constant(index: usize) -> u64 {
    index as u64 + 1
}

/// The ring.
struct Blast {
    chains: Vec<Outbox>,
    chain: usize,
    capacity: u64,
    signal_every: u64,
    reads: bool,
    /// Blocks posted, and those of which the completion is known.
    posted: u64,
    completed: u64,
    /// The blocks of this part begin behind this one.
    part: u64,
    /// The number that all blocks had at the beginning of the part.
    filled: u64,
    /// Blocks in flight that have a completion.
    signaled: VecDeque<u64>,
}

/// Moves blocks.
pub(super) fn drive(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    let mut blast = Blast::new(end, far);
    let iterations = end.plan.iterations;
    let parts =
        iterations.map_or(PARTS_MAX, |all| (all / (PART_ROUNDS * blast.capacity)).clamp(1, PARTS_MAX));
    let time_ns = end.plan.timed_ns() / parts;
    let share = |all: u64, part: u64| u64::try_from(u128::from(all) * u128::from(part) / u128::from(parts));
    let mut total_ns = 0;
    let last_ns = SystemClock.monotonic_ns().saturating_add(end.plan.blast_ns());
    for part in 0..parts {
        if part > 0 && SystemClock.monotonic_ns() >= last_ns {
            break;
        }
        let blocks =
            iterations.map(|all| share(all, part + 1).unwrap_or(all) - share(all, part).unwrap_or(all));
        blast.prepare(end);
        let began_ns = SystemClock.monotonic_ns();
        blast.run(end, blocks.unwrap_or(u64::MAX), began_ns.saturating_add(time_ns))?;
        total_ns += SystemClock.monotonic_ns() - began_ns;
        blast.check(end, far)?;
    }
    Ok(Figures { iterations: blast.posted, total_ns, ..Figures::default() })
}

impl Blast {
    fn new(end: &End<'_>, far: Far) -> Self {
        let (capacity, chain) = (end.plan.ring() as usize, end.plan.chain as usize);
        let reads = end.plan.program == Program::BlastRead;
        let chains = (0..capacity / chain).map(|number| {
            let mut outbox = end.outbox();
            for index in number * chain..(number + 1) * chain {
                if reads {
                    outbox.read(&end.near, index, far.block(index));
                } else {
                    outbox.write(&end.near, index, far.block(index));
                }
            }
            outbox
        });
        Self {
            chains: chains.collect(),
            chain,
            capacity: capacity as u64,
            signal_every: end.plan.signal_every.into(),
            reads,
            posted: 0,
            completed: 0,
            part: 0,
            filled: 0,
            signaled: VecDeque::with_capacity(capacity + 1),
        }
    }

    /// Writes every byte of the ring.
    fn prepare(&mut self, end: &mut End<'_>) {
        // The ring begins anew with each part.
        (self.part, self.filled) = (self.posted, self.filled + 1);
        for (index, outbox) in self.chains.iter_mut().enumerate() {
            for place in 0..self.chain {
                if self.reads {
                    let block = end.near.block(index * self.chain + place);
                    block.clear_whole(&mut end.scratch);
                } else {
                    outbox.fill_whole(place, self.filled, &mut end.scratch);
                }
            }
        }
    }

    /// Moves so many blocks, or until this moment.
    fn run(&mut self, end: &mut End<'_>, blocks: u64, end_ns: u64) -> Result<(), ProgramError> {
        let (mut left, mut chain) = (blocks, 0);
        let mut checked_ns = SystemClock.monotonic_ns();
        while left > 0 {
            let count = left.min(self.chain as u64);
            while self.posted - self.completed + count > self.capacity {
                self.take(end)?;
            }
            left -= count;
            let now_ns = SystemClock.monotonic_ns();
            if left > 0 && now_ns >= end_ns {
                left = 0;
            }
            if now_ns.saturating_sub(checked_ns) > CHECK_NS {
                checked_ns = now_ns;
                end.watch.check()?;
            }
            self.post(end, chain, count, left == 0)?;
            chain = (chain + 1) % self.chains.len();
        }
        while !self.signaled.is_empty() {
            self.take(end)?;
        }
        Ok(())
    }

    /// Posts the first blocks of a chain, which are not in flight.
    fn post(
        &mut self,
        end: &mut End<'_>,
        chain: usize,
        count: u64,
        is_last: bool,
    ) -> Result<(), ProgramError> {
        let first = chain * self.chain;
        let Some(outbox) = self.chains.get_mut(chain) else { return Ok(()) };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        for place in 0..count {
            self.posted += 1;
            if self.reads {
                let block = end.near.block(first + place);
                if self.posted - self.part > self.capacity {
                    end.verify_ends(&block, constant(first + place));
                }
                block.clear_ends();
            } else {
                outbox.mark(place, self.posted);
            }
            let is_signaled =
                self.posted.is_multiple_of(self.signal_every) || (is_last && place + 1 == count);
            outbox.set_signaled(place, is_signaled);
            if is_signaled {
                self.signaled.push_back(self.posted);
            }
        }
        Ok(outbox.post(&end.resources.queue_pair, count)?)
    }

    /// Takes a completion, which is also that of all blocks before.
    fn take(&mut self, end: &mut End<'_>) -> Result<(), ProgramError> {
        end.await_sent()?;
        self.completed = self.signaled.pop_front().unwrap_or(self.completed);
        Ok(())
    }

    /// Compares every byte of the blocks that were moved last.
    fn check(&mut self, end: &mut End<'_>, far: Far) -> Result<(), ProgramError> {
        let moved = self.posted - self.part;
        let spare = end.plan.ring() as usize;
        for index in 0..self.capacity.min(moved) {
            let place = usize::try_from(index).unwrap_or(usize::MAX);
            if self.reads {
                let block = end.near.block(place);
                end.verify_ends(&block, constant(place));
                end.verify_all(&block, constant(place));
                continue;
            }
            // The last block with this place.
            let rounds = (moved - 1 - index) / self.capacity;
            let number = self.part + 1 + index + rounds * self.capacity;
            let mut back = end.outbox();
            back.read(&end.near, spare, far.block(place));
            back.set_signaled(0, true);
            let block = end.near.block(spare);
            block.clear_whole(&mut end.scratch);
            back.post(&end.resources.queue_pair, 1)?;
            end.await_sent()?;
            end.verify_as(&block, number, self.filled);
        }
        Ok(())
    }
}
