use std::marker::PhantomData;

use crate::id::Meta;
use crate::payload::{DecodeError, Payload, Pod};
use crate::repository::Verified;

/// A value that was received, with where and when it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample<V> {
    /// The value.
    pub value: V,
    /// Where and when it was published.
    pub meta: Meta,
    /// Values between the sample before and this one that were replaced before they were read. One that was reported
    /// as an error is not among them. 0 for a record of a log, where missing records are errors.
    pub conflated: u64,
}

/// A value that was received and checked, still as bytes, in the subscriber's private memory. Gone at the next
/// receive.
#[derive(Debug)]
#[non_exhaustive]
pub struct SampleRef<'a, T> {
    /// Its bytes, aligned to 8.
    pub bytes: &'a [u8],
    /// Where and when it was published.
    pub meta: Meta,
    /// As [`Sample::conflated`].
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
