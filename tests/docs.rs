//! The pages of this repository against what they speak of: modules, links, numbers.

use std::fs;
use std::path::{Path, PathBuf};

use fabricast::{RefuseReason, limits};

const ARCHITECTURE: &str = include_str!("../ARCHITECTURE.md");
const CHANGELOG: &str = include_str!("../CHANGELOG.md");
const LAYOUTS: &str = include_str!("../docs/layouts.md");
const PROTOCOL: &str = include_str!("../docs/protocol.md");

const README: &str = include_str!("../README.md");
const RDMA: &str = include_str!("../docs/rdma.md");
const BUILD_SCRIPT: &str = include_str!("../rdma-sys/build/requirements.rs");
const NOTICE: &str = include_str!("../src/layout/notice.rs");
const EXCHANGE: &str = include_str!("../src/fabric/verbs/exchange.rs");
const TICKET: &str = include_str!("../src/fabric/verbs/channel/ticket.rs");
const SOFT_ROCE: &str = include_str!("../tools/soft-roce");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn names_in(folder: &str, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).expect("a folder of the repository").flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.to_string_lossy().ends_with(end)).collect()
}

#[test]
fn every_module_is_on_the_map() {
    let (_, map) = ARCHITECTURE.split_once("## Code map").expect("a map");
    let modules = names_in("src", "").into_iter().filter(|path| !path.ends_with("lib.rs"));
    let missing: Vec<String> = modules
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .filter(|name| !map.contains(&format!("| `{name}")))
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not mention {missing:?}");
}

#[test]
fn links_lead_somewhere() {
    let pages = ["", "docs", "examples/data"].iter().flat_map(|folder| names_in(folder, ".md"));
    let mut checked = 0;
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            checked += 1;
            if link.starts_with("https://") {
                continue;
            }
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let target = page.parent().expect("a folder").join(file);
            assert!(target.exists(), "{}: {link}", page.display());
            let has_section =
                || fs::read_to_string(&target).is_ok_and(|text| sections(&text).any(|it| it == section));
            assert!(section.is_empty() || has_section(), "{}: {link}", page.display());
        }
    }
    assert!(checked > 8, "the links were not found");
}

/// The headings of a page, as links name them.
fn sections(page: &str) -> impl Iterator<Item = String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-"))
}

/// The page with single spaces for its line breaks: it may be wrapped anywhere.
fn unwrapped(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What the page says about this, in the one row of a table that begins so.
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
        _ => format!("{},{:03}", number / 1000, number % 1000),
    }
}

/// What a page says stands at which place.
fn rows_of_page(page: &str) -> Vec<[&str; 2]> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter_map(|row| row.split_once("` | "));
    rows.filter_map(|(offset, rest)| Some([offset, rest.split(" |").next()?])).collect()
}

/// What the words of a source say.
fn rows_of_source(source: &str) -> Vec<[&str; 2]> {
    let fields = source.lines().filter_map(|line| line.strip_prefix("//! ")).filter_map(|line| {
        let mut words = line.split_whitespace();
        let [offset, kind] = [words.next()?, words.next()?];
        let is_offset = offset.len() == 2 && u8::from_str_radix(offset, 16).is_ok();
        is_offset.then_some([offset, kind])
    });
    fields.collect()
}

/// What stands at which place of the tickets of channels.
#[test]
fn the_rdma_page_describes_tickets_as_their_source_does() {
    let (_, page) = RDMA.split_once("### Tickets of channels").expect("the section");
    let fields = rows_of_source(TICKET);
    assert_eq!((fields.len(), rows_of_page(page)), (12, fields));
    for (who, count) in [
        ("the sender of a channel", u64::from(limits::CHANNEL_SENDS)),
        ("a receiver of a channel", limits::CHANNEL_RECEIVES as u64),
    ] {
        assert!(cell(RDMA, who).starts_with(&format!("{count} datagrams")), "{who}");
    }
}

/// What stands at which place of the exchange over TCP, in the words of its source.
#[test]
fn the_rdma_page_describes_the_exchange_as_its_source_does() {
    let (_, page) = RDMA.split_once("### Connections over TCP").expect("the section");
    let (page, _) = page.split_once("### Messages").expect("the next one");
    let (rows, fields) = (rows_of_page(page), rows_of_source(EXCHANGE));
    assert!(fields.len() > 8, "{fields:?}");
    // The magic is a number there, and text here.
    assert_eq!(rows.get(1..), fields.get(1..));
    assert!(page.contains("`FBCX`") && EXCHANGE.contains("magic \"FBCX\""));
    let packets = format!("up to {} packets", limits::VERBS_PACKETS_MAX);
    assert!(unwrapped(RDMA).contains(&packets), "no {packets:?}");
}

