//! Which faults happen when.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::testkit::random::Random;

/// What is counted. Each kind has its own numbers, from 0, over all connections of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    /// A dial.
    Dial,
    /// A message handed over for sending.
    Send,
    /// A look for a message.
    Receive,
    /// A batch of one-sided reads.
    Read,
    /// A batch of one-sided writes.
    Write,
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A dial fails.
    RefuseDial,
    /// A message is lost. Connections are reliable, so that the connection is lost with it.
    DropMessage,
    /// This many sends, from this one on, find the queue full. They are counted as one; there is at least one.
    FullQueue { sends: u32 },
    /// This many looks for a message, from this one on, find none. They are counted as one; there is at least one.
    DelayMessage { looks: u32 },
    /// The connection is gone when a message is looked for.
    Disconnect,
    /// A batch of reads is complete that many polls later.
    DelayRead { polls: u32 },
    /// The connection is gone when a batch of reads is posted.
    DisconnectRead,
    /// A batch of reads completes with an error, which ends the connection.
    FailRead,
    /// One bit of a fetched batch is wrong. The word counts over all words of the batch and wraps around.
    FlipBit { word: usize, bit: u32 },
    /// The bytes of a fetched batch from this one on are those that stood in the mirror before.
    TearRead { at: usize },
    /// All bytes of a fetched batch are those that stood in the mirror before.
    ReplayOld,
    /// A batch of writes is complete that many polls later.
    DelayWrite { polls: u32 },
    /// A batch of writes completes with an error, which ends the connection.
    FailWrite,
}

impl Fault {
    /// One of each, to be tried alone.
    pub(crate) const EACH: [Self; 13] = [
        Self::RefuseDial,
        Self::DropMessage,
        Self::FullQueue { sends: 3 },
        Self::DelayMessage { looks: 5 },
        Self::Disconnect,
        Self::DelayRead { polls: 7 },
        Self::DisconnectRead,
        Self::FailRead,
        Self::FlipBit { word: 9, bit: 40 },
        Self::TearRead { at: 83 },
        Self::ReplayOld,
        Self::DelayWrite { polls: 7 },
        Self::FailWrite,
    ];

    /// What it happens to.
    pub(crate) fn operation(self) -> Operation {
        match self {
            Self::RefuseDial => Operation::Dial,
            Self::DropMessage | Self::FullQueue { .. } => Operation::Send,
            Self::DelayMessage { .. } | Self::Disconnect => Operation::Receive,
            Self::DelayRead { .. } | Self::DisconnectRead | Self::FailRead => Operation::Read,
            Self::FlipBit { .. } | Self::TearRead { .. } | Self::ReplayOld => Operation::Read,
            Self::DelayWrite { .. } | Self::FailWrite => Operation::Write,
        }
    }

    /// The same kind of fault with numbers of chance.
    fn varied(self, random: &mut Random) -> Self {
        let few = u32::try_from(1 + random.below(12)).unwrap_or(1);
        match self {
            Self::FullQueue { .. } => Self::FullQueue { sends: few },
            Self::DelayMessage { .. } => Self::DelayMessage { looks: few },
            Self::DelayRead { .. } => Self::DelayRead { polls: few },
            Self::DelayWrite { .. } => Self::DelayWrite { polls: few },
            Self::FlipBit { .. } => Self::FlipBit { word: random.index(1000), bit: few * 5 },
            Self::TearRead { .. } => Self::TearRead { at: random.index(300) },
            other => other,
        }
    }
}

/// A fault, and the numbers of the operations that it happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    /// What happens.
    pub(crate) fault: Fault,
    /// The first operation that it happens to.
    pub(crate) at: u64,
    /// From one operation that it happens to to the next.
    pub(crate) every: u64,
    /// It happens to none from this one on.
    pub(crate) end: u64,
}

impl Planned {
    /// Whether it happens to the operation of this number.
    fn is_due(&self, number: u64) -> bool {
        (self.at..self.end).contains(&number) && (number - self.at).is_multiple_of(self.every)
    }
}

/// A list of faults. Prints as what a test needs to be given to see them again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Script(pub(crate) Vec<Planned>);

impl Script {
    /// This fault, to every `every`th operation of its kind until number `end`.
    pub(crate) fn repeated(fault: Fault, every: u64, end: u64) -> Self {
        Self(vec![Planned { fault, at: every - 1, every, end }])
    }

    /// The faults of both scripts.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// As many faults of all kinds, at operations below `end`.
    pub(crate) fn mixed(seed: u64, count: usize, end: u64) -> Self {
        let mut random = Random::new(seed);
        let mut planned = || {
            let fault = Fault::EACH[random.index(Fault::EACH.len())].varied(&mut random);
            // There are far fewer dials and sends than reads and looks for messages.
            let rare = matches!(fault.operation(), Operation::Dial | Operation::Send);
            let at = random.below(if rare { end.min(8) } else { end });
            Planned { fault, at, every: 1, end: at + 1 }
        };
        Self((0..count).map(|_| planned()).collect())
    }
}

/// A script that is under way.
#[derive(Debug)]
pub(crate) struct Running(Mutex<Progress>);

#[derive(Debug, Default)]
struct Progress {
    left: Vec<Planned>,
    /// The faults that happened, and the numbers of their operations.
    happened: Vec<(Fault, u64)>,
    counts: BTreeMap<Operation, u64>,
    full_sends: u32,
    silent_looks: u32,
}

impl Running {
    /// Begins a script.
    pub(crate) fn new(script: &Script) -> Self {
        Self(Mutex::new(Progress { left: script.0.clone(), ..Progress::default() }))
    }

    /// Whether anything of it has yet to happen.
    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().left.is_empty()
    }

    /// Nothing more of it happens.
    pub(crate) fn end(&self) {
        let mut progress = self.0.lock();
        progress.left.clear();
        (progress.full_sends, progress.silent_looks) = (0, 0);
    }

    /// What has happened so far.
    pub(crate) fn happened(&self) -> Vec<(Fault, u64)> {
        self.0.lock().happened.clone()
    }

    /// Counts an operation, and says what happens to it. Of several faults at one operation the first one does.
    pub(super) fn next(&self, operation: Operation) -> Option<Fault> {
        let mut progress = self.0.lock();
        let count = progress.counts.entry(operation).or_default();
        let number = *count;
        *count += 1;
        progress.left.retain(|planned| planned.fault.operation() != operation || planned.end > number);
        let due = |planned: &&Planned| planned.fault.operation() == operation && planned.is_due(number);
        let fault = progress.left.iter().find(due).map(|planned| planned.fault)?;
        progress.happened.push((fault, number));
        Some(fault)
    }

    /// Has this many sends more find the queue full.
    pub(super) fn fill(&self, sends: u32) {
        self.0.lock().full_sends += sends;
    }

    /// Whether this send finds the queue full.
    pub(super) fn is_full(&self) -> bool {
        take_one(&mut self.0.lock().full_sends)
    }

    /// Has this many looks more find no message.
    pub(super) fn silence(&self, looks: u32) {
        self.0.lock().silent_looks += looks;
    }

    /// Whether this look finds no message.
    pub(super) fn is_silent(&self) -> bool {
        take_one(&mut self.0.lock().silent_looks)
    }
}

/// Takes one of these, if there is one.
fn take_one(left: &mut u32) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}
