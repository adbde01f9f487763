//! What a reader needs no more of the publisher's ring.

use super::LogReader;
use crate::layout::log::frame_len;

impl LogReader {
    /// Returns the position before which it needs no frame any more: those before it are in private memory, or were taken.
    #[inline]
    pub(super) fn released_position(&self, is_landing: bool) -> u64 {
        if is_landing {
            // What it has told its landing region: the publisher has room there up to a ring after this.
            return self.said;
        }
        if let Some(place) = self.in_view
            && place.sequence.next() == self.next
        {
            return place.position;
        }
        if self.unproven_words() > 0 {
            // These frames are still to be compared with the ring.
            return self.unproven.from.min(self.position);
        }
        // The last frame held may be a part of one, which is read again as a whole.
        let longest = frame_len(self.geometry.payload_len_max()) as u64;
        let held = self.held_until().saturating_sub(longest);
        // Over a wire, what follows the end that was known before a fetch may be fetched again.
        let sure = if self.fetching.end > 0 { self.fetching.sure } else { u64::MAX };
        held.min(sure).max(self.position)
    }
}
