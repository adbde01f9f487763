//! What each kind of subscriber receives.

use std::hash::Hash;

use serde::{Serialize, de::DeserializeOwned};

use crate::payload::Payload;
use crate::subscriber::{
    AnySubscriber, Arbitrated, FeedLines, FeedSubscriber, FeedUpdate, Lines, Persistent, ReceiveError,
    Renewable, Sample, Subscribed, Subscriber, TopicKind, Waitable,
};

/// A subscriber whose next value [`AsyncSubscriber::receive`](crate::AsyncSubscriber::receive) awaits: every one that is [`Waitable`].
/// Requires the cargo feature `tokio`. This trait is sealed.
#[expect(private_bounds, reason = "the trait is sealed by it")]
pub trait AsyncReceive: AsyncReceiveHandle + Waitable {
    /// What it receives: a [`Sample`], or of a feed a [`FeedUpdate`].
    type Item;

    /// Receives the next one, if there is one.
    ///
    /// # Errors
    ///
    /// Those of `try_receive`, or `try_update`, of the subscriber.
    fn try_item(&mut self) -> Result<Option<Self::Item>, ReceiveError>;
}

/// Seals [`AsyncReceive`].
pub(crate) trait AsyncReceiveHandle {
    /// Whether it receives again after [`ReceiveError::Overtaken`].
    const OUTLASTS: bool;
}

/// Has a kind of subscriber, which outlasts publishers or does not, received by `$receive`.
macro_rules! receive {
    ($outlasts:literal, [$($generics:tt)*] $subscriber:ty where [$($bounds:tt)*], $item:ty, $receive:expr) => {
        impl<$($generics)*> AsyncReceiveHandle for $subscriber
        where
            $($bounds)*
        {
            const OUTLASTS: bool = $outlasts;
        }

        impl<$($generics)*> AsyncReceive for $subscriber
        where
            $($bounds)*
        {
            type Item = $item;

            #[inline]
            fn try_item(&mut self) -> Result<Option<$item>, ReceiveError> {
                $receive(self)
            }
        }
    };
}

receive!(false, [K: TopicKind, T: Payload] Subscriber<K, T> where [], Sample<T::Owned>, Self::try_receive);
receive!(false, [T: Payload] AnySubscriber<T> where [], Sample<T::Owned>, Self::try_receive);
receive!(
    false, [K, R, V] FeedSubscriber<K, R, V> where [
        K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
        R: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    ],
    FeedUpdate<K, R, V>,
    Self::try_update
);
receive!(
    true, [K, R, V] FeedLines<K, R, V> where [
        K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
        R: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    ],
    FeedUpdate<K, R, V>,
    Self::try_update
);
receive!(
    true, [S: AsyncReceive + Renewable] Persistent<S> where [],
    S::Item,
    |persistent: &mut Self| persistent.receive_by(S::try_item)
);
receive!(
    true, [S] Lines<S> where [S: Subscribed + Arbitrated<Item = <S as Subscribed>::Value>],
    Sample<S::Value>,
    Self::try_receive
);
