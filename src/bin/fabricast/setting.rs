//! The settings of all commands.

use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use fabricast::{
    Address, AddressError, AnySubscriber, Delivery, EventSink, Keyring, LogStart, Node, NodeBuilder,
    NodeName, PeerLimits, Raw, RdmaConnect, Subscribed, SubscriberBuilder, SubscriberError, Target,
    default_runtime_dir, limits,
};
use tracing_subscriber::EnvFilter;

use super::failure::{Exit, Failure};
use super::group::{group, obstacle};
use super::lines::FollowedLines;
use super::measuring_key::MeasuringKey;
use super::pulses::Pulses;
use super::source::Source;
use super::told::Told;
use super::units::{size_in, some_time};

/// How long a node may take to answer before it counts as hung.
pub(crate) const ATTACH_TIMEOUT: Duration = Duration::from_secs(3);

/// The largest repository that the command maps, and landing region that it allocates, unless an argument says otherwise, bytes: a
/// person waits for its one topic.
pub(crate) const REGION_LEN_MAX: usize = 1 << 30;

/// What begins the name of a file in place of an address.
pub(crate) const FILE: &str = "file:";

/// Arguments of all commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Setting {
    /// Where the nodes of this user find each other; by default FABRICAST_RUNTIME_DIR, or `fabricast` in XDG_RUNTIME_DIR, or
    /// /tmp/fabricast-UID.
    #[arg(long, global = true, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// How to connect RDMA queue pairs to an rdma:// address [default: manager; programs of unreliable queue pairs: tcp]
    #[arg(long, global = true, value_enum, value_name = "HOW")]
    rdma_connect: Option<Connect>,
    /// The keys to prove to other nodes, and to demand of them: see `fabricast key`.
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "insecure")]
    key_file: Option<PathBuf>,
    /// Listen at an rdma:// address without keys: anyone on that network can read the topics.
    #[arg(long, global = true)]
    insecure: bool,
    /// The networks whose hosts may connect to an rdma:// address of this command, such as 10.0.0.0/24 or one address; repeat for more,
    /// or separate by commas. All may by default.
    #[arg(long, global = true, value_name = "NETWORK", value_delimiter = ',')]
    allow: Vec<String>,
    /// The group of this host whose members may connect over shared memory, too: a name, or a number.
    #[arg(long, global = true, value_name = "GROUP", value_parser = group)]
    shm_group: Option<u32>,
    /// Log events to standard error; repeat for more. RUST_LOG selects in detail.
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = None::<&str>, display_order = 900)]
    verbose: u8,
    /// The key of one measurement.
    #[arg(skip)]
    measuring_key: MeasuringKey,
}

/// How to connect queue pairs, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Connect {
    /// By librdmacm, the connection manager.
    Manager,
    /// By an exchange over TCP.
    Tcp,
    /// By an exchange over TCP, unreliably: for push only.
    TcpUnreliable,
}

impl From<Connect> for RdmaConnect {
    fn from(connect: Connect) -> Self {
        match connect {
            Connect::Manager => Self::Manager,
            Connect::Tcp => Self::Tcp,
            Connect::TcpUnreliable => Self::TcpUnreliable,
        }
    }
}

/// What to do when no values come, as arguments.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct EndArguments {
    /// End when the topic ends or its publisher is gone, instead of waiting for the next publisher.
    #[arg(long)]
    until_end: bool,
    /// Report when no value has come for this time: seconds, or with a unit, as in 500ms.
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    deadline: Option<Duration>,
    #[command(flatten)]
    region: RegionArguments,
}

/// How much memory of a topic a command accepts, as arguments.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct RegionArguments {
    /// Accept a topic of up to this many bytes of memory, which is mapped, or by push allocated, here [default: 1G, at most 16G].
    #[arg(long, value_name = "SIZE", value_parser = size_in::<usize>(1..=limits::REGION_LEN_MAX as u64))]
    region_len_max: Option<usize>,
}

impl RegionArguments {
    /// The most bytes.
    pub(crate) fn len_max(self) -> usize {
        self.region_len_max.unwrap_or(REGION_LEN_MAX)
    }
}

/// How a topic is followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Following {
    pub(crate) delivery: Delivery,
    /// Where a log begins.
    pub(crate) start: LogStart,
    /// Until the end, or over restarts of the publisher.
    pub(crate) until_end: bool,
    /// After which time without a value that is reported.
    pub(crate) deadline: Option<Duration>,
    /// Whether `fabricast info` shows how far it is, if the topic is a log.
    pub(crate) progress: bool,
    /// The most bytes of its memory.
    pub(crate) region_len_max: usize,
}

