//! The subscriber's public handles.

mod any;
mod error;
mod listening;
mod log;
mod sample;
mod state;
mod subscription;
#[cfg(test)]
mod tests;

pub use any::AnySubscriber;
pub use error::{AttachError, GrantError, ReceiveError, SubscriberError};
pub use listening::NoticePath;
pub(crate) use listening::{Ear, Listening};
pub use log::{LogSubscriber, LogSubscriberStats, Records};
pub use sample::{Record, RecordRef, Sample, SampleRef};
pub use state::{StateSubscriber, SubscriberStats};
#[cfg(test)]
pub(crate) use subscription::Observed;
pub use subscription::Subscribed;
pub(crate) use subscription::{Attachment, End, Granted, Source, Subscription};
