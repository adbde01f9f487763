use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::{ChannelSender, FabricError, Sent, UnicastSender};
use crate::id::TopicId;
use crate::layout::notice::{DatagramDraft, DatagramHeader, Inline, Notice, NoticeKey};
use crate::limits;
use crate::random;

/// The sending end of a channel of notices, shared by all publishers of a node. After start it allocates nothing.
///
/// What the channel has no room for waits, the newest notice of each topic, until it is sent with the next one or by
/// [`Self::flush`].
#[derive(Debug)]
pub(crate) struct NoticeSender {
    channel: Arc<dyn ChannelSender>,
    /// The random number of this incarnation.
    identity: u64,
    state: Mutex<NoticeSenderState>,
}

#[derive(Debug)]
struct NoticeSenderState {
    draft: DatagramDraft,
    /// The number of the last datagram that was sent.
    number: u64,
    topics: HashMap<TopicId, NoticeKey>,
    /// What waits for room: at most one notice of each topic, with its key.
    pending: VecDeque<(Notice, NoticeKey)>,
    /// Those that get every datagram alone, too.
    receivers: Vec<Arc<dyn UnicastSender>>,
    counts: NoticeSenderCounts,
}

/// What a sender of notices has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) struct NoticeSenderCounts {
    /// Datagrams that were sent to all.
    pub(crate) sent: u64,
    /// Datagrams that were sent to one receiver alone.
    pub(crate) unicast_sent: u64,
    /// Datagrams that could not be sent to one receiver alone.
    pub(crate) unicast_failed: u64,
    /// Notices that had to wait for room.
    pub(crate) deferred: u64,
    /// Notices that were replaced by newer ones while they waited.
    pub(crate) coalesced: u64,
}

/// Why something cannot be taken note of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegisterError {
    /// There are as many topics as there can be.
    #[error("a node has notices for {max} topics at most", max = limits::TOPICS_MAX)]
    Topics,
    /// There are as many receivers as there can be.
    #[error(
        "a node sends notices to {max} receivers alone at most: see to it that the multicast reaches them",
        max = limits::UNICAST_RECEIVERS_MAX
    )]
    Receivers,
}

impl NoticeSender {
    /// The sending end of this channel, under a random number of its own.
    pub(crate) fn new(channel: Arc<dyn ChannelSender>) -> io::Result<Self> {
        let len_max = channel.datagram_len_max().min(limits::NOTICE_DATAGRAM_LEN_MAX);
        let draft = DatagramDraft::new(len_max).ok_or_else(|| {
            let reason = format!("datagrams of {len_max} bytes are too short for a notice");
            io::Error::new(io::ErrorKind::InvalidInput, reason)
        })?;
        let state = NoticeSenderState {
            draft,
            number: 0,
            topics: HashMap::new(),
            pending: VecDeque::new(),
            receivers: Vec::with_capacity(limits::UNICAST_RECEIVERS_MAX),
            counts: NoticeSenderCounts::default(),
        };
        Ok(Self { channel, identity: random::number()?, state: Mutex::new(state) })
    }

    /// The random number that a receiver must know this sender by.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// What a receiver has to know to join.
    pub(crate) fn ticket(&self) -> &[u8] {
        self.channel.ticket()
    }

