use std::sync::Arc;

use parking_lot::Mutex;

use super::sleepers::Sleepers;
use crate::fabric::{FabricError, KeyedWaker, Registration, RemoteWaker};
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::ByteRange;
use crate::memory::Region;
use crate::notice::{Inline, Notice, NoticeKey, NoticeSender, RegisterError, WakeWord};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The audience of a topic's notices, shared by its node and its publisher.
#[derive(Debug)]
pub(crate) struct TopicNotices {
    topic: TopicId,
    epoch: Epoch,
    pub(crate) key: NoticeKey,
    /// Changes with the audience; the data path reads only this word.
    version: AtomicU64,
    audience: Mutex<Audience>,
    /// The publisher has left sleepers to the node.
    has_others: AtomicBool,
}

/// Where notices go.
#[derive(Debug, Default)]
struct Audience {
    /// Channels with subscriptions, and how many.
    channels: Vec<(Arc<NoticeSender>, usize)>,
    /// The subscribers of this host, once one has asked, and the memory of their wake word.
    sleepers: Option<(Sleepers, Arc<Registration>)>,
}

/// A subscription of a channel to a topic's notices, until dropped.
#[derive(Debug)]
pub(crate) struct NoticeRegistration {
    notices: Arc<TopicNotices>,
    sender: Arc<NoticeSender>,
}

/// Wakes a subscriber of a topic through a socket, until dropped.
#[derive(Debug)]
pub(crate) struct WakeRegistration {
    notices: Arc<TopicNotices>,
    slot: u32,
}

/// The publisher's part of [`TopicNotices`].
#[derive(Debug)]
pub(super) struct Notifier {
    notices: Arc<TopicNotices>,
    waker: KeyedWaker,
    memory: Arc<Region>,
    version: u64,
    channels: Vec<Arc<NoticeSender>>,
    sleepers: Option<Sleepers>,
}

/// What was committed.
#[derive(Clone, Copy, Debug)]
pub(super) struct News {
    pub(super) sequence: Sequence,
    /// The end of a log; otherwise 0.
    pub(super) position: u64,
    pub(super) published_ns: u64,
    /// The inline part, and its number of records.
    pub(super) inline: Option<(ByteRange, u32)>,
}

impl TopicNotices {
    /// An empty audience. The key must be unique.
    pub(super) fn new(topic: TopicId, epoch: Epoch, key: NoticeKey) -> Self {
        let (version, has_others) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { topic, epoch, key, version, audience: Mutex::default(), has_others }
    }

    /// Sends the topic's notices on this channel until the registration is dropped.
    pub(crate) fn register(
        self: &Arc<Self>,
        sender: &Arc<NoticeSender>,
    ) -> Result<NoticeRegistration, RegisterError> {
        let mut audience = self.audience.lock();
        match audience.channels.iter_mut().find(|(known, _)| Arc::ptr_eq(known, sender)) {
            Some((_, count)) => *count += 1,
            None => {
                sender.register(self.topic, self.key)?;
                audience.channels.push((Arc::clone(sender), 1));
                self.change();
            }
        }
        Ok(NoticeRegistration { notices: Arc::clone(self), sender: Arc::clone(sender) })
    }

    /// The memory of the topic's wake word, which the publisher wakes from now on. `make` allocates it for the first subscriber.
    pub(crate) fn wake_word(
        &self,
        make: impl FnOnce() -> Result<Registration, FabricError>,
    ) -> Result<Arc<Registration>, FabricError> {
        let mut audience = self.audience.lock();
        if let Some((_, registration)) = &audience.sleepers {
            return Ok(Arc::clone(registration));
        }
        let registration = Arc::new(make()?);
        let wake_word = WakeWord::of_publisher(Arc::clone(registration.region()));
        audience.sleepers = Some((Sleepers::new(wake_word), Arc::clone(&registration)));
        self.change();
        Ok(registration)
    }

    /// Wakes the sleepers of this host, after the node has written to landing regions.
    pub(crate) fn wake(&self) {
        if let Some((sleepers, _)) = &self.audience.lock().sleepers
            && sleepers.wake()
        {
            sleepers.wake_others();
        }
    }

