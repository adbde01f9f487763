use std::net::IpAddr;

use crate::fabric::{ConnectPolicy, ConnectRequest, Intent, Network, SHOWN_LEN_MAX};
use crate::keyring::{Keyring, REQUEST_TAG_LEN, Right};
use crate::limits;

/// What a node shows with its requests to connect, and demands of those of its peers.
#[derive(Debug)]
pub(super) struct NodePolicy {
    /// Its keys, if it has some.
    keyring: Option<Keyring>,
    /// The networks whose hosts may connect; those of all, if there is none.
    allowed: Vec<Network>,
}

const _: () = assert!(limits::KEYS_PER_REQUEST * REQUEST_TAG_LEN <= SHOWN_LEN_MAX);

impl NodePolicy {
    pub(super) fn new(keyring: Option<Keyring>, allowed: Vec<Network>) -> Self {
        Self { keyring, allowed }
    }
}

impl ConnectPolicy for NodePolicy {
    fn turns(&self, intent: Intent) -> usize {
        self.keyring.as_ref().map_or(1, |keyring| keyring.in_force().request_turns(needed(intent)))
    }

    fn show(&self, request: &ConnectRequest, turn: usize) -> Vec<u8> {
        let keys = self.keyring.as_ref().map(Keyring::in_force);
        let tags = keys.map(|keys| keys.request_tags(needed(request.intent), &request.binding, turn));
        tags.unwrap_or_default()
    }

    fn allows(&self, peer: IpAddr) -> bool {
        self.allowed.is_empty() || self.allowed.iter().any(|network| network.contains(peer))
    }

    fn admits(&self, request: &ConnectRequest, shown: &[u8]) -> bool {
        let keys = self.keyring.as_ref().map(Keyring::in_force);
        keys.is_none_or(|keys| keys.recognise(needed(request.intent), &request.binding, shown))
    }

    fn units(&self) -> u64 {
        let keys = self.keyring.as_ref().map_or(0, Keyring::len);
        keys.div_ceil(limits::KEYS_PER_UNIT) as u64
    }
}

/// What a peer that dials for this needs.
fn needed(intent: Intent) -> Right {
    match intent {
        Intent::Read => Right::Read,
        Intent::Write => Right::Publish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(lines: &str, allowed: &[&str]) -> NodePolicy {
        let keyring = (!lines.is_empty()).then(|| Keyring::from_text(lines).unwrap());
        NodePolicy::new(keyring, allowed.iter().map(|network| network.parse().unwrap()).collect())
    }

    fn request(intent: Intent) -> ConnectRequest {
        ConnectRequest { intent, binding: b"from here to there".to_vec() }
    }

    #[test]
    fn node_with_keys_admits_requests_that_show_one_with_the_right() {
        let secret = "0123456789abcdef".repeat(4);
        let here = policy(&format!("desk read md {secret}"), &[]);
        let (desk, stranger) = (policy(&format!("mine read,publish * {secret}"), &[]), policy("", &[]));
        for intent in [Intent::Read, Intent::Write] {
            let request = request(intent);
            let shown = desk.show(&request, 0);
            assert_eq!(here.admits(&request, &shown), intent == Intent::Read);
            assert!(!here.admits(&request, &stranger.show(&request, 0)));
            assert!(stranger.admits(&request, &shown) && stranger.admits(&request, &[]));
        }
        assert_eq!((here.units(), stranger.units(), stranger.turns(Intent::Read)), (1, 0, 1));
    }

    #[test]
    fn hosts_of_the_allowed_networks_may_connect() {
        let here = policy("", &["10.0.0.0/24", "fd00::7"]);
        for (address, expected) in
            [("10.0.0.9", true), ("10.0.1.9", false), ("fd00::7", true), ("fd00::8", false)]
        {
            assert_eq!(here.allows(address.parse().unwrap()), expected, "{address}");
        }
        assert!(policy("", &[]).allows("192.0.2.1".parse().unwrap()), "anyone, without a list");
    }
}
