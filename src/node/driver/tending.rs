use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use crate::id::TopicName;
use crate::limits;
use crate::memory::Region;
use crate::node::agenda::Agenda;
use crate::node::core::NodeCore;
use crate::publisher::{CopyBudget, PublishedTopic, Tended};

/// How the thread of a node looks after its topics: only after those that have changed, or are due.
#[derive(Debug, Default)]
pub(super) struct Tending {
    /// The repositories of all topics that have not ended, by key: a heartbeat is a store to some of them, and nothing else.
    living: Vec<(u64, Arc<Region>)>,
    /// Heartbeats so far.
    beats: u64,
    /// Topics with landing regions that are to be brought up to date, also such as have ended.
    tended: BTreeMap<u64, Arc<PublishedTopic>>,
    /// The last incarnations that have ended, for as long as somebody uses them.
    ended: BTreeMap<TopicName, Weak<PublishedTopic>>,
    /// The landing regions of the topics from this one on are looked after first.
    first: u64,
    /// The room for copies was used up.
    is_short: bool,
    /// How often landing regions of a topic were looked after so far.
    #[cfg(test)]
    pub(super) looked_after: usize,
}

/// A session, and the number of an attachment of it.
type Attachment = (u64, u32);

impl Tending {
    /// Whether no topic lives.
    pub(super) fn is_empty(&self) -> bool {
        self.living.is_empty()
    }

    /// Whether more is to be copied to landing regions than there was room for.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Shows in the repositories whose turn it is that the node lives.
    pub(super) fn beat(&mut self, realtime_ns: u64) {
        self.beats += 1;
        let is_next = |key: u64| key % limits::HEARTBEAT_PARTS == self.beats % limits::HEARTBEAT_PARTS;
        for (_, repository) in self.living.iter().filter(|(key, _)| is_next(*key)) {
            PublishedTopic::beat(repository, realtime_ns);
        }
        self.ended.retain(|_, topic| topic.strong_count() > 0);
    }

    /// Looks after those of these topics that have changed or are due; at a beat after all that have something to be written.
    /// The attachments to which something has happened.
    pub(super) fn tend(
        &mut self,
        core: &NodeCore,
        agenda: &mut Agenda,
        keys: &BTreeSet<u64>,
        budget: &CopyBudget,
    ) -> Vec<Attachment> {
        let mut changed = Vec::new();
        let mut due = BTreeMap::new();
        if budget.is_beat() || agenda.is_blind() {
            due.append(&mut self.tended);
        }
        for key in keys {
            if let Some(topic) = self.tended.remove(key).or_else(|| core.topics().keyed(*key)) {
                if topic.has_ended() {
                    self.end(core, &topic, &mut changed);
                } else {
                    self.begin(&topic);
                }
                due.insert(*key, topic);
            }
        }
        self.tend_landings(agenda, due, budget, &mut changed);
        changed
    }

    fn begin(&mut self, topic: &PublishedTopic) {
        if let Err(index) = self.index(topic) {
            self.living.insert(index, (topic.key(), Arc::clone(topic.registration().region())));
        }
    }

    fn index(&self, topic: &PublishedTopic) -> Result<usize, usize> {
        self.living.binary_search_by_key(&topic.key(), |(key, _)| *key)
    }

    /// Takes note that a topic has ended. Of several incarnations only the last one waits for its subscribers: a topic that is
    /// opened again and again takes no more memory for them than that.
    fn end(&mut self, core: &NodeCore, topic: &Arc<PublishedTopic>, changed: &mut Vec<Attachment>) {
        if let Ok(index) = self.index(topic) {
            self.living.remove(index);
        }
        core.topics().forget(topic);
        let known = self.ended.get(topic.name()).and_then(Weak::upgrade);
        match known.filter(|known| !Arc::ptr_eq(known, topic)) {
            Some(known) if known.key() > topic.key() => topic.supersede(),
            known => {
                self.ended.insert(topic.name().clone(), Arc::downgrade(topic));
                if let Some(earlier) = known {
                    earlier.supersede();
                    changed.extend(earlier.attached());
                }
            }
        }
    }

    /// Brings landing regions up to date, also those of topics that have ended. The next time begins behind the topic for which
    /// the room for copies was used up.
    fn tend_landings(
        &mut self,
        agenda: &mut Agenda,
        mut topics: BTreeMap<u64, Arc<PublishedTopic>>,
        budget: &CopyBudget,
        changed: &mut Vec<Attachment>,
    ) {
        let after = topics.split_off(&self.first);
        self.first = 0;
        let mut left = Vec::new();
        for (key, topic) in after.into_iter().chain(topics) {
            #[cfg(test)]
            {
                self.looked_after += 1;
            }
            let had_budget = !budget.is_used_up();
            let Tended { again_ns, has_written, has_given_up } = topic.landings().tend(budget);
            if has_written {
                // Nothing else reports it.
                topic.notices().wake();
            }
            if had_budget && budget.is_used_up() {
                self.first = key + 1;
            }
            if has_given_up || topic.has_ended() {
                changed.extend(topic.attached());
            }
            // Whoever is not told of the end has something to come.
            let is_awaited = || topic.has_ended() && !topic.attached().is_empty();
            let again_ns = again_ns.or_else(|| is_awaited().then(|| budget.soon_ns()));
            agenda.set_due(key, again_ns);
            if again_ns.is_some() {
                left.push(key);
                self.tended.insert(key, topic);
            }
        }
        self.is_short = budget.is_used_up();
        if self.is_short {
            left.into_iter().for_each(|key| agenda.mark(key));
        }
    }
}
