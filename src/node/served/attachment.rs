use std::sync::{Arc, OnceLock};

use super::request::Asked;
use crate::control::{AttachmentId, RegionKind};
use crate::event::Event;
use crate::fabric::{ArrivalAnnouncer, FabricError, Registration, Revocation};
use crate::id::{Delivery, KindOptions, NodeName, Sequence, TopicName};
use crate::limits;
use crate::metrics::Gauge;
use crate::node::core::NodeCore;
use crate::node::serving::LandingShare;
use crate::publisher::{NoticeRegistration, PublishedTopic, TopicSubscriber, Unfinished, WakeRegistration};
use crate::sync::atomic::{AtomicBool, Ordering};

/// An attachment of the peer.
#[derive(Debug)]
pub(super) struct ServedAttachment {
    pub(super) topic: Arc<PublishedTopic>,
    /// Its number at the topic: those of the session and the attachment.
    number: (u64, u32),
    pub(super) delivery: Delivery,
    /// The options of the subscription.
    pub(super) options: KindOptions,
    /// The newest sequence at the time of the grant.
    pub(super) granted: Sequence,
    /// Ends the use of the landing region.
    pub(super) closed: Arc<AtomicBool>,
    /// Revokes the writes to it. The peer withdraws it once notified that writing has stopped.
    pub(super) revocation: Option<Arc<dyn Revocation>>,
    /// Its share of what landing regions may take.
    pub(super) landing: Option<LandingShare>,
    /// Has the writes to it wake the peer.
    pub(super) announcer: Option<Arc<dyn ArrivalAnnouncer>>,
    /// It is counted among the topic's subscribers.
    pub(super) counted: bool,
    /// Wakes the peer on this host, if requested.
    pub(super) wake_word: Option<Arc<Registration>>,
    /// Wakes the peer on this host through a socket, if requested.
    pub(super) waking: Option<WakeRegistration>,
    /// Its registration with a channel, if requested.
    pub(super) listener: Option<NoticeRegistration>,
    /// The subscriber, for the topic's publisher.
    pub(super) subscriber: Option<Arc<TopicSubscriber>>,
    /// The peer knows that it was let go.
    pub(super) is_told: bool,
    /// When the topic's end was noticed, ns.
    ended_ns: Option<u64>,
}

/// What a peer asks for, and waits for until memory is registered.
#[derive(Debug)]
pub(super) struct Preparing {
    pub(super) asked: Asked,
    pub(super) outcome: Arc<OnceLock<Result<(), FabricError>>>,
}

/// What is left of an attachment whose topic has ended, until the peer detaches from it.
#[derive(Debug)]
pub(super) struct EndedAttachment {
    pub(super) name: TopicName,
    /// It was counted among the topic's subscribers.
    pub(super) counted: bool,
    /// The topic, where the peer may still fetch from it.
    pub(super) kept: Option<Kept>,
    /// For a publisher that waits until its subscribers have received the end. `None` if it does not wait for this one.
    pub(super) unfinished: Option<Unfinished>,
}

/// An attachment that was revoked, until the peer can reach nothing of it.
#[derive(Debug)]
pub(super) struct RevokedAttachment {
    pub(super) attachment: ServedAttachment,
    /// The revocation; 0 if keys have changed.
    pub(super) serial: u64,
    /// The peer was notified, so nothing of it is written or read by this node.
    pub(super) is_told: bool,
    /// The peer can read the repository, until it is withdrawn.
    pub(super) is_readable: bool,
    /// Until when the peer may stop reading by itself: a READ of what is withdrawn would end its whole session.
    pub(super) until_ns: u64,
}

/// A topic that has ended, for a peer that may still fetch from it.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) topic: Arc<PublishedTopic>,
    pub(super) until_ns: u64,
}

impl ServedAttachment {
    /// An attachment of the session with this key.
    pub(super) fn new(
        (session, id): (u64, AttachmentId),
        topic: Arc<PublishedTopic>,
        delivery: Delivery,
        options: KindOptions,
    ) -> Self {
        let number = (session, id.get());
        topic.attach(number);
        Self {
            topic,
            number,
            delivery,
            options,
            granted: Sequence::NONE,
            closed: Arc::default(),
            revocation: None,
            landing: None,
            announcer: None,
            counted: false,
            wake_word: None,
            waking: None,
            listener: None,
            subscriber: None,
            is_told: false,
            ended_ns: None,
        }
    }

    /// Adds it to those that the publisher knows, which takes it into account from now on if it has asked for that.
    pub(super) fn add(&mut self, subscriber: TopicSubscriber) {
        self.subscriber = Some(self.topic.subscribers.add(self.number, subscriber));
    }

