//! What the program tells and how it exits when it cannot do what was asked.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::process::ExitCode;

use fabricast::{
    Address, AddressError, ControlError, DialError, DirectoryError, FabricError, InspectError, NodeError,
    PublisherError, ReceiveError, RefuseReason, SubscriberError, Target,
};

use super::output::printable;

/// How the program exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what was asked.
    Done,
    /// The answer is no.
    No,
    /// The arguments are wrong.
    Usage,
    /// There is no such node or topic, or it cannot be reached.
    Unreachable,
    /// The publisher refused.
    Refused,
    /// The publisher is hung.
    Hung,
    /// The publisher is gone.
    Gone,
}

/// Why the program could not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The arguments are wrong, or ask for help.
    Arguments(clap::Error),
    /// Nobody reads the output any more.
    ClosedPipe,
    /// Anything else.
    Told {
        /// The exit code.
        exit: Exit,
        /// What is wrong, and what to do.
        sentence: String,
    },
}

impl Exit {
    /// The number that it has for other programs.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::Refused => 4,
            Self::Hung => 5,
            Self::Gone => 6,
        }
    }
}

impl Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arguments(error) => error.fmt(out),
            Self::ClosedPipe => out.write_str("nobody reads the output any more"),
            Self::Told { sentence, .. } => out.write_str(sentence),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl Failure {
    /// A failure with this sentence.
    pub(crate) fn new(exit: Exit, sentence: impl Display) -> Self {
        Self::Told { exit, sentence: sentence.to_string() }
    }

    /// Wrong arguments.
    pub(crate) fn usage(sentence: impl Display) -> Self {
        Self::new(Exit::Usage, sentence)
    }

    /// What the parser of the arguments says; a malformed address speaks for itself.
    pub(crate) fn of_arguments(error: clap::Error) -> Self {
        let source = std::error::Error::source(&error);
        match source.and_then(|source| source.downcast_ref::<AddressError>()) {
            Some(malformed) => Self::usage(malformed),
            None => Self::Arguments(error),
        }
    }

    /// How the program exits.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Arguments(error) if error.use_stderr() => Exit::Usage,
            Self::Arguments(_) | Self::ClosedPipe => Exit::Done,
            Self::Told { exit, .. } => *exit,
        }
    }

    /// Tells the user.
    pub(crate) fn tell(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Arguments(error) => error.print(),
            Self::ClosedPipe => Ok(()),
            Self::Told { sentence, .. } => writeln!(out, "fabricast: {}", printable(sentence)),
        }
    }
}

/// A failure of the program's own output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::ClosedPipe;
        }
        Self::new(Exit::No, format!("cannot write to standard output: {error}"))
    }
}

impl From<SubscriberError> for Failure {
    fn from(error: SubscriberError) -> Self {
        match &error {
            SubscriberError::Address(_) => Self::usage(error),
            SubscriberError::Unreachable { source, .. } => Self::new(of_fabric(source), error),
            SubscriberError::Session { target, source } => {
                let address = &target.address;
                of_session(address, source, &error)
            }
            SubscriberError::Refused { target, reason, .. } => of_refusal(target, *reason, &error),
            _ => Self::new(Exit::Unreachable, error),
        }
    }
}

impl From<DirectoryError> for Failure {
    fn from(error: DirectoryError) -> Self {
        match &error {
            DirectoryError::Fabric(source) => Self::new(of_fabric(source), error),
            DirectoryError::Session { address, source } => of_session(address, source, &error),
            _ => Self::new(Exit::Unreachable, error),
        }
    }
}

impl From<DialError> for Failure {
    fn from(error: DialError) -> Self {
        match &error {
            DialError::Unreachable { source, .. } => Self::new(of_fabric(source), error),
            DialError::Session { address, source } => of_session(address, source, &error),
            DialError::Refused { .. } | DialError::Unfit { .. } => Self::new(Exit::Refused, error),
            _ => Self::new(Exit::Unreachable, error),
        }
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        let exit = match &error {
            NodeError::Name(_) | NodeError::Fabric(FabricError::NameInUse { .. }) => Exit::Usage,
            _ => Exit::Unreachable,
        };
        Self::new(exit, error)
    }
}

impl From<PublisherError> for Failure {
    fn from(error: PublisherError) -> Self {
        let exit = match &error {
            PublisherError::Geometry(_) | PublisherError::PayloadLenMax { .. } => Exit::Usage,
            _ => Exit::Unreachable,
        };
        Self::new(exit, error)
    }
}

