//! `fabricast perf`: measures deliveries between two processes, beside a floor in the same run.

mod arguments;
mod asleep;
mod cpus;
mod drain;
mod echo;
mod follow;
mod line;
mod measurement;
mod pattern;
mod ping;
mod probe;
mod process;
mod records;
mod remote;
mod sleeper;
mod stream;
mod trouble;
mod wake;
mod woken;

pub(crate) use self::arguments::Arguments;
use self::arguments::Mode;
use self::trouble::told;
use super::failure::{Exit, Failure};
use super::setting::Setting;

/// Runs the measurement.
pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    arguments.check()?;
    let outcome = match &arguments.follow {
        _ if arguments.mode == Mode::Stream => stream::run(arguments, setting),
        _ if arguments.mode == Mode::Wake => wake::run(arguments, setting),
        Some(measuring) => follow::follow(arguments, setting, measuring),
        None if arguments.serve => echo::serve(arguments, setting),
        None => ping::measure(arguments, setting),
    };
    outcome.or_else(told)
}
