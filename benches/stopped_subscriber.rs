//! What a stopped subscriber does to the others: eight processes receive a log by push, and in every second run one of them is stopped
//! (SIGSTOP) for most of the time. It is lapped: the publisher waits for nobody, and the subscriber reports its exact loss when it goes on.
//!
//! ```text
//! cargo bench --all-features --bench stopped_subscriber -- --seconds 30 --rate 100000 --rounds 3
//! ```
//!
//! Prints for each run the latencies of the seven others, from the time when a record was due to the time when a program has it, and in
//! the end the medians over the runs. Then it does the same to one of three subscribers for which a publisher at full speed waits, and
//! kills another one: it prints for how long that holds up the publisher. Fails if a record is lost to one of the others, or doubled, or
//! if the stopped one's count is wrong.

#![expect(clippy::disallowed_methods, reason = "a benchmark keeps time with the standard library")]

use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fabricast::{Gating, LogPublisher, LogSubscriber, Node, ReceiveError, SlowPolicy};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

/// Subscribers, of which the first one is stopped.
const SUBSCRIBERS: u64 = 8;
/// Bytes of the ring: half a second of records. A subscriber that is not stopped is never that late.
const CAPACITY: usize = 8 << 20;
/// 64 bytes: its number, and when it was due.
type Record = [u64; 8];
/// The longest wait for a process.
const PATIENCE: Duration = Duration::from_secs(30);
const TARGET: &str = "shm:publisher/log";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What a run does.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seconds: u64,
    /// Records a second.
    rate: u64,
    rounds: usize,
}

/// What a subscriber has seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    received: u64,
    lost: u64,
    /// Latencies at these per mille, microseconds.
    us: [u64; 3],
}

/// What one run shows: the medians of the seven, and the longest publish.
#[derive(Clone, Copy, Debug)]
struct Run {
    us: [u64; 3],
    publish_max_us: u64,
    lost: u64,
}

const PER_MILLE: [usize; 3] = [500, 990, 999];

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [role, dir, policy] = &arguments[..]
        && role == "--subscribe"
    {
        return subscribe(
            Path::new(dir),
            if policy == "block" { SlowPolicy::Block } else { SlowPolicy::Lap },
        );
    }
    let mut plan = Plan { seconds: 5, rate: 100_000, rounds: 3 };
    for pair in arguments.chunks(2) {
        let [name, number] = pair else { return Err(format!("{pair:?} lacks a number").into()) };
        match name.as_str() {
            "--seconds" => plan.seconds = number.parse()?,
            "--rate" => plan.rate = number.parse()?,
            "--rounds" => plan.rounds = number.parse()?,
            name => return Err(format!("unknown argument {name}").into()),
        }
    }
    // A record takes 24 bytes besides its payload, and a stopped subscriber has a ring of its own.
    if plan.seconds * plan.rate / 2 < 2 * (CAPACITY / (size_of::<Record>() + 24)) as u64 {
        return Err("so few records fit into the rings: raise --seconds or --rate".into());
    }
    println!(
        "{:<10}{:>10}{:>10}{:>10}{:>16}{:>12}",
        "one", "p50 us", "p99 us", "p99.9 us", "publish max us", "its loss"
    );
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        for (name, stops, runs) in [("runs", false, &mut alone), ("is stopped", true, &mut beside)] {
            let run = measure(plan, stops)?;
            let [p50, p99, p999] = run.us;
            println!("{name:<10}{p50:>10}{p99:>10}{p999:>10}{:>16}{:>12}", run.publish_max_us, run.lost);
            runs.push(run);
        }
    }
    for (index, name) in ["p50", "p99", "p99.9"].into_iter().enumerate() {
        let of = |runs: &[Run]| median(runs.iter().filter_map(|run| run.us.get(index).copied()).collect());
        let (without, with) = (of(&alone), of(&beside));
        println!("{name}: {without} us without, {with} us beside a stopped one");
    }
    for (name, signal) in [("killed", Signal::KILL), ("stopped", Signal::STOP)] {
        let [before_us, after_us] = hold_up(signal)?;
        println!("longest publish: {before_us} us, and {after_us} us once one that is waited for is {name}");
    }
    Ok(())
}