impl From<InspectError> for Failure {
    fn from(error: InspectError) -> Self {
        Self::new(Exit::No, error)
    }
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Self {
        let exit = match &error {
            ReceiveError::Ended { .. } | ReceiveError::Gone { .. } => Exit::Gone,
            ReceiveError::Fabric(_) => Exit::Unreachable,
            _ => Exit::No,
        };
        Self::new(exit, error)
    }
}

fn of_fabric(error: &FabricError) -> Exit {
    match error {
        FabricError::NodeGone { .. } => Exit::Gone,
        // A node that hangs accepts no connections; some wait, then the kernel takes no more.
        FabricError::System { source, .. } if source.kind() == io::ErrorKind::WouldBlock => Exit::Hung,
        _ => Exit::Unreachable,
    }
}

fn of_session(address: &Address, source: &ControlError, error: &dyn Display) -> Failure {
    match source {
        ControlError::Deadline { .. } => {
            let what = "its process hangs or is stopped, end it or let it go on";
            Failure::new(Exit::Hung, format!("{error}; {what}"))
        }
        ControlError::Broken { .. } | ControlError::Disconnected | ControlError::Closed { .. } => {
            let what = format!("`fabricast list {address}` shows whether it is back");
            Failure::new(Exit::Gone, format!("{error}; {what}"))
        }
        ControlError::Refused { reason: RefuseReason::ShuttingDown, .. } => Failure::new(Exit::Gone, error),
        ControlError::Refused { .. } => Failure::new(Exit::Refused, error),
        _ => Failure::new(Exit::Unreachable, error),
    }
}

fn of_refusal(target: &Target, reason: RefuseReason, error: &dyn Display) -> Failure {
    match reason {
        RefuseReason::NoSuchTopic => {
            let what = format!("`fabricast list {}` shows its topics", target.address);
            Failure::new(Exit::Unreachable, format!("{error}; {what}"))
        }
        RefuseReason::TopicEnded | RefuseReason::ShuttingDown => Failure::new(Exit::Gone, error),
        _ => Failure::new(Exit::Refused, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        "shm:n/t".parse().unwrap()
    }

    fn refused(reason: RefuseReason) -> Failure {
        SubscriberError::Refused { target: target(), reason, text: String::new() }.into()
    }

    fn session(source: ControlError) -> Failure {
        SubscriberError::Session { target: target(), source }.into()
    }

    fn sentence(failure: &Failure) -> String {
        let mut told = Vec::new();
        failure.tell(&mut told).unwrap();
        String::from_utf8(told).unwrap()
    }

    #[test]
    fn refusals_have_their_code() {
        assert_eq!(refused(RefuseReason::SchemaMismatch).exit(), Exit::Refused);
        assert_eq!(refused(RefuseReason::TooManySubscribers).exit().code(), 4);
        assert_eq!(refused(RefuseReason::Unknown(99)).exit(), Exit::Refused);
        assert_eq!(refused(RefuseReason::TopicEnded).exit(), Exit::Gone);
        let absent = refused(RefuseReason::NoSuchTopic);
        assert_eq!(absent.exit(), Exit::Unreachable);
        assert_eq!(
            sentence(&absent),
            "fabricast: cannot subscribe to shm:n/t: it has no such topic; `fabricast list shm:n` shows its topics\n"
        );
    }

    #[test]
    fn sessions_tell_who_hangs_from_who_is_gone() {
        assert_eq!(session(ControlError::Deadline { awaited: "hello" }).exit(), Exit::Hung);
        assert_eq!(session(ControlError::Disconnected).exit(), Exit::Gone);
        assert_eq!(session(ControlError::Version { theirs: 2, ours: 1 }).exit(), Exit::Unreachable);
        let busy = ControlError::Refused { reason: RefuseReason::TooManySessions, text: String::new() };
        assert_eq!(session(busy).exit(), Exit::Refused);
        let address = target().address;
        let gone = FabricError::NodeGone { address: address.clone() };
        assert_eq!(of_fabric(&gone), Exit::Gone);
        assert_eq!(of_fabric(&FabricError::NoSuchNode { address }), Exit::Unreachable);
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.exit(), sentence(&failure)), (Exit::Done, String::new()));
        let full = Failure::from(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.exit(), Exit::No);
    }
}