    /// What has been counted so far.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> NoticeSenderCounts {
        self.state.lock().counts
    }

    /// How many receivers are sent to alone.
    #[cfg(test)]
    pub(crate) fn lone_receivers(&self) -> usize {
        self.state.lock().receivers.len()
    }

    /// Makes room for the notices of a topic, and takes note of their key.
    pub(crate) fn register(&self, topic: TopicId, key: NoticeKey) -> Result<(), RegisterError> {
        let mut state = self.state.lock();
        if state.topics.len() >= limits::TOPICS_MAX && !state.topics.contains_key(&topic) {
            return Err(RegisterError::Topics);
        }
        state.topics.insert(topic, key);
        let missing = state.topics.len() - state.pending.len();
        state.pending.reserve(missing);
        Ok(())
    }

    /// Forgets a topic whose notices have this key: they are sent no more. Those of a later incarnation of the topic have
    /// another key, and are.
    pub(crate) fn forget(&self, topic: TopicId, key: NoticeKey) {
        let mut state = self.state.lock();
        if state.topics.get(&topic) == Some(&key) {
            state.topics.remove(&topic);
        }
        state.pending.retain(|(waiting, its_key)| waiting.topic != topic || *its_key != key);
    }

    /// Sends every datagram to this receiver alone too, until [`Self::remove_unicast`].
    pub(crate) fn add_unicast(&self, receiver: Arc<dyn UnicastSender>) -> Result<(), RegisterError> {
        let receivers = &mut self.state.lock().receivers;
        if receivers.len() >= limits::UNICAST_RECEIVERS_MAX {
            return Err(RegisterError::Receivers);
        }
        receivers.push(receiver);
        Ok(())
    }

    /// Takes back [`Self::add_unicast`].
    pub(crate) fn remove_unicast(&self, receiver: &Arc<dyn UnicastSender>) {
        self.state.lock().receivers.retain(|known| !Arc::ptr_eq(known, receiver));
    }

    /// Tells of a commit, with one datagram, and takes along as much of what waits as fits. Inline bytes that do not fit are
    /// left out. A topic that is not registered is passed over.
    ///
    /// Whether anything waits for room now: [`Self::flush`] soon. After an error nothing of that datagram waits; the next
    /// heartbeat tells of it.
    pub(crate) fn announce(&self, notice: &Notice, inline: Option<Inline<'_>>) -> Result<bool, FabricError> {
        let state = &mut *self.state.lock();
        if let Some(key) = state.topics.get(&notice.topic) {
            state.draft.clear();
            state.draft.push(notice, key, inline);
            let waiting = state.pending.len();
            state.pending.retain(|(waiting, _)| waiting.topic != notice.topic);
            state.counts.coalesced += (waiting - state.pending.len()) as u64;
            let taken = state.take_along();
            match state.send(self, false) {
                Ok(Sent::Full) => state.defer_first(1),
                outcome => {
                    state.pending.drain(..taken);
                    outcome?;
                }
            }
        }
        Ok(!state.pending.is_empty())
    }

    /// Sends what waits for room. Whether anything still does.
    pub(crate) fn flush(&self) -> Result<bool, FabricError> {
        let state = &mut *self.state.lock();
        while !state.pending.is_empty() {
            state.draft.clear();
            let taken = state.take_along();
            let outcome = state.send(self, false);
            if matches!(outcome, Ok(Sent::Full)) {
                return Ok(true);
            }
            state.pending.drain(..taken);
            outcome?;
        }
        Ok(false)
    }

    /// Tells what these topics have reached, and asks whoever hears it to acknowledge: what is lost otherwise is found by
    /// this. Sent every [`limits::HEARTBEAT_INTERVAL_NS`]. The iterator runs while other threads cannot announce.
    ///
    /// Whether anything waits for room now.
    pub(crate) fn heartbeat(&self, notices: impl IntoIterator<Item = Notice>) -> Result<bool, FabricError> {
        let mut notices = notices.into_iter();
        let mut is_full = false;
        loop {
            // Other threads come in between two datagrams.
            let state = &mut *self.state.lock();
            state.draft.clear();
            while state.draft.has_room()
                && let Some(notice) = notices.next()
            {
                if let Some(key) = state.topics.get(&notice.topic) {
                    state.draft.push(&notice, key, None);
                }
            }
            if state.draft.is_empty() {
                return Ok(!state.pending.is_empty());
            }
            is_full = is_full || matches!(state.send(self, true)?, Sent::Full);
            if is_full {
                state.defer_first(usize::MAX);
            }
        }
    }
}

impl NoticeSenderState {
    /// Puts what waits into the draft, as much as fits; how many notices that is.
    fn take_along(&mut self) -> usize {
        let draft = &mut self.draft;
        self.pending.iter().take_while(|(notice, key)| draft.push(notice, key, None)).count()
    }

    /// Sends the draft to all, and then to those who get it alone. Their failures are their own.
    fn send(&mut self, sender: &NoticeSender, is_beacon: bool) -> Result<Sent, FabricError> {
        let (channel, number) = (sender.identity, self.number + 1);
        let header = DatagramHeader { is_beacon, is_unicast: false, channel, number };
        let outcome = sender.channel.send(self.draft.seal(&header));
        match outcome {
            Ok(Sent::Full) => return Ok(Sent::Full),
            Ok(Sent::Done) => self.counts.sent += 1,
            // The others may be reached all the same.
            Err(_) => {}
        }
        self.number = number;
        if !self.receivers.is_empty() {
            let datagram = self.draft.seal(&DatagramHeader { is_unicast: true, ..header });
            for receiver in &self.receivers {
                match receiver.send(datagram) {
                    Ok(Sent::Done) => self.counts.unicast_sent += 1,
                    Ok(Sent::Full) | Err(_) => self.counts.unicast_failed += 1,
                }
            }
        }
        outcome
    }

    /// Has the first entries of the draft wait for room, but for those of which something newer does.
    fn defer_first(&mut self, count: usize) {
        for (notice, key) in self.draft.notices().iter().take(count) {
            self.counts.deferred += 1;
            match self.pending.iter_mut().find(|(waiting, _)| waiting.topic == notice.topic) {
                None => {
                    debug_assert!(self.pending.len() < self.topics.len(), "more than was registered");
                    self.pending.push_back((*notice, *key));
                }
                Some((waiting, _)) => {
                    self.counts.coalesced += 1;
                    if waiting.epoch != notice.epoch || waiting.sequence < notice.sequence {
                        *waiting = *notice;
                    }
                }
            }
        }
    }
}
