use crate::fabric::PeerAddress;
use crate::id::NodeName;
use crate::keyring::KeyName;

/// The node at the other end of a session, as it introduced itself, and what shows that it is that node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its name, which it says. Other nodes may say the same, unless its key is for nodes of this name only.
    pub node: NodeName,
    /// Its process ID on its host, which it says.
    pub process: u32,
    /// Its host, which it says; may be empty.
    pub host: String,
    /// Where it is, as the operating system or the network shows it.
    pub address: PeerAddress,
    /// The key that it has proven, and that covers the topic in question, by its name in this node's keyring. `None` if nothing was to be
    /// proven.
    pub key: Option<KeyName>,
}
