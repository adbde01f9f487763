use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::fabric::{FabricError, KeyedWaker, Waker};
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::WORD;
use crate::layout::notice::{Entry, Notice};
use crate::limits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Words of inline pieces kept.
const HELD_WORDS: usize = limits::NOTICE_INLINE_HELD_LEN / WORD;
/// Words before each piece: sequence, position, time of publishing, number of words.
const PIECE_WORDS: usize = 4;

/// The notices of one subscription: the newest hint, and the inline pieces not taken yet.
#[derive(Debug)]
pub(crate) struct Mailbox {
    topic: TopicId,
    epoch: Epoch,
    /// The newest sequence that was heard of. Written under the lock.
    hint: AtomicU64,
    held: Mutex<MailboxState>,
    /// Counts the gaps of the channel, for all its mailboxes.
    gaps: Arc<AtomicU64>,
    /// That count when the subscription last checked.
    gaps_told: AtomicU64,
    /// The subscription may be asleep.
    is_awaited: AtomicBool,
    /// Wakes it. Made for its first sleep.
    waker: OnceLock<Waker>,
}

#[derive(Debug)]
struct MailboxState {
    /// The pieces in order, each after its words of description.
    words: VecDeque<u64>,
    /// The number of pieces.
    pieces: u64,
    /// Inline pieces are ignored.
    refuses_inline: bool,
    /// Woken once, by the next entry.
    watcher: Option<KeyedWaker>,
}

impl Mailbox {
    /// An empty mailbox, with its full capacity.
    pub(super) fn new(topic: TopicId, epoch: Epoch, gaps: Arc<AtomicU64>) -> Self {
        let words = VecDeque::with_capacity(HELD_WORDS);
        let gaps_told = AtomicU64::new(gaps.load(Ordering::Relaxed));
        let held = Mutex::new(MailboxState { words, pieces: 0, refuses_inline: false, watcher: None });
        let (hint, is_awaited, waker) = (AtomicU64::new(0), AtomicBool::new(false), OnceLock::new());
        Self { topic, epoch, hint, held, gaps, gaps_told, is_awaited, waker }
    }

    /// Returns a handle that is readable after the next `put`, until [`Self::end_wait`]: another thread may receive for this
    /// subscription. Check for news after this.
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
        // SeqCst: either `put` sees the waiting thread, or that thread sees what was put. Pairs with the fence there.
        fence(Ordering::SeqCst);
        Ok(waker.wait_handle())
    }

    /// Has the next entry wake this. Check for news after this.
    pub(crate) fn watch(&self, watcher: Option<KeyedWaker>) {
        self.held.lock().watcher = watcher;
    }

    /// The subscription is awake.
    pub(crate) fn end_wait(&self) {
        // Relaxed: the cost is at most a wake-up in vain.
        self.is_awaited.store(false, Ordering::Relaxed);
    }

    /// Whether a notice announced a later sequence than this one. One load.
    #[inline]
    pub(crate) fn has_news(&self, last: Sequence) -> bool {
        self.hint() > last
    }

    /// The newest sequence that was heard of. Goes back only by [`Self::correct`].
    #[inline]
    pub(crate) fn hint(&self) -> Sequence {
        // Relaxed: what it announces is read under the lock, or in the repository.
        Sequence::new(self.hint.load(Ordering::Relaxed))
    }

    /// Replaces the hint of `hinted`, if it is the newest, by `reached`: the repository has reached no more.
    pub(crate) fn correct(&self, hinted: Sequence, reached: Sequence) {
        let _held = self.held.lock();
        if self.hint() == hinted {
            // Relaxed: see `hint`.
            self.hint.store(reached.get(), Ordering::Relaxed);
        }
    }

    /// Drops all inline pieces, and ignores later ones.
    pub(crate) fn refuse_inline(&self) {
        let held = &mut *self.held.lock();
        (held.refuses_inline, held.pieces) = (true, 0);
        held.words.clear();
    }

    /// Whether datagrams went missing since the last call, so that values may be unannounced.
    pub(crate) fn take_gap(&self) -> bool {
        // Relaxed: only prompts a read.
        let gaps = self.gaps.load(Ordering::Relaxed);
        self.gaps_told.swap(gaps, Ordering::Relaxed) != gaps
    }

    /// Takes the oldest inline piece into `into`, replacing its contents, and returns its notice.
    /// [`limits::NOTICE_DATAGRAM_LEN_MAX`] bytes always suffice.
    pub(crate) fn take(&self, into: &mut Vec<u64>) -> Option<Notice> {
        let held = &mut *self.held.lock();
        let (head, len) = held.next_head()?;
        into.clear();
        into.extend(held.words.drain(..PIECE_WORDS + len).skip(PIECE_WORDS));
        held.pieces -= 1;
        let [sequence, position, published_ns, _] = head;
        let (topic, epoch, sequence) = (self.topic, self.epoch, Sequence::new(sequence));
        Some(Notice { topic, epoch, sequence, position, published_ns })
    }

    /// Records an entry, and its inline piece if that is to be taken. Returns how many pieces were dropped for lack of capacity: all
    /// earlier ones, because the newest is what a slow subscriber needs.
    pub(super) fn put(&self, entry: &Entry<'_>, takes_inline: bool) -> u64 {
        let held = &mut *self.held.lock();
        let is_kept = takes_inline && !entry.inline.is_empty() && !held.refuses_inline;
        let dropped = if is_kept { held.keep(entry) } else { 0 };
        let sequence = entry.notice.sequence;
        if sequence > self.hint() {
            // Relaxed: see `hint`.
            self.hint.store(sequence.get(), Ordering::Relaxed);
        }
        if let Some(watcher) = held.watcher.take() {
            watcher.wake();
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
    /// The description of the oldest piece, and its number of words.
    fn next_head(&self) -> Option<([u64; PIECE_WORDS], usize)> {
        let mut words = self.words.iter().copied();
        let head = [words.next()?, words.next()?, words.next()?, words.next()?];
        let [.., len] = head;
        Some((head, usize::try_from(len).unwrap_or(usize::MAX)))
    }

    /// Keeps the inline part of an entry. Returns how many older pieces it dropped.
    fn keep(&mut self, entry: &Entry<'_>) -> u64 {
        let mut dropped = 0;
        if self.words.len() + PIECE_WORDS + entry.inline.len() > HELD_WORDS {
            self.words.clear();
            dropped = std::mem::take(&mut self.pieces);
        }
        let Notice { sequence, position, published_ns, .. } = entry.notice;
        self.words.extend([sequence.get(), position, published_ns, entry.inline.len() as u64]);
        self.words.extend(entry.inline);
        self.pieces += 1;
        debug_assert!(self.words.len() <= HELD_WORDS, "more words than the capacity");
        dropped
    }
}