    /// Wakes the sleepers that a publish has left to the node.
    pub(crate) fn wake_others(&self) {
        // Acquire: what was published is visible to those that are woken. Pairs with the Release in `Notifier::tell`.
        if self.has_others.swap(false, Ordering::Acquire)
            && let Some((sleepers, _)) = &self.audience.lock().sleepers
        {
            sleepers.wake_others();
        }
    }

    /// Also wakes a subscriber of this host through a socket, with this token, until the registration is dropped. Returns the slot of
    /// the wake word in which it says that it waits. `None` without a wake word, or if all slots are taken.
    pub(crate) fn wake_through(
        self: &Arc<Self>,
        waker: Arc<dyn RemoteWaker>,
        token: u32,
    ) -> Option<(WakeRegistration, u32)> {
        let mut audience = self.audience.lock();
        let slot = audience.sleepers.as_mut()?.0.add(waker, token)?;
        self.change();
        Some((WakeRegistration { notices: Arc::clone(self), slot }, slot))
    }

    /// Whether this channel has subscriptions.
    pub(crate) fn has_channel(&self, sender: &Arc<NoticeSender>) -> bool {
        self.audience.lock().channels.iter().any(|(known, _)| Arc::ptr_eq(known, sender))
    }

    /// The channels with subscriptions.
    pub(crate) fn channels(&self) -> Vec<Arc<NoticeSender>> {
        self.audience.lock().channels.iter().map(|(sender, _)| Arc::clone(sender)).collect()
    }

    /// A notice of this sequence.
    pub(crate) fn notice(&self, sequence: Sequence, position: u64, published_ns: u64) -> Notice {
        Notice { topic: self.topic, epoch: self.epoch, sequence, position, published_ns }
    }

    fn change(&self) {
        // Release: a thread that reads the number finds the audience behind the lock. Pairs with `Notifier::tell`.
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Drop for NoticeRegistration {
    fn drop(&mut self) {
        let mut audience = self.notices.audience.lock();
        let known = |(sender, _): &(Arc<NoticeSender>, usize)| Arc::ptr_eq(sender, &self.sender);
        let Some(index) = audience.channels.iter().position(known) else { return };
        let Some((_, count)) = audience.channels.get_mut(index) else { return };
        *count -= 1;
        if *count == 0 {
            audience.channels.swap_remove(index);
            self.sender.forget(self.notices.topic, self.notices.key);
            self.notices.change();
        }
    }
}

impl Drop for WakeRegistration {
    fn drop(&mut self) {
        if let Some((sleepers, _)) = &mut self.notices.audience.lock().sleepers {
            sleepers.remove(self.slot);
        }
        self.notices.change();
    }
}

impl Notifier {
    /// The publisher's part of `notices`, for this repository. `waker` wakes its node.
    pub(super) fn new(notices: Arc<TopicNotices>, memory: Arc<Region>, waker: KeyedWaker) -> Self {
        Self { notices, waker, memory, version: 0, channels: Vec::new(), sleepers: None }
    }

    /// Announces a commit to the audience. The node sends what cannot be sent at once.
    #[inline]
    pub(super) fn tell(&mut self, news: impl FnOnce() -> News) {
        // Acquire: pairs with `TopicNotices::change`.
        let version = self.notices.version.load(Ordering::Acquire);
        if version != self.version {
            self.renew(version);
        }
        if !self.channels.is_empty() {
            self.announce(&news());
        }
        if let Some(sleepers) = &self.sleepers
            && sleepers.wake()
        {
            self.leave_others();
        }
    }

    fn announce(&self, news: &News) {
        let notice = self.notices.notice(news.sequence, news.position, news.published_ns);
        let inline = news.inline.map(|(range, records)| Inline { memory: &self.memory, range, records });
        for channel in &self.channels {
            // A failed notice is made up for by the next beat, or by the subscriber's timer.
            if channel.announce(&notice, inline).unwrap_or(false) {
                self.waker.wake();
            }
        }
    }

    /// Has the node wake the other sleepers.
    #[cold]
    fn leave_others(&self) {
        // Release: see `TopicNotices::wake_others`.
        self.notices.has_others.store(true, Ordering::Release);
        self.waker.wake();
    }

    #[cold]
    fn renew(&mut self, version: u64) {
        self.version = version;
        self.channels = self.notices.channels();
        self.sleepers = self.notices.audience.lock().sleepers.as_ref().map(|(sleepers, _)| sleepers.clone());
    }
}
