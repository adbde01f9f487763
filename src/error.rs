use std::fmt;

use crate::chain::ErrorChain;
use crate::fabric::{AddressError, FabricError};
use crate::id::NameError;
use crate::inspect::InspectError;
use crate::keyring::KeyringError;
use crate::node::{DialError, DirectoryError, NodeError};
use crate::payload::{DecodeError, EncodeError, SchemaError};
use crate::publisher::{FinishError, PublishError, PublisherError};
#[cfg(feature = "tokio")]
use crate::subscriber::AsyncError;
use crate::subscriber::{ReceiveError, SubscriberError};

/// Any error of this library, for functions that meet several, such as `main`.
///
/// Each operation has its own error type; `?` converts it to this one. The message and source are those of the error inside.
/// `Debug` prints an [`ErrorChain`], so that a `main` that returns this error ends with the error and its causes on one line.
///
/// ```
/// use fabricast::Node;
///
/// fn main() -> Result<(), fabricast::Error> {
///     let node = Node::builder().name("weather")?;
/// #   let dir = tempfile::tempdir().expect("a directory");
/// #   let node = node.runtime_dir(dir.path());
///     let node = node.open()?;
///     let mut publisher = node.state_publisher::<String>("tokyo").open()?;
///     publisher.publish(&"sunny".to_owned())?;
///     let mut subscriber = node.state_subscriber::<String>("shm:weather/tokyo").open()?;
///     assert_eq!(subscriber.try_receive()?.map(|sample| sample.value).as_deref(), Some("sunny"));
///     Ok(())
/// }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text is not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A task cannot wait for a subscriber. Exists with the cargo feature `tokio`.
    #[cfg(feature = "tokio")]
    #[error(transparent)]
    Async(#[from] AsyncError),
    /// Bytes are not a value.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A subscriber could not be dialled.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// Nodes or topics could not be listed.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// A value could not be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// A set of subscribers, or a queue of events, could not be made or waited for.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Subscribers have not received the end of a topic.
    #[error(transparent)]
    Finish(#[from] FinishError),
    /// A topic could not be inspected.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// A keyring is unusable.
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    /// A text is not a node or topic name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A node could not be opened.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A value was not published.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// A publisher could not be opened.
    #[error(transparent)]
    Publisher(#[from] PublisherError),
    /// No value was received.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// A type has no schema, or bytes are not a schema.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A subscriber could not be opened.
    #[error(transparent)]
    Subscriber(#[from] SubscriberError),
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&ErrorChain(self), out)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;
    use std::io;

    use super::*;
    use crate::control::ControlError;
    use crate::fabric::{FabricError, Target};
    use crate::id::NodeName;
    use crate::memory::MemoryError;

    fn named(text: &str) -> Result<NodeName, Error> {
        Ok(text.parse::<NodeName>()?)
    }

    #[test]
    fn it_speaks_as_the_error_inside() {
        let error = named("").unwrap_err();
        assert!(matches!(error, Error::Name(NameError::Empty { .. })));
        assert_eq!(error.to_string(), "a node name must not be empty");
        assert!(error.source().is_none());

        let error = Error::from(ReceiveError::Gone { source: ControlError::Disconnected });
        let source = error.source().map(ToString::to_string);
        assert_eq!(source, Some(ControlError::Disconnected.to_string()));
        assert_eq!(format!("{error:?}"), format!("the publisher is gone: {}", ControlError::Disconnected));
    }

    #[test]
    fn no_cause_is_printed_twice() {
        let system = |what| FabricError::System { what, source: io::ErrorKind::NotFound.into() };
        let target: Target = "shm:q/t".parse().unwrap();
        let error = SubscriberError::Unreachable { target, source: system("open a socket") };
        assert_eq!(
            ErrorChain(&error).to_string(),
            "cannot subscribe to shm:q/t: cannot open a socket: entity not found"
        );
    }

    /// Each error of the operating system's, with its answer for a source.
    #[test]
    fn no_sentence_holds_the_answer_of_the_operating_system() {
        let source = || io::Error::other("the answer");
        let errors: [Box<dyn StdError>; 2] = [
            Box::new(FabricError::System { what: "do it", source: source() }),
            Box::new(MemoryError::System { what: "make", len: 8, source: source() }),
        ];
        for error in errors {
            assert!(!error.to_string().contains("the answer"), "{error}");
            let chain = ErrorChain(&*error).to_string();
            assert_eq!(chain.matches("the answer").count(), 1, "{chain}");
        }
    }

    #[test]
    fn it_goes_from_thread_to_thread() {
        fn goes<T: Send + Sync + 'static>() {}
        goes::<Error>();
    }
}
