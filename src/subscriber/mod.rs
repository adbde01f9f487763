//! The subscriber's public handles.

mod any;
mod core;
mod error;
mod handle;
mod listening;
mod log;
mod sample;
mod state;
mod subscription;
#[cfg(test)]
mod tests;

pub use any::AnySubscriber;
pub use error::{AttachError, GrantError, ReceiveError, SubscriberError};
pub(crate) use handle::SubscriberHandle;
pub use handle::{Samples, Subscribed, Subscriber, TopicKind};
pub use listening::NoticePath;
pub(crate) use listening::{Ear, Listening};
pub use log::LogSubscriber;
pub use sample::{Sample, SampleRef};
pub use state::StateSubscriber;
pub(crate) use subscription::{Attachment, End, Granted, Source, Subscription};
