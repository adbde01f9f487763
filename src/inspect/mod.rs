//! Reports on a topic from its repository, to be printed or serialised.
//!
//! A report reads the repository one-sidedly: it changes nothing at the publisher, and works even while the publisher hangs.

use std::fmt::{self, Display};

use serde::{Serialize, Serializer};

use crate::fabric::FabricError;
use crate::id::{Epoch, Kind, Sequence, TopicId, TopicName};
use crate::layout::Fact;
use crate::layout::header::{
    COUNTERS_LEN, COUNTERS_OFFSET, HOT_HEARTBEAT, HOT_PUBLISHED, HOT_SEQUENCE, HeaderError, LAYOUT_VERSION,
    STATIC_OFFSET, StaticHeader,
};
use crate::limits;
use crate::metrics::{self, Counter, Unit};
use crate::payload::{Encoding, Schema};
use crate::subscriber::Subscribed;

/// The prefix of the counter that names the host.
const HOST_PREFIX: &str = "host: ";

/// The headers of a topic's repository, at one moment.
///
/// The publisher may write while the report is made, so numbers that change with each value (sequence, length, times, counters)
/// may belong to neighbouring values.
///
/// ```
/// use fabricast::{Liveness, Node, Raw, TopicReport};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
/// let mut publisher = node.state_publisher::<(f64, f64)>("EURUSD").open()?;
/// publisher.publish(&(1.0841, 1.0843))?;
///
/// let report = TopicReport::of(&mut node.state_subscriber::<Raw>("shm:quotes/EURUSD").open()?)?;
/// assert_eq!((report.sequence.get(), report.fact("newest_len"), report.state), (1, Some(16), Liveness::Live));
/// assert_eq!(report.process, Some(std::process::id()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TopicReport {
    /// Its name.
    pub topic: TopicName,
    /// Its kind.
    pub kind: Kind,
    /// The name of its payload type.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The encoding of its values.
    pub encoding: Encoding,
    /// Whether its publisher is alive: see [`Liveness::of`].
    pub state: Liveness,
    /// The sequence of its newest value.
    pub sequence: Sequence,
    /// Facts that depend on the kind. For a state `newest_len`, the length of its newest value; for a log `first_sequence`, that
    /// of the oldest record, or one more than the newest if it is empty, and `held_len`, the bytes of the records with their
    /// headers; for a table `keys`, their number. Serialised as fields of the report.
    #[serde(flatten, serialize_with = "as_fields")]
    pub held: Vec<Fact>,
    /// When its newest value was published, nanoseconds since the Unix epoch; `None` for never.
    pub published_ns: Option<u64>,
    /// How long ago that was, nanoseconds, by the [clock](crate::PublisherClock) of the publisher.
    pub age_ns: Option<u64>,
    /// When its publisher's node last showed that it is alive, nanoseconds since the Unix epoch.
    pub heartbeat_ns: u64,
    /// How long ago that was, nanoseconds, by the same clock.
    pub heartbeat_age_ns: u64,
    /// How long its values are valid, nanoseconds; `None` for ever.
    pub lifespan_ns: Option<u64>,
    /// Its incarnation. Serialised as 16 hexadecimal digits.
    #[serde(serialize_with = "as_text")]
    pub epoch: Epoch,
    /// Its identifier in its repository. Serialised as 16 hexadecimal digits.
    #[serde(serialize_with = "as_text")]
    pub topic_id: TopicId,
    /// The publisher's process.
    pub process: Option<u32>,
    /// The publisher's host.
    pub host: Option<String>,
    /// When the topic was opened, nanoseconds since the Unix epoch.
    pub started_ns: Option<u64>,
    /// The geometry of its repository.
    pub geometry: GeometryReport,
    /// The remote key of its repository; `None` unless requested. Serialised as hexadecimal digits.
    #[serde(serialize_with = "as_optional_hex")]
    pub rkey: Option<u64>,
    /// The remote address of its repository; `None` unless requested. Serialised as hexadecimal digits.
    #[serde(serialize_with = "as_optional_hex")]
    pub address: Option<u64>,
    /// The publisher's counters.
    pub counters: Vec<Counter>,
    /// The publisher's distinct errors: how often, first and last time.
    pub errors: Vec<Counter>,
    /// The schema of its values.
    pub schema: Schema,
}

