use std::time::Duration;

use super::damage::Damages;
use super::published::Published;
use super::source::LineSource;
use crate::fabric::Target;
use crate::id::{Epoch, Kind, Meta, Sequence};
use crate::repository::{Arbiter, DamagedEntry, Verdict};
use crate::subscriber::offer::Offer;
use crate::subscriber::persistent::Persistent;
use crate::subscriber::{Position, ReceiveError, Renewable, Sample};

/// Duplicates that one call skips of a line.
const SKIPPED_MAX: u32 = 64;

/// What a subscriber knows of one of its lines: see [`Lines::report`](crate::Lines::report).
///
/// Send and Sync.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineReport {
    /// Where its publisher is sought.
    pub target: Target,
    /// Its publisher is attached, as far as the subscriber knows. It finds out with the next receive.
    pub is_attached: bool,
    /// Its last publisher ended the topic in order.
    pub has_ended: bool,
    /// The epoch of its publisher, or of the last one; `None` before the first was found.
    pub epoch: Option<Epoch>,
    /// It has the epoch that is received.
    pub is_in_step: bool,
    /// The last value that the line has brought.
    pub last: Sequence,
    /// Values by which the line is behind the one that is ahead.
    pub behind: u64,
    /// How much later its publisher published the newest value that another line brought first; `None` while there is none. It
    /// compares the publishers' clocks.
    pub lag: Option<Duration>,
    /// Values received from this line, because it brought them first.
    pub first: u64,
    /// Values that another line had brought before.
    pub duplicates: u64,
    /// Values that the line could not bring, because they were overwritten, damaged or cut off. Another line may have brought them. A
    /// record that its next publisher does not have either counts once.
    pub lost: u64,
    /// How often its publisher was lost.
    pub outages: u64,
}

/// One of the lines of a subscriber.
pub(super) struct Line<S: LineSource + Renewable> {
    pub(super) persistent: Persistent<S>,
    /// The next value of a log, after others that are missing.
    pub(super) held: Option<Held<S::Item>>,
    /// It was attached at the last poll.
    was_attached: bool,
    /// The epoch in which it was opened, and the record after which; `None` once it has attached to another one.
    opened: Option<(Epoch, Sequence)>,
    /// How often it has attached since it was opened.
    pub(super) attachments: u64,
    /// An epoch that was reported to be another one.
    pub(super) reported: Option<(Epoch, Kind)>,
    /// Since when it has another one, ns of the clock.
    pub(super) differs_since_ns: Option<u64>,
    /// Its epoch, when the lines went over to another one: what it had brought does not count any more.
    discarded: Option<Epoch>,
    /// It is sought to bring all of its epoch again.
    is_sought_anew: bool,
    /// How far it was when others waited for it in vain.
    overdue: Option<Sequence>,
    /// Others have waited in vain for a publisher of their epoch to be found.
    is_absent: bool,
    /// What was received when it attached: it need not bring that.
    joined: Sequence,
    /// The last value of the epoch that was reported lost on it.
    pub(super) given_up: Sequence,
    lag_ns: Option<u64>,
    first: u64,
    duplicates: u64,
    lost: u64,
}

/// A value that is held back, or why it cannot be received.
pub(super) type Held<V> = (Meta, Result<Sample<V>, ReceiveError>);

/// The outcome of polling a line.
pub(super) enum Polled<V> {
    /// A value, or why it cannot be received, and more on it.
    First(Result<Sample<V>, ReceiveError>, Meta, KeyChange),
    /// Duplicates; there may be more.
    Duplicates,
    /// Nothing that is new.
    Nothing,
}

/// What an arbiter says of a change of a table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyChange {
    pub(super) number: u64,
    pub(super) key_len: usize,
    pub(super) is_new: bool,
}

impl<S: LineSource + Renewable> Line<S> {
    pub(super) fn new(persistent: Persistent<S>) -> Self {
        let was_attached = persistent.is_attached();
        let mut line = Self {
            persistent,
            held: None,
            was_attached,
            opened: None,
            attachments: 0,
            reported: None,
            differs_since_ns: None,
            discarded: None,
            is_sought_anew: false,
            overdue: None,
            is_absent: false,
            joined: Sequence::NONE,
            given_up: Sequence::NONE,
            lag_ns: None,
            first: 0,
            duplicates: 0,
            lost: 0,
        };
        let position = line.position().filter(|_| was_attached);
        line.opened = position.map(|position| (position.epoch, position.last));
        line
    }

    /// The record after which it was opened in this epoch; `None` if it has all that its publishers have of it.
    pub(super) fn opened_after(&self, epoch: Epoch) -> Option<Sequence> {
        self.opened.filter(|(opened, _)| *opened == epoch).map(|(_, last)| last)
    }

    /// What it has brought, of its present or last publisher.
    pub(super) fn position(&self) -> Option<Position> {
        let subscriber = self.persistent.current()?;
        Some(Position { last: subscriber.brought(), ..subscriber.position() })
    }

