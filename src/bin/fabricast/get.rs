//! `fabricast get`: the newest value of a topic or key, or record of a log.

mod newest;
mod table;

use std::io::Write;
use std::time::Duration;

use clap::Args;
use fabricast::{AnySubscriber, ErrorChain, LogStart, Raw, ReceiveError, Sequence, Target};

use self::newest::{LOOK_INTERVAL, Newest, advice_to_wait, newest};
use self::table::Entries;
use super::clock::Deadline;
use super::failure::{Exit, Failure};
use super::feed::{is_feed, table_of};
use super::interrupt::Interrupt;
use super::keys::{keyless, only_key};
use super::news::{other_epoch, other_kind, other_type};
use super::output::{hex_dump, is_abandoned, json_line, shown};
use super::place::{Place, place};
use super::printer::{Form, FormArguments};
use super::setting::{Followable, LineArguments, RegionArguments, Setting};
use super::subscription::Value;
use super::units::duration;
use super::value::{Schemas, ValueLine};

const AFTER_HELP: &str = "\
The value is decoded with the topic's schema. For a log it is the newest record, for a table that
of KEY. Without KEY, all keys of a table are printed, as of one commit: a line is a key, a tab,
and its value. For a feed with KEY it is the key's value in the table of the feed, without KEY its
newest record. Time stamps in the value follow it, after a tab: see `fabricast --help`.

With --line, the topic has several publishers of the same values: the value is that of the one
that is ahead. A publisher that cannot be reached or read, or has another epoch, kind or type than
the first one, is reported and left out. A key that the one ahead has removed is not there, even if
others still have it.

With --wait, a node or topic that does not exist yet is waited for, too, except for a file. A file
does not hold the lifespan of its values: those that have expired are printed, too.

The exit code is 1 if nothing has been published yet, the table does not have the key, or the
topic ends without a value; 3 if there is no such node or topic, even after --wait; 130 if Ctrl-C
ends the wait.

With --json a value is one line
{\"topic\",\"key\",\"sequence\",\"epoch\",\"published_ns\",\"age_ns\",\"value\"}; raw bytes are in base64, with
\"encoding\":\"base64\". Of a table it also has \"number\", which counts the changes of the key. If
there are time stamps, \"timestamps\" has for the name of each {\"ns\",\"offset_ns\"}: its time since
the Unix epoch, and after the publish time.

Examples:
  fabricast get shm:quotes/EURUSD
  fabricast get shm:quotes/EURUSD --json | jq .value.bid
  fabricast get shm:camera/left --raw > frame.bin
  fabricast get shm:quotes/EURUSD --wait 10s
  fabricast get shm:quotes/fx EURUSD
  fabricast get shm:quotes/fx --json
  fabricast get shm:a/quotes EURUSD --line shm:b/quotes
  fabricast get file:/dev/shm/quotes-fx EURUSD               after its publisher has ended
  fabricast get shm:exchange/orders '[\"XETR\", 17]'";

/// Arguments of `get`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic, as in shm:NODE/TOPIC, or NODE/TOPIC for short; or the file of a publisher with --warm, as in file:/dev/shm/FILE.
    #[arg(value_parser = place, value_name = "TARGET")]
    target: Place,
    /// A key of a table or feed: a text as it is, any other key as JSON. Write `--` before a key that begins with a hyphen.
    key: Option<String>,
    #[command(flatten)]
    line: LineArguments,
    #[command(flatten)]
    region: RegionArguments,
    #[command(flatten)]
    form: FormArguments,
    /// Wait this long for a value, also for the topic or its node, if there is none yet.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0")]
    wait: Duration,
}

/// A publisher of the values, as it is read.
type Line = (AnySubscriber<Raw>, Place);

/// What is there.
#[derive(Debug)]
enum Found {
    /// A value, of the key if one was given.
    Value(Value),
    /// All keys of a table; they may be none.
    Table(Entries),
}

