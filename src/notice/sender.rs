use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::{ChannelSender, FabricError, PeerAddress, Sent, UnicastSender};
use crate::id::TopicId;
use crate::layout::notice::{DatagramDraft, DatagramHeader, Inline, Notice, NoticeKey};
use crate::limits;
use crate::random;

/// The sending end of a notice channel, shared by all publishers of a node. It allocates nothing once started.
///
/// When the channel is full, the newest notice of each topic is queued, and sent with the next one or by [`Self::flush`].
#[derive(Debug)]
pub(crate) struct NoticeSender {
    channel: Arc<dyn ChannelSender>,
    /// The random number of this incarnation.
    pub(crate) identity: u64,
    state: Mutex<NoticeSenderState>,
}

#[derive(Debug)]
struct NoticeSenderState {
    draft: DatagramDraft,
    /// The number of the last datagram sent.
    number: u64,
    topics: HashMap<TopicId, NoticeKey>,
    /// Queued notices, at most one of each topic, with its key.
    pending: VecDeque<(Notice, NoticeKey)>,
    /// Receivers served by unicast too.
    receivers: Vec<UnicastReceiver>,
}

/// A receiver served by unicast.
#[derive(Debug)]
struct UnicastReceiver {
    /// Where it is.
    peer: PeerAddress,
    /// The secret of its session.
    secret: NoticeKey,
    sender: Arc<dyn UnicastSender>,
}

/// Why a topic or receiver could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegisterError {
    /// The number of topics is at its maximum.
    #[error("a node has notices for at most {max} topics", max = limits::TOPICS_MAX)]
    Topics,
    /// The number of receivers is at its maximum.
    #[error(
        "a node sends notices by unicast to at most {max} receivers: make the multicast reach them",
        max = limits::UNICAST_RECEIVERS_MAX
    )]
    Receivers,
    /// The number of receivers of one peer is at its maximum.
    #[error(
        "a node sends notices by unicast to at most {max} receivers of one host: make the multicast reach it",
        max = limits::UNICAST_RECEIVERS_PER_PEER_MAX
    )]
    ReceiversOfPeer,
}

impl NoticeSender {
    /// The sending end of this channel, with a random identity.
    pub(crate) fn new(channel: Arc<dyn ChannelSender>) -> Result<Self, FabricError> {
        let len_max = channel.datagram_len_max().min(limits::NOTICE_DATAGRAM_LEN_MAX);
        let draft = DatagramDraft::new(len_max).ok_or_else(|| {
            let reason = format!("datagrams of {len_max} bytes are too short for a notice");
            FabricError::System { what: "send notices", source: io::Error::other(reason) }
        })?;
        let state = NoticeSenderState {
            draft,
            number: 0,
            topics: HashMap::new(),
            pending: VecDeque::new(),
            receivers: Vec::with_capacity(limits::UNICAST_RECEIVERS_MAX),
        };
        let identity = random::number().map_err(FabricError::no_random)?;
        Ok(Self { channel, identity, state: Mutex::new(state) })
    }

    /// The ticket by which receivers join.
    pub(crate) fn ticket(&self) -> &[u8] {
        self.channel.ticket()
    }

    /// The number of receivers served by unicast.
    #[cfg(test)]
    pub(crate) fn unicast_receivers(&self) -> usize {
        self.state.lock().receivers.len()
    }

    /// Sends a notice to all that nobody published, as one could who knows this key and passes for this sender.
    #[cfg(test)]
    pub(crate) fn forge(&self, notice: &Notice, key: NoticeKey, inline: Option<Inline<'_>>) {
        let state = &mut *self.state.lock();
        state.draft.clear();
        assert!(state.draft.push(notice, &key, inline));
        state.number += 1;
        let (channel, number) = (self.identity, state.number);
        let header = DatagramHeader { is_beacon: false, is_unicast: false, channel, number };
        assert_eq!(self.channel.send(state.draft.seal(&header)).expect("a channel"), Sent::Done);
    }

    /// Registers a topic with the key of its notices.
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

    /// Removes the topic whose notices have this key. A later incarnation has another key, and stays.
    pub(crate) fn forget(&self, topic: TopicId, key: NoticeKey) {
        let mut state = self.state.lock();
        if state.topics.get(&topic) == Some(&key) {
            state.topics.remove(&topic);
        }
        state.pending.retain(|(waiting, its_key)| waiting.topic != topic || *its_key != key);
    }

