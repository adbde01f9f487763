//! A control group whose memory is limited, for a process that has to live with little.

use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// Allows tests to go without control groups, where they cannot be made.
const ALLOWED: &str = "FABRICAST_TEST_WITHOUT_CGROUPS";
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
    /// A group that may use so many bytes.
    ///
    /// # Panics
    ///
    /// When none can be made, unless that is allowed.
    pub(crate) fn with_memory(bytes: u64) -> Option<Self> {
        let made = PLACES.iter().find_map(|(place, limit)| Self::make(Path::new(place), limit, bytes));
        if made.is_none() {
            assert!(
                std::env::var_os(ALLOWED).is_some(),
                "NO CONTROL GROUP WITH A MEMORY LIMIT CAN BE MADE HERE: run this as root, or set {ALLOWED}=1 to go without"
            );
            println!("WITHOUT A CONTROL GROUP: {ALLOWED} IS SET; NO LIMIT OF MEMORY WAS ENFORCED");
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
