//! What only some subscribers have.

use std::hash::Hash;

use serde::{Serialize, de::DeserializeOwned};

use super::registered::AsyncError;
use super::subscriber::AsyncSubscriber;
use crate::payload::Payload;
use crate::subscriber::{
    AnySubscriber, Arbitrated, Change, FeedEvent, FeedLines, FeedSubscriber, FeedUpdate, Lines, Persistent,
    ReceiveError, Renewable, Subscriber, TableSubscriber, TopicKind,
};

/// Makes these subscribers ones that tasks await.
macro_rules! into_async {
    ($($(#[$attribute:meta])* [$($generics:tt)*] $subscriber:ty where [$($bounds:tt)*];)*) => {
        $($(#[$attribute])*
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
        })*
    };
}

into_async! {
    [K: TopicKind, T: Payload] Subscriber<K, T> where [];
    [T: Payload] AnySubscriber<T> where [];
    [K, R, V] FeedSubscriber<K, R, V> where [
        K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
        R: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    ];
    [K, R, V] FeedLines<K, R, V> where [
        K: Serialize + DeserializeOwned + Eq + Hash + Clone + Send + 'static,
        R: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    ];
    [S: Renewable] Persistent<S> where [];
    [S: Arbitrated] Lines<S> where [];
}

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
