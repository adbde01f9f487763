//! What a program is, and with which numbers it runs: both ends have the same plan, which the end that dials sends to the other.

use super::super::sys::{QueuePairKind, RemoteAccess, RemoteFlags};
use super::error::ProgramError;
use super::watch::ANSWER_NS;

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Program {
    /// The client WRITEs a block to the agent and READs it back; the agent is idle.
    Rdma1,
    /// The same with the roles exchanged: the server READs a block from the client and WRITEs it back; the client is idle.
    Rdma1e,
    /// Like the first, with a WRITE that has no completion and is posted together with the READ, whose completion covers it.
    Rdma2,
    /// Both ends WRITE, and recognize the other's block by its contents.
    Rdma3,
    /// Both ends WRITE a block, and SEND a message behind it that says so.
    WriteAck,
    /// Both ends READ the other's block, and SEND a message that says so.
    ReadAck,
    /// Both ends SEND blocks.
    Send,
    /// The client WRITEs a block, and has it acknowledged by the agent's device; the agent is idle.
    Write,
    /// The client READs a block; the agent is idle.
    Read,
    /// Both ends SEND blocks over an unreliable connection.
    UcSend,
    /// Like rdma-3, over an unreliable connection.
    UcWrite,
    /// Both ends SEND datagrams.
    UdSend,
    /// The client WRITEs as many blocks as possible; the agent is idle.
    BlastWrite,
    /// The client READs as many blocks as possible; the agent is idle.
    BlastRead,
}

/// All programs, in the order of their numbers.
const ALL: [Program; 14] = [
    Program::Rdma1,
    Program::Rdma1e,
    Program::Rdma2,
    Program::Rdma3,
    Program::WriteAck,
    Program::ReadAck,
    Program::Send,
    Program::Write,
    Program::Read,
    Program::UcSend,
    Program::UcWrite,
    Program::UdSend,
    Program::BlastWrite,
    Program::BlastRead,
];

impl Program {
    /// Its number on the wire.
    pub(super) fn number(self) -> u8 {
        let index = ALL.iter().position(|program| *program == self).unwrap_or(ALL.len());
        u8::try_from(index + 1).unwrap_or(u8::MAX)
    }

    /// The program with this number.
    pub(super) fn of_number(number: u8) -> Option<Self> {
        ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// The kind of its queue pairs.
    pub(super) fn kind(self) -> QueuePairKind {
        match self {
            Self::UcSend | Self::UcWrite => QueuePairKind::Uc,
            Self::UdSend => QueuePairKind::Ud,
            _ => QueuePairKind::Rc,
        }
    }

    /// Whether its queue pairs are reliable.
    pub(super) fn is_reliable(self) -> bool {
        self.kind() == QueuePairKind::Rc
    }

    /// Whether librdmacm connects its queue pairs.
    pub(super) fn has_manager(self) -> bool {
        self.kind() == QueuePairKind::Rc
    }

    /// Whether it only streams blocks.
    pub(super) fn is_blast(self) -> bool {
        matches!(self, Self::BlastWrite | Self::BlastRead)
    }

    /// Whether its blocks travel in messages.
    pub(super) fn sends_blocks(self) -> bool {
        matches!(self, Self::Send | Self::UcSend | Self::UdSend)
    }

    /// Whether the end that dialled drives.
    pub(super) fn client_drives(self) -> bool {
        self != Self::Rdma1e
    }

    /// What the peer of the driving end, or of the other, may do with its exposed memory.
    pub(super) fn access(self, drives: bool) -> RemoteAccess {
        match self {
            Self::Rdma3 | Self::UcWrite | Self::WriteAck => RemoteAccess::Write,
            Self::ReadAck => RemoteAccess::Read,
            Self::Rdma1 | Self::Rdma1e | Self::Rdma2 | Self::Write | Self::BlastWrite if !drives => {
                RemoteAccess::Write
            }
            Self::Read | Self::BlastRead if !drives => RemoteAccess::Read,
            _ => RemoteAccess::None,
        }
    }

    /// What the queue pair of this end lets its peer do.
    pub(super) fn flags(self, drives: bool) -> RemoteFlags {
        let access = self.access(drives);
        // A probe READs nothing, and unreliable connections have no READs.
        RemoteFlags { read: self.is_reliable(), write: access == RemoteAccess::Write }
    }

    /// Whether blocks can be part of the work requests: a READ has none.
    pub(super) fn has_inline(self) -> bool {
        !matches!(self, Self::Read | Self::ReadAck | Self::BlastRead)
    }

    /// Whether some of its work requests may have no completion.
    pub(super) fn has_signal_every(self) -> bool {
        self.is_blast() || self.sends_blocks() || matches!(self, Self::Rdma3 | Self::WriteAck | Self::UcWrite)
    }
}

/// How a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramPlan {
    /// The program.
    pub program: Program,
    /// Bytes of a block.
    pub size: u32,
    /// How many round trips, or blocks, in at most an hour; otherwise as many as the time allows.
    pub iterations: Option<u64>,
    /// How long it runs without a number of iterations, nanoseconds: up to an hour.
    pub time_ns: u64,
    /// Blocks of at most so many bytes are copied into their work requests.
    pub inline: u32,
    /// Scatter/gather elements of a block.
    pub sge: u32,
    /// Every so many work requests one has a completion.
    pub signal_every: u32,
    /// Work requests in flight, and receives posted, at most.
    pub depth: u32,
    /// Work requests of a blast that are posted together.
    pub chain: u32,
    /// Sleep until there is a completion, instead of polling without pause.
    pub events: bool,
}

