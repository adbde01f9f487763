//! Publishers of encoded lines.

use std::sync::OnceLock;
use std::time::Duration;

use fabricast::{
    DecodeError, EncodeError, Encoding, FinishError, LogPublisher, Payload, PublishError, Raw, Schema,
    SchemaError, Sequence, StatePublisher, limits,
};

use super::lines::Entry;

/// Publishes encoded values.
pub(super) trait Publisher: Send {
    /// Publishes values; to a log or a table with one commit. Returns those that are refused.
    fn publish(&mut self, entries: &[Entry]) -> Result<Vec<Refused>, PublishError>;

    /// How many subscribers are attached.
    fn subscribers(&self) -> u64;

    /// Ends the topic, and waits until its subscribers have received everything.
    fn finish(self: Box<Self>) -> Result<Sequence, FinishError>;
}

/// How long subscribers may take to receive the last values.
pub(super) const FINISH: Duration = Duration::from_nanos(limits::FINISH_NS_MAX);

/// A line that the publisher refused.
pub(super) struct Refused {
    pub(super) number: u64,
    pub(super) why: String,
}

impl<P: Payload<Borrowed = [u8]>> Publisher for StatePublisher<P> {
    fn publish(&mut self, entries: &[Entry]) -> Result<Vec<Refused>, PublishError> {
        entries.iter().try_for_each(|entry| Self::publish(self, &entry.value).map(drop))?;
        Ok(Vec::new())
    }

    fn subscribers(&self) -> u64 {
        self.pull_subscribers() + self.push_subscribers()
    }

    fn finish(self: Box<Self>) -> Result<Sequence, FinishError> {
        Self::finish(*self, FINISH)
    }
}

impl<P: Payload<Borrowed = [u8]>> Publisher for LogPublisher<P> {
    fn publish(&mut self, entries: &[Entry]) -> Result<Vec<Refused>, PublishError> {
        self.publish_batch(entries.iter().map(|entry| entry.value.as_slice()))?;
        Ok(Vec::new())
    }

    fn subscribers(&self) -> u64 {
        self.pull_subscribers() + self.push_subscribers()
    }

    fn finish(self: Box<Self>) -> Result<Sequence, FinishError> {
        Self::finish(*self, FINISH)
    }
}

/// Encoded values of the type that [`SCHEMA`] describes.
pub(super) enum Encoded {}

/// The schema of this process's only topic, unless its values are raw bytes.
pub(super) static SCHEMA: OnceLock<Schema> = OnceLock::new();

impl Payload for Encoded {
    type Borrowed = [u8];
    type Owned = Vec<u8>;
    const ENCODING: Encoding = Encoding::Bincode;

    fn as_bytes(value: &[u8]) -> Option<&[u8]> {
        Some(value)
    }

    fn encode(value: &[u8], _: &Schema, out: &mut [u8]) -> Result<usize, EncodeError> {
        let max = out.len();
        out.get_mut(..value.len()).ok_or(EncodeError::TooLong { max })?.copy_from_slice(value);
        Ok(value.len())
    }

    fn decode(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        Raw::decode(bytes)
    }

    fn fixed_len() -> Option<usize> {
        None
    }

    fn schema() -> Result<Schema, SchemaError> {
        SCHEMA.get().map_or_else(String::schema, |schema| Ok(schema.clone()))
    }
}
