//! Lines whose publishers do as they are told.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::line::LineReport;
use super::set::{LineSet, LineSettings};
use super::source::LineSource;
use crate::clock::Clock;
use crate::fabric::{FabricError, KeyedWaker, Target};
use crate::id::{Epoch, Incarnation, Kind, Meta, Sequence};
use crate::repository::log::LogReader;
use crate::repository::state::StateReader;
use crate::repository::{Arbiter, Arrival, Reader, Verdict};
use crate::subscriber::offer::Offer;
use crate::subscriber::waiter::Membership;
use crate::subscriber::{
    IdleStrategy, Persistent, Position, ReceiveError, Renewable, RenewableHandle, Sample, Seek,
    SubscriberError,
};
use crate::testkit::clock::VirtualClock;

/// What a publisher of a log lets its subscriber receive next.
#[derive(Debug)]
enum Step {
    /// The records up to this one.
    Until(u64),
    /// This error. A loss is of the records that follow; records in doubt come again.
    Fails(ReceiveError),
}

/// A subscriber of such a publisher. Its values are their sequences.
#[derive(Debug)]
struct Scripted {
    position: Position,
    is_state: bool,
    /// The damaged value of a state that was reported last, after the last one received.
    reported: Option<Sequence>,
    steps: Arc<Mutex<VecDeque<Step>>>,
}

/// What a test holds of a line.
struct Script {
    found: Arc<Mutex<Option<Scripted>>>,
    steps: Arc<Mutex<VecDeque<Step>>>,
    /// After which value it was sought last.
    resumed: Arc<Mutex<Option<u64>>>,
}

struct ScriptedSeek {
    target: Target,
    clock: Arc<dyn Clock>,
    found: Arc<Mutex<Option<Scripted>>>,
    resumed: Arc<Mutex<Option<u64>>>,
}

impl Script {
    /// The publisher of this epoch is found, and is received after this record.
    fn find(&mut self, epoch: u64, after: u64) {
        self.find_kind(epoch, after, false);
    }

    /// The same of a state.
    fn find_state(&mut self, epoch: u64, after: u64) {
        self.find_kind(epoch, after, true);
    }

    fn find_kind(&mut self, epoch: u64, after: u64, is_state: bool) {
        let (incarnation, epoch) = (Incarnation::new(7).unwrap(), Epoch::new(epoch).unwrap());
        let position = Position { incarnation, epoch, last: Sequence::new(after) };
        self.steps = Arc::default();
        let steps = Arc::clone(&self.steps);
        *self.found.lock() = Some(Scripted { position, is_state, reported: None, steps });
    }

    fn publish(&self, until: u64) {
        self.steps.lock().push_back(Step::Until(until));
    }

    fn fail(&self, error: ReceiveError) {
        self.steps.lock().push_back(Step::Fails(error));
    }

    /// Ends in order. The records up to the last one may have been lost.
    fn end(&self, published: u64) {
        self.fail(ReceiveError::Ended { published: Sequence::new(published) });
    }
}

impl Seek<Scripted> for ScriptedSeek {
    fn begin(&mut self, lost: Position, _: &ReceiveError) {
        *self.resumed.lock() = Some(lost.last.get());
    }

    fn poll(&mut self) -> Option<Result<Scripted, SubscriberError>> {
        self.found.lock().take().map(Ok)
    }

    fn begin_anew(&mut self) {
        *self.resumed.lock() = None;
    }

    fn is_suspected(&self) -> bool {
        false
    }

    fn outages(&self) -> u64 {
        0
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn wake_with(&mut self, _: Option<KeyedWaker>) {}
}

impl Renewable for Scripted {}

impl RenewableHandle for Scripted {
    fn wait(&mut self, _: u64, _: Duration) -> Result<(), FabricError> {
        Ok(())
    }

    fn position(&self) -> Position {
        Position { last: self.reported.unwrap_or(self.position.last), ..self.position }
    }

    fn leave(&mut self) {}

