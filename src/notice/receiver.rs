use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::mailbox::Mailbox;
use crate::fabric::{ChannelReceiver, ClosedReceiver, DatagramReach, FabricError};
use crate::id::{Epoch, TopicId};
use crate::layout::WORD;
use crate::layout::notice::{self, DatagramHeader, Entry, NoticeKey};
use crate::limits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Turns that a receiver that is closed still takes, for what has arrived.
const TURNS_TO_CLOSE: usize = 8;

/// The receiving end of a notice channel, shared by all subscriptions of a process to one peer. Whichever thread polls it
/// receives for all of them. It allocates nothing once started.
///
/// A subscription accepts an entry if its MAC is right and it is newer than the last one that came the same way, by multicast or
/// unicast. Each way has its own key: see [`NoticeKeys`].
#[derive(Debug)]
pub(crate) struct NoticeReceiver {
    channel: u64,
    return_ticket: Box<[u8]>,
    state: Mutex<NoticeReceiverState>,
    /// A handle to wait for, made on the first wait.
    handle: OnceLock<OwnedFd>,
    /// Counts the gaps, when datagrams were missing.
    gaps: Arc<AtomicU64>,
    multicast: LastHeard,
    unicast: LastHeard,
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
    keys: NoticeKeys,
    /// The newest numbers received by multicast and by unicast.
    newest: [u64; 2],
    /// When an entry was last accepted, nanoseconds of the caller's clock.
    believed_ns: u64,
    mailboxes: Vec<Weak<Mailbox>>,
}

/// The keys of the notices of one incarnation of a topic in one session, and what each is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoticeKeys {
    /// For multicast: all subscribers of the topic have it.
    pub(crate) shared: NoticeKey,
    /// For unicast: no other session has it.
    pub(crate) own: NoticeKey,
    /// Whether inline values are taken from multicast, too. Otherwise such a notice is only a hint.
    pub(crate) trusts_shared: bool,
}

/// The last arrival by multicast or unicast. Written under the receiver's lock.
#[derive(Debug, Default)]
struct LastHeard {
    /// The time, in nanoseconds of the caller's clock; 0 for never.
    at_ns: AtomicU64,
    /// A beacon that was not reported yet.
    beacon: AtomicBool,
}

/// The numbers of the datagrams of the channel.
#[derive(Debug, Default)]
struct Numbers {
    /// The newest verified one; 0 for none.
    newest: u64,
    /// The newest unverified one since then.
    doubtful: u64,
    /// How many of those there were.
    doubtful_count: u64,
}

/// The counts of a notice receiver.
///
/// Each datagram counts as `other_channel`, as `malformed`, or by its entries; each entry counts as one of `entries`, `stale`,
/// `foreign`, `other_epoch` and `forged`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoticeCounts {
    /// Datagrams received.
    pub datagrams: u64,
    /// Datagrams that the medium rejected, from another sender or too long. Not included in `datagrams`.
    pub passed_over: u64,
    /// Datagrams that are not notices, have another version, or are damaged. Entries before the damage count.
    pub malformed: u64,
    /// Datagrams of another channel.
    pub other_channel: u64,
    /// Datagrams still missing when a later one arrived. A jump of more than 1,048,576 is not trusted and counts none.
    pub lost: u64,
    /// Accepted, new entries.
    pub entries: u64,
    /// Entries no newer than earlier ones.
    pub stale: u64,
    /// Entries of topics without a subscription in this process.
    pub foreign: u64,
    /// Entries of another incarnation of a topic.
    pub other_epoch: u64,
    /// Entries with a wrong MAC, or in a datagram whose number is too far ahead to be trusted at once.
    pub forged: u64,
    /// Inline pieces put into mailboxes, counted for each subscription.
    pub inline_taken: u64,
    /// Inline pieces that came by multicast and were taken as hints only, counted for each subscription: any subscriber of the topic could
    /// have made them. See [`trust_fellow_subscribers`](crate::SubscriberBuilder::trust_fellow_subscribers).
    pub inline_untrusted: u64,
    /// Inline pieces dropped because a subscription did not take them before its mailbox was full.
    pub inline_dropped: u64,
    /// Subscriptions that ignore inline pieces because the publisher's memory contradicted one.
    pub contradicted: u64,
}

impl NoticeReceiver {
    /// The receiving end of the channel with this number.
    pub(crate) fn new(receiver: Box<dyn ChannelReceiver>, channel: u64) -> Self {
        let return_ticket = receiver.return_ticket().into();
        let state = NoticeReceiverState {
            receiver,
            buffer: vec![0; limits::NOTICE_DATAGRAM_LEN_MAX / WORD].into(),
            topics: HashMap::new(),
            numbers: Numbers::default(),
            counts: NoticeCounts::default(),
        };
        let (multicast, unicast) = (LastHeard::default(), LastHeard::default());
        let (state, handle, gaps) = (Mutex::new(state), OnceLock::new(), Arc::default());
        Self { channel, return_ticket, state, handle, gaps, multicast, unicast }
    }

