//! Repositories that a publisher finds in a file, whatever they hold.

use std::path::Path;
use std::sync::Arc;

use super::input::Input;
use super::regions::{EPOCH, STEPS_MAX, TOPIC, payload};
use crate::id::Sequence;
use crate::layout::description::Described;
use crate::layout::log::LogGeometry;
use crate::layout::state::StateGeometry;
use crate::layout::table::{PRESENT, TableGeometry};
use crate::layout::{Geometry, WORD};
use crate::limits;
use crate::memory::{Protection, Region, RepositoryFileError};
use crate::repository::log::LogWriter;
use crate::repository::state::StateWriter;
use crate::repository::table::TableWriter;
use crate::repository::{Continued, Recover, Writer};

const LEN_MAX: usize = 60;
const KEY_LEN_MAX: usize = 8;
/// Of a log: the ring is soon over.
const RECORD_LEN_MAX: usize = 400;
/// The most words that are changed.
const CHANGES_MAX: usize = 24;

/// A repository whose words are changed, and the publisher that continues it; or a file that is none.
pub(super) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() % 4 {
        0 => {
            let geometry = StateGeometry::new(4, LEN_MAX).expect("a geometry");
            continue_changed::<StateWriter>(&mut input, geometry, |writer, number| {
                writer.publish(&payload(number, LEN_MAX), 1, number).expect("it fits");
            });
        }
        1 => {
            let geometry = LogGeometry::new(4096, RECORD_LEN_MAX).expect("a geometry");
            continue_changed::<LogWriter>(&mut input, geometry, |writer, number| {
                for record in number..=number + number % 3 {
                    writer.append(&payload(record, RECORD_LEN_MAX), number).expect("it fits");
                }
                writer.commit(number);
                // What is appended now belongs to the next commit, unless a recovery comes before; and a loan may be given up.
                for record in 0..3 {
                    writer.append(&payload(record, RECORD_LEN_MAX), number).expect("it fits");
                }
                let _ = writer.stage(number);
            });
        }
        2 => {
            let geometry = TableGeometry::new(5, KEY_LEN_MAX, LEN_MAX).expect("a geometry");
            continue_changed::<TableWriter>(&mut input, geometry, |writer, number| {
                let key = number % 7;
                let entry = [&key.to_le_bytes()[..], &[PRESENT], &payload(number, 20)].concat();
                writer.room().split_at_mut(entry.len()).0.copy_from_slice(&entry);
                let _ = writer.stage_filled((KEY_LEN_MAX, entry.len()), None, number);
                if number.is_multiple_of(3) {
                    let _ = writer.stage_removal(KEY_LEN_MAX, number);
                }
                writer.commit(number);
            });
        }
        _ => describe(bytes.get(1..).unwrap_or_default()),
    }
}

/// Publishes, changes words, and continues what is left, if it is a repository. That must be one for ever after, however often its writer
/// is replaced.
fn continue_changed<W: Recover>(
    input: &mut Input<'_>,
    geometry: <W as Writer>::Geometry,
    publish: impl Fn(&mut W, u64),
) where
    <W as Writer>::Geometry: Copy + Into<Geometry>,
{
    let any: Geometry = geometry.into();
    let header = any.static_header(EPOCH, TOPIC, 0);
    let region = Arc::new(Region::allocate(any.region_len(), Protection::PeersRead).expect("memory"));
    let mut writer = W::new(Arc::clone(&region), geometry, &header);
    let count = STEPS_MAX.min(input.byte().into());
    (1..=count as u64).for_each(|number| publish(&mut writer, number));
    let newest = writer.last();
    let words = any.region_len() / WORD;
    let mut is_changed = false;
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        // Often near the hot line.
        let (place, number) = (input.byte(), usize::from(input.short()));
        let offset = (if place < 128 { 16 + number % 64 } else { number }) % words * WORD;
        let before = region.load(offset);
        let word = match input.byte() % 4 {
            0 => before ^ 1 << (input.byte() % 64),
            1 => before.wrapping_add(input.byte().into()),
            2 => input.byte().into(),
            _ => input.word(),
        };
        is_changed |= word != before;
        region.store(offset, word);
    }
    let continued = Continued { after: Sequence::NONE, until: None };
    let recover = || W::recover(Arc::clone(&region), geometry, &header, &continued);
    let Ok(mut writer) = recover() else {
        assert!(is_changed, "a repository is refused");
        return;
    };
    assert!(is_changed || writer.last() == newest, "a repository is not that of its publisher");
    for more in 0..40 {
        let last = writer.last();
        if last.get() > limits::SEQUENCE_MAX {
            // No publisher gets there unless the file says that it almost has.
            return;
        }
        writer = recover().expect("a repository that was continued is refused");
        assert_eq!(writer.last(), last, "a repository was continued with what was not committed");
        publish(&mut writer, last.get() + 1 + more % 2);
        assert!(writer.last() >= last);
    }
}

/// Reads what a file says of itself.
fn describe(bytes: &[u8]) {
    let read = |offset: u64, into: &mut [u8]| {
        let from = usize::try_from(offset).expect("a file is not longer");
        into.copy_from_slice(bytes.get(from..from + into.len()).expect("what is read is in the file"));
        Ok::<(), RepositoryFileError>(())
    };
    if let Ok(described) = Described::read(Path::new("file"), bytes.len() as u64, read) {
        assert!(described.geometry.region_len() <= bytes.len());
    }
}

/// Programs of random changes for each kind, and a file; and repositories of each kind in which nothing changes.
#[cfg(test)]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let unchanged = (0..3).flat_map(|kind| (0..12).map(move |count| vec![kind, count]));
    super::tests::programs(24, 1).into_iter().chain(unchanged).collect()
}
