//! A provider's description of its addresses.

use std::net::Ipv4Addr;

use crate::id::NameError;

/// The addresses of one provider.
#[derive(Debug)]
pub(crate) struct Scheme {
    /// The prefix, up to the provider's own part.
    pub(crate) prefix: &'static str,
    /// The form to show to users.
    pub(crate) form: &'static str,
    /// Whether the addresses name nodes of this host. Others have a host and a port.
    pub(crate) is_local: bool,
    /// Whether this build includes the provider.
    pub(crate) is_built: bool,
    /// What to check if no node listens.
    pub(crate) if_absent: &'static str,
    /// Why a loopback address rarely works.
    pub(crate) of_loopback: &'static str,
    /// Converts the provider's own part to canonical form.
    pub(crate) canonical: fn(&str) -> Result<String, AddressError>,
}

/// An error of parsing an address or a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The scheme is unknown.
    #[error("{text:?} is not an address: write {forms}")]
    Scheme {
        /// The text.
        text: String,
        /// The valid forms.
        forms: String,
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
    /// The address is not of a multicast group that notices can be sent to.
    #[error(
        "{group} is not a multicast group open to all senders: use one of 239.255.0.0 to 239.255.255.255"
    )]
    Group {
        /// The address.
        group: Ipv4Addr,
    },
    /// The text is not a network.
    #[error(
        "{text:?} is not a network: write one such as 10.0.0.0/24 or fd00::/8, without bits behind the prefix, or an IP address"
    )]
    Network {
        /// The text.
        text: String,
    },
    /// A name in it is malformed.
    #[error(transparent)]
    Name(#[from] NameError),
}
