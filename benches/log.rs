//! Appending and checking log records, by the parts and through the public API, compared with memcpy of the same sizes.
//!
//! `cargo bench --bench log`. Compare figures within one run. A batch is 256 records: one commit, then a reader receives them.

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use fabricast::measure::{LogParts, LogStart};
use fabricast::{Node, Raw};

const SIZES: [usize; 4] = [64, 1024, 16 * 1024, 64 * 1024];
const BATCH: usize = 256;
/// Bytes of the ring: enough for a batch of the longest records.
const CAPACITY: usize = 2 * BATCH * (SIZES[3] + 64);

fn main() {
    divan::main();
}

fn payload(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

#[divan::bench(args = SIZES)]
fn floor_memcpy(bencher: Bencher<'_, '_>, len: usize) {
    let source = payload(len);
    let mut target = vec![0; len * BATCH];
    bencher.counter(BytesCount::new(len * BATCH)).counter(ItemsCount::new(BATCH)).bench_local(|| {
        black_box(&mut target).chunks_exact_mut(len).for_each(|to| to.copy_from_slice(black_box(&source)));
    });
}

#[divan::bench(args = SIZES)]
fn append_a_batch(bencher: Bencher<'_, '_>, len: usize) {
    let mut parts = LogParts::new(CAPACITY, len).expect("a ring");
    let source = payload(len);
    bencher.counter(BytesCount::new(len * BATCH)).counter(ItemsCount::new(BATCH)).bench_local(|| {
        (0..BATCH).for_each(|_| assert!(parts.append(black_box(&source))));
        parts.commit();
    });
}

#[divan::bench(args = SIZES)]
fn append_and_check_a_batch(bencher: Bencher<'_, '_>, len: usize) {
    let mut parts = LogParts::new(CAPACITY, len).expect("a ring");
    let source = payload(len);
    bencher.counter(BytesCount::new(len * BATCH)).counter(ItemsCount::new(BATCH)).bench_local(|| {
        (0..BATCH).for_each(|_| assert!(parts.append(black_box(&source))));
        parts.commit();
        (0..BATCH).for_each(|_| assert_eq!(parts.check().map(|(_, payload)| payload.len()), Some(len)));
    });
}

/// The same through the public API, by pull in one process: shows what node, publisher and subscriber add.
#[divan::bench(args = SIZES)]
fn publish_and_receive_a_batch(bencher: Bencher<'_, '_>, len: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let builder = Node::builder().name("bench").expect("a name");
    let node = builder.runtime_dir(dir.path()).open().expect("a node");
    let publisher = node.log_publisher::<Raw>("batches").payload_len_max(len).capacity(CAPACITY);
    let mut publisher = publisher.open().expect("a topic");
    let mut subscriber = node.log_subscriber::<Raw>("shm:bench/batches").open().expect("a subscriber");
    let source = payload(len * BATCH);
    bencher.counter(BytesCount::new(len * BATCH)).counter(ItemsCount::new(BATCH)).bench_local(|| {
        publisher.publish_batch(black_box(&source).chunks_exact(len)).expect("room");
        for _ in 0..BATCH {
            let record = subscriber.try_receive_ref().expect("no loss").expect("a record");
            assert_eq!(black_box(record.bytes).len(), len);
        }
    });
}

/// The cost of joining with the last thousand records.
#[divan::bench]
fn join_a_thousand_back(bencher: Bencher<'_, '_>) {
    let mut parts = LogParts::new(CAPACITY, 64).expect("a ring");
    (0..100_000).for_each(|_| assert!(parts.append(&[7; 64])));
    let newest = parts.commit().get();
    bencher.bench_local(|| {
        parts.join(LogStart::Back(1000)).expect("a header");
        assert_eq!(parts.check().map(|(sequence, _)| sequence.get()), Some(newest - 999));
    });
}
