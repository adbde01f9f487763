//! A control group with limited memory, for a process that must cope with little.

use std::path::{Path, PathBuf};

use rustix::process::Pid;

use super::skip::skip;

/// The memory controllers of control groups v1 and v2.
const PLACES: [(&str, &str); 3] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
    ("/sys/fs/cgroup/unified", "memory.max"),
];

/// A control group, removed on drop, after its processes have ended.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates a group limited to this many bytes. `None` if that is impossible and the check may be skipped.
    ///
    /// # Panics
    ///
    /// If that is impossible, unless `FABRICAST_TEST_ALLOW_SKIP` names `control-groups`.
    pub(crate) fn with_memory(bytes: u64) -> Option<Self> {
        let made = PLACES.iter().find_map(|(place, limit)| Self::make(Path::new(place), limit, bytes));
        if made.is_none() {
            skip(
                "control-groups",
                "no control group that limits memory can be made: it takes root, and a writable /sys/fs/cgroup, which most containers lack",
            );
        }
        made
    }

    fn make(place: &Path, limit: &str, bytes: u64) -> Option<Self> {
        let path = place.join(format!("fabricast-test-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        let group = Self { path };
        std::fs::write(group.path.join(limit), bytes.to_string()).ok()?;
        Some(group)
    }

    /// Moves a process there.
    pub(crate) fn add(&self, process: Pid) {
        let processes = self.path.join("cgroup.procs");
        std::fs::write(processes, process.as_raw_nonzero().to_string()).expect("the process can be moved");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails while it has processes; those of a test are killed before.
        let _ = std::fs::remove_dir(&self.path);
    }
}
