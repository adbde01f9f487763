//! The subscriber's public handles.

mod error;
mod sample;
mod state;
mod subscription;

pub use error::{AttachError, GrantError, ReceiveError, SubscriberError};
pub use sample::{Sample, SampleRef};
pub use state::{StateSubscriber, SubscriberStats};
pub use subscription::Subscribed;
pub(crate) use subscription::{Attachment, End, Granted, Observed, Source, Subscription};
