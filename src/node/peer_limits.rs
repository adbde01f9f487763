use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::fabric::{PlaceLimits, part_of};
use crate::limits;

/// What the peers of a node may take of it, together and each: see [`NodeBuilder::peer_limits`](crate::NodeBuilder::peer_limits).
///
/// Sessions of this host and over RDMA are counted apart, so that neither takes places from the other. A peer is a process of this
/// host, or another host. Beyond its own limit, a peer may have as many sessions as it leaves places, and the processes of one user leave
/// a 16th of them to those of other users.
///
/// ```
/// use fabricast::{Node, PeerLimits};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let mut limits = PeerLimits::default();
/// limits.shm_sessions_per_process = 512;
/// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).peer_limits(limits).open()?;
/// assert_eq!(node.peer_limits().shm_sessions_per_process, 512);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerLimits {
    /// Sessions with processes of this host; by default [`limits::SESSIONS_DEFAULT`], at most [`limits::SESSIONS_MAX`].
    pub shm_sessions: usize,
    /// Of these, those of one process; by default [`limits::SESSIONS_PER_PEER_DEFAULT`]. The processes of other containers count as one
    /// where this process cannot see their numbers.
    pub shm_sessions_per_process: usize,
    /// Sessions over RDMA; by default [`limits::SESSIONS_DEFAULT`], at most [`limits::SESSIONS_MAX`].
    pub rdma_sessions: usize,
    /// Of these, those of one host; by default [`limits::SESSIONS_PER_PEER_DEFAULT`].
    pub rdma_sessions_per_host: usize,
    /// Bytes of the landing regions of one session; by default [`limits::LANDING_LEN_PER_SESSION_DEFAULT`].
    pub landing_len_per_session: usize,
    /// Bytes of the landing regions of all sessions; by default [`limits::LANDING_LEN_DEFAULT`].
    pub landing_len: usize,
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            shm_sessions: limits::SESSIONS_DEFAULT,
            shm_sessions_per_process: limits::SESSIONS_PER_PEER_DEFAULT,
            rdma_sessions: limits::SESSIONS_DEFAULT,
            rdma_sessions_per_host: limits::SESSIONS_PER_PEER_DEFAULT,
            landing_len_per_session: limits::LANDING_LEN_PER_SESSION_DEFAULT,
            landing_len: limits::LANDING_LEN_DEFAULT,
        }
    }
}

/// What a process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Affordable {
    /// Descriptors; `None` for any number.
    pub(super) files: Option<u64>,
    /// Bytes of locked memory; `None` for any number.
    pub(super) locked: Option<u64>,
}

impl Affordable {
    /// What this process may have.
    pub(super) fn now() -> Self {
        let may_lock = capabilities(None).is_ok_and(|has| has.effective.contains(CapabilitySet::IPC_LOCK));
        let locked = if may_lock { None } else { getrlimit(Resource::Memlock).current };
        Self { files: getrlimit(Resource::Nofile).current, locked }
    }
}

impl PeerLimits {
    /// These limits, but no more sessions than this process can afford beside its own topics.
    pub(super) fn within(self, affordable: Affordable, has_rdma: bool) -> Self {
        let most = |sessions: usize| sessions.clamp(1, limits::SESSIONS_MAX);
        let (mut shm, mut rdma) = (most(self.shm_sessions), most(self.rdma_sessions));
        let lent = |has: Option<u64>, parts: usize| {
            has.map_or(usize::MAX, |has| usize::try_from(has - has / parts as u64).unwrap_or(usize::MAX))
        };
        let files = lent(affordable.files, limits::FILES_KEPT_PARTS);
        let files = files.saturating_sub(sent_files_max(affordable.files));
        if has_rdma {
            let locked = lent(affordable.locked, limits::LOCKED_KEPT_PARTS);
            rdma = rdma.min(locked / limits::SESSION_LOCKED_LEN);
            // A quarter is for the sessions of this host.
            rdma = rdma.min((files - files / 4) / limits::RDMA_SESSION_FILES).max(limits::SESSIONS_MIN);
        } else {
            rdma = 0;
        }
        shm = shm.min(files.saturating_sub(rdma * limits::RDMA_SESSION_FILES) / limits::SESSION_FILES);
        Self { shm_sessions: shm.max(limits::SESSIONS_MIN), rdma_sessions: rdma, ..self }
    }

    /// Places for sessions of this host.
    pub(super) fn shm(&self) -> PlaceLimits {
        PlaceLimits { total: self.shm_sessions, per_peer: self.shm_sessions_per_process }
    }

    /// Places for sessions over RDMA.
    #[cfg(feature = "verbs")]
    pub(super) fn rdma(&self) -> PlaceLimits {
        PlaceLimits { total: self.rdma_sessions, per_peer: self.rdma_sessions_per_host }
    }
}

/// What else of its descriptors a process that may have this many gives to peers on its host: for what they have sent and waits to be
/// closed, for one unread message, and for their wake sockets.
fn sent_files_max(files: Option<u64>) -> usize {
    use limits::{CLOSING_FILES_MAX, CLOSING_FILES_MIN, CLOSING_FILES_PARTS};
    use limits::{DRAINED_FILES_MAX, DRAINED_FILES_MIN, DRAINED_FILES_PARTS};
    use limits::{WAKE_SOCKETS_MAX, WAKE_SOCKETS_MIN, WAKE_SOCKETS_PARTS};
    part_of(files, CLOSING_FILES_PARTS, CLOSING_FILES_MIN..=CLOSING_FILES_MAX)
        + part_of(files, DRAINED_FILES_PARTS, DRAINED_FILES_MIN..=DRAINED_FILES_MAX)
        + part_of(files, WAKE_SOCKETS_PARTS, WAKE_SOCKETS_MIN..=WAKE_SOCKETS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(files: Option<u64>, locked: Option<u64>, has_rdma: bool) -> (usize, usize) {
        let limits = PeerLimits::default().within(Affordable { files, locked }, has_rdma);
        (limits.shm_sessions, limits.rdma_sessions)
    }

    /// The figures of docs/operations.md.
    #[test]
    fn sessions_leave_descriptors_and_locked_memory_to_the_topics_of_the_node() {
        assert_eq!(sessions(None, None, true), (1024, 1024));
        assert_eq!(sessions(None, None, false), (1024, 0));
        assert_eq!(sessions(Some(1024), None, false), (512, 0));
        assert_eq!(sessions(Some(1024), None, true), (128, 64));
        assert_eq!(sessions(Some(1024), Some(8 << 20), true), (344, 28));
        assert_eq!(sessions(Some(1 << 20), Some(64 << 20), true), (1024, 227));
    }

    #[test]
    fn sessions_leave_descriptors_to_what_peers_send() {
        for files in [256, 1024, 4096] {
            let (sessions, _) = sessions(Some(files), None, false);
            let taken = sessions + sent_files_max(Some(files));
            assert!(taken as u64 <= files - files / limits::FILES_KEPT_PARTS as u64, "{taken} of {files}");
        }
    }

    #[test]
    fn there_are_places_however_little_the_process_may_have() {
        for has in [Some(0), Some(1), Some(20)] {
            assert_eq!(sessions(has, has, true), (4, 4));
        }
    }

    #[test]
    fn operator_may_ask_for_more_up_to_the_maximum() {
        let wanted = PeerLimits { shm_sessions: 1 << 40, rdma_sessions: 0, ..PeerLimits::default() };
        let within = wanted.within(Affordable { files: None, locked: None }, true);
        assert_eq!((within.shm_sessions, within.rdma_sessions), (limits::SESSIONS_MAX, limits::SESSIONS_MIN));
    }
}