    /// Also sends every datagram to this receiver by unicast, under the keys of the session with this secret, until
    /// [`Self::remove_unicast`].
    pub(crate) fn add_unicast(
        &self,
        (peer, secret): (PeerAddress, NoticeKey),
        sender: Arc<dyn UnicastSender>,
    ) -> Result<(), RegisterError> {
        let receivers = &mut self.state.lock().receivers;
        if receivers.len() >= limits::UNICAST_RECEIVERS_MAX {
            return Err(RegisterError::Receivers);
        }
        let of_peer = receivers.iter().filter(|known| known.peer == peer).count();
        if of_peer >= limits::UNICAST_RECEIVERS_PER_PEER_MAX {
            return Err(RegisterError::ReceiversOfPeer);
        }
        receivers.push(UnicastReceiver { peer, secret, sender });
        Ok(())
    }

    /// Ends [`Self::add_unicast`].
    pub(crate) fn remove_unicast(&self, receiver: &Arc<dyn UnicastSender>) {
        self.state.lock().receivers.retain(|known| !Arc::ptr_eq(&known.sender, receiver));
    }

    /// Announces a commit in one datagram, with as many queued notices as fit. Omits inline bytes that do not fit. Skips a topic
    /// that is not registered.
    ///
    /// Returns whether anything is queued now: call [`Self::flush`] soon. After an error nothing of that datagram is queued; the
    /// next heartbeat repeats it.
    pub(crate) fn announce(&self, notice: &Notice, inline: Option<Inline<'_>>) -> Result<bool, FabricError> {
        let state = &mut *self.state.lock();
        if let Some(key) = state.topics.get(&notice.topic) {
            state.draft.clear();
            state.draft.push(notice, key, inline);
            state.pending.retain(|(waiting, _)| waiting.topic != notice.topic);
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

    /// Sends what is queued. Returns whether anything still is.
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

    /// Sends a beacon with what these topics have reached, which receivers acknowledge and which makes up for lost notices. Call
    /// it every [`limits::HEARTBEAT_INTERVAL_NS`]. Other threads cannot announce while the iterator runs.
    ///
    /// Returns whether anything is queued now.
    pub(crate) fn heartbeat(&self, notices: impl IntoIterator<Item = Notice>) -> Result<bool, FabricError> {
        let mut notices = notices.into_iter();
        let mut is_full = false;
        loop {
            // Other threads may send between two datagrams.
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
    /// Adds queued notices to the draft, as many as fit. Returns their number.
    fn take_along(&mut self) -> usize {
        let draft = &mut self.draft;
        self.pending.iter().take_while(|(notice, key)| draft.push(notice, key, None)).count()
    }

    /// Sends the draft by multicast and then by unicast. Failures of unicast are not reported.
    fn send(&mut self, sender: &NoticeSender, is_beacon: bool) -> Result<Sent, FabricError> {
        let (channel, number) = (sender.identity, self.number + 1);
        let header = DatagramHeader { is_beacon, is_unicast: false, channel, number };
        let outcome = sender.channel.send(self.draft.seal(&header));
        // After an error other receivers may still be reached.
        if let Ok(Sent::Full) = outcome {
            return outcome;
        }
        self.number = number;
        let header = DatagramHeader { is_unicast: true, ..header };
        for UnicastReceiver { secret, sender, .. } in &self.receivers {
            // The next beacon makes up for a failure.
            let _ = sender.send(self.draft.seal_for(&header, secret));
        }
        outcome
    }

    /// Queues the first entries of the draft, except those superseded in the queue.
    fn defer_first(&mut self, count: usize) {
        for (notice, key) in self.draft.notices().iter().take(count) {
            match self.pending.iter_mut().find(|(waiting, _)| waiting.topic == notice.topic) {
                None => {
                    debug_assert!(self.pending.len() < self.topics.len(), "more than registered");
                    self.pending.push_back((*notice, *key));
                }
                Some((waiting, _)) if waiting.epoch != notice.epoch || waiting.sequence < notice.sequence => {
                    *waiting = *notice;
                }
                Some(_) => {}
            }
        }
    }
}
