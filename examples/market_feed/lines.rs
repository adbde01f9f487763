//! Two lines: two processes publish the same day, and are killed in turn. Three subscribers receive from both, and miss nothing.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fabricast::{Delivery, Epoch, FeedLines, LineReport, Node, ReceiveError};

use crate::book::{Book, MarketRecord};
use crate::engine::INSTRUMENTS;
use crate::publisher::Replay;
use crate::subscriber::{ALL, Plan, Report, Subscriber, TIMEOUT, Update, WAIT, fifty};
use crate::{Outcome, Settings, check, open, say};

/// The epoch of the day: the publishers of all lines name the same one. Epochs are shown in hexadecimal, and given so to
/// `fabricast pub --epoch 20261123`.
const DAY: u64 = 0x2026_1123;
/// A line that lacks no more records than this has caught up.
const BEHIND_MAX: u64 = 100;
/// How long the subscribers may receive nothing while they are waited for.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
/// How often to check how far the subscribers are.
const LOOK: Duration = Duration::from_millis(5);

const PLANS: [Plan; 3] = [
    Plan { name: "pull", by_event: true, ..ALL },
    Plan { name: "push", delivery: Delivery::Push, ..ALL },
    Plan { name: "fifty", wants_fifty: true, ..ALL },
];

type Feed = FeedLines<String, MarketRecord, Book>;

/// The publisher of a line, in a process of its own. It ends with its input, that is, also with this process.
struct Publisher {
    process: Child,
    input: Option<ChildStdin>,
    target: String,
}

/// How far a subscriber is.
#[derive(Default)]
struct Progress {
    last: u64,
    missing: u64,
    lines: Vec<LineReport>,
}

type Shared = Arc<Mutex<Progress>>;

/// Runs both publishers and the subscribers.
pub(crate) fn run(settings: &Settings) -> Outcome<()> {
    let day = Replay::of(&settings.messages);
    let total = day.published.records;
    let seconds = settings.messages.len() as f64 / settings.rate;
    say(format_args!(
        "{} messages on two lines, {} per second: about {seconds:.1} s",
        day.messages, settings.rate
    ))?;
    let mut a = Publisher::start(settings, "a")?;
    let mut b = Publisher::start(settings, "b")?;
    let (targets, is_over) = ([a.target.clone(), b.target.clone()], Arc::new(AtomicBool::new(false)));
    say(format_args!("  fabricast tail {} --line {} --follow", a.target, b.target))?;
    let start = |plan: &'static Plan| {
        let progress = Shared::default();
        let (targets, is_over, shared) = (targets.clone(), Arc::clone(&is_over), Arc::clone(&progress));
        let run =
            move |attached: &Sender<()>| receive(plan, &targets, (attached, &shared), (total, &is_over));
        (Subscriber::start_with(plan, run), progress)
    };
    let (subscribers, progress): (Vec<Subscriber>, Vec<Shared>) = PLANS.iter().map(start).unzip();
    subscribers.iter().try_for_each(Subscriber::wait_until_attached)?;
    let all = (&*subscribers, &*progress);

    let began = Instant::now();
    a.go(Duration::ZERO)?;
    b.go(Duration::ZERO)?;
    await_all(all, "did not receive half of the day", |it| it.last >= total / 2)?;
    a.kill()?;
    say(format_args!("line a was killed after {:.1} s", began.elapsed().as_secs_f64()))?;
    // It begins with the first message again, and publishes at once what is due.
    let mut a = Publisher::start(settings, "a")?;
    a.go(began.elapsed())?;
    let has_caught_up = |it: &Progress| {
        let Some(line) = it.lines.first() else { return false };
        line.is_attached && line.outages > 0 && line.behind <= BEHIND_MAX
    };
    await_all(all, "did not see line a catch up", |it| total == 0 || has_caught_up(it))?;
    b.kill()?;
    say(format_args!("line a is back, and line b was killed after {:.1} s", began.elapsed().as_secs_f64()))?;
    // Line a has the rest of the day to publish, however long that takes.
    await_all(all, "did not receive the whole day", |it| it.last >= total)?;
    // Records may come from line a before the loss of line b is noticed, and all outages are to be shown.
    let has_lost_b = |it: &Progress| it.lines.get(1).is_some_and(|line| line.outages > 0);
    await_all(all, "did not notice that line b is gone", has_lost_b)?;
    is_over.store(true, Ordering::Relaxed);
    check::check(&day, &subscribers)?;
    a.end()?;
    show(&progress)
}

/// Publishes the day on this line, when the first process says so, and serves it until that ends.
pub(crate) fn publish(settings: &Settings, line: &str) -> Outcome<()> {
    let port = if line == "a" { 7471 } else { 7472 };
    let (node, at) = open(settings, &format!("market-feed-{line}"), port)?;
    let epoch = Epoch::new(DAY).ok_or("an epoch is not zero")?;
    let feed = node.feed_publisher("market").epoch(epoch).capacity(INSTRUMENTS as usize);
    let mut feed = feed.log_capacity(settings.log_capacity).record_len_max(128).value_len_max(1024).open()?;
    say(format_args!("{at}"))?;
    let (mut input, mut go) = (BufReader::new(std::io::stdin()), String::new());
    if input.read_line(&mut go)? == 0 {
        return Ok(());
    }
    let ago = Duration::try_from_secs_f64(go.trim_end().parse()?)?;
    let has_published = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&has_published);
    // The first process may end at any time, also by a signal.
    let waiting = std::thread::spawn(move || {
        let ended = std::io::copy(&mut input, &mut std::io::sink());
        if !ends.load(Ordering::Relaxed) {
            std::process::exit(0);
        }
        ended
    });
    Replay::begun(settings.rate, ago).publish(&settings.messages, &mut feed)?;
    has_published.store(true, Ordering::Relaxed);
    waiting.join().map_err(|_| "the thread that awaits the end panicked")??;
    Ok(())
}

