//! Publish/subscribe over one-sided memory access.
//!
//! A publisher keeps the newest value of a topic, the newest value of each key of a table, or the records of a log as far back as
//! its ring reaches, in a memory region; a feed is a log and a table with one sequence. Subscribers copy them out and check the copy
//! (pull), or expose a landing region that the publisher writes after each publish (push). Neither ever waits for the other. Bytes
//! move through shared memory between processes of one host, and by RDMA, also between hosts, with the feature `verbs`.
//!
//! # From the top down
//!
//! - [`Node`] is one process's end: it has a name, publishes topics, subscribes to topics of other nodes, and lists the topics
//!   available.
//! - [`StatePublisher`] publishes the values of a topic; a [`Loan`] lets it write a large one in place.
//! - [`StateSubscriber`] receives the newest value as a [`Sample`], or undecoded as a [`SampleRef`]. It counts what it missed
//!   ([`SubscriberStats`]).
//! - [`LogPublisher`] publishes the records of a log, one by one or many with one commit. [`LogSubscriber`] receives each record
//!   in order, from a [`LogStart`] on, and reports exactly which ones it missed. Its [`Samples`] are an iterator.
//! - [`TablePublisher`] publishes the newest value of each key, one by one or many with one commit. [`TableSubscriber`] receives the
//!   keys that changed ([`Changes`]), of all or of those it asked for, and reads one key, or a [`Snapshot`] of one commit.
//! - [`FeedPublisher`] publishes events: records of keys in a log, and the values of these keys in a table, with one sequence.
//!   Whenever a [`FeedSubscriber`] joins, it begins with the values as of one event, and continues with every record after it
//!   ([`FeedUpdate`], [`FeedEvent`]). After a loss it receives the values of the keys that lost records.
//! - A [`Persistent`] subscriber outlives its publisher: it finds the next one, and continues.
//! - [`Lines`] and [`FeedLines`] receive from several publishers of the same values: each value once, as long as one of them has it. A
//!   [`LineReport`] says which is ahead, and what each lost.
//! - Notices let a subscriber sleep until a value is published: enable them with `notices` of its builder. [`NoticePath`] says
//!   how the subscriber is notified, [`NoticeCounts`] what has arrived.
//! - A [`WaitSet`] waits for any number of subscribers, listeners and event queues on one thread. An [`IdleStrategy`] says how long a
//!   wait polls before it sleeps.
//! - A [`Listener`] reverses the connection: publishers dial the subscriber's node with [`Node::dial_subscriber`].
//! - [`Payload`] defines how a type becomes bytes: any serde type, [`Pod`] for plain old data, [`Raw`] for bytes. A [`Schema`]
//!   made from the type travels with the topic, so programs that do not know the type can decode it.
//! - [`Event`]s report sessions, subscribers and failures. They go to an [`EventSink`], by default the log; an
//!   [`EventQueue`] holds them for a program that waits for them.
//! - Each operation has its own error type; [`Error`] holds any of them, for `main`.
//! - [`limits`] lists the bounds that programs need to know.
//!
//! The layers below are control sessions, repositories, byte layouts, the fabric and regions; none of them knows the layers above
//! it. `ARCHITECTURE.md` in the repository maps them.
//!
//! `docs/guides.md` in the repository has short guides on waiting, restarts, lines, tables, feeds, threads, payloads and schemas, and
//! memory per topic.
//!
//! # Features
//!
//! - `cli`, by default: the command `fabricast`. A library leaves it out with `default-features = false`.
//! - `verbs`: RDMA. Needs libibverbs and librdmacm to build.
//! - `tokio`: subscribers whose values tasks of [tokio](https://docs.rs/tokio) await, without a thread for each: `AsyncSubscriber`, which
//!   is also a `Stream`, `AsyncWaitSet`, `AsyncListener`, and `open_async` of the builders.
//!
//! # Example
//!
//! ```
//! use fabricast::{Node, ReceiveError};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct Quote { bid: f64, ask: f64 }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let node = Node::builder().name("quotes")?;
//! # let node = node.runtime_dir(dir.path());
//! let node = node.open()?;
//! let mut publisher = node.state_publisher::<Quote>("EURUSD").open()?;
//!
//! // Usually in another process:
//! let mut subscriber = node.state_subscriber::<Quote>("shm:quotes/EURUSD").push().open()?;
//! assert!(subscriber.try_receive()?.is_none());
//!
//! publisher.publish(&Quote { bid: 1.0840, ask: 1.0842 })?;
//! publisher.publish(&Quote { bid: 1.0841, ask: 1.0843 })?;
//! drop(publisher);
//!
//! // The newest value; the one before was replaced. Then the end.
//! let timeout = std::time::Duration::from_secs(5);
//! let sample = subscriber.receive_timeout(timeout)?.ok_or("nothing in time")?;
//! assert_eq!((sample.meta.sequence.get(), sample.value), (2, Quote { bid: 1.0841, ask: 1.0843 }));
//! let end = loop {
//!     if let Err(error) = subscriber.receive_timeout(timeout) {
//!         break error;
//!     }
//! };
//! assert!(matches!(end, ReceiveError::Ended { published } if published.get() == 2));
//! # Ok(())
//! # }
//! ```