impl EndArguments {
    /// How they follow a topic from its next record on.
    pub(crate) fn following(self, delivery: Delivery) -> Following {
        let Self { until_end, deadline, region } = self;
        let (start, region_len_max) = (LogStart::Newest, region.len_max());
        Following { delivery, start, until_end, deadline, progress: true, region_len_max }
    }
}

/// Further publishers of the same values, as arguments.
#[derive(Debug, Args)]
pub(crate) struct LineArguments {
    /// Another publisher of the same values, of the same epoch; repeat for more. Each value is received once, from whichever publisher
    /// has it first, as long as one of them runs.
    #[arg(long = "line", value_name = "TARGET", value_parser = node_target)]
    others: Vec<Target>,
}

/// A topic, and further publishers of the same values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followable<'a> {
    pub(crate) first: &'a Target,
    pub(crate) others: &'a [Target],
}

impl LineArguments {
    /// Whether the topic has no other publishers.
    pub(crate) fn is_empty(&self) -> bool {
        self.others.is_empty()
    }

    /// The topic of this publisher and of the others, which are all different.
    pub(crate) fn of<'a>(&'a self, first: &'a Target) -> Result<Followable<'a>, Failure> {
        let others = self.others.as_slice();
        let is_before =
            |index, target| std::iter::once(first).chain(others.iter().take(index)).any(|it| it == target);
        match others.iter().enumerate().find(|(index, target)| is_before(*index, *target)) {
            Some((_, target)) => Err(SubscriberError::SameLine { target: target.clone() }.into()),
            None => Ok(Followable { first, others }),
        }
    }
}

/// How values travel, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// Read from the publisher's repository.
    Pull,
    /// Written here by the publisher.
    Push,
}

impl From<Way> for Delivery {
    fn from(way: Way) -> Self {
        match way {
            Way::Pull => Self::Pull,
            Way::Push => Self::Push,
        }
    }
}

impl Following {
    /// A builder with these settings.
    fn builder<'a>(&self, node: &'a Node, target: &Target) -> SubscriberBuilder<'a, AnySubscriber<Raw>> {
        let Self { delivery, start, deadline, progress, region_len_max, .. } = *self;
        let builder = node.any_subscriber::<Raw>(target).delivery(delivery).start(start);
        let mut builder = builder.timeout(ATTACH_TIMEOUT).region_len_max(region_len_max);
        if progress {
            builder = builder.progress();
        }
        match deadline {
            Some(deadline) => builder.deadline(deadline),
            None => builder,
        }
    }
}