    /// The epoch and the kind of its present or last publisher's topic.
    pub(super) fn identity(&self) -> Option<(Epoch, Kind)> {
        self.persistent.current().map(|subscriber| (subscriber.position().epoch, subscriber.kind()))
    }

    /// Begins with the lines after this value. `before` is the epoch that they leave.
    pub(super) fn begin(&mut self, last: Sequence, before: Option<Epoch>) {
        if before.is_some() && self.position().map(|position| position.epoch) == before {
            (self.discarded, self.opened) = (before, None);
        }
        (self.held, self.overdue, self.is_absent) = (None, None, false);
        (self.lag_ns, self.joined, self.given_up) = (None, last, Sequence::NONE);
    }

    /// Whether it is attached, and goes on after values that were discarded since.
    pub(super) fn is_stale(&self) -> bool {
        self.persistent.is_attached()
            && self.discarded.is_some()
            && self.position().map(|position| position.epoch) == self.discarded
    }

    /// Attaches anew, to bring all values of its epoch again.
    pub(super) fn start_over(&mut self) {
        (self.discarded, self.was_attached, self.opened, self.is_sought_anew) = (None, false, None, true);
        (self.overdue, self.is_absent) = (None, false);
        self.persistent.start_over();
    }

    /// Whether it is attached to a publisher whose topic has not ended.
    pub(super) fn lives(&self) -> bool {
        let subscriber = self.persistent.current().filter(|_| self.persistent.is_attached());
        subscriber.is_some_and(|subscriber| subscriber.check_end().is_ok())
    }

    /// Whether it brings all of its epoch again, once it is attached.
    pub(super) fn is_anew(&self) -> bool {
        !self.persistent.is_attached() && (self.is_sought_anew || self.discarded.is_some())
    }

    /// Whether it may bring what comes before `next` of this topic, and has not been waited for in vain.
    pub(super) fn may_bring(&self, next: Sequence, identity: Option<(Epoch, Kind)>) -> bool {
        if self.identity() != identity || self.is_anew() {
            return !self.persistent.is_attached() && !self.is_absent;
        }
        let last = self.position().map(|position| position.last);
        last.is_some_and(|last| last < next) && self.overdue != last
    }

    /// Records that others have waited for it in vain.
    pub(super) fn note_overdue(&mut self) {
        self.overdue = self.position().map(|position| position.last);
        self.is_absent = true;
    }

    /// Records that it is in step with the others: when it is not any more, that is news.
    #[inline]
    pub(super) fn note_step(&mut self) {
        (self.differs_since_ns, self.reported) = (None, None);
    }

