//! The duration of one delivery over RDMA verbs within one host: the device's loopback, both ends in this thread.
//!
//! Needs a device: run `cargo bench --features verbs --bench verbs_delivery` with its address in `FABRICAST_VERBS_ADDRESS`, or in
//! a virtual machine `tools/perf-verbs`, which compares it with perftest on the same device.

#![expect(clippy::disallowed_methods, reason = "a benchmark keeps time with the standard library")]

use std::time::{Duration, Instant};

use fabricast::{Delivery, Node, Raw, StatePublisher, StateSubscriber};

/// Uncounted deliveries, and counted ones.
const WARM_UP: usize = 200;
const ROUNDS: usize = 3000;
/// The time between two deliveries: longer than a READ on a device. In emulation a READ ends within the call that begins it.
const PAUSE: Duration = Duration::from_micros(20);
/// Bytes of a payload.
const SIZES: [usize; 3] = [64, 4096, 65_536];

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let host = std::env::var("FABRICAST_VERBS_ADDRESS").unwrap_or_else(|_| "10.77.0.1".to_owned());
    println!("{:<32}{:>8}{:>12}{:>12}{:>12}", "one delivery", "size", "p50 ns", "p90 ns", "p99 ns");
    for (number, size) in SIZES.into_iter().enumerate() {
        let address = format!("rdma://{host}:{}", 7600 + number);
        let node = Node::builder().name(&format!("bench-{size}"))?.rdma(&address)?.insecure().open()?;
        let mut publisher = node.state_publisher::<Raw>("values").payload_len_max(size).open()?;
        let subscribing = Node::builder().open()?;
        for (name, delivery) in [
            ("pull: read of a new value", Delivery::Pull),
            ("push: publish to value in hand", Delivery::Push),
        ] {
            let subscriber = subscribing.state_subscriber::<Raw>(&format!("{address}/values"));
            let mut subscriber = subscriber.delivery(delivery).open()?;
            let mut taken = Vec::with_capacity(ROUNDS);
            for round in 0..WARM_UP + ROUNDS {
                let took = deliver(&mut publisher, &mut subscriber, delivery, (round, size))?;
                if round >= WARM_UP {
                    taken.push(took.as_nanos());
                }
            }
            taken.sort_unstable();
            let at = |share: usize| taken.get(taken.len() * share / 100).copied().unwrap_or(0);
            println!("{name:<32}{size:>8}{:>12}{:>12}{:>12}", at(50), at(90), at(99));
        }
    }
    Ok(())
}

/// Publishes a value and waits for it. Returns how long the subscriber took (pull), or both ends (push).
fn deliver(
    publisher: &mut StatePublisher<Raw>,
    subscriber: &mut StateSubscriber<Raw>,
    delivery: Delivery,
    (round, size): (usize, usize),
) -> Outcome<Duration> {
    let byte = u8::try_from(round % 251)?;
    // Completes the read that began before there was a value: it is part of waiting.
    subscriber.try_receive_ref()?;
    let value = vec![byte; size];
    let paused = Instant::now();
    while paused.elapsed() < PAUSE {
        std::hint::spin_loop();
    }
    subscriber.try_receive_ref()?;
    let before = Instant::now();
    publisher.publish(&value[..])?;
    let began = if delivery == Delivery::Pull { Instant::now() } else { before };
    loop {
        if let Some(sample) = subscriber.try_receive_ref()? {
            assert!(sample.bytes.len() == size && sample.bytes.iter().all(|found| *found == byte));
            return Ok(began.elapsed());
        }
    }
}
