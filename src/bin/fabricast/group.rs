//! The group of this host to which a node is open.

use std::error::Error;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the kernel keeps an access list.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Parses a group: its number, or its name in /etc/group.
pub(crate) fn group(text: &str) -> Result<u32, Box<dyn Error + Send + Sync>> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let groups = std::fs::read_to_string("/etc/group")?;
    let number = |line: &str| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(text);
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    };
    groups
        .lines()
        .find_map(number)
        .ok_or_else(|| "/etc/group has no group of this name: write its number".into())
}

/// Returns why members of the group do not reach a node in this directory: one above it does not let them pass. What cannot be found out
/// counts as open.
pub(crate) fn obstacle(directory: &Path, group: u32) -> Option<String> {
    let (above, mode) = closed_above(directory, group).ok().flatten()?;
    Some(format!(
        "members of group {group} do not reach the node: {} (mode {mode:04o}) does not let them pass; --runtime-dir DIR chooses \
         another place",
        above.display()
    ))
}

/// The first directory above this one that members of the group cannot pass, and its mode.
fn closed_above(directory: &Path, group: u32) -> io::Result<Option<(PathBuf, u32)>> {
    let directory = directory.canonicalize()?;
    for above in directory.ancestors().skip(1) {
        let found = above.metadata()?;
        let lets_pass = found.mode() & if found.gid() == group { 0o010 } else { 0o001 } != 0;
        if !lets_pass && !has_access_list(above) {
            return Ok(Some((above.to_owned(), found.mode() & 0o7777)));
        }
    }
    Ok(None)
}

/// Whether an access list decides beside the mode.
fn has_access_list(path: &Path) -> bool {
    let no_room: &mut [u8] = &mut [];
    rustix::fs::getxattr(path, ACCESS_LIST, no_room).is_ok_and(|len| len > 0)
}
