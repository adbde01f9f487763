//! One thread that waits for any number of subscribers of another process, and what that costs it while nothing is published.
//!
//! ```text
//! cargo run --release --example wait_many -- --topics 100 --idle 10
//! ```

#![expect(clippy::disallowed_methods, reason = "an example keeps time with the standard library")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fabricast::{AnySubscriber, Node, PublishError, Raw, ReceiveError, SubscriberBuilder, WaitSet};
use rustix::time::{ClockId, clock_gettime};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| arguments.iter().skip_while(|argument| *argument != name).nth(1);
    let number = |name: &str, default: u64| after(name).map_or(Ok(default), |value| value.parse());
    let (topics, idle) = (number("--topics", 100)?, Duration::from_secs(number("--idle", 5)?));
    if let Some(name) = after("--publish") {
        return publish(name, topics);
    }
    let (name, mut command) =
        (format!("many-{}", std::process::id()), Command::new(std::env::current_exe()?));
    command.args(["--publish", &name, "--topics", &topics.to_string()]);
    let mut publishing = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    BufReader::new(publishing.stdout.as_mut().ok_or("no output")?).read_line(&mut String::new())?;

    let (node, kinds) = (Node::builder().open()?, ["state", "log", "table"]);
    let targets = (0..topics).flat_map(|number| kinds.map(|kind| format!("shm:{name}/{kind}{number}")));
    let all = targets.map(|target| node.any_subscriber::<Raw>(target.as_str()));
    let opened: Result<Vec<AnySubscriber>, _> = SubscriberBuilder::open_all(all).into_iter().collect();
    let (mut subscribers, mut set) = (opened?, WaitSet::new()?);
    subscribers.iter_mut().enumerate().for_each(|(key, subscriber)| set.add(subscriber, key));
    // The first second belongs to attaching.
    let (mut due, mut measured, mut received) = (Instant::now() + Duration::from_secs(1), None, 0);
    while received < subscribers.len() {
        let left = due.saturating_duration_since(Instant::now());
        for key in set.wait(left.max(Duration::from_millis(100)))? {
            match subscribers.get_mut(*key).ok_or("an unknown key")?.try_receive_ref() {
                Err(ReceiveError::Ended { published }) if published.get() > 0 => {}
                value => received += usize::from(value?.is_some()),
            }
        }
        if Instant::now() >= due {
            let (since, used) = *measured.get_or_insert_with(|| (Instant::now(), processor_time()));
            due = since + idle;
            if since.elapsed() >= idle && publishing.stdin.take().is_some() {
                let share = (processor_time() - used).as_secs_f64() / since.elapsed().as_secs_f64();
                println!("{} subscribers waited: {:.3} % of a processor", subscribers.len(), 100.0 * share);
            }
        }
    }
    println!("{received} values received");
    Ok(())
}

/// Publishes a value of each topic when the input ends.
fn publish(name: &str, topics: u64) -> Result<(), Box<dyn Error>> {
    let node = Node::builder().name(name)?.open()?;
    let mut publishers: Vec<Box<dyn FnMut() -> Result<(), PublishError>>> = Vec::new();
    for number in 0..topics {
        let mut state = node.state_publisher::<u64>(format!("state{number}").as_str()).open()?;
        publishers.push(Box::new(move || state.publish(&number).map(drop)));
        let mut log = node.log_publisher::<u64>(format!("log{number}").as_str()).open()?;
        publishers.push(Box::new(move || log.publish(&number).map(drop)));
        let mut table = node.table_publisher::<u64, u64>(format!("table{number}").as_str()).open()?;
        publishers.push(Box::new(move || table.put(&1, &number).map(drop)));
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(publishers.iter_mut().try_for_each(|publish| publish())?)
}

/// The processor time that this process has used.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}
