//! What measurements need and applications do not: the floor that figures are compared with, and the parts of a
//! publish and a receive on their own. Not covered by the version promise.

mod control;
mod floor;
mod parts;
mod ring;

pub use crate::repository::SubscriberStats;
pub use crate::repository::log::LogStart;
pub use control::Control;
pub use floor::Floor;
pub use parts::{LogParts, PartsError, RepositoryParts};
pub use ring::Ring;
