//! The arguments of `fabricast tail`.

use std::ops::RangeInclusive;
use std::time::Duration;

use clap::Args;
use fabricast::{LogStart, Sequence};

use super::super::arrivals::Arrivals;
use super::super::failure::{Exit, Failure};
use super::super::keys::KeyArguments;
use super::super::place::{Place, place};
use super::super::printer::{Decodable, FormArguments, Printer};
use super::super::setting::{LineArguments, RegionArguments};
use super::super::units::{duration, number_in, some_time};

/// All sequences and counts.
const ALL: RangeInclusive<u64> = 0..=u64::MAX;

/// How long to wait for an existing record: it may come over a wire.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

const AFTER_HELP: &str = "\
A line is the sequence of a record, its age when printed, and the record. Without --follow the
command ends with the record that was the newest at its start; with --follow it continues with
later ones. Records overwritten before they were read are counted on a line of their own. With
--from, the count includes all from that sequence on. Records older than their lifespan are left
out, which is not an error; standard error has their number, of a feed that of all keys, except
with --line. A file does not hold the lifespan: there they are shown.

A publisher waits for subscribers only in programs (`SlowPolicy`) and in `perf stream --policy`.

Time stamps in the record come before it: see `fabricast --help`.

Of a feed, a record is its key, a tab and its value. Behind the last record of an event there are
a tab and `end of event`, and `key removed` behind one that removes its key. With --key, --last
counts records of the keys that match; a loss may be one of records of any keys.

Of a table, the keys that changed last are shown, with their newest values: key and value are
separated by a tab. --last counts keys, --from is a commit, and --earliest shows all keys. With
--follow each key that changes is shown, and `removed` in place of the value of a removed key; keys
that changed meanwhile come in any order.

