//! Publishes a reading ten times a second. The example `subscribe` receives it in another terminal, as does a program that does
//! not know the type: `fabricast watch shm:station/reading`.
//!
//! ```text
//! cargo run --example publish [COUNT]
//! ```

#![expect(clippy::disallowed_methods, reason = "an example keeps time with the standard library")]

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use fabricast::{ErrorChain, Node};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Reading {
    celsius: f64,
    sky: Sky,
}

#[derive(Serialize, Deserialize)]
enum Sky {
    Clear,
    Clouds { eighths: u8 },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("publish: {}", ErrorChain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let count: u32 = std::env::args().nth(1).map_or(Ok(600), |text| text.parse())?;
    let node = Node::builder().name("station")?.open()?;
    let mut publisher = node.state_publisher::<Reading>("reading").open()?;
    println!("publishing shm:station/reading {count} times");
    for number in 0..count {
        let hours = f64::from(number) / 10.0;
        let sky = match number % 20 {
            0..10 => Sky::Clear,
            _ => Sky::Clouds { eighths: 5 },
        };
        publisher.publish(&Reading { celsius: 15.0 + 5.0 * hours.sin(), sky })?;
        std::thread::sleep(Duration::from_millis(100));
    }
    // Dropping the publisher ends the topic: subscribers receive the last value, and then the end.
    Ok(())
}
