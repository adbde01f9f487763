//! What a channel parses of the bytes of peers.

use super::ticket::{ChannelTicket, ReturnTicket};

pub(in crate::fabric::verbs) fn parse(bytes: &[u8]) {
    if let Ok(ticket) = ChannelTicket::parse(bytes) {
        assert_eq!(ticket.emit().as_slice(), bytes, "a ticket with two forms");
    }
    if let Ok(ticket) = ReturnTicket::parse(bytes) {
        assert_eq!(ticket.emit().as_slice(), bytes, "a ticket with two forms");
    }
}

#[cfg(test)]
pub(in crate::fabric::verbs) fn samples() -> Vec<Vec<u8>> {
    let [sender, group] = ["10.77.0.1", "239.1.2.3"].map(|address| address.parse().unwrap());
    let channel = ChannelTicket { mtu: 1024, queue_pair: 17, key: 5, sender, group };
    vec![channel.emit().to_vec(), ReturnTicket { queue_pair: 17, address: sender }.emit().to_vec()]
}
