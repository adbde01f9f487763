//! What the program reports, and its exit code, when it fails.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};

#[cfg(feature = "verbs")]
use fabricast::VerbsError;
use fabricast::{
    Address, AddressError, ControlError, DialError, DirectoryError, ErrorChain, FabricError, GrantError,
    InspectError, MemoryError, NodeError, PublisherError, ReceiveError, RefuseReason, SubscriberError,
    Target,
};
use rustix::io::Errno;

use super::output::printable;

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
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
    /// This host is short of a resource: memory, descriptors, disk space, an RDMA device.
    Local,
    /// The process was interrupted before it had its answer.
    Interrupted,
}

/// Why the program could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The arguments are wrong, or ask for help.
    #[error("{0}")]
    Arguments(clap::Error),
    /// Nobody reads the output any more.
    #[error("nobody reads the output any more")]
    ClosedPipe,
    /// Anything else.
    #[error("{sentence}")]
    Told {
        /// The exit code.
        exit: Exit,
        /// What is wrong, and what to do.
        sentence: String,
    },
}

impl Exit {
    /// The number of the exit code.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::Refused => 4,
            Self::Hung => 5,
            Self::Gone => 6,
            Self::Local => 7,
            Self::Interrupted => 130,
        }
    }
}

impl Failure {
    /// A failure with this sentence.
    pub(crate) fn new(exit: Exit, sentence: impl Display) -> Self {
        Self::Told { exit, sentence: sentence.to_string() }
    }

    /// A failure with the sentence of an error and its causes.
    pub(crate) fn of(exit: Exit, error: &dyn Error) -> Self {
        Self::new(exit, ErrorChain(error))
    }

    /// Wrong arguments.
    pub(crate) fn usage(sentence: impl Display) -> Self {
        Self::new(Exit::Usage, sentence)
    }

    /// A failure of the argument parser; a malformed address has its own sentence.
    pub(crate) fn of_arguments(error: clap::Error) -> Self {
        let source = Error::source(&error);
        match source.and_then(|source| source.downcast_ref::<AddressError>()) {
            Some(malformed) => Self::usage(malformed),
            None => Self::Arguments(error),
        }
    }

    /// Adds advice for an address at which no node answers.
    pub(crate) fn at(self, address: &Address) -> Self {
        match (self, address.advice()) {
            (Self::Told { exit: exit @ Exit::Unreachable, sentence }, Some(advice)) => {
                Self::new(exit, format!("{sentence}; {advice}"))
            }
            (other, _) => other,
        }
    }

    /// The exit code.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Arguments(_) => Exit::Usage,
            Self::ClosedPipe => Exit::Done,
            Self::Told { exit, .. } => *exit,
        }
    }

    /// Reports it to the user.
    pub(crate) fn tell(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Arguments(error) => write!(out, "{error}"),
            Self::ClosedPipe => Ok(()),
            Self::Told { sentence, .. } => writeln!(out, "fabricast: {}", printable(sentence)),
        }
    }

    /// Prints it on standard error, which may be closed.
    pub(crate) fn note(&self) {
        let _ = self.tell(&mut io::stderr().lock());
    }
}

/// A failure to write the program's output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::ClosedPipe;
        }
        Self::new(Exit::Local, format!("cannot write to standard output: {error}"))
    }
}

impl From<SubscriberError> for Failure {
    fn from(error: SubscriberError) -> Self {
        Self::from(&error)
    }
}

impl From<&SubscriberError> for Failure {
    fn from(error: &SubscriberError) -> Self {
        let exit = match error {
            SubscriberError::Address(_)
            | SubscriberError::Lines { .. }
            | SubscriberError::SameLine { .. } => Exit::Usage,
            SubscriberError::Unreachable { source, .. } | SubscriberError::Fabric(source) => {
                of_fabric(source)
            }
            SubscriberError::Memory(source) => of_memory(source),
            SubscriberError::Session { target, source } => {
                return of_session(&target.address, source, ErrorChain(error));
            }
            SubscriberError::Refused { target, reason, .. } => return of_refusal(target, *reason, error),
            SubscriberError::Unfit { target, source: GrantError::RegionLen { len, max } } => {
                let sentence = format!(
                    "{target} has {len} bytes of memory, over the limit of {max} of this command: accept it by --region-len-max {len}"
                );
                return Self::new(Exit::Local, sentence);
            }
            SubscriberError::Unfit { source: GrantError::Fabric(FabricError::Access { .. }), .. } => {
                Exit::Refused
            }
            _ => of_system(error).unwrap_or(Exit::Unreachable),
        };
        Self::of(exit, error)
    }
}

