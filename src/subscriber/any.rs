use super::{GrantError, LogSubscriber, StateSubscriber, Subscription};
use crate::id::{Kind, TopicName};
use crate::layout::Geometry;
use crate::payload::{Payload, Raw, Schema};
use crate::repository::log::LogStart;

/// A subscriber of a topic whose kind nobody knew before it was attached, as an inspector or a recorder has it.
///
/// It attaches once, and so is counted once by the publisher: the grant says the kind. Match on it for what that kind has to
/// offer. [`Node::any_subscriber`](crate::Node::any_subscriber) opens one.
///
/// ```
/// use fabricast::{AnySubscriber, Node, Raw};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let publishing = Node::builder().name("exchange")?.runtime_dir(dir.path()).open()?;
/// let mut trades = publishing.log_publisher::<u64>("trades").open()?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let subscriber = node.any_subscriber::<Raw>("shm:exchange/trades").open()?;
/// trades.publish(&30)?;
/// match subscriber {
///     AnySubscriber::State(_) => unreachable!("trades are a log"),
///     AnySubscriber::Log(mut records) => {
///         assert_eq!(records.try_receive()?.map(|record| record.value), Some(30_u64.to_le_bytes().to_vec()));
///     }
///     _ => println!("a kind that this program does not know"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AnySubscriber<T: Payload = Raw> {
    /// Of a state topic: the newest value.
    State(Box<StateSubscriber<T>>),
    /// Of a log topic: all records.
    Log(Box<LogSubscriber<T>>),
}

impl<T: Payload> AnySubscriber<T> {
    /// The subscriber of what was granted. One of a log begins here.
    pub(crate) fn open(subscription: Subscription, start: LogStart) -> Result<Self, GrantError> {
        Ok(match subscription.granted().geometry {
            Geometry::State(_) => Self::State(StateSubscriber::new(subscription)?.into()),
            Geometry::Log(_) => Self::Log(LogSubscriber::open(subscription, start)?.into()),
        })
    }

    /// The kind of the topic.
    pub fn kind(&self) -> Kind {
        match self {
            Self::State(_) => StateSubscriber::<T>::KIND,
            Self::Log(_) => LogSubscriber::<T>::KIND,
        }
    }

    /// The topic's name.
    pub fn topic(&self) -> &TopicName {
        match self {
            Self::State(state) => state.topic(),
            Self::Log(log) => log.topic(),
        }
    }

    /// What the topic's values are.
    pub fn schema(&self) -> &Schema {
        match self {
            Self::State(state) => state.schema(),
            Self::Log(log) => log.schema(),
        }
    }
}
