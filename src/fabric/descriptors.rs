//! How many file descriptors this process may have.

use std::ops::RangeInclusive;

use rustix::process::{Resource, getrlimit};

/// Returns one part of so many of the descriptors that this process may have, within these bounds. Reads the limit anew each time.
pub(crate) fn part_of_descriptors(parts: u64, bounds: RangeInclusive<usize>) -> usize {
    let part = getrlimit(Resource::Nofile).current.map_or(u64::MAX, |files| files / parts);
    usize::try_from(part).unwrap_or(usize::MAX).clamp(*bounds.start(), *bounds.end())
}
