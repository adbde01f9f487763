use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::mailbox::Mailbox;
use crate::fabric::{ChannelReceiver, DatagramReach, FabricError};
use crate::id::{Epoch, TopicId};
use crate::layout::WORD;
use crate::layout::notice::{self, DatagramHeader, Entry, NoticeKey};
use crate::limits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The receiving end of a channel of notices, shared by all subscriptions of a process to one peer. Whoever looks takes
/// what has come for all of them. After start it allocates nothing.
///
/// What comes is believed for a subscription if its MAC is right for that, and if it is newer than the last that came the
/// same way: to all, or to this receiver alone.
#[derive(Debug)]
pub(crate) struct NoticeReceiver {
    channel: u64,
    return_ticket: Box<[u8]>,
    state: Mutex<NoticeReceiverState>,
    /// What can be waited for, as soon as somebody does.
    handle: OnceLock<OwnedFd>,
    /// How often datagrams were missing.
    gaps: Arc<AtomicU64>,
    multicast: Heard,
    unicast: Heard,
}

#[derive(Debug)]
struct NoticeReceiverState {
    receiver: Box<dyn ChannelReceiver>,
    buffer: Box<[u64]>,
    topics: HashMap<TopicId, Vec<Incarnation>>,
    numbers: Numbers,
    counts: NoticeCounts,
}

/// The subscriptions of one incarnation of a topic.
#[derive(Debug)]
struct Incarnation {
    epoch: Epoch,
    key: NoticeKey,
    /// The newest number that came to all, and that came alone.
    newest: [u64; 2],
    /// When a notice was last believed, nanoseconds of the caller's clock.
    believed_ns: u64,
    mailboxes: Vec<Weak<Mailbox>>,
}

/// What was heard in one way. Written under the lock of the receiver.
#[derive(Debug, Default)]
struct Heard {
    /// When, in nanoseconds of the caller's clock; 0 for never.
    at_ns: AtomicU64,
    /// A beacon that nobody has asked about.
    beacon: AtomicBool,
}

/// The numbers of the datagrams of the channel.
#[derive(Debug, Default)]
struct Numbers {
    /// The newest one that was believed; 0 for none.
    newest: u64,
    /// The newest one since then that was not.
    doubtful: u64,
    /// How many there were of those.
    doubtful_count: u64,
}

/// What a receiver of notices has counted.
///
/// Each datagram is one of `other_channel`, `malformed` and those that hold entries; each entry is one of `entries`, `stale`,
/// `foreign`, `other_epoch` and `forged`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoticeCounts {
    /// Datagrams that came.
    pub datagrams: u64,
    /// Datagrams that the medium did not let through: from somebody else than the sender, or too long. They are not among
    /// those that came.
    pub passed_over: u64,
    /// Datagrams that are no notices, or of another version, or not whole. Entries before the damage count.
    pub malformed: u64,
    /// Datagrams of another channel.
    pub other_channel: u64,
    /// Datagrams that had not come when a later one did, as far as the number of that one is believed: where it is more than
    /// 1,048,576 ahead of all before, none are counted.
    pub lost: u64,
    /// Entries that were believed, and new.
    pub entries: u64,
    /// Entries that were no newer than what had come already.
    pub stale: u64,
    /// Entries of topics that nobody here subscribes to.
    pub foreign: u64,
    /// Entries of another incarnation of a topic.
    pub other_epoch: u64,
    /// Entries with a wrong MAC, or in a datagram whose number is too far ahead to be believed at once.
    pub forged: u64,
    /// Pieces of repositories that came inline, for each subscription.
    pub inline_taken: u64,
    /// Those of them that a subscription did not take before its room was used up.
    pub inline_dropped: u64,
    /// Subscriptions whose publisher's memory did not hold what had come inline, and that take nothing inline any more.
    pub contradicted: u64,
}

/// What tells a subscriber of news, as it looks at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoticeReach {
    /// Notices that are sent to all.
    Multicast {
        /// When the last one was heard, nanoseconds of the caller's clock.
        heard_ns: u64,
    },
    /// Notices that are sent to this receiver alone.
    Unicast {
        /// When the last one was heard, nanoseconds of the caller's clock.
        heard_ns: u64,
    },
    /// None are heard: only looking helps.
    Timer,
}

