//! The subscriber's public handles.

mod error;
mod sample;
mod state;

pub use error::{AttachError, GrantError, ReceiveError, SubscriberError};
pub use sample::{Sample, SampleRef};
pub(crate) use state::{Attachment, End, Granted, Source};
pub use state::{StateSubscriber, SubscriberStats};
