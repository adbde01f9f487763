//! Where a node, or a topic of it, is found: `shm:NODE`, `rdma://HOST[:PORT]`, and either followed by `/TOPIC`.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::id::{NameError, NodeName, TopicName};

/// The port of `rdma://` addresses that name none.
const RDMA_PORT: u16 = 7471;

/// Where a node is found.
///
/// ```
/// use fabricast::Address;
///
/// let address: Address = "shm:market-data".parse()?;
/// assert_eq!(address.to_string(), "shm:market-data");
/// # Ok::<(), fabricast::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// A node of this host, reached through shared memory.
    Shm(NodeName),
    /// A node reached over RDMA verbs.
    Rdma {
        /// A name, an IPv4 address, or an IPv6 address without brackets.
        host: String,
        /// Its port.
        port: u16,
    },
}

/// How nodes connect their queue pairs over RDMA verbs. Both ends of a connection do it in the same way; a node that
/// listens answers to all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RdmaConnect {
    /// By librdmacm, the connection manager: reliable connections.
    #[default]
    Manager,
    /// By an exchange of queue pair numbers and addresses over TCP: reliable connections.
    Tcp,
    /// By an exchange over TCP: unreliable connections, which only push. What a wire loses is replaced by the next value.
    TcpUnreliable,
}

/// Where a topic is found: a node's address, `/`, the topic's name.
///
/// ```
/// use fabricast::Target;
///
/// let target: Target = "shm:market-data/equities/AAPL".parse()?;
/// assert_eq!(target.topic.as_str(), "equities/AAPL");
/// # Ok::<(), fabricast::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a target is these two things, by its syntax")]
pub struct Target {
    /// The node.
    pub address: Address,
    /// The topic.
    pub topic: TopicName,
}

/// Why a text is not an address or a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It begins with no known scheme.
    #[error("{text:?} is not an address: write shm:NODE or rdma://HOST[:PORT]")]
    Scheme {
        /// The text.
        text: String,
    },
    /// The host or port is malformed.
    #[error("{text:?} is not an RDMA address: write rdma://HOST[:PORT], an IPv6 address in [brackets]")]
    Host {
        /// The text.
        text: String,
    },
    /// The topic is missing.
    #[error("{text:?} names no topic: write {text}/TOPIC")]
    NoTopic {
        /// The text.
        text: String,
    },
    /// It is none of a multicast group that notices can be sent to.
    #[error(
        "{group} is no multicast group that anybody may send to; use one of 239.255.0.0 to 239.255.255.255"
    )]
    Group {
        /// The address.
        group: Ipv4Addr,
    },
    /// A name in it is malformed.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// The address of a multicast group that leaves the local network if routers are told so: the others are for routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(Ipv4Addr);

impl Group {
    /// The group of this address, if it is one that anybody may send to.
    pub(crate) fn new(group: Ipv4Addr) -> Result<Self, AddressError> {
        let is_group = group.is_multicast() && !matches!(group.octets(), [224, 0, 0, _]);
        if is_group { Ok(Self(group)) } else { Err(AddressError::Group { group }) }
    }

    /// Its address.
    #[cfg(feature = "verbs")]
    pub(crate) fn address(self) -> Ipv4Addr {
        self.0
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(node) = text.strip_prefix("shm:") {
            return Ok(Self::Shm(node.parse()?));
        }
        match text.strip_prefix("rdma://") {
            Some(host) => parse_host(host).ok_or_else(|| AddressError::Host { text: text.to_owned() }),
            None => Err(AddressError::Scheme { text: text.to_owned() }),
        }
    }
}

fn parse_host(text: &str) -> Option<Address> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, port.strip_prefix(':').or_else(|| port.is_empty().then_some(""))?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'%');
    if host.is_empty() || !host.bytes().all(plain) || (text.ends_with(':') && port.is_empty()) {
        return None;
    }
    let port = if port.is_empty() { RDMA_PORT } else { port.parse().ok()? };
    Some(Address::Rdma { host: host.to_owned(), port })
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(node) => write!(out, "shm:{node}"),
            Self::Rdma { host, port } if host.contains(':') => write!(out, "rdma://[{host}]:{port}"),
            Self::Rdma { host, port } => write!(out, "rdma://{host}:{port}"),
        }
    }
}

