//! A publisher that keeps its log in a file in memory: started again, it continues where it was, a subscriber that was there all along
//! misses nothing, and the file can be read without it. The same holds if its process is killed.
//!
//! ```text
//! cargo run --example warm
//! ```

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use fabricast::{LogPublisher, LogStart, LogSubscriber, Node, Persistent, ReceiveError, RepositoryFile};

const TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the publisher, as its process does.
fn start(path: &Path) -> Result<(Node, LogPublisher<f64>), Box<dyn Error>> {
    let node = Node::builder().name("warm")?.open()?;
    let trades = node.log_publisher::<f64>("trades").warm(path).open()?;
    println!("publisher: begins after record {}", trades.newest());
    Ok((node, trades))
}

/// Receives records up to this one. The subscriber seeks its publisher while there is none.
fn receive(trades: &mut Persistent<LogSubscriber<f64>>, until: u64) -> Result<(), Box<dyn Error>> {
    loop {
        match trades.receive_timeout(TIMEOUT) {
            Ok(Some(trade)) => {
                println!("subscriber: {} {}", trade.meta.sequence, trade.value);
                if trade.meta.sequence.get() == until {
                    return Ok(());
                }
            }
            Ok(None) => return Err("nothing in time".into()),
            Err(ReceiveError::Ended { .. }) => println!("subscriber: the publisher has ended"),
            Err(error) => return Err(error.into()),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = Path::new("/dev/shm").join(format!("fabricast-warm-{}", std::process::id()));
    let (publishing, mut publisher) = start(&path)?;
    let node = Node::builder().open()?;
    let mut trades = node.log_subscriber::<f64>("shm:warm/trades").earliest().persistent().open()?;
    publisher.publish(&101.25)?;
    receive(&mut trades, 1)?;
    publisher.publish(&101.5)?;
    drop((publisher, publishing));

    let (publishing, mut publisher) = start(&path)?;
    publisher.publish(&101.75)?;
    receive(&mut trades, 3)?;
    drop((publisher, publishing));

    // No publisher is there any more.
    let file = RepositoryFile::open(&path)?;
    let mut records = file.log_subscriber::<f64>(LogStart::Earliest)?;
    while let Ok(Some(record)) = records.try_receive() {
        println!("file: {} {}", record.meta.sequence, record.value);
    }
    std::fs::remove_file(&path)?;
    Ok(())
}
