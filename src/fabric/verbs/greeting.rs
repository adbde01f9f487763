//! What both ends send while they connect: that they are nodes of this version, and whether the dialling end
//! is to write regions of the other one. It is public, so it holds nothing else.
//!
//! ```text
//! greeting   "FBC1"  version u8  nonce u64  1: the end that dials writes; 0: it does not, u8
//! request    greeting  bytes shown u8  what is shown, at most 40 bytes
//! rejection  "FBC1"  version u8  reason u8  limit u32, if all places are taken
//!                                           address u128, if the request was not admitted
//! ```
//!
//! Numbers are in network byte order, and an IPv4 address is one of IPv6 that maps it. The end that dials makes a request, of which zeros
//! at the end may be missing. The accepting end greets with the other end's nonce. Padding follows.

#![expect(clippy::big_endian_bytes, reason = "greetings are in network byte order")]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::error::VerbsError;
use crate::fabric::{
    ConnectPolicy, ConnectRequest, FabricError, Intent, NoPlace, NotAdmitted, SHOWN_LEN_MAX,
};

const MAGIC: [u8; 4] = *b"FBC1";
const VERSION: u8 = 1;
/// Bytes of a greeting.
const GREETING_LEN: usize = 14;
/// A request fits the private data of the connection manager.
const _: () = assert!(GREETING_LEN + 1 + SHOWN_LEN_MAX <= 56);
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
    /// The request was not admitted.
    NotAdmitted(NotAdmitted),
}

/// A peer's reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    /// In words.
    Why(&'static str),
    /// It has no place for another session.
    NoPlace(NoPlace),
    /// It does not admit the request.
    NotAdmitted(NotAdmitted),
}

impl From<Rejected> for FabricError {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::Why(why) => VerbsError::Refused { why }.into(),
            Rejected::NoPlace(why) => why.into(),
            Rejected::NotAdmitted(why) => why.into(),
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

    /// Encodes a request that shows these bytes.
    pub(super) fn emit_request(self, shown: &[u8]) -> Vec<u8> {
        let len = u8::try_from(shown.len()).ok().filter(|len| *len > 0);
        self.emit().into_iter().chain(len).chain(shown.iter().copied()).collect()
    }

    /// Returns what the private data of a request shows: nothing, if that is malformed.
    pub(super) fn shown(request: &[u8]) -> &[u8] {
        let Some((len, rest)) = request.get(GREETING_LEN..).and_then(<[u8]>::split_first) else { return &[] };
        let len = usize::from(*len);
        rest.split_at_checked(len).filter(|_| len <= SHOWN_LEN_MAX).map_or(&[], |(shown, _)| shown)
    }

