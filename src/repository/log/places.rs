//! Finding records in a log repository by its index.

use super::start::LogStart;
use crate::id::Sequence;
use crate::layout::WORD;
use crate::layout::header::{HOT_PUBLISHED, HOT_SEQUENCE};
use crate::layout::log::{
    FILLER, FrameHeader, HEADER_LEN, HEADER_WORDS, HOT_END, HOT_START, HOT_START_SEQUENCE, LogGeometry,
    LogHead, LogPlace, SEGMENT_COUNT, frame_len,
};
use crate::memory::Region;
use crate::sync::atomic::{Ordering, fence};

/// The indexed frames that are not given up.
pub(super) fn entries<'a>(
    geometry: &'a LogGeometry,
    memory: &'a Region,
) -> impl Iterator<Item = LogPlace> + 'a {
    // Acquire: the newest sequence is loaded first, so that each record up to it begins before the end. The writer stores it before the
    // end: an entry at the old end may be left out in between, and then an earlier one serves.
    let (newest, start) = (Sequence::new(memory.load_acquire(HOT_SEQUENCE)), memory.load(HOT_START));
    let end = memory.load_acquire(HOT_END);
    (0..SEGMENT_COUNT as u64).filter_map(move |segment| {
        let offset = geometry.entry_offset(segment);
        let position = memory.load_acquire(offset);
        // Acquire: if this is a later entry, the load below sees its position. Pairs with the Release store in
        // `LogWriter`.
        let sequence = Sequence::new(memory.load_acquire(offset + WORD));
        let is_whole = memory.load(offset) == position && sequence != Sequence::NONE;
        // Untrusted: frames begin at whole words. Fetched words may be of different times: a position at the end, with the sequence of an
        // entry before it, would be where a reader waits for a record that it has passed.
        let is_next = position < end || sequence > newest;
        let is_possible = is_whole && is_next && position.is_multiple_of(WORD as u64);
        (is_possible && (start..=end).contains(&position)).then_some(LogPlace { position, sequence })
    })
}

/// The last indexed frame up to this record. Fetched words may be of different times, and others damaged: an entry with the sequence of
/// an earlier one has a lower sequence than entries before it, and the records between would be skipped.
pub(super) fn last_until(geometry: &LogGeometry, memory: &Region, wanted: Sequence) -> Option<LogPlace> {
    let is_in_order = |place: &LogPlace| {
        let before = entries(geometry, memory).filter(|other| other.position < place.position);
        before.map(|other| other.sequence).all(|sequence| sequence <= place.sequence)
    };
    let places = entries(geometry, memory).filter(|place| place.sequence <= wanted && is_in_order(place));
    places.max_by_key(|place| place.position)
}

/// Reads the last commit. The sequence may be that of a later one.
pub(crate) fn head(memory: &Region) -> LogHead {
    // Acquire: pairs with the Release store of the end in `LogWriter`.
    let end = memory.load_acquire(HOT_END);
    LogHead {
        end,
        newest: Sequence::new(memory.load(HOT_SEQUENCE)),
        published_ns: memory.load(HOT_PUBLISHED),
    }
}

/// Where to begin to read from this record on: at that record, or shortly before it.
pub(crate) fn place_of(geometry: &LogGeometry, memory: &Region, start: LogStart) -> LogPlace {
    let head = head(memory);
    let wanted = start.record(head.newest);
    if wanted > head.newest {
        return next_place(&head);
    }
    last_until(geometry, memory, wanted).unwrap_or_else(|| LogPlace {
        position: memory.load(HOT_START),
        sequence: Sequence::new(memory.load(HOT_START_SEQUENCE)),
    })
}

/// The first position at which a reader of this record on may begin, however late it does: its frame, or the indexed one before it.
pub(crate) fn first_place_of(geometry: &LogGeometry, memory: &Region, start: LogStart) -> u64 {
    let wanted = start.record(Sequence::new(memory.load(HOT_SEQUENCE)));
    last_until(geometry, memory, wanted).map_or_else(|| memory.load(HOT_START), |place| place.position)
}

/// The first indexed frame at or after this position; otherwise the next frame.
pub(crate) fn place_behind(geometry: &LogGeometry, memory: &Region, position: u64) -> LogPlace {
    let head = head(memory);
    let places = entries(geometry, memory).filter(|place| place.position >= position);
    places.min_by_key(|place| place.position).unwrap_or_else(|| next_place(&head))
}

/// The last indexed frame between these two positions, excluding the first.
pub(crate) fn place_between(geometry: &LogGeometry, memory: &Region, from: u64, to: u64) -> Option<LogPlace> {
    let places = entries(geometry, memory).filter(|place| place.position > from && place.position <= to);
    places.max_by_key(|place| place.position)
}

/// The last end of a frame up to `to`, walking from the frame at `from`; `from` itself if there is
/// none, or if it was overwritten meanwhile. The range must be committed.
pub(crate) fn end_between(geometry: &LogGeometry, memory: &Region, from: u64, to: u64) -> u64 {
    let named = place_between(geometry, memory, from, to).map_or(from, |place| place.position);
    let mut end = named;
    while let Some(next) = next_end(geometry, memory, end).filter(|next| *next <= to) {
        end = next;
    }
    // Acquire: if a header was of a later frame, the load below sees the moved start. Pairs with the Release
    // fence in `LogWriter`.
    fence(Ordering::Acquire);
    if memory.load(HOT_START) > from { from } else { end }
}

/// The end of the frame, or of the skipped rest, at this position. It must be committed; if it was overwritten
/// meanwhile, the result is arbitrary.
pub(crate) fn next_end(geometry: &LogGeometry, memory: &Region, position: u64) -> Option<u64> {
    let offset = geometry.offset(position);
    let len = if memory.load(offset) == FILLER || geometry.rest(position) < HEADER_LEN {
        geometry.rest(position)
    } else {
        let mut header = [0; HEADER_WORDS];
        memory.copy_out(offset, &mut header);
        frame_len(FrameHeader::parse(header).payload_len as usize)
    };
    position.checked_add(len as u64)
}

/// The place of the next record.
fn next_place(head: &LogHead) -> LogPlace {
    LogPlace { position: head.end, sequence: head.newest.next() }
}