impl From<DirectoryError> for Failure {
    fn from(error: DirectoryError) -> Self {
        let exit = match &error {
            DirectoryError::Fabric(source) => of_fabric(source),
            // It has answered.
            DirectoryError::Session { address, source } if is_refusal(source) => {
                return of_session(address, source, format!("cannot list {address}: {}", ErrorChain(source)));
            }
            DirectoryError::Session { address, source } => {
                return of_session(address, source, ErrorChain(&error));
            }
            _ => of_system(&error).unwrap_or(Exit::Unreachable),
        };
        Self::of(exit, &error)
    }
}

impl From<DialError> for Failure {
    fn from(error: DialError) -> Self {
        let exit = match &error {
            DialError::Unreachable { source, .. } => of_fabric(source),
            DialError::Session { address, source } => {
                return of_session(address, source, ErrorChain(&error));
            }
            DialError::Refused { .. } | DialError::Unfit { .. } => Exit::Refused,
            _ => Exit::Unreachable,
        };
        Self::of(exit, &error)
    }
}

#[cfg(feature = "verbs")]
impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        Self::of(of_fabric(&error), &error)
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        let exit = match &error {
            NodeError::Name(_)
            | NodeError::Unprotected { .. }
            | NodeError::Contradiction
            | NodeError::Fabric(FabricError::NameInUse { .. } | FabricError::NameHeld { .. }) => Exit::Usage,
            NodeError::Fabric(source) => of_fabric(source),
            NodeError::System { .. } => Exit::Local,
            _ => of_system(&error).unwrap_or(Exit::Unreachable),
        };
        match &error {
            NodeError::Unprotected { address } => Self::new(
                exit,
                format_args!(
                    "a node that listens at {address} admits anyone on that network: pass --key-file FILE, with a key of \
                     `fabricast key`, or --insecure if that is meant"
                ),
            ),
            _ => Self::of(exit, &error),
        }
    }
}

impl From<PublisherError> for Failure {
    fn from(error: PublisherError) -> Self {
        let exit = match &error {
            PublisherError::Geometry(_)
            | PublisherError::PayloadLenMax { .. }
            | PublisherError::PayloadLenMin { .. }
            | PublisherError::KeyLenMin { .. }
            | PublisherError::KeyLenMax { .. } => Exit::Usage,
            PublisherError::Memory(source) => of_memory(source),
            PublisherError::Fabric(source) => of_fabric(source),
            PublisherError::File(_) => Exit::Local,
            _ => of_system(&error).unwrap_or(Exit::Unreachable),
        };
        Self::of(exit, &error)
    }
}

impl From<InspectError> for Failure {
    fn from(error: InspectError) -> Self {
        Self::of(Exit::No, &error)
    }
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Self {
        let exit = match &error {
            ReceiveError::Gone { source } if source.denies_access() => Exit::Refused,
            ReceiveError::Ended { .. } | ReceiveError::Gone { .. } => Exit::Gone,
            ReceiveError::Fabric(source) => of_fabric(source),
            _ => Exit::No,
        };
        Self::of(exit, &error)
    }
}

/// The exit code for a fabric's error.
fn of_fabric(error: &FabricError) -> Exit {
    match error {
        FabricError::NodeGone { .. } => Exit::Gone,
        FabricError::NoPlace(_) | FabricError::NotAdmitted(_) | FabricError::NotOpen { .. } => Exit::Refused,
        FabricError::RuntimeDirectory { .. }
        | FabricError::NameLocked { .. }
        | FabricError::NodeFile { .. }
        | FabricError::WithoutVerbs { .. } => Exit::Local,
        FabricError::Memory(source) => of_memory(source),
        #[cfg(feature = "verbs")]
        FabricError::Verbs(source) => of_verbs(source),
        FabricError::NotAccepting { .. } => Exit::Hung,
        _ => of_system(error).unwrap_or(Exit::Unreachable),
    }
}

