//! Channels of datagrams: queue pairs of the kind UD, and an IPv4 multicast group for each sender.
//!
//! A sender has a group, and a key (Q_Key) by chance that a datagram must carry to be received: it goes to peers in the
//! ticket, over a connection that stands. The key keeps out what was not meant for the channel, and who has not seen it;
//! whoever has can send what looks like the sender's. So receivers pass over what does not come from the address and the
//! queue pair of the ticket, and whoever receives checks what is said.
//!
//! The connection manager joins groups, and tells when that is done or has failed; nothing waits for it. Datagrams to one
//! receiver alone need no group: they arrive also when it could not be joined.
//!
//! Only RoCE v2 between IPv4 addresses: other addresses have no groups that the connection manager could join.

mod member;
mod receiver;
mod sender;
mod site;
mod ticket;

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

/// The channels that one process sends to.
#[derive(Debug)]
pub(super) struct Channels {
    devices: Arc<Devices>,
    /// The group of all of them. Otherwise one by chance for each.
    group: Option<Group>,
    senders: Mutex<Vec<(Ipv4Addr, Weak<VerbsChannelSender>)>>,
}

impl Channels {
    /// None yet, over these devices. All will use this group, if there is one.
    pub(super) fn new(devices: &Arc<Devices>, group: Option<Group>) -> Arc<Self> {
        Arc::new(Self { devices: Arc::clone(devices), group, senders: Mutex::default() })
    }

    /// The channel of a local address. `None` where datagrams cannot be sent.
    pub(super) fn sender(&self, address: Ipv4Addr) -> Result<Option<Arc<VerbsChannelSender>>, FabricError> {
        let mut senders = self.senders.lock();
        let known = senders.iter().find(|(of, _)| *of == address).and_then(|(_, sender)| sender.upgrade());
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

    /// The way from the channel of a local address to a receiver of this peer's.
    pub(super) fn unicast(
        &self,
        ticket: &[u8],
        (address, peer): (Ipv4Addr, Ipv4Addr),
    ) -> Result<VerbsUnicastSender, FabricError> {
        let sender = self.sender(address)?;
        let sender =
            sender.ok_or(VerbsError::NoChannel { why: "its device does not speak RoCE v2 over IPv4" })?;
        sender.unicast(peer, ticket)
    }

    /// Begins to join the channel of a peer, with this local address and that one of the peer.
    pub(super) fn join(
        &self,
        ticket: &[u8],
        (address, peer): (Ipv4Addr, Ipv4Addr),
    ) -> Result<VerbsChannelReceiver, FabricError> {
        let ticket = ChannelTicket::parse(ticket)?;
        if ticket.sender != peer {
            let why = "it names another host than its connection comes from";
            return Err(VerbsError::BadTicket { why }.into());
        }
        let site = Site::open(address, &self.devices)?;
        let site =
            site.ok_or(VerbsError::NoChannel { why: "its device does not speak RoCE v2 over IPv4" })?;
        VerbsChannelReceiver::open(site, ticket)
    }
}

/// A group of the block for local use (RFC 2365), except for what others use of it.
fn random_group() -> Result<Ipv4Addr, FabricError> {
    let [a, b, ..] = crate::random::number().map_err(FabricError::no_random)?.to_le_bytes();
    Ok(Ipv4Addr::new(239, 255, 1 + a % 254, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_by_chance_are_local_ones_and_differ() {
        let groups: Vec<_> = (0..100).map(|_| random_group().unwrap()).collect();
        assert!(
            groups.iter().all(|group| Group::new(*group).is_ok() && group.octets().starts_with(&[239, 255]))
        );
        assert!(groups.iter().all(|group| (1..255).contains(&group.octets()[2])));
        assert!(groups.iter().any(|group| *group != groups[0]));
    }
}