With --json a record is one line
{\"topic\",\"key\",\"sequence\",\"epoch\",\"published_ns\",\"age_ns\",\"value\"}, and a loss
{\"topic\",\"lost\",\"first_lost\",\"reason\"}: the reason is lapped (overwritten), damaged, undecodable
or cut off (the connection was lost first). For tables see `fabricast watch --help`. Of a feed,
\"key\" is that of the record, and \"value\" has all of
{\"previous\",\"ends_event\",\"removes_key\",\"key\",\"value\"}: previous is the sequence of the key's
record before, or 0. If there are time stamps, \"timestamps\" has for the name of each
{\"ns\",\"offset_ns\"}: its time since the Unix epoch, and after the publish time (negative before).
With --raw the bytes of records follow each other without separators, and losses go to standard
error. With --follow, standard error has the sum of the losses of a log at the end.

With --follow, when the publisher is gone, or ends the topic, the command waits for the next one:
one of the same epoch continues after the last record, and of any other all records are shown. A
topic that does not exist yet is waited for, and shown from the first record of its publisher on.
Standard error says so, and when a publisher hangs and when it runs again; with --json there are
lines {\"topic\",\"event\",\"epoch\"}: see `fabricast watch --help`.
With --until-end the command ends with the publisher. With --line, several publishers of the same
values are lines of one topic: see `fabricast watch --help`.

The exit code is 0 when it is done, after --count records, and at Ctrl-C; 1 when no record arrived
within --for, or, without --follow, when a record is damaged, does not fit the topic's type or could
not be read any more, when --from is beyond the newest record, or no key that matches --key was
found; 5 when a publisher of this host is hung at the start, or no record arrived within --for
because it is. Without --follow, or with --until-end, it is 0 or 1 when the topic ends in good order
after a record or without one; 3 when the topic does not exist; 6 when the publisher's process is
gone.

Examples:
  fabricast tail shm:exchange/trades                         the last 10 records
  fabricast tail shm:exchange/trades --earliest --json       every available record
  fabricast tail shm:exchange/trades --from 1000 --count 5   records 1000 to 1004
  fabricast tail shm:exchange/trades --last 0 --follow       records published from now on
  fabricast tail shm:exchange/trades --follow --until-end    until the publisher ends
  fabricast tail shm:camera/frames --last 1 --raw > frame.bin
  fabricast tail shm:quotes/fx --last 3 --follow --key 'EUR*'
  fabricast tail shm:exchange/orders --last 3 --follow --key AAPL
  fabricast tail shm:a/trades --line shm:b/trades --follow
  fabricast tail file:/dev/shm/trades --earliest             after its publisher has ended";

/// Arguments of `tail`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic, a log, table or feed, as in shm:NODE/TOPIC, or NODE/TOPIC for short; or the file of a publisher with --warm, as in
    /// file:/dev/shm/FILE.
    #[arg(value_parser = place, value_name = "TARGET")]
    pub(super) target: Place,
    #[command(flatten)]
    pub(super) line: LineArguments,
    #[command(flatten)]
    pub(super) keys: KeyArguments,
    /// Begin this many records before the next one, or with the oldest available.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = number_in::<u64>(ALL))]
    pub(super) last: u64,
    /// Begin with the record of this sequence.
    #[arg(long, value_name = "SEQ", conflicts_with_all = ["last", "earliest"], value_parser = number_in::<u64>(ALL))]
    pub(super) from: Option<u64>,
    /// Begin with the oldest record available.
    #[arg(long, conflicts_with = "last")]
    pub(super) earliest: bool,
    /// Continue with records published later.
    #[arg(long, short)]
    pub(super) follow: bool,
    /// With --follow, end when the topic ends or its publisher is gone, instead of waiting for the next publisher.
    #[arg(long, requires = "follow")]
    pub(super) until_end: bool,
    /// With --follow, report when no record has come for this time: seconds, or with a unit, as in 500ms.
    #[arg(long, value_name = "TIME", value_parser = some_time, requires = "follow")]
    pub(super) deadline: Option<Duration>,
    /// End after this many records.
    #[arg(long, value_name = "N", value_parser = number_in::<u64>(1..=u64::MAX))]
    pub(super) count: Option<u64>,
    /// End after this time: seconds, or with a unit, as in 5s or 1m30s.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(super) duration: Option<Duration>,
    /// Have the publisher write the records here, instead of reading them there.
    #[arg(long)]
    pub(super) push: bool,
    #[command(flatten)]
    pub(super) region: RegionArguments,
    #[command(flatten)]
    pub(super) form: FormArguments,
}

impl Arguments {
    /// Where it begins.
    pub(super) fn start(&self) -> LogStart {
        match self.from {
            Some(sequence) => LogStart::At(Sequence::new(sequence)),
            None if self.earliest || (self.keys.is_some() && self.counts_back()) => LogStart::Earliest,
            None => LogStart::Back(self.last),
        }
    }

    /// Whether it ends with the publisher.
    pub(super) fn is_until_end(&self) -> bool {
        self.until_end || !self.follow
    }

    /// The outcome without --follow, after what was printed of records or keys.
    pub(super) fn outcome(
        &self,
        printer: &Printer,
        what: &str,
        arrivals: &Arrivals<'_>,
    ) -> Result<Exit, Failure> {
        self.success(printer, what, arrivals.expired() > 0).map_err(|failure| {
            arrivals.note_expired();
            arrivals.failed(failure)
        })
    }

    fn success(&self, printer: &Printer, what: &str, has_expired: bool) -> Result<Exit, Failure> {
        let shown = printer.shown();
        if !self.follow && printer.damaged() > 0 {
            let (damaged, target) = (printer.damaged(), &self.target);
            let values = if damaged == 1 { "1 value is" } else { &format!("{damaged} values are") };
            let sentence = format!("{values} damaged or undecodable in {target}: check its publisher");
            return Err(Failure::new(Exit::No, sentence));
        }
        if !self.follow && printer.cut_off() > 0 {
            let (lost, target) = (printer.cut_off(), &self.target);
            // Of a table it is how many commits were not read, which is not how many keys.
            let missing = match (what, lost) {
                ("key", _) => "changed keys",
                (_, 1) => "1 record",
                (_, lost) => &format!("{lost} records"),
            };
            let sentence = format!(
                "{missing} of {target} could not be read: the publisher was lost, or the file was cut or is damaged"
            );
            return Err(Failure::new(Exit::No, sentence));
        }
        let Some(pattern) = self.keys.pattern() else { return Ok(Exit::Done) };
        if self.follow || shown > 0 || (self.last == 0 && self.from.is_none() && !self.earliest) {
            return Ok(Exit::Done);
        }
        let range = self.from.map_or_else(String::new, |from| format!(" from {from} on"));
        let sentence = format!(
            "{} has no {what} that matches {pattern}{range}{}: check --key{}",
            self.target,
            if has_expired { " and has not expired" } else { "" },
            if self.target.is_file() { "" } else { ", or use --follow to wait for one" }
        );
        Err(Failure::new(Exit::No, sentence))
    }

    /// Whether it begins some records before the next one.
    pub(super) fn counts_back(&self) -> bool {
        self.from.is_none() && !self.earliest && self.last > 0
    }

    /// How many of the keys that changed first are left out.
    pub(super) fn skipped(&self, values: &[Decodable]) -> usize {
        match self.from {
            Some(from) => values.partition_point(|(value, _)| value.meta.sequence.get() < from),
            None if self.earliest => 0,
            None => values.len().saturating_sub(usize::try_from(self.last).unwrap_or(usize::MAX)),
        }
    }
}

/// The failure if what `--from` names does not exist yet.
pub(super) fn not_yet(target: &Place, (what, from): (&str, u64), newest: Sequence) -> Failure {
    let sentence = match newest.get() {
        0 if target.is_file() => format!("{target} is empty"),
        newest if target.is_file() => format!("{target} has no {what} {from} (newest: {newest})"),
        0 => format!("{target} is empty: use --follow to wait for {what} {from}"),
        newest => {
            format!("{target} has no {what} {from} yet (newest: {newest}): use --follow to wait for it")
        }
    };
    Failure::new(Exit::No, sentence)
}
