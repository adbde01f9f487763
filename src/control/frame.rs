//! The version-independent part of the protocol: the header of a message, and `Refuse`.
//!
//! All numbers are in network byte order.
//!
//! ```text
//! byte  0        4          6       8            12           16
//!       +--------+----------+-------+------------+------------+--------------//-+
//!       | "FBCT" | version  | kind  | body_len   | crc32      | body            |
//!       +--------+----------+-------+------------+------------+--------------//-+
//! ```
//!
//! `crc32` covers the twelve bytes before it and the body. The version is checked before the checksum and the
//! body, so another version is refused by its number whatever else it changed. Only `Refuse` is
//! read under any version: its kind, its body and the header around it never
//! change. It carries the sender's own version, so the reader learns that.
//!
//! ```text
//! Refuse    reason u16 | text_len u16 | text, UTF-8 without control characters, at most 512 bytes
//! ```

use super::error::ControlError;
use super::message::{MessageKind, Refuse, VERSION};
use super::text::Text;
use crate::checksum::Crc32;
use crate::limits;

/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = CHECKSUM_AT + size_of::<u32>();

/// A message with a valid header: whole, undamaged, and of this version (or a `Refuse`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    /// The version in the header.
    pub(crate) version: u16,
    /// The kind of message, which may be unknown.
    pub(crate) kind: u16,
    /// The body.
    pub(crate) body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Parses a message's header.
    ///
    /// # Errors
    ///
    /// In the order of the checks: `TooShort`, `TooLong`, `BadMagic`, `Version`,
    /// `LengthMismatch`, `BadChecksum`.
    #[expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, ControlError> {
        let (Some((header, body)), Some(covered)) =
            (bytes.split_first_chunk::<HEADER_LEN>(), bytes.first_chunk::<CHECKSUM_AT>())
        else {
            return Err(ControlError::TooShort { len: bytes.len() });
        };
        if bytes.len() > limits::CONTROL_MESSAGE_LEN_MAX {
            return Err(ControlError::TooLong { len: bytes.len() });
        }
        let [m0, m1, m2, m3, v0, v1, k0, k1, l0, l1, l2, l3, c0, c1, c2, c3] = *header;
        let magic = u32::from_be_bytes([m0, m1, m2, m3]);
        if magic != MAGIC {
            return Err(ControlError::BadMagic { found: magic });
        }
        let version = u16::from_be_bytes([v0, v1]);
        let kind = u16::from_be_bytes([k0, k1]);
        if version != VERSION && kind != MessageKind::Refuse.number() {
            return Err(ControlError::Version { theirs: version, ours: VERSION });
        }
        let stated = HEADER_LEN as u64 + u64::from(u32::from_be_bytes([l0, l1, l2, l3]));
        if stated != bytes.len() as u64 {
            return Err(ControlError::LengthMismatch { stated, found: bytes.len() });
        }
        let stated = u32::from_be_bytes([c0, c1, c2, c3]);
        let found = checksum(covered, body);
        if stated != found {
            return Err(ControlError::BadChecksum { stated, found });
        }
        Ok(Self { version, kind, body })
    }

    /// Encodes a message.
    #[expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]
    pub(crate) fn emit(&self) -> Vec<u8> {
        let len = HEADER_LEN + self.body.len();
        assert!(
            len <= limits::CONTROL_MESSAGE_LEN_MAX,
            "the bounds of the message types keep messages small"
        );
        let body_len = u32::try_from(self.body.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&MAGIC.to_be_bytes());
        bytes.extend_from_slice(&self.version.to_be_bytes());
        bytes.extend_from_slice(&self.kind.to_be_bytes());
        bytes.extend_from_slice(&body_len.to_be_bytes());
        let checksum = checksum(&bytes, self.body);
        bytes.extend_from_slice(&checksum.to_be_bytes());
        bytes.extend_from_slice(self.body);
        bytes
    }
}

/// Encodes the body of a `Refuse`.
#[expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]
pub(crate) fn refuse_body(refuse: &Refuse) -> Vec<u8> {
    let text = refuse.text.as_str().as_bytes();
    let text_len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    let mut body = Vec::with_capacity(2 * size_of::<u16>() + text.len());
    body.extend_from_slice(&refuse.reason.code().to_be_bytes());
    body.extend_from_slice(&text_len.to_be_bytes());
    body.extend_from_slice(text);
    body
}

/// Decodes a `Refuse` of any version.
///
/// # Errors
///
/// `Malformed` if the body is not as described above.
#[expect(clippy::big_endian_bytes, reason = "the control channel is in network byte order")]
pub(crate) fn parse_refuse(frame: &Frame<'_>) -> Result<Refuse, ControlError> {
    let malformed = |detail: String| ControlError::Malformed { message: MessageKind::Refuse.name(), detail };
    let Some(([r0, r1, l0, l1], text)) = frame.body.split_first_chunk() else {
        return Err(malformed("it is truncated".into()));
    };
    if usize::from(u16::from_be_bytes([*l0, *l1])) != text.len() {
        return Err(malformed("its text does not have the stated length".into()));
    }
    let text = std::str::from_utf8(text).map_err(|error| malformed(error.to_string()))?;
    let text = Text::try_from(text.to_owned()).map_err(|error| malformed(error.to_string()))?;
    Ok(Refuse { version: frame.version, reason: u16::from_be_bytes([*r0, *r1]).into(), text })
}

