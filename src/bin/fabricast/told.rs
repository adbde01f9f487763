//! What a command that publishes says while it runs.

use std::io::Write;

use fabricast::{Event, EventSink};

use super::output::printable;

/// Prints what the user has to know on standard error, and writes all events to the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told;

impl EventSink for Told {
    fn event(&self, event: &Event) {
        event.log();
        let sentence = match event {
            Event::Trouble { what } => what.clone(),
            Event::NotListening { address, reason } => {
                format!("no peer reaches {address} any more: {reason}; waiting for its device")
            }
            Event::ListensAgain { address } => format!("peers reach {address} again"),
            Event::NodeFailed { reason } => format!("the node serves nothing any more: {reason}"),
            _ => return,
        };
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr().lock(), "fabricast: {}", printable(&sentence));
    }
}
