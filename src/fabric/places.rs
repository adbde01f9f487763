//! Places for sessions: how many a node has over one medium, and what one peer may take of them and of the node's time.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits;

/// Nanoseconds in which a peer earns one unit.
const UNIT_NS: u64 = 1_000_000_000 / limits::UNITS_PER_S;
/// How far ahead of the time a peer may spend, nanoseconds.
const AHEAD_NS: u64 = UNIT_NS * limits::UNITS_AT_ONCE;
/// Fewer peers are kept although nothing is to be known of them.
const PEERS_KEPT: usize = 64;

/// A peer, as far as its medium tells peers apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerId {
    /// A process of this host. Its number is 0 where this process cannot see it, in another container.
    Process {
        /// Its effective user.
        user: u32,
        /// Its number.
        process: u32,
    },
    /// The host at this address.
    #[cfg_attr(
        not(any(test, feature = "verbs")),
        expect(dead_code, reason = "only devices reach other hosts")
    )]
    Host(IpAddr),
}

/// The places of a node over one medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlaceLimits {
    /// All of them.
    pub(crate) total: usize,
    /// How many of them one peer may have.
    pub(crate) per_peer: usize,
}

impl Default for PlaceLimits {
    fn default() -> Self {
        Self { total: limits::SESSIONS_DEFAULT, per_peer: limits::SESSIONS_PER_PEER_DEFAULT }
    }
}

/// Why a node has no place for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoPlace {
    /// The process has as many sessions as one may have.
    #[error(
        "this process has {max} sessions with it, as many as one may have: end some, or raise \
         PeerLimits::shm_sessions_per_process there (`fabricast pub --sessions-per-peer`)"
    )]
    Process {
        /// The limit.
        max: u32,
    },
    /// The host has as many sessions as one may have.
    #[error(
        "this host has {max} sessions with it, as many as one may have: end some, or raise PeerLimits::rdma_sessions_per_host there \
         (`fabricast pub --sessions-per-peer`)"
    )]
    Host {
        /// The limit.
        max: u32,
    },
    /// The host has dialled too often in the last second.
    #[error("this host has dialled it too often: try again in a second, and keep sessions for longer")]
    Haste,
    /// So many of the places for this host are taken that the others are for peers with fewer.
    #[error(
        "of its {max} places for sessions on its host, those that are left are for other users, or for processes with fewer: end some, or \
         raise PeerLimits::shm_sessions there (`fabricast pub --sessions`), and its limit of open files (ulimit -n)"
    )]
    Shm {
        /// All places.
        max: u32,
    },
    /// So many of the places for other hosts are taken that the others are for peers with fewer.
    #[error(
        "of its {max} places for sessions over RDMA, those that are left are for hosts with fewer: end some, or raise \
         PeerLimits::rdma_sessions there (`fabricast pub --sessions`), and its limits of open files and locked memory (ulimit -n, \
         ulimit -l)"
    )]
    Rdma {
        /// All places.
        max: u32,
    },
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnedAway {
    pub(crate) why: NoPlace,
    /// The peer has been told so too often to be told again.
    pub(crate) is_hasty: bool,
}

/// Counts the sessions of a node over one medium.
#[derive(Debug)]
pub(crate) struct Places {
    limits: PlaceLimits,
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    taken: usize,
    by_user: BTreeMap<u32, usize>,
    by_peer: BTreeMap<PeerId, Known>,
    /// So many peers are known that those are forgotten of which nothing is to be known.
    swept_at: usize,
}

/// What is known of a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    taken: usize,
    /// By when it has earned what it has spent, ns.
    earned_ns: u64,
}

/// The place of one session. It is free again once this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    peer: PeerId,
}

impl Places {
    pub(crate) fn new(limits: PlaceLimits) -> Arc<Self> {
        Arc::new(Self { limits, peers: Mutex::default() })
    }

