//! The newest values of a table.

use std::io::Write;
use std::time::Duration;

use fabricast::{AnySubscriber, DecodeError, Raw, ReceiveError, Sequence, Snapshot, SnapshotEntry};

use super::super::clock::Deadline;
use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::output::{hex_dump, is_abandoned, json_line};
use super::super::place::Place;
use super::super::printer::Form;
use super::super::subscription::{Value, keep, receive};
use super::super::value::{Schemas, ValueLine, key_text, len};
use super::newest::{CONTENTION, LOOK_INTERVAL, Newest, advice_to_wait, over};

/// How long to wait for the table to be read, before checking for signals.
const READ_INTERVAL: Duration = Duration::from_millis(1);
/// How long to try to read all entries as of one commit.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(3);

/// Reads the newest value of the only key that the subscriber receives, within this time.
pub(super) fn newest_of_key(
    subscriber: &mut AnySubscriber<Raw>,
    wait: Duration,
    interrupt: &Interrupt,
) -> Result<Newest<Value>, Failure> {
    let (deadline, reading) = (Deadline::after(wait), Deadline::after(CONTENTION));
    let newest = subscriber.newest_at_start();
    // A removal, or a damaged value, is newer than what had expired before.
    let mut expired_before = 0;
    let has_expired = |subscriber: &AnySubscriber<Raw>, before: u64| subscriber.stats().expired > before;
    loop {
        let is_read = subscriber.last() >= newest;
        let interval = if is_read { LOOK_INTERVAL } else { READ_INTERVAL };
        match receive(subscriber, interval.min(deadline.left()), interrupt, keep) {
            Ok(Some(value)) if value.key.as_ref().is_none_or(|key| !key.is_removed) => {
                return Ok(Newest::Value(value));
            }
            // A damaged entry may be that of another key. If it is that of this one, it is not found.
            Ok(Some(_))
            | Err(
                ReceiveError::Damaged { .. }
                | ReceiveError::BrokenStamps { .. }
                | ReceiveError::ImpossibleLen { .. },
            ) => {
                expired_before = subscriber.stats().expired;
                continue;
            }
            Ok(None) | Err(ReceiveError::Contended { .. }) => {}
            Err(ReceiveError::Ended { .. }) if has_expired(subscriber, expired_before) => {
                return Ok(Newest::Expired);
            }
            Err(ReceiveError::Ended { .. }) => return Ok(Newest::Ended),
            Err(error) => return Err(error.into()),
        }
        if interrupt.came() {
            return Ok(Newest::Nothing);
        }
        if is_abandoned() {
            return Err(Failure::ClosedPipe);
        }
        if deadline.is_over() {
            if subscriber.last() >= newest {
                let has_expired = has_expired(subscriber, expired_before);
                return Ok(if has_expired { Newest::Expired } else { Newest::Nothing });
            }
            if reading.is_over() {
                return Ok(Newest::Unread(newest));
            }
            interrupt.pause(READ_INTERVAL);
        }
    }
}

/// The failure if a table does not have a key: after this wait, or for good if it has ended.
pub(super) fn no_key(
    subscriber: &AnySubscriber<Raw>,
    target: &Place,
    key: &str,
    waited: Option<Duration>,
) -> Failure {
    let damaged = match subscriber {
        AnySubscriber::Table(table) if table.suspect_count() > 0 => {
            format!("; it has damaged entries ({}), whose keys are unknown", table.suspect_count())
        }
        _ => String::new(),
    };
    let what = waited.map_or_else(
        || "the topic has ended".to_owned(),
        |waited| {
            let (advice, condition) = (advice_to_wait(waited), target.condition());
            format!("{advice}{condition}, or print all keys with `fabricast get {target}`")
        },
    );
    Failure::new(Exit::No, format!("{target} has no key {key:?}{damaged}: {what}"))
}

/// All entries of a table as of one commit.
#[derive(Debug)]
pub(super) struct Entries {
    pub(super) sequence: Sequence,
    entries: Vec<SnapshotEntry<Vec<u8>, Vec<u8>>>,
    /// Entries that are missing.
    damaged: usize,
    /// Entries left out, because they are older than their lifespan.
    expired: usize,
}

