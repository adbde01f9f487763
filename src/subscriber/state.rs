#[cfg(doc)]
use super::Sample;
use super::handle::Readable;
use super::{Subscriber, TopicKind};
use crate::repository::state::{StateReader, StateTopic};

#[cfg(test)]
mod tests;

/// Receives the newest value of a state topic, each value at most once.
///
/// [`Sample::conflated`] counts the values replaced before this subscriber read them: every missed value is counted.
///
/// ```
/// use fabricast::Node;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let publishing = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let mut publisher = publishing.state_publisher::<(f64, f64)>("EURUSD").open()?;
/// publisher.publish(&(1.0841, 1.0843))?;
///
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let mut subscriber = node.state_subscriber::<(f64, f64)>("shm:quotes/EURUSD").open()?;
/// let sample = subscriber.try_receive()?.ok_or("nothing published")?;
/// assert_eq!((sample.value, sample.meta.sequence.get()), ((1.0841, 1.0843), 1));
/// assert!(subscriber.try_receive()?.is_none());
/// # Ok(())
/// # }
/// ```
pub type StateSubscriber<T> = Subscriber<StateTopic, T>;

impl TopicKind for StateTopic {}

impl Readable for StateTopic {
    type Reader = StateReader;
}
