use std::error::Error;
use std::io;
use std::time::Duration;

use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;

/// A failure inside a measurement.
pub(super) type Trouble = Box<dyn Error>;

/// An end without a message: nothing is wrong, or another process has reported it.
#[derive(Debug, thiserror::Error)]
#[error("ended with exit code {}", self.0.code())]
pub(super) struct Quiet(pub(super) Exit);

/// How the program reports it.
pub(super) fn told(trouble: Trouble) -> Result<Exit, Failure> {
    let trouble = match trouble.downcast::<Quiet>() {
        Ok(quiet) => return Ok(quiet.0),
        Err(trouble) => trouble,
    };
    let trouble = match trouble.downcast::<Failure>() {
        Ok(failure) => return Err(*failure),
        Err(trouble) => trouble,
    };
    Err(match trouble.downcast::<io::Error>() {
        Ok(error) => (*error).into(),
        Err(trouble) => Failure::of(Exit::No, &*trouble),
    })
}

/// Waits for `duration`; fails when interrupted.
pub(super) fn wait(interrupt: &Interrupt, duration: Duration) -> Result<(), Trouble> {
    if interrupt.pause(duration) { Err(Quiet(Exit::Interrupted).into()) } else { Ok(()) }
}
