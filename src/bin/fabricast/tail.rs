//! `fabricast tail`: the records of a log, including earlier ones.

use std::time::Duration;

use clap::Args;
use fabricast::{AnySubscriber, Delivery, LogStart, Node, Sequence, Target};

use super::clock::Deadline;
use super::failure::{Exit, Failure};
use super::feed::{Event, Feed};
use super::interrupt::Interrupt;
use super::printer::{FormArguments, Printer};
use super::setting::{Setting, target};
use super::subscription::keep;
use super::units::duration;

/// How long to wait for an existing record: it may come over a wire.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

const AFTER_HELP: &str = "\
A line is the sequence of a record, its age when printed, and the record. Without --follow the command
ends with the record that was the newest at its start; with --follow it continues with later ones.
Records overwritten before they were read are counted on a line of their own. With --from, the count includes all from that sequence on.

With --json a record is one line
{\"topic\",\"key\",\"sequence\",\"epoch\",\"published_ns\",\"age_ns\",\"value\"}, and a loss
{\"topic\",\"lost\",\"first_lost\",\"reason\"}: the reason is lapped (overwritten), damaged, undecodable or
cut off (the connection was lost first).
With --raw the bytes of records follow each other without separators, and losses go to standard error.

The exit code is 0 when it is done, after --count records, at Ctrl-C, and when the topic ends in good
order after a record; 1 when no record arrived within --for or before the end of the topic, or when
--from is beyond the newest record without --follow; 5 when no record arrived within --for and the
publisher is hung; 6 when the publisher's process is gone.

Examples:
  fabricast tail shm:exchange/trades                         the last 10 records
  fabricast tail shm:exchange/trades --earliest --json       every available record
  fabricast tail shm:exchange/trades --from 1000 --count 5   records 1000 to 1004
  fabricast tail shm:exchange/trades --last 0 --follow       records published from now on
  fabricast tail shm:camera/frames --last 1 --raw > frame.bin";

/// Arguments of `tail`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The log topic, as in shm:NODE/TOPIC, or NODE/TOPIC for short.
    #[arg(value_parser = target)]
    target: Target,
    /// Begin this many records before the next one, or with the oldest available.
    #[arg(long, value_name = "N", default_value_t = 10)]
    last: u64,
    /// Begin with the record of this sequence.
    #[arg(long, value_name = "SEQ", conflicts_with_all = ["last", "earliest"])]
    from: Option<u64>,
    /// Begin with the oldest record available.
    #[arg(long, conflicts_with = "last")]
    earliest: bool,
    /// Continue with records published later.
    #[arg(long, short)]
    follow: bool,
    /// End after this many records.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time: seconds, or with a unit, as in 5s or 1m30s.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    /// Have the publisher write the records here, instead of reading them there.
    #[arg(long)]
    push: bool,
    #[command(flatten)]
    form: FormArguments,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let target = &arguments.target;
    let node = setting.reader(&target.address)?;
    let delivery = if arguments.push { Delivery::Push } else { Delivery::Pull };
    let subscriber = setting.attach(&node, target, delivery, arguments.start())?;
    if !matches!(subscriber, AnySubscriber::Log(_)) {
        let (found, instead) = (subscriber.kind(), "`fabricast get` and `fabricast watch` show its values");
        let sentence = format!("{target} is a {found} topic, which holds no records: {instead}");
        return Err(Failure::usage(sentence));
    }
    // Attached before the end is known, so that no record is missed between the two.
    let until = if arguments.follow { None } else { Some(newest(&node, target)?) };
    if let (Some(from), Some(newest)) = (arguments.from, until.filter(|until| until.get() != u64::MAX))
        && from > newest.get()
    {
        let sentence = match newest.get() {
            0 => format!("{target} is empty: use --follow to wait for record {from}"),
            newest => {
                format!("{target} has no record {from} yet (newest: {newest}): use --follow to wait for it")
            }
        };
        return Err(Failure::new(Exit::No, sentence));
    }
    // Only now: until here Ctrl-C has its default effect.
    let interrupt = Interrupt::install()?;
    let mut printer = Printer::new(&subscriber, arguments.form.form());
    let mut feed = Feed::new(subscriber, (target, "following"), arguments.duration, &interrupt);
    let mut idle = Deadline::after(ANSWER_TIMEOUT);
    let is_done = |feed: &Feed<'_>, printer: &Printer| {
        let last = feed.subscriber.last();
        until.is_some_and(|until| last >= until) || arguments.count == Some(printer.shown())
    };
    while !is_done(&feed, &printer) {
        match feed.next(keep)? {
            Event::Value(value, _) => printer.value(&value)?,
            Event::Lost(_, lost) => printer.loss(lost)?,
            Event::Nothing if until.is_some() && idle.is_over() => {
                let next = feed.subscriber.last().next();
                let sentence =
                    format!("records of {target} from {next} on cannot be read: they may be damaged");
                return Err(Failure::new(Exit::No, sentence));
            }
            Event::Nothing => continue,
            Event::Over(why) if printer.shown() == 0 => return Err(feed.nothing(&why)),
            Event::Over(_) | Event::Interrupted => break,
        }
        idle = Deadline::after(ANSWER_TIMEOUT);
    }
    Ok(Exit::Done)
}

/// The newest record.
fn newest(node: &Node, target: &Target) -> Result<Sequence, Failure> {
    let directory = node.directory_timeout(&target.address, ANSWER_TIMEOUT)?;
    let listing = directory.topics.into_iter().find(|listing| listing.topic == target.topic);
    // It has ended since: all its records are there, followed by the end.
    Ok(listing.map_or(Sequence::new(u64::MAX), |listing| listing.sequence))
}

impl Arguments {
    /// Where it begins.
    fn start(&self) -> LogStart {
        match self.from {
            Some(sequence) => LogStart::At(Sequence::new(sequence)),
            None if self.earliest => LogStart::Earliest,
            None => LogStart::Back(self.last),
        }
    }
}
