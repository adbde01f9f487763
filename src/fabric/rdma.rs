//! RDMA options that are available without the provider, too: addresses, connection methods, multicast groups.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::scheme::{AddressError, Scheme};

/// The default port.
const PORT: u16 = 7471;

/// The scheme of addresses of nodes reached over RDMA.
pub(crate) const SCHEME: Scheme = Scheme {
    prefix: "rdma://",
    form: "rdma://HOST[:PORT]",
    is_local: false,
    is_built: cfg!(feature = "verbs"),
    if_absent: "check host and port, and that its program serves RDMA there",
    of_loopback: "is rarely the address of an RDMA device: use the address of an RDMA interface (`rdma link` and \
                  `ip address` show them)",
    canonical: |text| {
        canonical(text).ok_or_else(|| AddressError::Host { text: format!("{}{text}", SCHEME.prefix) })
    },
};

/// How nodes connect their queue pairs over RDMA verbs. Both ends of a connection use the same method; a listening node
/// answers all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RdmaConnect {
    /// librdmacm, the connection manager: reliable connections.
    #[default]
    Manager,
    /// An exchange of queue pair numbers and addresses over TCP: reliable connections.
    Tcp,
    /// An exchange over TCP: unreliable connections, push delivery only. A value lost on the wire is replaced by the next one.
    TcpUnreliable,
}

/// The address of a multicast group outside the ranges reserved for routing protocols. Routers forward it if configured to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group(Ipv4Addr);

fn canonical(text: &str) -> Option<String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, port.strip_prefix(':').or_else(|| port.is_empty().then_some(""))?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'%');
    if host.is_empty() || !host.bytes().all(plain) || (text.ends_with(':') && port.is_empty()) {
        return None;
    }
    let port = if port.is_empty() { PORT } else { port.parse().ok()? };
    Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

impl Group {
    /// Returns the group of this address, if any host may send to it.
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(error.to_string().starts_with("127.0.0.1"), "{error}");
    }
}