    fn renew(&mut self, next: Self, _: bool) {
        *self = next;
    }

    fn join(&mut self, _: Option<Arc<Membership>>) {}
}

impl LineSource for Scripted {
    type Item = u64;

    fn arbiter(&self) -> Box<dyn Arbiter> {
        match self.is_state {
            true => Box::new(<StateReader as Reader>::Arbiter::default()),
            false => Box::new(<LogReader as Reader>::Arbiter::default()),
        }
    }

    fn kind(&self) -> Kind {
        if self.is_state { StateReader::KIND } else { LogReader::KIND }
    }

    fn brought(&self) -> Sequence {
        self.position.last
    }

    fn try_offer(
        &mut self,
        judge: impl FnOnce(&Arrival<'_>) -> Verdict,
    ) -> Result<Option<Offer<u64>>, ReceiveError> {
        let mut steps = self.steps.lock();
        while let Some(Step::Until(until)) = steps.front()
            && *until <= self.position.last.get()
        {
            steps.pop_front();
        }
        let sequence = match steps.pop_front() {
            None => return Ok(None),
            Some(step @ Step::Until(_)) => {
                steps.push_front(step);
                self.position.last.next()
            }
            Some(Step::Fails(error)) => {
                match error {
                    ReceiveError::CutOff { first_lost, count }
                    | ReceiveError::Lapped { first_lost, count } => {
                        assert_eq!(first_lost, self.position.last.next());
                        self.position.last = Sequence::new(self.position.last.get() + count);
                    }
                    ReceiveError::Contradicted { first, .. } => {
                        self.position.last = Sequence::new(first.get() - 1);
                    }
                    ReceiveError::BrokenStamps { sequence } => self.reported = Some(sequence),
                    _ => {}
                }
                return Err(error);
            }
        };
        (self.position.last, self.reported) = (sequence, None);
        let meta = Meta { sequence, epoch: self.position.epoch, published_ns: 0 };
        let verdict = judge(&Arrival { meta, conflated: 0, changed: None, payload: &[] });
        let sample = Sample { value: sequence.get(), meta, conflated: 0 };
        let value = (verdict != Verdict::Duplicate).then_some(Ok(sample));
        Ok(Some(Offer { verdict, meta, number: 0, key_len: 0, value }))
    }

    fn check_end(&self) -> Result<(), ReceiveError> {
        let steps = self.steps.lock();
        let end = steps.iter().find_map(|step| match step {
            Step::Fails(ReceiveError::Ended { published }) => Some(*published),
            _ => None,
        });
        end.map_or(Ok(()), |published| Err(ReceiveError::Ended { published }))
    }

    fn complete(&self) -> Sequence {
        self.position.last
    }

    fn has_key(&self, _: &[u8]) -> bool {
        true
    }
}

/// Two lines, of which no publisher was found yet.
fn set() -> (LineSet<Scripted>, [Script; 2]) {
    let clock: Arc<dyn Clock> = Arc::<VirtualClock>::default();
    let scripts =
        [(); 2].map(|()| Script { found: Arc::default(), steps: Arc::default(), resumed: Arc::default() });
    let persistent = |(script, target): (&Script, &str)| {
        let target: Target = target.parse().unwrap();
        let error = SubscriberError::SameLine { target: target.clone() };
        let (found, resumed) = (Arc::clone(&script.found), Arc::clone(&script.resumed));
        let seek = ScriptedSeek { target, clock: Arc::clone(&clock), found, resumed };
        Persistent::new(Err(error), Box::new(seek))
    };
    let lines = scripts.iter().zip(["shm:a/t", "shm:b/t"]).map(persistent).collect();
    let settings = LineSettings {
        begins_ahead: false,
        begins_at: None,
        gap_timeout: Duration::from_millis(100),
        idle: IdleStrategy::default(),
    };
    (LineSet::new(lines, clock, settings), scripts)
}

/// Receives the next record, or why there is none, if there is something after the duplicates.
fn next(set: &mut LineSet<Scripted>) -> Result<Option<u64>, ReceiveError> {
    let received = (0..10).find_map(|_| set.try_next().transpose()).transpose();
    received.map(|sample| sample.map(|sample| sample.value))
}

/// Receives these records, and nothing more.
fn receive(set: &mut LineSet<Scripted>, numbers: std::ops::RangeInclusive<u64>) {
    numbers.for_each(|number| assert_eq!(next(set).unwrap(), Some(number)));
    assert_eq!(next(set).unwrap(), None);
}

fn lapped(first_lost: u64, count: u64) -> ReceiveError {
    ReceiveError::Lapped { first_lost: Sequence::new(first_lost), count }
}

fn cut_off(first_lost: u64, count: u64) -> ReceiveError {
    ReceiveError::CutOff { first_lost: Sequence::new(first_lost), count }
}

/// The next publisher of the line does not have them either.
#[test]
fn records_that_a_line_has_lost_twice_count_once() {
    let (mut set, [mut one, mut other]) = set();
    one.find(1, 0);
    other.find(1, 0);
    one.publish(95);
    one.fail(cut_off(96, 5));
    one.end(100);
    receive(&mut set, 1..=95);
    assert_eq!(*one.resumed.lock(), Some(95));
    one.find(1, 95);
    one.fail(lapped(96, 7));
    one.publish(110);
    other.publish(110);
    receive(&mut set, 96..=110);
    let lost: Vec<u64> = set.report().iter().map(|LineReport { lost, .. }| *lost).collect();
    assert_eq!((lost, set.missing()), (vec![7, 0], 0));
}

/// They were not reported: the other line might have brought them.
#[test]
fn records_that_were_cut_off_are_missing_once_no_line_has_their_epoch() {
    for was_found in [false, true] {
        let (mut set, [mut one, mut other]) = set();
        one.find(1, 0);
        one.publish(95);
        one.fail(cut_off(96, 5));
        one.end(100);
        if was_found {
            other.find(1, 0);
            other.publish(80);
            other.fail(cut_off(81, 9));
            other.end(89);
        }
        receive(&mut set, 1..=95);
        assert_eq!(set.missing(), 0, "a publisher of the epoch may still bring them");
        one.find(2, 0);
        one.publish(2);
        let error = next(&mut set).unwrap_err();
        assert!(
            matches!(error, ReceiveError::Missing { first_lost, count: 5 } if first_lost.get() == 96),
            "{error}"
        );
        let error = next(&mut set).unwrap_err();
        assert!(matches!(error, ReceiveError::Restarted { last, .. } if last.get() == 100), "{error}");
        receive(&mut set, 1..=2);
        assert_eq!(set.missing(), 5);
        // Nothing of the epoch before counts any more.
        one.end(2);
        other.find(3, 0);
        let error = next(&mut set).unwrap_err();
        assert!(matches!(error, ReceiveError::Restarted { last, .. } if last.get() == 2), "{error}");
    }
}

/// It is looked at before the line of the present epoch shows that it has ended, too.
#[test]
fn next_epoch_that_has_ended_is_received_whichever_line_is_polled_first() {
    for next_is_first in [false, true] {
        let (mut set, [mut one, mut other]) = set();
        let (next_line, line) = if next_is_first { (&mut one, &mut other) } else { (&mut other, &mut one) };
        line.find(1, 0);
        line.publish(1);
        receive(&mut set, 1..=1);
        next_line.find(2, 0);
        next_line.publish(3);
        next_line.end(3);
        line.end(1);
        let error = next(&mut set).unwrap_err();
        assert!(matches!(error, ReceiveError::Restarted { last, .. } if last.get() == 1), "{error}");
        receive(&mut set, 1..=3);
    }
}

#[test]
fn records_that_were_cut_off_are_received_of_a_publisher_that_comes_later() {
    let (mut set, [mut one, mut other]) = set();
    one.find(1, 0);
    one.publish(95);
    one.fail(cut_off(96, 5));
    one.end(100);
    receive(&mut set, 1..=95);
    other.find(1, 0);
    other.publish(100);
    one.find(2, 0);
    receive(&mut set, 96..=100);
    other.end(100);
    let error = next(&mut set).unwrap_err();
    assert!(matches!(error, ReceiveError::Restarted { last, .. } if last.get() == 100), "{error}");
    assert_eq!(set.missing(), 0);
}

/// All records from the first one in doubt came again, also if another line had brought them.
#[test]
fn only_records_of_the_line_whose_notices_were_wrong_are_withdrawn() {
    // For each first record in doubt, of four: the first one withdrawn.
    for (in_doubt, withdrawn) in [(1, Some(1)), (2, Some(3)), (3, Some(3)), (4, None)] {
        let (mut set, [mut one, mut other]) = set();
        one.find(1, 0);
        other.find(1, 0);
        one.publish(4);
        other.publish(6);
        // In turn, then the rest.
        receive(&mut set, 1..=6);
        let first = Sequence::new(in_doubt);
        one.fail(ReceiveError::Contradicted { first, told: Sequence::new(4), found: Sequence::new(2) });
        one.publish(6);
        if let Some(withdrawn) = withdrawn {
            let error = next(&mut set).unwrap_err();
            assert!(
                matches!(error, ReceiveError::Contradicted { first, .. } if first.get() == withdrawn),
                "{error}"
            );
            receive(&mut set, withdrawn..=6);
        }
        other.publish(7);
        receive(&mut set, 7..=7);
        assert_eq!(set.missing(), 0);
    }
}

fn broken(sequence: u64) -> ReceiveError {
    ReceiveError::BrokenStamps { sequence: Sequence::new(sequence) }
}

/// Two lines of a state that have brought twenty values.
fn states() -> (LineSet<Scripted>, [Script; 2]) {
    let (mut set, mut scripts) = set();
    for script in &mut scripts {
        script.find_state(1, 0);
        script.publish(20);
    }
    receive(&mut set, 1..=20);
    (set, scripts)
}

/// What was reported as damaged, once the lines have waited for each other.
fn damaged(set: &mut LineSet<Scripted>) -> Vec<u64> {
    set.clock().pause(Duration::from_millis(200));
    let mut damaged = Vec::new();
    loop {
        match next(set) {
            Ok(None) => return damaged,
            Err(ReceiveError::BrokenStamps { sequence }) => damaged.push(sequence.get()),
            other => panic!("{other:?}"),
        }
    }
}

/// It has passed none of the values before that number.
#[test]
fn damaged_number_of_a_line_is_not_how_far_it_is() {
    const FAR: u64 = 1 << 40;
    let (mut set, [one, other]) = states();
    one.fail(broken(FAR));
    assert_eq!(next(&mut set).unwrap(), None);
    let behind: Vec<_> = set.report().iter().map(|line| (line.last.get(), line.behind)).collect();
    assert_eq!(behind, [(20, 0), (20, 0)]);
    other.fail(broken(21));
    assert_eq!(next(&mut set).unwrap(), None, "the first line may still bring it");
    let mut reported = damaged(&mut set);
    reported.sort_unstable();
    assert_eq!(reported, [21, FAR]);
}

#[test]
fn damaged_value_that_its_line_brings_after_all_is_not_reported() {
    let (mut set, [one, _other]) = states();
    one.fail(broken(21));
    assert_eq!(next(&mut set).unwrap(), None, "the other line may bring it");
    one.publish(21);
    assert_eq!(next(&mut set).unwrap(), Some(21));
    assert!(damaged(&mut set).is_empty());
}

#[test]
fn value_of_a_state_that_is_damaged_on_both_lines_is_reported_at_once() {
    let (mut set, [one, other]) = states();
    one.fail(broken(21));
    assert_eq!(next(&mut set).unwrap(), None);
    other.fail(broken(21));
    assert!(matches!(next(&mut set), Err(ReceiveError::BrokenStamps { .. })));
    assert!(damaged(&mut set).is_empty());
}
