//! Names and numbers of nodes, topics, incarnations and values.
//!
//! Names from outside are parsed into these types at the boundary, so that inner code need not validate them again.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits;

/// The name of a node: 1 to 64 bytes of ASCII letters, digits, `.`, `_` and `-`, not beginning with a dot.
///
/// ```
/// use fabricast::NodeName;
///
/// let name: NodeName = "market-data".parse()?;
/// assert_eq!(name.as_str(), "market-data");
/// assert!("../etc".parse::<NodeName>().is_err());
/// # Ok::<(), fabricast::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Box<str>);

/// The name of a topic: 1 to 128 bytes of ASCII letters, digits, `.`, `_`, `-` and, between parts, `/`. No part begins with a dot.
///
/// ```
/// use fabricast::TopicName;
///
/// let name: TopicName = "equities/AAPL".parse()?;
/// assert_eq!(name.as_str(), "equities/AAPL");
/// assert!("/AAPL".parse::<TopicName>().is_err());
/// # Ok::<(), fabricast::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TopicName(Box<str>);

/// Why a text is not a node or topic name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name has no characters.
    #[error("a {what} name must not be empty")]
    Empty {
        /// `node` or `topic`.
        what: &'static str,
    },
    /// The name has another character than ASCII letters, digits, `.`, `_` and `-`, or a part (of a topic, between `/`) is empty
    /// or begins with a dot.
    #[error(
        "{name:?} is not a {what} name: use ASCII letters, digits, '.', '_' and '-'{rule}",
        rule = if *what == "topic" { ", with '/' between parts, none of which begins with '.'" } else { ", not '.' first" }
    )]
    Malformed {
        /// `node` or `topic`.
        what: &'static str,
        /// The given text, cut to the longest allowed name.
        name: String,
    },
    /// The name is longer than the limit.
    #[error("a {what} name has at most {max} bytes, this one has {len}")]
    TooLong {
        /// `node` or `topic`.
        what: &'static str,
        /// The given length, bytes.
        len: usize,
        /// The maximum, bytes.
        max: usize,
    },
}

impl NodeName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TopicName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check_len("node", text, limits::NODE_NAME_LEN_MAX)?;
        if is_part(text) { Ok(Self(text.into())) } else { Err(malformed("node", text)) }
    }
}

impl FromStr for TopicName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        check_len("topic", text, limits::TOPIC_NAME_LEN_MAX)?;
        if text.split('/').all(is_part) { Ok(Self(text.into())) } else { Err(malformed("topic", text)) }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl TryFrom<String> for NodeName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl TryFrom<String> for TopicName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl TryFrom<&str> for TopicName {
    type Error = NameError;

    fn try_from(text: &str) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0.into()
    }
}

impl From<TopicName> for String {
    fn from(name: TopicName) -> Self {
        name.0.into()
    }
}

fn check_len(what: &'static str, text: &str, max: usize) -> Result<(), NameError> {
    match text.len() {
        0 => Err(NameError::Empty { what }),
        len if len > max => Err(NameError::TooLong { what, len, max }),
        _ => Ok(()),
    }
}

fn is_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    !text.is_empty() && !text.starts_with('.') && text.bytes().all(allowed)
}

fn malformed(what: &'static str, text: &str) -> NameError {
    NameError::Malformed { what, name: text.chars().take(limits::TOPIC_NAME_LEN_MAX).collect() }
}

/// Names the numbering of a topic's values: those with the same epoch and sequence are the same value.
///
/// A publisher draws a random epoch, so that no value of a restarted publisher passes for one of the old one, unless it
/// [names](crate::PublisherBuilder::epoch) the epoch that it continues, or shares with another publisher.
///
/// It is shown in hexadecimal, and `fabricast pub --epoch` takes it so: an epoch that is a date reads like it if it is written
/// `Epoch::new(0x2026_1123)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epoch(NonZeroU64);

impl Epoch {
    /// Epoch 1, for repositories of a single process.
    pub(crate) const FIRST: Self = Self(NonZeroU64::MIN);