    /// Takes what has arrived, and receives nothing more: the session is over, and the device may be gone.
    pub(crate) fn close(&self, now_ns: u64) {
        // A sender that floods it does not keep it open.
        for _ in 0..TURNS_TO_CLOSE {
            if !self.turn(now_ns).unwrap_or(false) {
                break;
            }
        }
        let mut state = self.state.lock();
        let closed = ClosedReceiver::after(state.receiver.as_ref());
        let receiver = std::mem::replace(&mut state.receiver, Box::new(closed));
        drop(state);
        drop(receiver);
    }

    /// The ticket by which the sender reaches this receiver by unicast.
    pub(crate) fn return_ticket(&self) -> &[u8] {
        &self.return_ticket
    }

    /// Subscribes to the notices of this incarnation of a topic, until the mailbox is dropped.
    pub(crate) fn subscribe(&self, topic: TopicId, epoch: Epoch, keys: NoticeKeys) -> Arc<Mailbox> {
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
        let same = incarnations.iter_mut().find(|it| it.epoch == epoch && it.keys == keys);
        match same {
            Some(incarnation) => incarnation.mailboxes.push(Arc::downgrade(&mailbox)),
            None => {
                let mailboxes = vec![Arc::downgrade(&mailbox)];
                incarnations.push(Incarnation { epoch, keys, newest: [0; 2], believed_ns: 0, mailboxes });
            }
        }
        mailbox
    }

    /// Receives up to [`limits::NOTICES_PER_TURN_MAX`] datagrams into the mailboxes. Returns whether there may be more. While
    /// another thread receives, that one does the work.
    pub(crate) fn turn(&self, now_ns: u64) -> Result<bool, FabricError> {
        let Some(mut state) = self.state.try_lock() else { return Ok(false) };
        for _ in 0..limits::NOTICES_PER_TURN_MAX {
            let NoticeReceiverState { receiver, buffer, .. } = &mut *state;
            let Some(datagram) = receiver.receive(bytemuck::cast_slice_mut(buffer))? else {
                return Ok(false);
            };
            if let Some(header) = self.handle(&mut state, datagram.len, now_ns) {
                // A datagram marked for one way but received the other says nothing about either.
                match (datagram.reach, header.is_unicast) {
                    (DatagramReach::Multicast, false) => self.multicast.note(now_ns, header.is_beacon),
                    (DatagramReach::Unicast, true) => self.unicast.note(now_ns, header.is_beacon),
                    _ => {}
                }
            }
        }
        Ok(true)
    }

    /// What announces news at this moment: notices that were heard at most [`limits::NOTICE_SILENCE_NS`] ago, preferably such
    /// as are sent to all.
    pub(crate) fn reach(&self, now_ns: u64) -> Option<DatagramReach> {
        preferred(self.multicast.was_lately(now_ns), self.unicast.was_lately(now_ns))
    }

    /// Whether a beacon has arrived since the last call, and how; multicast first.
    pub(crate) fn beacon(&self) -> Option<DatagramReach> {
        // Both are asked, so that what was heard is reported once.
        preferred(self.multicast.take_beacon(), self.unicast.take_beacon())
    }

    /// Counts a subscription whose inline piece was contradicted.
    pub(crate) fn count_contradiction(&self) {
        self.state.lock().counts.contradicted += 1;
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> NoticeCounts {
        let state = self.state.lock();
        NoticeCounts { passed_over: state.receiver.passed_over(), ..state.counts }
    }

    /// A handle that is readable when datagrams wait: then call [`Self::turn`] until it returns false. Get it before each wait.
    /// `None` in a simulation.
    pub(crate) fn wait_handle(&self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        let state = &mut *self.state.lock();
        let Some(handle) = state.receiver.wait_handle()? else { return Ok(None) };
        // The receiver's own handle is only available under the lock.
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

    /// Handles the datagram in the buffer. Returns its header if it is trusted.
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
            // An unverified number only shows that something may be missing.
            counts.lost = counts.lost.saturating_add(if best == Some(Verdict::Leap) { 0 } else { lost });
            // Relaxed: only prompts a read.
            self.gaps.fetch_add(1, Ordering::Relaxed);
        }
        (best != Some(Verdict::Leap)).then_some(header)
    }
}

/// How something was heard that came in these ways: preferably as what is sent to all.
fn preferred(multicast: bool, unicast: bool) -> Option<DatagramReach> {
    match (multicast, unicast) {
        (true, _) => Some(DatagramReach::Multicast),
        (false, true) => Some(DatagramReach::Unicast),
        (false, false) => None,
    }
}

