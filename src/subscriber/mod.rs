//! The subscriber's public handles.

mod any;
mod arrivals;
#[cfg(feature = "tokio")]
mod asynchronous;
mod core;
mod deadline;
mod error;
mod feed;
mod file;
mod handle;
mod idle;
mod iterate;
mod lines;
mod log;
mod notices;
mod offer;
mod persistent;
mod progress;
mod publisher_clock;
mod sample;
mod state;
mod subscription;
mod table;
#[cfg(test)]
mod tests;
mod view;
mod wait_set;
mod waiter;

pub use any::AnySubscriber;
pub(crate) use arrivals::ArrivalSubscription;
#[cfg(feature = "tokio")]
pub(crate) use asynchronous::Registered;
#[cfg(feature = "tokio")]
pub use asynchronous::{AsyncError, AsyncReceive, AsyncSubscriber, AsyncWaitSet};
pub(crate) use deadline::Deadline;
pub use error::{AttachError, GrantError, ReceiveError, SubscriberError};
pub(crate) use feed::FeedLine;
pub use feed::{FeedEvent, FeedLines, FeedSubscriber, FeedUpdate, RecordUpdate, ValueUpdate};
pub use file::RepositoryFile;
pub use handle::{Renewable, Samples, Subscribed, Subscriber, TopicKind};
pub(crate) use handle::{RenewableHandle, SubscriberHandle};
pub use idle::IdleStrategy;
pub use lines::{Arbitrated, LineReport, Lines};
pub(crate) use lines::{LineSet, LineSettings, LineSource};
pub use log::LogSubscriber;
pub use notices::{InlineValues, NoticePath};
pub(crate) use notices::{NoticeSource, NoticeSubscription};
pub use persistent::Persistent;
pub(crate) use persistent::Seek;
pub(crate) use progress::ProgressReport;
pub use publisher_clock::PublisherClock;
pub use sample::{Sample, SampleRef};
pub use state::StateSubscriber;
pub(crate) use subscription::{Attachment, Granted, Position, Source, Subscription, TopicEnd};
pub use table::{Change, Changes, Snapshot, SnapshotEntry, TableSubscriber};
pub use view::{LogChunks, LogView};
pub(crate) use wait_set::WaitableHandle;
pub use wait_set::{WaitSet, Waitable};
pub(crate) use waiter::{Condition, Membership, Waiter, Watched};
