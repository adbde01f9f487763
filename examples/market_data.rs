//! Replays 12,154 real daily bars of five stocks, one state topic per ticker, to two processes that it starts: a pull and a push
//! subscriber. It ends by itself, compares what each received last with the file, and exits with 1 on any difference.

#![expect(clippy::disallowed_methods, reason = "an example keeps time with the standard library")]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use fabricast::{Address, Delivery, ErrorChain, Node, ReceiveError, StatePublisher, StateSubscriber};
use serde::{Deserialize, Serialize};

type Outcome<T> = Result<T, Box<dyn Error>>;

const USAGE: &str =
    "usage: market_data [--rate BARS_PER_SECOND] [--data FILE.csv or FILE.csv.gz] [--fabric shm or verbs]";
const STOCKS: &[u8] = include_bytes!("data/stocks.csv.gz");
const NODE: &str = "market-data";
/// Default bars per second: the whole file takes two to three seconds.
const RATE: f64 = 5000.0;
/// The pause between polls of a subscriber: at the default rate it misses most bars, and counts them.
const LOOK: Duration = Duration::from_millis(2);
/// How long the subscribers may take to attach, and to end after the last bar.
const TIMEOUT: Duration = Duration::from_secs(5);

/// One day of one stock. The names of the fields travel with the topic, so any program can show it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Bar {
    date: String,
    open: f64,
    high: f64,
    low: f64,
    close: f64,
    volume: u64,
    adj_close: f64,
}

/// The bars, their rate, and the fabric.
struct Settings {
    rate: f64,
    verbs: bool,
    rows: Vec<(String, Bar)>,
}

/// A subscriber's report on one ticker.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Seen {
    /// The sequence of the first bar received; 0 for none.
    first: u64,
    received: u64,
    conflated: u64,
    torn_retries: u64,
    rejected: u64,
    /// The last bar, as text, so that equal texts mean equal numbers.
    last: String,
    #[serde(skip)]
    ended: bool,
}

type Report = BTreeMap<String, Seen>;

