//! Networks of IP addresses.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::scheme::AddressError;

/// A network, such as `10.0.0.0/24`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network(IpNet);

impl Network {
    /// Whether the address belongs to it. An IPv4 address in the form of an IPv6 address is that IPv4 address.
    #[cfg(any(test, feature = "verbs"))]
    pub(crate) fn contains(self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for Network {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        // Bits behind the prefix are a mistake: another network, or one address, was meant.
        let network = network.ok().filter(|network| network.addr() == network.network());
        network.map(Self).ok_or_else(|| AddressError::Network { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_belong_to_networks_of_their_family() {
        for (network, address, expected) in [
            ("10.0.0.0/24", "10.0.0.255", true),
            ("10.0.0.0/24", "10.0.1.0", false),
            ("10.0.0.0/24", "::ffff:10.0.0.7", true),
            ("10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.8", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "fe80::1", false),
            ("fe80::/10", "fe80::1", true),
            ("::1", "::1", true),
            ("::/0", "10.0.0.1", false),
        ] {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.contains(address.parse().unwrap()), expected, "{network:?} {address}");
        }
    }

    #[test]
    fn malformed_networks_are_refused() {
        for text in
            ["", "10.0.0.0/33", "10.0.0.7/24", "10.0.0/24", "host", "fe80::1/10", "10.0.0.0/", "::/129"]
        {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("{text:?} is not a network")), "{error}");
        }
    }
}
