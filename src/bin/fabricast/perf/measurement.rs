use std::io::Write as _;
use std::time::Duration;

use fabricast::{Address, DialError, RefuseReason, SubscriberError};

use super::super::clock::Deadline;
use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::setting::Setting;
use super::arguments::{Arguments, FabricName};
use super::cpus::Cpus;
use super::line::{Line, Seen};
use super::trouble::{Trouble, wait};

/// The pause between two checks whether all have subscribed.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long each attempt to dial or to subscribe may take: a process that hangs must not keep this one from ending.
pub(super) const ATTEMPT: Duration = Duration::from_secs(1);
/// The pause between two attempts.
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// What all sizes share.
pub(super) struct Measurement<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) setting: &'a Setting,
    pub(super) cpus: Cpus,
    pub(super) interrupt: Interrupt,
}

/// The name of a node that measures what answers at this address: derived from it, so that each answering process gets its own.
pub(super) fn name_beside(address: &Address, what: &str) -> String {
    let name = address.node().map(|name| name.to_string());
    format!("{}.{what}", name.unwrap_or_else(|| format!("perf-{}", std::process::id())))
}

/// Whether the same request is refused again for this reason, whatever happens meanwhile.
fn is_permanent(reason: RefuseReason) -> bool {
    matches!(
        reason,
        RefuseReason::SchemaMismatch
            | RefuseReason::DeliveryUnsupported
            | RefuseReason::NotPermitted
            | RefuseReason::GatingNotPermitted
            | RefuseReason::VersionUnsupported
    )
}

impl<'a> Measurement<'a> {
    /// Pins this process to the measuring processor.
    pub(super) fn begin(arguments: &'a Arguments, setting: &'a Setting) -> Result<Self, Trouble> {
        let cpus = arguments.cpus.settled()?;
        if arguments.connect.is_none() {
            // To see whether the other process can.
            cpus.pin_answering()?;
        }
        cpus.pin_measuring()?;
        Ok(Self { arguments, setting, cpus, interrupt: Interrupt::install()? })
    }

    /// Measures each size under a name of its own and prints its lines. Returns success if all of them `are_right`; otherwise
    /// reports what is `wrong` with the first that is not.
    pub(super) fn print<S>(
        &self,
        counted: &str,
        sizes: impl IntoIterator<Item = S>,
        measure: impl Fn(S, &str) -> Result<Vec<Line>, Trouble>,
        (is_right, wrong): (impl Fn(&Line) -> bool, impl Fn(&Line) -> String),
    ) -> Result<Exit, Trouble> {
        let mut heading = (!self.arguments.json).then(|| Line::heading(counted));
        let mut trouble = None;
        for (index, size) in sizes.into_iter().enumerate() {
            let lines = measure(size, &format!("perf-{}-{index}", std::process::id()))?;
            if self.interrupt.came() {
                return Ok(Exit::Interrupted);
            }
            if let Some(heading) = heading.take() {
                writeln!(std::io::stdout(), "{heading}")?;
            }
            for line in lines {
                if trouble.is_none() && !is_right(&line) {
                    trouble = Some(wrong(&line));
                }
                let text = if self.arguments.json { serde_json::to_string(&line)? } else { line.text() };
                writeln!(std::io::stdout(), "{text}")?;
            }
        }
        trouble.map_or(Ok(Exit::Done), |sentence| Err(Failure::new(Exit::No, sentence).into()))
    }

    /// The deadline for other processes.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(Duration::from_secs_f64(self.arguments.wait))
    }

    /// Has the process that answers subscribe to what this one publishes, by `dial`, and subscribes to its answers, by `open`. Tries again
    /// until the time is over, unless one of the two was refused for good. `check` fails when the process cannot answer any more.
    pub(super) fn meet<S>(
        &self,
        subscribers: impl Fn() -> u64,
        dial: impl Fn() -> Result<(), DialError>,
        open: impl Fn() -> Result<S, SubscriberError>,
        mut check: impl FnMut() -> Result<(), Trouble>,
    ) -> Result<S, Trouble> {
        let mut go_on = |error: Failure, refused: Option<RefuseReason>, deadline: Deadline| {
            if deadline.is_over() || refused.is_some_and(is_permanent) {
                return Err(Trouble::from(error));
            }
            wait(&self.interrupt, TRY_AGAIN)?;
            check()
        };
        let (to_dial, mut to_answer, mut was_dialled) = (self.deadline(), None, false);
        loop {
            // Others may have subscribed before it was dialled. Later it may have given up on what it was granted, and waits to be dialled
            // again.
            if !was_dialled || subscribers() == 0 {
                if let Err(error) = dial() {
                    let refused = match &error {
                        DialError::Refused { reason, .. } | DialError::Unfit { reason, .. } => Some(*reason),
                        _ => None,
                    };
                    go_on(error.into(), refused, to_dial)?;
                    continue;
                }
                was_dialled = true;
            }
            // It has as long to answer as it had to be dialled.
            let to_answer = *to_answer.get_or_insert_with(|| self.deadline());
            match open() {
                Ok(subscriber) => return Ok(subscriber),
                Err(error) => {
                    let refused = match &error {
                        SubscriberError::Refused { reason, .. } => Some(*reason),
                        _ => None,
                    };
                    go_on(error.into(), refused, to_answer)?;
                }
            }
        }
    }

    /// Waits until `all` have subscribed. `check` fails once one of them cannot.
    pub(super) fn await_subscribers(
        &self,
        all: u64,
        subscribers: impl Fn() -> u64,
        who: &str,
        mut check: impl FnMut() -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let deadline = self.deadline();
        while subscribers() < all {
            if deadline.is_over() {
                let sentence =
                    format!("not all {who} processes have subscribed: allow more time with --wait");
                return Err(sentence.into());
            }
            check()?;
            wait(&self.interrupt, LOOK_AGAIN)?;
        }
        Ok(())
    }

    /// Completes the line of a delivery with the counts of all ends.
    pub(super) fn complete(&self, line: Line, fabric: FabricName, seen: Seen) -> Line {
        Line {
            fabric: fabric.name(),
            connect: (fabric == FabricName::Verbs).then(|| self.setting.connect_name()),
            subscribers: self.arguments.subscribers,
            lost: Some(seen.lost),
            rejected: Some(seen.rejected),
            verified: Some(seen.verified),
            ..line
        }
    }
}
