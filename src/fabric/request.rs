//! What a node shows with its requests to connect, and demands of those of its peers, before anything is set up for a connection.

use std::fmt::Debug;
use std::net::IpAddr;

use super::connection::Intent;

/// The most bytes that can be shown with a request.
pub(crate) const SHOWN_LEN_MAX: usize = 40;

/// A request to connect, as both ends see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectRequest {
    /// The purpose of the end that dials.
    pub(crate) intent: Intent,
    /// Bytes that are the same at both ends, and differ from those of other requests: where it comes from, where it goes, and a number
    /// of the dialling end.
    pub(crate) binding: Vec<u8>,
}

/// What a node shows and demands. A fabric carries the bytes, and does not read them.
pub(crate) trait ConnectPolicy: Debug + Send + Sync {
    /// How many requests it takes to show everything. The next one is made when the one before it was not admitted.
    fn turns(&self, intent: Intent) -> usize {
        let _ = intent;
        1
    }

    /// Returns what to show with this request, the first one being 0; at most [`SHOWN_LEN_MAX`] bytes.
    fn show(&self, request: &ConnectRequest, turn: usize) -> Vec<u8> {
        let _ = (request, turn);
        Vec::new()
    }

    /// Whether peers at this address may connect.
    fn allows(&self, peer: IpAddr) -> bool {
        let _ = peer;
        true
    }

    /// Whether the peer that has shown this with its request may connect.
    fn admits(&self, request: &ConnectRequest, shown: &[u8]) -> bool {
        let _ = (request, shown);
        true
    }

    /// The units that [`Self::admits`] costs, of those that a peer earns: see [`super::Places::take`].
    fn units(&self) -> u64 {
        0
    }
}

/// Shows nothing, and admits anyone.
#[derive(Debug)]
pub(crate) struct AdmitAnyone;

impl ConnectPolicy for AdmitAnyone {}
