//! Memory of a model: loom's words, on the heap.

use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::mm::MapFlags;

use super::WORD;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What `words::Words` is, for the threads of one model. It has the words' values only: a copy loads and stores one after the other, in
/// relaxed order.
pub(super) struct Words {
    words: Box<[AtomicU64]>,
    /// The only word whose half was asked for, and that half.
    halved: OnceLock<usize>,
    half: AtomicU32,
}

impl Words {
    /// This many zeros.
    pub(super) fn new(words: usize) -> Self {
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { words, halved: OnceLock::new(), half: AtomicU32::new(0) }
    }

    /// Fails: the threads of a model share a region as it is.
    pub(super) fn map(
        _file: impl AsFd,
        _len: usize,
        _is_writable: bool,
        _populate: MapFlags,
    ) -> rustix::io::Result<Self> {
        Err(Errno::NOTSUP)
    }

    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "its pages are present")]
    pub(super) fn populate(&self, _offset: usize, _len: usize) -> rustix::io::Result<()> {
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.words.len() * WORD
    }

    #[track_caller]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        self.range(offset, 1).first().expect("a range of one word has one")
    }

    pub(super) fn half(&self, offset: usize) -> &AtomicU32 {
        assert_eq!(*self.halved.get_or_init(|| offset), offset, "a model has halves of one word of a region");
        &self.half
    }

    pub(super) fn copy_out(&self, offset: usize, target: &mut [u64]) {
        let source = self.range(offset, target.len());
        target.iter_mut().zip(source).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
    }

    pub(super) fn copy_out_chunks(&self, offset: usize, target: &mut [[u8; WORD]]) {
        let source = self.range(offset, target.len());
        target.iter_mut().zip(source).for_each(|(to, from)| *to = from.load(Ordering::Relaxed).to_le_bytes());
    }

    pub(super) fn copy_in(&self, offset: usize, source: &[u64]) {
        let target = self.range(offset, source.len());
        target.iter().zip(source).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
    }

    pub(super) fn copy_in_chunks(&self, offset: usize, source: &[[u8; WORD]]) {
        let target = self.range(offset, source.len());
        target
            .iter()
            .zip(source)
            .for_each(|(to, from)| to.store(u64::from_le_bytes(*from), Ordering::Relaxed));
    }

    pub(super) fn copy_across(&self, offset: usize, target: &Self, target_offset: usize, words: usize) {
        let (from, to) = (self.range(offset, words), target.range(target_offset, words));
        to.iter().zip(from).for_each(|(to, from)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
    }

    #[expect(clippy::unused_self, reason = "there is no cache")]
    pub(super) fn request_line(&self, _offset: usize) {}

    #[track_caller]
    fn range(&self, offset: usize, words: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(WORD), "access to {words} words at {offset}");
        let from = offset / WORD;
        self.words.get(from..from + words).expect("an access within the region")
    }
}