impl NoticeReceiver {
    /// The receiving end of the channel that has this number.
    pub(crate) fn new(receiver: Box<dyn ChannelReceiver>, channel: u64) -> Self {
        let return_ticket = receiver.return_ticket().into();
        let state = NoticeReceiverState {
            receiver,
            buffer: vec![0; limits::NOTICE_DATAGRAM_LEN_MAX / WORD].into(),
            topics: HashMap::new(),
            numbers: Numbers::default(),
            counts: NoticeCounts::default(),
        };
        let (multicast, unicast) = (Heard::default(), Heard::default());
        let (state, handle, gaps) = (Mutex::new(state), OnceLock::new(), Arc::default());
        Self { channel, return_ticket, state, handle, gaps, multicast, unicast }
    }

    /// What the sender has to know to reach this receiver alone.
    pub(crate) fn return_ticket(&self) -> &[u8] {
        &self.return_ticket
    }

    /// Begins to listen for notices of this incarnation of a topic, until the mailbox is dropped.
    pub(crate) fn subscribe(&self, topic: TopicId, epoch: Epoch, key: NoticeKey) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::new(topic, epoch, Arc::clone(&self.gaps)));
        let state = &mut *self.state.lock();
        state.topics.retain(|_, incarnations| {
            incarnations.retain_mut(|incarnation| {
                incarnation.mailboxes.retain(|mailbox| mailbox.strong_count() > 0);
                !incarnation.mailboxes.is_empty()
            });
            !incarnations.is_empty()
        });
        let incarnations = state.topics.entry(topic).or_default();
        let same = incarnations.iter_mut().find(|it| it.epoch == epoch && it.key == key);
        match same {
            Some(incarnation) => incarnation.mailboxes.push(Arc::downgrade(&mailbox)),
            None => {
                let mailboxes = vec![Arc::downgrade(&mailbox)];
                incarnations.push(Incarnation { epoch, key, newest: [0; 2], believed_ns: 0, mailboxes });
            }
        }
        mailbox
    }

    /// Takes what has come, up to [`limits::NOTICES_PER_TURN_MAX`] datagrams, and puts it into the mailboxes. Whether there
    /// may be more. Where another thread is at it, that does it for this one too.
    pub(crate) fn turn(&self, now_ns: u64) -> Result<bool, FabricError> {
        let Some(mut state) = self.state.try_lock() else { return Ok(false) };
        for _ in 0..limits::NOTICES_PER_TURN_MAX {
            let NoticeReceiverState { receiver, buffer, .. } = &mut *state;
            let Some(datagram) = receiver.receive(bytemuck::cast_slice_mut(buffer))? else {
                return Ok(false);
            };
            if let Some(header) = self.handle(&mut state, datagram.len, now_ns) {
                // What says that it was sent in one way and comes in the other tells nothing of either.
                match (datagram.reach, header.is_unicast) {
                    (DatagramReach::Multicast, false) => self.multicast.note(now_ns, header.is_beacon),
                    (DatagramReach::Unicast, true) => self.unicast.note(now_ns, header.is_beacon),
                    _ => {}
                }
            }
        }
        Ok(true)
    }

    /// What tells of news at this moment: notices that were heard at most [`limits::NOTICE_SILENCE_NS`] ago, preferably such
    /// as are sent to all.
    pub(crate) fn reach(&self, now_ns: u64) -> NoticeReach {
        if let Some(heard_ns) = self.multicast.lately(now_ns) {
            return NoticeReach::Multicast { heard_ns };
        }
        self.unicast.lately(now_ns).map_or(NoticeReach::Timer, |heard_ns| NoticeReach::Unicast { heard_ns })
    }

    /// Whether a beacon was heard since this was last asked, and how; preferably one that was sent to all.
    pub(crate) fn beacon(&self) -> Option<DatagramReach> {
        // Both are asked, so that what was heard is told once.
        let (multicast, unicast) = (self.multicast.take_beacon(), self.unicast.take_beacon());
        match (multicast, unicast) {
            (true, _) => Some(DatagramReach::Multicast),
            (false, true) => Some(DatagramReach::Unicast),
            (false, false) => None,
        }
    }

    /// Takes note of a subscription that was told inline what is not true.
    pub(crate) fn count_contradiction(&self) {
        self.state.lock().counts.contradicted += 1;
    }

    /// What has been counted so far.
    pub(crate) fn counts(&self) -> NoticeCounts {
        let state = self.state.lock();
        NoticeCounts { passed_over: state.receiver.passed_over(), ..state.counts }
    }

    /// Becomes readable when something has come: [`Self::turn`] then, until there is no more. To be asked for before each wait.
    /// `None` in a simulation.
    pub(crate) fn wait_handle(&self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        let state = &mut *self.state.lock();
        let Some(handle) = state.receiver.wait_handle()? else { return Ok(None) };
        // That of the receiver is not to be had without the lock.
        let own = match self.handle.get() {
            Some(own) => own,
            None => {
                let failed = |source| FabricError::System { what: "wait for notices", source };
                let own = handle.try_clone_to_owned().map_err(failed)?;
                self.handle.get_or_init(|| own)
            }
        };
        Ok(Some(own.as_fd()))
    }

    /// Goes through the datagram in the buffer. Its header, if that is believed.
    fn handle(&self, state: &mut NoticeReceiverState, len: usize, now_ns: u64) -> Option<DatagramHeader> {
        let NoticeReceiverState { buffer, topics, numbers, counts, .. } = state;
        counts.datagrams += 1;
        let Ok((header, entries)) = notice::parse(buffer, len) else {
            counts.malformed += 1;
            return None;
        };
        if header.channel != self.channel {
            counts.other_channel += 1;
            return None;
        }
        let arrival = Arrival { header: &header, is_leap: numbers.is_leap(header.number), now_ns };
        let mut best = None;
        for entry in entries {
            let verdict = match entry {
                Ok(entry) => deliver(topics, &arrival, &entry, counts),
                Err(_) => {
                    counts.malformed += 1;
                    Verdict::Forged
                }
            };
            best = best.max(Some(verdict));
        }
        match best {
            Some(Verdict::Leap | Verdict::Copy | Verdict::New) => {}
            Some(Verdict::Foreign) => {
                numbers.doubt(header.number);
                return None;
            }
            None | Some(Verdict::Forged | Verdict::Stale) => return None,
        }
        let lost = numbers.believe(header.number);
        if lost > 0 {
            // Of a number that nobody knows to be true one only learns that something may be missing.
            counts.lost = counts.lost.saturating_add(if best == Some(Verdict::Leap) { 0 } else { lost });
            // Relaxed: a mark that something should be looked at soon.
            self.gaps.fetch_add(1, Ordering::Relaxed);
        }
        (best != Some(Verdict::Leap)).then_some(header)
    }
}

