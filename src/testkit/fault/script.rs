//! When which faults happen.

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::Mutex;

use crate::testkit::random::Random;

/// A kind of operation. Each kind has its own numbers, from 0, over all connections of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    /// A dial.
    Dial,
    /// A message is sent.
    Send,
    /// A receive.
    Receive,
    /// A batch of one-sided reads.
    Read,
    /// A batch of one-sided writes.
    Write,
}

/// A fault of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A dial fails.
    RefuseDial,
    /// A message is lost, and with it its reliable connection.
    DropMessage,
    /// This many sends, at least one, find the queue full. They count as one.
    FullQueue { sends: u32 },
    /// This many receives, at least one, find no message. They count as one.
    DelayMessage { looks: u32 },
    /// The connection is gone at a receive.
    Disconnect,
    /// A batch of reads completes this many polls later.
    DelayRead { polls: u32 },
    /// The connection is gone when a batch of reads is posted.
    DisconnectRead,
    /// A batch of reads completes with an error, which ends the connection.
    FailRead,
    /// One bit of a fetched batch is wrong. The word counts over all words of the batch and wraps around.
    FlipBit { word: usize, bit: u32 },
    /// The bytes of a fetched batch from this one on are those of the mirror before.
    TearRead { at: usize },
    /// All bytes of a fetched batch are those of the mirror before.
    ReplayOld,
    /// A batch of writes completes this many polls later.
    DelayWrite { polls: u32 },
    /// A batch of writes completes with an error, which ends the connection.
    FailWrite,
}

impl Fault {
    /// One of each, to be tried by itself.
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

    /// The operation that it affects.
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

    /// The same kind of fault with random numbers.
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

/// A fault, and the numbers of the operations that it affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Planned {
    /// What happens.
    pub(crate) fault: Fault,
    /// The first operation affected.
    pub(crate) at: u64,
    /// The distance between affected operations.
    pub(crate) every: u64,
    /// No operation from this one on is affected.
    pub(crate) end: u64,
}

impl Planned {
    /// Whether it affects the operation of this number.
    fn is_due(&self, number: u64) -> bool {
        (self.at..self.end).contains(&number) && (number - self.at).is_multiple_of(self.every)
    }
}

/// A list of faults. Prints as the code that repeats it.
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

    /// `count` faults of all kinds, at operations below `end`.
    pub(crate) fn mixed(seed: u64, count: usize, end: u64) -> Self {
        Self::of(&Fault::EACH, (seed, count), 0..end)
    }

    /// `count` wrong reads, of those with these numbers.
    pub(crate) fn misread(seed: u64, count: usize, numbers: Range<u64>) -> Self {
        let spoils = |fault: &Fault| {
            matches!(fault, Fault::FlipBit { .. } | Fault::TearRead { .. } | Fault::ReplayOld)
        };
        let faults: Vec<_> = Fault::EACH.into_iter().filter(spoils).collect();
        Self::of(&faults, (seed, count), numbers)
    }

    fn of(faults: &[Fault], (seed, count): (u64, usize), Range { start, end }: Range<u64>) -> Self {
        let mut random = Random::new(seed);
        let mut planned = || {
            let fault = faults[random.index(faults.len())].varied(&mut random);
            // Dials and sends are much rarer than reads and receives.
            let rare = matches!(fault.operation(), Operation::Dial | Operation::Send);
            let at = start + random.below(if rare { end.min(8) } else { end - start });
            Planned { fault, at, every: 1, end: at + 1 }
        };
        Self((0..count).map(|_| planned()).collect())
    }
}

/// A running script.
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

    /// Whether no fault is left.
    pub(crate) fn is_over(&self) -> bool {
        self.0.lock().left.is_empty()
    }

    /// Drops the remaining faults.
    pub(crate) fn end(&self) {
        let mut progress = self.0.lock();
        progress.left.clear();
        (progress.full_sends, progress.silent_looks) = (0, 0);
    }

    /// The faults so far.
    pub(crate) fn happened(&self) -> Vec<(Fault, u64)> {
        self.0.lock().happened.clone()
    }

    /// Counts an operation, and returns its fault, the first of several.
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

    /// Makes the next `sends` sends find the queue full.
    pub(super) fn fill(&self, sends: u32) {
        self.0.lock().full_sends += sends;
    }

    /// Whether this send finds the queue full.
    pub(super) fn is_full(&self) -> bool {
        take_one(&mut self.0.lock().full_sends)
    }

    /// Makes the next `looks` receives find no message.
    pub(super) fn silence(&self, looks: u32) {
        self.0.lock().silent_looks += looks;
    }

    /// Whether this receive finds no message.
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
