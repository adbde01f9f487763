use std::collections::VecDeque;

use crate::id::Sequence;
use crate::limits;
use crate::repository::DamagedEntry;
use crate::subscriber::ReceiveError;

/// Damaged values that lines could not bring, and newest values that a publisher's end cut off, until another line has passed them
/// intact, or none will. Each is reported once, and none is dropped because there are many: then the oldest is reported without a wait
/// for the other lines.
#[derive(Debug, Default)]
pub(super) struct Damages {
    pending: Vec<Damage>,
    /// The last that were reported: a line that attaches again finds them again.
    reported: VecDeque<DamagedValue>,
}

/// A damaged value of a line.
#[derive(Debug)]
struct Damage {
    line: usize,
    value: DamagedValue,
    error: ReceiveError,
    /// When it was first considered, ns of the clock.
    since_ns: Option<u64>,
}

/// Which value is damaged. One commit of a table may have several.
#[derive(Clone, Debug)]
struct DamagedValue {
    sequence: Sequence,
    entry: DamagedEntry,
}

/// What the other lines have of a damaged value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// One has passed it: it has brought it, or a later one.
    Intact,
    /// One has not got so far.
    Awaited,
    /// None has it.
    Lost,
}

impl DamagedValue {
    /// Whether this is the same value, as far as is known: of the same key, or, if a key is unknown, in the same cell.
    fn is(&self, other: &Self) -> bool {
        let (entry, others) = (&self.entry, &other.entry);
        let is_same_entry = match (&entry.key, &others.key) {
            (Some(key), Some(others)) => key == others,
            _ => entry.cell == others.cell,
        };
        self.sequence == other.sequence && is_same_entry
    }

    /// Whether this may be the same value: publishers of the same commits need not have their keys in the same cells.
    fn may_be(&self, other: &Self) -> bool {
        let (entry, others) = (&self.entry, &other.entry);
        let is_known = entry.key.is_some() && others.key.is_some();
        self.sequence == other.sequence && (self.is(other) || !is_known || entry.cell == others.cell)
    }
}

