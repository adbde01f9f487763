//! The publisher's public handle, and the node's part of a published topic.

mod claim;
mod copy_budget;
mod ending;
mod error;
mod feed;
mod gate;
mod gating;
mod handle;
mod handover;
mod landing_writer;
mod loan;
mod log;
mod log_landing;
mod log_loan;
mod memory;
#[cfg(loom)]
#[expect(clippy::unwrap_used, reason = "a model fails by a panic, as a test does")]
pub mod models;
mod notices;
mod opening;
mod output;
mod progress_slot;
mod sleepers;
mod slow_subscriber;
mod state;
mod state_landing;
mod subscribers;
mod table;
mod table_landing;
mod topic;

#[cfg(test)]
mod tests;

pub use claim::Claim;
pub(crate) use copy_budget::CopyBudget;
pub use error::{FinishError, LenLimit, PublishError, PublisherError, TryPublishError};
pub use feed::{FeedEventBuilder, FeedPublisher};
pub use gating::Gating;
pub use handle::{PublishedKind, Publisher};
pub(crate) use handover::{ExposedLanding, Tended};
pub use loan::Loan;
#[cfg(test)]
pub(crate) use log::LogOptions;
pub use log::LogPublisher;
pub use log_loan::LogLoan;
pub(crate) use memory::{Place, TopicMemory};
pub(crate) use notices::{NoticeRegistration, WakeRegistration};
pub(crate) use opening::{Numbering, TopicParts, fresh_incarnation};
pub(crate) use progress_slot::ProgressSlot;
pub use slow_subscriber::SlowSubscriber;
pub use state::StatePublisher;
pub(crate) use subscribers::{NotAdmitted, Standing, TopicSubscriber};
#[cfg(test)]
pub(crate) use table::TableOptions;
pub use table::TablePublisher;
pub(crate) use topic::{PublishedTopic, Unfinished};
