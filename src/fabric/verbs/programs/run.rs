//! The run of a program at either end: memory, the messages before and after, and the part of this end.

use super::super::sys::RemoteAccess;
use super::end::{End, Far, Seen};
use super::error::ProgramError;
use super::figures::Figures;
use super::meter::Meter;
use super::places::Blocks;
use super::plan::{Program, ProgramPlan};
use super::resources::Resources;
use super::time_limit::TimeLimit;
use super::watch::{ANSWER_NS, Watch};
use super::wire::{Message, MessageKind};
use super::{acknowledged, blast, messages, one_sided, token};

/// How long an end that has reported waits for its peer to leave.
const LEAVE_NS: u64 = 2_000_000_000;

/// What one end has seen and used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndReport {
    /// Blocks of which the first and the last whole word were right. Both words follow from the number of the block.
    pub verified: u64,
    /// Blocks of which every byte was compared: each block of up to 16 bytes, one of 128 longer ones, and the last ones of a blast.
    pub whole: u64,
    /// Blocks with wrong bytes.
    pub wrong: u64,
    /// Blocks that were not answered, over an unreliable connection.
    pub lost: u64,
    /// The processor time of its process during the run, nanoseconds.
    pub cpu_ns: u64,
    /// The length of the run, nanoseconds.
    pub wall_ns: u64,
}

/// The result of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramReport {
    /// What the driving end has measured.
    pub figures: Figures,
    /// The end that dialled.
    pub client: EndReport,
    /// The end that listened.
    pub agent: EndReport,
}

impl EndReport {
    /// The report of an end with these times.
    fn new(end: &End<'_>, meter: Meter) -> Self {
        let Meter { cpu_ns, wall_ns } = meter;
        let Seen { verified, whole, wrong, lost } = end.seen;
        Self { verified, whole, wrong, lost, cpu_ns, wall_ns }
    }

    fn message(&self, figures: Figures) -> Message {
        let Self { verified, whole, wrong, lost, cpu_ns, wall_ns } = *self;
        let what = MessageKind::End;
        Message { what, verified, whole, wrong, lost, cpu_ns, wall_ns, figures, ..Message::buffers(0, 0, 0) }
    }

    fn of(message: &Message) -> Self {
        let Message { verified, whole, wrong, lost, cpu_ns, wall_ns, .. } = *message;
        Self { verified, whole, wrong, lost, cpu_ns, wall_ns }
    }
}

/// Runs the end that has dialled.
pub(super) fn drive(
    plan: &ProgramPlan,
    resources: Resources,
    watch: Watch<'_>,
) -> Result<ProgramReport, ProgramError> {
    let mut end = prepare(plan, resources, watch, plan.program.client_drives())?;
    let buffers = end.buffers();
    end.send_message(&buffers)?;
    let far = end.await_message(MessageKind::Buffers, Some(&buffers), ANSWER_NS)?;
    let (mine, theirs, figures) = run(&mut end, &far)?;
    Ok(ProgramReport { figures, client: mine, agent: theirs })
}

/// Runs the end that was dialled.
pub(super) fn serve(
    plan: &ProgramPlan,
    resources: Resources,
    watch: Watch<'_>,
) -> Result<ProgramReport, ProgramError> {
    let mut end = prepare(plan, resources, watch, !plan.program.client_drives())?;
    let far = end.await_message(MessageKind::Buffers, None, ANSWER_NS)?;
    end.watch.confirm();
    let buffers = end.buffers();
    end.send_message(&buffers)?;
    let (mine, theirs, figures) = run(&mut end, &far)?;
    end.watch.await_end(LEAVE_NS)?;
    Ok(ProgramReport { figures, client: theirs, agent: mine })
}

/// The report of this end, that of the other, and the figures of the driving one.
fn run(end: &mut End<'_>, far: &Message) -> Result<(EndReport, EndReport, Figures), ProgramError> {
    let (_, far_blocks) = counts(&end.plan, !end.drives);
    let far = end.far(far, far_blocks)?;
    if end.drives {
        let meter = Meter::start();
        let figures = work(end, far)?;
        let mine = EndReport::new(end, meter.stop());
        let message = mine.message(figures);
        end.send_message(&message)?;
        let theirs = end.await_message(MessageKind::End, Some(&message), ANSWER_NS)?;
        return Ok((mine, EndReport::of(&theirs), figures));
    }
    end.watch.end_after(Some(end.plan.longest_ns()));
    let (theirs, meter) = answer(end, far)?;
    end.watch.end_after(None);
    check_end(end, theirs.figures.iterations);
    let mine = EndReport::new(end, meter);
    let message = mine.message(theirs.figures);
    report(end, &message)?;
    if !end.plan.program.is_reliable() {
        // Until the peer has it, and leaves: it repeats its own as long as it does not.
        let mut limit = TimeLimit::begin(ANSWER_NS);
        while !limit.is_over(LEAVE_NS) && end.await_message(MessageKind::End, None, LEAVE_NS).is_ok() {
            report(end, &message)?;
        }
    }
    Ok((mine, EndReport::of(&theirs), theirs.figures))
}

