//! What this provider parses of the bytes of others.

use super::entry::NameEntry;

pub(in crate::fabric) fn parse(bytes: &[u8]) {
    if let Some(entry) = NameEntry::parse(bytes) {
        assert_eq!(entry.emit().as_slice(), bytes, "an entry with two forms");
    }
}

#[cfg(test)]
pub(in crate::fabric) fn samples() -> Vec<Vec<u8>> {
    let entry = NameEntry { node: "market-data".parse().unwrap(), process: 7, started_ns: 99 };
    vec![entry.emit().to_vec()]
}
