//! What all verbs have in common.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use fabricast::{Address, Delivery, Node, NodeName, Raw, StateSubscriber, Target};
use tracing_subscriber::EnvFilter;

use super::failure::Failure;

/// How long a node may take to answer before it is called hung.
const ATTACH_PATIENCE: Duration = Duration::from_secs(3);

/// Arguments of all verbs.
#[derive(Debug, Args)]
pub(crate) struct Setting {
    /// Where the nodes of this user find each other; by default FABRICAST_RUNTIME_DIR, or `fabricast` in
    /// XDG_RUNTIME_DIR, or /tmp/fabricast-UID.
    #[arg(long, global = true, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Log what happens to standard error; twice for more. RUST_LOG chooses in detail.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

impl Setting {
    /// The arguments by which another process of this program gets the same runtime directory.
    pub(crate) fn as_arguments(&self) -> Vec<OsString> {
        match &self.runtime_dir {
            Some(path) => vec!["--runtime-dir".into(), path.into()],
            None => Vec::new(),
        }
    }

    /// Opens a node: under a name, so that others find it, or without one.
    pub(crate) fn node(&self, name: Option<&NodeName>) -> Result<Node, Failure> {
        let mut builder = Node::builder();
        if let Some(path) = &self.runtime_dir {
            builder = builder.runtime_dir(path);
        }
        if let Some(name) = name {
            builder = builder.name(name.as_str()).map_err(Failure::usage)?;
        }
        Ok(builder.open()?)
    }

    /// Attaches to a topic of any type.
    pub(crate) fn subscribe(
        &self,
        target: &Target,
        delivery: Delivery,
    ) -> Result<StateSubscriber<Raw>, Failure> {
        check_fabric(&target.address)?;
        let node = self.node(None)?;
        let subscriber = node.state_subscriber::<Raw>(&target.to_string()).delivery(delivery);
        Ok(subscriber.timeout(ATTACH_PATIENCE).open()?)
    }

    /// Starts to write the library's log, if it was asked for.
    pub(crate) fn start_log(&self) {
        let directives = match self.verbose {
            0 => return,
            1 => "info",
            2 => "debug",
            _ => "trace",
        };
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(directives));
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
}

/// Whether this build can reach addresses of this kind.
pub(crate) fn check_fabric(address: &Address) -> Result<(), Failure> {
    match address {
        Address::Rdma { .. } => Err(Failure::without_verbs(address)),
        _ => Ok(()),
    }
}

/// A topic's key, or a pattern of keys, that was given for a topic without keys.
pub(crate) fn check_keyless(target: &Target, key: Option<&str>, argument: &str) -> Result<(), Failure> {
    match key {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!(
            "{target} is a state topic, which holds one value and has no keys: leave {argument} out"
        ))),
    }
}

/// A duration in seconds, as an argument.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