fn checksum(covered: &[u8], body: &[u8]) -> u32 {
    let mut checksum = Crc32::new();
    checksum.update(covered);
    checksum.update(body);
    checksum.finish()
}

/// "FBCT".
const MAGIC: u32 = 0x4642_4354;

const VERSION_AT: usize = size_of::<u32>();
const KIND_AT: usize = VERSION_AT + size_of::<u16>();
const BODY_LEN_AT: usize = KIND_AT + size_of::<u16>();
const CHECKSUM_AT: usize = BODY_LEN_AT + size_of::<u32>();

const _: () = assert!(HEADER_LEN == 16);
const _: () = assert!(limits::REASON_LEN_MAX <= u16::MAX as usize);
const _: () = assert!(limits::CONTROL_MESSAGE_LEN_MAX <= u32::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::error::RefuseReason;

    const KIND: u16 = 3;

    fn frame(body: &[u8]) -> Vec<u8> {
        Frame { version: VERSION, kind: KIND, body }.emit()
    }

    /// The checksum here is CRC-32 of the twelve bytes before it and `abc`, computed by another program.
    #[test]
    fn golden_bytes() {
        let golden = [
            0x46, 0x42, 0x43, 0x54, // "FBCT"
            0x00, 0x06, // version
            0x00, 0x03, // kind
            0x00, 0x00, 0x00, 0x03, // body_len
            0xFB, 0x7E, 0x43, 0xB8, // crc32
            b'a', b'b', b'c',
        ];
        assert_eq!(frame(b"abc"), golden);
        assert_eq!(Frame::parse(&golden), Ok(Frame { version: VERSION, kind: 3, body: b"abc" }));
    }

    #[test]
    fn golden_bytes_of_refuse() {
        let refuse = Refuse { version: VERSION, reason: RefuseReason::NotPermitted, text: Text::cut("no") };
        assert_eq!(refuse_body(&refuse), [0x00, 0x06, 0x00, 0x02, b'n', b'o']);
    }

    #[test]
    fn each_fault_has_its_name() {
        let good = frame(b"abc");
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        for len in 0..HEADER_LEN {
            assert_eq!(Frame::parse(&good[..len]), Err(ControlError::TooShort { len }));
        }
        assert_eq!(Frame::parse(&good[..17]), Err(ControlError::LengthMismatch { stated: 19, found: 17 }));
        assert_eq!(Frame::parse(&with(0, 0x47)), Err(ControlError::BadMagic { found: 0x4742_4354 }));
        assert_eq!(
            Frame::parse(&with(VERSION_AT, 2)),
            Err(ControlError::Version { theirs: 0x0200 | VERSION, ours: VERSION })
        );
        assert!(matches!(Frame::parse(&with(KIND_AT, 9)), Err(ControlError::BadChecksum { .. })));
        assert_eq!(
            Frame::parse(&with(BODY_LEN_AT, 0xFF)),
            Err(ControlError::LengthMismatch { stated: 0xFF00_0013, found: 19 })
        );
        assert!(matches!(Frame::parse(&with(CHECKSUM_AT, 0)), Err(ControlError::BadChecksum { .. })));
        assert!(matches!(Frame::parse(&with(HEADER_LEN, b'A')), Err(ControlError::BadChecksum { .. })));
        let long = vec![0; limits::CONTROL_MESSAGE_LEN_MAX + 1];
        assert_eq!(Frame::parse(&long), Err(ControlError::TooLong { len: long.len() }));
    }

    #[test]
    fn another_version_is_named_whatever_follows_its_number() {
        let mut bytes = frame(b"abc");
        bytes[VERSION_AT + 1] = 1;
        bytes[BODY_LEN_AT..].fill(0xEE);
        assert_eq!(Frame::parse(&bytes), Err(ControlError::Version { theirs: 1, ours: VERSION }));
    }

    #[test]
    fn a_refusal_of_any_version_is_read() {
        for version in [0, 1, VERSION, u16::MAX] {
            let refuse = Refuse { version, reason: RefuseReason::VersionUnsupported, text: Text::cut("old") };
            let bytes =
                Frame { version, kind: MessageKind::Refuse.number(), body: &refuse_body(&refuse) }.emit();
            assert_eq!(parse_refuse(&Frame::parse(&bytes).unwrap()), Ok(refuse));
        }
    }

    #[test]
    fn a_malformed_refusal_is_an_error() {
        let long = [&[0, 1, 2, 1][..], &[b'x'; 513]].concat();
        let bodies: [&[u8]; 6] =
            [&[], &[0, 1, 0], &[0, 1, 0, 2, b'x'], &[0, 1, 0, 0, b'x'], &[0, 1, 0, 1, 0xFF], &long];
        for body in bodies {
            let frame = Frame { version: VERSION, kind: MessageKind::Refuse.number(), body };
            assert!(matches!(parse_refuse(&frame), Err(ControlError::Malformed { .. })), "{body:?}");
        }
        let frame = Frame { version: VERSION, kind: MessageKind::Refuse.number(), body: &[0, 1, 0, 1, 0x1B] };
        assert!(parse_refuse(&frame).is_err());
    }
}
