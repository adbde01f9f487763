//! What peers tell each other about a channel.
//!
//! ```text
//! of a channel
//! 00  u8    version: 1
//! 01  u8    1
//! 02  u16   longest datagram, bytes
//! 04  u32   number of the queue pair that sends, 24 bits
//! 08  u32   Q_Key
//! 0c  [16]  GID of the sender
//! 1c  [16]  MGID of the group
//!
//! of a receiver
//! 00  u8    version: 1
//! 01  u8    2
//! 02  [2]   zero
//! 04  u32   number of its queue pair, 24 bits
//! 08  [16]  GID of the receiver
//! ```
//!
//! Numbers are in network byte order, addresses are IPv4-mapped IPv6 addresses, as in devices.

#![expect(clippy::big_endian_bytes, reason = "tickets are in network byte order")]

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::fabric::Group;
use crate::fabric::verbs::error::VerbsError;
use crate::limits;

const VERSION: u8 = 1;
/// The kind of a channel's ticket.
const CHANNEL: u8 = 1;
/// The kind of a receiver's ticket.
const RECEIVER: u8 = 2;
/// Bytes of a channel's ticket.
pub(super) const CHANNEL_LEN: usize = 44;
/// Bytes of a receiver's ticket.
pub(super) const RECEIVER_LEN: usize = 24;
/// Queue pair numbers that have one receiver: 0 and 1 are for management, the last one is for groups.
const QUEUE_PAIRS: std::ops::Range<u32> = 2..0x00ff_ffff;
/// Unprivileged keys; 0 is reserved.
const KEYS: std::ops::Range<u32> = 1..0x8000_0000;
/// Valid MTUs, bytes of payload.
const MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];

const _: () = assert!(CHANNEL_LEN <= limits::CHANNEL_TICKET_LEN_MAX && RECEIVER_LEN < CHANNEL_LEN);

/// What a receiver needs to join a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelTicket {
    /// The longest datagram, bytes.
    pub(super) mtu: u16,
    /// The sender's queue pair number.
    pub(super) queue_pair: u32,
    /// The key that datagrams carry.
    pub(super) key: u32,
    /// The sender's address.
    pub(super) sender: Ipv4Addr,
    /// The group's address.
    pub(super) group: Ipv4Addr,
}

/// What a sender needs to reach one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReturnTicket {
    /// Its queue pair number.
    pub(super) queue_pair: u32,
    /// Its address.
    pub(super) address: Ipv4Addr,
}

impl ChannelTicket {
    /// Encodes it for a peer.
    pub(super) fn emit(&self) -> [u8; CHANNEL_LEN] {
        let Self { mtu, queue_pair, key, sender, group } = *self;
        let [sender, group] = [sender, group].map(gid);
        let parts: [&[u8]; 6] = [
            &[VERSION, CHANNEL],
            &mtu.to_be_bytes(),
            &queue_pair.to_be_bytes(),
            &key.to_be_bytes(),
            &sender,
            &group,
        ];
        joined(&parts)
    }

    /// Decodes a peer's ticket.
    pub(super) fn parse(mut bytes: &[u8]) -> Result<Self, VerbsError> {
        if bytes.len() != CHANNEL_LEN {
            return Err(bad("wrong length"));
        }
        let rest = &mut bytes;
        check_kind(rest, CHANNEL)?;
        let mtu = u16::from_be_bytes(take(rest)?);
        let queue_pair = parse_queue_pair(rest)?;
        let key = u32::from_be_bytes(take(rest)?);
        let sender = parse_host(rest)?;
        let group = parse_address(rest)?;
        if !MTUS.contains(&mtu) {
            return Err(bad("invalid packet length"));
        }
        if !KEYS.contains(&key) {
            return Err(bad("its key is privileged"));
        }
        if Group::new(group).is_err() {
            return Err(bad("its group is not a multicast address"));
        }
        Ok(Self { mtu, queue_pair, key, sender, group })
    }
}