/// Puts an entry into the mailboxes of its topic, if it is verified and new. Returns the verdict.
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
            incarnation.put(entry, arrival.header.is_unicast, counts);
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

/// A received datagram.
struct Arrival<'a> {
    header: &'a DatagramHeader,
    /// Its number is too far ahead to be trusted at once.
    is_leap: bool,
    /// The time, nanoseconds of the caller's clock.
    now_ns: u64,
}

/// The verdict on an entry, from worst to best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    /// Its topic has no subscription here.
    Foreign,
    /// Its MAC is wrong.
    Forged,
    /// It is no newer than an earlier one of the same way, or for another incarnation.
    Stale,
    /// Its MAC is right, but its number is too far ahead to be trusted at once.
    Leap,
    /// It is genuine, and came the other way shortly before.
    Copy,
    /// It is genuine and new.
    New,
}

impl Incarnation {
    fn judge(&mut self, arrival: &Arrival<'_>, entry: &Entry<'_>) -> Verdict {
        let Arrival { header, is_leap, now_ns } = *arrival;
        // Beacons come more often: unless all of them were lost, the newest number was forged.
        let is_deaf = now_ns.saturating_sub(self.believed_ns) >= limits::NOTICE_SILENCE_NS;
        let [multicast, unicast] = &mut self.newest;
        let (same_way, other_way) =
            if header.is_unicast { (unicast, multicast) } else { (multicast, unicast) };
        if header.number <= *same_way && !is_deaf {
            return Verdict::Stale;
        }
        let NoticeKeys { shared, own, trusts_shared } = &self.keys;
        if !entry.is_authentic(if header.is_unicast { own } else { shared }) {
            return Verdict::Forged;
        }
        if is_leap {
            return Verdict::Leap;
        }
        *same_way = header.number;
        if header.is_unicast && !trusts_shared {
            // Whatever other subscribers send by multicast, it does not hide what the publisher sends to this session only.
            self.believed_ns = now_ns;
            return Verdict::New;
        }
        let verdict = match other_way.checked_sub(header.number) {
            None => Verdict::New,
            // An unknown sequence cannot be a copy: the other way's number was forged.
            Some(ahead) if ahead <= limits::CHANNEL_RECEIVES as u64 => {
                let sequence = entry.notice.sequence;
                let is_unheard = |mailbox: Arc<Mailbox>| mailbox.hint() < sequence;
                let is_new = self.mailboxes.iter().filter_map(Weak::upgrade).any(is_unheard);
                if is_new { Verdict::New } else { Verdict::Copy }
            }
            // Both ways take about the same time: a number so far ahead was forged.
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

    /// Puts an entry into all mailboxes, with its inline piece if only the publisher can have made it, or all are trusted.
    fn put(&mut self, entry: &Entry<'_>, is_unicast: bool, counts: &mut NoticeCounts) {
        let takes_inline = is_unicast || self.keys.trusts_shared;
        let count = if takes_inline { &mut counts.inline_taken } else { &mut counts.inline_untrusted };
        self.mailboxes.retain(|mailbox| {
            let Some(mailbox) = mailbox.upgrade() else { return false };
            *count += u64::from(!entry.inline.is_empty());
            counts.inline_dropped += mailbox.put(entry, takes_inline);
            true
        });
    }
}

impl Numbers {
    /// Records a trusted datagram. Returns how many before it are missing.
    fn believe(&mut self, number: u64) -> u64 {
        if self.newest.saturating_sub(number) > limits::CHANNEL_RECEIVES as u64 {
            // No datagram is so late: the newest number was forged.
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

    /// Whether a number is too far ahead to be trusted at once: any reader of a topic can forge one. After as many missing ones
    /// the next datagram is trusted.
    fn is_leap(&self, number: u64) -> bool {
        self.newest != 0 && number.saturating_sub(self.newest) > limits::NOTICE_LEAP_MAX
    }

    /// Records an untrusted datagram: its topics may have no subscription in this process.
    fn doubt(&mut self, number: u64) {
        if number > self.doubtful.max(self.newest) {
            self.doubtful = number;
            self.doubtful_count += 1;
        }
    }
}

impl LastHeard {
    fn note(&self, now_ns: u64, is_beacon: bool) {
        // Relaxed: independent numbers.
        self.at_ns.store(now_ns.max(1), Ordering::Relaxed);
        if is_beacon {
            self.beacon.store(true, Ordering::Relaxed);
        }
    }

    /// Whether something was heard, and not long ago.
    fn was_lately(&self, now_ns: u64) -> bool {
        // Relaxed: see `note`.
        let at_ns = self.at_ns.load(Ordering::Relaxed);
        at_ns != 0 && now_ns.saturating_sub(at_ns) < limits::NOTICE_SILENCE_NS
    }

    fn take_beacon(&self) -> bool {
        // Relaxed: see `note`.
        self.beacon.swap(false, Ordering::Relaxed)
    }
}
