//! The limit on open files.

use rustix::process::{Resource, Rlimit};

/// More files than any test opens.
const FILES: u64 = 1 << 16;

/// Raises the limit on open files of this process, and of those that it starts from now on, to the hard limit, and returns it.
/// Raises the hard limit first, if it is low and the process may.
pub(crate) fn raise_files() -> u64 {
    // A privileged process may raise the maximum, too: with few files a node has places for few peers.
    let plenty = Rlimit { current: Some(FILES), maximum: Some(FILES) };
    if rustix::process::getrlimit(Resource::Nofile).maximum.is_some_and(|maximum| maximum < FILES) {
        _ = rustix::process::setrlimit(Resource::Nofile, plenty);
    }
    let Rlimit { maximum, .. } = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    rustix::process::setrlimit(Resource::Nofile, raised).expect("a limit can be raised to its maximum");
    maximum.unwrap_or(u64::MAX)
}