    /// Returns the epoch with this number, or `None` for zero, which is invalid.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Returns the number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// The random number of one opening of a topic, whatever its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Incarnation(NonZeroU64);

impl Incarnation {
    /// Returns the incarnation with this number, or `None` for zero, which is invalid.
    pub(crate) fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Returns what stands for all incarnations of an epoch, where they are not told apart.
    pub(crate) fn any_of(epoch: Epoch) -> Self {
        Self(epoch.0)
    }
}

impl From<Incarnation> for Epoch {
    /// The epoch of an incarnation that names none.
    fn from(incarnation: Incarnation) -> Self {
        Self(incarnation.0)
    }
}

/// The position of a value in its topic: 1 for the first publish of an epoch, and one more for each further one. 0 means that
/// nothing has been published. A publisher that [continues](crate::PublisherBuilder::after) an epoch does not begin with 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sequence(u64);

impl Sequence {
    /// No value: nothing has been published.
    pub const NONE: Self = Self(0);

    /// Returns the sequence with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the sequence of the next publish. At one publish per nanosecond it wraps after 584 years.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Returns the sequence before this one; none before the first.
    pub(crate) const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// Where and when a value was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Meta {
    /// Its position in the topic.
    pub sequence: Sequence,
    /// The epoch of its topic.
    pub epoch: Epoch,
    /// The time by the publisher's clock, nanoseconds since the Unix epoch; 0 if it is not known, as is possible of a removed key.
    pub published_ns: u64,
}

/// The number of a topic inside regions. Every checksum covers it, so that a value cannot pass for one of another topic. It is
/// derived from the name, the same on every host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TopicId(u64);

impl TopicId {
    /// Returns the identifier of this topic name: the 64-bit FNV-1a hash of its bytes (RFC 9923).
    pub fn of(name: &TopicName) -> Self {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self(name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, mix))
    }

    /// Returns the identifier with this number, as read from a region.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// The kind of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// The newest value.
    State,
    /// Ordered records.
    Log,
    /// The newest value of each key.
    Table,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State => out.write_str("state"),
            Self::Log => out.write_str("log"),
            Self::Table => out.write_str("table"),
        }
    }
}

/// The options of a subscription: three numbers whose meaning depends on the kind. Zeros are the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KindOptions(pub(crate) [u64; 3]);

impl From<()> for KindOptions {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// What happens when a subscriber of a log reads more slowly than the publisher publishes. The subscriber chooses it; all but
/// [`Self::Lap`] need the permission of the publisher ([`PublisherBuilder::gating`](crate::PublisherBuilder::gating)). States and
/// tables always conflate: their subscribers receive the newest values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SlowPolicy {
    /// The publisher overwrites the oldest records, and the subscriber reports those that it lost. It cannot hold up anyone.
    #[default]
    Lap,
    /// The publisher waits for the subscriber before it overwrites records that the subscriber has not read, up to the timeout of its
    /// [`Gating`](crate::Gating). So no record is lost while the subscriber's process runs.
    Block,
    /// The publisher does not wait. The subscriber is detached before it would lose a record, and gets
    /// [`ReceiveError::Overtaken`](crate::ReceiveError::Overtaken).
    Disconnect,
}

impl SlowPolicy {
    /// Returns whether the publisher compares the progress of such a subscriber with what it overwrites.
    pub(crate) fn is_critical(self) -> bool {
        self != Self::Lap
    }
}

impl fmt::Display for SlowPolicy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Lap => "lap",
            Self::Block => "block",
            Self::Disconnect => "disconnect",
        })
    }
}

/// How values reach a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Delivery {
    /// The subscriber reads the publisher's repository one-sidedly. The publisher has no work for it.
    Pull,
    /// The publisher writes each value into the subscriber's landing region.
    Push,
}

impl fmt::Display for Delivery {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Pull => "pull",
            Self::Push => "push",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_accept_what_the_docs_say_and_nothing_else() {
        for good in ["a", "md-1", "A.b_c", &"x".repeat(64)] {
            assert_eq!(good.parse::<NodeName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "é", "a\0", &"x".repeat(65)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "equities/US/AAPL", &"x".repeat(128)] {
            assert_eq!(good.parse::<TopicName>().unwrap().as_str(), good);
        }
        for bad in ["", "/", "a/", "/a", "a//b", "a/../b", "a/.b", &"x".repeat(129)] {
            assert!(bad.parse::<TopicName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn topic_ids_differ_where_names_differ() {
        let id = |name: &str| TopicId::of(&name.parse().unwrap());
        assert_eq!(id("AAPL"), id("AAPL"));
        assert_ne!(id("AAPL"), id("IBM"));
        // A test vector of the hash's authors.
        assert_eq!(id("foobar").get(), 0x8594_4171_f739_67e8);
    }
}