    /// Attaches to its publisher, if that was found. What was received until now of the epoch of the lines it need not bring.
    pub(super) fn attach(
        &mut self,
        index: usize,
        identity: Option<(Epoch, Kind)>,
        arbiter: Option<&mut (dyn Arbiter + 'static)>,
    ) -> Result<bool, ReceiveError> {
        if self.was_attached {
            return Ok(true);
        }
        self.was_attached = self.persistent.seek_now()?;
        if self.was_attached {
            self.is_sought_anew = false;
            let epoch = self.identity().map(|(epoch, _)| epoch);
            self.opened = self.opened.filter(|(opened, _)| Some(*opened) == epoch);
            self.discarded = self.discarded.filter(|discarded| Some(*discarded) == epoch);
            if self.is_stale() && self.identity() == identity {
                // Another line has begun its epoch again.
                self.start_over();
                return Ok(false);
            }
            self.attachments += 1;
            self.joined = arbiter.as_ref().map_or(Sequence::NONE, |arbiter| arbiter.last());
            (self.overdue, self.is_absent) = (None, false);
            arbiter.into_iter().for_each(|arbiter| arbiter.join(index));
        }
        Ok(self.was_attached)
    }

    /// Takes the value that was held back, if it is next.
    pub(super) fn take_held(&mut self, arbiter: &mut dyn Arbiter) -> Option<Polled<S::Item>> {
        let (Meta { sequence, .. }, _) = self.held.as_ref()?;
        if sequence.get().saturating_sub(arbiter.last().get()) > 1 {
            return Some(Polled::Nothing);
        }
        let (meta, value) = self.held.take()?;
        if meta.sequence <= arbiter.last() {
            self.duplicates += 1;
            return None;
        }
        arbiter.skip_to(meta.sequence);
        self.first += 1;
        Some(Polled::First(value, meta, KeyChange::default()))
    }

    /// Receives until a value is the first of its sequence, or too early.
    #[inline]
    pub(super) fn receive(
        &mut self,
        index: usize,
        (arbiter, damages): (&mut dyn Arbiter, &mut Damages),
        published: &Published,
    ) -> Result<Polled<S::Item>, ReceiveError> {
        self.persistent.resume_after_at_most(if arbiter.wants_each() {
            arbiter.last()
        } else {
            Sequence::new(u64::MAX)
        });
        for _ in 0..SKIPPED_MAX {
            let offered = self
                .persistent
                .receive_by(|subscriber| subscriber.try_offer(|arrival| arbiter.judge(index, arrival)));
            let Offer { verdict, meta, number, key_len, value } = match offered {
                Ok(Some(offer)) => offer,
                Ok(None) => return Ok(self.find_nothing(index, arbiter)),
                Err(error) => {
                    self.fail(index, error, (&mut *arbiter, &mut *damages), published)?;
                    continue;
                }
            };
            let Some(value) = value else {
                self.duplicates += 1;
                if let Some(first_ns) = published.of(meta.sequence) {
                    self.lag_ns = Some(meta.published_ns.saturating_sub(first_ns));
                }
                continue;
            };
            match verdict {
                Verdict::First { is_new, .. } => {
                    self.first += 1;
                    return Ok(Polled::First(value, meta, KeyChange { number, key_len, is_new }));
                }
                _ => {
                    self.held = Some((meta, value));
                    return Ok(Polled::Nothing);
                }
            }
        }
        Ok(Polled::Duplicates)
    }

    /// Asks its subscriber for something else than the next value.
    pub(super) fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut S) -> Result<Option<T>, ReceiveError>,
    ) -> Result<Option<T>, ReceiveError> {
        let answer = self.persistent.receive_by(ask);
        self.was_attached &= self.persistent.is_attached();
        answer
    }

    /// Records that it has nothing more at the moment.
    fn find_nothing(&mut self, index: usize, arbiter: &mut dyn Arbiter) -> Polled<S::Item> {
        self.was_attached &= self.persistent.is_attached();
        if !self.was_attached {
            return Polled::Nothing;
        }
        if let Some(subscriber) = self.persistent.current() {
            let (sequence, epoch) = (subscriber.complete(), subscriber.position().epoch);
            let until = Meta { sequence, epoch, published_ns: subscriber.published_ns(sequence) };
            arbiter.complete(index, until, &|key| subscriber.has_key(key));
        }
        Polled::Nothing
    }

    /// Handles an error of the line. Returns it if it concerns the program.
    #[cold]
    fn fail(
        &mut self,
        index: usize,
        error: ReceiveError,
        (arbiter, damages): (&mut dyn Arbiter, &mut Damages),
        published: &Published,
    ) -> Result<(), ReceiveError> {
        use ReceiveError::{
            BrokenStamps, Contradicted, CutOff, Damaged, DamagedRecords, ForeignEpoch, ImpossibleLen, Lapped,
            Overtaken,
        };
        match error {
            Lapped { first_lost, count }
            | DamagedRecords { first_lost, count }
            | CutOff { first_lost, count } => {
                // What it lost before it attached does not count, nor what an earlier publisher of it had lost already.
                let end = first_lost.get().saturating_add(count);
                let first = first_lost.max(self.joined.next()).max(self.given_up.next());
                self.lost = self.lost.saturating_add(end.saturating_sub(first.get()));
                let newest = Sequence::new(end.saturating_sub(1));
                self.given_up = self.given_up.max(newest);
                if arbiter.wants_each() || newest <= arbiter.last() {
                    return Ok(());
                }
                damages.add(index, (newest, DamagedEntry::default()), error).map_or(Ok(()), Err)
            }
            Damaged { sequence, .. }
            | BrokenStamps { sequence }
            | ForeignEpoch { sequence, .. }
            | ImpossibleLen { sequence, .. } => {
                self.lost += 1;
                // Of a log it is missing like others.
                let subscriber = self.persistent.current().filter(|_| !arbiter.wants_each());
                let oldest = subscriber.and_then(|it| damages.add(index, (sequence, it.damaged()), error));
                oldest.map_or(Ok(()), Err)
            }
            Contradicted { first, told, found } => {
                let (last, wants_each) = (arbiter.last(), arbiter.wants_each());
                // Otherwise other lines have brought all of them, and only this line was deceived.
                let Some(wrong) = published.first_of(index, first, last).filter(|wrong| *wrong <= told)
                else {
                    return Ok(());
                };
                let first = if wants_each { wrong } else { first };
                // The values from there on come again; of a state, unless another line has replaced them.
                if wants_each || last <= told && published.first_of(index, last, last).is_some() {
                    arbiter.skip_to(Sequence::new(first.get().saturating_sub(1)));
                }
                Err(Contradicted { first, told, found })
            }
            // It attaches again, and counts then what it has lost.
            Overtaken { .. } => Ok(()),
            _ => Err(error),
        }
    }

    pub(super) fn report(&self, identity: Option<(Epoch, Kind)>, ahead: Sequence) -> LineReport {
        let position = self.position();
        let is_in_step = identity.is_some() && self.identity() == identity;
        let last = position.map_or(Sequence::NONE, |position| position.last);
        let behind = if is_in_step { ahead.get().saturating_sub(last.get()) } else { 0 };
        LineReport {
            target: self.persistent.target().clone(),
            is_attached: self.persistent.is_attached(),
            has_ended: self.persistent.has_ended(),
            epoch: position.map(|position| position.epoch),
            is_in_step,
            last,
            behind,
            lag: self.lag_ns.map(Duration::from_nanos),
            first: self.first,
            duplicates: self.duplicates,
            lost: self.lost,
            outages: self.persistent.outages(),
        }
    }
}
