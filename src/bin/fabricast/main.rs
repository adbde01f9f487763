//! The `fabricast` program: arguments and output over the library's public interface, one file per command.

mod arrivals;
mod clock;
mod failure;
mod feed;
mod get;
mod group;
mod hz;
mod info;
mod interrupt;
mod keyring;
mod keys;
mod lines;
mod list;
mod measuring_key;
mod news;
mod output;
mod perf;
mod place;
mod printer;
mod publish;
mod pulses;
mod sessions;
mod setting;
mod shape;
mod source;
mod subscribers;
mod subscription;
mod tail;
mod timestamps;
mod told;
mod units;
mod value;
mod watch;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use self::failure::{Exit, Failure};
use self::setting::Setting;

/// The longest line of help.
const HELP_WIDTH: usize = 100;
/// The version and the features built in.
const VERSION: &str = if cfg!(feature = "verbs") {
    concat!(env!("CARGO_PKG_VERSION"), " +verbs")
} else {
    env!("CARGO_PKG_VERSION")
};
const ABOUT: &str =
    "Publish, watch and inspect topics in shared memory on this host, and over RDMA on others.";
const AFTER_HELP: &str = "\
Addresses:
  shm:NODE               a node of this host and user; NODE is short for it
  rdma://HOST[:PORT]     a node of another host, port 7471 by default; needs a build with the
                         feature verbs
  ADDRESS/TOPIC          a topic of a node; NODE/TOPIC is short for shm:NODE/TOPIC

Times and sizes have the units that the program prints: 250ms, 5s, 1m30s, and 64k or 64KiB (65,536
bytes), 64kB (64,000). Without a unit a time is in seconds, a size in bytes.

Time stamps in values are shown with their distance from the publish time: `ts_event -312.4us` is
312.4 us before it. They are fields of 64-bit integers, also optional or inside other structs,
enums and tuples, but not in lists, arrays or maps, with one of these names: ts, time, timestamp,
ts_*, *_ts, *_time, *_timestamp, *_ns, *_us, *_ms. They count nanoseconds since the Unix epoch,
and micro- or milliseconds if the name ends in _us or _ms. A SystemTime of the standard library is
one with any name. A value outside of the years 2000 to 2099 is not a time stamp. At most 16
fields of a type are searched.

A feed is a log of events, `shm:NODE/FEED`, and a table, `shm:NODE/FEED/table`. `tail`, `watch`
and `hz` of the log show records of all keys, or with --key of some; `get` with a KEY shows its
value in the table.

Exit codes:
  0  done
  1  no result: nothing published, nothing arrived in time or before the topic ended, no such key,
     a damaged value, or a rejected input line
  2  usage, also a name of a node that is in use
  3  no such node or topic, or it cannot be reached; `watch`, `hz` and `tail --follow` wait for it,
     unless --until-end is given
  4  refused by the publisher, for example because it demands another key
  5  the publisher is hung
  6  the publisher is gone
  7  local failure: out of file descriptors, memory or disk space, a limit of this process, no
     RDMA device, or an unusable runtime directory, file in it, key file or repository file
  130  interrupted before the answer, or by a second Ctrl-C. The first Ctrl-C ends `watch`, `tail`,
       `hz` and `pub` cleanly

Examples:
  fabricast list                                  the nodes and topics of this host
  fabricast get shm:quotes/EURUSD                 the newest value
  fabricast get shm:quotes/fx EURUSD              the newest value of a key of a table
  fabricast watch shm:quotes/EURUSD --json        each new value, one JSON object per line
  fabricast tail shm:exchange/trades --follow     the last records of a log, and new ones
  fabricast tail exchange/orders --key AAPL       the last records of a key of a feed
  fabricast hz shm:quotes/EURUSD                  how often a topic is published
  date | fabricast pub shm:me/now --linger 1m     publish a line for a minute
  fabricast perf push --size 64,65536 --floor     what a round trip costs on this host";

