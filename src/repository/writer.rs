use std::sync::Arc;

use crate::id::Sequence;
use crate::layout::header::StaticHeader;
use crate::memory::Region;

/// The one writer of a repository of one kind. Only [`Self::new`] allocates.
pub(crate) trait Writer: Send {
    /// Where things stand in the repository.
    type Geometry;

    /// Takes a zeroed region and makes it an empty repository.
    ///
    /// # Panics
    ///
    /// When the region is shorter than its geometry, which is a mistake of the caller.
    fn new(region: Arc<Region>, geometry: Self::Geometry, line: &StaticHeader) -> Self;

    /// Numbers the first value after this sequence, before anything is written: the values up to it were published elsewhere.
    fn begin_after(&mut self, sequence: Sequence);

    /// The newest sequence that readers can see, or the one to begin after.
    fn last(&self) -> Sequence;

    /// Room in private memory for the longest payload, to be filled. It holds anything.
    fn room(&mut self) -> &mut [u8];

    /// What [`Self::room`] holds.
    fn held(&self) -> &[u8];
}
