mod keys;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use self::keys::{KeyLife, KnownKey, KnownKeys};
use self::queue::PlaceQueue;
use crate::id::{Meta, Sequence};
use crate::limits;
use crate::repository::{Arbiter, Arrival, ChangedKey, GoneKey, Verdict};

/// Decides which changes of several lines of a table are received: those of keys that are newer than what was received of the key.
///
/// A key lives from the commit that adds it until it is removed, and may live again. All lines agree on the commit, so it names the
/// life. A value is newer than another if its life is, or, of the same life, its sequence. No value of a life follows its removal.
/// A line that has read past the commit of a value, and does not have its key, has shown that the key is gone. A line that has
/// brought a value of a life, or was seen to have the key, reports the end of that life itself.
///
/// What a line has shown stays true when the line is lost, falls back or attaches again: a key that is not known, and that was added
/// before a commit up to which any line had all keys, was removed. It may not stay true if the line had misread its publisher's memory:
/// keys of other lines were taken for removed ones meanwhile, and would be for ever. Then nothing counts that was shown, and all lines
/// offer all keys again ([`Arbiter::doubt`]). A line that is behind may so bring a key again, and its removal later.
///
/// It holds the keys that have a value, and those removed that a line behind may still bring: of the latter as many as the table had
/// at once, and [`limits::LINE_REMOVED_MAX`] more. A key whose removal is forgotten may be received again, of a line that is behind by
/// more removals than that; its removal follows when that line reaches it.
///
/// Of the keys that a line has brought it holds [`limits::LINE_KEYS_PER_CELL`] for each cell of the line's table. A publisher that brings
/// more without removing them is faulty: they are not received, and what it shows to be gone does not count any more.
///
/// Allocates for a key only if it holds more than ever before, and for one that is found to be gone.
#[derive(Debug, Default)]
pub(crate) struct TableArbiter {
    last: Sequence,
    keys: KnownKeys,
    /// The keys that have a value, and the most that ever had one.
    present: usize,
    present_max: usize,
    /// All wanted keys that commits up to this one added are known, unless they were removed since.
    complete: Sequence,
    /// Removed keys, until [`Self::complete`] has reached their lives.
    dead: PlaceQueue,
    lines: Vec<LineKeys>,
    /// Keys that were found to be gone.
    gone: VecDeque<GoneKey>,
}

/// The keys of a line.
#[derive(Debug, Default)]
struct LineKeys {
    /// Those of which it has not shown yet whether it has them.
    unconfirmed: PlaceQueue,
    /// How many have a value, in a life that it has brought.
    brought: usize,
    /// It has brought more than a table can have.
    has_excess: bool,
}

impl LineKeys {
    /// Returns whether it may bring another key, of a table with this many cells.
    fn has_room(&mut self, capacity: usize) -> bool {
        let has_room = self.brought < capacity.saturating_mul(limits::LINE_KEYS_PER_CELL);
        self.has_excess |= !has_room;
        has_room
    }
}

impl TableArbiter {
    fn judge_value(
        &mut self,
        line: usize,
        key: &[u8],
        arrival: &Arrival<'_>,
        changed: ChangedKey,
    ) -> Verdict {
        let ChangedKey { added, number, capacity, .. } = changed;
        let life = KeyLife { added, sequence: arrival.meta.sequence, number, line, is_present: true };
        let Some(of_line) = self.lines.get_mut(line) else { return Verdict::Duplicate };
        let Some(place) = self.keys.find(key) else {
            if added <= self.complete || !of_line.has_room(capacity) {
                return Verdict::Duplicate;
            }
            let place = self.keys.insert(key, life);
            self.begin_life(place, life);
            return Verdict::First { conflated: arrival.conflated, is_new: true };
        };
        let Some(known) = self.keys.get(place) else { return Verdict::Duplicate };
        let before = known.life;
        if added > before.added {
            let is_counted = before.is_present && before.line == line;
            if !is_counted && !of_line.has_room(capacity) {
                return Verdict::Duplicate;
            }
            known.life = life;
            self.count_end(before);
            self.begin_life(place, life);
            return Verdict::First { conflated: number.saturating_sub(1), is_new: true };
        }
        if added < before.added || !before.is_present {
            return Verdict::Duplicate;
        }
        let is_newer = life.sequence > before.sequence;
        if is_newer {
            known.life = KeyLife { line: before.line, ..life };
        }
        of_line.unconfirmed.remove(place);
        if !is_newer {
            return Verdict::Duplicate;
        }
        let conflated = number.saturating_sub(before.number).saturating_sub(1);
        Verdict::First { conflated, is_new: false }
    }

    fn judge_removal(&mut self, key: &[u8], changed: ChangedKey) -> Verdict {
        let Some(place) = self.keys.find(key) else { return Verdict::Duplicate };
        let Some(KnownKey { life, .. }) = self.keys.get(place) else { return Verdict::Duplicate };
        if life.added > changed.added {
            return Verdict::Duplicate;
        }
        if !life.is_present {
            if life.added < changed.added {
                // A later life, which is over too.
                life.added = changed.added;
                self.dead.push(place, changed.added);
            }
            return Verdict::Duplicate;
        }
        let is_same = life.added == changed.added;
        let conflated =
            if is_same { changed.number.saturating_sub(life.number).saturating_sub(1) } else { 0 };
        self.end_life(place, changed.added);
        Verdict::First { conflated, is_new: false }
    }

