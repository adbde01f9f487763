//! One-sided transfers, a few words at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::state::SimState;
use crate::fabric::{ByteRange, Completion, FabricError, Write};
use crate::memory::Region;
use crate::memory::{LINE, WORD};

/// The approximate limit of a transfer's steps.
const STEPS_MAX: usize = 16;

/// A batch of reads or writes in flight.
#[derive(Debug)]
pub(super) struct Transfer {
    route: Route,
    local: Arc<Region>,
    way: Way,
    /// The rest, in this order.
    pieces: VecDeque<Piece>,
    /// The most pieces of one step.
    pace: usize,
    /// The transfer that must complete before this one begins.
    after: Option<u64>,
    failure: Option<Failure>,
    /// It fails at its end.
    is_doomed: bool,
    /// The number with which it wakes the peer at its end.
    wake: Option<u32>,
}

/// The memories between which a transfer runs.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// The process that posted it.
    pub(super) initiator: u32,
    /// The process whose memory it reads or writes.
    pub(super) owner: u32,
    /// The link that it needs.
    pub(super) link: u64,
    /// The owner's memory.
    pub(super) remote: Weak<Region>,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug)]
enum Piece {
    /// These bytes, from one region to the other.
    Copy(ByteRange),
    /// This word.
    Word { offset: usize, word: u64 },
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Closed,
    Withdrawn,
    Doomed,
}

impl Transfer {
    pub(super) fn initiator(&self) -> u32 {
        self.route.initiator
    }

    fn is_finished(&self) -> bool {
        self.pieces.is_empty() || self.failure.is_some()
    }

    /// Performs this many pieces.
    fn advance(&mut self, count: usize, reachable: bool) {
        if !reachable {
            self.failure = Some(Failure::Closed);
            return;
        }
        let Some(remote) = self.route.remote.upgrade() else {
            self.failure = Some(Failure::Withdrawn);
            return;
        };
        let (source, target) = match self.way {
            Way::Read => (&remote, &self.local),
            Way::Write => (&self.local, &remote),
        };
        for piece in self.pieces.drain(..count.min(self.pieces.len())) {
            match piece {
                Piece::Copy(ByteRange { offset, len }) => {
                    let offsets = (offset..offset + len).step_by(WORD);
                    offsets.for_each(|offset| target.store_release(offset, source.load_acquire(offset)));
                }
                Piece::Word { offset, word } => target.store_release(offset, word),
            }
        }
    }
}

impl SimState {
    /// Begins to read these ranges, their pieces in random order.
    pub(super) fn begin_read(&mut self, route: Route, mirror: &Arc<Region>, ranges: &[ByteRange]) -> u64 {
        let mut pieces = self.pieces(ranges);
        let is_doomed = self.doomed_reads > 0;
        if is_doomed {
            self.doomed_reads -= 1;
            pieces.truncate(self.random.index(pieces.len() + 1));
        }
        let (local, way) = (Arc::clone(mirror), Way::Read);
        let (after, wake) = (None, None);
        self.begin(Transfer { route, local, way, pieces, pace: 1, after, failure: None, is_doomed, wake })
    }

    /// Begins these writes one after another, the pieces of each in random order.
    pub(super) fn begin_write(
        &mut self,
        route: Route,
        source: &Arc<Region>,
        writes: &[Write],
        (after, wake): (Option<u64>, Option<u32>),
    ) -> u64 {
        let mut pieces = VecDeque::new();
        for write in writes {
            match *write {
                Write::Range(range) => pieces.extend(self.pieces(&[range])),
                Write::Line { offset, words } => {
                    let words = words.into_iter().enumerate();
                    pieces.extend(
                        words.map(|(index, word)| Piece::Word { offset: offset + index * WORD, word }),
                    );
                }
                Write::Word { offset, word } => pieces.push_back(Piece::Word { offset, word }),
            }
        }
        let (local, way, is_doomed) = (Arc::clone(source), Way::Write, self.doomed_writes > 0);
        self.doomed_writes = self.doomed_writes.saturating_sub(1);
        self.begin(Transfer { route, local, way, pieces, pace: 1, after, failure: None, is_doomed, wake })
    }

    fn begin(&mut self, transfer: Transfer) -> u64 {
        let steps = 1 + self.random.index(STEPS_MAX);
        let pace = (transfer.pieces.len() * 2 / steps).max(1);
        let serial = self.serial();
        self.transfers.insert(serial, Transfer { pace, ..transfer });
        serial
    }

    /// Advances one transfer, and returns its state. A complete or failed one is removed.
    pub(super) fn poll_transfer(&mut self, serial: u64) -> Result<Completion, FabricError> {
        self.progress(serial);
        let Some(transfer) = self.transfers.get(&serial) else { return Err(FabricError::Closed) };
        if !transfer.is_finished() {
            return Ok(Completion::Pending);
        }
        let doom = |transfer: &Transfer| transfer.is_doomed.then_some(Failure::Doomed);
        let failure = |transfer: Transfer| transfer.failure.or_else(|| doom(&transfer));
        match self.transfers.remove(&serial).and_then(failure) {
            None => Ok(Completion::Done),
            Some(Failure::Doomed) => Err(FabricError::Access { why: "the world has it fail" }),
            Some(Failure::Closed) => Err(FabricError::Closed),
            Some(Failure::Withdrawn) => Err(FabricError::Access { why: "the peer has withdrawn it" }),
        }
    }

    /// Advances all transfers. Returns whether there was one.
    pub(super) fn progress_all(&mut self) -> bool {
        let unfinished = self.transfers.iter().filter(|(_, transfer)| !transfer.is_finished());
        let serials: Vec<u64> = unfinished.map(|(serial, _)| *serial).collect();
        serials.iter().for_each(|serial| self.progress(*serial));
        !serials.is_empty()
    }

    fn progress(&mut self, serial: u64) {
        let Some(mut transfer) = self.transfers.remove(&serial) else { return };
        let before = transfer.after.and_then(|before| self.transfers.get(&before));
        if !transfer.is_finished() && before.is_none_or(Transfer::is_finished) {
            let count = 1 + self.random.index(transfer.pace);
            transfer.advance(count, self.reachable(transfer.route.owner, transfer.route.link));
            if matches!(transfer.failure, Some(Failure::Withdrawn)) {
                self.break_off(transfer.route.link);
            }
            if let Some(token) = transfer.wake.take_if(|_| transfer.pieces.is_empty()) {
                self.wake_along(&transfer.route, token);
            }
        }
        self.transfers.insert(serial, transfer);
    }

    /// The words or lines of these ranges: forwards, backwards or in random order.
    fn pieces(&mut self, ranges: &[ByteRange]) -> VecDeque<Piece> {
        let unit = if self.random.once_in(2) { WORD } else { LINE };
        let mut pieces: Vec<Piece> = ranges
            .iter()
            .flat_map(|range| {
                let end = range.offset + range.len;
                let cut = move |offset| Piece::Copy(ByteRange { offset, len: unit.min(end - offset) });
                (range.offset..end).step_by(unit).map(cut)
            })
            .collect();
        match self.random.below(4) {
            0 => {}
            1 => pieces.reverse(),
            _ => self.random.shuffle(&mut pieces),
        }
        pieces.into()
    }
}
