//! The options of `perf ping-pong` and `perf blast`.

use clap::{Args, ValueEnum};

use super::super::failure::Failure;

/// Arguments of `perf ping-pong` and `perf blast` only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the modes ping-pong and blast")]
pub(super) struct ProgramOptions {
    /// The operations by which blocks travel
    #[arg(long = "mode", value_enum, value_name = "OPERATIONS", id = "program")]
    pub(super) mode: Option<ProgramMode>,
    /// Copy blocks of up to this many bytes into their work requests; not READs [default: 0]
    #[arg(long, value_name = "BYTES")]
    pub(super) inline: Option<u32>,
    /// Scatter/gather elements of each block, up to 32 [default: 1]
    #[arg(long, value_name = "N")]
    pub(super) sge: Option<u32>,
    /// Work requests of which one has a completion [default: 64, with blast 16; fewer if --depth and --chain leave no room]
    #[arg(long, value_name = "N")]
    pub(super) signal_every: Option<u32>,
    /// Most work requests in flight, and receives posted, up to 16384 [default: 128]
    #[arg(long, value_name = "N")]
    pub(super) depth: Option<u32>,
    /// Work requests posted together, with blast [default: 16]
    #[arg(long, value_name = "N")]
    pub(super) chain: Option<u32>,
    /// Sleep until there is a completion, or an event of the connection, instead of polling without pause
    #[arg(long)]
    pub(super) events: bool,
    /// Passed by a measuring process to the process it starts
    #[arg(long, hide = true, requires = "serve")]
    pub(super) answer: bool,
}

/// The operations of a program. The client is the process that measures, the agent the one that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ProgramMode {
    /// The client WRITEs each block and READs it back; the agent sleeps
    #[value(name = "rdma-1")]
    Rdma1,
    /// The agent READs each block and WRITEs it back; the client sleeps
    #[value(name = "rdma-1e")]
    Rdma1e,
    /// Like rdma-1, with WRITEs that have no completion, each posted together with its READ
    #[value(name = "rdma-2")]
    Rdma2,
    /// Both WRITE, and recognize blocks by their contents
    #[value(name = "rdma-3")]
    Rdma3,
    /// Both WRITE, and SEND a message behind each block
    WriteAck,
    /// Both READ, and SEND a message for each block
    ReadAck,
    /// Both SEND
    Send,
    /// The same, asleep until there is a completion, as with --events
    SendEvent,
    /// The client WRITEs; the agent sleeps. Also a mode of blast
    Write,
    /// The client READs; the agent sleeps. Also a mode of blast
    Read,
    /// Both SEND over an unreliable connection
    UcSend,
    /// Like rdma-3, over an unreliable connection
    UcWrite,
    /// Both SEND datagrams
    UdSend,
}

impl ProgramMode {
    /// Its name.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn is_one_sided(self) -> bool {
        matches!(self, Self::Rdma1 | Self::Rdma1e | Self::Rdma2 | Self::Write | Self::Read)
    }
}

impl ProgramOptions {
    /// Whether any option was given.
    pub(super) fn is_given(&self) -> bool {
        self.mode.is_some() || self.has_numbers() || self.events || self.answer
    }

    fn has_numbers(&self) -> bool {
        let numbers = [self.inline, self.sge, self.signal_every, self.depth, self.chain];
        numbers.iter().any(Option::is_some)
    }

    /// Rejects options that the mode does not have.
    pub(super) fn check(&self, is_blast: bool, is_serving: bool) -> Result<(), Failure> {
        if is_serving {
            let is_wrong = self.mode.is_some() || self.has_numbers() || self.events;
            let sentence = "--mode and its options belong to the measuring process: omit them with --serve";
            return if is_wrong { Err(Failure::usage(sentence)) } else { Ok(()) };
        }
        let modes = if is_blast { "write or read" } else { "rdma-1, send or another (--help lists them)" };
        let Some(mode) = self.mode else {
            return Err(Failure::usage(format!("name the operations with --mode: {modes}")));
        };
        let is_read = matches!(mode, ProgramMode::Read);
        if is_blast && !is_read && mode != ProgramMode::Write {
            let name = mode.name();
            return Err(Failure::usage(format!(
                "blast has no mode {name}: use --mode write or read, or perf ping-pong"
            )));
        }
        let polls_memory = matches!(mode, ProgramMode::Rdma3 | ProgramMode::UcWrite);
        let waits_for_each = !is_blast && (mode.is_one_sided() || mode == ProgramMode::ReadAck);
        let unfit = [
            (
                self.inline.is_some() && (is_read || mode == ProgramMode::ReadAck),
                "--inline",
                "READs take no bytes along",
            ),
            (self.signal_every.is_some() && waits_for_each, "--signal-every", "it waits for its completions"),
            (self.depth.is_some() && waits_for_each, "--depth", "it has one operation in flight"),
            (
                self.chain.is_some() && !is_blast,
                "--chain",
                "it has one operation in flight: only blast has chains",
            ),
            (self.events && polls_memory, "--events", "it waits for bytes in memory, not for completions"),
        ];
        match unfit.into_iter().find(|(is_unfit, ..)| *is_unfit) {
            Some((_, option, why)) => {
                Err(Failure::usage(format!("the mode {} has no {option}: {why}", mode.name())))
            }
            None => Ok(()),
        }
    }
}