impl Setting {
    /// The arguments that give another process of this program the same settings.
    pub(crate) fn as_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--rdma-connect".into(), self.connect_name().into()];
        if let Some(path) = &self.runtime_dir {
            arguments.extend(["--runtime-dir".into(), path.into()]);
        }
        if let Some(path) = &self.key_file {
            arguments.extend(["--key-file".into(), path.into()]);
        }
        if self.insecure {
            arguments.push("--insecure".into());
        }
        if let Some(group) = self.shm_group {
            arguments.extend(["--shm-group".into(), group.to_string().into()]);
        }
        for network in &self.allow {
            arguments.extend(["--allow".into(), network.into()]);
        }
        arguments
    }

    /// Refuses what applies only to a node that listens over RDMA.
    pub(crate) fn check_local(&self) -> Result<(), Failure> {
        for network in &self.allow {
            _ = Node::builder().allow(network).map_err(Failure::usage)?;
        }
        let given = match (self.allow.is_empty(), self.insecure) {
            (true, false) => return Ok(()),
            (false, _) => "--allow is for the hosts that connect over RDMA",
            (true, true) => "--insecure is for a node that listens over RDMA",
        };
        Err(Failure::usage(format!("{given}: omit it, or publish at an rdma:// address")))
    }

    /// Refuses all of these arguments, for a command that connects to nothing; `instead` says what to do.
    pub(crate) fn check_unused(&self, instead: &str) -> Result<(), Failure> {
        let given = [
            ("--key-file", self.key_file.is_some()),
            ("--runtime-dir", self.runtime_dir.is_some()),
            ("--rdma-connect", self.rdma_connect.is_some()),
            ("--insecure", self.insecure),
            ("--allow", !self.allow.is_empty()),
            ("--shm-group", self.shm_group.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(Failure::usage(format!("{option} has no effect here: {instead}"))),
            None => Ok(()),
        }
    }

    /// How to connect queue pairs.
    fn connect(&self) -> Connect {
        self.rdma_connect.unwrap_or(Connect::Manager)
    }

    /// How to connect queue pairs, if an argument says so.
    #[cfg(feature = "verbs")]
    pub(crate) fn chosen_connect(&self) -> Option<RdmaConnect> {
        self.rdma_connect.map(RdmaConnect::from)
    }

    /// The name of the connection method.
    pub(crate) fn connect_name(&self) -> String {
        self.connect().to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Opens a node, with a name so that others find it, or without one.
    pub(crate) fn node(&self, name: Option<&NodeName>) -> Result<Node, Failure> {
        self.open(self.builder(name)?)
    }

    /// Opens a node. A runtime directory without space is named: the node makes files there.
    fn open(&self, builder: NodeBuilder) -> Result<Node, Failure> {
        builder.open().map_err(|error| {
            let is_full = is_full(&error);
            let failure = Failure::from(error);
            match is_full {
                true => {
                    let place = self.place();
                    let sentence = format!(
                        "{failure}: that of the runtime directory {}, which --runtime-dir changes",
                        place.display()
                    );
                    Failure::new(failure.exit(), sentence)
                }
                false => failure,
            }
        })
    }

    /// Opens a node with a name that also listens over RDMA at this address.
    fn rdma_node(&self, name: &NodeName, address: &Address) -> Result<Node, Failure> {
        self.serving_node(name, Some(address), PeerLimits::default())
    }

    /// Opens a node with a name and these limits of its peers, which also listens over RDMA if given an address.
    pub(crate) fn serving_node(
        &self,
        name: &NodeName,
        rdma: Option<&Address>,
        limits: PeerLimits,
    ) -> Result<Node, Failure> {
        let mut builder = self.builder(Some(name))?.peer_limits(limits).events(Arc::new(Told));
        if let Some(address) = rdma {
            builder = builder.rdma(&address.to_string()).map_err(Failure::usage)?;
        }
        self.open(builder)
    }

    /// Opens a node with this name, which also listens over RDMA if given an address.
    pub(crate) fn named_node(&self, name: &str, rdma: Option<&Address>) -> Result<Node, Failure> {
        let name = name.parse().map_err(Failure::usage)?;
        rdma.map_or_else(|| self.node(Some(&name)), |address| self.rdma_node(&name, address))
    }

    /// Opens a node with this name for as long as a measurement takes, which also listens over RDMA if given an address. Without other keys
    /// it then has one that only processes of the same measurement have.
    pub(crate) fn measuring_node(&self, name: &str, rdma: Option<&Address>) -> Result<Node, Failure> {
        // Its peers are the other ends of the measurement, with landing regions of any length.
        let mut limits = PeerLimits::default();
        (limits.landing_len_per_session, limits.landing_len) = (usize::MAX, usize::MAX);
        let name = name.parse().map_err(Failure::usage)?;
        if rdma.is_some() && self.is_unprotected() {
            self.measuring_key.make()?;
        }
        let mut builder = self.builder(Some(&name))?.peer_limits(limits);
        if let Some(address) = rdma {
            builder = builder.rdma(&address.to_string()).map_err(Failure::usage)?;
        }
        self.open(builder)
    }

    /// Prepares a subscriber of a measurement that has notices. Where only the measurement's own processes have its key, they trust each
    /// other: values then come with notices, as between nodes without keys.
    pub(crate) fn notified<'a, S: Subscribed, P>(
        &self,
        builder: SubscriberBuilder<'a, S, P>,
    ) -> SubscriberBuilder<'a, S, P> {
        let builder = builder.notices();
        if self.is_unprotected() { builder.trust_fellow_subscribers() } else { builder }
    }

    /// Returns the key that the processes of this measurement share.
    pub(crate) fn measuring_key(&self) -> &MeasuringKey {
        &self.measuring_key
    }

    /// Whether neither `--key-file` nor `--insecure` was given.
    pub(crate) fn is_unprotected(&self) -> bool {
        self.key_file.is_none() && !self.insecure
    }

    /// The arguments that a command needs, too, that connects to a node with these.
    pub(crate) fn protection(&self) -> &'static str {
        if self.key_file.is_some() { " --key-file FILE" } else { "" }
    }

    /// Opens a node to read from this address. Creates no runtime directory: a missing one means that no node is running.
    pub(crate) fn reader(&self, address: &Address) -> Result<Node, Failure> {
        self.absence(address).map_or_else(|| self.node(None), Err)
    }

    /// The failure for an address on this host if the runtime directory does not exist.
    fn absence(&self, address: &Address) -> Option<Failure> {
        let place = self.place();
        (address.is_local() && is_absent(&place)).then(|| {
            let sentence = format!("no node listens at {address}: {}", no_nodes(&place));
            Failure::new(Exit::Unreachable, sentence)
        })
    }

    /// What keeps members of the group, if one is given, from reading the topics of a node with a name; `is_warm`: topics in a file.
    pub(crate) fn group_obstacles(&self, is_warm: bool) -> Vec<String> {
        let Some(group) = self.shm_group else { return Vec::new() };
        let in_file = format!(
            "members of group {group} cannot pull the topic from the file of --warm, which this user can cut: they subscribe by push"
        );
        obstacle(&self.place(), group).into_iter().chain(is_warm.then_some(in_file)).collect()
    }

    /// The runtime directory.
    pub(crate) fn place(&self) -> PathBuf {
        self.runtime_dir.clone().unwrap_or_else(default_runtime_dir)
    }

    fn builder(&self, name: Option<&NodeName>) -> Result<NodeBuilder, Failure> {
        let mut builder = Node::builder().rdma_connect(self.connect().into());
        if let Some(path) = &self.runtime_dir {
            builder = builder.runtime_dir(path);
        }
        if let Some(path) = &self.key_file {
            builder = builder.keys(Keyring::open(path).map_err(|error| Failure::of(Exit::Local, &error))?);
        }
        if let Some(keys) = self.measuring_key.keyring().filter(|_| self.is_unprotected()) {
            builder = builder.keys(keys?);
        }
        if self.insecure {
            builder = builder.insecure();
        }
        if let Some(group) = self.shm_group {
            builder = builder.shm_group(group);
        }
        for network in &self.allow {
            builder = builder.allow(network).map_err(Failure::usage)?;
        }
        if let Some(name) = name {
            builder = builder.name(name.as_str()).map_err(Failure::usage)?;
        }
        Ok(builder)
    }

    /// Attaches a node to a topic of any kind and type, by pull; to a log from `start` on.
    pub(crate) fn attach(
        &self,
        node: &Node,
        target: &Target,
        start: LogStart,
        region: RegionArguments,
    ) -> Result<AnySubscriber<Raw>, Failure> {
        let (delivery, region_len_max) = (Delivery::Pull, region.len_max());
        let following =
            Following { delivery, start, until_end: true, deadline: None, progress: false, region_len_max };
        self.attach_to(node, target, following)
    }

    fn attach_to(
        &self,
        node: &Node,
        target: &Target,
        following: Following,
    ) -> Result<AnySubscriber<Raw>, Failure> {
        let delivery = following.delivery;
        self.check_delivery(&target.address, delivery)?;
        tracing::info!(target: "fabricast", topic = %target, ?delivery, "subscribing");
        let opened = following.builder(node, target).open();
        let subscriber = opened.map_err(|error| Failure::from(error).at(&target.address))?;
        let (topic, type_name) = (subscriber.topic(), subscriber.schema().type_name());
        tracing::info!(target: "fabricast", %topic, type_name, "subscribed");
        Ok(subscriber)
    }

    /// Follows a topic of any kind and type: until its end, or over restarts of its publisher, which need not run yet.
    pub(crate) fn follow(&self, lines: Followable<'_>, following: Following) -> Result<Source, Failure> {
        let (Followable { first: target, others }, delivery) = (lines, following.delivery);
        // Publishers cannot read it over unreliable connections.
        let progress = following.progress && self.connect() != Connect::TcpUnreliable;
        let following = Following { progress, ..following };
        if !others.is_empty() {
            return self.follow_lines(lines, following);
        }
        if following.until_end {
            self.absence(&target.address).map_or(Ok(()), Err)?;
            let (node, pulses) = self.follower([target])?;
            return Ok(Source::once(self.attach_to(&node, target, following)?, pulses));
        }
        self.check_delivery(&target.address, delivery)?;
        tracing::info!(target: "fabricast", topic = %target, ?delivery, "following");
        let absence = self.absence(&target.address);
        let (node, pulses) = self.follower([target])?;
        let opened = following.builder(&node, target).persistent().open();
        let opened = opened.map_err(|error| Failure::from(error).at(&target.address))?;
        if let Some(error) = opened.open_error() {
            let failure = absence.unwrap_or_else(|| Failure::from(error).at(&target.address));
            if !matches!(failure.exit(), Exit::Unreachable | Exit::Gone) {
                return Err(failure);
            }
            Failure::new(failure.exit(), format!("{failure}; waiting for a publisher")).note();
        }
        Ok(Source::persistent(opened, pulses))
    }

    /// Opens a node that notices whether the publishers of these topics hang.
    fn follower<'a>(
        &self,
        targets: impl IntoIterator<Item = &'a Target>,
    ) -> Result<(Node, Arc<Pulses>), Failure> {
        let pulses = Arc::new(Pulses::of(targets));
        let sink: Arc<dyn EventSink> = Arc::<Pulses>::clone(&pulses);
        Ok((self.builder(None)?.events(sink).open()?, pulses))
    }

    /// Follows several publishers of the same values. The end is that of the last of them.
    fn follow_lines(
        &self,
        Followable { first, others }: Followable<'_>,
        following: Following,
    ) -> Result<Source, Failure> {
        let Following { delivery, until_end, .. } = following;
        let targets = || std::iter::once(first).chain(others);
        for target in targets() {
            self.check_delivery(&target.address, delivery)?;
        }
        tracing::info!(target: "fabricast", topic = %first, lines = 1 + others.len(), ?delivery, "following");
        let (node, pulses) = self.follower(targets())?;
        let lines = following.builder(&node, first).lines(others).open()?;
        let lines = FollowedLines::new(lines, until_end, (node, Arc::clone(&pulses)));
        lines.note_absent()?;
        Ok(Source::of_lines(lines, pulses))
    }

    /// Refuses a delivery that the connection does not have.
    fn check_delivery(&self, address: &Address, delivery: Delivery) -> Result<(), Failure> {
        if (self.connect(), delivery) == (Connect::TcpUnreliable, Delivery::Pull)
            && address.scheme() == "rdma"
        {
            let instead =
                "omit --rdma-connect, or use `fabricast watch --delivery push` or `fabricast tail --push`";
            let sentence = format!("an unreliable connection supports push only: {instead}");
            return Err(Failure::usage(sentence));
        }
        Ok(())
    }

    /// Starts the library's log, if requested.
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

