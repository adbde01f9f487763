//! How many sessions a command serves.

use clap::Args;
use fabricast::{Node, PeerLimits};

use super::units::number_in;

/// How many sessions a publisher serves, as arguments.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SessionArguments {
    /// Serve at most this many sessions with processes of this host, and as many over RDMA, or fewer if the limits of open files and locked
    /// memory allow no more [4 to 4096, default: 1024].
    #[arg(long, value_name = "N", value_parser = number_in::<u16>(4..=4096))]
    sessions: Option<u16>,
    /// Of these, serve at most this many with one process of this host, or with one other host [1 to 4096, default: 256].
    #[arg(long, value_name = "N", value_parser = number_in::<u16>(1..=4096))]
    sessions_per_peer: Option<u16>,
}

impl SessionArguments {
    /// The limits of a node.
    pub(crate) fn limits(self) -> PeerLimits {
        let mut limits = PeerLimits::default();
        if let Some(sessions) = self.sessions.map(usize::from) {
            (limits.shm_sessions, limits.rdma_sessions) = (sessions, sessions);
        }
        if let Some(sessions) = self.sessions_per_peer.map(usize::from) {
            (limits.shm_sessions_per_process, limits.rdma_sessions_per_host) = (sessions, sessions);
        }
        limits
    }

    /// What to say if this node serves fewer sessions than was asked for.
    pub(crate) fn shortfall(self, node: &Node, listens: bool) -> Option<String> {
        let (asked, granted) = (usize::from(self.sessions?), node.peer_limits());
        let is_less = granted.shm_sessions < asked || (listens && granted.rdma_sessions < asked);
        let over_rdma =
            if listens { format!(", and {} over RDMA", granted.rdma_sessions) } else { String::new() };
        is_less.then(|| {
            format!(
                "serves {} sessions of this host{over_rdma}, not {asked}: raise the limits of open files and locked memory \
                 (ulimit -n, ulimit -l)",
                granted.shm_sessions
            )
        })
    }
}
