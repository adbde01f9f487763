//! Tasks of tokio that await subscribers.
//!
//! ```text
//! cargo run --release --features tokio --example async_subscribe
//! ```
//!
//! Follows two topics with `select!` until both end, and says so when nothing arrives for a while. The publishers are usually another
//! process; here they are tasks.

use std::time::Duration;

use fabricast::{Node, ReceiveError};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), fabricast::Error> {
    let name = format!("async-{}", std::process::id());
    let publishing = Node::builder().name(&name)?.open()?;
    let mut price = publishing.state_publisher::<f64>("price").open()?;
    let mut trades = publishing.log_publisher::<u64>("trades").open()?;

    let node = Node::builder().open()?;
    let prices = node.state_subscriber::<f64>(format!("shm:{name}/price").as_str()).open_async().await?;
    let mut prices = prices.into_async()?;
    let records = node.log_subscriber::<u64>(format!("shm:{name}/trades").as_str()).open_async().await?;
    let mut records = records.into_async()?;

    let publisher = tokio::spawn(async move {
        for number in 1..=6_u32 {
            price.publish(&(100.0 + f64::from(number) / 10.0))?;
            trades.publish_batch(&[u64::from(number), u64::from(number) * 10])?;
            // Once longer than the subscriber's timeout.
            let pause = if number == 3 { 400 } else { 50 };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Ok::<_, fabricast::PublishError>(())
    });

    let (mut has_prices, mut has_trades) = (true, true);
    while has_prices || has_trades {
        // The futures that lose are dropped, and have taken nothing.
        tokio::select! {
            price = prices.receive(), if has_prices => match price {
                Ok(price) => println!("price {}", price.value),
                Err(ReceiveError::Ended { .. }) => has_prices = false,
                Err(error) => return Err(error.into()),
            },
            trade = records.receive(), if has_trades => match trade {
                Ok(trade) => println!("trade {}: {}", trade.meta.sequence, trade.value),
                Err(ReceiveError::Lapped { count, .. }) => println!("{count} trades lost"),
                Err(ReceiveError::Ended { .. }) => has_trades = false,
                Err(error) => return Err(error.into()),
            },
            () = tokio::time::sleep(Duration::from_millis(200)) => println!("nothing new"),
        }
    }
    println!("both topics have ended");
    Ok(publisher.await.expect("the publisher does not panic")?)
}