impl Damages {
    /// Records that a line could not bring a value. Returns the error of the oldest one if there are too many.
    pub(super) fn add(
        &mut self,
        line: usize,
        (sequence, entry): (Sequence, DamagedEntry),
        error: ReceiveError,
    ) -> Option<ReceiveError> {
        let value = DamagedValue { sequence, entry };
        let is_pending = self.pending.iter().any(|other| other.line == line && other.value.is(&value));
        if is_pending || self.reported.iter().any(|other| other.is(&value)) {
            return None;
        }
        self.pending.push(Damage { line, value, error, since_ns: None });
        if self.pending.len() > limits::LINE_DAMAGED_MAX { self.report(0) } else { None }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether any is not decided.
    #[inline]
    pub(super) fn are_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Forgets what is known of this value: a line has brought it after all.
    pub(super) fn forget(&mut self, sequence: Sequence) {
        self.pending.retain(|damage| damage.value.sequence != sequence);
    }

    /// Returns the error of the next value that no line has, or that none has brought in time. `lasts` are the last values of the
    /// lines, in order, of those that may bring it.
    pub(super) fn next(
        &mut self,
        lasts: &[Option<Sequence>],
        now_ns: u64,
        timeout_ns: u64,
    ) -> Option<ReceiveError> {
        let mut index = 0;
        while let Some(damage) = self.pending.get_mut(index) {
            let since_ns = *damage.since_ns.get_or_insert(now_ns);
            // What was cut off comes, or a newer value does, as long as another publisher lives.
            let is_cut_off = matches!(damage.error, ReceiveError::CutOff { .. });
            let is_late = !is_cut_off && now_ns.saturating_sub(since_ns) >= timeout_ns;
            match self.outlook(index, lasts) {
                Outlook::Intact => _ = self.pending.remove(index),
                Outlook::Awaited if !is_late => index += 1,
                Outlook::Awaited | Outlook::Lost => return self.report(index),
            }
        }
        None
    }

    fn outlook(&self, index: usize, lasts: &[Option<Sequence>]) -> Outlook {
        let Some(Damage { line, value, .. }) = self.pending.get(index) else { return Outlook::Intact };
        let mut outlook = Outlook::Lost;
        for (other, last) in lasts.iter().enumerate().filter(|(other, _)| other != line) {
            let has_it = |damage: &Damage| damage.line == other && damage.value.may_be(value);
            // A line of a state does not pass a damaged value before it has another one.
            let is_found = |damage: &Damage| damage.line == other && damage.value.is(value);
            match last {
                Some(last) if *last < value.sequence && !self.pending.iter().any(is_found) => {
                    outlook = Outlook::Awaited;
                }
                Some(_) if !self.pending.iter().any(has_it) => return Outlook::Intact,
                _ => {}
            }
        }
        outlook
    }

    /// Takes a value as reported, of all lines.
    fn report(&mut self, index: usize) -> Option<ReceiveError> {
        if index >= self.pending.len() {
            return None;
        }
        let Damage { line, value, error, .. } = self.pending.remove(index);
        let mut lines = vec![line];
        // First what is certainly the same value, then one for each other line.
        for is_certain in [true, false] {
            self.pending.retain(|damage| {
                let is_same = if is_certain { damage.value.is(&value) } else { damage.value.may_be(&value) };
                let is_taken = is_same && !lines.contains(&damage.line);
                if is_taken {
                    lines.push(damage.line);
                    keep(&mut self.reported, damage.value.clone());
                }
                !is_taken
            });
        }
        keep(&mut self.reported, value);
        Some(error)
    }
}

/// Keeps the last few values that were reported.
fn keep(reported: &mut VecDeque<DamagedValue>, value: DamagedValue) {
    if reported.len() == limits::LINE_DAMAGED_MAX {
        reported.pop_front();
    }
    reported.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: usize = 0;
    const B: usize = 1;
    const TIMEOUT_NS: u64 = 100;
    const NOTHING: [u64; 0] = [];

    fn value(sequence: u64, cell: usize, key: &str) -> (Sequence, DamagedEntry) {
        let key = (!key.is_empty()).then(|| key.as_bytes().into());
        (Sequence::new(sequence), DamagedEntry { cell, key })
    }

    fn add(damages: &mut Damages, line: usize, value: (Sequence, DamagedEntry)) -> Option<u64> {
        let error = ReceiveError::BrokenStamps { sequence: value.0 };
        damages.add(line, value, error).map(|error| sequence_of(&error))
    }

    fn sequence_of(error: &ReceiveError) -> u64 {
        let ReceiveError::BrokenStamps { sequence } = error else { panic!("{error}") };
        sequence.get()
    }

    /// Returns what is reported at this time, where the lines have got as far as this; 0 is a line that is not attached.
    fn reported(damages: &mut Damages, lasts: [u64; 2], now_ns: u64) -> Vec<u64> {
        let lasts = lasts.map(|last| (last > 0).then(|| Sequence::new(last)));
        std::iter::from_fn(|| damages.next(&lasts, now_ns, TIMEOUT_NS))
            .map(|error| sequence_of(&error))
            .collect()
    }

    #[test]
    fn value_that_another_line_has_passed_is_not_reported() {
        let mut damages = Damages::default();
        add(&mut damages, A, value(5, 1, "k"));
        assert_eq!(reported(&mut damages, [9, 4], 0), NOTHING);
        assert!(damages.are_pending());
        assert_eq!(reported(&mut damages, [9, 5], 1), NOTHING);
        assert!(!damages.are_pending());
    }

    #[test]
    fn value_that_is_damaged_on_all_lines_is_reported_once() {
        let mut damages = Damages::default();
        add(&mut damages, A, value(5, 1, "k"));
        add(&mut damages, B, value(5, 1, "k"));
        assert_eq!(reported(&mut damages, [5, 5], 0), [5]);
        // A line attaches again, and reads it again.
        add(&mut damages, B, value(5, 1, "k"));
        assert_eq!(reported(&mut damages, [5, 5], TIMEOUT_NS), NOTHING);
        assert!(!damages.are_pending());
    }

    #[test]
    fn different_keys_of_a_commit_are_different_values() {
        let mut damages = Damages::default();
        add(&mut damages, A, value(5, 1, "k"));
        add(&mut damages, B, value(5, 2, "l"));
        assert_eq!(reported(&mut damages, [5, 5], 0), NOTHING, "each line has the value of the other");
        for line in [A, B] {
            add(&mut damages, line, value(6, 1, "k"));
            add(&mut damages, line, value(6, 2, "l"));
        }
        assert_eq!(reported(&mut damages, [6, 6], 0), [6, 6]);
    }

    #[test]
    fn key_is_the_same_in_another_cell_and_unknown_keys_may_be() {
        let mut damages = Damages::default();
        add(&mut damages, A, value(5, 1, "k"));
        add(&mut damages, B, value(5, 2, "k"));
        assert_eq!(reported(&mut damages, [5, 5], 0), [5]);
        for cell in [1, 2] {
            add(&mut damages, A, value(6, cell, ""));
            add(&mut damages, B, value(6, cell + 6, ""));
        }
        assert_eq!(reported(&mut damages, [6, 6], 0), [6, 6]);
        assert!(!damages.are_pending());
    }

    #[test]
    fn line_that_hangs_or_is_detached_delays_no_report_for_ever() {
        let mut damages = Damages::default();
        add(&mut damages, A, value(5, 1, "k"));
        assert_eq!(reported(&mut damages, [9, 4], 1000), NOTHING);
        assert_eq!(reported(&mut damages, [9, 4], 1000 + TIMEOUT_NS - 1), NOTHING);
        assert_eq!(reported(&mut damages, [9, 4], 1000 + TIMEOUT_NS), [5]);
        // It goes on, and its value is damaged too.
        add(&mut damages, B, value(5, 1, "k"));
        assert_eq!(reported(&mut damages, [9, 5], 1000 + TIMEOUT_NS), NOTHING);
        add(&mut damages, A, value(10, 1, "k"));
        assert_eq!(reported(&mut damages, [10, 0], 0), [10]);
    }

    /// Of a state each line is still at the value before.
    #[test]
    fn lines_that_have_reported_a_value_are_not_awaited() {
        let mut damages = Damages::default();
        add(&mut damages, A, value(5, 0, ""));
        assert_eq!(reported(&mut damages, [4, 4], 0), NOTHING);
        add(&mut damages, B, value(5, 0, ""));
        assert_eq!(reported(&mut damages, [4, 4], 1), [5]);
        assert!(!damages.are_pending());
    }

    #[test]
    fn value_that_was_cut_off_is_reported_when_no_other_line_is_left() {
        let mut damages = Damages::default();
        let cut_off = |sequence: u64| {
            let error = ReceiveError::CutOff { first_lost: Sequence::new(sequence), count: 1 };
            (Sequence::new(sequence), DamagedEntry::default(), error)
        };
        let add = |damages: &mut Damages, sequence| {
            let (sequence, entry, error) = cut_off(sequence);
            damages.add(A, (sequence, entry), error).is_none()
        };
        assert!(add(&mut damages, 5));
        let lasts = |last| [None, Some(Sequence::new(last))];
        assert!(damages.next(&lasts(4), 0, TIMEOUT_NS).is_none());
        assert!(damages.next(&lasts(4), 10 * TIMEOUT_NS, TIMEOUT_NS).is_none(), "the other one brings it");
        assert!(damages.next(&lasts(5), 10 * TIMEOUT_NS, TIMEOUT_NS).is_none() && !damages.are_pending());
        assert!(add(&mut damages, 6));
        assert!(damages.next(&[None, None], 0, TIMEOUT_NS).is_some());
    }

    #[test]
    fn none_is_lost_if_there_are_many() {
        let mut damages = Damages::default();
        let count = 3 * limits::LINE_DAMAGED_MAX as u64;
        let mut found: Vec<u64> =
            (1..=count).filter_map(|it| add(&mut damages, A, value(it, 1, "k"))).collect();
        assert_eq!(found.len(), 2 * limits::LINE_DAMAGED_MAX);
        found.extend(reported(&mut damages, [count, 0], 0));
        assert_eq!(found, (1..=count).collect::<Vec<_>>());
    }
}
