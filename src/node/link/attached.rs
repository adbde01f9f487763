//! What a session and a subscription share of an attachment.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::control::{Grant, NoticesBy, RefuseReason, SubscriberCounts};
use crate::fabric::{KeyedWaker, Offer, Registration};
use crate::id::{Delivery, KindOptions, SlowPolicy, TopicName};
use crate::subscriber::TopicEnd;
use crate::sync::atomic::{AtomicBool, Ordering};

/// One attachment of a link.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) topic: TopicName,
    pub(super) ended: AtomicBool,
    pub(super) delivery: Delivery,
    /// Its progress slot, which the peer reads, and its policy.
    pub(super) progress: Option<(Arc<Registration>, SlowPolicy)>,
    /// The publisher takes it into account before it overwrites records.
    pub(super) gating: AtomicBool,
    /// Inline values are taken from multicast even if peers are told apart by keys.
    pub(super) trusts_fellows: bool,
    /// The topic ended some time ago: reading must stop.
    pub(super) shut: AtomicBool,
    pub(super) inbox: Mutex<Inbox>,
}

#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) answer: Option<Answer>,
    pub(super) end: Option<TopicEnd>,
    /// The landing region, to be sent, and kept while the publisher may write it.
    pub(super) landing: Option<Arc<Registration>>,
    /// The sending end of its waiter's wake socket, to be sent.
    pub(super) socket: Option<Arc<OwnedFd>>,
    /// Wakes its waiter.
    pub(super) waker: Option<KeyedWaker>,
    /// Its subscriber has left.
    pub(super) has_left: bool,
    /// Its subscriber left before the answer: detach then, with these counts.
    pub(super) leaving: Option<SubscriberCounts>,
}

/// A request to a publisher.
#[derive(Debug)]
pub(in crate::node) struct Request {
    pub(in crate::node) topic: TopicName,
    pub(in crate::node) delivery: Delivery,
    pub(in crate::node) schema_hash: Option<u64>,
    pub(in crate::node) options: KindOptions,
    /// The policy of a subscriber that reports its progress.
    pub(in crate::node) progress: Option<SlowPolicy>,
    /// Whether it takes values that other subscribers of the topic could have made.
    pub(in crate::node) trusts_fellows: bool,
}

/// A publisher's answer.
#[derive(Debug)]
pub(in crate::node) enum Answer {
    Granted { grant: Grant, offer: Option<Box<dyn Offer>> },
    Exposed,
    Notices { by: NoticesBy, offer: Option<Box<dyn Offer>> },
    WakeSlot(Option<u32>),
    Refused { reason: RefuseReason, text: String },
}

impl Attached {
    /// Ends the attachment for its subscriber. The first reason stays.
    pub(super) fn finish(&self, end: TopicEnd) {
        let mut inbox = self.inbox.lock();
        inbox.end.get_or_insert(end);
        // Release: a thread that reads the flag finds the reason. Pairs with the Acquire in `has_ended`.
        self.ended.store(true, Ordering::Release);
        if let Some(waker) = &inbox.waker {
            waker.wake();
        }
    }
}
