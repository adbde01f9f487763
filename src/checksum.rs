//! CRC-32 (IEEE 802.3, reflected, polynomial 0xEDB88320), by the crate crc32fast, which uses the processor's
//! carry-less multiplication if available.
//!
//! A CRC detects damage and torn reads. It does not detect forgery.

/// CRC-32 of bytes in pieces.
#[derive(Clone, Debug)]
pub(crate) struct Crc32(crc32fast::Hasher);

impl Crc32 {
    /// Creates the checksum of no bytes.
    pub(crate) fn new() -> Self {
        Self(crc32fast::Hasher::new())
    }

    /// Continues from the checksum of bytes already seen.
    #[inline]
    pub(crate) fn resume(checksum: u32) -> Self {
        Self(crc32fast::Hasher::new_with_initial(checksum))
    }

    /// Adds bytes.
    #[inline]
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Appends the bytes of another checksum, which began with [`Self::new`].
    pub(crate) fn append(&mut self, later: &Self) {
        self.0.combine(&later.0);
    }

    /// Returns the checksum of all bytes so far.
    #[inline]
    pub(crate) fn finish(self) -> u32 {
        self.0.finalize()
    }
}

/// CRC-32 of these bytes.
#[inline]
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of this CRC in every catalogue.
    #[test]
    fn check_value() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }

    #[test]
    fn pieces_and_whole_agree() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        for cut in [0, 1, 63, 64, 500, 1000] {
            let mut pieces = Crc32::resume(crc32(&bytes[..cut]));
            pieces.update(&bytes[cut..]);
            assert_eq!(pieces.finish(), crc32(&bytes));

            let mut joined = Crc32::resume(crc32(&bytes[..cut]));
            let mut later = Crc32::new();
            later.update(&bytes[cut..]);
            joined.append(&later);
            assert_eq!(joined.finish(), crc32(&bytes));
        }
    }
}
