//! `fabricast watch`: each new value of a topic as it comes.

use std::io::{StdoutLock, Write};
use std::time::Duration;

use clap::{Args, ValueEnum};
use fabricast::{Delivery, Liveness, Raw, ReceiveError, Sample, Sequence, StateSubscriber, Target};

use super::clock::Deadline;
use super::failure::{Exit, Failure};
use super::interrupt::Interrupt;
use super::output::{json_line, span};
use super::setting::{Setting, check_keyless, seconds};
use super::value::{LossLine, ValueLine, age_ns, text};

/// The pause between two looks: it doubles from the first to the second while no value comes.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(4);
/// How often the publisher's heartbeat is looked at, and how long one call waits for a value.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

const AFTER_HELP: &str = "\
A line is the sequence of a value, its age when it was printed, and the value. Values of a state
topic that were replaced before they were read are not shown; a line of its own says how many. An age
is by the clocks of both hosts: of another host's value it is as wrong as they are apart.

With --json a value is a line
{\"topic\",\"key\",\"sequence\",\"epoch\",\"published_ns\",\"age_ns\",\"value\"}, and a loss
{\"topic\",\"lost\",\"first_lost\",\"reason\"}: the reason is conflated (replaced), damaged or undecodable.

It ends with 0 after --count values, after --for if any value came, at Ctrl-C, and when the topic
ends in good order after a value came; with 1 when none came; with 5 when none came in --for and
the publisher is hung; with 6 when the publisher's process is gone. That a publisher is hung is said
once, and watching goes on; with --delivery push it is not seen.

Examples:
  fabricast watch shm:quotes/EURUSD
  fabricast watch shm:quotes/EURUSD --count 10 --json
  fabricast watch shm:quotes/EURUSD --for 5 --delivery push";

/// Arguments of `watch`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic, as in shm:NODE/TOPIC.
    target: Target,
    /// Only values of keys that match this pattern, for topics that have keys. Those of kind state have none.
    #[arg(long, value_name = "GLOB")]
    key: Option<String>,
    /// End after so many values.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds.
    #[arg(long = "for", value_name = "SECS", value_parser = seconds)]
    duration: Option<Duration>,
    /// How values travel.
    #[arg(long, value_enum, default_value_t = Way::Pull)]
    delivery: Way,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

/// How values travel, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    /// Read from the publisher's repository.
    Pull,
    /// Written here by the publisher.
    Push,
}

/// A topic that is being watched.
#[derive(Debug)]
struct Watch<'a> {
    arguments: &'a Arguments,
    subscriber: StateSubscriber<Raw>,
    out: StdoutLock<'static>,
    /// The last sequence that a line was printed for.
    last: Option<u64>,
    /// Values printed.
    shown: u64,
    /// The user was told that the publisher is hung.
    hung: bool,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    check_keyless(&arguments.target, arguments.key.as_deref(), "--key")?;
    let delivery = match arguments.delivery {
        Way::Pull => Delivery::Pull,
        Way::Push => Delivery::Push,
    };
    let subscriber = setting.subscribe(&arguments.target, delivery)?;
    // Taken only now: until here, Ctrl-C ends the process as it ends any other.
    let interrupt = Interrupt::install()?;
    let out = std::io::stdout().lock();
    Watch { arguments, subscriber, out, last: None, shown: 0, hung: false }.run(&interrupt)
}

