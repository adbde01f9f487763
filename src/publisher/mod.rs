//! The publisher's public handle, and the node's part of a published topic.

mod claim;
mod copy_budget;
mod error;
mod feed;
mod handle;
mod handover;
mod landing_writer;
mod loan;
mod log;
mod log_landing;
mod log_loan;
mod notices;
mod opening;
mod output;
mod state;
mod state_landing;
mod table;
mod table_landing;
mod topic;

#[cfg(test)]
mod tests;

pub use claim::Claim;
pub(crate) use copy_budget::CopyBudget;
pub use error::{LenLimit, PublishError, PublisherError};
pub use feed::{FeedEventBuilder, FeedPublisher};
pub use handle::{PublishedKind, Publisher};
pub(crate) use handover::{ExposedLanding, Tended};
pub use loan::Loan;
pub use log::LogPublisher;
pub use log_loan::LogLoan;
pub(crate) use notices::NoticeRegistration;
pub(crate) use opening::{Numbering, TopicParts, fresh_incarnation};
pub use state::StatePublisher;
#[cfg(test)]
pub(crate) use table::TableOptions;
pub use table::TablePublisher;
pub(crate) use topic::PublishedTopic;
