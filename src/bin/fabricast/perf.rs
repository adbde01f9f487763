//! `fabricast perf`: measures deliveries between two processes, beside a floor in the same run.

mod arguments;
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
mod stream;
mod trouble;

pub(crate) use self::arguments::Arguments;
use self::arguments::Mode;
use self::trouble::told;
use super::failure::{Exit, Failure};
use super::setting::Setting;

/// Runs the measurement.
pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let outcome = match &arguments.follow {
        _ if arguments.mode == Mode::Stream => match arguments.slots {
            Some(_) => Err(Failure::usage("a log has a --capacity, not --slots: omit --slots").into()),
            None => stream::run(arguments, setting),
        },
        _ if arguments.stream.is_given() => {
            let sentence =
                "--delivery, --batch, --capacity and --lossy are options of `perf stream`: omit them here";
            Err(Failure::usage(sentence).into())
        }
        Some(measuring) => follow::follow(arguments, setting, measuring),
        None if arguments.serve => echo::serve(arguments, setting),
        None => ping::measure(arguments, setting),
    };
    outcome.or_else(told)
}