/// Receives of both lines until the day is over.
fn receive(
    plan: &Plan,
    [first, second]: &[String; 2],
    (attached, progress): (&Sender<()>, &Shared),
    (total, is_over): (u64, &AtomicBool),
) -> Outcome<Report> {
    let node = Node::builder().open()?;
    let builder = node.feed_subscriber(first.as_str()).delivery(plan.delivery);
    let mut feed: Feed = builder.lines([second.as_str()]).open()?;
    if plan.wants_fifty {
        feed.only_keys(fifty());
    }
    _ = attached.send(());
    let (mut report, mut last_update) = (Report::default(), Instant::now());
    loop {
        match next(plan, &mut feed) {
            Ok(updates) if updates.is_empty() => {}
            Ok(updates) => {
                last_update = Instant::now();
                updates.into_iter().for_each(|update| report.update(update));
            }
            Err(ReceiveError::Missing { .. }) => report.losses += 1,
            // What changes faster than it can be read is tried again.
            Err(ReceiveError::Contended { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let last = feed.last().get();
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        *progress = Progress { last, missing: feed.missing(), lines: feed.report() };
        if last >= total && is_over.load(Ordering::Relaxed) && !feed.is_recovering() {
            let suspects = feed.suspects().into_iter();
            report.wrong.extend(suspects.map(|symbol| format!("{symbol} still lacks records")));
            return Ok(report);
        }
        if is_over.load(Ordering::Relaxed) && last_update.elapsed() > TIMEOUT {
            return Err(format!("received {last} of {total} records, and then nothing").into());
        }
    }
}

fn next(plan: &Plan, feed: &mut Feed) -> Result<Vec<Update>, ReceiveError> {
    if plan.by_event {
        return Ok(feed.event_timeout(WAIT)?.map_or_else(Vec::new, |event| event.updates));
    }
    Ok(feed.update_timeout(WAIT)?.into_iter().collect())
}

/// Waits until all subscribers are so far, as long as they receive records or a line catches up. Before the day is over, they end
/// only with an error, which is returned.
fn await_all(
    (subscribers, progress): (&[Subscriber], &[Shared]),
    otherwise: &str,
    is_so_far: impl Fn(&Progress) -> bool,
) -> Outcome<()> {
    let (mut last, mut since) = (Vec::new(), Instant::now());
    loop {
        if let Some(error) = subscribers.iter().find_map(Subscriber::error) {
            return Err(error);
        }
        let all: Vec<_> =
            progress.iter().map(|it| it.lock().unwrap_or_else(PoisonError::into_inner)).collect();
        if all.iter().all(|it| is_so_far(it)) {
            return Ok(());
        }
        let behind = |it: &Progress| it.lines.first().map(|line| (line.is_attached, line.behind));
        let now: Vec<_> = all.iter().map(|it| (it.last, behind(it))).collect();
        drop(all);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > PROGRESS_TIMEOUT {
            return Err(format!("the subscribers {otherwise}").into());
        }
        std::thread::sleep(LOOK);
    }
}

/// Prints what each line brought to each subscriber. An error if records are missing.
fn show(progress: &[Shared]) -> Outcome<()> {
    say(format_args!("\nsubscriber  line   first  duplicates    lost  outages  missing"))?;
    let mut all_missing = 0;
    for (plan, progress) in PLANS.iter().zip(progress) {
        let Progress { missing, lines, .. } = &*progress.lock().unwrap_or_else(PoisonError::into_inner);
        all_missing += missing;
        for (line, name) in lines.iter().zip(["a", "b"]) {
            let LineReport { first, duplicates, lost, outages, .. } = line;
            say(format_args!(
                "{:<10}  {name:<4}  {first:>6}  {duplicates:>10}  {lost:>6}  {outages:>7}  {missing:>7}",
                plan.name
            ))?;
        }
    }
    if all_missing > 0 {
        return Err(format!("{all_missing} records are missing: no line brought them").into());
    }
    Ok(())
}

impl Publisher {
    fn start(settings: &Settings, line: &str) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&settings.arguments).args(["--line", line]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let mut target = String::new();
        BufReader::new(output.ok_or("the output of a process")?).read_line(&mut target)?;
        if target.is_empty() {
            return Err(format!("the publisher of line {line} has ended: {}", process.wait()?).into());
        }
        Ok(Self { process, input, target: target.trim_end().to_owned() })
    }

    /// Has it publish the day, which began so long ago.
    fn go(&mut self, ago: Duration) -> Outcome<()> {
        let input = self.input.as_mut().ok_or("it was ended")?;
        Ok(writeln!(input, "{}", ago.as_secs_f64())?)
    }

    /// Kills it (SIGKILL).
    fn kill(mut self) -> Outcome<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    fn end(mut self) -> Outcome<()> {
        self.input = None;
        self.process.wait()?;
        Ok(())
    }
}