#![cfg_attr(loom, allow(dead_code, unused_imports, reason = "a model uses a part of the crate"))]

#[cfg(target_endian = "big")]
compile_error!("fabricast regions are little-endian words; big-endian hosts are not supported");

mod chain;
mod checksum;
mod clock;
mod control;
mod error;
mod event;
mod fabric;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod id;
mod inspect;
mod keyring;
mod layout;
pub mod limits;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod measure;
mod memory;
mod metrics;
#[cfg(loom)]
#[doc(hidden)]
pub mod models;
mod node;
mod notice;
mod payload;
mod publisher;
mod random;
mod repository;
mod subscriber;
mod sync;
#[cfg(test)]
mod testkit;

pub use chain::ErrorChain;
pub use control::{ControlError, Peer, RefuseReason, Unproven};
pub use error::Error;
pub use event::{Event, EventSink};
#[cfg(feature = "verbs")]
pub use fabric::verbs::VerbsError;
pub use fabric::{
    Address, AddressError, FabricError, NoPlace, NodeListing, NotAdmitted, PeerAddress, RdmaConnect, Target,
    default_runtime_dir,
};
pub use id::{Delivery, Epoch, Kind, Meta, NameError, NodeName, Sequence, SlowPolicy, TopicId, TopicName};
pub use inspect::{GeometryReport, InspectError, Liveness, TopicReport};
pub use keyring::{KeyLineError, KeyName, Keyring, KeyringError, Right};
pub use layout::header::HeaderError;
pub use layout::{Fact, GeometryError};
pub use memory::{FileHolder, MemoryError, RepositoryFileError};
pub use metrics::{Counter, Unit};
#[cfg(feature = "tokio")]
pub use node::AsyncListener;
pub use node::{
    Admission, DialError, Directory, DirectoryError, EventQueue, FeedLinesBuilder, FeedPublisherBuilder,
    FeedSubscriberBuilder, LinesBuilder, Listener, ListenerBuilder, Node, NodeBuilder, NodeError, PeerLimits,
    PersistentBuilder, PersistentFeedBuilder, ProgressListing, PublisherBuilder, SubscriberBuilder,
    SubscriberList, SubscriberListing, TopicListing,
};
pub use notice::NoticeCounts;
pub use payload::{
    DecodeError, Decoded, EncodeError, Encoding, InPlace, Payload, Pod, Raw, Schema, SchemaError,
};
pub use publisher::{
    Claim, FeedEventBuilder, FeedPublisher, FinishError, Gating, LenLimit, Loan, LogLoan, LogPublisher,
    PublishError, PublishedKind, Publisher, PublisherError, SlowSubscriber, StatePublisher, TablePublisher,
    TryPublishError,
};
pub use repository::SubscriberStats;
pub use repository::log::{LogStart, LogTopic};
pub use repository::state::StateTopic;
pub use repository::table::TableTopic;
pub use subscriber::{
    AnySubscriber, Arbitrated, AttachError, Change, Changes, FeedEvent, FeedLines, FeedSubscriber,
    FeedUpdate, GrantError, IdleStrategy, InlineValues, LineReport, Lines, LogChunks, LogSubscriber, LogView,
    NoticePath, Persistent, PublisherClock, ReceiveError, RecordUpdate, Renewable, RepositoryFile, Sample,
    SampleRef, Samples, Snapshot, SnapshotEntry, StateSubscriber, Subscribed, Subscriber, SubscriberError,
    TableSubscriber, TopicKind, ValueUpdate, WaitSet, Waitable,
};
#[cfg(feature = "tokio")]
pub use subscriber::{AsyncError, AsyncReceive, AsyncSubscriber, AsyncWaitSet};

/// Compiles the examples of README.md.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles the examples of docs/guides.md.
#[cfg(doctest)]
#[doc = include_str!("../docs/guides.md")]
struct Guides;
