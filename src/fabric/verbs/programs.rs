//! The classic programs of RDMA, in which two ends exchange blocks of one size over a single queue pair: ping-pongs by one-sided
//! operations and by messages, and blasts. They show what the device does without topics, nodes or sessions.
//!
//! A [`meeting`] connects the two ends, by librdmacm ([`managed`]) or by an exchange over TCP ([`exchanged`]). Each [`end`] then sends
//! the other the address and the key of its memory, in a message over the queue pair ([`wire`]), and does its part of the [`plan`]:
//! [`one_sided`], [`token`], [`acknowledged`], [`messages`] or [`blast`]. One end drives: it counts and times. When it has finished,
//! both report what they have seen, again by messages.
//!
//! Busy waits check the connection from time to time ([`watch`]): a peer that is gone ends them.

mod acknowledged;
mod blast;
mod end;
mod error;
mod exchanged;
mod figures;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzed;
mod managed;
mod meeting;
mod messages;
mod meter;
mod one_sided;
mod outbox;
mod pattern;
mod places;
mod plan;
mod resources;
mod rounds;
mod run;
#[cfg(test)]
mod tests;
mod time_limit;
mod token;
mod watch;
mod wire;

pub use error::ProgramError;
pub use figures::Figures;
pub use meeting::{ProgramListener, Served};
pub use plan::{Program, ProgramPlan};
pub use run::{EndReport, ProgramReport};

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::fabric::{Address, RdmaConnect};

/// Runs a program against the process that listens at this address, which must answer within `wait`. Ends early when `stop` becomes
/// readable.
///
/// # Errors
///
/// [`ProgramError`] when the plan does not fit the program or the device, the peer cannot be reached, or it is gone before the end.
pub fn run_program(
    plan: &ProgramPlan,
    (address, connect): (&Address, RdmaConnect),
    wait: Duration,
    stop: BorrowedFd<'_>,
) -> Result<ProgramReport, ProgramError> {
    plan.check()?;
    let (resources, watch) = meeting::dial(plan, (address, connect), wait, stop)?;
    tracing::info!(target: "fabricast", program = ?plan.program, %address, "connected");
    run::drive(plan, resources, watch)
}
