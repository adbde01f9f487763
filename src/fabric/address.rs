//! Addresses of nodes and topics: `shm:NODE` and `rdma://HOST[:PORT]`, either followed by `/TOPIC`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use super::scheme::{AddressError, Scheme};
use super::{rdma, shm};
use crate::id::{NodeName, TopicName};

/// The providers' schemes.
const SCHEMES: &[&Scheme] = &[&shm::address::SCHEME, &rdma::SCHEME];

/// The address of a node.
///
/// An address is a scheme followed by a part that the provider of that scheme defines: `shm:NODE` for a node of this host,
/// `rdma://HOST[:PORT]` for a node reached over RDMA. It is stored, printed and compared in canonical form. Cloning does not
/// allocate.
///
/// ```
/// use fabricast::Address;
///
/// let address: Address = "shm:market-data".parse()?;
/// assert!(address.is_local());
/// let address: Address = "rdma://10.0.0.1".parse()?;
/// assert_eq!(address.to_string(), "rdma://10.0.0.1:7471");
/// # Ok::<(), fabricast::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address(Arc<str>);

/// The address of a topic: a node's address, `/` and the topic's name.
///
/// ```
/// use fabricast::Target;
///
/// let target: Target = "shm:market-data/equities/AAPL".parse()?;
/// assert_eq!(target.topic.as_str(), "equities/AAPL");
/// # Ok::<(), fabricast::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "the syntax of a target has exactly these two parts")]
pub struct Target {
    /// The node.
    pub address: Address,
    /// The topic.
    pub topic: TopicName,
}

impl Address {
    /// Creates the address of a node of this host.
    pub fn shm(node: &NodeName) -> Self {
        Self(format!("{}{node}", shm::address::SCHEME.prefix).into())
    }

    /// Creates the address of a node reached over RDMA.
    pub fn rdma(at: SocketAddr) -> Self {
        let at = SocketAddr::new(at.ip(), at.port());
        Self(format!("{}{at}", rdma::SCHEME.prefix).into())
    }

    /// Returns the scheme: `shm` or `rdma`.
    pub fn scheme(&self) -> &str {
        self.0.split_once(':').map_or("", |(scheme, _)| scheme)
    }

    /// Returns whether the node is on this host and so listed by [`crate::Node::nodes`].
    pub fn is_local(&self) -> bool {
        self.provider().is_some_and(|(scheme, _)| scheme.is_local)
    }

    /// Returns the node's name, if the address contains one.
    pub fn node(&self) -> Option<NodeName> {
        let (_, node) = self.provider().filter(|(scheme, _)| scheme.is_local)?;
        node.parse().ok()
    }

    /// Returns the host, if the address contains one; an IPv6 address is without brackets.
    pub fn host(&self) -> Option<&str> {
        self.host_and_port().map(|(host, _)| host.trim_matches(['[', ']']))
    }

    /// Returns the port, if the address contains one.
    pub fn port(&self) -> Option<u16> {
        self.host_and_port().and_then(|(_, port)| port.parse().ok())
    }

    /// Returns a hint for a failed connection, if the address is a loopback address, which few RDMA devices own.
    pub fn advice(&self) -> Option<String> {
        let host = self.host()?;
        let is_loopback = host.parse().map_or(host == "localhost", |address: IpAddr| address.is_loopback());
        let (scheme, _) = self.provider().filter(|_| is_loopback)?;
        Some(format!("{host} {}", scheme.of_loopback))
    }

    /// What to check if no node listens.
    pub(super) fn if_absent(&self) -> &'static str {
        self.provider().map_or("", |(scheme, _)| scheme.if_absent)
    }

    /// Whether this build includes its provider.
    pub(super) fn is_built(&self) -> bool {
        self.provider().is_some_and(|(scheme, _)| scheme.is_built)
    }

    /// The provider's part, if the address has this scheme.
    pub(crate) fn part(&self, scheme: &Scheme) -> Option<&str> {
        self.0.strip_prefix(scheme.prefix)
    }

    fn provider(&self) -> Option<(&'static Scheme, &str)> {
        SCHEMES.iter().find_map(|scheme| Some((*scheme, self.part(scheme)?)))
    }

    fn host_and_port(&self) -> Option<(&str, &str)> {
        self.provider().filter(|(scheme, _)| !scheme.is_local)?.1.rsplit_once(':')
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        for scheme in SCHEMES {
            if let Some(part) = text.strip_prefix(scheme.prefix) {
                return Ok(Self(format!("{}{}", scheme.prefix, (scheme.canonical)(part)?).into()));
            }
        }
        let forms: Vec<&str> = SCHEMES.iter().map(|scheme| scheme.form).collect();
        Err(AddressError::Scheme { text: text.to_owned(), forms: forms.join(" or ") })
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

/// Converts from text of any kind, and clones from a reference.
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
                // The standard parser rejects zones; such an address is refused, so the zone is not silently dropped.
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
        let told = |text: &str| text.parse::<Address>().unwrap_err().to_string();
        assert_eq!(told("tcp://a"), "\"tcp://a\" is not an address: write shm:NODE or rdma://HOST[:PORT]");
        assert!(told("rdma://h:x").starts_with("\"rdma://h:x\" is not an RDMA address: "));
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
    fn what_is_made_and_what_is_parsed_is_the_same() {
        let shm = Address::shm(&"a".parse().unwrap());
        assert_eq!(shm, "shm:a".parse().unwrap());
        assert_eq!((shm.scheme(), shm.is_local(), shm.port()), ("shm", true, None));
        assert_eq!((shm.node(), shm.host()), ("a".parse().ok(), None));
        let rdma = Address::rdma("[::1]:7471".parse().unwrap());
        assert_eq!(rdma, "rdma://[::1]".parse().unwrap());
        assert_eq!(
            (rdma.scheme(), rdma.is_local(), rdma.node(), rdma.port()),
            ("rdma", false, None, Some(7471))
        );
        assert_eq!((rdma.host(), rdma.part(&shm::address::SCHEME)), (Some("::1"), None));
        assert_ne!(shm, rdma);
    }

    #[test]
    fn a_loopback_address_has_advice() {
        let advice = |text: &str| text.parse::<Address>().unwrap().advice();
        let expected =
            "127.0.0.1 is rarely the address of an RDMA device: use the address of an RDMA interface";
        assert!(advice("rdma://127.0.0.1").is_some_and(|advice| advice.starts_with(expected)));
        assert!(advice("rdma://localhost:1").is_some() && advice("rdma://[::1]").is_some());
        assert_eq!((advice("rdma://10.0.0.9"), advice("shm:localhost")), (None, None));
    }
}