/// Parses the address of a topic at a node, for a command that reads no file.
pub(crate) fn node_target(text: &str) -> Result<Target, Box<dyn Error + Send + Sync>> {
    match text.starts_with(FILE) {
        true => Err("`fabricast tail`, `get` and `info` read a file; name a topic of a node here".into()),
        false => Ok(target(text)?),
    }
}

/// Parses a topic's address; for a node of this host the name suffices.
pub(crate) fn target(text: &str) -> Result<Target, AddressError> {
    in_full(text).parse()
}

/// Parses a node's address like [`target`].
pub(crate) fn address(text: &str) -> Result<Address, Box<dyn Error + Send + Sync>> {
    match target(text) {
        Ok(Target { address, .. }) => Err(format!("it is a topic: write {address} for its node").into()),
        Err(_) => Ok(in_full(text).parse::<Address>()?),
    }
}

/// Adds `shm:` to an address that begins with the name of a node. Every other address has a colon.
fn in_full(text: &str) -> String {
    if text.contains(':') { text.to_owned() } else { format!("shm:{text}") }
}

/// Whether a file system has no space for what this error was about.
fn is_full(error: &(dyn Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    let mut causes = causes.filter_map(|error| error.downcast_ref::<std::io::Error>());
    causes.any(|error| error.kind() == std::io::ErrorKind::StorageFull)
}

/// Whether nothing is at this path. If that is unknown, opening it reports why.
pub(crate) fn is_absent(place: &Path) -> bool {
    place.try_exists().is_ok_and(|exists| !exists)
}

/// Reports that this directory has no nodes.
pub(crate) fn no_nodes(place: &Path) -> String {
    let user = rustix::process::geteuid().as_raw();
    let instead = "--runtime-dir or FABRICAST_RUNTIME_DIR chooses another";
    let why = if is_absent(place) { ": it does not exist" } else { "" };
    format!("no nodes in {} (user {user}){why}; {instead}", place.display())
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::is_full;

    #[test]
    fn full_file_system_is_told_from_other_refusals() {
        let system = |errno: Errno| fabricast::NodeError::System { what: "listen", source: errno.into() };
        assert!(is_full(&system(Errno::NOSPC)) && !is_full(&system(Errno::MFILE)));
    }
}