impl Entries {
    /// Whether the table has no keys.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.damaged == 0
    }

    /// How many keys are left out, because their values have expired.
    pub(super) fn expired(&self) -> usize {
        self.expired
    }
}

/// Reads all entries of a table, waiting this long for the first one.
pub(super) fn all(
    subscriber: &mut AnySubscriber<Raw>,
    wait: Duration,
    interrupt: &Interrupt,
) -> Result<Newest<Entries>, Failure> {
    let deadline = Deadline::after(wait);
    loop {
        if let AnySubscriber::Table(table) = &mut *subscriber {
            let Snapshot { sequence, entries, expired, .. } = match table.snapshot(SNAPSHOT_TIMEOUT) {
                Err(ReceiveError::Ended { .. }) => return Ok(over(subscriber)),
                snapshot => snapshot?,
            };
            let entries = Entries { sequence, entries, damaged: table.suspect_count(), expired };
            if !entries.is_empty() || deadline.is_over() {
                return Ok(Newest::Value(entries));
            }
        }
        match receive(subscriber, deadline.left().min(LOOK_INTERVAL), interrupt, |_| ()) {
            _ if interrupt.came() => return Ok(Newest::Nothing),
            Ok(None) if is_abandoned() => return Err(Failure::ClosedPipe),
            Ok(_) | Err(ReceiveError::Contended { .. }) => {}
            Err(ReceiveError::Ended { .. }) => return Ok(over(subscriber)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Prints all keys of a table and their values.
pub(super) fn print_all(
    subscriber: &AnySubscriber<Raw>,
    target: &Place,
    Entries { entries, damaged, expired, .. }: Entries,
    form: Form,
) -> Result<Exit, Failure> {
    let schemas = Schemas::of(subscriber);
    let mut out = std::io::stdout().lock();
    for value in &in_order(entries, &schemas)? {
        let undecodable = |source| undecodable(value, source);
        match form {
            Form::Hex => {
                let content = schemas.decode_key(value).map_err(undecodable)?;
                writeln!(out, "{}{}", content.lead(), len(value))?;
                hex_dump(&mut out, &value.bytes)?;
            }
            form => {
                let content = schemas.decode(value).map_err(undecodable)?;
                match form {
                    Form::Json => json_line(&mut out, &ValueLine::new(subscriber.topic(), value, content))?,
                    _ => writeln!(out, "{}{}", content.lead(), content.line(value))?,
                }
            }
        }
    }
    out.flush()?;
    if expired > 0 {
        let left_out = match expired {
            1 => "1 key was left out, because its value has expired".to_owned(),
            expired => format!("{expired} keys were left out, because their values have expired"),
        };
        Failure::new(Exit::Done, format!("{target}: {left_out}")).note();
    }
    if damaged > 0 {
        let entries = if damaged == 1 { "1 entry is" } else { &format!("{damaged} entries are") };
        let sentence = format!("{entries} damaged in {target}, and missing here: check its publisher");
        return Err(Failure::new(Exit::No, sentence));
    }
    Ok(Exit::Done)
}

/// The entries in the order of their keys: numbers as numbers, all others as texts.
fn in_order(entries: Vec<SnapshotEntry<Vec<u8>, Vec<u8>>>, schemas: &Schemas) -> Result<Vec<Value>, Failure> {
    let keyed = entries.into_iter().map(|entry| {
        let value = Value::from(entry);
        let key = schemas.key(&value).map_err(|source| undecodable(&value, source))?;
        Ok((key.unwrap_or_default(), value))
    });
    let mut keyed: Vec<(serde_json::Value, Value)> = keyed.collect::<Result<_, Failure>>()?;
    keyed.sort_by_cached_key(|(key, _)| key_text(key));
    if keyed.iter().all(|(key, _)| key.is_number()) {
        let number = |key: &serde_json::Value| key.as_f64().unwrap_or_default();
        keyed.sort_by(|(one, _), (other, _)| number(one).total_cmp(&number(other)));
    }
    Ok(keyed.into_iter().map(|(_, value)| value).collect())
}

fn undecodable(value: &Value, source: DecodeError) -> Failure {
    Failure::of(Exit::No, &ReceiveError::Decode { sequence: value.meta.sequence, source })
}
