//! Messages to bytes and back. The only file of the control channel that names bincode.
//!
//! bincode is held at 2.0.1 exactly: the project is no longer maintained (RUSTSEC-2025-0141), and 2.0.1 is the
//! last release with code in it. Only a small part is used: fixed-width integers in network byte order,
//! lengths as u64, enum variants as u32, one byte before an option. The golden bytes in the tests pin
//! that, and a replacement must reproduce them.

use bincode::config::{BigEndian, Configuration, Fixint, Limit};
use bincode::error::DecodeError;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::ControlError;
use super::frame::{self, Frame};
use super::message::{AttachmentId, Message, MessageKind, VERSION, each_message};
use super::text::Text;
use crate::limits;

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// The attachment whose region it carries, if any.
    pub(crate) region_of: Option<AttachmentId>,
    /// Which region of the attachment that is.
    pub(crate) region_kind: RegionKind,
}

/// A region that travels with a message about an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RegionKind {
    /// The repository or the landing region.
    #[default]
    Values,
    /// The memory of its wake word.
    WakeWord,
    /// Its progress slot.
    Progress,
    /// The sending end of a wake socket, in place of a region.
    Socket,
}

impl Outgoing {
    /// Creates a message without a region.
    pub(crate) fn of(message: &Message) -> Self {
        Self { bytes: encode(message), region_of: None, region_kind: RegionKind::default() }
    }

    /// Sends this region of the attachment with it.
    pub(super) fn with(self, attachment: AttachmentId, region_kind: RegionKind) -> Self {
        Self { region_of: Some(attachment), region_kind, ..self }
    }
}

/// Encodes a message, header included: at most
/// [`CONTROL_MESSAGE_LEN_MAX`](limits::CONTROL_MESSAGE_LEN_MAX).
pub(crate) fn encode(message: &Message) -> Vec<u8> {
    let body = emit_body(message);
    Frame { version: VERSION, kind: message.kind().number(), body: &body }.emit()
}

/// Decodes a message.
///
/// # Errors
///
/// Those of [`Frame::parse`], then `UnknownKind`, then `Malformed`.
pub(crate) fn decode(bytes: &[u8]) -> Result<Message, ControlError> {
    let frame = Frame::parse(bytes)?;
    let kind = MessageKind::from_number(frame.kind).ok_or(ControlError::UnknownKind { kind: frame.kind })?;
    parse_body(kind, &frame)
}

macro_rules! bodies {
    (Refuse($refuse:ty) = $one:literal, $($kind:ident($body:ty) = $number:literal,)*) => {
        fn emit_body(message: &Message) -> Vec<u8> {
            match message {
                Message::Refuse(body) => frame::refuse_body(body),
                $(Message::$kind(body) => emit(body),)*
            }
        }

        fn parse_body(kind: MessageKind, frame: &Frame<'_>) -> Result<Message, ControlError> {
            match kind {
                MessageKind::Refuse => frame::parse_refuse(frame).map(Message::Refuse),
                $(MessageKind::$kind => parse(kind, frame.body).map(Message::$kind),)*
            }
        }
    };
}

each_message!(bodies);

fn emit<T: Serialize>(body: &T) -> Vec<u8> {
    bincode::serde::encode_to_vec(body, CONFIG)
        .expect("the message types serialise without conditions, into memory")
}

fn parse<T: DeserializeOwned>(kind: MessageKind, body: &[u8]) -> Result<T, ControlError> {
    let malformed = |detail: String| ControlError::Malformed { message: kind.name(), detail };
    let (message, len) =
        bincode::serde::decode_from_slice(body, CONFIG).map_err(|error| malformed(sentence(&error)))?;
    if len == body.len() { Ok(message) } else { Err(malformed("trailing bytes".into())) }
}

/// A readable form of bincode's error. Text from the peer is truncated and stripped of control characters.
fn sentence(error: &DecodeError) -> String {
    match error {
        DecodeError::LimitExceeded => "it exceeds the limits of a message".into(),
        DecodeError::UnexpectedEnd { .. } => "it is truncated".into(),
        DecodeError::OtherString(text) => Text::<{ limits::REASON_LEN_MAX }>::cut(text).into(),
        other => Text::<{ limits::REASON_LEN_MAX }>::cut(&other.to_string()).into(),
    }
}

const CONFIG: Configuration<BigEndian, Fixint, Limit<{ limits::CONTROL_MESSAGE_LEN_MAX }>> =
    bincode::config::standard()
        .with_big_endian()
        .with_fixed_int_encoding()
        .with_limit::<{ limits::CONTROL_MESSAGE_LEN_MAX }>();