/// Puts an entry into the mailboxes of those who subscribe to it, if it is to be believed and new. What to make of it.
fn deliver(
    topics: &mut HashMap<TopicId, Vec<Incarnation>>,
    arrival: &Arrival<'_>,
    entry: &Entry<'_>,
    counts: &mut NoticeCounts,
) -> Verdict {
    let topic = entry.notice.topic;
    let Some(incarnations) = topics.get_mut(&topic) else {
        counts.foreign += 1;
        return Verdict::Foreign;
    };
    let (mut verdict, mut is_deserted) = (None, false);
    for incarnation in incarnations.iter_mut().filter(|it| it.epoch == entry.notice.epoch) {
        let judged = incarnation.judge(arrival, entry);
        if judged == Verdict::New {
            let (taken, dropped) = incarnation.put(entry);
            counts.inline_taken += taken;
            counts.inline_dropped += dropped;
            is_deserted |= incarnation.mailboxes.is_empty();
        }
        verdict = verdict.max(Some(judged));
    }
    match verdict {
        None => counts.other_epoch += 1,
        Some(Verdict::Foreign | Verdict::Forged | Verdict::Leap) => counts.forged += 1,
        Some(Verdict::Stale | Verdict::Copy) => counts.stale += 1,
        Some(Verdict::New) => counts.entries += 1,
    }
    if is_deserted {
        incarnations.retain(|incarnation| !incarnation.mailboxes.is_empty());
        if incarnations.is_empty() {
            topics.remove(&topic);
        }
    }
    verdict.unwrap_or(Verdict::Stale)
}

/// A datagram that has arrived.
struct Arrival<'a> {
    header: &'a DatagramHeader,
    /// Its number is further ahead than can be believed at once.
    is_leap: bool,
    /// When, nanoseconds of the caller's clock.
    now_ns: u64,
}

/// What to make of an entry, the better the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// Nobody here subscribes to its topic.
    Foreign,
    /// Its MAC is wrong.
    Forged,
    /// It is no newer than what came the same way, or for another incarnation.
    Stale,
    /// Its MAC is right, and its number further ahead than can be believed at once.
    Leap,
    /// It is what it says, and came the other way a little before.
    Copy,
    /// It is what it says.
    New,
}

