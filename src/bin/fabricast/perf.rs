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
#[cfg(feature = "verbs")]
mod program;
#[cfg(feature = "verbs")]
mod program_line;
mod program_options;
mod records;
mod remote;
mod sleeper;
mod stream;
mod trouble;
mod wake;
mod woken;

use std::io::{self, IsTerminal};

pub(crate) use self::arguments::Arguments;
use self::arguments::Mode;
use self::trouble::told;
use super::failure::{Exit, Failure};
use super::setting::Setting;

/// Runs the measurement.
pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    arguments.check()?;
    if cfg!(feature = "verbs") {
        arguments.check_protection(setting)?;
    }
    if arguments.is_started() {
        setting.measuring_key().inherit();
    }
    if let Some(warning) = unoptimized(cfg!(debug_assertions), io::stderr().is_terminal()) {
        Failure::new(Exit::Done, warning).note();
    }
    run_mode(arguments, setting).map_err(|failure| match (&arguments.connect, failure.exit()) {
        (Some(address), exit @ (Exit::Unreachable | Exit::Gone)) => {
            let mode = arguments.mode.name();
            let sentence = format!("{failure}; start `fabricast perf {mode} --serve` at {address} first");
            Failure::new(exit, sentence)
        }
        _ => failure,
    })
}

/// What to say to a person who measures a build that is not optimized.
fn unoptimized(is_debug: bool, is_read: bool) -> Option<&'static str> {
    (is_debug && is_read)
        .then_some("this build is not optimized, so its figures mean little: cargo build --release")
}

fn run_mode(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    if arguments.mode.is_program() {
        return run_program(arguments, setting);
    }
    let outcome = match &arguments.follow {
        _ if arguments.mode == Mode::Stream => stream::run(arguments, setting),
        _ if arguments.mode == Mode::Wake => wake::run(arguments, setting),
        Some(measuring) => follow::follow(arguments, setting, measuring),
        None if arguments.serve => echo::serve(arguments, setting),
        None => ping::measure(arguments, setting),
    };
    outcome.or_else(told)
}

#[cfg(feature = "verbs")]
fn run_program(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let outcome =
        if arguments.serve { program::serve(arguments) } else { program::measure(arguments, setting) };
    outcome.or_else(told)
}

#[cfg(not(feature = "verbs"))]
fn run_program(arguments: &Arguments, _: &Setting) -> Result<Exit, Failure> {
    let sentence = "needs RDMA verbs, which this build lacks: build with `--features verbs`";
    Err(Failure::usage(format!("perf {} {sentence}", arguments.mode.name())))
}

#[cfg(test)]
mod tests {
    use super::unoptimized;

    #[test]
    fn only_a_person_is_told_that_a_build_is_not_optimized() {
        let told = [(true, true), (true, false), (false, true)].map(|(debug, read)| unoptimized(debug, read));
        assert!(matches!(told, [Some(_), None, None]), "{told:?}");
    }
}
