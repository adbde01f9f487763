//! Lists of a bounded length in a message.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// At most `LEN_MAX` items.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct List<T, const LEN_MAX: usize>(Vec<T>);

impl<T, const LEN_MAX: usize> List<T, LEN_MAX> {
    /// Takes as many items as fit.
    pub(crate) fn cut(items: impl IntoIterator<Item = T>) -> Self {
        Self(items.into_iter().take(LEN_MAX).collect())
    }

    /// Returns the items.
    pub(crate) fn items(&self) -> &[T] {
        &self.0
    }

    /// Returns the items by value.
    pub(crate) fn into_items(self) -> Vec<T> {
        self.0
    }
}

impl<T, const LEN_MAX: usize> Default for List<T, LEN_MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const LEN_MAX: usize> Deserialize<'de> for List<T, LEN_MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

/// Checks the length of a list before reading its items, so that the peer cannot choose what is allocated.
struct ListVisitor<T, const LEN_MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const LEN_MAX: usize> Visitor<'de> for ListVisitor<T, LEN_MAX> {
    type Value = List<T, LEN_MAX>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "at most {LEN_MAX} items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        if let Some(len) = seq.size_hint() {
            if len > LEN_MAX {
                return Err(A::Error::invalid_length(len, &self));
            }
            items.reserve_exact(len);
        }
        while let Some(item) = seq.next_element()? {
            if items.len() == LEN_MAX {
                return Err(A::Error::invalid_length(items.len() + 1, &self));
            }
            items.push(item);
        }
        Ok(List(items))
    }
}