/// The longest run, nanoseconds: also of one that ends after a number of iterations.
const RUN_NS_MAX: u64 = 3_600_000_000_000;
/// How long the last part of a blast may take, and the comparison of the whole ring behind it.
const COMPARE_NS: u64 = 60_000_000_000;
/// Most bytes of all blocks of an end.
const MEMORY_MAX: u64 = 1 << 30;
/// Receives of an end to which only messages are sent.
const RECEIVES: u32 = 8;
/// Most scatter/gather elements.
pub(super) const SGE_MAX: u32 = 32;
/// Most work requests.
pub(super) const DEPTH_MAX: u32 = 16_384;
/// Bytes of the shortest block: its number.
const SIZE_MIN: u32 = 8;

impl ProgramPlan {
    /// A plan with defaults for this program and size: one second, nothing inline, one element.
    pub fn new(program: Program, size: u32) -> Self {
        let (chain, signal_every) = match (program.is_blast(), program.has_signal_every()) {
            (true, _) => (16, 16),
            (false, true) => (1, 64),
            (false, false) => (1, 1),
        };
        Self {
            program,
            size,
            iterations: None,
            time_ns: 1_000_000_000,
            inline: 0,
            sge: 1,
            signal_every,
            depth: 128,
            chain,
            events: false,
        }
    }

    /// The largest [`signal_every`](Self::signal_every) that this depth and this chain allow.
    pub fn signal_every_max(&self) -> u32 {
        self.ring().saturating_add(1).saturating_sub(self.chain).max(1)
    }

    /// Whether the block of a work request is copied into it.
    pub(super) fn is_inline(&self) -> bool {
        self.program.has_inline() && self.size <= self.inline
    }

    /// How long the driving end goes on, unless it has finished its iterations before.
    pub(super) fn timed_ns(&self) -> u64 {
        if self.iterations.is_some() { RUN_NS_MAX } else { self.time_ns }
    }

    /// After which time the other end, if it sleeps, gives up.
    pub(super) fn longest_ns(&self) -> u64 {
        // A blast begins its last part within this time, and then compares it.
        let run_ns = if self.program.is_blast() { self.blast_ns() + COMPARE_NS } else { self.timed_ns() };
        run_ns + ANSWER_NS
    }

    /// How long a blast goes on with its parts, and what it does between them.
    pub(super) fn blast_ns(&self) -> u64 {
        2 * self.timed_ns()
    }

    /// Work requests in flight at most, of which a blast posts whole chains.
    pub(super) fn ring(&self) -> u32 {
        self.depth / self.chain.max(1) * self.chain
    }

    /// Receives that are posted.
    pub(super) fn receives(&self) -> u32 {
        if self.program.sends_blocks() { self.depth.max(RECEIVES) } else { RECEIVES }
    }

