//! `fabricast get`: the newest value of a topic, or record of a log.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use fabricast::{
    AnySubscriber, Delivery, ErrorChain, LogStart, Raw, ReceiveError, Sequence, Target, TopicReport,
};

use super::clock::Deadline;
use super::failure::{Exit, Failure};
use super::interrupt::Interrupt;
use super::output::{hex_dump, is_abandoned, json_line};
use super::printer::{Form, FormArguments};
use super::setting::{Setting, target};
use super::subscription::{Value, keep, receive};
use super::units::duration;
use super::value::{ValueLine, text};

/// How long to try to read an existing value: it may be overwritten during each read, or come over a wire.
const CONTENTION: Duration = Duration::from_secs(1);
/// How long to wait for a value before checking for signals.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often a publisher may lap the ring of a log before the first read, until that is an error.
const LAPS_MAX: u32 = 16;

const AFTER_HELP: &str = "\
The value is decoded with the topic's schema. For a log it is the newest record. The exit code is 1 if
nothing has been published yet or the topic ends without a value, 130 if Ctrl-C ends the wait.

With --json the value is one line
{\"topic\",\"key\",\"sequence\",\"epoch\",\"published_ns\",\"age_ns\",\"value\"}; raw bytes are in base64, with
\"encoding\":\"base64\".

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
    #[command(flatten)]
    form: FormArguments,
    /// Wait this long for a value if nothing has been published yet.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0")]
    wait: Duration,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let target = &arguments.target;
    let mut subscriber = setting.subscribe_any(target, Delivery::Pull, LogStart::Back(1))?;
    let interrupt = Interrupt::install()?;
    let sample = match newest(&mut subscriber, arguments.wait, &interrupt)? {
        Newest::Value(sample) => sample,
        _ if interrupt.came() => return Ok(Exit::Interrupted),
        Newest::Nothing => {
            let what = "wait for a value with --wait TIME, or for more than one with `fabricast watch`";
            return Err(Failure::new(
                Exit::No,
                format!("nothing has been published to {target} yet: {what}"),
            ));
        }
        Newest::Ended => {
            return Err(Failure::new(Exit::No, format!("nothing arrived from {target}: it has ended")));
        }
        Newest::Unread(sequence) => {
            let sentence = format!("value {sequence} of {target} cannot be read: it may be damaged");
            return Err(Failure::new(Exit::No, sentence));
        }
    };
    let mut out = std::io::stdout().lock();
    let undecodable = |source| {
        let error = ReceiveError::Decode { sequence: sample.meta.sequence, source };
        Failure::new(Exit::No, format!("{}; --raw and --hex show its bytes", ErrorChain(&error)))
    };
    match arguments.form.form() {
        Form::Raw => {
            out.write_all(&sample.bytes)?;
            out.flush()?;
        }
        Form::Hex => hex_dump(&mut out, &sample.bytes)?,
        Form::Json => {
            let line = ValueLine::new(subscriber.topic(), subscriber.schema(), &sample);
            json_line(&mut out, &line.map_err(undecodable)?)?;
        }
        Form::Text => writeln!(out, "{}", text(subscriber.schema(), &sample).map_err(undecodable)?)?,
    }
    Ok(Exit::Done)
}

/// The outcome of reading the newest value.
#[derive(Debug, PartialEq)]
enum Newest<V> {
    Value(V),
    /// Nothing has been published.
    Nothing,
    /// The topic has ended without a value.
    Ended,
    /// This value existed before the last read, which failed.
    Unread(Sequence),
}

/// Reads the newest value within this time.
fn newest(
    subscriber: &mut AnySubscriber<Raw>,
    wait: Duration,
    interrupt: &Interrupt,
) -> Result<Newest<Value>, Failure> {
    let deadline = Deadline::after(wait);
    while deadline.left() > LOOK_INTERVAL {
        match take(subscriber, LOOK_INTERVAL, interrupt) {
            Ok(None) if interrupt.came() => return Ok(Newest::Nothing),
            Ok(None) if is_abandoned() => return Err(Failure::ClosedPipe),
            Ok(None) | Err(ReceiveError::Contended { .. }) => {}
            Ok(Some(value)) => return Ok(Newest::Value(value)),
            Err(ReceiveError::Ended { .. }) => return Ok(Newest::Ended),
            Err(error) => return Err(error.into()),
        }
    }
    last_looks(
        subscriber,
        |subscriber, again| {
            let timeout = if again { CONTENTION } else { deadline.left() };
            if again && interrupt.came() { Ok(None) } else { take(subscriber, timeout, interrupt) }
        },
        |subscriber| Ok(TopicReport::of(subscriber)?.sequence),
    )
}

/// Reads once, and once more if there is a value: over a wire the first read may have been too short.
fn last_looks<S, V>(
    subscriber: &mut S,
    mut look: impl FnMut(&mut S, bool) -> Result<Option<V>, ReceiveError>,
    sequence: impl FnOnce(&mut S) -> Result<Sequence, Failure>,
) -> Result<Newest<V>, Failure> {
    match look(subscriber, false) {
        Ok(Some(value)) => return Ok(Newest::Value(value)),
        Ok(None) | Err(ReceiveError::Contended { .. }) => {}
        Err(ReceiveError::Ended { .. }) => return Ok(Newest::Ended),
        Err(error) => return Err(error.into()),
    }
    // Asked before the last read: a value published later need not be readable.
    let sequence = sequence(subscriber)?;
    if sequence == Sequence::NONE {
        return Ok(Newest::Nothing);
    }
    Ok(look(subscriber, true)?.map_or(Newest::Unread(sequence), Newest::Value))
}

/// Takes the next value. A publisher that laps the ring of a log before the first read leaves newer records.
fn take(
    subscriber: &mut AnySubscriber<Raw>,
    timeout: Duration,
    interrupt: &Interrupt,
) -> Result<Option<Value>, ReceiveError> {
    let mut taken = receive(subscriber, timeout, interrupt, keep);
    for _ in 0..LAPS_MAX {
        let Err(ReceiveError::Lapped { .. }) = taken else { break };
        taken = receive(subscriber, CONTENTION, interrupt, keep);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of a topic, given its newest sequences at the first read, at the question for its sequence, and at the last
    /// read.
    fn found(newest: [u64; 3], finds: bool) -> Newest<u64> {
        let mut times = newest.into_iter();
        let look = |times: &mut std::array::IntoIter<u64, 3>, _| {
            let newest = times.next().filter(|newest| *newest > 0);
            Ok(newest.filter(|_| finds))
        };
        last_looks(&mut times, look, |times| Ok(times.next().map_or(Sequence::NONE, Sequence::new))).unwrap()
    }

    #[test]
    fn value_published_during_the_reads_is_not_damaged() {
        assert_eq!(found([0, 0, 0], true), Newest::Nothing);
        assert_eq!(found([0, 0, 1], true), Newest::Nothing);
        assert_eq!(found([0, 1, 1], true), Newest::Value(1));
        assert_eq!(found([1, 1, 1], true), Newest::Value(1));
        assert_eq!(found([1, 1, 2], false), Newest::Unread(Sequence::new(1)));
    }

    #[test]
    fn topic_that_ended_without_a_value_is_told_apart() {
        let ended = |_: &mut (), _| Err::<Option<u8>, _>(ReceiveError::Ended { published: Sequence::NONE });
        assert_eq!(last_looks(&mut (), ended, |()| unreachable!()).unwrap(), Newest::Ended);
    }
}