/// Publishes at full speed to three subscribers that are waited for, and sends a signal to one of them. Returns the longest publish before
/// and after that, microseconds.
fn hold_up(signal: Signal) -> Outcome<[u64; 2]> {
    const SECOND: Duration = Duration::from_secs(1);
    let dir = tempfile::tempdir()?;
    let node = Node::builder().name("publisher")?.runtime_dir(dir.path()).open()?;
    let gating = Gating::new().timeout(PATIENCE);
    let mut publisher = node.log_publisher::<Record>("log").capacity(1 << 20).gating(gating).open()?;
    let mut children = (0..3).map(|_| start(dir.path(), "block")).collect::<Outcome<Vec<Child>>>()?;
    await_subscribers(&publisher, 3)?;
    let mut publish_for = |time: Duration| {
        let (began, mut max_us) = (Instant::now(), 0);
        while began.elapsed() < time {
            let number = publisher.newest().next().get();
            let before_ns = now_ns();
            publisher.publish(&[number, before_ns, 0, 0, 0, 0, 0, 0])?;
            max_us = max_us.max((now_ns() - before_ns) / 1000);
        }
        Outcome::Ok(max_us)
    };
    let before_us = publish_for(SECOND)?;
    let first = children.first().map(Pid::from_child).ok_or("a subscriber")?;
    kill_process(first, signal)?;
    let after_us = publish_for(4 * SECOND)?;
    if signal == Signal::STOP {
        kill_process(first, Signal::CONT)?;
    }
    let count = publisher.finish(Duration::from_secs(7))?.get();
    let first = end(children.first_mut().ok_or("a subscriber")?);
    if signal == Signal::STOP {
        check(&[first?], count, true)?;
    }
    let others = children.iter_mut().skip(1).map(end).collect::<Outcome<Vec<Seen>>>()?;
    check(&others, count, false)?;
    Ok([before_us, after_us])
}

