use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::fabric::{FabricError, Waker};
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::notice::{Entry, Notice};
use crate::layout::{WORD, halves, joined};
use crate::limits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Words that can be kept until they are taken.
const HELD_WORDS: usize = limits::NOTICE_INLINE_HELD_LEN / WORD;
/// Words in front of those of a piece: sequence, position, time of publishing, number of words and records.
const PIECE_WORDS: usize = 4;

/// What one subscription has heard of its topic: the newest hint, and what came inline, until it is taken.
#[derive(Debug)]
pub(crate) struct Mailbox {
    topic: TopicId,
    epoch: Epoch,
    /// The sequence of the hint, to be looked at without the lock.
    sequence: AtomicU64,
    held: Mutex<MailboxState>,
    /// How often datagrams were missing on the channel, for all its mailboxes.
    gaps: Arc<AtomicU64>,
    /// How often that was when the subscription last asked.
    gaps_told: AtomicU64,
    /// The subscription may be asleep.
    is_awaited: AtomicBool,
    /// Wakes it. Made when it sleeps for the first time.
    waker: OnceLock<Waker>,
}

#[derive(Debug)]
struct MailboxState {
    hint: Hint,
    /// The pieces one after the other, with what was said of each in front of it.
    words: VecDeque<u64>,
    /// How many pieces that is.
    pieces: u64,
    /// None are kept.
    refuses_inline: bool,
}

/// What a topic has reached, as far as it was heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    /// The newest sequence.
    pub(crate) sequence: Sequence,
    /// Of a log: where the ring ends behind that record.
    pub(crate) position: u64,
    /// When it was published, ns since the Unix epoch.
    pub(crate) published_ns: u64,
}

/// What came inline with a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The notice.
    pub(crate) notice: Notice,
    /// How many records it holds.
    pub(crate) records: u32,
}

impl Mailbox {
    /// An empty mailbox, with room for all that it may keep.
    pub(super) fn new(topic: TopicId, epoch: Epoch, gaps: Arc<AtomicU64>) -> Self {
        let words = VecDeque::with_capacity(HELD_WORDS);
        let gaps_told = AtomicU64::new(gaps.load(Ordering::Relaxed));
        let held =
            Mutex::new(MailboxState { hint: Hint::default(), words, pieces: 0, refuses_inline: false });
        let (sequence, is_awaited, waker) = (AtomicU64::new(0), AtomicBool::new(false), OnceLock::new());
        Self { topic, epoch, sequence, held, gaps, gaps_told, is_awaited, waker }
    }

