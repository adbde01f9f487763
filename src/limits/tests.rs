//! The limits against the pages that state them.

use crate::limits;

const LAYOUTS: &str = include_str!("../../docs/layouts.md");
const PROTOCOL: &str = include_str!("../../docs/protocol.md");
const RDMA: &str = include_str!("../../docs/rdma.md");

/// The page with single spaces for line breaks, so that it may wrap anywhere.
fn unwrapped(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The cell of the only table row that begins so.
fn cell<'a>(page: &'a str, about: &str) -> &'a str {
    let rows: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_prefix(about)).collect();
    let [row] = rows[..] else { panic!("rows about {about:?}: {rows:?}") };
    let cell = row.split(" | ").nth(1).unwrap_or_else(|| panic!("the row about {about:?} says nothing"));
    cell.trim_end_matches(" |")
}

fn with_commas(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", with_commas(number / 1000), number % 1000),
    }
}

#[test]
fn the_rdma_page_states_the_datagrams_of_a_channel() {
    for (who, count) in [
        ("the sender of a channel", u64::from(limits::CHANNEL_SENDS)),
        ("a receiver of a channel", limits::CHANNEL_RECEIVES as u64),
    ] {
        assert!(cell(RDMA, who).starts_with(&format!("{count} datagrams")), "{who}");
    }
}

#[test]
fn the_layouts_page_states_the_length_of_a_notice() {
    let (_, notices) = LAYOUTS.split_once("## Notices").expect("the section");
    let (notices, _) = notices.split_once("## Notice datagram").expect("the next one");
    let len = format!("{} bytes", with_commas(limits::NOTICE_DATAGRAM_LEN_MAX as u64));
    assert!(unwrapped(notices).contains(&len), "no {len:?}");
}

#[test]
fn the_layouts_page_states_the_bounds_of_a_table() {
    let (_, header) = LAYOUTS.split_once("## Static header").expect("the section");
    let (header, _) = header.split_once("## Hot line").expect("the next one");
    let capacity = with_commas(limits::TABLE_CAPACITY_MAX as u64);
    let key_len = with_commas(limits::KEY_LEN_MAX as u64);
    for bound in [format!("cell count of a table, 1 to {capacity};"), format!("up to {key_len} bytes")] {
        assert!(header.contains(&bound), "no {bound:?}");
    }
}

#[cfg(feature = "verbs")]
#[test]
fn the_pages_state_the_deadlines_of_rdma_that_hold() {
    let connect = format!("{} s", limits::verbs::CONNECT_DEADLINE_NS / 1_000_000_000);
    let quiet = format!("{} ms", limits::verbs::QUIET_NS / 1_000_000);
    let frame = format!("{} bytes", with_commas(limits::verbs::FRAME_LEN_MAX as u64));
    assert_eq!(cell(PROTOCOL, "connecting"), connect);
    assert_eq!(cell(PROTOCOL, "silence"), quiet);
    let redial = format!("{} ms", limits::verbs::REDIAL_NS / 1_000_000);
    assert!(cell(PROTOCOL, "each attempt to connect").starts_with(&redial), "no {redial:?}");
    let (whole, parts) =
        (limits::verbs::SILENCE_NS / 1_000_000_000, limits::verbs::SILENCE_NS / 10_000_000 % 100);
    let silence = format!("{whole}.{parts} s");
    assert!(cell(PROTOCOL, "work that the peer's host").starts_with(&silence), "no {silence:?}");
    let packets = format!("up to {} packets", limits::verbs::PACKETS_MAX);
    assert!(unwrapped(RDMA).contains(&packets), "no {packets:?}");
    let (_, wire) = RDMA.split_once("### Connections over TCP").expect("the section");
    let (connecting, messages) = wire.split_once("### Messages").expect("the next one");
    assert!(unwrapped(connecting).contains(&connect), "no {connect:?}");
    let beat = format!("every {} milliseconds", limits::verbs::BEAT_NS / 1_000_000);
    assert!(unwrapped(RDMA).contains(&beat), "no {beat:?}");
    for number in [quiet, frame] {
        assert!(unwrapped(messages).contains(&number), "no {number:?}");
    }
}

#[test]
fn the_protocol_page_states_the_limits_that_hold() {
    let number = |number: usize| with_commas(number as u64);
    let bytes = |len: usize| format!("{len} bytes");
    let kibibytes = |len: usize| format!("{} KiB", len / 1024);
    let gibibytes = |len: usize| format!("{} GiB", len >> 30);
    let seconds = |ns: u64| format!("{} s", ns / 1_000_000_000);
    let names = [limits::NODE_NAME_LEN_MAX, limits::TOPIC_NAME_LEN_MAX, limits::TYPE_NAME_LEN_MAX];
    let rows = [
        ("message", kibibytes(limits::CONTROL_MESSAGE_LEN_MAX)),
        ("name", format!("{}, {}, {} bytes", names[0], names[1], names[2])),
        ("schema", kibibytes(limits::SCHEMA_LEN_MAX)),
        ("schema", format!("{} levels", limits::SCHEMA_DEPTH_MAX)),
        ("text of a refusal", bytes(limits::REASON_LEN_MAX)),
        ("topics of a node", format!("{}; {}", number(limits::TOPICS_MAX), limits::DIRECTORY_PAGE_LEN_MAX)),
        (
            "sessions that a node serves",
            format!("{}; {}", number(limits::SESSIONS_DEFAULT), limits::SESSIONS_PER_PEER_DEFAULT),
        ),
        ("sessions, if `PeerLimits`", number(limits::SESSIONS_MAX)),
        ("publishers", number(limits::INVITED_SESSIONS_MAX)),
        ("attachments", number(limits::ATTACHMENTS_PER_SESSION_MAX)),
        ("push subscribers", number(limits::PUSH_SUBSCRIBERS_MAX)),
        (
            "landing regions",
            format!(
                "{}; {}",
                gibibytes(limits::LANDING_LEN_PER_SESSION_DEFAULT),
                gibibytes(limits::LANDING_LEN_DEFAULT)
            ),
        ),
        ("requests", format!("{}; {}", with_commas(limits::UNITS_PER_S), with_commas(limits::UNITS_AT_ONCE))),
        (
            "payload; region",
            format!("{}; {}", gibibytes(limits::PAYLOAD_LEN_MAX), gibibytes(limits::REGION_LEN_MAX)),
        ),
        (
            "keys of a table",
            format!("{}; {} bytes", number(limits::TABLE_CAPACITY_MAX), number(limits::KEY_LEN_MAX)),
        ),
        ("ticket", bytes(limits::CHANNEL_TICKET_LEN_MAX)),
        (
            "receivers",
            format!("{}; {}", limits::UNICAST_RECEIVERS_MAX, limits::UNICAST_RECEIVERS_PER_PEER_MAX),
        ),
        ("repository or landing region", format!("{} MiB", limits::SUBSCRIBED_LEN_MAX_DEFAULT >> 20)),
        ("elements", number(limits::EMPTY_ELEMENTS_MAX)),
        ("Hello of a peer that dialled", seconds(limits::HELLO_DEADLINE_NS)),
        ("nothing is attached", seconds(limits::IDLE_SESSION_NS)),
        ("each answer", seconds(limits::ANSWER_DEADLINE_NS)),
    ];
    let (_, page) = PROTOCOL.split_once("## Deadlines").expect("the section");
    for (about, stated) in rows {
        assert!(cell(page, about).contains(&stated), "docs/protocol.md does not say {stated:?} of {about:?}");
    }
}
