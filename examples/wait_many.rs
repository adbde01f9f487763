//! One thread that waits for any number of subscribers, and what that costs it.
//!
//! ```text
//! cargo run --release --example wait_many -- --topics 100 --idle 10
//! ```
//!
//! Subscribes to so many topics of each kind of another process, waits while nothing is published, then receives a value of each.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fabricast::{AnySubscriber, Node, Raw, SubscriberBuilder, WaitSet};
use rustix::time::{ClockId, clock_gettime};

const KINDS: [&str; 3] = ["state", "log", "table"];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: u64| {
        let after = arguments.iter().skip_while(|argument| *argument != name).nth(1);
        after.map_or(Ok(default), |value| value.parse().map_err(|_| format!("{name} takes a number, not {value}")))
    };
    let (topics, idle) = (number("--topics", 100)?, Duration::from_secs(number("--idle", 5)?));
    if let Some(name) = arguments.iter().skip_while(|argument| *argument != "--publish").nth(1) {
        return publish(name, topics);
    }
    let name = format!("wait-many-{}", std::process::id());
    let publishing = Command::new(std::env::current_exe()?)
        .args(["--publish", &name, "--topics", &topics.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut ready = std::io::BufReader::new(publishing.stdout.ok_or("no output")?);
    std::io::BufRead::read_line(&mut ready, &mut String::new())?;

    let node = Node::builder().open()?;
    let targets = (0..topics).flat_map(|number| KINDS.map(|kind| format!("shm:{name}/{kind}{number}")));
    let all = targets.map(|target| node.any_subscriber::<Raw>(target.as_str()));
    let mut subscribers: Vec<AnySubscriber> = SubscriberBuilder::open_all(all).into_iter().collect::<Result<_, _>>()?;
    let mut set = WaitSet::new()?;
    for (key, subscriber) in subscribers.iter_mut().enumerate() {
        set.add(subscriber, key);
    }
    let (began, mut before) = (Instant::now(), None);
    let mut received = 0;
    let mut publishing_now = publishing.stdin;
    while received < subscribers.len() {
        for key in set.wait(Duration::from_millis(100))? {
            while subscribers[*key].try_receive_ref()?.is_some() {
                received += 1;
            }
        }
        // The first second belongs to attaching.
        if began.elapsed() > Duration::from_secs(1) && before.is_none() {
            before = Some((Instant::now(), processor_time()));
        }
        if let Some((since, used)) = before.filter(|(since, _)| since.elapsed() > idle && publishing_now.is_some()) {
            let share = (processor_time() - used).as_secs_f64() / since.elapsed().as_secs_f64();
            println!("{} subscribers waited: {:.3} % of a processor", subscribers.len(), 100.0 * share);
            // The other process publishes when its input ends.
            publishing_now = None;
        }
    }
    println!("{received} values received");
    Ok(())
}

/// Publishes a value of each topic when its input ends.
fn publish(name: &str, topics: u64) -> Result<(), Box<dyn Error>> {
    let node = Node::builder().name(name)?.open()?;
    let numbers = 0..topics;
    let open = |kind: usize| move |number: u64| format!("{}{number}", KINDS[kind]);
    let mut states = numbers.clone().map(open(0)).map(|topic| node.state_publisher::<u64>(&topic).open()).collect::<Result<Vec<_>, _>>()?;
    let mut logs = numbers.clone().map(open(1)).map(|topic| node.log_publisher::<u64>(&topic).open()).collect::<Result<Vec<_>, _>>()?;
    let mut tables = numbers.map(open(2)).map(|topic| node.table_publisher::<u64, u64>(&topic).open()).collect::<Result<Vec<_>, _>>()?;
    println!("ready");
    std::io::Read::read_to_end(&mut std::io::stdin(), &mut Vec::new())?;
    states.iter_mut().try_for_each(|publisher| publisher.publish(&1).map(drop))?;
    logs.iter_mut().try_for_each(|publisher| publisher.publish(&1).map(drop))?;
    tables.iter_mut().try_for_each(|publisher| publisher.put(&1, &1).map(drop))?;
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

/// The processor time that this process has used.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}