/// Bytes of an encoded text of at most this many bytes.
const fn text_len(max: usize) -> usize {
    size_of::<u64>() + max
}

/// The largest entry of a page: name, kind, type name, seven times u64, twice u32, whether a lag is known.
const TOPIC_ENTRY_LEN_MAX: usize = text_len(limits::TOPIC_NAME_LEN_MAX)
    + size_of::<u32>()
    + text_len(limits::TYPE_NAME_LEN_MAX)
    + 7 * size_of::<u64>()
    + 2 * size_of::<u32>()
    + size_of::<bool>();

/// The largest description of a subscriber: node, process, delivery, policy, whether it gates, six times u64.
const SUBSCRIBER_ENTRY_LEN_MAX: usize =
    text_len(limits::NODE_NAME_LEN_MAX) + 3 * size_of::<u32>() + 2 * size_of::<bool>() + 6 * size_of::<u64>();

/// The largest list of subscribers: whether there is one, the newest sequence, their number, the length of the list, its entries.
const SUBSCRIBERS_LEN_MAX: usize = size_of::<bool>()
    + 2 * size_of::<u64>()
    + size_of::<u32>()
    + limits::SUBSCRIBERS_LISTED_MAX * SUBSCRIBER_ENTRY_LEN_MAX;

/// The largest page: its length, its entries, and whether more follow.
const TOPICS_LEN_MAX: usize =
    size_of::<u64>() + limits::DIRECTORY_PAGE_LEN_MAX * TOPIC_ENTRY_LEN_MAX + size_of::<bool>();

/// The largest grant: attachment, topic, kind, epoch, incarnation, geometry, schema, key, address, newest sequence, the one before the
/// first value, and the lifespan.
const GRANTED_LEN_MAX: usize = 2 * size_of::<u32>()
    + 3 * size_of::<u64>()
    + (size_of::<u32>() + 5 * size_of::<u64>())
    + text_len(limits::SCHEMA_LEN_MAX)
    + 5 * size_of::<u64>();

