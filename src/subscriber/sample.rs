use std::marker::PhantomData;

use crate::id::{Epoch, Sequence};
use crate::payload::{DecodeError, Payload, Pod};
use crate::repository::log;

/// A value that was received, with where and when it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample<V> {
    /// The value.
    pub value: V,
    /// Its position in the topic.
    pub sequence: Sequence,
    /// The incarnation of the topic.
    pub epoch: Epoch,
    /// When it was published by the publisher's clock, nanoseconds since the Unix epoch.
    pub published_ns: u64,
    /// Values between the sample before and this one that were replaced before they were read. One that was reported
    /// as an error is not among them.
    pub conflated: u64,
}

/// A value that was received and checked, still as bytes, in the subscriber's private memory. Gone at the next
/// receive.
#[derive(Debug)]
#[non_exhaustive]
pub struct SampleRef<'a, T> {
    /// Its bytes, aligned to 8.
    pub bytes: &'a [u8],
    /// Its position in the topic.
    pub sequence: Sequence,
    /// The incarnation of the topic.
    pub epoch: Epoch,
    /// When it was published by the publisher's clock, nanoseconds since the Unix epoch.
    pub published_ns: u64,
    /// Values between the sample before and this one that were replaced before they were read. One that was reported
    /// as an error is not among them.
    pub conflated: u64,
    pub(super) payload: PhantomData<fn() -> T>,
}

/// A record of a log that was received, with where and when it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<V> {
    /// The value.
    pub value: V,
    /// Its position in the topic.
    pub sequence: Sequence,
    /// The incarnation of the topic.
    pub epoch: Epoch,
    /// When it was published by the publisher's clock, nanoseconds since the Unix epoch.
    pub published_ns: u64,
}

/// A record of a log that was received and checked, still as bytes, in the subscriber's private memory. Gone at the next
/// receive.
#[derive(Debug)]
#[non_exhaustive]
pub struct RecordRef<'a, T> {
    /// Its bytes, aligned to 8.
    pub bytes: &'a [u8],
    /// Its position in the topic.
    pub sequence: Sequence,
    /// The incarnation of the topic.
    pub epoch: Epoch,
    /// When it was published by the publisher's clock, nanoseconds since the Unix epoch.
    pub published_ns: u64,
    pub(super) payload: PhantomData<fn() -> T>,
}

impl<'a, T> RecordRef<'a, T> {
    /// The record that a reader of a topic of this incarnation has taken.
    #[inline]
    pub(super) fn of(record: log::Record<'a>, epoch: Epoch) -> Self {
        let log::Record { sequence, published_ns, payload: bytes } = record;
        Self { bytes, sequence, epoch, published_ns, payload: PhantomData }
    }
}

impl<T: Payload> RecordRef<'_, T> {
    /// The value, decoded.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes are not a value of the type, which a publisher of the same type never sends.
    pub fn decode(&self) -> Result<T::Owned, DecodeError> {
        T::decode(self.bytes)
    }
}

impl<'a, V> RecordRef<'a, Pod<V>>
where
    Pod<V>: Payload,
    V: bytemuck::Pod,
{
    /// The value in place.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes do not have the length of the type, or the type is aligned to more than 8.
    pub fn value(&self) -> Result<&'a V, DecodeError> {
        Pod::<V>::view(self.bytes)
    }
}

impl<T: Payload> SampleRef<'_, T> {
    /// The value, decoded.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes are not a value of the type, which a publisher of the same type never sends.
    pub fn decode(&self) -> Result<T::Owned, DecodeError> {
        T::decode(self.bytes)
    }
}

impl<'a, V> SampleRef<'a, Pod<V>>
where
    Pod<V>: Payload,
    V: bytemuck::Pod,
{
    /// The value in place.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes do not have the length of the type, or the type is aligned to more than 8.
    pub fn value(&self) -> Result<&'a V, DecodeError> {
        Pod::<V>::view(self.bytes)
    }
}
