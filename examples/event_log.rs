//! An event log: a late subscriber receives earlier events, then live ones, in one loop; a slow one learns how many it has
//! missed. Here both ends are threads of one program; they could be separate processes.
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
    // The ring holds some hundreds of these events: each takes its length and 24 bytes more.
    let builder = node.log_publisher::<Event>("orders").payload_len_max(64).capacity(8192);
    let mut publisher = builder.open()?;
    for number in 1..=EARLIER {
        publisher.publish(&event(number))?;
    }

    let target = "shm:event-log/orders";
    let mut slow = node.log_subscriber::<Event>(target).at(Sequence::new(EARLIER)).open()?;
    let mut late = node.log_subscriber::<Event>(target).earliest().open()?;
    let newest = publisher.newest();
    println!("late: joins after {newest} events, and begins with {}", late.next_sequence());
    let follower = std::thread::spawn(move || {
        // Earlier and live events come in one sequence, until the topic ends or the loop stops.
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
    // It has not polled until now: first it reports what was overwritten, with the exact count; then comes the rest.
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
