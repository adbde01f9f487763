//! Table topics in the suite, which has one key: like a state, except that values before the first one are counted if the key was
//! added after the grant.

use std::ops::RangeInclusive;

use super::kind::{Account, ConformingKind};
use crate::id::Sequence;
use crate::limits;
use crate::payload::Raw;
use crate::publisher::{PublishError, Publisher, TableOptions};
use crate::repository::table::TableTopic;
use crate::repository::{ReadFailure, Verified};
use crate::testkit::random::Random;

/// The key.
const KEY: &[u8] = b"k";

impl ConformingKind for TableTopic {
    const LOOK_NS: u64 = limits::DAMAGE_SETTLED_NS / 4;
    const OVERHEAD: usize = KEY.len() + 1;

    fn publishing(random: &mut Random) -> TableOptions {
        TableOptions { capacity: 1 + random.index(3), key_len_max: Some(KEY.len()) }
    }

    fn publish(publisher: &mut Publisher<Self, Raw>, payload: &[u8]) -> Result<Sequence, PublishError> {
        publisher.put_bytes(KEY, payload)
    }

    fn subscribing(_: &mut Random) {}

    fn resumption(_: Sequence) -> Option<()> {
        None
    }

    fn beginning((): (), granted: u64) -> RangeInclusive<u64> {
        granted..=u64::MAX
    }

    fn payload<'a>(value: &Verified<'a>) -> &'a [u8] {
        value.payload.split_at(KEY.len() + 1).1
    }

    fn accept(account: &mut Account, value: &Verified<'_>, floor: u64) {
        let sequence = value.meta.sequence.get();
        assert!(sequence >= floor, "{sequence}, but {floor} was there");
        let is_first = account.counts.received == 0 && *account.beginning.start() > 0;
        let skipped = if is_first { 0 } else { missing_before(account, sequence) };
        let untold = if is_first { 0 } else { account.untold };
        account.untold = 0;
        assert_eq!(value.conflated, skipped + untold, "values between {} and {sequence}", account.last);
        account.counts.conflated += value.conflated;
    }

    /// The reader's last commit is that of its last pass, which may go on after a report.
    fn report(account: &mut Account, failure: &ReadFailure, last: u64) {
        use ReadFailure::{BrokenStamps, Damaged, ImpossibleLen};
        match failure {
            Damaged { sequence, .. } | BrokenStamps { sequence } | ImpossibleLen { sequence, .. } => {
                let sequence = sequence.get();
                account.untold += missing_before(account, sequence) + 1;
                account.counts.rejected += 1;
                account.advance(sequence, sequence);
            }
            _ => assert!(last <= account.last, "a value was skipped silently"),
        }
    }

    fn has_reported_all(failures: &[ReadFailure], given_up: Option<(Sequence, u64)>) -> bool {
        !failures.is_empty() && given_up.is_none()
    }
}

/// The values missing between the last one and this one.
fn missing_before(account: &Account, sequence: u64) -> u64 {
    match account.first {
        None if *account.beginning.start() == 0 => sequence - 1,
        None => 0,
        Some(_) => sequence - account.last - 1,
    }
}