    /// Takes a place for a session with this peer, which costs it so many units.
    pub(crate) fn take(self: &Arc<Self>, peer: PeerId, units: u64, now_ns: u64) -> Result<Place, TurnedAway> {
        let peers = &mut *self.peers.lock();
        peers.sweep(now_ns);
        let PlaceLimits { total, per_peer } = self.limits;
        let free = total.saturating_sub(peers.taken);
        let known = peers.by_peer.entry(peer).or_default();
        let is_hasty = known.waits_until(now_ns).is_some();
        known.spend(units, now_ns);
        let max = |max: usize| u32::try_from(max).unwrap_or(u32::MAX);
        let (crowded, full) = match peer {
            PeerId::Process { .. } => {
                (NoPlace::Process { max: max(per_peer) }, NoPlace::Shm { max: max(total) })
            }
            PeerId::Host(_) => (NoPlace::Host { max: max(per_peer) }, NoPlace::Rdma { max: max(total) }),
        };
        let of_user = peer.user().map_or(0, |user| peers.by_user.get(&user).copied().unwrap_or(0));
        let user_max = total - total / limits::SESSIONS_OTHER_USERS_PARTS;
        let refused = if known.taken >= per_peer {
            Some(crowded)
        } else if is_hasty && matches!(peer, PeerId::Host(_)) {
            // A queue pair would be made for each dial. The requests of a process wait, and what it dials costs little.
            Some(NoPlace::Haste)
        } else {
            // Each peer leaves as many places as it has.
            (free <= known.taken || (peer.user().is_some() && of_user >= user_max)).then_some(full)
        };
        if let Some(why) = refused {
            return Err(TurnedAway { why, is_hasty });
        }
        known.taken += 1;
        peers.taken += 1;
        if let Some(user) = peer.user() {
            *peers.by_user.entry(user).or_default() += 1;
        }
        Ok(Place { places: Arc::clone(self), peer })
    }
}

impl Peers {
    /// Forgets peers that have no session and may spend all again, once there are many.
    fn sweep(&mut self, now_ns: u64) {
        if self.by_peer.len() >= self.swept_at.max(PEERS_KEPT) {
            self.by_peer.retain(|_, known| known.taken > 0 || known.earned_ns > now_ns);
            self.swept_at = 2 * self.by_peer.len();
        }
    }

    fn free(&mut self, peer: PeerId) {
        self.taken = self.taken.saturating_sub(1);
        if let Some(known) = self.by_peer.get_mut(&peer) {
            known.taken = known.taken.saturating_sub(1);
        }
        if let Some(user) = peer.user()
            && let Some(taken) = self.by_user.get_mut(&user)
        {
            *taken = taken.saturating_sub(1);
            if *taken == 0 {
                self.by_user.remove(&user);
            }
        }
    }
}

impl Known {
    fn spend(&mut self, units: u64, now_ns: u64) {
        self.earned_ns = self.earned_ns.max(now_ns).saturating_add(units.saturating_mul(UNIT_NS));
        // A debt is paid within as long again.
        self.earned_ns = self.earned_ns.min(now_ns.saturating_add(2 * AHEAD_NS));
    }

    fn waits_until(&self, now_ns: u64) -> Option<u64> {
        let until_ns = self.earned_ns.saturating_sub(AHEAD_NS);
        (until_ns > now_ns).then_some(until_ns)
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { user, process: 0 } => {
                write!(out, "a process of user {user} in another container")
            }
            Self::Process { user, process } => write!(out, "process {process} of user {user}"),
            Self::Host(address) => write!(out, "{address}"),
        }
    }
}

impl PeerId {
    fn user(self) -> Option<u32> {
        match self {
            Self::Process { user, .. } => Some(user),
            Self::Host(_) => None,
        }
    }
}

impl Place {
    /// The peer.
    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    /// Records what the peer has asked for, in all its sessions.
    pub(crate) fn spend(&self, units: u64, now_ns: u64) {
        if let Some(known) = self.places.peers.lock().by_peer.get_mut(&self.peer) {
            known.spend(units, now_ns);
        }
    }

    /// Until when the peer's requests have to wait, if they do: it has asked for too much.
    pub(crate) fn waits_until(&self, now_ns: u64) -> Option<u64> {
        self.places.peers.lock().by_peer.get(&self.peer)?.waits_until(now_ns)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.peers.lock().free(self.peer);
    }
}