/// What a line knows.
#[derive(Clone, Copy, Debug)]
enum Standing {
    /// It has a value, of this commit.
    Has(Sequence),
    /// Up to this commit it has none.
    Lacks(Sequence),
    /// It has ended, or cannot be read.
    Unknown,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let (interrupt, deadline) = (Interrupt::install()?, Deadline::after(arguments.wait));
    let Some(mut lines) = awaited(arguments, setting, (&interrupt, deadline))? else {
        return Ok(Exit::Interrupted);
    };
    let form = arguments.form.form();
    for (subscriber, target) in &mut lines {
        match (&mut *subscriber, &arguments.key) {
            (AnySubscriber::Table(_), None) if form == Form::Raw => {
                let sentence =
                    format!("--raw prints one value of {target}: give a KEY, or use --hex or --json");
                return Err(Failure::usage(sentence));
            }
            (AnySubscriber::Table(table), Some(key)) => only_key(table, key),
            (_, Some(_)) => return Err(keyless(subscriber, target, "KEY")),
            (_, None) => {}
        }
    }
    // Only one line can be waited for.
    let wait = if lines.len() == 1 { deadline.left() } else { Duration::ZERO };
    let (line, found) = loop {
        match answer(&mut lines, arguments, wait, &interrupt) {
            Err(failures) if lines.len() == 1 || deadline.is_over() => return Err(first_of(failures)),
            Err(failures) if failures.is_empty() => return Err(Failure::ClosedPipe),
            Err(_) if interrupt.pause(LOOK_INTERVAL.min(deadline.left())) => return Ok(Exit::Interrupted),
            Err(_) => {}
            Ok(None) => return Ok(Exit::Interrupted),
            Ok(Some(answer)) => break answer,
        }
    };
    // Not tried again if it fails: what was printed cannot be taken back.
    let (subscriber, target) = lines.swap_remove(line);
    match found {
        Found::Value(value) => print(&subscriber, &value, form),
        Found::Table(entries) => table::print_all(&subscriber, &target, entries, form),
    }
}

/// Returns the newest value, of the key or of all, of the first line that has one, and the line's place. Waits for it this long; `None` if
/// the process was interrupted. A line that was read, and has none, answers for the other lines up to the same commit: what they still have
/// was removed. Otherwise returns why there is no value, and then why other lines have none; nothing if nobody reads the output.
fn answer(
    lines: &mut [Line],
    arguments: &Arguments,
    wait: Duration,
    interrupt: &Interrupt,
) -> Result<Option<(usize, Found)>, Vec<Failure>> {
    let (mut lacking, mut unread, mut empty) = (None::<(Sequence, Failure)>, Vec::new(), Vec::new());
    for (line, (subscriber, target)) in lines.iter_mut().enumerate() {
        let found = match look(subscriber, arguments, wait, interrupt) {
            Ok(found) => found,
            Err(Failure::ClosedPipe) => return Err(Vec::new()),
            Err(failure) => {
                unread.push(failure);
                continue;
            }
        };
        if !matches!(found, Newest::Value(_)) && interrupt.came() {
            return Ok(None);
        }
        let removed = lacking.as_ref().map(|(until, _)| *until);
        match (found.standing(subscriber), found) {
            (Standing::Has(sequence), Newest::Value(found)) if Some(sequence) > removed => {
                for failure in unread {
                    Failure::new(failure.exit(), format!("{failure}; other lines are read")).note();
                }
                return Ok(Some((line, found)));
            }
            (Standing::Has(_), _) => {}
            // A line to which nothing was published knows least.
            (Standing::Lacks(Sequence::NONE), found) => {
                empty.push(found.failure(subscriber, target, arguments));
            }
            (Standing::Lacks(until), _) if removed.is_some_and(|removed| removed >= until) => {}
            (Standing::Lacks(until), found) => {
                lacking = Some((until, found.failure(subscriber, target, arguments)))
            }
            (Standing::Unknown, found) => unread.push(found.failure(subscriber, target, arguments)),
        }
    }
    if lacking.is_some() {
        empty.clear();
    }
    Err(lacking.map(|(_, failure)| failure).into_iter().chain(unread).chain(empty).collect())
}

/// Reads the newest value, of the key or of all, waiting for it this long.
fn look(
    subscriber: &mut AnySubscriber<Raw>,
    arguments: &Arguments,
    wait: Duration,
    interrupt: &Interrupt,
) -> Result<Newest<Found>, Failure> {
    match (&subscriber, &arguments.key) {
        (AnySubscriber::Table(_), None) => Ok(table::all(subscriber, wait, interrupt)?.map(Found::Table)),
        (_, Some(_)) => Ok(table::newest_of_key(subscriber, wait, interrupt)?.map(Found::Value)),
        (_, None) => Ok(newest(subscriber, wait, interrupt)?.map(Found::Value)),
    }
}

