//! Replays 12,154 real daily bars of five stocks to two processes that it starts, a pull and a push subscriber: the newest bar of
//! each ticker in a table, and every bar in a log. It ends by itself, compares what each received with the file, and exits with 1 on
//! any difference.

#![expect(clippy::disallowed_methods, reason = "an example keeps time with the standard library")]

use std::collections::BTreeMap;
use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use fabricast::{Address, Change, Delivery, ErrorChain, Node, ReceiveError};
use serde::{Deserialize, Serialize};

type Outcome<T> = Result<T, Box<dyn Error>>;

const USAGE: &str =
    "usage: market_data [--rate BARS_PER_SECOND] [--data FILE.csv or FILE.csv.gz] [--fabric shm or verbs]";
const STOCKS: &[u8] = include_bytes!("data/stocks.csv.gz");
const NODE: &str = "market-data";
/// Default bars per second: the whole file takes two to three seconds.
const RATE: f64 = 5000.0;
/// The pause between polls of a subscriber: at the default rate the table replaces most bars meanwhile, and counts them.
const LOOK: Duration = Duration::from_millis(2);
/// How long the subscribers may take to attach, and to end after the last bar. A machine may be busy or emulated.
const TIMEOUT: Duration = Duration::from_secs(60);

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
    /// Bars received from the table, and those that were replaced before.
    received: u64,
    replaced: u64,
    /// The last of them, as text, so that equal texts mean equal numbers.
    last: String,
    /// Bars received from the log, and a hash of all of them in order.
    recorded: u64,
    hash: u64,
}

/// A subscriber's report: on each ticker, and the entries of the table and records of the log that were refused or lost.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    tickers: BTreeMap<String, Seen>,
    lost: u64,
}

