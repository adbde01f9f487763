//! Receives the readings of the example `publish`, which must be running, until it ends.
//!
//! ```text
//! cargo run --example subscribe [pull|push]
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use fabricast::{ErrorChain, Node, ReceiveError};
use serde::{Deserialize, Serialize};

/// The publisher's type has the same name and fields: attaching checks that.
#[derive(Debug, Serialize, Deserialize)]
struct Reading {
    celsius: f64,
    sky: Sky,
}

#[derive(Debug, Serialize, Deserialize)]
enum Sky {
    Clear,
    Clouds { eighths: u8 },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("subscribe: {}", ErrorChain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let node = Node::builder().open()?;
    let builder = node.state_subscriber::<Reading>("shm:station/reading");
    let mut subscriber = match std::env::args().nth(1).as_deref() {
        None | Some("pull") => builder.pull().open()?,
        Some("push") => builder.push().open()?,
        Some(other) => return Err(format!("{other} is not a delivery: use pull or push").into()),
    };
    loop {
        match subscriber.receive_timeout(Duration::from_secs(1)) {
            Ok(Some(sample)) => {
                println!("{} {:?}, {} missed", sample.meta.sequence, sample.value, sample.conflated)
            }
            Ok(None) => println!("nothing new for a second"),
            Err(ReceiveError::Ended { published }) => {
                println!("the end, after {published} readings; {:?}", subscriber.stats());
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}
