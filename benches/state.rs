//! Commit, check, publish and read of state topics, compared with memcpy and the checksum of the same sizes.
//!
//! `cargo bench --bench state`. Compare figures within one run.

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use fabricast::measure::RepositoryParts;
use fabricast::{Delivery, Node, Raw, StatePublisher, StateSubscriber};

const SIZES: [usize; 5] = [64, 1024, 16 * 1024, 64 * 1024, 1024 * 1024];

fn main() {
    divan::main();
}

fn payload(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

#[divan::bench(args = SIZES)]
fn floor_memcpy(bencher: Bencher<'_, '_>, len: usize) {
    let source = payload(len);
    let mut target = vec![0; len];
    bencher.counter(BytesCount::new(len)).bench_local(|| {
        black_box(&mut target).copy_from_slice(black_box(&source));
    });
}

#[divan::bench(args = SIZES)]
fn floor_crc32fast(bencher: Bencher<'_, '_>, len: usize) {
    let source = payload(len);
    bencher.counter(BytesCount::new(len)).bench_local(|| crc32fast::hash(black_box(&source)));
}

#[divan::bench(args = SIZES)]
fn commit(bencher: Bencher<'_, '_>, len: usize) {
    let mut parts = RepositoryParts::new(8, len).expect("a repository");
    let source = payload(len);
    bencher.counter(BytesCount::new(len)).bench_local(|| parts.commit(black_box(&source)));
}

#[divan::bench(args = SIZES)]
fn check(bencher: Bencher<'_, '_>, len: usize) {
    let mut parts = RepositoryParts::new(8, len).expect("a repository");
    assert!(parts.commit(&payload(len)));
    assert_eq!(parts.check(), Some(len));
    bencher.counter(BytesCount::new(len)).bench_local(|| {
        assert_eq!(black_box(parts.recheck()), Some(len));
    });
}

#[divan::bench(args = SIZES)]
fn commit_and_check(bencher: Bencher<'_, '_>, len: usize) {
    let mut parts = RepositoryParts::new(8, len).expect("a repository");
    let source = payload(len);
    bencher.counter(BytesCount::new(len)).bench_local(|| {
        parts.commit(black_box(&source));
        assert_eq!(black_box(parts.check()), Some(len));
    });
}

#[divan::bench(args = SIZES)]
fn publish(bencher: Bencher<'_, '_>, len: usize) {
    let mut ends = Ends::open(len, None);
    let source = payload(len);
    bencher.counter(BytesCount::new(len)).bench_local(|| ends.publisher.publish(black_box(&source)));
}

#[divan::bench(args = SIZES)]
fn publish_and_read_pull(bencher: Bencher<'_, '_>, len: usize) {
    publish_and_read(bencher, len, Delivery::Pull);
}

#[divan::bench(args = SIZES)]
fn publish_and_read_push(bencher: Bencher<'_, '_>, len: usize) {
    publish_and_read(bencher, len, Delivery::Push);
}

fn publish_and_read(bencher: Bencher<'_, '_>, len: usize, delivery: Delivery) {
    let mut ends = Ends::open(len, Some(delivery));
    let source = payload(len);
    let mut subscriber = ends.subscriber.take().expect("a subscriber");
    bencher.counter(BytesCount::new(len)).bench_local(|| {
        ends.publisher.publish(black_box(&source)).expect("a publish");
        let sample = subscriber.try_receive_ref().expect("a sound topic").expect("a value");
        assert_eq!(black_box(sample.bytes).len(), len);
    });
}

/// A publisher and optionally a subscriber of one topic, in this process, with a runtime directory of their own.
struct Ends {
    publisher: StatePublisher<Raw>,
    subscriber: Option<StateSubscriber<Raw>>,
    _holder: tempfile::TempDir,
}

impl Ends {
    fn open(len: usize, delivery: Option<Delivery>) -> Self {
        let holder = tempfile::tempdir().expect("a directory");
        let builder = Node::builder().name("bench").expect("a name").runtime_dir(holder.path());
        let node = builder.open().expect("a node");
        let publisher = node.state_publisher::<Raw>("t").payload_len_max(len).open().expect("a publisher");
        let subscriber = delivery.map(|delivery| {
            node.state_subscriber::<Raw>("shm:bench/t").delivery(delivery).open().expect("a subscriber")
        });
        Self { publisher, subscriber, _holder: holder }
    }
}