/// The exit code of a memory error.
fn of_memory(error: &MemoryError) -> Exit {
    match error {
        MemoryError::Length { .. } => Exit::Usage,
        MemoryError::System { .. } => Exit::Local,
        _ => Exit::Unreachable,
    }
}

/// Distinguishes a local shortage from a failure at the other end.
#[cfg(feature = "verbs")]
fn of_verbs(error: &VerbsError) -> Exit {
    match error {
        VerbsError::NoDevice
        | VerbsError::NoDeviceFiles { .. }
        | VerbsError::NotPermitted { .. }
        | VerbsError::NoSuchDevice { .. }
        | VerbsError::NoActivePort { .. }
        | VerbsError::NoGid { .. }
        | VerbsError::Variable { .. }
        | VerbsError::LockedMemory { .. }
        | VerbsError::NoMemory { .. }
        | VerbsError::DeviceGone => Exit::Local,
        _ => of_system(error).unwrap_or(Exit::Unreachable),
    }
}

/// The exit code if the operating system reports a shortage of this host or process.
fn of_system(error: &(dyn Error + 'static)) -> Option<Exit> {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    let errno = causes.find_map(|error| Errno::from_io_error(error.downcast_ref()?))?;
    let is_local = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::ROFS,
        Errno::FBIG,
        Errno::IO,
    ]
    .contains(&errno);
    is_local.then_some(Exit::Local)
}

/// Whether the other end has answered, and does not admit this one.
fn is_refusal(error: &ControlError) -> bool {
    matches!(error, ControlError::Refused { .. }) || error.denies_access()
}

/// The failure of a session, with what to do.
fn of_session(address: &Address, source: &ControlError, error: impl Display) -> Failure {
    match source {
        ControlError::Deadline { .. } => {
            let what = "its process is hung or stopped: resume it (kill -CONT), or restart it";
            Failure::new(Exit::Hung, format!("{error}; {what}"))
        }
        ControlError::Broken { .. } | ControlError::Disconnected | ControlError::Closed { .. } => {
            let what = format!("`fabricast list {address}` shows whether the node is back");
            Failure::new(Exit::Gone, format!("{error}; {what}"))
        }
        ControlError::Refused { reason: RefuseReason::ShuttingDown, .. } => Failure::new(Exit::Gone, error),
        // It has decided nothing: one of the two hosts, or the network between them, was slow.
        ControlError::Refused { reason: RefuseReason::HelloDeadline, .. } => {
            Failure::new(Exit::Unreachable, format!("{error}; try again"))
        }
        ControlError::Refused { reason: RefuseReason::NotAuthenticated, .. } => {
            Failure::new(Exit::Refused, format!("{error}; --key-file FILE must name a file with one of them"))
        }
        ControlError::Unauthenticated { .. }
        | ControlError::NotCovered { .. }
        | ControlError::Revoked { .. } => Failure::new(Exit::Refused, error),
        ControlError::Refused { .. } => Failure::new(Exit::Refused, error),
        _ => Failure::new(Exit::Unreachable, error),
    }
}

