//! What all verbs have in common.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use fabricast::{
    Address, AddressError, AnySubscriber, Delivery, LogStart, LogSubscriber, Node, NodeBuilder, NodeName,
    Raw, RdmaConnect, SubscriberError, Target,
};
use tracing_subscriber::EnvFilter;

use super::failure::{Exit, Failure};

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

    /// Opens a node under this name, that others find by RDMA too if there is an address for that.
    pub(crate) fn named_node(&self, name: &str, rdma: Option<&Address>) -> Result<Node, Failure> {
        let name = name.parse().map_err(Failure::usage)?;
        rdma.map_or_else(|| self.node(Some(&name)), |address| self.rdma_node(&name, address))
    }

    /// Opens a node to look at this address. Nothing is made for it: where there is no runtime directory, there is no node.
    pub(crate) fn reader(&self, address: &Address) -> Result<Node, Failure> {
        let place = self.place();
        if address.is_local() && is_absent(&place) {
            let sentence = format!("no node listens at {address}: {}", no_nodes(&place));
            return Err(Failure::new(Exit::Unreachable, sentence));
        }
        self.node(None)
    }

    /// The runtime directory.
    pub(crate) fn place(&self) -> PathBuf {
        let of = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        let of_user = || PathBuf::from(format!("/tmp/fabricast-{}", rustix::process::getuid().as_raw()));
        let of_session = || of("XDG_RUNTIME_DIR").map_or_else(of_user, |base| base.join("fabricast"));
        let given = self.runtime_dir.clone().or_else(|| of("FABRICAST_RUNTIME_DIR"));
        given.unwrap_or_else(of_session)
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
    ) -> Result<AnySubscriber<Raw>, Failure> {
        self.check_delivery(&target.address, delivery)?;
        let node = self.reader(&target.address)?;
        tracing::info!(target: "fabricast", topic = %target, ?delivery, "subscribing");
        let subscriber = node.any_subscriber::<Raw>(target).delivery(delivery).start(start);
        let opened = subscriber.timeout(ATTACH_PATIENCE).open();
        let subscriber = opened.map_err(|error| Failure::from(error).at(&target.address))?;
        let (topic, type_name) = (subscriber.topic(), subscriber.schema().type_name());
        tracing::info!(target: "fabricast", %topic, type_name, "subscribed");
        Ok(subscriber)
    }

    /// Refuses a delivery that the connection does not have.
    pub(crate) fn check_delivery(&self, address: &Address, delivery: Delivery) -> Result<(), Failure> {
        if (self.rdma_connect, delivery) == (Connect::TcpUnreliable, Delivery::Pull)
            && address.scheme() == "rdma"
        {
            let instead =
                "omit --rdma-connect, or use `fabricast watch --delivery push` or `fabricast tail --push`";
            let sentence = format!("an unreliable connection supports push only: {instead}");
            return Err(Failure::usage(sentence));
        }
        Ok(())
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
    let subscriber = node.log_subscriber::<Raw>(target).delivery(delivery).start(start);
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

/// A topic's address, as an argument: of a node of this host its name is enough. Every other address has a colon.
pub(crate) fn target(text: &str) -> Result<Target, AddressError> {
    match text.parse() {
        Err(AddressError::Scheme { .. }) if text.contains('/') && !text.contains(':') => {
            format!("shm:{text}").parse()
        }
        target => target,
    }
}

/// Whether nothing is at this path. Where that cannot be found out, opening it says why.
pub(crate) fn is_absent(place: &Path) -> bool {
    place.try_exists().is_ok_and(|exists| !exists)
}

/// That no node was found in this directory.
pub(crate) fn no_nodes(place: &Path) -> String {
    let user = rustix::process::geteuid().as_raw();
    let instead = "--runtime-dir or FABRICAST_RUNTIME_DIR chooses another";
    format!("no nodes in {} (user {user}); {instead}", place.display())
}
