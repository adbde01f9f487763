//! The pages of this repository against their subjects: modules, links, numbers.

use std::fs;
use std::path::{Path, PathBuf};

use fabricast::RefuseReason;

#[cfg(test)]
#[path = "docs/security.rs"]
mod security;
#[cfg(test)]
#[path = "docs/source_programs.rs"]
mod source_programs;

const ARCHITECTURE: &str = include_str!("../ARCHITECTURE.md");
const CHANGELOG: &str = include_str!("../CHANGELOG.md");
const LAYOUTS: &str = include_str!("../docs/layouts.md");
const PROTOCOL: &str = include_str!("../docs/protocol.md");

const README: &str = include_str!("../README.md");
const RDMA: &str = include_str!("../docs/rdma.md");
const BUILD_SCRIPT: &str = include_str!("../rdma-sys/build/requirements.rs");
const NOTICE: &str = include_str!("../src/layout/notice.rs");
const PROGRESS: &str = include_str!("../src/layout/progress.rs");
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

/// The rows of a page's table: offset and content.
fn rows_of_page(page: &str) -> Vec<[&str; 2]> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter_map(|row| row.split_once("` | "));
    rows.filter_map(|(offset, rest)| Some([offset, rest.split(" |").next()?])).collect()
}

/// The rows in the comments of a source.
fn rows_of_source(source: &str) -> Vec<[&str; 2]> {
    let fields = source.lines().filter_map(|line| line.strip_prefix("//! ")).filter_map(|line| {
        let mut words = line.split_whitespace();
        let [offset, kind] = [words.next()?, words.next()?];
        let is_offset = offset.len() == 2 && u8::from_str_radix(offset, 16).is_ok();
        is_offset.then_some([offset, kind])
    });
    fields.collect()
}

/// The fields of channel tickets on the page and in the source.
#[test]
fn rdma_page_describes_tickets_like_their_source() {
    let (_, page) = RDMA.split_once("### Tickets of channels").expect("the section");
    let fields = rows_of_source(TICKET);
    assert_eq!((fields.len(), rows_of_page(page)), (12, fields));
}

/// The fields of the exchange over TCP on the page and in the source.
#[test]
fn rdma_page_describes_the_exchange_like_its_source() {
    let (_, page) = RDMA.split_once("### Connections over TCP").expect("the section");
    let (page, _) = page.split_once("### Messages").expect("the next one");
    let (rows, fields) = (rows_of_page(page), rows_of_source(EXCHANGE));
    assert!(fields.len() > 8, "{fields:?}");
    // The magic is a number here, and text there.
    assert_eq!(rows.get(1..), fields.get(1..));
    assert!(page.contains("`FBCX`") && EXCHANGE.contains("magic \"FBCX\""));
}

/// The fields of notices on the page and in the source.
#[test]
fn layouts_page_describes_notices_like_their_source() {
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
}

/// The fields of progress slots on the page and in the source.
#[test]
fn layouts_page_describes_progress_slots_like_their_source() {
    let (_, page) = LAYOUTS.split_once("## Progress slot").expect("the section");
    let (page, _) = page.split_once("\n## ").expect("the next one");
    let row = |line: &'static str| Some(line.strip_prefix("| 0x")?.split_once(" | ")?.0);
    let of_page: Vec<&str> = page.lines().filter_map(row).collect();
    let of_source: Vec<_> = rows_of_source(PROGRESS).into_iter().map(|[offset, _]| offset).collect();
    assert_eq!((of_source.len(), of_page), (7, of_source));
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
fn the_protocol_page_knows_the_reasons_of_refusals() {
    for code in 0..1000 {
        let known = !matches!(RefuseReason::from(code), RefuseReason::Unknown(_));
        let (_, reasons) = PROTOCOL.split_once("## Reasons of refusals").expect("the section");
        assert_eq!(reasons.contains(&format!("\n| {code} | ")), known, "reason {code}");
    }
}

/// Another test checks layouts against memory; this one only compares the pages.
#[test]
fn the_changelog_names_the_formats_that_the_pages_describe() {
    let format = CHANGELOG.lines().find(|line| line.starts_with("Format:"));
    assert_eq!(
        format,
        Some("Format: region layout 3, control protocol 6, node entry 1, notice 1, repository file 1.")
    );
    for (page, version) in [
        (LAYOUTS, "| 0x08 | u16 | layout version: 3 |"),
        (LAYOUTS, "| 0x08 | u32 | entry version: 1 |"),
        (LAYOUTS, "| 0x04 | u16 | version: 1 |"),
        (LAYOUTS, "| 0x00 | u64 | magic: the bytes `FBCFILE1` |"),
        (PROTOCOL, "Version 6."),
    ] {
        assert!(page.contains(version), "no {version:?}");
    }
}
