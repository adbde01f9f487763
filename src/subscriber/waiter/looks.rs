use std::collections::{BTreeMap, BTreeSet};

/// When to look at members that nothing wakes: one time for each.
#[derive(Debug, Default)]
pub(super) struct Looks {
    /// Times, ns, and tokens.
    due: BTreeSet<(u64, u32)>,
    /// The time of each token.
    of: BTreeMap<u32, u64>,
}

impl Looks {
    /// Sets when to look at the member with this token, in place of an earlier time.
    pub(super) fn set(&mut self, token: u32, due_ns: Option<u64>) {
        let before = match due_ns {
            Some(due_ns) => self.of.insert(token, due_ns),
            None => self.of.remove(&token),
        };
        if before == due_ns {
            return;
        }
        if let Some(before_ns) = before {
            self.due.remove(&(before_ns, token));
        }
        self.due.extend(due_ns.map(|due_ns| (due_ns, token)));
    }

    /// The first time, ns.
    pub(super) fn first_ns(&self) -> Option<u64> {
        self.due.first().map(|(due_ns, _)| *due_ns)
    }

    /// Takes the token of a member that is due.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<u32> {
        let (due_ns, token) = self.due.first().copied().filter(|(due_ns, _)| *due_ns <= now_ns)?;
        self.due.remove(&(due_ns, token));
        self.of.remove(&token);
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_has_one_time_however_often_it_is_set() {
        let mut looks = Looks::default();
        (0..10_000).for_each(|due_ns| looks.set(7, Some(due_ns)));
        looks.set(8, Some(5));
        assert_eq!((looks.due.len(), looks.of.len(), looks.first_ns()), (2, 2, Some(5)));
        assert_eq!((looks.take_due(4), looks.take_due(5), looks.take_due(5)), (None, Some(8), None));
        looks.set(7, None);
        assert_eq!((looks.due.len(), looks.of.len(), looks.take_due(u64::MAX)), (0, 0, None));
    }
}
