//! What the lines of a keyring mean, for the fuzz targets.

use super::key::{Key, Topics};
use super::parse::keys_of;
use crate::limits;

/// Parses the text of a keyring. One that is accepted has keys of different names and secrets, and written again in the shortest way it
/// has the same keys.
pub(crate) fn parse(bytes: &[u8]) {
    let Ok(keys) = keys_of(bytes) else { return };
    assert!((1..=limits::KEYS_MAX).contains(&keys.all.len()), "{} keys", keys.all.len());
    for (index, key) in keys.all.iter().enumerate() {
        let is_same = |other: &Key| other.id == key.id || other.name == key.name;
        assert!(!keys.all.iter().skip(index + 1).any(|other| is_same(other)), "{key:?} twice");
        assert!(key.reads || key.publishes, "{key:?} gives no right");
    }
    let text: String = keys.all.iter().map(|key| line(key)).collect();
    let again = keys_of(text.as_bytes()).expect("a keyring of lines that were accepted");
    assert_eq!(format!("{again:?}"), format!("{keys:?}"));
}

/// A line of this key.
fn line(key: &Key) -> String {
    let rights = match (key.reads, key.publishes) {
        (true, true) => "read,publish",
        (true, false) => "read",
        (false, _) => "publish",
    };
    let topics = match &key.topics {
        Topics::All => "*".to_owned(),
        Topics::Below(prefixes) => joined(prefixes),
    };
    let nodes = key.nodes.as_deref().map(joined).unwrap_or_default();
    format!("{} {rights} {topics} {} {nodes}\n", key.name, key.secret.digits())
}

fn joined(names: &[impl ToString]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
