//! Fellow subscribers over RDMA that forge notices: `tools/soft-roce run` runs this.

use super::*;
use crate::notice::{Inline, Notice};
use crate::publisher::StatePublisher;
use crate::repository::state::forgery;
use crate::subscriber::{InlineValues, NoticePath};

/// The payload of every forged value.
const FORGED: [u8; 16] = [0xff; 16];
/// Forged values, and values whose time is measured.
const ROUNDS: u64 = 20;
const MEASURED: u64 = 400;

/// A subscriber of its own node, and what became of what it received.
struct Fellow {
    subscriber: StateSubscriber<Raw>,
    _node: Node,
    forged: u64,
    contradicted: u64,
}

impl Fellow {
    fn open(dir: &tempfile::TempDir, target: &str, keyring: Keyring, trusts: bool) -> Self {
        let node = Node::builder().runtime_dir(dir.path()).keys(keyring).open().unwrap();
        let builder = node.state_subscriber::<Raw>(target).notices().timeout(TIMEOUT);
        let builder = if trusts { builder.trust_fellow_subscribers() } else { builder };
        Self { subscriber: builder.open().unwrap(), _node: node, forged: 0, contradicted: 0 }
    }

    /// Receives once. Returns the number of a genuine value.
    fn receive(&mut self) -> Option<u64> {
        match self.subscriber.try_receive() {
            Ok(None) | Err(ReceiveError::Contended { .. }) => None,
            Ok(Some(sample)) if sample.value == FORGED => {
                self.forged += 1;
                None
            }
            Ok(Some(sample)) => Some(u64::from_le_bytes(sample.value.try_into().unwrap())),
            Err(ReceiveError::Contradicted { .. }) => {
                self.contradicted += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn await_value(&mut self, number: u64) {
        wait_until("the genuine value", || self.receive() == Some(number));
    }

    fn untrusted(&self) -> u64 {
        self.subscriber.notice_counts().inline_untrusted
    }
}

/// Sends a value that follows the newest one, in the publisher's name, with the key that all subscribers have.
fn forge(publishing: &Node, newest: u64) {
    let topic = publishing.core().topic(&"t".parse().unwrap()).unwrap();
    let sequence = Sequence::new(newest + 1);
    let notice = topic.notices.notice(sequence, 0, 5);
    let Notice { topic: id, epoch, .. } = notice;
    let (memory, range) = forgery::slot(id, epoch, sequence.get(), &FORGED);
    let inline = Some(Inline { memory: &memory, range, records: 1 });
    topic.notices.channels().iter().for_each(|channel| channel.forge(&notice, topic.notices.key, inline));
}

/// The medians of the times from before a publish until each of these subscribers has the value, by turns.
fn measure(publisher: &mut StatePublisher<Raw>, fellows: &mut [&mut Fellow; 2]) -> [Duration; 2] {
    let mut times_ns = [Vec::new(), Vec::new()];
    for round in 0..MEASURED {
        let (number, began_ns) = (publisher.newest().get() + 1, SystemClock.monotonic_ns());
        publisher.publish(&number.to_le_bytes()).unwrap();
        let index = (round % 2) as usize;
        // Without pauses between the polls.
        while fellows[index].receive() != Some(number) {
            assert!(SystemClock.monotonic_ns() - began_ns < TIMEOUT.as_nanos() as u64, "in vain");
        }
        times_ns[index].push(SystemClock.monotonic_ns() - began_ns);
        fellows[1 - index].await_value(number);
    }
    times_ns.map(|mut times_ns| {
        times_ns.sort_unstable();
        Duration::from_nanos(times_ns[times_ns.len() / 2])
    })
}

#[test]
#[ignore = "needs an RDMA device"]
fn forged_multicast_is_never_a_value_over_rdma() {
    let dir = tempfile::tempdir().unwrap();
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    let at = format!("rdma://{host}:7495");
    let keyring = || Keyring::from_text(&format!("k read t {}", "ab".repeat(32))).unwrap();
    let builder = Node::builder().name("publishing").unwrap().runtime_dir(dir.path()).rdma(&at).unwrap();
    let publishing = builder.keys(keyring()).open().unwrap();
    let mut publisher = publishing.state_publisher::<Raw>("t").payload_len_max(64).open().unwrap();
    let target = format!("{at}/t");
    let mut careful = Fellow::open(&dir, &target, keyring(), false);
    let mut trusting = Fellow::open(&dir, &target, keyring(), true);
    for fellow in [&mut careful, &mut trusting] {
        wait_until("multicast", || {
            fellow.receive();
            fellow.subscriber.notice_path() == NoticePath::Multicast
        });
    }
    let inline = [&careful, &trusting].map(|fellow| fellow.subscriber.inline_values());
    assert_eq!(inline, [InlineValues::Unicast, InlineValues::All]);
    let [read, taken] = measure(&mut publisher, &mut [&mut careful, &mut trusting]);
    println!("from a publish to the value: {read:?} if it is read, {taken:?} if it is taken from the notice");

    for _ in 0..ROUNDS {
        let (newest, untrusted) = (publisher.newest().get(), careful.untrusted());
        forge(&publishing, newest);
        wait_until("the forged notice", || {
            trusting.receive();
            careful.receive();
            careful.untrusted() > untrusted
        });
        // Until what was taken has been compared.
        let until_ns = SystemClock.monotonic_ns() + 2 * limits::NOTICE_DOUBT_NS;
        while SystemClock.monotonic_ns() < until_ns {
            assert_eq!(careful.receive(), None);
            trusting.receive();
        }
        publisher.publish(&(newest + 1).to_le_bytes()).unwrap();
        careful.await_value(newest + 1);
        trusting.await_value(newest + 1);
    }
    assert_eq!((careful.forged, careful.contradicted), (0, 0));
    assert_eq!((trusting.forged, trusting.contradicted), (1, 1));
    let inline = [&careful, &trusting].map(|fellow| fellow.subscriber.inline_values());
    assert_eq!(inline, [InlineValues::Unicast, InlineValues::Contradicted]);
    assert_eq!([&careful, &trusting].map(|fellow| fellow.subscriber.stats().contradicted), [0, 1]);
}
