//! Datagram channels: UD queue pairs, and one IPv4 multicast group per sender.
//!
//! A sender has a group, and a random key (Q_Key) that a datagram must carry to be received. Peers get both in the
//! ticket, over an established connection. The key keeps out stray datagrams and hosts that have not seen it, but a host
//! that has can forge datagrams. So receivers skip datagrams that do not come from the ticket's address and
//! queue pair, and validate the content of the others.
//!
//! The connection manager joins groups and reports the result; nothing blocks on it. Unicast datagrams need no group
//! and arrive even if the group could not be joined.
//!
//! Requires RoCE v2 over IPv4, the only groups that the connection manager can join here.

mod fault;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzed;
mod member;
mod receiver;
mod sender;
mod site;
mod ticket;
pub(super) mod unicast;

use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub(super) use self::receiver::VerbsChannelReceiver;
pub(super) use self::sender::{VerbsChannelSender, VerbsUnicastSender};
use self::site::Site;
use self::ticket::ChannelTicket;
use super::error::VerbsError;
use super::opened::Devices;
use crate::fabric::{FabricError, Group};

/// What a connection says whose device has no channels.
const NO_ROCE: VerbsError = VerbsError::NoChannel { why: "its device does not speak RoCE v2 over IPv4" };

/// The channels that this process sends to.
#[derive(Debug)]
pub(super) struct Channels {
    devices: Arc<Devices>,
    /// The group for all channels. Otherwise each has a random one.
    group: Option<Group>,
    senders: Mutex<Vec<(Ipv4Addr, Weak<VerbsChannelSender>)>>,
}

impl Channels {
    /// Creates an empty set over these devices. All channels use this group, if given.
    pub(super) fn new(devices: &Arc<Devices>, group: Option<Group>) -> Arc<Self> {
        Arc::new(Self { devices: Arc::clone(devices), group, senders: Mutex::default() })
    }

    /// The channel of a local address. `None` if datagrams cannot be sent from it.
    pub(super) fn sender(&self, address: Ipv4Addr) -> Result<Option<Arc<VerbsChannelSender>>, FabricError> {
        let mut senders = self.senders.lock();
        let known = senders.iter().find(|(of, _)| *of == address).and_then(|(_, sender)| sender.upgrade());
        // A sender that a fault has ended is not handed out again.
        let known = known.filter(|sender| !sender.has_ended());
        if known.is_some() {
            return Ok(known);
        }
        let Some(site) = Site::open(address, &self.devices)? else { return Ok(None) };
        let group = self.group.map_or_else(random_group, |group| Ok(group.address()))?;
        let sender = Arc::new(VerbsChannelSender::open(site, group)?);
        senders.retain(|(of, sender)| *of != address && sender.strong_count() > 0);
        senders.push((address, Arc::downgrade(&sender)));
        Ok(Some(sender))
    }

    /// A unicast sender from the channel of a local address to a receiver of this peer.
    pub(super) fn unicast(
        &self,
        ticket: &[u8],
        (address, peer): (Ipv4Addr, Ipv4Addr),
    ) -> Result<VerbsUnicastSender, FabricError> {
        let sender = self.sender(address)?;
        sender.ok_or(NO_ROCE)?.unicast(peer, ticket)
    }

    /// Starts joining a channel of the peer, from this local address to the peer's.
    pub(super) fn join(
        &self,
        ticket: &[u8],
        (address, peer): (Ipv4Addr, Ipv4Addr),
    ) -> Result<VerbsChannelReceiver, FabricError> {
        let ticket = ChannelTicket::parse(ticket)?;
        if ticket.sender != peer {
            let why = "it names a host other than the peer's";
            return Err(VerbsError::BadTicket { why }.into());
        }
        let site = Site::open(address, &self.devices)?.ok_or(NO_ROCE)?;
        VerbsChannelReceiver::open(site, ticket)
    }
}

/// A random group of the local scope (RFC 2365), without the ranges that have other uses.
fn random_group() -> Result<Ipv4Addr, FabricError> {
    let [a, b, ..] = crate::random::number().map_err(FabricError::no_random)?.to_le_bytes();
    Ok(Ipv4Addr::new(239, 255, 1 + a % 254, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_groups_are_local_and_differ() {
        let groups: Vec<_> = (0..100).map(|_| random_group().unwrap()).collect();
        assert!(
            groups.iter().all(|group| Group::new(*group).is_ok() && group.octets().starts_with(&[239, 255]))
        );
        assert!(groups.iter().all(|group| (1..255).contains(&group.octets()[2])));
        assert!(groups.iter().any(|group| *group != groups[0]));
    }
}
