//! `fabricast get`: the newest value of a topic, or record of a log.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use fabricast::{Delivery, LogStart, ReceiveError, Sequence, Target};

use super::clock::Deadline;
use super::failure::{Exit, Failure};
use super::interrupt::Interrupt;
use super::output::{hex_dump, is_abandoned, json_line};
use super::setting::{Setting, check_keyless, target};
use super::subscription::{Subscription, Value, keep};
use super::units::duration;
use super::value::{ValueLine, text};

/// How long a value is tried for that is there: it may be overwritten whenever it is read, or come over a wire.
const CONTENTION: Duration = Duration::from_secs(1);
/// How long nothing else is looked at while a value is waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often a publisher may lap the ring of a log before one has looked, until that is an error.
const LAPS_MAX: u32 = 16;

const AFTER_HELP: &str = "\
The value is decoded by the schema that the publisher gave to its topic. Of a log it is the newest
record. The exit code is 1 if nothing has been published yet, 130 if Ctrl-C ends the wait.

With --json the value is a line
{\"topic\",\"key\",\"sequence\",\"epoch\",\"published_ns\",\"age_ns\",\"value\"}; a value of raw bytes is in
base64, with \"encoding\":\"base64\".

Examples:
  fabricast get shm:quotes/EURUSD
  fabricast get shm:quotes/EURUSD --json | jq .value.bid
  fabricast get shm:camera/left --raw > frame.bin
  fabricast get shm:quotes/EURUSD --wait 10s";

/// Arguments of `get`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic, as in shm:NODE/TOPIC, or NODE/TOPIC for short.
    #[arg(value_parser = target)]
    target: Target,
    /// The key, for topics that have keys. Those of kind state or log have none.
    key: Option<String>,
    /// Write the bytes of the value as they are.
    #[arg(long, conflicts_with_all = ["hex", "json"])]
    raw: bool,
    /// Print the bytes of the value as a hex dump.
    #[arg(long, conflicts_with = "json")]
    hex: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Wait so long for a value if nothing has been published yet.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0")]
    wait: Duration,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let target = &arguments.target;
    check_keyless(target, arguments.key.as_deref(), "KEY")?;
    let mut subscriber = setting.subscribe_any(target, Delivery::Pull, LogStart::Back(1))?;
    let interrupt = Interrupt::install()?;
    let Some(sample) = newest(&mut subscriber, arguments.wait, &interrupt)? else {
        if interrupt.came() {
            return Ok(Exit::Interrupted);
        }
        let sequence = subscriber.report(false)?.sequence;
        if sequence != Sequence::NONE {
            let sentence = format!("value {sequence} of {target} cannot be read: it may be damaged");
            return Err(Failure::new(Exit::No, sentence));
        }
        let what = "wait for a value with --wait TIME, or for more than one with `fabricast watch`";
        return Err(Failure::new(Exit::No, format!("nothing has been published to {target} yet: {what}")));
    };
    let mut out = std::io::stdout().lock();
    let undecodable = |source| {
        let error = ReceiveError::Decode { sequence: sample.sequence, source };
        Failure::new(Exit::No, format!("{error}; --raw and --hex show its bytes"))
    };
    if arguments.raw {
        out.write_all(&sample.bytes)?;
        out.flush()?;
    } else if arguments.hex {
        hex_dump(&mut out, &sample.bytes)?;
    } else if arguments.json {
        let line = ValueLine::new(subscriber.topic(), subscriber.schema(), &sample);
        json_line(&mut out, &line.map_err(undecodable)?)?;
    } else {
        writeln!(out, "{}", text(subscriber.schema(), &sample).map_err(undecodable)?)?;
    }
    Ok(Exit::Done)
}

/// The newest value. `None` when nothing was published within this time.
fn newest(
    subscriber: &mut Subscription,
    wait: Duration,
    interrupt: &Interrupt,
) -> Result<Option<Value>, Failure> {
    let deadline = Deadline::after(wait);
    while deadline.left() > LOOK_INTERVAL {
        match take(subscriber, LOOK_INTERVAL, interrupt) {
            Ok(None) if interrupt.came() => return Ok(None),
            Ok(None) if is_abandoned() => return Err(Failure::ClosedPipe),
            Ok(None) | Err(ReceiveError::Contended { .. }) => {}
            outcome => return Ok(outcome?),
        }
    }
    match take(subscriber, deadline.left(), interrupt) {
        Err(ReceiveError::Contended { .. }) => Ok(take(subscriber, CONTENTION, interrupt)?),
        // Over a wire a look that gives nothing may have been too short to fetch what is there.
        Ok(None) if !interrupt.came() && subscriber.report(false)?.sequence != Sequence::NONE => {
            Ok(take(subscriber, CONTENTION, interrupt)?)
        }
        outcome => Ok(outcome?),
    }
}

/// The next value. A publisher that laps the ring of a log before one has looked leaves newer records behind.
fn take(
    subscriber: &mut Subscription,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<Option<Value>, ReceiveError> {
    let mut taken = subscriber.take(timeout, interrupt, keep);
    for _ in 0..LAPS_MAX {
        let Err(ReceiveError::Lapped { .. }) = taken else { break };
        taken = subscriber.take(CONTENTION, interrupt, keep);
    }
    taken
}
