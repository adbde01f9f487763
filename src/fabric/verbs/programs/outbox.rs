//! The work requests that move blocks, made once and posted again and again.

use super::super::sys::{Local, PreparedSends, QueuePair, Remote, SysError, Verb};
use super::pattern::{self, Block, is_whole};
use super::places::Blocks;
use super::resources::Resources;

/// The number of the completions of blocks.
pub(super) const BLOCK: u64 = 1;

/// Work requests of blocks.
#[derive(Debug)]
pub(super) struct Outbox {
    sends: PreparedSends,
    blocks: Vec<Block>,
    len: usize,
    inline: bool,
    sge: u32,
}

impl Outbox {
    /// Creates an empty one, for blocks of this length.
    pub(super) fn new(len: usize, sge: u32, inline: bool) -> Self {
        Self { sends: PreparedSends::default(), blocks: Vec::new(), len, inline, sge }
    }

    /// Appends a work request that writes a block from here.
    pub(super) fn write(&mut self, near: &Blocks, index: usize, to: Remote) {
        self.push(Verb::Write(to), near, index, self.inline);
    }

    /// Appends a work request that reads a block to here.
    pub(super) fn read(&mut self, near: &Blocks, index: usize, from: Remote) {
        self.push(Verb::Read(from), near, index, false);
    }

    /// Appends a work request that sends a block.
    pub(super) fn send(&mut self, near: &Blocks, index: usize, resources: &Resources) {
        self.push(Verb::Send { immediate: None }, near, index, self.inline);
        if let Some(peer) = &resources.peer {
            self.sends.address(self.blocks.len() - 1, &peer.handle, (peer.queue_pair, peer.key));
        }
    }

    fn push(&mut self, verb: Verb, near: &Blocks, index: usize, inline: bool) {
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        let local = if inline {
            Local::Inline { len }
        } else {
            Local::Registered { region: near.region.clone(), offset: near.offset(index), len }
        };
        let block = near.block(index);
        // The whole block once: until the next whole one only its ends change.
        block.fill_whole(0, &mut Vec::new());
        self.sends.push(BLOCK, verb, &local, self.sge);
        pattern::write_whole(self.sends.inline_words(self.blocks.len()), 0);
        self.blocks.push(block);
    }

    /// Appends a message without contents.
    pub(super) fn token(&mut self, near: &Blocks) {
        let local = Local::Registered { region: near.region.clone(), offset: 0, len: 0 };
        self.sends.push(BLOCK, Verb::Send { immediate: None }, &local, 1);
        self.blocks.push(near.block(0));
    }

    /// Writes the block of a work request, with this number.
    #[inline]
    pub(super) fn fill(&mut self, index: usize, number: u64, scratch: &mut Vec<u64>) {
        if !self.inline {
            if let Some(block) = self.blocks.get(index) {
                block.fill(number, scratch);
            }
            return;
        }
        let words = self.sends.inline_words(index);
        if is_whole(number, self.len) {
            pattern::write_whole(words, number);
        } else {
            pattern::mark(words, self.len, number);
        }
    }

    /// Writes the words at both ends of the block of a work request.
    #[inline]
    pub(super) fn mark(&mut self, index: usize, number: u64) {
        if self.inline {
            pattern::mark(self.sends.inline_words(index), self.len, number);
        } else if let Some(block) = self.blocks.get(index) {
            block.mark(number);
        }
    }

    /// Writes all of the block of a work request.
    pub(super) fn fill_whole(&mut self, index: usize, number: u64, scratch: &mut Vec<u64>) {
        if self.inline {
            pattern::write_whole(self.sends.inline_words(index), number);
        } else if let Some(block) = self.blocks.get(index) {
            block.fill_whole(number, scratch);
        }
    }

    /// Copies the block that has arrived to the one of a work request.
    #[inline]
    pub(super) fn copy(&mut self, index: usize, arrived: &Block, number: u64, scratch: &mut Vec<u64>) {
        if self.inline {
            arrived.copy_out(self.sends.inline_words(index), number);
        } else if let Some(block) = self.blocks.get(index) {
            arrived.copy_to(block, number, scratch);
        }
    }

    #[inline]
    pub(super) fn set_signaled(&mut self, index: usize, signaled: bool) {
        self.sends.set_signaled(index, signaled);
    }

    /// Posts the first `count` work requests together.
    #[inline]
    pub(super) fn post(&mut self, queue_pair: &QueuePair, count: usize) -> Result<(), SysError> {
        queue_pair.post_prepared(&mut self.sends, count)
    }
}