/// The geometry of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GeometryReport {
    /// The version of the layout.
    pub layout_version: u16,
    /// The largest payload, bytes.
    pub payload_len_max: usize,
    /// The whole region, bytes.
    pub region_len: usize,
    /// Facts that depend on the kind. For a state `slot_count` and `slot_len`, the bytes from one slot to the next; for a log
    /// `ring_len`, `segment_count` and `segment_len`; for a table `capacity`, `key_len_max`, and `slot_len`, the bytes from one slot to
    /// the next. Serialised as fields of the report.
    #[serde(flatten, serialize_with = "as_fields")]
    pub parts: Vec<Fact>,
}

/// Whether a publisher is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Liveness {
    /// Its heartbeat advances.
    Live,
    /// Its process runs, but has not shown that it is alive for [`limits::HEARTBEAT_STALE_NS`].
    Hung,
    /// It was dropped, or its process has ended.
    Gone,
}

/// Why a topic could not be inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The subscriber has a landing region instead of the repository.
    #[error("a push subscriber does not read the repository: inspect with a pull subscriber")]
    Landing,
    /// The repository could not be read.
    #[error("the repository's headers cannot be read")]
    Fabric(#[from] FabricError),
    /// The header was damaged after the subscriber attached.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

impl TopicReport {
    /// Reports on the topic that this subscriber pulls, without remote key and address. Allocates. Does not block on the
    /// publisher's host, and for a round trip on another.
    ///
    /// # Errors
    ///
    /// [`InspectError`] when the subscriber does not read the repository, or its header is damaged.
    pub fn of(subscriber: &mut impl Subscribed) -> Result<Self, InspectError> {
        let region = &*subscriber.headers()?.ok_or(InspectError::Landing)?;
        let mut words = [0; StaticHeader::WORDS];
        region.copy_out(STATIC_OFFSET, &mut words);
        let line = StaticHeader::parse(&words)?;
        let heartbeat_ns = region.load(HOT_HEARTBEAT);
        let subscription = subscriber.subscription();
        let state = match subscription.end() {
            Some(_) => Liveness::Gone,
            None => of_heartbeat(subscription.heart_stands_ns(heartbeat_ns)),
        };
        let granted = &subscription.granted;
        let geometry = &granted.geometry;
        // Acquire: pairs with the Release store of the newest sequence in `StateWriter::close_slot`.
        let sequence = Sequence::new(region.load_acquire(HOT_SEQUENCE));
        let published_ns = Some(region.load(HOT_PUBLISHED)).filter(|published_ns| *published_ns != 0);
        let clock = subscription.publisher_clock();
        let age_ns = |published_ns| u64::try_from(clock.age_ns(published_ns)).unwrap_or(0);
        let counters = metrics::read(region, COUNTERS_OFFSET, COUNTERS_LEN);
        let valued = |unit| counters.iter().find(|counter| counter.unit == unit).map(|counter| counter.value);
        let process = valued(Unit::Process).and_then(|process| u32::try_from(process).ok());
        let host = counters.iter().find_map(|counter| counter.name.strip_prefix(HOST_PREFIX));
        let (host, started_ns) = (host.map(str::to_owned), valued(Unit::Time));
        let described = |unit| matches!(unit, Unit::Process | Unit::Time | Unit::Text);
        let counters = counters.into_iter().filter(|counter| !described(counter.unit));
        let (errors, counters) = counters.partition(|counter| counter.unit == Unit::Error);
        Ok(Self {
            topic: granted.topic.clone(),
            kind: line.kind,
            type_name: granted.schema.type_name().to_owned(),
            encoding: granted.schema.encoding(),
            state,
            sequence,
            held: geometry.held(region),
            published_ns,
            age_ns: published_ns.map(age_ns),
            heartbeat_ns,
            heartbeat_age_ns: age_ns(heartbeat_ns),
            lifespan_ns: Some(granted.lifespan_ns).filter(|lifespan_ns| *lifespan_ns != 0),
            epoch: line.epoch,
            topic_id: line.topic,
            process,
            host,
            started_ns,
            geometry: GeometryReport {
                layout_version: LAYOUT_VERSION,
                payload_len_max: geometry.payload_len_max(),
                region_len: geometry.region_len(),
                parts: geometry.facts(),
            },
            rkey: None,
            address: None,
            counters,
            errors,
            schema: granted.schema.clone(),
        })
    }

    /// Does the same as [`Self::of`], with remote key and address. On the `shm` fabric they are of no use.
    ///
    /// # Errors
    ///
    /// Those of [`Self::of`].
    pub fn with_keys(subscriber: &mut impl Subscribed) -> Result<Self, InspectError> {
        let granted = &subscriber.subscription().granted;
        let (rkey, address) = (Some(granted.key), Some(granted.address));
        Ok(Self { rkey, address, ..Self::of(subscriber)? })
    }
}

impl TopicReport {
    /// Returns the fact of this name from [`Self::held`] and the geometry's parts; `None` if the topic's kind lacks it.
    pub fn fact(&self, name: &str) -> Option<u64> {
        let mut facts = self.held.iter().chain(&self.geometry.parts);
        facts.find(|fact| fact.name == name).map(|fact| fact.value)
    }
}

impl Liveness {
    /// Returns whether the publisher of this subscriber's topic is alive; `None` for a push subscriber, which sees no heartbeat.
    /// Neither blocks nor allocates on the publisher's host, unless the topic has ended; blocks for a round trip on another host.
    ///
    /// For a publisher on another host, whose clock is not comparable, the heart has stopped if it has not beaten between two
    /// calls [`limits::HEARTBEAT_STALE_NS`] apart; so the first call always returns `Live`.
    pub fn of(subscriber: &mut impl Subscribed) -> Option<Self> {
        if subscriber.subscription().end().is_some() {
            return Some(Self::Gone);
        }
        let heartbeat_ns = subscriber.headers().ok()??.load(HOT_HEARTBEAT);
        Some(of_heartbeat(subscriber.subscription().heart_stands_ns(heartbeat_ns)))
    }
}

impl Display for Liveness {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Live => "live",
            Self::Hung => "hung",
            Self::Gone => "gone",
        })
    }
}

