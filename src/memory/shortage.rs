//! Names the limit behind a system call that failed for want of resources, and how to raise it.

use std::io;

use rustix::io::Errno;
use rustix::process::Resource;

/// Returns the limit behind this error and how to raise it, beginning with a semicolon. Empty if the error needs no
/// explanation.
pub(crate) fn remedy(refusal: &io::Error) -> String {
    match Errno::from_io_error(refusal) {
        Some(Errno::MFILE) => {
            let limit = rustix::process::getrlimit(Resource::Nofile).current;
            let limit = limit.map_or_else(String::new, |limit| format!(" at most {limit}"));
            format!("; this process may have{limit} open files: close some, or raise the limit (ulimit -n)")
        }
        Some(Errno::NFILE) => {
            "; the host's limit on open files is reached: raise fs.file-max (sysctl)".to_owned()
        }
        Some(Errno::NOMEM) => {
            "; check the memory limit of this process or container (ulimit -v), and vm.max_map_count (sysctl)"
                .to_owned()
        }
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
        assert!(said(Errno::NOMEM).contains("memory limit"));
        assert_eq!(said(Errno::PERM), "");
        assert_eq!(remedy(&io::ErrorKind::NotFound.into()), "");
    }
}