/// A subscribing process. Dropping it kills the process if it still runs.
struct Subscriber {
    delivery: Delivery,
    process: Child,
    lines: Receiver<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.as_slice() {
        [role, at] if role == "--subscribe-by-pull" => subscribe(Delivery::Pull, at),
        [role, at] if role == "--subscribe-by-push" => subscribe(Delivery::Push, at),
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
    let node = if verbs { builder.rdma("rdma://0.0.0.0")?.insecure().open()? } else { builder.open()? };
    // Over RDMA it also listens on this host.
    let is_meant = |at: &&Address| at.is_local() != verbs;
    let at = node.addresses().iter().find(is_meant).ok_or("the node does not listen over that fabric")?;
    let at = at.to_string();
    let mut newest = node.table_publisher::<String, Bar>("newest").capacity(1000).open()?;
    let mut all = node.log_publisher::<(String, Bar)>("bars").capacity(8 << 20).open()?;
    let (bars, seconds) = (rows.len(), rows.len() as f64 / rate);
    println!("{bars} bars of {} stocks, {rate} per second: about {seconds:.1} s", expected.len());
    println!("see them from another terminal (`--rate 50` gives more time):");
    println!("  fabricast list\n  fabricast watch {at}/newest --key 'A*'\n  fabricast tail {at}/bars");
    let mut pull = Subscriber::start(Delivery::Pull, &at)?;
    let mut push = Subscriber::start(Delivery::Push, &at)?;
    pull.line("attach")?;
    push.line("attach")?;
    println!("both subscribers are attached\n");

    let began = Instant::now();
    for (index, row) in rows.iter().enumerate() {
        let due = Duration::from_secs_f64(index as f64 / rate);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        pull.check()?;
        push.check()?;
        newest.put(row.0.as_str(), &row.1)?;
        all.publish(row)?;
    }
    // Ends the topics; the last bars can still be received.
    drop((newest, all));
    let reports = [("pull", pull.report()?), ("push", push.report()?)];
    compare(&expected, &rows, &reports)
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
    rows: &[(String, Bar)],
    reports: &[(&str, Report); 2],
) -> Outcome<()> {
    let mut differences = String::new();
    println!("ticker  published  newest by pull  newest by push  log by pull  log by push  last close");
    for (ticker, bar) in expected {
        let mut published = Seen::default();
        rows.iter().filter(|(name, _)| name == ticker).for_each(|(_, bar)| published.record(bar));
        let (mut newest, mut recorded) = (String::new(), String::new());
        for (name, report) in reports {
            let seen = report.tickers.get(ticker).ok_or("a ticker without a report")?;
            if seen.last != format!("{bar:?}") {
                differences +=
                    &format!("\n{ticker} ended by {name} with {}, in the file with {bar:?}", seen.last);
            }
            // Every bar came in the log, and in the table or was replaced there before a poll.
            let (known, count) = (seen.received + seen.replaced, published.recorded);
            if known != count || (seen.recorded, seen.hash) != (count, published.hash) {
                differences +=
                    &format!("\n{ticker} by {name}: {count} bars were published, but it saw {seen:?}");
            }
            newest += &format!("  {:>14}", seen.received);
            recorded += &format!("  {:>11}", seen.recorded);
        }
        println!("{ticker:<6}  {:>9}{newest}{recorded}  {:>10.2}", published.recorded, bar.close);
    }
    reports.iter().for_each(|(name, report)| println!("{name}: {} bars refused or lost", report.lost));
    if !differences.is_empty() || reports.iter().any(|(_, report)| report.lost > 0) {
        return Err(format!("what was seen differs from what was published:{differences}").into());
    }
    println!("\nboth ended with the last bars of the file; every bar of the log came as it was published");
    Ok(())
}

/// A subscribing process: polls the table and the log until both end, and reports what it received.
fn subscribe(delivery: Delivery, at: &str) -> Outcome<()> {
    let failed = |error: &dyn Error| format!("the {delivery} subscriber: {}", ErrorChain(error));
    let node = Node::builder().open().map_err(|error| failed(&error))?;
    let newest = node.table_subscriber::<String, Bar>(&format!("{at}/newest")).delivery(delivery);
    let mut newest = newest.open().map_err(|error| failed(&error))?;
    let all = node.log_subscriber::<(String, Bar)>(&format!("{at}/bars")).delivery(delivery);
    let mut all = all.open().map_err(|error| failed(&error))?;
    let mut output = std::io::stdout();
    writeln!(output, "attached")?;
    let (mut report, mut is_over) = (Report::default(), [false; 2]);
    while is_over != [true; 2] {
        std::thread::sleep(LOOK);
        while let Some(change) = next(newest.try_change(), &mut is_over[0]).map_err(|error| failed(&error))? {
            report.tickers.entry(change.key.clone()).or_default().change(change);
        }
        while let Some(record) = next(all.try_receive(), &mut is_over[1]).map_err(|error| failed(&error))? {
            let (ticker, bar) = record.value;
            report.tickers.entry(ticker).or_default().record(&bar);
        }
    }
    let lost = [newest.stats(), all.stats()].map(|stats| stats.rejected + stats.lapped + stats.cut_off);
    report.lost = lost.iter().sum();
    writeln!(output, "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// The outcome of a receive, or that the topic is over.
fn next<T>(outcome: Result<Option<T>, ReceiveError>, is_over: &mut bool) -> Result<Option<T>, ReceiveError> {
    match outcome {
        Err(ReceiveError::Ended { .. }) => {
            *is_over = true;
            Ok(None)
        }
        // What changes faster than it can be read is tried again at the next poll.
        Err(ReceiveError::Contended { .. }) => Ok(None),
        outcome => outcome,
    }
}

impl Seen {
    fn change(&mut self, change: Change<String, Bar>) {
        self.received += 1;
        self.replaced += change.replaced;
        self.last = change.value.map_or_else(String::new, |bar| format!("{bar:?}"));
    }

    fn record(&mut self, bar: &Bar) {
        let mut hasher = DefaultHasher::new();
        (self.hash, format!("{bar:?}")).hash(&mut hasher);
        (self.recorded, self.hash) = (self.recorded + 1, hasher.finish());
    }
}

impl Subscriber {
    fn start(delivery: Delivery, at: &str) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(format!("--subscribe-by-{delivery}")).arg(at);
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
        if self.lines.try_recv() == Err(TryRecvError::Disconnected) { Err(self.gone()) } else { Ok(()) }
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
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