impl Newest<Found> {
    /// What a line with this outcome knows.
    fn standing(&self, subscriber: &AnySubscriber<Raw>) -> Standing {
        match (self, subscriber) {
            (Self::Value(Found::Value(value)), _) => Standing::Has(value.meta.sequence),
            (Self::Value(Found::Table(table)), _) if table.is_empty() => Standing::Lacks(table.sequence),
            (Self::Value(Found::Table(table)), _) => Standing::Has(table.sequence),
            // A damaged entry may be that of the key.
            (Self::Nothing | Self::Expired, AnySubscriber::Table(table)) if table.suspect_count() == 0 => {
                Standing::Lacks(table.last())
            }
            (Self::Nothing, AnySubscriber::Table(_)) => Standing::Unknown,
            (Self::Nothing, _) => Standing::Lacks(Sequence::NONE),
            (Self::Ended | Self::Unread(_) | Self::Expired, _) => Standing::Unknown,
        }
    }

    /// The failure for an outcome without a value.
    fn failure(&self, subscriber: &AnySubscriber<Raw>, target: &Place, arguments: &Arguments) -> Failure {
        let instead = || {
            let advice = advice_to_wait(arguments.wait);
            match target.condition() {
                "" => format!("{advice}, or watch the topic with `fabricast watch`"),
                condition => format!("{advice}{condition}"),
            }
        };
        let has_keys = matches!(subscriber, AnySubscriber::Table(_)) && arguments.key.is_none();
        let sentence = match (self, &arguments.key) {
            (Self::Nothing, Some(key)) => {
                return table::no_key(subscriber, target, key, Some(arguments.wait));
            }
            (Self::Ended, Some(key)) => return table::no_key(subscriber, target, key, None),
            (Self::Ended, _) if has_keys => format!("{target} has no keys: the topic has ended"),
            (Self::Ended, _) => format!("nothing arrived from {target}: the topic has ended"),
            (Self::Expired, key) => {
                let of_key = key.as_ref().map_or_else(String::new, |key| format!("key {key:?} of "));
                format!(
                    "the newest value of {of_key}{target} has expired: it is older than its lifespan of {}",
                    lifespan(subscriber)
                )
            }
            (Self::Value(Found::Table(table)), _) if table.expired() > 0 => {
                format!(
                    "all values of {target} have expired: they are older than their lifespan of {}",
                    lifespan(subscriber)
                )
            }
            (Self::Unread(sequence), _) => {
                format!(
                    "value {sequence} of {target} cannot be read: it may be damaged, or of an earlier publisher"
                )
            }
            _ if has_keys => format!("{target} has no keys: {}", instead()),
            _ => format!("nothing has been published to {target} yet: {}", instead()),
        };
        Failure::new(Exit::No, sentence)
    }
}

/// The lifespan of a topic's values.
fn lifespan(subscriber: &AnySubscriber<Raw>) -> String {
    shown(subscriber.lifespan().unwrap_or_default())
}

/// The first of some failures. The others are only reported.
fn first_of(failures: Vec<Failure>) -> Failure {
    let mut failures = failures.into_iter();
    let first = failures.next();
    failures.for_each(|failure| failure.note());
    first.unwrap_or(Failure::ClosedPipe)
}

/// Attaches to the lines, of which one may not be there until the deadline. `None` if the process was interrupted before.
fn awaited(
    arguments: &Arguments,
    setting: &Setting,
    (interrupt, deadline): (&Interrupt, Deadline),
) -> Result<Option<Vec<Line>>, Failure> {
    arguments.target.check(&arguments.line)?;
    let lines = arguments.line.of(&arguments.target)?;
    if let Some(line) = subscribe_in_file(&arguments.target, arguments)? {
        return Ok(Some(vec![line]));
    }
    loop {
        let failures = match subscribe(lines, arguments, setting) {
            Ok(lines) => return Ok(Some(lines)),
            Err(failures) => failures,
        };
        let is_absence = |failure: &Failure| matches!(failure.exit(), Exit::Unreachable | Exit::Gone);
        if !failures.iter().any(is_absence) || arguments.wait.is_zero() {
            return Err(first_of(failures));
        }
        if deadline.is_over() {
            let failure = first_of(failures);
            let sentence = format!("{failure}; waited {} for it", shown(arguments.wait));
            return Err(Failure::new(failure.exit(), sentence));
        }
        if is_abandoned() {
            return Err(Failure::ClosedPipe);
        }
        if interrupt.pause(LOOK_INTERVAL.min(deadline.left())) {
            return Ok(None);
        }
    }
}

