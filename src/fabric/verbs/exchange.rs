//! What two nodes exchange over TCP to connect their queue pairs by hand, as `ibv_rc_pingpong` does.
//!
//! Each side sends one frame, the dialling one first. All numbers are in network byte order:
//!
//! ```text
//! 00  u32  magic "FBCX"
//! 04  u8   version
//! 05  u8   1: reliable connection, 2: unreliable connection
//! 06  u16  LID of the port, 0 on Ethernet
//! 08  u32  queue pair number
//! 0c  u32  packet sequence number of the first packet
//! 10  [16] GID of the port
//! 20  u32  MTU of the port, bytes
//! 24  u8   RDMA READs that it answers at a time
//! 25  u8   1 of the dialling side when it is to write regions that the other one exposes; otherwise 0
//! 26  [2]  zero
//! ```
//!
//! The dialling side's frame goes on with what it shows, up to 40 bytes, if that is anything.
//!
//! The listening side brings its queue pair to RTS before it answers, the dialling side on receiving the answer; it then
//! sends [`READY`], after which the listening side may send. A listening side that refuses the connection answers
//! with a [`Rejection`].

#![expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]

use super::greeting::Rejection;
use super::link::QpEnd;
use super::sys::QueuePairKind;

/// The last message of the dialling side.
pub(super) const READY: &[u8] = b"FBCR";
/// The magic number.
const MAGIC: u32 = u32::from_be_bytes(*b"FBCX");
/// The version of the exchange.
const VERSION: u8 = 1;
/// Bytes of each.
pub(super) const EXCHANGE_LEN: usize = 40;
/// The number of a reliable connection.
const RELIABLE: u8 = 1;
/// The number of an unreliable connection.
const UNRELIABLE: u8 = 2;
/// Bits of queue pair numbers and packet sequence numbers.
const NUMBER_BITS: u32 = 24;
/// Valid path MTUs, bytes.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// One end of a connection, as its peer needs it to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QpInfo {
    /// The kind of its queue pair.
    pub(super) kind: QueuePairKind,
    /// LID of its port, 0 on Ethernet.
    pub(super) lid: u16,
    /// Its queue pair number.
    pub(super) queue_pair: u32,
    /// The sequence number of its first packet.
    pub(super) packet_sequence: u32,
    /// GID of its port.
    pub(super) gid: [u8; 16],
    /// MTU of its port, bytes.
    pub(super) mtu: u32,
    /// RDMA READs that it answers at a time.
    pub(super) reads_max: u8,
    /// It dials, to write regions that the other end exposes.
    pub(super) writes: bool,
}

impl QpInfo {
    /// Decodes a peer's frame.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Rejection> {
        let bytes: &[u8; EXCHANGE_LEN] = bytes.try_into().map_err(|_| Rejection::NotANode)?;
        let rest = &mut bytes.as_slice();
        if u32::from_be_bytes(take(rest)?) != MAGIC {
            return Err(Rejection::NotANode);
        }
        let [version, kind] = take(rest)?;
        if version != VERSION {
            return Err(Rejection::Version);
        }
        let kind = match kind {
            RELIABLE => QueuePairKind::Rc,
            UNRELIABLE => QueuePairKind::Uc,
            _ => return Err(Rejection::NotANode),
        };
        let lid = u16::from_be_bytes(take(rest)?);
        let queue_pair = u32::from_be_bytes(take(rest)?);
        let packet_sequence = u32::from_be_bytes(take(rest)?);
        let gid = take(rest)?;
        let mtu = u32::from_be_bytes(take(rest)?);
        let [reads_max, writes, zeros @ ..] = take::<4>(rest)?;
        if queue_pair >> NUMBER_BITS != 0 || packet_sequence >> NUMBER_BITS != 0 {
            return Err(Rejection::NotANode);
        }
        if !MTUS.contains(&mtu) || writes > 1 || zeros != [0; 2] {
            return Err(Rejection::NotANode);
        }
        let writes = writes == 1;
        Ok(Self { kind, lid, queue_pair, packet_sequence, gid, mtu, reads_max, writes })
    }

    /// Returns what identifies it.
    pub(super) fn identity(&self) -> QpEnd {
        let Self { gid, queue_pair, packet_sequence, .. } = *self;
        QpEnd { gid, queue_pair, packet_sequence }
    }

    /// Encodes it for a peer.
    pub(super) fn emit(&self) -> [u8; EXCHANGE_LEN] {
        let Self { kind, lid, queue_pair, packet_sequence, gid, mtu, reads_max, writes } = *self;
        let kind = if kind == QueuePairKind::Rc { RELIABLE } else { UNRELIABLE };
        let parts: [&[u8]; 9] = [
            &MAGIC.to_be_bytes(),
            &[VERSION, kind],
            &lid.to_be_bytes(),
            &queue_pair.to_be_bytes(),
            &packet_sequence.to_be_bytes(),
            &gid,
            &mtu.to_be_bytes(),
            &[reads_max, writes.into()],
            &[0; 2],
        ];
        let mut bytes = [0; EXCHANGE_LEN];
        bytes.iter_mut().zip(parts.into_iter().flatten()).for_each(|(to, from)| *to = *from);
        bytes
    }
}

/// Converts a random number to the sequence number of a first packet.
pub(super) fn packet_sequence(random: u64) -> u32 {
    let [a, b, c, ..] = random.to_be_bytes();
    u32::from_be_bytes([0, a, b, c])
}

/// Takes the first bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Rejection> {
    let (first, rest) = bytes.split_first_chunk().ok_or(Rejection::NotANode)?;
    *bytes = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: QpInfo = QpInfo {
        kind: QueuePairKind::Uc,
        lid: 0x0102,
        queue_pair: 0x0003_0405,
        packet_sequence: 0x0006_0708,
        gid: *b"0123456789abcdef",
        mtu: 4096,
        reads_max: 16,
        writes: true,
    };

    #[test]
    fn encoding_is_stable() {
        let expected =
            b"FBCX\x01\x02\x01\x02\x00\x03\x04\x05\x00\x06\x07\x080123456789abcdef\x00\x00\x10\x00\x10\x01\0\0";
        assert_eq!(&END.emit(), expected);
        assert_eq!(QpInfo::parse(expected), Ok(END));
    }

    #[test]
    fn cuts_and_flips_are_refused_or_mean_something_else() {
        let bytes = END.emit();
        for len in 0..bytes.len() {
            assert!(QpInfo::parse(bytes.split_at(len).0).is_err());
        }
        assert!(QpInfo::parse(&[bytes.as_slice(), &[0]].concat()).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(QpInfo::parse(&flipped), Ok(END), "bit {bit}");
        }
    }

    #[test]
    fn random_numbers_fit_a_packet() {
        for random in [0, 1, u64::MAX, 0x8000_0000_0000_0000] {
            assert_eq!(packet_sequence(random) >> NUMBER_BITS, 0);
        }
    }
}
