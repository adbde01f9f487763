//! An event log: a subscriber that joins late gets earlier events, then live ones, in one loop; one that is too slow is told
//! what it has missed. Both ends are threads of this program here; they could as well be processes.
//!
//! ```text
//! cargo run --example event_log
//! ```

use std::error::Error;

use fabricast::{Node, ReceiveError, Sequence};
use serde::{Deserialize, Serialize};

const EARLIER: u64 = 5;
const EVENTS: u64 = 10;
const BURST: u64 = 1000;

#[derive(Debug, Serialize, Deserialize)]
struct Event {
    number: u64,
    what: String,
}

fn event(number: u64) -> Event {
    Event { number, what: format!("order {} filled", 7000 + number) }
}

fn main() -> Result<(), Box<dyn Error>> {
    let node = Node::builder().name("event-log")?.open()?;
    // The ring holds some hundred of these events: each takes as many bytes as it has, and 24 more.
    let builder = node.log_publisher::<Event>("orders").payload_len_max(64).capacity(8192);
    let mut publisher = builder.open()?;
    for number in 1..=EARLIER {
        publisher.publish(&event(number))?;
    }

    let target = "shm:event-log/orders";
    let mut slow = node.log_subscriber::<Event>(target).at(Sequence::new(EARLIER)).open()?;
    let mut late = node.log_subscriber::<Event>(target).earliest().open()?;
    let newest = publisher.newest();
    println!("late: joins when {newest} events are published, and begins with {}", late.next_sequence());
    let follower = std::thread::spawn(move || {
        // Earlier events and live ones are one row; it ends with the topic unless one stops before.
        for record in late.samples() {
            let record = record?;
            println!("late: {} {:?}", record.meta.sequence, record.value);
            if record.meta.sequence.get() == EVENTS {
                break;
            }
        }
        Ok::<(), ReceiveError>(())
    });
    // With one commit: they become visible together.
    let live: Vec<Event> = (EARLIER + 1..=EVENTS).map(event).collect();
    publisher.publish_batch(&live)?;
    follower.join().expect("the follower does not panic")?;

    let burst: Vec<Event> = (EVENTS + 1..=EVENTS + BURST).map(event).collect();
    publisher.publish_batch(&burst)?;
    drop(publisher);
    // It has not looked until now: what was overwritten is told first, with the exact count; then comes what is left.
    let (mut received, mut missed) = (0, 0);
    for record in slow.samples() {
        match record {
            Ok(_) => received += 1,
            Err(ReceiveError::Lapped { first_lost, count }) => {
                println!("slow: {count} events from {first_lost} on were overwritten");
                missed += count;
            }
            Err(error) => return Err(error.into()),
        }
    }
    println!("slow: {received} received, {missed} missed, the end");
    let all = EVENTS + BURST - EARLIER + 1;
    if received + missed == all { Ok(()) } else { Err("events are unaccounted for".into()) }
}