impl Incarnation {
    fn judge(&mut self, arrival: &Arrival<'_>, entry: &Entry<'_>) -> Verdict {
        let Arrival { header, is_leap, now_ns } = *arrival;
        // Beacons come more often than that: the newest number was a lie, if not all of them were lost.
        let is_deaf = now_ns.saturating_sub(self.believed_ns) >= limits::NOTICE_SILENCE_NS;
        let [multicast, unicast] = &mut self.newest;
        let (same_way, other_way) =
            if header.is_unicast { (unicast, multicast) } else { (multicast, unicast) };
        if header.number <= *same_way && !is_deaf {
            return Verdict::Stale;
        }
        if !entry.is_authentic(&self.key) {
            return Verdict::Forged;
        }
        if is_leap {
            return Verdict::Leap;
        }
        *same_way = header.number;
        let verdict = match other_way.checked_sub(header.number) {
            None => Verdict::New,
            // What nobody has heard of yet is no copy: the number that came in the other way was a lie.
            Some(ahead) if ahead <= limits::CHANNEL_RECEIVES as u64 => {
                let sequence = entry.notice.sequence;
                let is_unheard = |mailbox: Arc<Mailbox>| mailbox.hint().sequence < sequence;
                let is_new = self.mailboxes.iter().filter_map(Weak::upgrade).any(is_unheard);
                if is_new { Verdict::New } else { Verdict::Copy }
            }
            // Both ways are about as fast: that what was heard in the other way is so far ahead was a lie.
            Some(_) if is_deaf => {
                *other_way = 0;
                Verdict::New
            }
            Some(_) => Verdict::Stale,
        };
        if verdict >= Verdict::Copy {
            self.believed_ns = now_ns;
        }
        verdict
    }

    /// Puts an entry into all mailboxes; how many pieces were taken, and how many dropped.
    fn put(&mut self, entry: &Entry<'_>) -> (u64, u64) {
        let (mut taken, mut dropped) = (0, 0);
        self.mailboxes.retain(|mailbox| {
            let Some(mailbox) = mailbox.upgrade() else { return false };
            taken += u64::from(!entry.inline.is_empty());
            dropped += mailbox.put(entry);
            true
        });
        (taken, dropped)
    }
}

impl Numbers {
    /// Takes note of a datagram that is believed; how many before it are missing.
    fn believe(&mut self, number: u64) -> u64 {
        if self.newest.saturating_sub(number) > limits::CHANNEL_RECEIVES as u64 {
            // No datagram is so late: the newest number was a lie.
            *self = Self::default();
        }
        if number <= self.newest {
            return 0;
        }
        let missing = if self.newest == 0 { 0 } else { number - self.newest - 1 };
        let lost = missing.saturating_sub(self.doubtful_count);
        *self = Self { newest: number, doubtful: number, doubtful_count: 0 };
        lost
    }

    /// Whether a number is further ahead than can be believed at once: who may read a topic can make one up. After so many
    /// losses the next datagram is believed.
    fn is_leap(&self, number: u64) -> bool {
        self.newest != 0 && number.saturating_sub(self.newest) > limits::NOTICE_LEAP_MAX
    }

    /// Takes note of a datagram that is not: it may be one that this process does not subscribe to anything of.
    fn doubt(&mut self, number: u64) {
        if number > self.doubtful.max(self.newest) {
            self.doubtful = number;
            self.doubtful_count += 1;
        }
    }
}

impl Heard {
    fn note(&self, now_ns: u64, is_beacon: bool) {
        // Relaxed: each is a number of its own.
        self.at_ns.store(now_ns.max(1), Ordering::Relaxed);
        if is_beacon {
            self.beacon.store(true, Ordering::Relaxed);
        }
    }

    /// When something was heard, unless that is long ago.
    fn lately(&self, now_ns: u64) -> Option<u64> {
        // Relaxed: see `note`.
        let at_ns = self.at_ns.load(Ordering::Relaxed);
        (at_ns != 0 && now_ns.saturating_sub(at_ns) < limits::NOTICE_SILENCE_NS).then_some(at_ns)
    }

    fn take_beacon(&self) -> bool {
        // Relaxed: see `note`.
        self.beacon.swap(false, Ordering::Relaxed)
    }
}
