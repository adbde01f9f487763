//! The limit on open files.

use rustix::process::{Resource, Rlimit};

/// Raises the limit on open files of this process, and of those that it starts from now on, to the hard limit, and returns it.
pub(crate) fn raise_files() -> u64 {
    let Rlimit { maximum, .. } = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    rustix::process::setrlimit(Resource::Nofile, raised).expect("a limit can be raised to its maximum");
    maximum.unwrap_or(u64::MAX)
}
