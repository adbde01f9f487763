//! What all verbs have in common.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use fabricast::{
    Address, Delivery, LogStart, LogSubscriber, Node, NodeBuilder, NodeName, Raw, RdmaConnect,
    SubscriberError, Target,
};
use tracing_subscriber::EnvFilter;

use super::failure::Failure;
use super::subscription::Subscription;

/// How long a node may take to answer before it is called hung.
pub(crate) const ATTACH_PATIENCE: Duration = Duration::from_secs(3);

/// Arguments of all verbs.
#[derive(Debug, Args)]
pub(crate) struct Setting {
    /// Where the nodes of this user find each other; by default FABRICAST_RUNTIME_DIR, or `fabricast` in
    /// XDG_RUNTIME_DIR, or /tmp/fabricast-UID.
    #[arg(long, global = true, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// How RDMA queue pairs are connected when an rdma:// address is dialled.
    #[arg(long, global = true, value_enum, value_name = "HOW", default_value_t = Connect::Manager)]
    rdma_connect: Connect,
    /// Log what happens to standard error; twice for more. RUST_LOG chooses in detail.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

/// How queue pairs are connected, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Connect {
    /// By librdmacm, the connection manager.
    Manager,
    /// By an exchange over TCP.
    Tcp,
    /// By an exchange over TCP, unreliably: for push only.
    TcpUnreliable,
}

impl Setting {
    /// The arguments by which another process of this program gets the same settings.
    pub(crate) fn as_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--rdma-connect".into(), self.connect_name().into()];
        if let Some(path) = &self.runtime_dir {
            arguments.extend(["--runtime-dir".into(), path.into()]);
        }
        arguments
    }

    /// How queue pairs are connected, as the argument says it.
    pub(crate) fn connect_name(&self) -> String {
        self.rdma_connect.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Opens a node: under a name, so that others find it, or without one.
    pub(crate) fn node(&self, name: Option<&NodeName>) -> Result<Node, Failure> {
        Ok(self.builder(name)?.open()?)
    }

    /// Opens a node under a name, that others find by RDMA at this address, too.
    pub(crate) fn rdma_node(&self, name: &NodeName, address: &Address) -> Result<Node, Failure> {
        let builder = self.builder(Some(name))?.rdma(&address.to_string()).map_err(Failure::usage)?;
        Ok(builder.open()?)
    }

    fn builder(&self, name: Option<&NodeName>) -> Result<NodeBuilder, Failure> {
        let connect = match self.rdma_connect {
            Connect::Manager => RdmaConnect::Manager,
            Connect::Tcp => RdmaConnect::Tcp,
            Connect::TcpUnreliable => RdmaConnect::TcpUnreliable,
        };
        let mut builder = Node::builder().rdma_connect(connect);
        if let Some(path) = &self.runtime_dir {
            builder = builder.runtime_dir(path);
        }
        if let Some(name) = name {
            builder = builder.name(name.as_str()).map_err(Failure::usage)?;
        }
        Ok(builder)
    }

    /// Attaches to a topic of any kind and type; where to a log, to begin here.
    pub(crate) fn subscribe_any(
        &self,
        target: &Target,
        delivery: Delivery,
        start: LogStart,
    ) -> Result<Subscription, Failure> {
        let node = self.node(None)?;
        let subscriber = node.any_subscriber::<Raw>(&target.to_string()).delivery(delivery).start(start);
        subscriber.timeout(ATTACH_PATIENCE).open()?.try_into()
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

/// Attaches to a log topic of any type, to begin here.
pub(crate) fn log(
    node: &Node,
    target: &Target,
    delivery: Delivery,
    start: LogStart,
) -> Result<LogSubscriber<Raw>, SubscriberError> {
    let subscriber = node.log_subscriber::<Raw>(&target.to_string()).delivery(delivery).start(start);
    subscriber.timeout(ATTACH_PATIENCE).open()
}

/// A topic's key, or a pattern of keys, that was given for a topic without keys.
pub(crate) fn check_keyless(target: &Target, key: Option<&str>, argument: &str) -> Result<(), Failure> {
    match key {
        None => Ok(()),
        Some(_) => Err(Failure::usage(format!(
            "{target} has no keys, as no topic of kind state or log has: leave {argument} out"
        ))),
    }
}

/// A duration in seconds, as an argument.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
