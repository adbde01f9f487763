//! The publisher's public handle, and what the node knows of a topic that is being published.

mod claim;
mod copy_room;
mod error;
mod flight;
mod handle;
mod handover;
mod loan;
mod log;
mod log_landing;
mod notices;
mod opening;
mod output;
mod state;
mod state_landing;
mod topic;

pub use claim::Claim;
pub(crate) use copy_room::CopyRoom;
pub use error::{PublishError, PublisherError};
pub use handle::{PublishedKind, Publisher};
pub(crate) use handover::{ExposedLanding, Tended};
pub use loan::Loan;
pub use log::LogPublisher;
pub(crate) use notices::NoticeListener;
pub(crate) use opening::{TopicParts, fresh_epoch};
pub use state::StatePublisher;
pub(crate) use topic::PublishedTopic;