    /// Readable as soon as something is put in, until [`Self::end_wait`]: another thread may take from the channel what this
    /// subscription waits for. Whether there is news already is to be looked at after this.
    pub(crate) fn begin_wait(&self) -> Result<BorrowedFd<'_>, FabricError> {
        let waker = match self.waker.get() {
            Some(waker) => waker,
            None => {
                let made = Waker::new()?;
                self.waker.get_or_init(|| made)
            }
        };
        waker.reset();
        self.is_awaited.store(true, Ordering::Relaxed);
        // SeqCst: either `put` sees that somebody waits, or who waits sees what was put. Pairs with the fence there.
        fence(Ordering::SeqCst);
        Ok(waker.wait_handle())
    }

    /// The subscription is awake.
    pub(crate) fn end_wait(&self) {
        // Relaxed: who takes it for asleep wakes it in vain.
        self.is_awaited.store(false, Ordering::Relaxed);
    }

    /// Whether a later sequence than this one was heard of. One load.
    #[inline]
    pub(crate) fn has_news(&self, last: Sequence) -> bool {
        // Relaxed: a hint; what it tells of is looked at under the lock, or in the repository.
        self.sequence.load(Ordering::Relaxed) > last.get()
    }

    /// The newest that was heard of. Goes back only by [`Self::correct`].
    pub(crate) fn hint(&self) -> Hint {
        self.held.lock().hint
    }

    /// Takes back the hint of this sequence, if it is the newest: the repository has not reached it, but that one.
    pub(crate) fn correct(&self, hinted: Sequence, reached: Sequence) {
        let held = &mut *self.held.lock();
        if held.hint.sequence == hinted {
            held.hint = Hint { sequence: reached, ..Hint::default() };
            // Relaxed: see `has_news`.
            self.sequence.store(reached.get(), Ordering::Relaxed);
        }
    }

    /// Keeps nothing that comes inline from now on, and forgets what has.
    pub(crate) fn refuse_inline(&self) {
        let held = &mut *self.held.lock();
        (held.refuses_inline, held.pieces) = (true, 0);
        held.words.clear();
    }

    /// Whether datagrams were missing on the channel since this was last asked: there may be news that nobody heard of.
    pub(crate) fn take_gap(&self) -> bool {
        // Relaxed: a mark that something should be looked at soon.
        let gaps = self.gaps.load(Ordering::Relaxed);
        self.gaps_told.swap(gaps, Ordering::Relaxed) != gaps
    }

    /// Takes the oldest piece that came inline, in place of what is in `into`. Room for
    /// [`limits::NOTICE_DATAGRAM_LEN_MAX`] bytes there is always enough.
    pub(crate) fn take(&self, into: &mut Vec<u64>) -> Option<Piece> {
        let held = &mut *self.held.lock();
        let (head, len) = held.next_head()?;
        into.clear();
        into.extend(held.words.drain(..PIECE_WORDS + len).skip(PIECE_WORDS));
        held.pieces -= 1;
        let [sequence, position, published_ns, sizes] = head;
        let (_, records) = halves(sizes);
        let (topic, epoch, sequence) = (self.topic, self.epoch, Sequence::new(sequence));
        Some(Piece { notice: Notice { topic, epoch, sequence, position, published_ns }, records })
    }

    /// Takes note of what an entry says. How many pieces were dropped because there was no room: all that were kept, because
    /// the new one is the one of use to somebody who lags.
    pub(super) fn put(&self, entry: &Entry<'_>) -> u64 {
        let held = &mut *self.held.lock();
        let dropped = if entry.inline.is_empty() || held.refuses_inline { 0 } else { held.keep(entry) };
        let Notice { sequence, position, published_ns, .. } = entry.notice;
        if sequence > held.hint.sequence {
            held.hint = Hint { sequence, position, published_ns };
            // Relaxed: see `has_news`.
            self.sequence.store(sequence.get(), Ordering::Relaxed);
        }
        // SeqCst: pairs with the fence in `begin_wait`.
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed)
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
        dropped
    }
}

impl MailboxState {
    /// What stands in front of the oldest piece, and how many words that has.
    fn next_head(&self) -> Option<([u64; PIECE_WORDS], usize)> {
        let mut words = self.words.iter().copied();
        let head = [words.next()?, words.next()?, words.next()?, words.next()?];
        let [.., sizes] = head;
        let (len, _) = halves(sizes);
        Some((head, len as usize))
    }

    /// Keeps the inline bytes of an entry; how many older pieces had to go.
    fn keep(&mut self, entry: &Entry<'_>) -> u64 {
        let mut dropped = 0;
        if self.words.len() + PIECE_WORDS + entry.inline.len() > HELD_WORDS {
            self.words.clear();
            dropped = std::mem::take(&mut self.pieces);
        }
        let len = u32::try_from(entry.inline.len()).unwrap_or(u32::MAX);
        let Notice { sequence, position, published_ns, .. } = entry.notice;
        self.words.extend([sequence.get(), position, published_ns, joined(len, entry.records)]);
        self.words.extend(entry.inline);
        self.pieces += 1;
        debug_assert!(self.words.len() <= HELD_WORDS, "more than there is room for");
        dropped
    }
}
