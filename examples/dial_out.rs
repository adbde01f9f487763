//! A publisher dials and a subscriber listens, the reverse of the usual roles. Here both are threads of one program; in separate
//! processes only the address would change.
//!
//! ```text
//! cargo run --example dial_out
//! ```

#![expect(clippy::disallowed_methods, reason = "an example keeps time with the standard library")]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use fabricast::{ErrorChain, Listener, Node, ReceiveError, StateSubscriber};
use serde::{Deserialize, Serialize};

const READINGS: u32 = 5;
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, Deserialize)]
struct Reading {
    number: u32,
    celsius: f64,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dial_out: {}", ErrorChain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    // The listening node needs a name, and must be there first: otherwise the publisher is refused.
    let desk = Node::builder().name("desk")?.open()?;
    let listener = desk.state_listener::<Reading>("reading").push().open()?;
    let listening =
        std::thread::spawn(move || listen(&listener).map_err(|error| ErrorChain(error.as_ref()).to_string()));

    // The dialling node needs no name.
    let node = Node::builder().open()?;
    let mut publisher = node.state_publisher::<Reading>("reading").open()?;
    node.dial_subscriber("reading", "shm:desk", TIMEOUT)?;
    println!("{} push subscriber attached", publisher.push_subscribers());
    for number in 1..=READINGS {
        publisher.publish(&Reading { number, celsius: 15.0 + f64::from(number) / 2.0 })?;
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(publisher);
    Ok(listening.join().map_err(|_| "the listening thread panicked")??)
}

/// Accepts one publisher, and receives until it ends. A longer running program would accept the next one.
fn listen(listener: &Listener<StateSubscriber<Reading>>) -> Result<(), Box<dyn Error>> {
    let mut subscriber = listener.accept_timeout(TIMEOUT)?.ok_or("no publisher dialled")?;
    loop {
        match subscriber.receive_timeout(TIMEOUT) {
            Ok(Some(sample)) => println!("{} {:?}", sample.meta.sequence, sample.value),
            Ok(None) => return Err("the publisher is stalled".into()),
            Err(ReceiveError::Ended { published }) => {
                let stats = subscriber.stats();
                println!(
                    "the end after {published}: {} received, {} missed",
                    stats.received, stats.conflated
                );
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}