impl ReturnTicket {
    /// Encodes it for a peer.
    pub(super) fn emit(&self) -> [u8; RECEIVER_LEN] {
        let Self { queue_pair, address } = *self;
        let parts: [&[u8]; 4] = [&[VERSION, RECEIVER], &[0; 2], &queue_pair.to_be_bytes(), &gid(address)];
        joined(&parts)
    }

    /// Decodes a peer's ticket.
    pub(super) fn parse(mut bytes: &[u8]) -> Result<Self, VerbsError> {
        if bytes.len() != RECEIVER_LEN {
            return Err(bad("wrong length"));
        }
        let rest = &mut bytes;
        check_kind(rest, RECEIVER)?;
        if take(rest)? != [0; 2] {
            return Err(bad("its reserved bytes are not zero"));
        }
        Ok(Self { queue_pair: parse_queue_pair(rest)?, address: parse_host(rest)? })
    }
}

/// An address in the form of devices.
pub(super) fn gid(address: Ipv4Addr) -> [u8; 16] {
    address.to_ipv6_mapped().octets()
}

fn bad(why: &'static str) -> VerbsError {
    VerbsError::BadTicket { why }
}

fn check_kind(bytes: &mut &[u8], kind: u8) -> Result<(), VerbsError> {
    match take(bytes)? {
        [VERSION, of] if of == kind => Ok(()),
        [VERSION, _] => Err(bad("wrong kind of ticket")),
        _ => Err(bad("unsupported version")),
    }
}

fn parse_queue_pair(bytes: &mut &[u8]) -> Result<u32, VerbsError> {
    let number = u32::from_be_bytes(take(bytes)?);
    if QUEUE_PAIRS.contains(&number) { Ok(number) } else { Err(bad("invalid queue pair number")) }
}

/// Decodes the address of a host.
fn parse_host(bytes: &mut &[u8]) -> Result<Ipv4Addr, VerbsError> {
    let address = parse_address(bytes)?;
    let is_none =
        address.octets().starts_with(&[0]) || address.is_loopback() || address.octets() >= [224, 0, 0, 0];
    if is_none { Err(bad("its address is not a host address")) } else { Ok(address) }
}

fn parse_address(bytes: &mut &[u8]) -> Result<Ipv4Addr, VerbsError> {
    let address = Ipv6Addr::from(take::<16>(bytes)?).to_ipv4_mapped();
    address.ok_or_else(|| bad("its address is not IPv4"))
}

/// Takes the first bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], VerbsError> {
    let (first, rest) = bytes.split_first_chunk().ok_or_else(|| bad("truncated"))?;
    *bytes = rest;
    Ok(*first)
}