const _: () = assert!(frame::HEADER_LEN + TOPICS_LEN_MAX <= limits::CONTROL_MESSAGE_LEN_MAX);
const _: () = assert!(frame::HEADER_LEN + SUBSCRIBERS_LEN_MAX <= limits::CONTROL_MESSAGE_LEN_MAX);
const _: () = assert!(frame::HEADER_LEN + GRANTED_LEN_MAX <= limits::CONTROL_MESSAGE_LEN_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::message::{ListTopics, Page, SchemaJson, Topics};
    use crate::control::notices::{Heard, Notices, NoticesBy, TicketBytes};
    use crate::control::tests::sample;
    use crate::id::Kind;

    /// The body of each sample, worked out by hand from the description at the top of this file: big-endian
    /// integers of fixed width, u64 lengths, u32 variants, one byte before an option.
    const GOLDEN: &[(&str, &str)] = &[
        ("Refuse", "0007 0003 627965"),
        (
            "Hello",
            "1122334455667788 01 0102030405060708 0000000000000006 6e6f64652d31 00001092 \
             0000000000000005 686f737441 1787c3e0a6c40000 01 01 \
             c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5",
        ),
        ("ListTopics", "01 0000000000000003 612f62"),
        (
            "Topics",
            "0000000000000001 0000000000000003 612f62 00000000 0000000000000005 51756f7465 \
             0000000000000007 00000000000003e8 00000000000003e9 0000000000000064 00000000000000ff 00000002 00000001 \
             01 0000000000000003 0000000000000040 01",
        ),
        (
            "Attach",
            "00000009 0000000000000003 612f62 00000001 01 00000000cafef00d \
             0000000000000003 0000000000000005 0000000000000007 01 00000001",
        ),
        (
            "Granted",
            "00000009 00000000000000aa 00000000 00000000000000ff 00000000000000ee 00000040 0000000000001000 \
             0000000000000008 0000000000000080 0000000000000000 0000000000000000 0000000000000002 7b7d 0000000000000bad 00007f0000000000 \
             000000000000002a 0000000000000028 00000000000003e8",
        ),
        ("Refused", "00000009 0005 0000000000000005 736d616c6c"),
        ("Expose", "00000009"),
        ("Exposed", "00000009"),
        (
            "Detach",
            "00000009 0000000000000001 0000000000000002 0000000000000003 0000000000000004 \
             0000000000000005",
        ),
        ("Detached", "00000009 0000000000000007"),
        ("TopicEnded", "00000009 0000000000000007"),
        (
            "End",
            "0001 0000000000000001 0000000000000002 0000000000000003 0000000000000004 \
             0000000000000005",
        ),
        ("Invite", "0000000000000003 612f62"),
        ("Listen", "00000009"),
        (
            "Notices",
            "00000009 00000002 00000000000000c4 0102030405060708090a0b0c0d0e0f10 1112131415161718191a1b1c1d1e1f20 \
             0000000000000003 aabbcc",
        ),
        ("Heard", "0000000000000003 aabbcc 01"),
        ("ListSubscribers", "0000000000000003 612f62"),
        (
            "Subscribers",
            "01 0000000000000007 00000002 0000000000000002 \
             0000000000000004 6465736b 00001092 00000000 01 00000001 01 0000000000000005 0000000000000004 \
             0000000000000001 0000000000000003 0000000000000002 0000000000000006 \
             0000000000000004 6465736b 00001092 00000001 00",
        ),
        ("WakeBy", "00000009 00000002 00000007"),
        ("WakeSlot", "00000009 01 00000005"),
        ("LetGo", "00000009 00000001 0000000000000007"),
        (
            "Prove",
            "0000000000000001 0101010101010101 \
             7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a7a",
        ),
    ];

    fn body(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn framed(kind: MessageKind, body: &[u8]) -> Vec<u8> {
        Frame { version: VERSION, kind: kind.number(), body }.emit()
    }

    #[test]
    fn golden_bytes_of_every_message() {
        let messages = sample::every_message();
        assert_eq!(messages.len(), GOLDEN.len());
        for (message, (name, hex)) in messages.iter().zip(GOLDEN) {
            assert_eq!(message.name(), *name);
            let bytes = framed(message.kind(), &body(hex));
            assert_eq!(encode(message), bytes, "{name}");
            assert_eq!(decode(&bytes).as_ref(), Ok(message), "{name}");
        }
    }

    #[test]
    fn golden_bytes_of_kinds() {
        for (kind, hex) in [(Kind::State, "00000000"), (Kind::Log, "00000001"), (Kind::Table, "00000002")] {
            assert_eq!((emit(&kind), parse(MessageKind::Granted, &body(hex))), (body(hex), Ok(kind)));
        }
        assert!(parse::<Kind>(MessageKind::Granted, &body("00000003")).is_err());
    }

    #[test]
    fn no_flipped_bit_makes_a_message() {
        for message in sample::every_message() {
            let good = encode(&message);
            for bit in 0..good.len() * 8 {
                let mut bytes = good.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&bytes).is_err(), "{} with bit {bit} flipped", message.name());
            }
        }
    }

    #[test]
    fn no_cut_or_longer_message_is_a_message() {
        for message in sample::every_message() {
            let good = encode(&message);
            for len in 0..good.len() {
                assert!(decode(&good[..len]).is_err(), "{} cut to {len}", message.name());
            }
            assert!(decode(&[&good[..], &[0]].concat()).is_err());
        }
    }

    /// The same, with a header that matches the rest: the body itself must be whole.
    #[test]
    fn no_cut_or_longer_body_is_a_message() {
        for message in sample::every_message() {
            let good = encode(&message)[frame::HEADER_LEN..].to_vec();
            for len in 0..good.len() {
                let error = decode(&framed(message.kind(), &good[..len])).unwrap_err();
                let ControlError::Malformed { message: name, .. } = error else { panic!("{error:?}") };
                assert_eq!(name, message.name());
            }
            let longer = [&good[..], &[0]].concat();
            assert!(matches!(decode(&framed(message.kind(), &longer)), Err(ControlError::Malformed { .. })));
        }
    }

    #[test]
    fn unknown_kinds_are_named() {
        for kind in [0, 24, u16::MAX] {
            let bytes = Frame { version: VERSION, kind, body: &[] }.emit();
            assert_eq!(decode(&bytes), Err(ControlError::UnknownKind { kind }));
        }
    }

    /// An impossible length is refused before anything of that length is allocated.
    #[test]
    fn stated_lengths_are_bounded() {
        let long = body("ffffffffffffffff");
        for len in ["0000000000000081", "0000000000100000", "0000010000000000", "ffffffffffffffff"] {
            let error = decode(&framed(MessageKind::Topics, &body(len))).unwrap_err();
            assert!(matches!(error, ControlError::Malformed { message: "Topics", .. }), "{error}");
        }
        let topic = [&[1][..], &long].concat();
        assert!(decode(&framed(MessageKind::ListTopics, &topic)).is_err());
        let attach = [&[0; 4][..], &long].concat();
        assert!(decode(&framed(MessageKind::Attach, &attach)).is_err());
        assert!(decode(&framed(MessageKind::Invite, &long)).is_err());
        assert!(decode(&framed(MessageKind::Prove, &long)).is_err());
        let proofs = |len: usize| [body(&format!("{len:016x}")), vec![7; len * 40]].concat();
        assert!(decode(&framed(MessageKind::Prove, &proofs(limits::KEYS_PROVEN_MAX))).is_ok());
        assert!(decode(&framed(MessageKind::Prove, &proofs(limits::KEYS_PROVEN_MAX + 1))).is_err());
    }

    /// The other methods of notification, which have no fields.
    #[test]
    fn golden_bytes_of_notices_without_a_channel() {
        for (by, hex) in [
            (NoticesBy::Nothing, "00000009 00000000"),
            (NoticesBy::WakeWord, "00000009 00000001"),
            (NoticesBy::Immediate, "00000009 00000003"),
        ] {
            let message = Message::Notices(Notices { attachment: AttachmentId::new(9), by });
            let bytes = framed(MessageKind::Notices, &body(hex));
            assert_eq!((encode(&message), decode(&bytes)), (bytes, Ok(message)));
        }
        assert!(decode(&framed(MessageKind::Notices, &body("00000009 00000004"))).is_err());
    }

    #[test]
    fn tickets_are_bounded() {
        let heard = |len: usize| {
            let len_in_hex = format!("{len:016x}");
            let parts = [body(&len_in_hex), vec![7; len], vec![0]];
            decode(&framed(MessageKind::Heard, &parts.concat()))
        };
        for len in [0, limits::CHANNEL_TICKET_LEN_MAX] {
            let ticket = TicketBytes::cut(&vec![7; len]);
            let expected = Heard { return_ticket: ticket, is_multicast_received: false };
            assert_eq!(heard(len), Ok(Message::Heard(expected)));
        }
        let error = heard(limits::CHANNEL_TICKET_LEN_MAX + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the peer's Heard message is malformed: invalid length 65, expected at most 64 bytes"
        );
        let long = body("0000010000000000");
        assert!(decode(&framed(MessageKind::Heard, &long)).is_err());
        let notices = [&body("00000009 00000002 00000000000000c4")[..], &[0; 32][..], &long];
        assert!(decode(&framed(MessageKind::Notices, &notices.concat())).is_err());
        let longest = TicketBytes::cut(&[7; limits::CHANNEL_TICKET_LEN_MAX + 1]);
        assert_eq!(longest.as_bytes().len(), limits::CHANNEL_TICKET_LEN_MAX);
    }

    #[test]
    fn names_and_texts_are_checked() {
        let bad_name = body("01 0000000000000003 2e2e2f");
        let error = decode(&framed(MessageKind::ListTopics, &bad_name)).unwrap_err();
        let malformed = "the peer's ListTopics message is malformed: \"../\" is not a topic name: ";
        assert!(error.to_string().starts_with(malformed), "{error}");
        let escape = body("00000009 0005 0000000000000001 1b");
        let error = decode(&framed(MessageKind::Refused, &escape)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the peer's Refused message is malformed: a text with control characters"
        );
        let error = decode(&framed(MessageKind::ListTopics, &[7])).unwrap_err();
        assert!(matches!(error, ControlError::Malformed { .. }));
    }

    /// The arithmetic at the bottom of the code above, against messages of maximum size.
    #[test]
    fn the_largest_messages_fit() {
        let last = TopicsLargest::page(limits::DIRECTORY_PAGE_LEN_MAX);
        let bytes = encode(&last);
        assert_eq!(bytes.len(), frame::HEADER_LEN + TOPICS_LEN_MAX);
        assert_eq!(decode(&bytes).unwrap(), last);

        let mut grant = sample::grant(9);
        grant.schema = SchemaJson::new(vec![b' '; limits::SCHEMA_LEN_MAX]).unwrap();
        let largest = Message::Granted(grant);
        let bytes = encode(&largest);
        assert_eq!(bytes.len(), frame::HEADER_LEN + GRANTED_LEN_MAX);
        assert_eq!(decode(&bytes).unwrap(), largest);

        assert!(SchemaJson::new(vec![b' '; limits::SCHEMA_LEN_MAX + 1]).is_none());
        let after = Some("x".repeat(limits::TOPIC_NAME_LEN_MAX).parse().unwrap());
        let list = Message::ListTopics(ListTopics { after });
        assert_eq!(decode(&encode(&list)).unwrap(), list);
    }

    struct TopicsLargest;

    impl TopicsLargest {
        fn page(len: usize) -> Message {
            let mut entry = sample::entry("a/b");
            entry.name = "n".repeat(limits::TOPIC_NAME_LEN_MAX).parse().unwrap();
            entry.type_name = Text::cut(&"t".repeat(limits::TYPE_NAME_LEN_MAX + 1));
            let page = Page::cut(vec![entry; len + 1]);
            Message::Topics(Topics { page, more: true })
        }
    }
}