    /// The purpose of the end that dials.
    pub(super) fn intent(self) -> Intent {
        intent(self.writes)
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
            Self::NotAdmitted(NotAdmitted::Key { .. }) => (8, None),
            Self::NotAdmitted(NotAdmitted::Address { .. }) => (9, None),
        };
        let address = match self {
            Self::NotAdmitted(NotAdmitted::Key { address } | NotAdmitted::Address { address }) => {
                Some(octets(address))
            }
            _ => None,
        };
        let limit = limit.map(u32::to_be_bytes);
        let more = limit.into_iter().flatten().chain(address.into_iter().flatten());
        MAGIC.into_iter().chain([VERSION, reason]).chain(more).collect()
    }

    /// Returns a peer's reason; `None` if it gave none, as a peer that exits does.
    pub(super) fn parse(bytes: &[u8]) -> Option<Rejected> {
        let ([m0, m1, m2, m3, _, reason], rest) = bytes.split_first_chunk::<REJECTION_LEN>()?;
        if [*m0, *m1, *m2, *m3] != MAGIC {
            return None;
        }
        let max = rest.first_chunk().map_or(0, |limit| u32::from_be_bytes(*limit));
        let address = || IpAddr::from(rest.first_chunk().map_or([0; 16], |octets| *octets)).to_canonical();
        let reason = match reason {
            8 => return Some(Rejected::NotAdmitted(NotAdmitted::Key { address: address() })),
            9 => return Some(Rejected::NotAdmitted(NotAdmitted::Address { address: address() })),
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

/// The purpose of an end that dials, by whether it is to write.
pub(super) fn intent(writes: bool) -> Intent {
    if writes { Intent::Write } else { Intent::Read }
}

/// Checks what a peer has shown with the request of which this was sent, between these addresses.
pub(super) fn check(
    policy: &dyn ConnectPolicy,
    (intent, sent, shown): (Intent, &[u8], &[u8]),
    (dialling, dialled): (SocketAddr, SocketAddr),
) -> Result<(), NotAdmitted> {
    let request = ConnectRequest { intent, binding: binding(sent, dialling, dialled) };
    let address = dialling.ip().to_canonical();
    if policy.admits(&request, shown) { Ok(()) } else { Err(NotAdmitted::Key { address }) }
}

/// What sets a request apart, at both ends: what the dialling end has sent, its address, and the one that it dialled.
pub(super) fn binding(sent: &[u8], dialling: SocketAddr, dialled: SocketAddr) -> Vec<u8> {
    let (dialling, to) = (octets(dialling.ip()), octets(dialled.ip()));
    [sent, &dialling, &to, &dialled.port().to_be_bytes()].concat()
}

/// What a dial shows with its requests to connect.
#[derive(Clone, Debug)]
pub(super) struct Showing {
    /// Says what.
    pub(super) policy: Arc<dyn ConnectPolicy>,
    /// How much was shown before.
    pub(super) turn: usize,
}

impl Showing {
    /// What to show with the request of which this was sent, between these addresses.
    pub(super) fn of(
        &self,
        intent: Intent,
        sent: &[u8],
        (dialling, dialled): (SocketAddr, SocketAddr),
    ) -> Vec<u8> {
        let request = ConnectRequest { intent, binding: binding(sent, dialling, dialled) };
        let mut shown = self.policy.show(&request, self.turn);
        shown.truncate(SHOWN_LEN_MAX);
        shown
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    let address = match address.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    address.octets()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_shows_is_read_back() {
        let greeting = Greeting { nonce: 7, writes: false };
        assert_eq!(greeting.emit_request(&[]), greeting.emit());
        for len in 0..=SHOWN_LEN_MAX {
            let shown: Vec<u8> = (1..).take(len).collect();
            let mut request = greeting.emit_request(&shown);
            request.resize(56, 0);
            assert_eq!((Greeting::parse(&request), Greeting::shown(&request)), (Ok(greeting), &*shown));
            for cut in 0..GREETING_LEN + usize::from(len > 0) + len {
                assert_eq!(Greeting::shown(&request[..cut]), &[] as &[u8], "{len} bytes, cut at {cut}");
            }
        }
        let mut request = greeting.emit_request(&[9; SHOWN_LEN_MAX]);
        for len in 41..=255 {
            request[GREETING_LEN] = len;
            assert_eq!(Greeting::shown(&request), &[] as &[u8]);
            assert_eq!(Greeting::shown(&[&*request, &[0; 256]].concat()), &[] as &[u8], "more than may be");
        }
    }

    #[test]
    fn binding_of_a_request_names_both_addresses() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let one = binding(b"x", at("10.0.0.1:5"), at("10.0.0.2:7471"));
        // The port of the dialling end is one of its own.
        assert_eq!(one, binding(b"x", at("[::ffff:10.0.0.1]:6"), at("[::ffff:10.0.0.2]:7471")));
        for (sent, dialling, dialled) in [
            (b"y", "10.0.0.1:5", "10.0.0.2:7471"),
            (b"x", "10.0.0.3:5", "10.0.0.2:7471"),
            (b"x", "10.0.0.1:5", "10.0.0.3:7471"),
            (b"x", "10.0.0.1:5", "10.0.0.2:7472"),
        ] {
            assert_ne!(one, binding(sent, at(dialling), at(dialled)));
        }
    }

    #[test]
    fn request_that_is_not_admitted_is_rejected_with_the_address() {
        for address in ["10.0.0.1", "fd00::7"].map(|text| text.parse().unwrap()) {
            for why in [NotAdmitted::Key { address }, NotAdmitted::Address { address }] {
                let padded = [Rejection::NotAdmitted(why).emit().as_slice(), &[0; 126]].concat();
                assert_eq!(Rejection::parse(&padded), Some(Rejected::NotAdmitted(why)));
            }
        }
        let address = "10.0.0.1".parse().unwrap();
        let bytes = Rejection::NotAdmitted(NotAdmitted::Key { address }).emit();
        assert_eq!(bytes, b"FBC1\x01\x08\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x01");
        assert!(Rejection::parse(b"FBC1\x01\x09").is_some());
    }

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
