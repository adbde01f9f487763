//! What both ends send while they connect: that they are nodes of this version, and whether the dialling end
//! is to write regions of the other one. It is public, so it holds nothing else.
//!
//! ```text
//! greeting   "FBC1"  version u8  nonce u64  1: the end that dials writes; 0: it does not, u8
//! rejection  "FBC1"  version u8  reason u8  limit u32, if all places are taken
//! ```
//!
//! Numbers are in network byte order. The accepting end greets with the other end's nonce. Padding follows.

#![expect(clippy::big_endian_bytes, reason = "greetings are in network byte order")]

use super::error::VerbsError;
use crate::fabric::{FabricError, NoPlace};

const MAGIC: [u8; 4] = *b"FBC1";
const VERSION: u8 = 1;
/// Bytes of a greeting.
const GREETING_LEN: usize = 14;
/// Bytes of a rejection, without the limit.
const REJECTION_LEN: usize = 6;

/// The greeting of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    nonce: u64,
    /// The dialling end is to write regions that the other one exposes.
    pub(super) writes: bool,
}

/// Why a connection was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// The greeting is malformed.
    NotANode,
    /// The greeting is of another version.
    Version,
    /// Memory or another resource is missing.
    NoRoom,
    /// The TCP connection comes from another address than its device's.
    OtherAddress,
    /// All places for sessions are taken.
    NoPlace(NoPlace),
}

/// A peer's reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    /// In words.
    Why(&'static str),
    /// It has no place for another session.
    NoPlace(NoPlace),
}

impl From<Rejected> for FabricError {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::Why(why) => VerbsError::Refused { why }.into(),
            Rejected::NoPlace(why) => why.into(),
        }
    }
}

impl Greeting {
    /// Creates a greeting with a random nonce.
    pub(super) fn new(writes: bool) -> Result<Self, FabricError> {
        let nonce = crate::random::number().map_err(FabricError::no_random)?;
        Ok(Self { nonce, writes })
    }

    /// Encodes the greeting.
    pub(super) fn emit(self) -> [u8; GREETING_LEN] {
        let [m0, m1, m2, m3] = MAGIC;
        let [n0, n1, n2, n3, n4, n5, n6, n7] = self.nonce.to_be_bytes();
        [m0, m1, m2, m3, VERSION, n0, n1, n2, n3, n4, n5, n6, n7, self.writes.into()]
    }

    /// Decodes a greeting.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Rejection> {
        let bytes = bytes.first_chunk::<GREETING_LEN>().ok_or(Rejection::NotANode)?;
        let [m0, m1, m2, m3, version, nonce @ .., writes] = *bytes;
        let nonce = u64::from_be_bytes(nonce);
        match ([m0, m1, m2, m3], version, writes) {
            (MAGIC, VERSION, 0 | 1) => Ok(Self { nonce, writes: writes == 1 }),
            (MAGIC, ..) => Err(Rejection::Version),
            _ => Err(Rejection::NotANode),
        }
    }
}

impl Rejection {
    /// The reason of a peer that may accept another connection later.
    pub(super) const NO_ROOM: &'static str = "it is out of resources for another connection";

    /// Encodes the rejection.
    pub(super) fn emit(self) -> Vec<u8> {
        let (reason, limit) = match self {
            Self::NotANode => (1, None),
            Self::Version => (2, None),
            Self::NoRoom => (3, None),
            Self::OtherAddress => (4, None),
            Self::NoPlace(NoPlace::Process { max } | NoPlace::Host { max }) => (5, Some(max)),
            Self::NoPlace(NoPlace::Shm { max } | NoPlace::Rdma { max }) => (6, Some(max)),
            Self::NoPlace(NoPlace::Haste) => (7, None),
        };
        let limit = limit.map(u32::to_be_bytes);
        MAGIC.into_iter().chain([VERSION, reason]).chain(limit.into_iter().flatten()).collect()
    }

    /// Returns a peer's reason; `None` if it gave none, as a peer that exits does.
    pub(super) fn parse(bytes: &[u8]) -> Option<Rejected> {
        let ([m0, m1, m2, m3, _, reason], rest) = bytes.split_first_chunk::<REJECTION_LEN>()?;
        if [*m0, *m1, *m2, *m3] != MAGIC {
            return None;
        }
        let max = rest.first_chunk().map_or(0, |limit| u32::from_be_bytes(*limit));
        let reason = match reason {
            5 => return Some(Rejected::NoPlace(NoPlace::Host { max })),
            6 => return Some(Rejected::NoPlace(NoPlace::Rdma { max })),
            7 => return Some(Rejected::NoPlace(NoPlace::Haste)),
            1 => "it does not take this end for a node",
            2 => "it has a different version",
            3 => Self::NO_ROOM,
            4 => {
                "the TCP connection does not come from the RDMA device's address (GID); set \
                 FABRICAST_RDMA_DEVICE to the device that has the route there, and unset FABRICAST_RDMA_GID_INDEX"
            }
            _ => "for a reason unknown to this version",
        };
        Some(Rejected::Why(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_greetings_are_read_back() {
        let greeting = Greeting { nonce: 0x0102_0304_0506_0708, writes: true };
        let bytes = greeting.emit();
        assert_eq!(&bytes, b"FBC1\x01\x01\x02\x03\x04\x05\x06\x07\x08\x01");
        let padded = [bytes.as_slice(), &[0; 43]].concat();
        assert_eq!(Greeting::parse(&padded), Ok(greeting));
        assert_ne!(Greeting::new(false).unwrap(), Greeting::new(false).unwrap());
    }

    #[test]
    fn malformed_greeting_is_rejected_with_the_reason() {
        let bytes = Greeting { nonce: 7, writes: false }.emit();
        for cut in 0..bytes.len() {
            assert_eq!(Greeting::parse(&bytes[..cut]), Err(Rejection::NotANode));
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0..4 => Err(Rejection::NotANode),
                4 => Err(Rejection::Version),
                13 if bit % 8 > 0 => Err(Rejection::Version),
                _ => Ok(()),
            };
            assert_eq!(Greeting::parse(&damaged).map(|_| ()), expected, "bit {bit}");
        }
    }

    #[test]
    fn rejections_are_reported_in_words() {
        for (rejection, word) in [
            (Rejection::NotANode, "node"),
            (Rejection::Version, "version"),
            (Rejection::NoRoom, "resources"),
            (Rejection::OtherAddress, "(GID)"),
        ] {
            let padded = [rejection.emit().as_slice(), &[0; 142]].concat();
            let Some(Rejected::Why(why)) = Rejection::parse(&padded) else { panic!("no reason") };
            assert!(why.contains(word));
        }
        for why in [NoPlace::Host { max: 256 }, NoPlace::Rdma { max: 70_000 }, NoPlace::Haste] {
            let padded = [Rejection::NoPlace(why).emit().as_slice(), &[0; 138]].concat();
            assert_eq!(Rejection::parse(&padded), Some(Rejected::NoPlace(why)));
        }
        assert_eq!(Rejection::NoPlace(NoPlace::Host { max: 256 }).emit(), b"FBC1\x01\x05\0\0\x01\0");
        assert_eq!(Rejection::parse(&[0; 148]), None);
        assert_eq!(Rejection::parse(b"FBC1\x01"), None);
        assert!(Rejection::parse(b"FBC1\x01\xff").is_some());
    }
}
