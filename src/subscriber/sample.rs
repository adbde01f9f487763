use std::marker::PhantomData;

use crate::id::Meta;
use crate::payload::{DecodeError, Payload, Pod};
use crate::repository::Verified;

/// A value that was received, with where and when it was published.
///
/// Send and Sync if its value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample<V> {
    /// The value.
    pub value: V,
    /// Where and when it was published.
    pub meta: Meta,
    /// Values replaced before they were read, between the previous sample and this one, except those reported as errors. 0 for a
    /// record of a log, where missing records are errors.
    pub conflated: u64,
}

/// A value that was received and checked, still as bytes, in the subscriber's private memory. Gone at the next
/// receive.
///
/// Send and Sync.
#[derive(Debug)]
#[non_exhaustive]
pub struct SampleRef<'a, T> {
    /// Its bytes, aligned to 8.
    pub bytes: &'a [u8],
    /// Where and when it was published.
    pub meta: Meta,
    /// See [`Sample::conflated`].
    pub conflated: u64,
    payload: PhantomData<fn() -> T>,
}

impl<'a, T> From<Verified<'a>> for SampleRef<'a, T> {
    #[inline]
    fn from(Verified { meta, conflated, payload: bytes }: Verified<'a>) -> Self {
        Self { bytes, meta, conflated, payload: PhantomData }
    }
}

impl<T: Payload> SampleRef<'_, T> {
    /// Decodes the value.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes are not a value of the type. A publisher of the same type never sends such bytes.
    pub fn decode(&self) -> Result<T::Owned, DecodeError> {
        T::decode(self.bytes)
    }
}

impl<'a, V> SampleRef<'a, Pod<V>>
where
    Pod<V>: Payload,
    V: bytemuck::Pod,
{
    /// Returns the value in place.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes do not have the length of the type, or its alignment exceeds 8.
    pub fn value(&self) -> Result<&'a V, DecodeError> {
        Pod::<V>::view(self.bytes)
    }
}
