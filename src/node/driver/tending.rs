use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use crate::clock::{Correction, Timeline, namespace};
use crate::event::Event;
use crate::id::TopicName;
use crate::layout::clock::ClockLine;
use crate::layout::header::HOT_HEARTBEAT;
use crate::limits;
use crate::memory::Region;
use crate::node::agenda::Agenda;
use crate::node::core::NodeCore;
use crate::publisher::{CopyBudget, PublishedTopic, Tended};

/// The topics that the node's thread tends: only those that have changed or are due.
#[derive(Debug, Default)]
pub(super) struct Tending {
    /// The repositories of all topics that have not ended, by key: a heartbeat only stores to some of them.
    living: Vec<(u64, Arc<Region>)>,
    /// The timeline that they show.
    timeline: Timeline,
    /// Heartbeats so far.
    beats: u64,
    /// Topics with landing regions to be written, ended ones included.
    tended: BTreeMap<u64, Arc<PublishedTopic>>,
    /// Topics with subscribers that report their progress.
    watched: BTreeMap<u64, Arc<PublishedTopic>>,
    /// The last incarnations that have ended, while they are used.
    ended: BTreeMap<TopicName, Weak<PublishedTopic>>,
    /// The key from which the next round begins.
    first: u64,
    /// The room for copies was used up.
    pub(super) is_short: bool,
    /// How often landing regions of a topic have been tended.
    #[cfg(test)]
    pub(super) looked_after: usize,
}

/// A session and the number of one of its attachments.
type Attachment = (u64, u32);

impl Tending {
    /// Whether every topic has ended.
    pub(super) fn is_empty(&self) -> bool {
        self.living.is_empty()
    }

    /// Compares the time stamps of the node with the host's clock, and writes the heartbeat to the repositories whose turn it is.
    pub(super) fn beat(&mut self, core: &NodeCore) {
        core.time.steer(|correction| self.correct(core, correction));
        if self.timeline != core.time.timeline() {
            self.show(core, core.time.timeline());
        }
        let now_ns = core.time.now_ns();
        self.beats += 1;
        let is_next = |key: u64| key % limits::HEARTBEAT_PARTS == self.beats % limits::HEARTBEAT_PARTS;
        // Their lines are far apart: fetched together, they take a fraction of the time.
        let next = || self.living.iter().filter(|(key, _)| is_next(*key)).map(|(_, repository)| repository);
        next().for_each(|repository| repository.expect_writes(HOT_HEARTBEAT, size_of::<u64>()));
        next().for_each(|repository| PublishedTopic::beat(repository, now_ns));
        self.ended.retain(|_, topic| topic.strong_count() > 0);
    }

    /// Tends those of these topics that have changed or are due, and on a beat every topic with something to write. Returns the
    /// attachments affected.
    pub(super) fn tend(
        &mut self,
        core: &NodeCore,
        agenda: &mut Agenda,
        keys: &BTreeSet<u64>,
        budget: &CopyBudget,
    ) -> Vec<Attachment> {
        let mut changed = Vec::new();
        let mut due = BTreeMap::new();
        if budget.is_beat() {
            due.append(&mut self.tended);
            self.watch(budget.now_ns(), &mut changed);
        }
        for key in keys {
            if let Some(topic) = self.tended.remove(key).or_else(|| core.topics.keyed(*key)) {
                if topic.has_ended() {
                    self.end(core, &topic, &mut changed);
                } else {
                    self.begin(core, &topic);
                    if topic.subscribers.has_reported() {
                        self.watched.insert(*key, Arc::clone(&topic));
                    }
                }
                if topic.subscribers.take_news() {
                    changed.extend(topic.attached());
                }
                due.insert(*key, topic);
            }
        }
        self.tend_landings(agenda, due, budget, &mut changed);
        changed
    }

    /// Checks whether the nodes of subscribers that report their progress run.
    fn watch(&mut self, now_ns: u64, changed: &mut Vec<Attachment>) {
        self.watched.retain(|_, topic| {
            topic.subscribers.watch(now_ns);
            if topic.subscribers.take_news() {
                changed.extend(topic.attached());
            }
            topic.subscribers.has_reported() && !topic.has_ended()
        });
    }

    fn begin(&mut self, core: &NodeCore, topic: &PublishedTopic) {
        if let Err(index) = self.index(topic) {
            // Its publisher wrote it, but may have done so before the last correction.
            topic.show(&core.clock_line());
            self.living.insert(index, (topic.key(), Arc::clone(topic.registration.region())));
        }
    }

    /// Shows a correction to the readers of all repositories, before time stamps follow it.
    fn correct(&mut self, core: &NodeCore, correction: &Correction) {
        if correction.was_suspended {
            // The last heartbeats are from before the suspension: this node would look hung.
            let now_ns = correction.timeline.stamp_ns(core.clock.monotonic_ns());
            self.living.iter().for_each(|(_, repository)| PublishedTopic::beat(repository, now_ns));
        }
        self.show(core, correction.timeline);
        if let Some(ahead_ns) = correction.news_ns {
            core.tell(&Event::ClockSet { ahead_ns });
        }
    }

    /// Shows a timeline to the readers of all topics.
    fn show(&mut self, core: &NodeCore, timeline: Timeline) {
        self.timeline = timeline;
        let line = ClockLine { namespace: namespace(), timeline };
        let topics = self.living.iter().filter_map(|(key, _)| core.topics.keyed(*key));
        // The memory of one that has ended may be another publisher's by now.
        topics.filter(|topic| !topic.has_ended()).for_each(|topic| topic.show(&line));
    }

    fn index(&self, topic: &PublishedTopic) -> Result<usize, usize> {
        self.living.binary_search_by_key(&topic.key(), |(key, _)| *key)
    }

    /// Records that a topic has ended. Only the last of several incarnations waits for its subscribers, so that opening a topic
    /// again and again takes no more memory.
    fn end(&mut self, core: &NodeCore, topic: &Arc<PublishedTopic>, changed: &mut Vec<Attachment>) {
        if let Ok(index) = self.index(topic) {
            self.living.remove(index);
        }
        core.topics.forget(topic);
        let known = self.ended.get(&topic.name).and_then(Weak::upgrade);
        match known.filter(|known| !Arc::ptr_eq(known, topic)) {
            Some(known) if known.key() > topic.key() => topic.supersede(),
            known => {
                self.ended.insert(topic.name.clone(), Arc::downgrade(topic));
                if let Some(earlier) = known {
                    earlier.supersede();
                    changed.extend(earlier.attached());
                }
            }
        }
    }

    /// Writes landing regions, those of ended topics included. Next time begins after the topic that used up the copy budget.
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
            topic.notices.wake_others();
            let Tended { again_ns, has_written, has_given_up } = topic.landings.tend(budget);
            if has_written {
                // The publisher does not announce it.
                topic.notices.wake();
            }
            if had_budget && budget.is_used_up() {
                self.first = key + 1;
            }
            if has_given_up || topic.has_ended() {
                changed.extend(topic.attached());
            }
            // An attachment without its end is still owed something.
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