/// The next new value, waiting for it: looks often at first, and less often the longer none comes. `None` when the
/// time is over or the process was asked to end.
pub(crate) fn next(
    subscriber: &mut StateSubscriber<Raw>,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<Option<Sample<Vec<u8>>>, ReceiveError> {
    let deadline = Deadline::after(timeout);
    let mut pause = PAUSE_MIN;
    loop {
        match subscriber.try_receive() {
            Ok(None) | Err(ReceiveError::Contended { .. }) if !deadline.is_over() => {}
            outcome => return outcome,
        }
        if interrupt.pause(pause.min(deadline.left())) {
            return Ok(None);
        }
        pause = PAUSE_MAX.min(pause * 2);
    }
}

impl Watch<'_> {
    fn run(mut self, interrupt: &Interrupt) -> Result<Exit, Failure> {
        let deadline = self.arguments.duration.map(Deadline::after);
        loop {
            let left = deadline.map_or(LOOK_INTERVAL, |deadline| deadline.left().min(LOOK_INTERVAL));
            match next(&mut self.subscriber, left, interrupt) {
                Ok(Some(sample)) => self.value(&sample)?,
                Ok(None) | Err(ReceiveError::Contended { .. }) => self.look_after_publisher(),
                Err(ReceiveError::Ended { .. }) => return self.end("it has ended"),
                Err(error) => self.reject(error)?,
            }
            if interrupt.came() || self.arguments.count.is_some_and(|count| self.shown >= count) {
                return Ok(Exit::Done);
            }
            if let Some(deadline) = deadline.filter(Deadline::is_over) {
                return self.end(&format!("the {:?} of --for are over", deadline.whole()));
            }
        }
    }

    fn value(&mut self, sample: &Sample<Vec<u8>>) -> Result<(), Failure> {
        self.catch_up(sample.sequence)?;
        let (topic, schema) = (self.subscriber.topic(), self.subscriber.schema());
        let printed = if self.arguments.json {
            ValueLine::new(topic, schema, sample).map(|line| json_line(&mut self.out, &line))
        } else {
            let age = span(age_ns(sample));
            let line =
                text(schema, sample).map(|text| format!("{:>10}  {age:>8}  {text}\n", sample.sequence));
            line.map(|line| self.out.write_all(line.as_bytes()).and_then(|()| self.out.flush()))
        };
        match printed {
            Ok(outcome) => {
                self.shown += 1;
                Ok(outcome?)
            }
            Err(error) => {
                tracing::debug!(target: "fabricast", sequence = sample.sequence.get(), %error, "undecodable");
                self.loss(sample.sequence.get(), 1, "undecodable")
            }
        }
    }

    /// A value that was not accepted is a loss; anything else that goes wrong ends it.
    fn reject(&mut self, error: ReceiveError) -> Result<(), Failure> {
        let sequence = match &error {
            ReceiveError::BrokenStamps { sequence }
            | ReceiveError::Damaged { sequence, .. }
            | ReceiveError::ForeignEpoch { sequence, .. }
            | ReceiveError::ImpossibleLen { sequence, .. } => *sequence,
            ReceiveError::Gone { .. } => {
                return Err(Failure::new(Exit::Gone, format!("{}: {error}", self.arguments.target)));
            }
            _ => return Err(error.into()),
        };
        self.catch_up(sequence)?;
        self.loss(sequence.get(), 1, "damaged")
    }

    /// Tells of the values before this one that were replaced before they were read.
    fn catch_up(&mut self, sequence: Sequence) -> Result<(), Failure> {
        let sequence = sequence.get();
        match self.last.replace(sequence) {
            Some(last) if sequence > last.saturating_add(1) => {
                self.loss(last + 1, sequence - last - 1, "conflated")
            }
            _ => Ok(()),
        }
    }

    fn loss(&mut self, first_lost: u64, lost: u64, reason: &str) -> Result<(), Failure> {
        if self.arguments.json {
            let topic = self.subscriber.topic();
            json_line(&mut self.out, &LossLine { topic, lost, first_lost, reason })?;
        } else {
            writeln!(self.out, "{first_lost:>10}  {:>8}  {lost} lost: {reason}", "-")?;
            self.out.flush()?;
        }
        Ok(())
    }

    /// Says once that the publisher is hung, and again after it has come back.
    fn look_after_publisher(&mut self) {
        let hung = Liveness::of(&mut self.subscriber) == Some(Liveness::Hung);
        if hung && !self.hung {
            let sentence = format!(
                "the publisher of {} is hung: its heart has stopped; watching goes on",
                self.arguments.target
            );
            // Standard error may be closed; then there is nobody to be told.
            let _ = Failure::new(Exit::Hung, sentence).tell(&mut std::io::stderr().lock());
        }
        self.hung = hung;
    }

    /// The end, because of this: it is a good one if any value came.
    fn end(&self, why: &str) -> Result<Exit, Failure> {
        if self.shown > 0 {
            return Ok(Exit::Done);
        }
        let exit = if self.hung { Exit::Hung } else { Exit::No };
        let because = if self.hung { ", and its publisher is hung" } else { "" };
        let sentence = format!("nothing arrived from {}: {why}{because}", self.arguments.target);
        Err(Failure::new(exit, sentence))
    }
}
