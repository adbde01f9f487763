//! Tools for measurements only: the floor for comparison, and the parts of a publish and a receive. Exempt from semantic
//! versioning.

mod control;
mod floor;
mod parts;
mod ring;
mod wake_floor;

#[cfg(feature = "verbs")]
pub use crate::fabric::programs::{
    EndReport, Figures, Program, ProgramError, ProgramListener, ProgramPlan, ProgramReport, Served,
    run_program,
};
pub use crate::repository::SubscriberStats;
pub use crate::repository::log::LogStart;
pub use control::Control;
pub use floor::Floor;
pub use parts::{LogParts, PartsError, RepositoryParts};
pub use ring::Ring;
pub use wake_floor::{BareWake, WakeFloor};