/// The failure of an attachment that was refused, with what to do.
fn of_refusal(target: &Target, reason: RefuseReason, error: &dyn Error) -> Failure {
    let error = ErrorChain(error);
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
        let source = GrantError::Fabric(FabricError::Access { why: "of another user" });
        assert_eq!(Failure::from(SubscriberError::Unfit { target: target(), source }).exit(), Exit::Refused);
        let absent = refused(RefuseReason::NoSuchTopic);
        assert_eq!(absent.exit(), Exit::Unreachable);
        assert_eq!(
            sentence(&absent),
            "fabricast: cannot subscribe to shm:n/t: it has no such topic; `fabricast list shm:n` shows its topics\n"
        );
    }

    #[test]
    fn hung_and_gone_sessions_have_different_codes() {
        assert_eq!(session(ControlError::Deadline { awaited: "hello" }).exit(), Exit::Hung);
        assert_eq!(session(ControlError::Disconnected).exit(), Exit::Gone);
        assert_eq!(session(ControlError::Version { theirs: 2, ours: 1 }).exit(), Exit::Unreachable);
        let busy = ControlError::Refused { reason: RefuseReason::TooManySessions, text: String::new() };
        assert_eq!(session(busy).exit(), Exit::Refused);
        let slow = ControlError::Refused { reason: RefuseReason::HelloDeadline, text: String::new() };
        assert_eq!(session(slow).exit(), Exit::Unreachable, "it is waited for");
        let address = target().address;
        let gone = FabricError::NodeGone { address: address.clone() };
        assert_eq!(of_fabric(&gone), Exit::Gone);
        assert_eq!(of_fabric(&FabricError::NoSuchNode { address }), Exit::Unreachable);
    }

    #[test]
    fn shortage_of_this_host_has_its_own_code() {
        let system = |errno: Errno| FabricError::System { what: "open a socket", source: errno.into() };
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::ROFS, Errno::NOMEM] {
            let failure = Failure::from(NodeError::Fabric(system(errno)));
            assert_eq!(failure.exit().code(), 7, "{failure}");
        }
        let error = NodeError::System { what: "start the node's thread", source: Errno::AGAIN.into() };
        assert_eq!(Failure::from(error).exit(), Exit::Local);
        let failure = Failure::from(DirectoryError::Fabric(system(Errno::MFILE)));
        assert!(
            sentence(&failure).contains(" open files: close some, or raise the limit (ulimit -n)"),
            "{failure}"
        );
        assert_eq!(Failure::from(NodeError::Fabric(system(Errno::CONNREFUSED))).exit(), Exit::Unreachable);
        let address = "shm:p".parse().unwrap();
        let failure = Failure::from(NodeError::Fabric(FabricError::NotAccepting { address, process: None }));
        assert_eq!(failure.exit(), Exit::Hung);
        let (path, why) = ("/x".to_owned(), "it belongs to user 1".to_owned());
        let failure = Failure::from(NodeError::Fabric(FabricError::RuntimeDirectory { path, why }));
        assert_eq!(failure.exit(), Exit::Local);
        let (node, path) = ("x".parse().unwrap(), "/x".to_owned());
        let failure = Failure::from(NodeError::Fabric(FabricError::NameLocked { node, path }));
        assert_eq!(failure.exit(), Exit::Local);
        let memory = MemoryError::System { what: "create", len: 1, source: Errno::NOMEM.into() };
        assert_eq!(Failure::from(PublisherError::Memory(memory)).exit(), Exit::Local);
        let memory = MemoryError::Length { len: 1, max: 0 };
        assert_eq!(Failure::from(PublisherError::Memory(memory)).exit(), Exit::Usage);
    }

    #[test]
    fn advice_fits_the_host_of_the_address() {
        let target: Target = "rdma://10.0.0.9:9999/t".parse().unwrap();
        let source = FabricError::NoSuchNode { address: target.address.clone() };
        let failure = Failure::from(SubscriberError::Unreachable { target, source });
        let expected = "cannot subscribe to rdma://10.0.0.9:9999/t: no node listens at rdma://10.0.0.9:9999; check host \
                        and port, and that its program serves RDMA there";
        assert_eq!((failure.exit(), failure.to_string().as_str()), (Exit::Unreachable, expected));
        let hint =
            "; 127.0.0.1 is rarely the address of an RDMA device: use the address of an RDMA interface";
        let unreachable = || Failure::new(Exit::Unreachable, "no route");
        let at = |address: &str, failure: Failure| failure.at(&address.parse().unwrap()).to_string();
        assert!(at("rdma://127.0.0.1", unreachable()).contains(hint));
        assert!(at("rdma://localhost:1", unreachable()).contains("; localhost is rarely "));
        assert_eq!(at("rdma://10.0.0.9", unreachable()), "no route");
        assert_eq!(at("rdma://[::1]", Failure::new(Exit::Local, "no device")), "no device");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.exit(), sentence(&failure)), (Exit::Done, String::new()));
        let full = Failure::from(io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.exit(), Exit::Local);
    }
}