/// Sends the last message. A peer that has it may leave before its device's acknowledgement is here.
fn report(end: &mut End<'_>, message: &Message) -> Result<(), ProgramError> {
    match end.send_message(message) {
        Ok(()) | Err(ProgramError::Gone | ProgramError::HostSilent) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The blocks of an end's own, and those that its peer accesses.
fn counts(plan: &ProgramPlan, drives: bool) -> (usize, usize) {
    let ring = plan.ring() as usize;
    match (plan.program, drives) {
        (Program::Rdma1 | Program::Rdma2 | Program::Write, true) => (2, 0),
        (Program::Rdma1e, true) => (3, 0),
        (Program::Rdma1e, false) => (1, 2),
        (Program::Read, true) | (Program::Send | Program::UcSend | Program::UdSend, _) => (1, 0),
        (Program::BlastWrite | Program::BlastRead, true) => (ring + 1, 0),
        (Program::BlastWrite | Program::BlastRead, false) => (1, ring),
        (Program::Rdma3 | Program::UcWrite | Program::WriteAck | Program::ReadAck, _) => (1, 1),
        (Program::Rdma1 | Program::Rdma2 | Program::Write | Program::Read, false) => (1, 1),
    }
}

/// Registers the memory of an end.
pub(super) fn prepare<'a>(
    plan: &ProgramPlan,
    resources: Resources,
    watch: Watch<'a>,
    drives: bool,
) -> Result<End<'a>, ProgramError> {
    let (program, len) = (plan.program, plan.size as usize);
    let (near, open) = counts(plan, drives);
    // READs write to it.
    let is_written =
        (drives && !program.sends_blocks() && program.is_reliable()) || program == Program::ReadAck;
    let near = Blocks::register(&resources.domain, (near, len), RemoteAccess::None, is_written)?;
    let access = program.access(drives);
    let open = (access != RemoteAccess::None)
        .then(|| Blocks::register(&resources.domain, (open, len), access, false).map(|blocks| (blocks, open)))
        .transpose()?;
    let scratch = &mut Vec::new();
    if let Some((blocks, count)) = &open {
        match program {
            Program::Read | Program::Rdma1e => blocks.block(0).fill_whole(one_sided::CONSTANT, scratch),
            Program::BlastRead => {
                (0..*count).for_each(|index| blocks.block(index).fill_whole(blast::constant(index), scratch));
            }
            _ => {}
        }
    }
    End::new(plan, (resources, watch), (near, open.map(|(blocks, _)| blocks)), drives)
}

/// The part of the driving end.
pub(super) fn work(end: &mut End<'_>, far: Far) -> Result<Figures, ProgramError> {
    match end.plan.program {
        Program::Rdma1 | Program::Rdma2 => one_sided::write_and_read(end, far),
        Program::Rdma1e => one_sided::read_and_write(end, far),
        Program::Write => one_sided::write(end, far),
        Program::Read => one_sided::read(end, far),
        Program::Rdma3 | Program::UcWrite => token::drive(end, far),
        Program::WriteAck => acknowledged::write(end, far),
        Program::ReadAck => acknowledged::read(end, far),
        Program::Send | Program::UcSend | Program::UdSend => messages::drive(end),
        Program::BlastWrite | Program::BlastRead => blast::drive(end, far),
    }
}

/// The part of the other end. Returns the message that ends it.
fn answer(end: &mut End<'_>, far: Far) -> Result<(Message, Meter), ProgramError> {
    let meter = Meter::start();
    let message = match end.plan.program {
        Program::Rdma3 | Program::UcWrite => token::answer(end, far),
        Program::WriteAck => acknowledged::answer_writes(end, far),
        Program::ReadAck => acknowledged::answer_reads(end, far),
        Program::Send | Program::UcSend | Program::UdSend => messages::answer(end),
        _ => return end.sleep_to_the_end(),
    };
    message.map(|message| (message, meter.stop()))
}

/// Compares the last block that was written to an end that sleeps.
fn check_end(end: &mut End<'_>, last: u64) {
    let index = match end.plan.program {
        Program::Rdma1 | Program::Rdma2 | Program::Write => 0,
        Program::Rdma1e => 1,
        _ => return,
    };
    if let Some(block) = end.open.as_ref().map(|open| open.block(index)).filter(|_| last > 0) {
        end.verify_ends(&block, last);
    }
}
