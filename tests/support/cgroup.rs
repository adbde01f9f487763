//! A control group whose memory is limited, for a process that has to live with little.

use std::path::{Path, PathBuf};

use rustix::process::Pid;

use super::skip::skip;

/// Where the first version of control groups limits memory, and where the second one does everything.
const PLACES: [(&str, &str); 3] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
    ("/sys/fs/cgroup/unified", "memory.max"),
];

/// A control group; removed when it is dropped, after its processes have ended.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// A group that may use so many bytes. `None` where none can be made and the check may be left out.
    ///
    /// # Panics
    ///
    /// When none can be made, unless `FABRICAST_TEST_ALLOW_SKIP` names `control-groups`.
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
        // It fails while a process is left in it; those of a test are killed before.
        let _ = std::fs::remove_dir(&self.path);
    }
}