/// Attaches to the lines that can be reached, and returns those of one epoch, kind and type, the ones ahead first. At least one;
/// otherwise why there is none.
fn subscribe(
    lines: Followable<'_>,
    arguments: &Arguments,
    setting: &Setting,
) -> Result<Vec<Line>, Vec<Failure>> {
    let (mut found, mut failures) = (Vec::<Line>::new(), Vec::new());
    for target in std::iter::once(lines.first).chain(lines.others) {
        match subscribe_to(target, arguments, setting) {
            Ok(line) => match found.first().and_then(|first| difference(&line, first)) {
                Some(what) => failures.push(Failure::new(Exit::No, format!("{target}: {what}"))),
                None => found.push(line),
            },
            Err(failure) => failures.push(failure),
        }
    }
    if found.is_empty() {
        return Err(failures);
    }
    for failure in failures {
        Failure::new(failure.exit(), format!("{failure}; other lines are read")).note();
    }
    found.sort_by_key(|(subscriber, _)| std::cmp::Reverse(subscriber.newest_at_start()));
    Ok(found)
}

/// Why a line is not one with this other one.
fn difference((line, _): &Line, (other, target): &Line) -> Option<String> {
    if line.kind() != other.kind() {
        return Some(other_kind(line.kind(), other.kind()));
    }
    let (epoch, expected) = (line.epoch(), other.epoch());
    if epoch != expected {
        return Some(other_epoch(Some(epoch), expected));
    }
    let types = other_type(line.schema(), (target, other.schema()))?;
    Some(format!("{types}; it is left out: publish all with the same type"))
}

/// Attaches to the topic, or to the table of a feed for one of its keys.
fn subscribe_to(target: &Target, arguments: &Arguments, setting: &Setting) -> Result<Line, Failure> {
    let node = setting.reader(&target.address)?;
    let attach = |target: &Target| setting.attach(&node, target, LogStart::Back(1), arguments.region);
    let subscriber = attach(target)?;
    let table = arguments.key.as_ref().filter(|_| is_feed(&subscriber)).and_then(|_| table_of(target));
    match table {
        Some(table) => Ok((attach(&table)?, table.into())),
        None => Ok((subscriber, target.clone().into())),
    }
}

/// Does the same in a repository file. `None` if the topic is at a node.
fn subscribe_in_file(place: &Place, arguments: &Arguments) -> Result<Option<Line>, Failure> {
    let Some(subscriber) = place.subscriber(LogStart::Back(1))? else { return Ok(None) };
    match place.table().filter(|_| arguments.key.is_some() && is_feed(&subscriber)) {
        Some(table) => subscribe_in_file(&table, arguments),
        None => Ok(Some((subscriber, place.clone()))),
    }
}

fn print(subscriber: &AnySubscriber<Raw>, value: &Value, form: Form) -> Result<Exit, Failure> {
    let schemas = Schemas::of(subscriber);
    let mut out = std::io::stdout().lock();
    let undecodable = |source| {
        let error = ReceiveError::Decode { sequence: value.meta.sequence, source };
        Failure::new(Exit::No, format!("{}; --raw and --hex show its bytes", ErrorChain(&error)))
    };
    match form {
        Form::Raw => {
            out.write_all(&value.bytes)?;
            out.flush()?;
        }
        Form::Hex => hex_dump(&mut out, &value.bytes)?,
        Form::Json => {
            let content = schemas.decode(value).map_err(undecodable)?;
            json_line(&mut out, &ValueLine::new(subscriber.topic(), value, content))?;
        }
        Form::Text => {
            let content = schemas.decode(value).map_err(undecodable)?;
            // Of a table, the user gave the key.
            let lead = if value.key.is_some() { String::new() } else { content.lead() };
            writeln!(out, "{lead}{}", content.line(value))?;
        }
    }
    Ok(Exit::Done)
}