/// Waits for so many subscribers.
fn await_subscribers(publisher: &LogPublisher<Record>, count: u64) -> Outcome<()> {
    let began = Instant::now();
    while publisher.push_subscribers() < count {
        if began.elapsed() > PATIENCE {
            return Err("the subscribers do not come".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().unwrap_or(0)
}

/// Nanoseconds of the host's monotonic clock.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// One run, with a subscriber that is stopped from its first tenth to its last one, or without.
fn measure(plan: Plan, stops: bool) -> Outcome<Run> {
    let dir = tempfile::tempdir()?;
    let node = Node::builder().name("publisher")?.runtime_dir(dir.path()).open()?;
    // Those that are lapped are not waited for, whatever is permitted.
    let builder = node.log_publisher::<Record>("log").capacity(CAPACITY);
    let mut publisher = builder.gating(Gating::new().timeout(Duration::ZERO)).open()?;
    let mut children = (0..SUBSCRIBERS).map(|_| start(dir.path(), "lap")).collect::<Outcome<Vec<Child>>>()?;
    await_subscribers(&publisher, SUBSCRIBERS)?;
    let count = plan.seconds * plan.rate;
    let pid = children.first().map(Pid::from_child).ok_or("a subscriber")?;
    let mut publish_max_us = 0;
    let parts = [(count / 10, Some(Signal::STOP)), (count - count / 10, Some(Signal::CONT)), (count, None)];
    let first_ns = now_ns();
    for (until, signal) in parts {
        publish_max_us = publish_max_us.max(publish(&mut publisher, (plan, first_ns), until)?);
        if let Some(signal) = signal.filter(|_| stops) {
            kill_process(pid, signal)?;
        }
    }
    publisher.finish(Duration::from_secs(7))?;
    let seen = children.iter_mut().map(end).collect::<Outcome<Vec<Seen>>>()?;
    check(&seen, count, stops)?;
    let at = |index| median(seen.iter().skip(1).filter_map(|seen| seen.us.get(index).copied()).collect());
    let lost = seen.first().map_or(0, |seen| seen.lost);
    Ok(Run { us: [0, 1, 2].map(at), publish_max_us, lost })
}

/// Publishes up to this record, each when it is due. Returns the longest publish, microseconds.
fn publish(publisher: &mut LogPublisher<Record>, (plan, first_ns): (Plan, u64), until: u64) -> Outcome<u64> {
    let mut max_ns = 0;
    while publisher.newest().get() < until {
        let number = publisher.newest().next().get();
        let due_ns = first_ns + number * 1_000_000_000 / plan.rate;
        while now_ns() < due_ns {
            std::thread::yield_now();
        }
        let before_ns = now_ns();
        publisher.publish(&[number, due_ns, 0, 0, 0, 0, 0, 0])?;
        max_ns = max_ns.max(now_ns() - before_ns);
    }
    Ok(max_ns / 1000)
}

/// Compares what the subscribers have seen with what was published.
fn check(seen: &[Seen], count: u64, stops: bool) -> Outcome<()> {
    for (index, Seen { received, lost, .. }) in seen.iter().enumerate() {
        let may_lose = stops && index == 0;
        if received + lost != count || (*lost > 0) != may_lose {
            return Err(
                format!("subscriber {index} has {received} records and lost {lost} of {count}").into()
            );
        }
    }
    Ok(())
}

/// Starts a subscriber.
fn start(dir: &Path, policy: &str) -> Outcome<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.arg("--subscribe").arg(dir).arg(policy).stdout(Stdio::piped()).spawn()?)
}

/// Waits for a subscriber, and reads what it says.
fn end(child: &mut Child) -> Outcome<Seen> {
    let mut text = String::new();
    child.stdout.take().ok_or("a pipe")?.read_to_string(&mut text)?;
    if !child.wait()?.success() {
        return Err("a subscriber failed".into());
    }
    let numbers = text.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let [received, lost, us @ ..] = &numbers[..] else { return Err(format!("{text:?}").into()) };
    Ok(Seen { received: *received, lost: *lost, us: us.try_into()? })
}

/// A subscriber's process: receives up to the end, and says what it has seen.
fn subscribe(dir: &Path, policy: SlowPolicy) -> Outcome<()> {
    let node = Node::builder().runtime_dir(dir).open()?;
    let mut subscriber: LogSubscriber<Record> =
        node.log_subscriber(TARGET).push().notices().progress().slow(policy).open()?;
    let (mut last, mut lost, mut latencies_ns) = (0, 0, Vec::new());
    loop {
        match subscriber.receive_timeout(PATIENCE) {
            Ok(Some(record)) => {
                let [number, due_ns, ..] = record.value;
                if number != last + 1 || record.meta.sequence.get() != number {
                    return Err(format!("record {number} follows {last}").into());
                }
                last = number;
                latencies_ns.push(u32::try_from(now_ns().saturating_sub(due_ns)).unwrap_or(u32::MAX));
            }
            Ok(None) => return Err("no record comes".into()),
            Err(ReceiveError::Lapped { first_lost, count }) => {
                if first_lost.get() != last + 1 {
                    return Err(format!("a loss from {first_lost} on follows {last}").into());
                }
                (last, lost) = (last + count, lost + count);
            }
            Err(ReceiveError::Ended { .. }) => break,
            Err(error) => return Err(error.into()),
        }
    }
    latencies_ns.sort_unstable();
    let at = |per_mille: usize| {
        latencies_ns.get(latencies_ns.len() * per_mille / 1000).copied().unwrap_or(0) / 1000
    };
    let [p50, p99, p999] = PER_MILLE.map(at);
    println!("{} {lost} {p50} {p99} {p999}", latencies_ns.len());
    Ok(())
}
