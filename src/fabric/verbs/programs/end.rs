//! One end of a program while it runs: its queue pair, what it waits for, and the messages before and after the blocks.

use super::super::error::VerbsError;
use super::super::sys::{CompletionQueue, Local, PreparedSends, Remote, Status, Verb, WorkCompletion};
use super::error::ProgramError;
use super::meter::Meter;
use super::outbox::Outbox;
use super::pattern::{Block, is_whole};
use super::places::{Arrival, Blocks, MessageMemory};
use super::plan::ProgramPlan;
use super::resources::Resources;
use super::time_limit::TimeLimit;
use super::watch::{ANSWER_NS, Watch};
use super::wire::{MESSAGE_LEN, Message, MessageKind};
use crate::clock::{Clock, SystemClock};
use crate::fabric::FabricError;
use crate::memory::WORD;

/// The number of the completions of messages.
const MESSAGE: u64 = 2;
/// Rounds between two checks of the connection.
const CHECK_EVERY: u64 = 2048;
/// The time between two checks of the connection during a wait.
pub(super) const CHECK_NS: u64 = 10_000_000;
/// Polls of memory between two polls for a completion.
pub(super) const POLLS: u32 = 512;
/// How long an idle end sleeps before it checks whether the peer's host answers.
const PROBE_NS: u64 = 20_000_000_000;
/// How long the connection of a process that was killed may stand after its memory is closed.
const CLOSING_NS: u64 = 1_000_000_000;
/// How long the bytes between the ends of a block may arrive after these.
const LATE_NS: u64 = 1_000_000_000;
/// After which time a message without an answer is sent again over an unreliable connection.
const AGAIN_NS: u64 = 200_000_000;

/// One end.
#[derive(Debug)]
pub(super) struct End<'a> {
    pub(super) plan: ProgramPlan,
    pub(super) resources: Resources,
    pub(super) watch: Watch<'a>,
    /// The blocks of its own.
    pub(super) near: Blocks,
    /// The blocks that its peer accesses.
    pub(super) open: Option<Blocks>,
    /// Whether it drives.
    pub(super) drives: bool,
    message: MessageMemory,
    message_sends: PreparedSends,
    /// Work requests since the last one with a completion.
    unsignaled: u32,
    /// Work requests with a completion that was not taken yet.
    signaled: u32,
    pub(super) seen: Seen,
    /// Room for a block that is filled, copied or compared whole.
    pub(super) scratch: Vec<u64>,
}

/// What an end has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Blocks with the right number in the first and in the last word.
    pub(super) verified: u64,
    /// Of these, blocks of which every byte was compared.
    pub(super) whole: u64,
    /// Blocks with wrong bytes.
    pub(super) wrong: u64,
    /// Blocks without an answer.
    pub(super) lost: u64,
}

/// A wait for the peer's bytes in memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wait {
    /// What is left of it, and when the connection was last checked.
    begun: Option<(TimeLimit, u64)>,
}

/// Where the peer's blocks are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far {
    address: u64,
    key: u32,
    stride: u64,
}

impl Far {
    /// The place of a block.
    pub(super) fn block(&self, index: usize) -> Remote {
        Remote { address: self.address.wrapping_add(self.stride * index as u64), key: self.key }
    }
}

