//! What a provider says of its addresses.

use std::net::Ipv4Addr;

use crate::id::NameError;

/// The addresses of one provider.
#[derive(Debug)]
pub(crate) struct Scheme {
    /// What they begin with, up to the provider's own part.
    pub(crate) prefix: &'static str,
    /// How to write one.
    pub(crate) form: &'static str,
    /// Whether they are of nodes of this host, by name. Others have a host and a port.
    pub(crate) is_local: bool,
    /// Whether this program was built with the provider.
    pub(crate) is_built: bool,
    /// What to check where no node listens.
    pub(crate) if_absent: &'static str,
    /// What is wrong with a loopback address.
    pub(crate) of_loopback: &'static str,
    /// The canonical form of the provider's own part.
    pub(crate) canonical: fn(&str) -> Result<String, AddressError>,
}

/// Why a text is not an address or a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It begins with no known scheme.
    #[error("{text:?} is not an address: write {forms}")]
    Scheme {
        /// The text.
        text: String,
        /// How addresses are written.
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
