//! What each kind of subscriber receives.

use std::hash::Hash;

use serde::{Serialize, de::DeserializeOwned};

use super::{AsyncError, AsyncSubscriber};
use crate::payload::Payload;
use crate::subscriber::{
    AnySubscriber, Arbitrated, Change, FeedEvent, FeedLines, FeedSubscriber, FeedUpdate, Lines, Persistent,
    ReceiveError, Renewable, Sample, Subscribed, Subscriber, TableSubscriber, TopicKind, Waitable,
};

/// A subscriber whose next value [`AsyncSubscriber::receive`] awaits: every one that is [`Waitable`]. Requires the cargo feature `tokio`. This
/// trait is sealed.
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
pub(crate) trait AsyncReceiveHandle {}

/// Has a kind of subscriber received by `$receive`.
macro_rules! receive {
    ($(#[$attribute:meta])* [$($generics:tt)*] $subscriber:ty where [$($bounds:tt)*], $item:ty, $receive:expr) => {
        impl<$($generics)*> AsyncReceiveHandle for $subscriber where $($bounds)* {}

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

        $(#[$attribute])*
        impl<$($generics)*> $subscriber
        where
            $($bounds)*
        {
            /// Has the runtime of the present task wait for this subscriber: see [`AsyncSubscriber`]. Requires the cargo feature `tokio`.
            ///
            /// # Errors
            ///
            /// Those of [`AsyncSubscriber::new`].
            ///
            /// # Panics
            ///
            /// Like [`AsyncSubscriber::new`].
            #[track_caller]
            pub fn into_async(self) -> Result<AsyncSubscriber<Self>, AsyncError> {
                AsyncSubscriber::new(self)
            }
        }
    };
}

receive!([K: TopicKind, T: Payload] Subscriber<K, T> where [], Sample<T::Owned>, Self::try_receive);
receive!([T: Payload] AnySubscriber<T> where [], Sample<T::Owned>, Self::try_receive);
receive!(
    [K, R, V] FeedSubscriber<K, R, V> where [
        K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
        R: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    ],
    FeedUpdate<K, R, V>,
    Self::try_update
);
receive!(
    [K, R, V] FeedLines<K, R, V> where [
        K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
        R: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    ],
    FeedUpdate<K, R, V>,
    Self::try_update
);
receive!(
    [S: AsyncReceive + Renewable] Persistent<S> where [],
    S::Item,
    |persistent: &mut Self| persistent.receive_by(S::try_item)
);
receive!(
    #[expect(private_bounds, reason = "no other item names what a line receives")]
    [S] Lines<S> where [S: Subscribed + Arbitrated<Item = <S as Subscribed>::Value>],
    Sample<S::Value>,
    Self::try_receive
);

/// Awaits changes, and events, of these subscribers.
macro_rules! kinds {
    ($(changes of $table:ident),*; $(events of $feed:ident),*) => {
        $(impl<K, V> AsyncSubscriber<kinds!($table TableSubscriber<K, V>)>
        where
            K: Serialize + DeserializeOwned + Send + 'static,
            V: Serialize + DeserializeOwned + Send + 'static,
        {
            /// Receives the next change of a key, and waits until there is one, like [`Self::receive`].
            ///
            /// # Errors
            ///
            /// Those of [`Self::receive`].
            pub async fn change(&mut self) -> Result<Change<K, V>, ReceiveError> {
                self.receive_with(<kinds!($table TableSubscriber<K, V>)>::try_change).await
            }
        })*
        $(impl<K, R, V> AsyncSubscriber<kinds!($feed FeedSubscriber<K, R, V>)>
        where
            K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
            R: Serialize + DeserializeOwned + Send + 'static,
            V: Serialize + DeserializeOwned + Send + 'static,
        {
            /// Receives the next update, and waits until there is one: the same as [`Self::receive`].
            ///
            /// # Errors
            ///
            /// Those of [`Self::receive`].
            pub async fn update(&mut self) -> Result<FeedUpdate<K, R, V>, ReceiveError> {
                self.receive().await
            }

            /// Receives the next event, and waits until all of it is there. Parts of an event that have arrived before stay in the
            /// subscriber when the future is dropped.
            ///
            /// # Errors
            ///
            /// Those of [`Self::receive`].
            pub async fn event(&mut self) -> Result<FeedEvent<K, R, V>, ReceiveError> {
                self.receive_with(<kinds!($feed FeedSubscriber<K, R, V>)>::try_event).await
            }
        })*
    };
    (Itself $subscriber:ty) => { $subscriber };
    (FeedLines FeedSubscriber<K, R, V>) => { FeedLines<K, R, V> };
    ($outer:ident $subscriber:ty) => { $outer<$subscriber> };
}

kinds!(
    changes of Itself, changes of Persistent, changes of Lines;
    events of Itself, events of Persistent, events of FeedLines
);
