use std::fmt;

use hmac::Mac;
use serde::{Deserialize, Serialize};

use super::key::Key;

/// Bytes of a tag.
pub(crate) const TAG_LEN: usize = 32;
/// Distinguishes a tag from all else that a secret may be used for, and from tags of other versions.
const PROOF_LABEL: &[u8] = b"fabricast proof\0\x01";
/// The end that dialled.
const DIALLING: u8 = 1;
/// The end that was dialled.
const DIALLED: u8 = 2;

/// Random bytes of one end, new in each session.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Challenge(pub(crate) [u8; 32]);

/// What both ends of a session have seen of each other, which tags are made of.
#[derive(Clone, Debug)]
pub(crate) struct Transcript {
    /// Everything but the role.
    bytes: Vec<u8>,
    /// Whether this end dialled.
    is_dialling: bool,
}

impl Challenge {
    /// Draws a challenge.
    pub(crate) fn random() -> Result<Self, std::io::Error> {
        crate::random::bytes().map(Self)
    }
}

impl fmt::Debug for Challenge {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Challenge")
    }
}

impl Transcript {
    /// The transcript of a session: the hello of this end, that of the peer, and what the fabric connects.
    pub(crate) fn new(is_dialling: bool, own: &[u8], peers: &[u8], binding: &[u8]) -> Self {
        let (first, second) = if is_dialling { (own, peers) } else { (peers, own) };
        let mut bytes = Vec::with_capacity(first.len() + second.len() + binding.len() + 3 * size_of::<u64>());
        for part in [first, second, binding] {
            bytes.extend_from_slice(&len_of(part));
            bytes.extend_from_slice(part);
        }
        Self { bytes, is_dialling }
    }

    /// Makes this end's tag.
    pub(crate) fn tag(&self, key: &Key) -> [u8; TAG_LEN] {
        self.mac(key, self.is_dialling).finalize().into_bytes().into()
    }

    /// Checks the peer's tag, in constant time.
    pub(crate) fn is_peers(&self, key: &Key, tag: &[u8; TAG_LEN]) -> bool {
        self.mac(key, !self.is_dialling).verify_slice(tag).is_ok()
    }

    fn mac(&self, key: &Key, of_dialling: bool) -> hmac::Hmac<sha2::Sha256> {
        let mut mac = key.secret.mac();
        mac.update(PROOF_LABEL);
        mac.update(&[if of_dialling { DIALLING } else { DIALLED }]);
        mac.update(&self.bytes);
        mac
    }
}

#[expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]
fn len_of(part: &[u8]) -> [u8; 8] {
    (part.len() as u64).to_be_bytes()
}
