use rustix::io::Errno;
use rustix::process::Resource;

/// Checks the process's limit on the length of files, which memory files count as: the kernel kills a process that exceeds it
/// (setrlimit(2), SIGXFSZ).
pub(crate) fn check_file_limit(len: u64) -> rustix::io::Result<()> {
    let max = rustix::process::getrlimit(Resource::Fsize).current;
    if max.is_some_and(|max| max < len) { Err(Errno::FBIG) } else { Ok(()) }
}
