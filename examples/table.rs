//! Quotes by symbol in one table: a subscriber interested in a few symbols receives what has changed for them, and then takes a
//! snapshot of all. Here both ends are in one thread; they could be separate processes.
//!
//! ```text
//! cargo run --example table
//! ```

use std::error::Error;
use std::time::Duration;

use fabricast::{Node, TableSubscriber};
use serde::{Deserialize, Serialize};

const SYMBOLS: usize = 3000;
const WANTED: [&str; 3] = ["S0007", "S0042", "S2999"];

#[derive(Debug, Serialize, Deserialize)]
struct Quote {
    round: u32,
    bid: f64,
    ask: f64,
}

fn quote(round: u32) -> Quote {
    let bid = 100.0 + f64::from(round) / 4.0;
    Quote { round, bid, ask: bid + 0.25 }
}

/// Prints what has changed since the last call.
fn show(watcher: &mut TableSubscriber<String, Quote>) -> Result<(), Box<dyn Error>> {
    for change in watcher.changes() {
        let change = change?;
        let symbol = change.key;
        match change.value {
            Some(Quote { bid, ask, .. }) if change.is_new => println!("{symbol}: new, {bid} to {ask}"),
            Some(Quote { bid, ask, .. }) => {
                println!("{symbol}: {bid} to {ask}, {} replaced", change.replaced)
            }
            None => println!("{symbol}: removed"),
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let node = Node::builder().name("table-example")?.open()?;
    // An entry is the symbol (its length in 8 bytes, and 5 letters), one byte, and a quote of 20 bytes.
    let builder = node.table_publisher::<String, Quote>("quotes").capacity(SYMBOLS).payload_len_max(40);
    let mut quotes = builder.open()?;
    let symbols: Vec<String> = (0..SYMBOLS).map(|number| format!("S{number:04}")).collect();
    let first = quote(0);
    quotes.put_batch(symbols.iter().map(|symbol| (symbol, &first)))?;

    // Once it knows the cells of these symbols it reads no others.
    let mut watcher = node.table_subscriber::<String, Quote>("shm:table-example/quotes").open()?;
    watcher.only_keys(WANTED);
    show(&mut watcher)?;
    for quote in (1..=5).map(quote) {
        // One commit for all symbols.
        quotes.put_batch(symbols.iter().map(|symbol| (symbol, &quote)))?;
    }
    quotes.put("S0042", &quote(6))?;
    quotes.remove("S2999")?;
    show(&mut watcher)?;

    let newest = watcher.get("S0042")?.ok_or("no quote")?;
    println!("S0042: {} to {} by commit {}", newest.value.bid, newest.value.ask, newest.meta.sequence);
    watcher.all_keys();
    let snapshot = watcher.snapshot(Duration::from_secs(5))?;
    let of_round_5 = snapshot.entries.iter().filter(|entry| entry.value.round == 5).count();
    println!(
        "commit {}: {} symbols, {of_round_5} quoted in round 5",
        snapshot.sequence,
        snapshot.entries.len()
    );
    let is_whole = snapshot.entries.len() == SYMBOLS - 1 && of_round_5 == SYMBOLS - 2;
    if is_whole { Ok(()) } else { Err("the snapshot differs from what was put".into()) }
}
