//! What a publish of 64 bytes costs the publisher's processor, by the number of subscribers on the same host.
//!
//! ```text
//! cargo bench --bench subscribers -- --for 1 --most 256
//! ```
//!
//! A publisher publishes a state at full speed, pinned to the first processor that it may use. Its subscribers are on the others:
//!
//! - `pull` and `push`: each in a process of its own, polling without pause;
//! - `pull-same`: the same as `pull`, but all on the publisher's processor, where they take turns with it;
//! - `pull-idle` and `push-idle`: all in one process, which does nothing.
//!
//! Prints for each number the processor time of the publisher's process for one publish (`CLOCK_PROCESS_CPUTIME_ID`, with that of
//! the node's thread), how much of it the kernel took (`getrusage`), and the time that a clock on the wall shows. Processes
//! that poll on other processors take cache lines from the publisher's; idle ones and those on its own do not.

#![expect(clippy::disallowed_methods, reason = "a benchmark keeps time with the standard library")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use fabricast::{Delivery, Node, Raw, ReceiveError, StatePublisher, StateSubscriber};
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Bytes of a value.
const LEN: usize = 64;
/// Publishes between two readings of the clock.
const BATCH: u64 = 1000;
const POLLING: [usize; 6] = [0, 1, 2, 4, 8, 16];
const IDLE: [usize; 6] = [0, 1, 4, 16, 64, 256];
/// How long a subscription may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const NODE: &str = "publisher";
const TARGET: &str = "shm:publisher/state";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (seconds, most) = match words[..] {
        ["--subscribe", dir, series, count] => return subscribe(Path::new(dir), series, count.parse()?),
        ["--for", seconds, "--most", most] => (seconds.parse()?, most.parse()?),
        [] => (1.0, usize::MAX),
        _ => return Err(format!("unknown arguments {words:?}: use --for SECONDS --most SUBSCRIBERS").into()),
    };
    println!("{:<12}{:>12}{:>12}{:>12}{:>12}", "series", "subscribers", "cpu_ns", "system_ns", "elapsed_ns");
    let series = [
        ("pull", &POLLING),
        ("pull-same", &POLLING),
        ("push", &POLLING),
        ("pull-idle", &IDLE),
        ("push-idle", &IDLE),
    ];
    for (name, counts) in series {
        for count in counts.iter().filter(|count| **count <= most) {
            let [cpu, system, elapsed] = measure(name, *count, Duration::try_from_secs_f64(seconds)?)?;
            println!("{name:<12}{count:>12}{cpu:>12.1}{system:>12.1}{elapsed:>12.1}");
        }
    }
    Ok(())
}

/// Nanoseconds of the publisher's processor, of the kernel on it, and of the clock, for one publish.
fn measure(series: &str, count: usize, duration: Duration) -> Outcome<[f64; 3]> {
    let dir = tempfile::tempdir()?;
    let usable = sched_getaffinity(None)?;
    let mut others = usable;
    let mut own = CpuSet::new();
    if let Some(first) = (0..CpuSet::MAX_CPU).find(|cpu| usable.is_set(*cpu)) {
        own.set(first);
        others.unset(first);
    }
    // The node's thread and the processes inherit the processors of the thread that starts them.
    sched_setaffinity(None, &own)?;
    let node = Node::builder().name(NODE)?.runtime_dir(dir.path()).open()?;
    let mut publisher = node.state_publisher::<Raw>("state").payload_len_max(LEN).open()?;
    publisher.publish(&[0; LEN])?;
    if others.count() > 0 && series != "pull-same" {
        sched_setaffinity(None, &others)?;
    }
    let is_idle = series.ends_with("-idle");
    let processes = if is_idle { count.min(1) } else { count };
    let subscribing: Outcome<Vec<_>> =
        (0..processes).map(|_| Subscribing::start(dir.path(), series, count / processes)).collect();
    let subscribing = subscribing?;
    sched_setaffinity(None, &own)?;
    let measured = publish_for(&mut publisher, duration);
    drop((publisher, node));
    for subscribing in subscribing {
        subscribing.end()?;
    }
    sched_setaffinity(None, &usable)?;
    measured
}

fn publish_for(publisher: &mut StatePublisher<Raw>, duration: Duration) -> Outcome<[f64; 3]> {
    let mut value = [0; LEN];
    let (mut published, system, cpu, began) =
        (0_u64, system_ns(), clock_gettime(ClockId::ProcessCPUTime), Instant::now());
    while began.elapsed() < duration {
        for _ in 0..BATCH {
            published += 1;
            let [first, ..] = value.as_chunks_mut::<8>().0 else {
                return Err("no place for a number".into());
            };
            *first = published.to_le_bytes();
            publisher.publish(&value)?;
        }
    }
    let spent = nanoseconds(clock_gettime(ClockId::ProcessCPUTime)) - nanoseconds(cpu);
    let of_one = |nanoseconds: f64| nanoseconds / published as f64;
    Ok([of_one(spent), of_one(system_ns() - system), of_one(began.elapsed().as_secs_f64() * 1e9)])
}

fn nanoseconds(time: Timespec) -> f64 {
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// The time that the kernel has spent on this process, as it says itself.
fn system_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may contain spaces, the thirteenth field.
    let field = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(12));
    let ticks: f64 = field.and_then(|ticks| ticks.parse().ok()).unwrap_or(0.0);
    ticks * 1e9 / rustix::param::clock_ticks_per_second() as f64
}

/// A process that subscribes.
struct Subscribing {
    child: Child,
    _stdin: ChildStdin,
}

impl Subscribing {
    /// Starts it, and waits until it has subscribed.
    fn start(dir: &Path, series: &str, count: usize) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--subscribe").arg(dir).arg(series).arg(count.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take().ok_or("no pipe")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no pipe")?).read_line(&mut line)?;
        if line != "ready\n" {
            child.wait()?;
            return Err("a subscriber could not subscribe".into());
        }
        Ok(Self { child, _stdin: stdin })
    }

    /// Waits for its end, which that of the publisher brings, or that of its input.
    fn end(self) -> Outcome<()> {
        let Self { mut child, _stdin } = self;
        drop(_stdin);
        if child.wait()?.success() { Ok(()) } else { Err("a subscriber failed".into()) }
    }
}

/// The process of subscribers: polls until the topic has ended, or does nothing until its input has.
fn subscribe(dir: &Path, series: &str, count: usize) -> Outcome<()> {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let node = Node::builder().runtime_dir(dir).open()?;
    let delivery = if series.starts_with("push") { Delivery::Push } else { Delivery::Pull };
    let subscribers: Result<Vec<StateSubscriber<Raw>>, _> = (0..count)
        .map(|_| node.state_subscriber(TARGET).delivery(delivery).timeout(TIMEOUT).open())
        .collect();
    let mut subscribers = subscribers?;
    println!("ready");
    if series.ends_with("-idle") {
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(());
    }
    let subscriber = subscribers.first_mut().ok_or("no subscriber")?;
    loop {
        match subscriber.try_receive_ref() {
            Ok(Some(value)) if value.bytes.len() != LEN => return Err("a value of another length".into()),
            Ok(_) => {}
            Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