/// Where the fields of notices stand, in the words of their source.
#[test]
fn the_layouts_page_describes_notices_as_their_source_does() {
    let row = |line: &'static str| {
        let mut words = line.split_whitespace();
        let offset = u32::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?;
        let kind = words.find(|word| *word != "|").filter(|kind| kind.starts_with('u'))?;
        Some((offset, kind))
    };
    let of_source: Vec<_> =
        NOTICE.lines().filter_map(|line| line.strip_prefix("//! ")).filter_map(row).collect();
    let (_, page) = LAYOUTS.split_once("## Notice datagram").expect("the section");
    let (page, _) = page.split_once("## Payloads").expect("the next one");
    let of_page: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("| ")).filter_map(row).collect();
    assert_eq!((of_source.len(), &of_source), (15, &of_page));
    let (_, notices) = LAYOUTS.split_once("## Notices").expect("the section");
    let (notices, _) = notices.split_once("## Notice datagram").expect("the next one");
    let len = format!("{} bytes", with_commas(limits::NOTICE_DATAGRAM_LEN_MAX as u64));
    assert!(unwrapped(notices).contains(&len), "no {len:?}");
}

#[test]
fn the_pages_state_the_deadlines_of_rdma_that_hold() {
    let connect = format!("{} s", limits::CONNECT_DEADLINE_NS / 1_000_000_000);
    let quiet = format!("{} ms", limits::VERBS_QUIET_NS / 1_000_000);
    let frame = format!("{} bytes", with_commas(limits::VERBS_FRAME_LEN_MAX as u64));
    assert_eq!(cell(PROTOCOL, "connecting"), connect);
    assert_eq!(cell(PROTOCOL, "silence"), quiet);
    let (_, wire) = RDMA.split_once("### Connections over TCP").expect("the section");
    let (connecting, messages) = wire.split_once("### Messages").expect("the next one");
    assert!(unwrapped(connecting).contains(&connect), "no {connect:?}");
    for number in [quiet, frame] {
        assert!(unwrapped(messages).contains(&number), "no {number:?}");
    }
}

#[test]
fn the_packages_for_verbs_are_the_same_everywhere() {
    let (_, install) = BUILD_SCRIPT.split_once("const INSTALL: &str = \"").expect("the command");
    let (install, _) = install.split_once('"').expect("its end");
    for (name, page) in [("README.md", README), ("docs/rdma.md", RDMA)] {
        let commands: Vec<&str> =
            page.lines().filter(|line| line.contains("install libibverbs-dev")).collect();
        assert_eq!(commands.len(), 1, "{name}: {commands:?}");
        let (_, command) = commands[0].split_at(commands[0].find("apt-get").expect("a command"));
        assert_eq!(command.split('#').next().map(str::trim_end), Some(install), "{name}");
    }
    for package in install.split_whitespace().skip(2) {
        assert!(SOFT_ROCE.contains(package), "tools/soft-roce does not install {package}");
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
        ("sessions", number(limits::SESSIONS_MAX)),
        ("publishers", number(limits::INVITED_SESSIONS_MAX)),
        ("attachments", number(limits::ATTACHMENTS_PER_SESSION_MAX)),
        ("push subscribers", number(limits::PUSH_SUBSCRIBERS_MAX)),
        ("landing regions", gibibytes(limits::LANDING_LEN_PER_SESSION_MAX)),
        (
            "payload; region",
            format!("{}; {}", gibibytes(limits::PAYLOAD_LEN_MAX), gibibytes(limits::REGION_LEN_MAX)),
        ),
        ("ticket", bytes(limits::CHANNEL_TICKET_LEN_MAX)),
        ("receivers", number(limits::UNICAST_RECEIVERS_MAX)),
        ("repository or landing region", gibibytes(limits::SUBSCRIBED_LEN_MAX_DEFAULT)),
        ("elements", number(limits::EMPTY_ELEMENTS_MAX)),
        ("Hello of a peer that dialled", seconds(limits::HELLO_DEADLINE_NS)),
        ("each answer", seconds(limits::ANSWER_DEADLINE_NS)),
    ];
    let (_, page) = PROTOCOL.split_once("## Deadlines").expect("the section");
    for (about, stated) in rows {
        assert!(cell(page, about).contains(&stated), "docs/protocol.md does not say {stated:?} of {about:?}");
    }
}

#[test]
fn the_protocol_page_knows_the_reasons_of_refusals() {
    for code in 0..1000 {
        let known = !matches!(RefuseReason::from(code), RefuseReason::Unknown(_));
        let (_, reasons) = PROTOCOL.split_once("## Reasons of refusals").expect("the section");
        assert_eq!(reasons.contains(&format!("\n| {code} | ")), known, "reason {code}");
    }
}

/// Layouts are checked against memory by another test; here it is only that all pages say the same.
#[test]
fn the_changelog_names_the_formats_that_the_pages_describe() {
    let format = CHANGELOG.lines().find(|line| line.starts_with("Format:"));
    assert_eq!(format, Some("Format: region layout 2, control protocol 2, node entry 1, notice 1."));
    for (page, version) in [
        (LAYOUTS, "| 0x08 | u16 | layout version: 2 |"),
        (LAYOUTS, "| 0x08 | u32 | entry version: 1 |"),
        (LAYOUTS, "| 0x04 | u16 | version: 1 |"),
        (PROTOCOL, "Version 2."),
    ] {
        assert!(page.contains(version), "no {version:?}");
    }
}