    /// Begins a life that a line has brought: the others have to show whether they have the key.
    fn begin_life(&mut self, place: u32, life: KeyLife) {
        self.present += 1;
        self.present_max = self.present_max.max(self.present);
        self.dead.remove(place);
        for (line, LineKeys { unconfirmed, brought, .. }) in self.lines.iter_mut().enumerate() {
            if line == life.line {
                *brought += 1;
                unconfirmed.remove(place);
            } else {
                unconfirmed.push(place, life.sequence);
            }
        }
    }

    /// Counts that a life has ended, if it had not before.
    fn count_end(&mut self, KeyLife { is_present, line, .. }: KeyLife) {
        self.present -= usize::from(is_present);
        self.lines.get_mut(line).into_iter().for_each(|line| line.brought -= usize::from(is_present));
    }

    /// Ends the lives of a key that has a value, up to this one.
    fn end_life(&mut self, place: u32, added: Sequence) {
        let Some(KnownKey { life, .. }) = self.keys.get(place) else { return };
        let before = *life;
        (life.is_present, life.added) = (false, added);
        self.count_end(before);
        self.lines.iter_mut().for_each(|line| line.unconfirmed.remove(place));
        if added <= self.complete {
            self.keys.remove(place);
            return;
        }
        self.dead.push(place, added);
        if self.dead.len() > self.present_max.saturating_add(limits::LINE_REMOVED_MAX) {
            self.dead.take_first().into_iter().for_each(|oldest| self.keys.remove(oldest));
        }
    }

    /// Asks a line that is complete up to this commit for a key that it has not brought.
    fn confirm(&mut self, (line, place): (usize, u32), until: Meta, has_key: &dyn Fn(&[u8]) -> bool) {
        let Some(KnownKey { key, life }) = self.keys.get(place) else { return };
        if has_key(key) {
            return;
        }
        let KeyLife { added, sequence, number, .. } = *life;
        if sequence > until.sequence {
            // Another line has brought a later value meanwhile.
            self.lines.get_mut(line).into_iter().for_each(|line| line.unconfirmed.push(place, sequence));
            return;
        }
        let key = key.as_slice().into();
        self.gone.push_back(GoneKey { key, number: number.saturating_add(1), meta: until });
        self.end_life(place, added);
    }
}

impl Arbiter for TableArbiter {
    fn begin(&mut self, last: Sequence, lines: usize) {
        let lines = std::iter::repeat_with(LineKeys::default).take(lines).collect();
        *self = Self { last, lines, ..Self::default() };
    }

    fn join(&mut self, line: usize) {
        let Some(LineKeys { unconfirmed, .. }) = self.lines.get_mut(line) else { return };
        for place in self.keys.places() {
            if let Some(KnownKey { life, .. }) = self.keys.get(place).filter(|known| known.life.is_present) {
                unconfirmed.push(place, life.sequence);
            }
        }
    }

    fn judge(&mut self, line: usize, arrival: &Arrival<'_>) -> Verdict {
        let changed = arrival.changed.unwrap_or_default();
        let key = arrival.payload.get(..changed.key_len).unwrap_or_default();
        let verdict = if changed.is_present {
            self.judge_value(line, key, arrival, changed)
        } else {
            self.judge_removal(key, changed)
        };
        if verdict != Verdict::Duplicate {
            self.last = self.last.max(arrival.meta.sequence);
        }
        verdict
    }

    fn last(&self) -> Sequence {
        self.last
    }

    fn skip_to(&mut self, last: Sequence) {
        self.last = last;
    }

    fn complete(&mut self, line: usize, until: Meta, has_key: &dyn Fn(&[u8]) -> bool) {
        let has_excess = self.lines.get(line).is_none_or(|line| line.has_excess);
        if until.sequence == Sequence::NONE || has_excess {
            return;
        }
        self.complete = self.complete.max(until.sequence);
        while let Some(place) = self.dead.take(self.complete) {
            self.keys.remove(place);
        }
        let next = |this: &mut Self| this.lines.get_mut(line)?.unconfirmed.take(until.sequence);
        while let Some(place) = next(self) {
            self.confirm((line, place), until, has_key);
        }
    }

    fn doubt(&mut self) {
        self.complete = Sequence::NONE;
        // One of them may be a key that has a value.
        while let Some(place) = self.dead.take_first() {
            self.keys.remove(place);
        }
    }

    fn take_removed(&mut self) -> Option<GoneKey> {
        self.gone.pop_front()
    }

    fn retain_keys(&mut self, is_wanted: &dyn Fn(&[u8]) -> bool) {
        self.complete = Sequence::NONE;
        for place in self.keys.places() {
            let Some(KnownKey { key, life }) = self.keys.get(place) else { continue };
            if life.is_present && !is_wanted(key) {
                let life = *life;
                self.count_end(life);
                self.lines.iter_mut().for_each(|line| line.unconfirmed.remove(place));
                self.keys.remove(place);
            }
        }
    }
}
