//! How many file descriptors this process may have.

use std::ops::RangeInclusive;

use rustix::process::{Resource, getrlimit};

/// Returns the number of descriptors that this process may have, divided by `parts`, within these bounds. Reads the limit anew each time.
pub(crate) fn part_of_descriptors(parts: u64, bounds: RangeInclusive<usize>) -> usize {
    part_of(getrlimit(Resource::Nofile).current, parts, bounds)
}

/// The same for a process that may have this many; `None` for any number.
pub(crate) fn part_of(files: Option<u64>, parts: u64, bounds: RangeInclusive<usize>) -> usize {
    let part = files.map_or(u64::MAX, |files| files / parts);
    usize::try_from(part).unwrap_or(usize::MAX).clamp(*bounds.start(), *bounds.end())
}
