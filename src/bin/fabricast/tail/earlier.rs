//! What was published before the command started.

use std::collections::VecDeque;

use fabricast::{AnySubscriber, Raw, Sequence};

use super::super::arrivals::{Arrival, Arrivals, Loss};
use super::super::clock::Deadline;
use super::super::failure::{Exit, Failure};
use super::super::keys::KeyFilter;
use super::super::printer::Decodable;
use super::super::subscription::{Value, keep};
use super::arguments::{ANSWER_TIMEOUT, Arguments};

/// What was published before.
#[derive(Debug)]
pub(super) enum Earlier<'a> {
    Value(Value),
    Lost(Loss),
    /// The values that follow are those of this subscriber; of another epoch, if it is a new one.
    Found(&'a AnySubscriber<Raw>, bool),
}

/// Takes values and losses up to this sequence, or up to the newest one of another epoch if the lines go over to that. Returns the end, if
/// it came first.
pub(super) fn earlier(
    arrivals: &mut Arrivals<'_>,
    newest: &mut Sequence,
    arguments: &Arguments,
    mut take: impl FnMut(Earlier<'_>) -> Result<(), Failure>,
) -> Result<Option<Arrival<Value>>, Failure> {
    let mut idle = Deadline::after(ANSWER_TIMEOUT);
    // With --follow, values still expected from another line come, or are reported, later.
    while arrivals.last() < *newest || (!arguments.follow && arrivals.has_pending_damage()) {
        match arrivals.next(keep)? {
            Arrival::Value(value, _) => take(Earlier::Value(value))?,
            Arrival::Lost(_, lost) => take(Earlier::Lost(lost))?,
            Arrival::Nothing if idle.is_over() => {
                let target = &arguments.target;
                let sentence = format!("{target} cannot be read: it may be damaged");
                return Err(arrivals.failed(Failure::new(Exit::No, sentence)));
            }
            Arrival::Nothing => continue,
            // Another line may still bring what was published.
            Arrival::Parted if !arguments.follow => continue,
            Arrival::Found { is_new } if !arguments.follow => {
                *newest = if is_new { arrivals.newest_at_start() } else { *newest };
                arrivals.current().map_or(Ok(()), |it| take(Earlier::Found(it, is_new)))?;
                continue;
            }
            end => return Ok(Some(end)),
        }
        idle = Deadline::after(ANSWER_TIMEOUT);
    }
    Ok(None)
}

/// The last records of some keys of a feed, and the losses between them.
#[derive(Debug)]
pub(super) struct LastRecords {
    max: u64,
    records: u64,
    held: VecDeque<Result<Decodable, Loss>>,
}

impl LastRecords {
    /// None yet of so many.
    pub(super) fn new(max: u64) -> Self {
        Self { max, records: 0, held: VecDeque::new() }
    }

    /// Adds a record or a loss, and drops the oldest ones beyond the maximum of records.
    pub(super) fn add(&mut self, arrived: Result<Decodable, Loss>, filter: &KeyFilter) {
        if arrived.as_ref().is_ok_and(|(record, _)| !filter.wants(&record.bytes)) {
            return;
        }
        self.records += u64::from(arrived.is_ok());
        self.held.push_back(arrived);
        while self.records > self.max {
            self.records -= u64::from(self.held.pop_front().is_some_and(|dropped| dropped.is_ok()));
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.records = 0;
        self.held.clear();
    }

    /// All of them, the oldest first.
    pub(super) fn into_all(self) -> impl Iterator<Item = Result<Decodable, Loss>> {
        self.held.into_iter()
    }
}