impl<'a> End<'a> {
    pub(super) fn new(
        plan: &ProgramPlan,
        (resources, watch): (Resources, Watch<'a>),
        (near, open): (Blocks, Option<Blocks>),
        drives: bool,
    ) -> Result<Self, ProgramError> {
        let message = MessageMemory::new(&resources.domain)?;
        let mut message_sends = PreparedSends::default();
        let len = u32::try_from(MESSAGE_LEN).unwrap_or(u32::MAX);
        let local = Local::Registered { region: message.region.clone(), offset: 0, len };
        message_sends.push(MESSAGE, Verb::Send { immediate: Some(1) }, &local, 1);
        message_sends.set_signaled(0, true);
        if let Some(peer) = &resources.peer {
            message_sends.address(0, &peer.handle, (peer.queue_pair, peer.key));
        }
        // Allocated here, not in the rounds that are timed.
        let (seen, scratch) = (Seen::default(), vec![0; (plan.size as usize).div_ceil(WORD)]);
        let plan = *plan;
        let (unsignaled, signaled) = (0, 0);
        Ok(Self {
            plan,
            resources,
            watch,
            near,
            open,
            drives,
            message,
            message_sends,
            unsignaled,
            signaled,
            seen,
            scratch,
        })
    }

    /// The block that the peer accesses.
    pub(super) fn exposed_block(&self) -> Result<Block, ProgramError> {
        self.open.as_ref().map(|open| open.block(0)).ok_or_else(malformed)
    }

    /// The length of a block.
    pub(super) fn len(&self) -> usize {
        self.plan.size as usize
    }

    /// An empty outbox for this plan.
    pub(super) fn outbox(&self) -> Outbox {
        Outbox::new(self.len(), self.plan.sge, self.plan.is_inline())
    }

    /// Compares the block that was read: the words at both ends, and the whole block if that is its turn, which is returned.
    pub(super) fn compare_read(&mut self, block: &Block, round: u64, number: u64) -> bool {
        self.verify_ends(block, number);
        let is_whole = is_whole(round, self.len());
        if is_whole {
            self.verify_all(block, number);
        }
        is_whole
    }

    /// Posts an outbox of one work request with a completion, and waits for that.
    #[inline]
    pub(super) fn post_and_await(&mut self, outbox: &mut Outbox) -> Result<(), ProgramError> {
        outbox.post(&self.resources.queue_pair, 1)?;
        self.await_sent()
    }

    /// Checks the connection every so many rounds.
    #[inline]
    pub(super) fn check(&mut self, number: u64) -> Result<(), ProgramError> {
        if number.is_multiple_of(CHECK_EVERY) { self.watch.check() } else { Ok(()) }
    }

    /// Polls the memory that the peer writes until `poll` returns something, for up to this time. Meanwhile it takes the completions of
    /// its own work requests: one of them reports when the peer's device refuses a WRITE.
    #[inline]
    pub(super) fn await_memory<T>(
        &mut self,
        limit_ns: Option<u64>,
        poll: impl Fn() -> Option<T>,
    ) -> Result<Option<T>, ProgramError> {
        let (mut wait, mut limit) = (Wait::default(), None);
        loop {
            if let Some(found) = (0..POLLS).find_map(|_| poll()) {
                return Ok(Some(found));
            }
            self.keep_waiting(&mut wait)?;
            let begin = |limit_ns| limit.get_or_insert_with(|| TimeLimit::begin(limit_ns)).is_over(0);
            if limit_ns.is_some_and(begin) {
                return Ok(None);
            }
        }
    }

    /// Takes a completion of the work requests of its own, if there is one, and from time to time checks the connection. Fails if the
    /// wait takes too long.
    pub(super) fn keep_waiting(&mut self, wait: &mut Wait) -> Result<(), ProgramError> {
        if let completion @ Some(_) = self.resources.sends.poll_one()? {
            self.on_sent(completion)?;
        }
        let now_ns = SystemClock.monotonic_ns();
        let (answer, checked_ns) = wait.begun.get_or_insert_with(|| (TimeLimit::begin(ANSWER_NS), now_ns));
        let is_over = answer.is_over(0);
        if now_ns.saturating_sub(*checked_ns) > CHECK_NS {
            *checked_ns = now_ns;
            self.watch.check()?;
        }
        if is_over { Err(ProgramError::NoAnswer) } else { Ok(()) }
    }

    /// Posts the one work request of an outbox. Every so often it has a completion, which is taken before the next one.
    #[inline]
    pub(super) fn post(&mut self, outbox: &mut Outbox) -> Result<(), ProgramError> {
        self.post_last(outbox, 1)
    }

    /// The same for the first `count`, of which the last one has a completion.
    #[inline]
    pub(super) fn post_last(&mut self, outbox: &mut Outbox, count: usize) -> Result<(), ProgramError> {
        self.unsignaled += 1;
        let is_signaled = self.unsignaled >= self.plan.signal_every;
        if is_signaled {
            self.unsignaled = 0;
            while self.signaled > 0 {
                self.await_sent()?;
            }
            self.signaled += 1;
        }
        outbox.set_signaled(count - 1, is_signaled);
        Ok(outbox.post(&self.resources.queue_pair, count)?)
    }

    /// Waits for the completion of a block's work request.
    #[inline]
    pub(super) fn await_sent(&mut self) -> Result<(), ProgramError> {
        let completion = await_completion(&self.resources, &mut self.watch, Queue::Sends, None)?;
        self.on_sent(completion)
    }

    #[inline]
    fn on_sent(&mut self, completion: Option<WorkCompletion>) -> Result<(), ProgramError> {
        match completion {
            Some(completion) if completion.status != Status::Success => Err(self.failure(&completion)),
            Some(completion) if completion.wr_id != MESSAGE => {
                self.signaled = self.signaled.saturating_sub(1);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The failure that this completion reports. The memory and the queue pair of a process that was killed are closed before its
    /// connection.
    #[cold]
    fn failure(&mut self, completion: &WorkCompletion) -> ProgramError {
        let error = ProgramError::of(completion);
        let may_be_closing = matches!(
            error,
            ProgramError::HostSilent | ProgramError::Fabric(FabricError::Verbs(VerbsError::RemoteAccess))
        );
        if !may_be_closing {
            return error;
        }
        match self.watch.await_end(CLOSING_NS) {
            Ok(Some(ending)) => ending.error(),
            Err(stopped @ ProgramError::Stopped) => stopped,
            _ => error,
        }
    }

    /// What has arrived by this completion.
    #[inline]
    fn arrived(&mut self, completion: &WorkCompletion) -> Result<Arrival, ProgramError> {
        let arrival = self.resources.inbox.arrival(completion);
        arrival.map_err(|error| self.cause_of(error))
    }

    /// Why this receive has failed: a work request of this end that has failed before flushes all receives.
    #[cold]
    fn cause_of(&mut self, error: ProgramError) -> ProgramError {
        loop {
            match self.resources.sends.poll_one() {
                Ok(Some(completion)) => match self.on_sent(Some(completion)) {
                    Ok(()) | Err(ProgramError::Gone) => {}
                    Err(cause) => return cause,
                },
                _ => return error,
            }
        }
    }

    /// Waits for a message or a block, for up to this time.
    #[inline]
    pub(super) fn receive(&mut self, limit_ns: Option<u64>) -> Result<Option<Arrival>, ProgramError> {
        let completion = await_completion(&self.resources, &mut self.watch, Queue::Receives, limit_ns)?;
        completion.map(|completion| self.arrived(&completion)).transpose()
    }

    /// Polls for a message or a block, once.
    #[inline]
    pub(super) fn try_receive(&mut self) -> Result<Option<Arrival>, ProgramError> {
        let completion = self.resources.receives.poll_one()?;
        completion.map(|completion| self.arrived(&completion)).transpose()
    }

    /// Posts the receive of an arrival again.
    #[inline]
    pub(super) fn repost(&mut self, arrival: Arrival) -> Result<(), ProgramError> {
        self.resources.inbox.post(&self.resources.queue_pair, arrival.slot)
    }

    /// Counts a block that has the right number at both ends, after comparing all of it if that is its turn.
    #[inline]
    pub(super) fn verify(&mut self, block: &Block, number: u64) {
        self.seen.verified += 1;
        if is_whole(number, block.len()) {
            self.verify_all(block, number);
        }
    }

    /// The same for a block that the peer writes, whose bytes may arrive in any order: waits for those between the ends.
    #[inline]
    pub(super) fn verify_written(&mut self, block: &Block, number: u64) -> Result<(), ProgramError> {
        if is_whole(number, block.len()) {
            let scratch = &mut self.scratch;
            let poll = || Ok(block.is_all(number, scratch).then_some(()));
            if self.watch.spin_for(LATE_NS, poll)?.is_some() {
                self.seen.whole += 1;
            } else if block.holds(number) {
                self.seen.wrong += 1;
            } else {
                // The peer counts it as lost, and has written the next one over it.
                return Ok(());
            }
        }
        self.seen.verified += 1;
        Ok(())
    }

    /// Takes a message between blocks. Returns it if it is the end.
    pub(super) fn on_message(&mut self, arrival: Arrival) -> Result<Option<Message>, ProgramError> {
        let message = self.resources.inbox.message(arrival);
        self.repost(arrival)?;
        match message.map(|message| message.what) {
            Some(MessageKind::End) => Ok(message),
            // The answer was lost.
            Some(MessageKind::Buffers) if !self.plan.program.is_reliable() => {
                let buffers = self.buffers();
                self.send_message(&buffers)?;
                Ok(None)
            }
            _ => Err(malformed()),
        }
    }

    /// Compares all of a block that was counted already.
    pub(super) fn verify_all(&mut self, block: &Block, number: u64) {
        if block.is_all(number, &mut self.scratch) {
            self.seen.whole += 1;
        } else {
            self.seen.wrong += 1;
        }
    }

    /// Counts a block that has one number at both ends, and another between.
    pub(super) fn verify_as(&mut self, block: &Block, ends: u64, between: u64) {
        if block.is_as(ends, between, &mut self.scratch) {
            self.seen.verified += 1;
            self.seen.whole += 1;
        } else {
            self.seen.wrong += 1;
        }
    }

    /// Counts a block with the right, or a wrong, number at its ends.
    #[inline]
    pub(super) fn verify_ends(&mut self, block: &Block, number: u64) {
        if block.holds(number) {
            self.seen.verified += 1;
        } else {
            self.seen.wrong += 1;
        }
    }

    /// Sends a message.
    pub(super) fn send_message(&mut self, message: &Message) -> Result<(), ProgramError> {
        self.message.write(message);
        self.resources.queue_pair.post_prepared(&mut self.message_sends, 1)?;
        loop {
            let completion = await_completion(&self.resources, &mut self.watch, Queue::Sends, None)?;
            let is_message = completion.is_some_and(|completion| completion.wr_id == MESSAGE);
            self.on_sent(completion)?;
            if is_message {
                return Ok(());
            }
        }
    }

    /// Waits for a message of this kind, asleep, for up to this time. Over an unreliable connection, `again` is sent again until it
    /// comes.
    pub(super) fn await_message(
        &mut self,
        what: MessageKind,
        again: Option<&Message>,
        limit_ns: u64,
    ) -> Result<Message, ProgramError> {
        let again = again.filter(|_| !self.plan.program.is_reliable());
        let is_lossy = !self.plan.program.is_reliable();
        let (mut limit, mut pause_ns) = (TimeLimit::begin(limit_ns), 0);
        loop {
            let left_ns = limit.left_ns(pause_ns);
            if left_ns == 0 {
                return Err(self.no_answer());
            }
            pause_ns = again.map_or(left_ns, |_| left_ns.min(AGAIN_NS));
            let Some(arrival) = self.sleep(Some(pause_ns))? else {
                if let Some(again) = again {
                    self.send_message(again)?;
                }
                continue;
            };
            let message = self.resources.inbox.message(arrival);
            self.repost(arrival)?;
            match message {
                Some(message) if message.what == what => return Ok(message),
                // Over an unreliable connection, what was repeated or was late.
                _ if is_lossy => {}
                _ => return Err(malformed()),
            }
        }
    }

    /// Why the peer does not answer: its host does not, or its process.
    fn no_answer(&mut self) -> ProgramError {
        let is_probed = self.plan.program.is_reliable();
        if is_probed && let Err(error) = self.probe() { error } else { ProgramError::NoAnswer }
    }

    /// Sleeps until a message or a block arrives, for up to this time.
    fn sleep(&mut self, limit_ns: Option<u64>) -> Result<Option<Arrival>, ProgramError> {
        let completion = sleep(&self.resources, &mut self.watch, Queue::Receives, limit_ns)?;
        completion.map(|completion| self.arrived(&completion)).transpose()
    }

    /// Sleeps until the peer has finished, which may take as long as the plan does. The time that this takes begins and ends with the
    /// sleep.
    pub(super) fn sleep_to_the_end(&mut self) -> Result<(Message, Meter), ProgramError> {
        // In place of this limit, which would end the wait before the host is probed.
        self.watch.end_after(None);
        let resources = &self.resources;
        // What runs for the first time takes longer.
        self.watch.sleep(&resources.channel, Some(0))?;
        let _rehearsal = Meter::start().stop();
        resources.channel.drain()?;
        resources.receives.arm()?;
        let mut limit = TimeLimit::begin(self.plan.longest_ns());
        let mut sleep_ns = 0;
        let meter = Meter::start();
        let (mut times, mut probe_ns) = (meter.stop(), PROBE_NS);
        let completion = loop {
            // The peer's message may have come before the queue was armed.
            let resources = &self.resources;
            if let Some(completion) = resources.receives.poll_one()? {
                break completion;
            }
            if limit.is_over(sleep_ns) {
                return Err(self.no_answer());
            }
            sleep_ns = PROBE_NS.min(limit.sleep_ns());
            self.watch.sleep(&resources.channel, Some(sleep_ns))?;
            times = meter.stop();
            if resources.channel.drain()? == 0 && times.wall_ns >= probe_ns {
                self.probe()?;
                probe_ns = times.wall_ns.saturating_add(PROBE_NS);
            }
            self.resources.receives.arm()?;
        };
        let arrival = self.arrived(&completion)?;
        Ok((self.on_message(arrival)?.ok_or_else(malformed)?, times))
    }

    /// READs nothing, which shows whether the peer's host answers: of a connection by librdmacm nothing else does.
    fn probe(&mut self) -> Result<(), ProgramError> {
        let mut probe = PreparedSends::default();
        let local = Local::Registered { region: self.message.region.clone(), offset: 0, len: 0 };
        probe.push(MESSAGE, Verb::Read(Remote { address: 0, key: 0 }), &local, 1);
        probe.set_signaled(0, true);
        self.resources.queue_pair.post_prepared(&mut probe, 1)?;
        match sleep(&self.resources, &mut self.watch, Queue::Sends, Some(ANSWER_NS))? {
            None => Err(ProgramError::HostSilent),
            completion => self.on_sent(completion),
        }
    }

    /// The message that says where the blocks are that the peer accesses.
    pub(super) fn buffers(&self) -> Message {
        let Some(open) = &self.open else { return Message::buffers(0, 0, 0) };
        let region = &open.region;
        Message::buffers(region.iova(), region.remote_key(), region.region().len() as u64)
    }

    /// The peer's blocks, of which there must be `count`.
    pub(super) fn far(&self, message: &Message, count: usize) -> Result<Far, ProgramError> {
        let stride = self.near.offset(1) as u64;
        if message.len < stride.saturating_mul(count as u64) {
            return Err(malformed());
        }
        Ok(Far { address: message.address, key: message.key, stride })
    }
}

/// The error of a peer that does not keep to the program.
pub(super) fn malformed() -> ProgramError {
    VerbsError::Malformed { why: "it does not belong to this program" }.into()
}

/// A completion queue.
#[derive(Clone, Copy, Debug)]
enum Queue {
    Sends,
    Receives,
}

impl Queue {
    #[inline]
    fn of(self, resources: &Resources) -> &CompletionQueue {
        match self {
            Self::Sends => &resources.sends,
            Self::Receives => &resources.receives,
        }
    }
}

/// Waits for a completion as the plan says, for up to this time.
#[inline]
fn await_completion(
    resources: &Resources,
    watch: &mut Watch<'_>,
    queue: Queue,
    limit_ns: Option<u64>,
) -> Result<Option<WorkCompletion>, ProgramError> {
    if resources.events {
        return match sleep(resources, watch, queue, Some(limit_ns.unwrap_or(ANSWER_NS)))? {
            None if limit_ns.is_none() => Err(ProgramError::NoAnswer),
            completion => Ok(completion),
        };
    }
    let queue = queue.of(resources);
    let poll = || Ok(queue.poll_one()?);
    match limit_ns {
        None => watch.spin(poll).map(Some),
        Some(limit_ns) => watch.spin_for(limit_ns, poll),
    }
}

/// Sleeps until there is a completion, for up to this time.
fn sleep(
    resources: &Resources,
    watch: &mut Watch<'_>,
    queue: Queue,
    limit_ns: Option<u64>,
) -> Result<Option<WorkCompletion>, ProgramError> {
    let queue = queue.of(resources);
    let (mut limit, mut sleep_ns) = (limit_ns.map(TimeLimit::begin), None);
    loop {
        if let Some(completion) = queue.poll_one()? {
            return Ok(Some(completion));
        }
        resources.channel.drain()?;
        queue.arm()?;
        // What came before the queue was armed causes no event.
        if let Some(completion) = queue.poll_one()? {
            return Ok(Some(completion));
        }
        if limit.as_mut().is_some_and(|limit| limit.is_over(sleep_ns.unwrap_or(0))) {
            return Ok(None);
        }
        sleep_ns = limit.map(|limit| limit.sleep_ns());
        watch.sleep(&resources.channel, sleep_ns)?;
    }
}