impl FromStr for Target {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let scheme_len = text.find("://").map_or(0, |at| at + "://".len());
        let (_, rest) = text.split_at(scheme_len);
        let no_topic = || AddressError::NoTopic { text: text.to_owned() };
        let Some(slash) = rest.find('/') else {
            text.parse::<Address>()?;
            return Err(no_topic());
        };
        let (address, topic) = text.split_at(scheme_len + slash);
        Ok(Self { address: address.parse()?, topic: topic.strip_prefix('/').ok_or_else(no_topic)?.parse()? })
    }
}

/// What is parsed from text is given as text of any form, or by reference.
macro_rules! given_as_text {
    ($type:ty) => {
        impl TryFrom<&str> for $type {
            type Error = AddressError;

            fn try_from(text: &str) -> Result<Self, AddressError> {
                text.parse()
            }
        }

        impl TryFrom<&String> for $type {
            type Error = AddressError;

            fn try_from(text: &String) -> Result<Self, AddressError> {
                text.parse()
            }
        }

        impl TryFrom<String> for $type {
            type Error = AddressError;

            fn try_from(text: String) -> Result<Self, AddressError> {
                text.parse()
            }
        }

        impl From<&Self> for $type {
            fn from(same: &Self) -> Self {
                same.clone()
            }
        }
    };
}

given_as_text!(Address);
given_as_text!(Target);

impl fmt::Display for Target {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.address, self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_they_print() {
        for text in ["shm:a", "rdma://host:1", "rdma://10.0.0.1:7471", "rdma://[fe80::1%eth0]:9"] {
            let parsed = text.parse::<Address>();
            if text.contains('%') {
                // A zone is not part of an address in the standard parser; it is refused rather than dropped.
                assert!(parsed.is_err());
                continue;
            }
            assert_eq!(parsed.unwrap().to_string(), text);
        }
        assert_eq!("rdma://host".parse::<Address>().unwrap().to_string(), "rdma://host:7471");
        assert_eq!("rdma://[::1]".parse::<Address>().unwrap().to_string(), "rdma://[::1]:7471");
    }

    #[test]
    fn malformed_addresses_are_refused() {
        for text in
            ["", "a", "shm:", "shm:a b", "rdma:host", "rdma://", "rdma://:1", "rdma://h:", "rdma://h:x"]
        {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
        for text in ["rdma://h:70000", "rdma://[::1", "rdma://[zz]", "rdma://[::1]x", "rdma://a b", "tcp://a"]
        {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn targets_split_at_the_first_slash_after_the_scheme() {
        for text in ["shm:a/b", "shm:a/b/c", "rdma://h:1/b/c", "rdma://[::1]:1/t"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["shm:a", "rdma://h", "shm:a/", "shm:/b", "rdma:///t", "b"] {
            assert!(text.parse::<Target>().is_err(), "{text:?}");
        }
        let error = "shm:a".parse::<Target>().unwrap_err();
        assert_eq!(error.to_string(), "\"shm:a\" names no topic: write shm:a/TOPIC");
    }

    #[test]
    fn a_group_must_be_one() {
        for (address, expected) in [
            ("239.255.7.7", true),
            ("224.0.1.1", true),
            ("224.0.0.251", false),
            ("10.77.0.1", false),
            ("240.0.0.1", false),
            ("255.255.255.255", false),
        ] {
            let group: Ipv4Addr = address.parse().unwrap();
            assert_eq!(Group::new(group).is_ok(), expected, "{address}");
        }
        let error = Group::new(Ipv4Addr::LOCALHOST).unwrap_err();
        assert!(error.to_string().starts_with("127.0.0.1 is no multicast group"), "{error}");
    }
}
