//! Printing errors with their causes, each once.

use std::error::Error;
use std::{fmt, io};

use rustix::io::Errno;
use rustix::process::Resource;

/// An error and its causes, on one line: `cannot subscribe to shm:q/t: no node listens at shm:q`.
///
/// An error of this library does not repeat its [source](Error::source) in its own sentence, so that a program that prints one by
/// itself prints it in this. [`fabricast::Error`](crate::Error) prints itself so where `main` returns it. An answer of the operating
/// system that comes from a limit is followed by what raises that limit.
///
/// ```
/// use fabricast::{ErrorChain, Node};
/// # fn main() -> Result<(), fabricast::Error> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let error = node.state_subscriber::<u64>("shm:nobody/t").open().unwrap_err();
/// assert_eq!(error.to_string(), "cannot subscribe to shm:nobody/t");
/// assert!(ErrorChain(&error).to_string().starts_with("cannot subscribe to shm:nobody/t: no node listens at shm:nobody"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it holds just an error")]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'a));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)?;
        for cause in std::iter::successors(self.0.source(), |cause| (*cause).source()) {
            write!(out, ": {cause}{}", cause.downcast_ref().map_or_else(String::new, remedy))?;
        }
        Ok(())
    }
}

/// Names the limit that this refusal comes from, and says how to raise it; begins with a semicolon. Empty where the refusal says
/// all that is known.
fn remedy(refusal: &io::Error) -> String {
    let limit = |resource| rustix::process::getrlimit(resource).current;
    match Errno::from_io_error(refusal) {
        Some(Errno::MFILE) => {
            let most = limit(Resource::Nofile).map_or_else(String::new, |limit| format!(" at most {limit}"));
            format!("; this process may have{most} open files: close some, or raise the limit (ulimit -n)")
        }
        Some(Errno::FBIG) => limit(Resource::Fsize).map_or_else(String::new, |limit| {
            format!("; this process may make files of at most {limit} bytes: raise the limit (ulimit -f)")
        }),
        Some(Errno::NFILE) => {
            "; the host's limit on open files is reached: raise fs.file-max (sysctl)".to_owned()
        }
        Some(Errno::AGAIN) => {
            "; if this was to start a thread, raise the limit on this user's threads (ulimit -u, or of the container)"
                .to_owned()
        }
        Some(Errno::NOMEM) => {
            "; check the memory limit of this process or container (ulimit -v), and vm.max_map_count (sysctl)"
                .to_owned()
        }
        Some(Errno::NOSPC) => "; free some space in that file system, or use another one".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_was_reached_is_named() {
        let said = |errno: Errno| remedy(&errno.into());
        assert!(said(Errno::MFILE).contains("ulimit -n"));
        assert!(said(Errno::NFILE).contains("fs.file-max"));
        // Without a limit of the process, it is the file system's.
        let is_limited = rustix::process::getrlimit(Resource::Fsize).current.is_some();
        assert_eq!(said(Errno::FBIG).contains("ulimit -f"), is_limited);
        assert!(said(Errno::AGAIN).contains("ulimit -u"));
        assert!(said(Errno::NOMEM).contains("memory limit"));
        assert!(said(Errno::NOSPC).contains("space"));
        assert_eq!(said(Errno::PERM), "");
        assert_eq!(remedy(&io::ErrorKind::NotFound.into()), "");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open a socket")]
    struct Refused(#[source] io::Error);

    #[test]
    fn cause_is_printed_once_with_its_remedy() {
        let told = |errno: Errno| ErrorChain(&Refused(errno.into())).to_string();
        assert_eq!(told(Errno::PERM), "cannot open a socket: Operation not permitted (os error 1)");
        let told = told(Errno::MFILE);
        assert!(
            told.starts_with("cannot open a socket: Too many open files (os error 24); this process may"),
            "{told}"
        );
    }
}