fn of_heartbeat(stands_ns: u64) -> Liveness {
    if stands_ns < limits::HEARTBEAT_STALE_NS { Liveness::Live } else { Liveness::Hung }
}

fn as_fields<S: Serializer>(facts: &[Fact], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(facts.iter().map(|fact| (fact.name, fact.value)))
}

fn as_text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn as_optional_hex<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(&format_args!("{value:016x}")),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::node::Node;
    use crate::subscriber::SubscriberHandle;

    /// How long a test waits for what must come.
    const TIMEOUT: Duration = Duration::from_secs(60);

    fn node(dir: &tempfile::TempDir) -> Node {
        Node::builder().name("p").unwrap().runtime_dir(dir.path()).open().unwrap()
    }

    #[test]
    fn report_shows_what_the_publisher_has_written() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(&dir);
        let mut publisher =
            node.state_publisher::<String>("a/b").slots(16).payload_len_max(100).open().unwrap();
        let mut subscriber = node.state_subscriber::<String>("shm:p/a/b").timeout(TIMEOUT).open().unwrap();
        let report = TopicReport::of(&mut subscriber).unwrap();
        assert_eq!((report.sequence, report.published_ns, report.age_ns), (Sequence::NONE, None, None));

        publisher.publish(&"hello".to_owned()).unwrap();
        publisher.publish(&"x".repeat(1000)).unwrap_err();
        let report = TopicReport::of(&mut subscriber).unwrap();
        assert_eq!(
            (report.topic.as_str(), report.kind, report.type_name.as_str()),
            ("a/b", Kind::State, "String")
        );
        assert_eq!(
            (report.sequence.get(), report.fact("newest_len"), report.state),
            (1, Some(13), Liveness::Live)
        );
        assert_eq!((report.epoch, report.process), (publisher.epoch(), Some(std::process::id())));
        assert!(report.host.is_some() && report.started_ns <= report.published_ns);
        assert_eq!((report.fact("slot_count"), report.geometry.payload_len_max), (Some(16), 100));
        assert_eq!(report.errors.len(), 1);
        assert_eq!(report.errors[0].value, 1);
        let bytes = report.counters.iter().find(|counter| counter.name == "bytes").unwrap();
        assert_eq!(bytes.value, 13);
        assert_eq!((report.rkey, report.address), (None, None));
        assert!(TopicReport::with_keys(&mut subscriber).unwrap().rkey.is_some());
    }

    #[test]
    fn report_of_a_log_shows_its_contents() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(&dir);
        let mut publisher = node.log_publisher::<u64>("t").capacity(4096).payload_len_max(8).open().unwrap();
        let mut subscriber = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).open().unwrap();
        let report = TopicReport::of(&mut subscriber).unwrap();
        assert_eq!((report.sequence, report.fact("first_sequence")), (Sequence::NONE, Some(1)));
        assert_eq!((report.fact("held_len"), report.fact("newest_len")), (Some(0), None));
        publisher.publish_batch(&[1, 2, 3]).unwrap();
        let report = TopicReport::of(&mut subscriber).unwrap();
        assert_eq!((report.sequence.get(), report.fact("held_len")), (3, Some(96)));
        for number in 0..1000 {
            publisher.publish(&number).unwrap();
        }
        let report = TopicReport::of(&mut subscriber).unwrap();
        assert_eq!((report.kind, report.fact("ring_len")), (Kind::Log, Some(publisher.capacity() as u64)));
        let (first, held_len) = (report.fact("first_sequence").unwrap(), report.fact("held_len").unwrap());
        assert!(first > 800 && held_len <= publisher.capacity() as u64, "{report:?}");
        let mut all = node.log_subscriber::<u64>("shm:p/t").timeout(TIMEOUT).earliest().open().unwrap();
        assert_eq!(all.try_receive().unwrap().unwrap().meta.sequence.get(), first);
        let state = node.state_publisher::<u64>("s").open().unwrap();
        let report =
            TopicReport::of(&mut node.state_subscriber::<u64>("shm:p/s").timeout(TIMEOUT).open().unwrap())
                .unwrap();
        let line = serde_json::to_string(&report).unwrap();
        assert!(["capacity", "first_sequence", "held_len"].iter().all(|name| !line.contains(name)), "{line}");
        drop(state);
    }

    #[test]
    fn report_is_json_with_64_bit_numbers_as_text() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(&dir);
        let publisher = node.state_publisher::<u32>("t").open().unwrap();
        let mut subscriber = node.state_subscriber::<u32>("shm:p/t").timeout(TIMEOUT).open().unwrap();
        let report = serde_json::to_value(TopicReport::with_keys(&mut subscriber).unwrap()).unwrap();
        assert_eq!(report["epoch"], publisher.epoch().to_string());
        assert_eq!(report["rkey"].as_str().unwrap().len(), 16);
        assert_eq!((&report["type"], &report["state"]), (&"u32".into(), &"live".into()));
        assert_eq!(report["schema"]["format"], "u32");
        let masked = serde_json::to_value(TopicReport::of(&mut subscriber).unwrap()).unwrap();
        assert!(masked["rkey"].is_null() && masked["address"].is_null());
    }

    #[test]
    fn only_a_pull_subscriber_can_inspect() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(&dir);
        let publisher = node.state_publisher::<u32>("t").open().unwrap();
        let mut push = node.state_subscriber::<u32>("shm:p/t").timeout(TIMEOUT).push().open().unwrap();
        let mut pull = node.state_subscriber::<u32>("shm:p/t").timeout(TIMEOUT).open().unwrap();
        assert!(matches!(TopicReport::of(&mut push), Err(InspectError::Landing)));
        assert_eq!((Liveness::of(&mut push), Liveness::of(&mut pull)), (None, Some(Liveness::Live)));
        drop(publisher);
        while pull.subscription().end().is_none() {
            std::thread::yield_now();
        }
        assert_eq!(Liveness::of(&mut pull), Some(Liveness::Gone));
        assert_eq!(TopicReport::of(&mut pull).unwrap().state, Liveness::Gone);
    }

    #[test]
    fn report_of_an_ended_topic_shows_its_last_state() {
        let dir = tempfile::tempdir().unwrap();
        let node = node(&dir);
        let mut publisher = node.state_publisher::<u64>("t").open().unwrap();
        let mut subscriber = node.state_subscriber::<u64>("shm:p/t").open().unwrap();
        publisher.publish(&7).unwrap();
        drop(publisher);
        let timeout = Duration::from_secs(60);
        assert_eq!(subscriber.receive_timeout(timeout).unwrap().unwrap().value, 7);
        subscriber.receive_timeout(timeout).unwrap_err();
        let report = TopicReport::of(&mut subscriber).unwrap();
        assert_eq!((report.sequence.get(), report.state), (Sequence::new(1).get(), Liveness::Gone));
        assert_eq!(subscriber.stats().received, 1);
    }

    #[test]
    fn publisher_with_a_stale_heartbeat_is_hung() {
        assert_eq!(of_heartbeat(limits::HEARTBEAT_STALE_NS - 1), Liveness::Live);
        assert_eq!(of_heartbeat(limits::HEARTBEAT_STALE_NS), Liveness::Hung);
    }
}