/// The arguments.
#[derive(Debug, Parser)]
#[command(name = "fabricast", version = VERSION, about = ABOUT, after_help = AFTER_HELP, max_term_width = HELP_WIDTH)]
struct Cli {
    #[command(flatten)]
    setting: Setting,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List nodes and their topics.
    List(list::Arguments),
    /// Show the headers of a topic.
    Info(info::Arguments),
    /// Print the newest value of a topic, or of a key of a table.
    Get(get::Arguments),
    /// Print each new value of a topic, or each changed key of a table.
    Watch(watch::Arguments),
    /// Print the records of a log, including earlier ones, or the keys of a table in the order of their changes.
    Tail(tail::Arguments),
    /// Measure how often and how evenly a topic is published.
    Hz(hz::Arguments),
    /// Publish the lines of standard input.
    Pub(publish::Arguments),
    /// Measure deliveries between two processes.
    Perf(perf::Arguments),
    /// Print a new key, as a line of a file for --key-file.
    Key(keyring::Arguments),
}

fn main() -> ExitCode {
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let outcome = match parsed {
        Ok(cli) => run(&cli),
        Err(error) => Err(Failure::of_arguments(error)),
    };
    let exit = outcome.unwrap_or_else(|failure| match failure {
        Failure::Arguments(error) => show(&error),
        failure => {
            failure.note();
            failure.exit()
        }
    });
    ExitCode::from(exit.code())
}

/// The command line. Options take negative numbers, so that each says itself why it refuses them.
fn command() -> clap::Command {
    let accept = |arg: clap::Arg| {
        let is_option = arg.get_action().takes_values() && !arg.is_positional();
        if is_option { arg.allow_negative_numbers(true) } else { arg }
    };
    Cli::command().mut_args(accept).mut_subcommands(|verb| verb.mut_args(accept))
}

/// Prints help, the version, or an error of the arguments.
fn show(error: &clap::Error) -> Exit {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    match printed.map_err(Failure::from) {
        // Standard error may be closed.
        Err(failure) if !error.use_stderr() => {
            failure.note();
            failure.exit()
        }
        _ if error.use_stderr() => Exit::Usage,
        _ => Exit::Done,
    }
}

fn run(cli: &Cli) -> Result<Exit, Failure> {
    let setting = &cli.setting;
    setting.start_log();
    match &cli.verb {
        Verb::List(arguments) => list::run(arguments, setting),
        Verb::Info(arguments) => info::run(arguments, setting),
        Verb::Get(arguments) => get::run(arguments, setting),
        Verb::Watch(arguments) => watch::run(arguments, setting),
        Verb::Tail(arguments) => tail::run(arguments, setting),
        Verb::Hz(arguments) => hz::run(arguments, setting),
        Verb::Pub(arguments) => publish::run(arguments, setting),
        Verb::Perf(arguments) => perf::run(arguments, setting),
        Verb::Key(arguments) => keyring::run(arguments, setting),
    }
}

#[cfg(test)]
mod tests {
    use super::{HELP_WIDTH, command};

    #[test]
    fn arguments_are_consistent() {
        command().debug_assert();
    }

    /// The texts behind the options are wrapped by hand, which shows if it is done again.
    #[test]
    fn help_fits_its_width() {
        let mut cli = command().term_width(HELP_WIDTH);
        cli.build();
        let verbs: Vec<_> = cli.get_subcommands().filter(|verb| verb.get_name() != "help").cloned().collect();
        assert!(verbs.len() >= 8);
        for mut command in verbs.into_iter().chain([cli]) {
            let (name, help) = (command.get_name().to_owned(), command.render_long_help().to_string());
            let too_long = help.lines().find(|line| line.chars().count() > HELP_WIDTH);
            assert_eq!(too_long, None, "{name}");
            let after = command.get_after_help().expect("examples").to_string();
            assert!(help.contains(&after), "the end of the help of {name} was wrapped again:\n{help}");
        }
    }
}
