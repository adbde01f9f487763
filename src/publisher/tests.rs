//! A wire to a landing region, for tests of what publishers write.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::{
    ByteRange, Completion, FabricError, NothingToRevoke, Placement, Registration, RemoteWrite, Revocation,
    Write,
};
use crate::layout::WORD;
use crate::memory::{Protection, Region};
use crate::testkit::random::Random;

/// A wire to a landing region, on which nothing moves by itself.
#[derive(Clone, Debug)]
pub(super) struct Wire(pub(super) Arc<Mutex<Moving>>);

#[derive(Debug)]
pub(super) struct Moving {
    has_word_order: bool,
    /// How often a write is lost, if it may be.
    loss_once_in: Option<u64>,
    random: Random,
    pub(super) target: Arc<Region>,
    /// The posted batches, one word for each write.
    posted: Vec<String>,
    /// What is not placed yet.
    pieces: VecDeque<Piece>,
    pub(super) in_flight: usize,
    /// Placed batches that the publisher has not noticed.
    placed: usize,
}

#[derive(Clone, Debug)]
enum Piece {
    Copy { source: Arc<Region>, offset: usize },
    Word { offset: usize, word: u64 },
    End,
}

impl Wire {
    pub(super) fn new(has_word_order: bool, len: usize, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Moving {
            has_word_order,
            loss_once_in: None,
            random: Random::new(seed),
            target: Arc::new(Region::allocate(len, Protection::PeersWrite).unwrap()),
            posted: Vec::new(),
            pieces: VecDeque::new(),
            in_flight: 0,
            placed: 0,
        })))
    }

    /// Places the next words. Returns how many batches that completed.
    pub(super) fn place(&self, count: usize) -> usize {
        let mut moving = self.0.lock();
        let before = moving.placed;
        for _ in 0..count {
            match moving.pieces.pop_front() {
                Some(Piece::Copy { source, offset }) => moving.target.store(offset, source.load(offset)),
                Some(Piece::Word { offset, word }) => moving.target.store(offset, word),
                Some(Piece::End) => moving.placed += 1,
                None => break,
            }
        }
        moving.placed - before
    }

    /// Notifies the publisher of what is placed.
    pub(super) fn acknowledge(&self) {
        let mut moving = self.0.lock();
        moving.in_flight -= std::mem::take(&mut moving.placed);
    }

    /// Loses about one write in this many from now on.
    pub(super) fn lose_once_in(&self, count: u64) {
        self.0.lock().loss_once_in = Some(count);
    }

    pub(super) fn complete(&self) {
        self.place(usize::MAX);
        self.acknowledge();
    }

    /// What was posted since the last call.
    pub(super) fn posted(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().posted)
    }
}

impl Moving {
    /// The pieces of one write: forwards and, without an order of words, backwards or in random order.
    fn begin(&mut self, mut pieces: Vec<Piece>) {
        if self.loss_once_in.is_some_and(|count| self.random.once_in(count)) {
            return;
        }
        match self.random.below(3) {
            _ if self.has_word_order => {}
            0 => {}
            1 => pieces.reverse(),
            _ => self.random.shuffle(&mut pieces),
        }
        self.pieces.extend(pieces);
    }
}

impl RemoteWrite for Wire {
    fn post(&mut self, source: &Registration, writes: &[Write]) -> Result<Completion, FabricError> {
        let mut moving = self.0.lock();
        let mut words = Vec::new();
        for write in writes {
            words.push(match *write {
                Write::Range(ByteRange { offset, .. }) if offset.is_multiple_of(128) => "slot",
                Write::Range(_) => "body",
                Write::Line { .. } => "hot",
                Write::Word { offset, .. } if offset.is_multiple_of(128) => "head",
                Write::Word { .. } => "tail",
            });
            let source = Arc::clone(source.region());
            let pieces = match *write {
                Write::Range(ByteRange { offset, len }) => {
                    let offsets = (offset..offset + len).step_by(WORD);
                    offsets.map(|offset| Piece::Copy { source: Arc::clone(&source), offset }).collect()
                }
                Write::Line { offset, words } => {
                    let words = words.into_iter().enumerate();
                    words.map(|(index, word)| Piece::Word { offset: offset + index * WORD, word }).collect()
                }
                Write::Word { offset, word } => vec![Piece::Word { offset, word }],
            };
            moving.begin(pieces);
        }
        moving.pieces.push_back(Piece::End);
        moving.posted.push(words.join(" "));
        moving.in_flight += 1;
        Ok(Completion::Pending)
    }

    fn in_flight(&mut self) -> Result<usize, FabricError> {
        Ok(self.0.lock().in_flight)
    }

    fn fetch_word(&mut self, _: usize) -> Result<Option<u64>, FabricError> {
        Ok(Some(0))
    }

    fn placement(&self) -> Placement {
        let sink = self.0.lock();
        match (sink.has_word_order, sink.loss_once_in) {
            (true, _) => Placement::Words,
            (false, None) => Placement::Writes,
            (false, Some(_)) => Placement::Lossy,
        }
    }

    fn revocation(&self) -> Arc<dyn Revocation> {
        Arc::new(NothingToRevoke)
    }
}
