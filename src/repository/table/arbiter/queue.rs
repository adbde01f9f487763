use crate::id::Sequence;

/// The place before the first one of a queue, and after the last.
const NOWHERE: u32 = u32::MAX;

/// Places of keys, first in, first out. Each waits for a commit, and for all that those before it wait for. A place is in it once at
/// most. Adding, removing and taking one take constant time. Allocates only for a place that is greater than all before.
#[derive(Debug)]
pub(super) struct PlaceQueue {
    /// By place.
    links: Vec<Link>,
    first: u32,
    last: u32,
    len: usize,
}

/// A place in a queue, or outside it.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    /// The commit that it waits for; none outside the queue.
    due: Sequence,
}

impl Default for PlaceQueue {
    fn default() -> Self {
        Self { links: Vec::new(), first: NOWHERE, last: NOWHERE, len: 0 }
    }
}

impl PlaceQueue {
    /// Adds a place as the last one, which waits for this commit. It is removed from where it was.
    pub(super) fn push(&mut self, place: u32, due: Sequence) {
        self.remove(place);
        let index = place as usize;
        if index >= self.links.len() {
            self.links.resize(index + 1, Link { before: NOWHERE, after: NOWHERE, due: Sequence::NONE });
        }
        let due = due.max(self.due_of(self.last)).max(Sequence::NONE.next());
        let before = self.last;
        self.links.get_mut(index).into_iter().for_each(|link| *link = Link { before, after: NOWHERE, due });
        match self.links.get_mut(before as usize) {
            Some(link) => link.after = place,
            None => self.first = place,
        }
        self.last = place;
        self.len += 1;
    }

    /// Removes a place, if it is in the queue.
    pub(super) fn remove(&mut self, place: u32) {
        let Some(link) = self.links.get_mut(place as usize).filter(|link| link.due != Sequence::NONE) else {
            return;
        };
        let Link { before, after, .. } = *link;
        link.due = Sequence::NONE;
        match self.links.get_mut(before as usize) {
            Some(link) => link.after = after,
            None => self.first = after,
        }
        match self.links.get_mut(after as usize) {
            Some(link) => link.before = before,
            None => self.last = before,
        }
        self.len -= 1;
    }

    /// Takes the first place, if it waits for this commit or an earlier one.
    pub(super) fn take(&mut self, until: Sequence) -> Option<u32> {
        if self.due_of(self.first) <= until { self.take_first() } else { None }
    }

    /// Takes the first place, whatever it waits for.
    pub(super) fn take_first(&mut self) -> Option<u32> {
        let place = self.first;
        self.remove(place);
        (place != NOWHERE).then_some(place)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn due_of(&self, place: u32) -> Sequence {
        self.links.get(place as usize).map_or(Sequence::NONE, |link| link.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u64) -> Sequence {
        Sequence::new(number)
    }

    #[test]
    fn places_come_in_order_once_they_are_due() {
        let mut queue = PlaceQueue::default();
        for (place, due) in [(3, 10), (0, 5), (7, 20), (1, 20)] {
            queue.push(place, at(due));
        }
        assert_eq!((queue.take(at(9)), queue.len()), (None, 4), "the first is not due yet");
        queue.remove(7);
        queue.remove(7);
        queue.remove(9);
        queue.push(3, at(1));
        assert_eq!(
            [queue.take(at(9)), queue.take(at(10))],
            [None, Some(0)],
            "it waits as long as the one before it"
        );
        assert_eq!(queue.take(at(19)), None);
        assert_eq!([queue.take(at(20)), queue.take(at(20)), queue.take(at(20))], [Some(1), Some(3), None]);
        queue.push(7, at(1));
        assert_eq!((queue.take_first(), queue.take_first(), queue.len()), (Some(7), None, 0));
    }
}
