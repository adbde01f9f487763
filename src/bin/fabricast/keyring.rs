//! `fabricast key`: a new line of a keyring.

use std::io::Write;

use clap::{Args, ValueEnum};
use fabricast::{KeyLineError, Keyring, KeyringError};

use super::failure::{Exit, Failure};
use super::setting::Setting;

const EXAMPLES: &str = "\
Examples:
  (umask 077; fabricast key desk --topics md >> keys)     a key for subscribers of md and md/...
  (umask 077; fabricast key engine --rights publish >> keys)
  fabricast pub --key-file keys rdma://10.0.0.1/md
  fabricast watch --key-file keys rdma://10.0.0.1/md      with the same line in its own file

Replace a key without a gap: add the new line at both ends, then remove the old one. A new key is in
force at the next session; sessions of a removed key end within a second.";

/// The arguments of `fabricast key`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What this node calls the key.
    name: String,
    /// What a peer that proves the key may do: one of these, or both, as in read,publish.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "read", value_name = "RIGHTS")]
    rights: Vec<RightName>,
    /// The topics that it covers: prefixes separated by commas, or * for all.
    #[arg(long, default_value = "*", value_name = "PREFIXES")]
    topics: String,
}

/// A right, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RightName {
    /// To list topics and subscribe to them.
    Read,
    /// To dial listeners of this node.
    Publish,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    setting.check_unused(
        "`fabricast key` prints a line; append it to a file, as in `fabricast key NAME >> FILE`",
    )?;
    let Arguments { name, rights, topics } = arguments;
    let reads = rights.contains(&RightName::Read);
    let rights = match (reads, rights.contains(&RightName::Publish)) {
        (true, true) => "read,publish",
        (true, false) => "read",
        (false, _) => "publish",
    };
    let secret = Keyring::new_secret();
    let secret = secret.map_err(|error| Failure::new(Exit::Local, format!("no random numbers: {error}")))?;
    let is_field =
        |text: &str| !text.is_empty() && !text.contains(|it: char| it.is_whitespace() || it == '#');
    if !is_field(name) {
        return Err(Failure::usage(format!("{name:?} is not a name of a key: {}", KeyLineError::Name)));
    }
    if !is_field(topics) {
        return Err(Failure::usage(format!("{topics:?} are not topics: {}", KeyLineError::Topics)));
    }
    let line = format!("{name} {rights} {topics} {secret}");
    Keyring::from_text(&line).map_err(|error| match error {
        KeyringError::Line { source, .. } => Failure::usage(source),
        error => Failure::usage(error),
    })?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(Exit::Done)
}
