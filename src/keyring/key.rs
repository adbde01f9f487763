use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::id::{NodeName, TopicName};
use crate::limits;

/// Bytes of a secret.
pub(super) const SECRET_LEN: usize = 32;
/// Distinguishes the identifier of a key from the tags that it makes.
const ID_LABEL: &[u8] = b"fabricast key id\0\x01";

/// What a peer that proves a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Right {
    /// To list topics, and to subscribe to them.
    Read,
    /// To dial a listener of this node, and to write to the subscriber that it accepts.
    Publish,
}

/// The name of a key in the keyring of one node. The other node may call it differently.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeyName(Box<str>);

/// Which key a tag was made with. It says nothing about the secret, and is the same for all who hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct KeyId(pub(crate) [u8; 8]);

/// A secret that nodes share. It is overwritten when it is dropped, and never shown.
#[derive(Clone)]
pub(super) struct Secret(Zeroizing<[u8; SECRET_LEN]>);

/// The topics that a key covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topics {
    /// All.
    All,
    /// Those below these prefixes.
    Below(Vec<TopicName>),
}

/// A key of a keyring.
#[derive(Debug)]
pub(crate) struct Key {
    pub(super) name: KeyName,
    pub(super) id: KeyId,
    pub(super) secret: Secret,
    pub(super) reads: bool,
    pub(super) publishes: bool,
    pub(super) topics: Topics,
    /// The peers that may prove it; `None` for any.
    pub(super) nodes: Option<Vec<NodeName>>,
}

/// The keys of a keyring at one time, in the order of their lines.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(super) all: Vec<Arc<Key>>,
}

/// What a peer may do, by the keys that it has proven.
#[derive(Clone, Debug)]
pub(crate) enum Authority {
    /// Everything: nothing was to be proven.
    Anyone,
    /// What these keys permit.
    Proven(Vec<Arc<Key>>),
}

impl KeyName {
    /// Checks a name.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let fits = (1..=limits::KEY_NAME_LEN_MAX).contains(&text.len());
        (fits && text.bytes().all(allowed)).then(|| Self(text.into()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, out)
    }
}

impl Secret {
    pub(super) fn new(bytes: Zeroizing<[u8; SECRET_LEN]>) -> Self {
        Self(bytes)
    }

    /// The digits of a line, for the fuzz targets.
    #[cfg(any(test, fuzzing))]
    pub(super) fn digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Begins a tag.
    pub(super) fn mac(&self) -> Hmac<Sha256> {
        Hmac::new_from_slice(self.0.as_slice())
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
    }

    /// Returns the identifier of the key with this secret.
    pub(super) fn id(&self) -> KeyId {
        let mut mac = self.mac();
        mac.update(ID_LABEL);
        let digest: [u8; SECRET_LEN] = mac.finalize().into_bytes().into();
        let [a, b, c, d, e, f, g, h, ..] = digest;
        KeyId([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret")
    }
}

impl Topics {
    /// Whether the topic is one of these prefixes, or lies below one.
    fn covers(&self, topic: &TopicName) -> bool {
        let below = |prefix: &TopicName| {
            let rest = topic.as_str().strip_prefix(prefix.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self {
            Self::All => true,
            Self::Below(prefixes) => prefixes.iter().any(below),
        }
    }
}

impl Key {
    /// Its name in this keyring.
    pub(crate) fn name(&self) -> &KeyName {
        &self.name
    }

    /// Its identifier.
    pub(crate) fn id(&self) -> KeyId {
        self.id
    }

    /// Whether it gives this right for some topic.
    pub(crate) fn gives(&self, right: Right) -> bool {
        match right {
            Right::Read => self.reads,
            Right::Publish => self.publishes,
        }
    }

    fn permits(&self, right: Right, topic: &TopicName) -> bool {
        self.gives(right) && self.topics.covers(topic)
    }

    /// Whether a peer of this name may prove it.
    pub(crate) fn is_for(&self, node: &NodeName) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains(node))
    }
}

impl Keys {
    /// The key with this identifier.
    pub(crate) fn with(&self, id: KeyId) -> Option<&Arc<Key>> {
        self.all.iter().find(|key| key.id == id)
    }

    /// The keys that give this right: those that a node proves when it needs it.
    pub(crate) fn giving(&self, right: Right) -> impl Iterator<Item = &Arc<Key>> {
        self.all.iter().filter(move |key| key.gives(right)).take(limits::KEYS_PROVEN_MAX)
    }
}

impl Authority {
    /// Whether it permits this.
    pub(crate) fn permits(&self, right: Right, topic: &TopicName) -> bool {
        match self {
            Self::Anyone => true,
            Self::Proven(keys) => keys.iter().any(|key| key.permits(right, topic)),
        }
    }

    /// The first proven key that permits this; `None` if nothing was to be proven, or no key does.
    pub(crate) fn key_for(&self, right: Right, topic: &TopicName) -> Option<&KeyName> {
        match self {
            Self::Anyone => None,
            Self::Proven(keys) => keys.iter().find(|key| key.permits(right, topic)).map(|key| key.name()),
        }
    }
}
