//! Fellow subscribers that know the shared key of a topic's notices, and pass for its publisher.

use super::*;
use crate::event::Event;
use crate::keyring::tests::secret;
use crate::notice::{Inline, Notice};
use crate::payload::Raw;
use crate::repository::state::forgery;
use crate::subscriber::{InlineValues, NoticePath};

/// The payload of every forged value.
const FORGED: [u8; 16] = [0xff; 16];
/// Every value is compared with the publisher's memory by then, ns.
const PROVEN_NS: u64 = limits::NOTICE_DOUBT_NS + 50_000_000;

/// Counts contradictions.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn event(&self, event: &Event) {
        if let Event::Contradicted { .. } = event {
            self.0.lock().push(event.clone());
        }
    }
}

/// A publisher, and a subscriber with another one beside it.
struct Forgery {
    world: Arc<World>,
    publishing: Node,
    publisher: StatePublisher<Raw>,
    subscriber: StateSubscriber<Raw>,
    events: Arc<Recorder>,
    /// Keeps its node.
    _subscribing: Node,
    /// The last value, and whether it was forged.
    last: (u64, bool),
    /// How often a forged value was received.
    forged: u64,
    contradicted: u64,
}

impl Forgery {
    fn new(seed: u64, has_keys: bool, trusts: bool) -> Self {
        let world = World::new(seed, Reach::Fetched);
        if has_keys {
            let line = format!("both read topic {}", secret(1));
            *world.keyring.lock() = Some(Keyring::from_text(&line).unwrap());
        }
        let publishing = world.node("publishing", true);
        let publisher = publishing.state_publisher("topic").payload_len_max(64).open().unwrap();
        let events = Arc::new(Recorder::default());
        let sink: Arc<dyn EventSink> = Arc::<Recorder>::clone(&events);
        let subscribing = world.node_with("subscribing", false, sink);
        let builder = subscribing.state_subscriber("shm:publishing/topic").notices();
        let builder = if trusts { builder.trust_fellow_subscribers() } else { builder };
        let subscriber = builder.open().unwrap();
        let (last, forged, contradicted, _subscribing) = ((0, false), 0, 0, subscribing);
        Self { world, publishing, publisher, subscriber, events, _subscribing, last, forged, contradicted }
    }

    fn newest(&self) -> u64 {
        self.publisher.newest().get()
    }

    fn publish(&mut self) {
        let number = self.newest() + 1;
        self.publisher.publish(&number.to_le_bytes()).unwrap();
    }

    /// Sends a value that follows the newest one after this many others, in the publisher's name and with the shared key.
    fn forge(&self, ahead: u64) {
        let topic = self.publishing.core().topic(&"topic".parse().unwrap()).unwrap();
        let Notice { topic: id, epoch, .. } = topic.notices.notice(Sequence::NONE, 0, 0);
        let sequence = self.newest() + ahead;
        let (memory, range) = forgery::slot(id, epoch, sequence, &FORGED);
        let notice = topic.notices.notice(Sequence::new(sequence), 0, 5);
        for channel in topic.notices.channels() {
            channel.forge(&notice, topic.notices.key, Some(Inline { memory: &memory, range, records: 1 }));
        }
    }

    fn receive(&mut self) {
        match self.subscriber.try_receive() {
            Ok(None) | Err(ReceiveError::Contended { .. }) => {}
            Ok(Some(sample)) => {
                let sequence = sample.meta.sequence.get();
                assert!(sequence > self.last.0, "{sequence} after {:?}", self.last);
                let is_forged = sample.value == FORGED;
                assert!(
                    is_forged || sample.value == sequence.to_le_bytes(),
                    "{sequence}: {:?}",
                    sample.value
                );
                assert!(!is_forged || self.contradicted == 0, "after inline values were refused");
                self.forged += u64::from(is_forged);
                self.last = (sequence, is_forged);
            }
            Err(ReceiveError::Contradicted { first, told, found }) => {
                assert!(told.get() == self.last.0 && found.get() <= self.newest());
                self.contradicted += 1;
                self.last = (first.get() - 1, false);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn run_for(&mut self, duration_ns: u64) {
        let clock = self.world.network.clock();
        let until_ns = clock.monotonic_ns() + duration_ns;
        while self.world.network.clock().monotonic_ns() < until_ns {
            self.world.turn();
            self.receive();
        }
    }

    fn await_path(&mut self, path: NoticePath) {
        for _ in 0..100 {
            if self.subscriber.notice_path() == path {
                return;
            }
            self.run_for(100_000_000);
        }
        panic!("{} instead of {path}", self.subscriber.notice_path());
    }

    /// Publishes and forges by turns, and checks that the newest value is received in the end.
    fn run(&mut self) {
        self.await_path(NoticePath::Multicast);
        self.publish();
        self.run_for(PROVEN_NS);
        for round in 0..12 {
            self.forge(1 + round % 3);
            self.run_for(round % 4 * 3_000_000);
            if round % 2 == 0 {
                self.publish();
            }
            self.run_for(PROVEN_NS);
        }
        self.publish();
        self.run_for(PROVEN_NS);
        assert_eq!(self.last, (self.newest(), false));
    }
}

#[test]
fn subscriber_with_keys_never_receives_what_a_fellow_subscriber_has_forged() {
    each_seed(SEEDS / 10, |seed| {
        let mut forgery = Forgery::new(seed, true, false);
        assert_eq!(forgery.subscriber.inline_values(), InlineValues::Unicast);
        forgery.run();
        let (stats, counts) = (forgery.subscriber.stats(), forgery.subscriber.notice_counts());
        assert_eq!((forgery.forged, forgery.contradicted, stats.contradicted), (0, 0, 0));
        assert!(counts.inline_untrusted >= 12 && counts.inline_taken == 0, "{counts:?}");
        assert!(forgery.events.0.lock().is_empty());

        // By unicast the publisher's values come with their notices.
        forgery.world.network.cut_multicast(true);
        forgery.await_path(NoticePath::Unicast);
        forgery.publish();
        forgery.run_for(PROVEN_NS);
        let counts = forgery.subscriber.notice_counts();
        assert_eq!((forgery.last, counts.inline_taken), ((forgery.newest(), false), 1), "{counts:?}");
    });
}

/// As it always is without keys.
#[test]
fn subscriber_that_trusts_its_fellows_finds_forged_values_and_trusts_no_more() {
    for (has_keys, trusts) in [(true, true), (false, false)] {
        each_seed(SEEDS / 10, |seed| {
            let mut forgery = Forgery::new(seed, has_keys, trusts);
            assert_eq!(forgery.subscriber.inline_values(), InlineValues::All);
            forgery.run();
            assert!(forgery.forged > 0, "otherwise this shows nothing");
            assert_eq!((forgery.contradicted, forgery.subscriber.stats().contradicted), (1, 1));
            assert_eq!(forgery.subscriber.inline_values(), InlineValues::Contradicted);
            let (peer, topic) = ("publishing".parse().unwrap(), "topic".parse().unwrap());
            assert_eq!(*forgery.events.0.lock(), [Event::Contradicted { peer, topic }]);
        });
    }
}