/// A subscribing process. Dropping it kills the process if it still runs.
struct Subscriber {
    delivery: Delivery,
    process: Child,
    lines: Receiver<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [role, at, tickers @ ..] if role == "--subscribe-by-pull" => subscribe(Delivery::Pull, at, tickers),
        [role, at, tickers @ ..] if role == "--subscribe-by-push" => subscribe(Delivery::Push, at, tickers),
        _ => publish(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("market_data: {}", ErrorChain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// The publishing process: replays, and compares at the end.
fn publish(arguments: &[String]) -> Outcome<()> {
    let Settings { rate, verbs, mut rows } = read(arguments)?;
    // The last row of each ticker wins.
    let expected: BTreeMap<String, Bar> = rows.iter().cloned().collect();
    // In order of date, all stocks of a day together.
    rows.sort_by(|(_, one), (_, other)| one.date.cmp(&other.date));

    let builder = Node::builder().name(NODE)?;
    let node = if verbs { builder.rdma("rdma://0.0.0.0")?.open()? } else { builder.open()? };
    // Over RDMA it also listens on this host.
    let is_meant = |at: &&Address| at.is_local() != verbs;
    let at = node
        .addresses()
        .iter()
        .find(is_meant)
        .ok_or("the node does not listen over that fabric")?
        .to_string();
    let mut publishers = BTreeMap::new();
    for ticker in expected.keys() {
        let publisher = node.state_publisher::<Bar>(ticker).payload_len_max(128).open()?;
        publishers.insert(ticker.as_str(), publisher);
    }
    let (bars, seconds) = (rows.len(), rows.len() as f64 / rate);
    println!("{bars} bars of {} stocks, {rate} per second: about {seconds:.1} s", expected.len());
    println!("see them from another terminal (`--rate 50` gives more time):");
    println!("  fabricast list\n  fabricast watch {at}/AAPL");
    let mut pull = Subscriber::start(Delivery::Pull, &at, expected.keys())?;
    let mut push = Subscriber::start(Delivery::Push, &at, expected.keys())?;
    pull.line("attach")?;
    push.line("attach")?;
    println!("both subscribers are attached\n");

    let began = Instant::now();
    for (index, (ticker, bar)) in rows.iter().enumerate() {
        let due = Duration::from_secs_f64(index as f64 / rate);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        pull.check()?;
        push.check()?;
        publishers.get_mut(ticker.as_str()).ok_or("a ticker without a topic")?.publish(bar)?;
    }
    let published = |publisher: &StatePublisher<Bar>| publisher.newest().get();
    let counts: BTreeMap<&str, u64> =
        publishers.iter().map(|(ticker, it)| (*ticker, published(it))).collect();
    // Ends the topics; the last values can still be received.
    drop(publishers);
    let reports = [("pull", pull.report()?), ("push", push.report()?)];
    compare(&expected, &counts, &reports)
}

/// The settings from the arguments, with the rows of the file in order.
fn read(arguments: &[String]) -> Outcome<Settings> {
    let (mut rate, mut data, mut verbs) = (RATE, None, false);
    for pair in arguments.chunks(2) {
        match pair {
            [name, value] if name == "--rate" => {
                rate = value.parse().map_err(|error| format!("--rate {value}: {error}"))?;
            }
            [name, value] if name == "--data" => data = Some(value),
            [name, value] if name == "--fabric" && value == "shm" => verbs = false,
            [name, value] if name == "--fabric" && value == "verbs" => verbs = true,
            _ => return Err(USAGE.into()),
        }
    }
    if !(0.001..=1e9).contains(&rate) {
        return Err(format!("{rate} bars per second are not possible: use 0.001 to 1e9").into());
    }
    let file: Box<dyn Read> = match data {
        None => Box::new(STOCKS),
        Some(path) => Box::new(std::fs::File::open(path).map_err(|error| format!("{path}: {error}"))?),
    };
    let file: Box<dyn Read> = match data {
        Some(path) if !path.ends_with(".gz") => file,
        _ => Box::new(flate2::read::GzDecoder::new(file)),
    };
    let records = csv::Reader::from_reader(file).into_records();
    let rows = records.map(|record| record?.deserialize(None)).collect::<Result<_, csv::Error>>()?;
    Ok(Settings { rate, verbs, rows })
}

/// Prints what was published and received. An error names the differences.
fn compare(
    expected: &BTreeMap<String, Bar>,
    counts: &BTreeMap<&str, u64>,
    reports: &[(&str, Report); 2],
) -> Outcome<()> {
    let mut differences = String::new();
    println!("ticker  published  seen by pull  seen by push  torn retries  rejected  last close");
    for (ticker, bar) in expected {
        let count = counts.get(ticker.as_str()).copied().unwrap_or(0);
        let (mut received, mut torn, mut rejected) = (String::new(), 0, 0);
        for (name, report) in reports {
            let seen = report.get(ticker).ok_or_else(|| format!("no report of {ticker} by {name}"))?;
            if seen.last != format!("{bar:?}") {
                differences +=
                    &format!("\n{ticker} ended by {name} with {}, in the file with {bar:?}", seen.last);
            }
            // Every bar was received, or replaced before a poll, even before the first one received.
            let known = seen.first.saturating_sub(1) + seen.received + seen.conflated;
            if known != count || seen.rejected > 0 {
                differences +=
                    &format!("\n{ticker} by {name}: {count} bars were published, but it saw {seen:?}");
            }
            received += &format!("  {:>12}", seen.received);
            torn += seen.torn_retries;
            rejected += seen.rejected;
        }
        println!("{ticker:<6}  {count:>9}{received}  {torn:>12}  {rejected:>8}  {:>10.2}", bar.close);
    }
    if !differences.is_empty() {
        return Err(format!("what was seen differs from what was published:{differences}").into());
    }
    println!(
        "\nboth ended with the last bar of the file; every bar was seen, or counted as replaced by a newer one"
    );
    Ok(())
}

/// A subscribing process: polls all tickers until they end, and reports what it received.
fn subscribe(delivery: Delivery, at: &str, tickers: &[String]) -> Outcome<()> {
    let failed = |error: &dyn Error| format!("the {delivery} subscriber: {}", ErrorChain(error));
    let node = Node::builder().open().map_err(|error| failed(&error))?;
    let mut open = Vec::new();
    for ticker in tickers {
        let builder = node.state_subscriber::<Bar>(&format!("{at}/{ticker}")).delivery(delivery);
        open.push((builder.open().map_err(|error| failed(&error))?, Seen::default()));
    }
    let mut output = std::io::stdout();
    writeln!(output, "attached")?;
    while open.iter().any(|(_, seen)| !seen.ended) {
        std::thread::sleep(LOOK);
        for (subscriber, seen) in &mut open {
            seen.look(subscriber).map_err(|error| failed(&error))?;
        }
    }
    let report: Report = open.into_iter().map(|(it, seen)| (it.topic().to_string(), seen)).collect();
    writeln!(output, "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

impl Seen {
    fn look(&mut self, subscriber: &mut StateSubscriber<Bar>) -> Result<(), ReceiveError> {
        match subscriber.try_receive() {
            // A value that changes faster than it can be read is tried again at the next poll.
            Ok(None) | Err(ReceiveError::Contended { .. }) => {}
            Ok(Some(sample)) => {
                self.first = if self.first == 0 { sample.meta.sequence.get() } else { self.first };
                self.last = format!("{:?}", sample.value);
            }
            Err(ReceiveError::Ended { .. }) => self.ended = true,
            Err(error) => return Err(error),
        }
        let stats = subscriber.stats();
        (self.received, self.conflated) = (stats.received, stats.conflated);
        (self.torn_retries, self.rejected) = (stats.torn_retries, stats.rejected);
        Ok(())
    }
}

impl Subscriber {
    fn start<'a>(delivery: Delivery, at: &str, tickers: impl Iterator<Item = &'a String>) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(format!("--subscribe-by-{delivery}")).arg(at).args(tickers);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().ok_or("a process without output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { delivery, process, lines })
    }

    /// Waits for the next line that the process prints.
    fn line(&mut self, what: &str) -> Outcome<String> {
        self.lines.recv_timeout(TIMEOUT).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                format!("the {} subscriber did not {what} in time", self.delivery).into()
            }
            RecvTimeoutError::Disconnected => self.gone(),
        })
    }

    /// Fails if the process has ended too early.
    fn check(&self) -> Outcome<()> {
        match self.lines.try_recv() {
            Err(TryRecvError::Disconnected) => Err(self.gone()),
            _ => Ok(()),
        }
    }

    fn gone(&self) -> Box<dyn Error> {
        format!("the {} subscriber ended too early", self.delivery).into()
    }

    fn report(&mut self) -> Outcome<Report> {
        Ok(serde_json::from_str(&self.line("report")?)?)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        // Fails if the process has ended by itself, as usual.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