    /// Takes it from those that the publisher knows. No other read of its progress slot begins: the peer withdraws it once it is notified.
    pub(super) fn leave(&self) {
        self.topic.subscribers.remove(self.number);
    }

    /// Grants it while this sequence is the newest.
    pub(super) fn begin(&mut self, granted: Sequence) {
        self.granted = granted;
        if let Some(subscriber) = &self.subscriber {
            subscriber.begin_at(self.topic.begins_at(self.options, granted));
            // The node's thread watches it from now on, if it reports its progress.
            if subscriber.standing().is_some() {
                self.topic.wake();
            }
        }
    }

    /// Counts it among the topic's subscribers.
    pub(super) fn count(&mut self) {
        self.counted = true;
        let gauge = self.gauge();
        gauge.set(gauge.value() + 1);
    }

    /// Reports that this peer has attached.
    pub(super) fn tell(&self, core: &NodeCore, peer: Option<&NodeName>) {
        if let Some(peer) = peer {
            let (peer, topic) = (peer.clone(), self.topic.name.clone());
            core.tell(&Event::Attached { peer, topic, delivery: self.delivery });
        }
    }

    /// The region of this kind to send.
    pub(super) fn region(&self, kind: RegionKind) -> Option<Arc<Registration>> {
        match kind {
            RegionKind::WakeWord => self.wake_word.clone(),
            RegionKind::Values | RegionKind::Progress => Some(Arc::clone(&self.topic.registration)),
            RegionKind::Socket => None,
        }
    }

    /// Whether the topic has ended, or this attachment was overtaken, and the peer was not notified.
    pub(super) fn is_ending(&self) -> bool {
        self.topic.has_ended() || self.is_overtaken()
    }

    /// By when, after the end of the topic, the peer must have consumed enough for the last values to be written.
    pub(super) fn ended_until_ns(&self) -> Option<u64> {
        self.ended_ns.map(|ended_ns| ended_ns.saturating_add(limits::ENDED_GRACE_NS))
    }

    /// Whether to notify the peer of the topic's end now. Waits until everything was written to its landing region, unless the
    /// grace is over or the topic's next incarnation has ended too; and, unless it is late in a shutdown, until no write is in
    /// flight.
    pub(super) fn has_end_to_tell(&mut self, now_ns: u64, is_late: bool) -> bool {
        if !self.is_ending() {
            return false;
        }
        self.ended_ns.get_or_insert(now_ns);
        let is_overdue = self.ended_until_ns().is_some_and(|until_ns| until_ns <= now_ns);
        let is_given_up = is_overdue || self.topic.is_superseded() || self.is_overtaken();
        // The last value may be on its way, or have come between the handover of its region and the end.
        let owes = || self.delivery == Delivery::Push && self.topic.landings.owe(&self.closed);
        is_late || (is_given_up || !owes()) && self.is_revoked()
    }

    /// Has the writes to its landing region wake the peer from now on. Returns whether they can.
    pub(super) fn announce(&self) -> bool {
        let (_, number) = self.number;
        self.announcer.iter().for_each(|announcer| announcer.begin(number));
        self.announcer.is_some()
    }

    /// Whether its landing region waits for a stalled subscriber.
    pub(super) fn rests(&self) -> bool {
        self.topic.landings.rests(&self.closed)
    }

    /// Whether its landing region was closed by a failed write.
    pub(super) fn is_lost(&self) -> bool {
        let is_written = self.delivery == Delivery::Push && self.counted;
        is_written && self.closed.load(Ordering::Relaxed) && !self.is_overtaken()
    }

    fn gauge(&self) -> &Gauge {
        match self.delivery {
            Delivery::Pull => &self.topic.pull_subscribers,
            Delivery::Push => &self.topic.push_subscribers,
        }
    }
}

impl EndedAttachment {
    /// Until when the peer has to detach.
    pub(super) fn until_ns(&self) -> Option<u64> {
        self.kept.as_ref().map(|kept| kept.until_ns)
    }
}

impl Drop for ServedAttachment {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        self.topic.detach(self.number);
        self.leave();
        // A publisher that is idle may hold it.
        self.subscriber.iter().for_each(|subscriber| subscriber.give_up());
        if self.delivery == Delivery::Push || self.topic.has_ended() {
            // The node may hold its landing region, or keep the topic for it.
            self.topic.wake();
        }
        // The memory of a topic that has ended may be another publisher's by now.
        if self.counted && !self.topic.has_ended() {
            let gauge = self.gauge();
            gauge.set(gauge.value().saturating_sub(1));
        }
    }
}