    /// Fails if its numbers contradict each other. Needs no device: what a device allows is seen when it runs.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Unfit`], whose sentence names the options of `fabricast perf` that would fit.
    pub fn check(&self) -> Result<(), ProgramError> {
        let Self { size, sge, signal_every, depth, chain, time_ns, .. } = *self;
        // The most that an end registers: what it receives into, its own, and what its peer accesses.
        let blocks = match self.program {
            program if program.sends_blocks() => u64::from(self.receives()) + 1,
            program if program.is_blast() => u64::from(depth) + 1,
            _ => 3,
        };
        Err(ProgramError::unfit(if size < SIZE_MIN {
            format!("blocks have at least {SIZE_MIN} bytes: use a greater --size")
        } else if time_ns > RUN_NS_MAX {
            "a program runs for an hour at most: use a smaller --for".to_owned()
        } else if !(1..=DEPTH_MAX).contains(&depth) {
            format!("--depth {depth} is not from 1 to {DEPTH_MAX}")
        } else if !(1..=SGE_MAX.min(size)).contains(&sge) {
            format!("--sge {sge} is not from 1 to {}", SGE_MAX.min(size))
        } else if chain == 0 {
            format!("--chain 0 is not from 1 to {depth}, the --depth")
        } else if chain > depth {
            let advice = if chain > DEPTH_MAX { "" } else { ", or a greater --depth" };
            format!(
                "a --chain of {chain} does not fit into a --depth of {depth}: use a smaller --chain{advice}"
            )
        } else if signal_every == 0 {
            "--signal-every 0 is not a number from 1: one work request in so many has a completion".to_owned()
        } else if u64::from(chain) + u64::from(signal_every) > u64::from(self.ring()) + 1 {
            // The ring holds whole chains: a chain is posted once there is room for all of it.
            let least = (u64::from(chain) + u64::from(signal_every) - 1).next_multiple_of(u64::from(chain));
            let others = if chain > 1 {
                format!("--depth {depth} and --chain {chain}")
            } else {
                format!("--depth {depth}")
            };
            let deeper = if least > u64::from(DEPTH_MAX) {
                String::new()
            } else {
                format!(", or a --depth of at least {least}")
            };
            format!(
                "with {others}, --signal-every {signal_every} leaves work requests without a completion to wait for: use a \
                 --signal-every of at most {}{deeper}",
                self.signal_every_max()
            )
        } else if u64::from(size).saturating_mul(blocks) > MEMORY_MAX {
            let advice = if depth > RECEIVES { "--depth or --size" } else { "--size" };
            format!("{blocks} blocks of {size} bytes are more than 1 GiB: use a smaller {advice}")
        } else {
            return Ok(());
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_programs_are_read_back() {
        for program in ALL {
            assert_eq!(Program::of_number(program.number()), Some(program));
            assert!(ProgramPlan::new(program, 8).check().is_ok());
        }
        assert_eq!((Program::of_number(0), Program::of_number(15)), (None, None));
    }

    /// Posts chains as a blast does: no plan that is accepted leaves it without a completion to wait for.
    #[test]
    fn accepted_blasts_always_have_a_completion_to_wait_for() {
        let plan = ProgramPlan::new(Program::BlastWrite, 64);
        for (depth, chain, signal_every) in (1..40)
            .flat_map(|depth| (1..41).flat_map(move |chain| (1..41).map(move |every| (depth, chain, every))))
        {
            let plan = ProgramPlan { depth, chain, signal_every, ..plan };
            if plan.check().is_err() {
                continue;
            }
            let (mut posted, mut completed, mut signaled) = (0, 0, std::collections::VecDeque::new());
            for _ in 0..100 {
                while posted - completed + chain > plan.ring() {
                    completed = signaled.pop_front().unwrap_or_else(|| panic!("{plan:?}"));
                }
                for _ in 0..chain {
                    posted += 1;
                    if posted % signal_every == 0 {
                        signaled.push_back(posted);
                    }
                }
            }
        }
    }

    #[test]
    fn contradictions_are_refused() {
        let plan = ProgramPlan::new(Program::BlastWrite, 64);
        let wrong = [
            ProgramPlan { size: 7, ..plan },
            ProgramPlan { time_ns: RUN_NS_MAX + 1, ..plan },
            ProgramPlan { depth: 0, ..plan },
            ProgramPlan { depth: 31, ..plan },
            // A ring of one chain of 100, of which 96 have a completion.
            ProgramPlan { chain: 100, ..plan },
            ProgramPlan { sge: 33, ..plan },
            ProgramPlan { sge: 0, ..plan },
            ProgramPlan { chain: u32::MAX, ..plan },
            ProgramPlan { signal_every: 0, ..plan },
            ProgramPlan { size: 1 << 30, ..plan },
        ];
        for plan in wrong {
            assert!(matches!(plan.check(), Err(ProgramError::Unfit { .. })), "{plan:?}");
        }
        assert!(ProgramPlan { depth: 32, ..plan }.check().is_ok());
        // What the sentence advises fits.
        let wrong = ProgramPlan { signal_every: 126, ..plan };
        assert!(
            wrong.check().unwrap_err().to_string().ends_with("at most 113, or a --depth of at least 144")
        );
        for right in [ProgramPlan { signal_every: 113, ..wrong }, ProgramPlan { depth: 144, ..wrong }] {
            assert!(right.check().is_ok(), "{right:?}");
        }
        // However few work requests are in flight, there are receives for all that may come.
        let plan = ProgramPlan { depth: 1, signal_every: 1, ..ProgramPlan::new(Program::Send, 1 << 30) };
        assert!(matches!(plan.check(), Err(ProgramError::Unfit { .. })));
    }
}