fn joined<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.iter_mut().zip(parts.iter().copied().flatten()).for_each(|(to, from)| *to = *from);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANNEL_TICKET: ChannelTicket = ChannelTicket {
        mtu: 4096,
        queue_pair: 0x0001_0203,
        key: 0x0405_0607,
        sender: Ipv4Addr::new(10, 77, 0, 1),
        group: Ipv4Addr::new(239, 255, 8, 9),
    };
    const RETURN_TICKET: ReturnTicket =
        ReturnTicket { queue_pair: 0x000a_0b0c, address: Ipv4Addr::new(10, 77, 0, 2) };

    #[test]
    fn encoding_is_stable() {
        let expected = b"\x01\x01\x10\x00\x00\x01\x02\x03\x04\x05\x06\x07\
            \0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x4d\0\x01\0\0\0\0\0\0\0\0\0\0\xff\xff\xef\xff\x08\x09";
        assert_eq!(&CHANNEL_TICKET.emit(), expected);
        assert_eq!(ChannelTicket::parse(expected).unwrap(), CHANNEL_TICKET);
        let expected = b"\x01\x02\0\0\0\x0a\x0b\x0c\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x4d\0\x02";
        assert_eq!(&RETURN_TICKET.emit(), expected);
        assert_eq!(ReturnTicket::parse(expected).unwrap(), RETURN_TICKET);
    }

    #[test]
    fn other_lengths_are_refused() {
        let bytes = [CHANNEL_TICKET.emit().as_slice(), &[0; 40]].concat();
        for len in 0..bytes.len() {
            assert_eq!(ChannelTicket::parse(&bytes[..len]).is_ok(), len == CHANNEL_LEN, "{len}");
        }
        let bytes = [RETURN_TICKET.emit().as_slice(), &[0; 40]].concat();
        for len in 0..bytes.len() {
            assert_eq!(ReturnTicket::parse(&bytes[..len]).is_ok(), len == RECEIVER_LEN, "{len}");
        }
        assert!(ChannelTicket::parse(&RETURN_TICKET.emit()).is_err());
        assert!(ReturnTicket::parse(&CHANNEL_TICKET.emit()).is_err());
    }

    #[test]
    fn flips_are_refused_or_mean_something_else() {
        let bytes = CHANNEL_TICKET.emit();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 0x80 >> (bit % 8);
            let parsed = ChannelTicket::parse(&flipped);
            assert_ne!(parsed.as_ref().ok(), Some(&CHANNEL_TICKET), "bit {bit}");
            let is_free = bit != 64 && matches!(bit, 40..96 | 192..224 | 320..352);
            assert!(is_free || parsed.is_err(), "bit {bit}: {parsed:?}");
        }
        let bytes = RETURN_TICKET.emit();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 0x80 >> (bit % 8);
            let parsed = ReturnTicket::parse(&flipped);
            assert_ne!(parsed.as_ref().ok(), Some(&RETURN_TICKET), "bit {bit}");
            assert!(matches!(bit / 8, 5..8 | 20..24) || parsed.is_err(), "bit {bit}: {parsed:?}");
        }
    }

    #[test]
    fn tickets_that_no_device_could_use_are_refused() {
        let channel = |change: fn(&mut ChannelTicket)| {
            let mut ticket = CHANNEL_TICKET;
            change(&mut ticket);
            ChannelTicket::parse(&ticket.emit()).unwrap_err().to_string()
        };
        let cases = [
            (channel(|ticket| ticket.mtu = 1000), "packet length"),
            (channel(|ticket| ticket.mtu = 8192), "packet length"),
            (channel(|ticket| ticket.queue_pair = 1), "queue pair number"),
            (channel(|ticket| ticket.queue_pair = 0x00ff_ffff), "queue pair number"),
            (channel(|ticket| ticket.queue_pair = 0x0100_0000), "queue pair number"),
            (channel(|ticket| ticket.key = 0), "its key"),
            (channel(|ticket| ticket.key = 0x8000_0000), "its key"),
            (channel(|ticket| ticket.sender = Ipv4Addr::UNSPECIFIED), "a host"),
            (channel(|ticket| ticket.sender = Ipv4Addr::LOCALHOST), "a host"),
            (channel(|ticket| ticket.sender = Ipv4Addr::BROADCAST), "a host"),
            (channel(|ticket| ticket.sender = ticket.group), "a host"),
            (channel(|ticket| ticket.group = ticket.sender), "its group"),
            (channel(|ticket| ticket.group = Ipv4Addr::new(224, 0, 0, 1)), "its group"),
        ];
        for (sentence, what) in cases {
            assert!(sentence.contains(what), "{sentence}");
        }
        let mut ipv6 = RETURN_TICKET.emit();
        ipv6[8] = 0xfe;
        assert!(ReturnTicket::parse(&ipv6).unwrap_err().to_string().contains("not IPv4"));
        assert!(ReturnTicket::parse(&[0; RECEIVER_LEN]).unwrap_err().to_string().contains("version"));
    }
}
