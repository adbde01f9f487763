//! The examples, run as a user runs them: real processes, a runtime directory of their own.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed, as it should")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use fabricast::{ErrorChain, Node, Raw, ReceiveError};
use tempfile::TempDir;

/// How long anything may take that comes to its end by itself.
const TIMEOUT: Duration = Duration::from_secs(60);
const TICKERS: [(&str, u64, &str); 5] = [
    ("AAPL", 3270, "430.47"),
    ("FB", 196, "27.78"),
    ("GOOG", 2148, "806.19"),
    ("IBM", 3270, "202.91"),
    ("MSFT", 3270, "27.95"),
];

/// Where the examples are. They are built first, which takes no time when that has been done: a test run may have
/// built none, or old ones may lie there.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let profile = own.ancestors().nth(2).unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        build
            .args(["build", "--quiet", "--locked", "--examples", "--target-dir"])
            .arg(profile.parent().unwrap());
        // The same features as this program has, or the library would be built once more.
        if cfg!(feature = "verbs") {
            build.args(["--features", "verbs"]);
        }
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        profile.join("examples")
    })
}

fn example(name: &str, runtime_dir: &TempDir) -> Command {
    let mut command = Command::new(folder().join(name));
    command.env("FABRICAST_RUNTIME_DIR", runtime_dir.path()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Waits until the process has printed a line that begins so.
fn wait_for_line(process: &mut Child, begin: &str) {
    let lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
    let found = lines.into_iter().any(|line| line.starts_with(begin));
    assert!(found, "the process ended without a line {begin:?}");
}

#[test]
fn market_data_ends_and_every_subscriber_has_the_last_bar() {
    let dir = directory();
    let mut command = assert_cmd::Command::from_std(example("market_data", &dir));
    let output = command.timeout(TIMEOUT).assert().success().get_output().clone();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let text = String::from_utf8(output.stdout).unwrap();
    let table: Vec<Vec<&str>> = text
        .lines()
        .skip_while(|line| !line.starts_with("ticker"))
        .skip(1)
        .take_while(|line| !line.starts_with("pull:"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(table.len(), TICKERS.len(), "{text}");
    for (row, (ticker, published, close)) in table.iter().zip(TICKERS) {
        let [name, count, pull, push, by_pull, by_push, last] = row[..] else { panic!("{text}") };
        let all = &*published.to_string();
        assert_eq!((name, count, by_pull, by_push, last), (ticker, all, all, all, close), "{text}");
        for seen in [pull, push] {
            assert!((1..=published).contains(&seen.parse().unwrap()), "{text}");
        }
    }
    assert_eq!(text.matches(" 0 bars refused or lost").count(), 2, "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something was left behind");
}

/// In this file the last row is not the newest, so that the last bar published is another than the file's last.
#[test]
fn market_data_fails_when_received_bars_differ_from_the_file() {
    let dir = directory();
    let data = dir.path().join("bars.csv");
    let rows = "Ticker,Date,Open,High,Low,Close,Volume,Adj Close\nA,2001-01-02,1,2,1,2,10,2\nA,2001-01-01,1,1,1,1,10,1\n";
    std::fs::write(&data, rows).unwrap();
    let output = example("market_data", &dir).arg("--data").arg(&data).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    for name in ["pull", "push"] {
        assert!(error.contains(&format!("A ended by {name} with Bar {{ date: \"2001-01-02\"")), "{error}");
    }
}

#[test]
fn market_data_reports_a_name_in_use_and_wrong_arguments() {
    let dir = directory();
    let _node = Node::builder().name("market-data").unwrap().runtime_dir(dir.path()).open().unwrap();
    for (arguments, sentence) in [
        (&[][..], "market-data"),
        (&["--rate"], "usage: market_data"),
        (&["--rate", "0"], "0 bars"),
        (&["--data", "/nonexistent/bars.csv"], "/nonexistent/bars.csv: No such file"),
    ] {
        let output = example("market_data", &dir).args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(sentence), "{arguments:?}: {error}");
    }
}

/// The subscribers share the standard error of their parent, which ends when the last of the three has.
#[test]
fn market_data_leaves_no_process_behind_when_it_is_killed() {
    let dir = directory();
    let mut process = example("market_data", &dir).args(["--rate", "1"]).spawn().unwrap();
    wait_for_line(&mut process, "both subscribers are attached");
    process.kill().unwrap();
    let mut error = String::new();
    process.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    process.wait().unwrap();
    for name in ["pull", "push"] {
        assert!(error.contains(&format!("{name} subscriber: the publisher is gone")), "{error}");
    }
}

/// The rows of the table that `market_feed` prints: name, records, events, values, removals, losses, books compared.
fn rows_of_market_feed(arguments: &[&str]) -> Vec<(String, [u64; 6])> {
    let dir = directory();
    let mut command = assert_cmd::Command::from_std(example("market_feed", &dir));
    let output = command.args(arguments).timeout(TIMEOUT).assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("35759 messages: 21057 events of 25174 records, 1270 removals"), "{text}");
    let row = |line: &str| -> (String, [u64; 6]) {
        let (name, counts) = line.split_once(' ').unwrap();
        let counts: Vec<u64> = counts.split_whitespace().map(|count| count.parse().unwrap()).collect();
        (name.to_owned(), counts.try_into().unwrap())
    };
    let lines = text.lines().skip_while(|line| !line.starts_with("subscriber")).skip(1);
    let rows: Vec<_> = lines.take_while(|line| !line.is_empty()).map(row).collect();
    let compared: Vec<_> = rows.iter().map(|(name, [.., compared])| (name.as_str(), *compared)).collect();
    let all = 2546;
    assert_eq!(compared, [("pull", all), ("push", all), ("fifty", 46), ("conflated", all), ("late", all)]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something was left behind");
    rows
}

#[test]
fn market_feed_ends_and_every_subscriber_has_the_books_of_the_engine() {
    for (name, [records, events, values, removals, losses, _]) in rows_of_market_feed(&[]) {
        let row = format!("{name}: {records} {events} {values} {removals} {losses}");
        assert!(removals > 0, "{row}");
        match name.as_str() {
            "conflated" => assert!(records == 0 && values >= 2546, "{row}"),
            "late" => assert!((1..25_174).contains(&records) && values > 1000, "{row}"),
            "fifty" => assert!((events..=3585).contains(&records), "{row}"),
            _ => assert!((events..=25_174).contains(&records), "{row}"),
        }
    }
}

/// Two publishers, of which each is killed once. The second is killed more than ten seconds, a subscriber's timeout, before the day ends.
#[test]
fn market_feed_of_two_lines_loses_nothing() {
    let dir = directory();
    let mut command = assert_cmd::Command::from_std(example("market_feed", &dir));
    command.args(["--lines", "2", "--rate", "1000", "--messages", "24000"]);
    let output = command.timeout(TIMEOUT).assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    for killed in ["line a was killed after", "line a is back, and line b was killed after"] {
        assert!(text.contains(killed), "{text}");
    }
    assert!(text.contains("every subscriber ended with the books of the engine"), "{text}");
    let rows = text.lines().skip_while(|line| !line.ends_with("missing")).skip(1);
    let rows: Vec<(&str, Vec<u64>)> = rows
        .map(|row| {
            let mut words = row.split_whitespace();
            let name = words.next().unwrap();
            (name, words.skip(1).map(|count| count.parse().unwrap()).collect())
        })
        .collect();
    let names: Vec<&str> = rows.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["pull", "pull", "push", "push", "fifty", "fifty"], "{text}");
    for (name, counts) in &rows {
        let [first, _, _, outages, missing] = counts[..] else { panic!("{text}") };
        assert!(first > 0 && outages == 1 && missing == 0, "{name}: {text}");
    }
}

/// Few messages: the feed may end without a key, or without any record.
#[test]
fn market_feed_needs_no_messages() {
    for count in ["0", "1", "5", "10", "11", "12"] {
        let dir = directory();
        let mut command = assert_cmd::Command::from_std(example("market_feed", &dir));
        command.args(["--rate", "1e6", "--messages", count]).timeout(TIMEOUT).assert().success();
    }
}

/// The least capacity that the error names is enough.
#[test]
fn market_feed_runs_with_the_least_log_and_prints_its_usage() {
    let dir = directory();
    let output = example("market_feed", &dir).args(["--log-capacity", "1"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    let (_, least) = error.trim_end().rsplit_once(' ').unwrap();
    rows_of_market_feed(&["--rate", "1e9", "--log-capacity", least]);
    let output = example("market_feed", &dir).arg("--help").output().unwrap();
    let usage = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && usage.starts_with("usage: market_feed"), "{usage}");
}

/// As fast as possible, with a log that holds few records: how many are lost depends on the machine, and every subscriber ends with the
/// books of the engine.
#[test]
fn market_feed_with_a_small_log_ends_with_the_books() {
    let rows = rows_of_market_feed(&["--rate", "1e9", "--log-capacity", "16384"]);
    println!("{rows:?}");
}

#[test]
fn market_feed_reports_a_name_in_use_and_wrong_arguments() {
    let dir = directory();
    let _node = Node::builder().name("market-feed").unwrap().runtime_dir(dir.path()).open().unwrap();
    for (arguments, sentence) in [
        (&[][..], "market-feed"),
        (&["--rate"], "--rate without a value: use a number of messages per second"),
        (&["--rate", "0"], "--rate 0: use a number of messages per second"),
        (&["--rate", "abc"], "--rate abc: use a number of messages per second"),
        (&["--messages", "-5"], "--messages -5: use a number of messages, 0 or more"),
        (&["--lines", "3"], "--lines 3: use 2"),
        (&["--lines"], "--lines without a value: use 2"),
        (&["--fabric", "tcp"], "--fabric tcp: use shm or verbs"),
        (&["--speed", "3"], "no option --speed: see --help"),
        (&["--log-capacity", "many"], "many"),
        (&["--log-capacity", "1"], "use at least "),
        (&["--messages", "35760"], "the file has 35759"),
        (&["--data", "/nonexistent/orders.csv"], "/nonexistent/orders.csv: No such file"),
    ] {
        let output = example("market_feed", &dir).args(arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(sentence), "{arguments:?}: {error}");
    }
}

/// As it is by `head -1`.
#[test]
fn market_feed_ends_quietly_when_nobody_reads_its_output() {
    for arguments in [&["--help"][..], &["--messages", "100"], &["--lines", "2", "--messages", "100"]] {
        let dir = directory();
        let mut command = example("market_feed", &dir);
        command.args(arguments).args(["--rate", "1e4"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && error.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn market_feed_that_is_killed_leaves_no_publisher() {
    let dir = directory();
    let mut command = example("market_feed", &dir);
    // The publishers would go on for an hour.
    command.args(["--lines", "2", "--rate", "10"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(2).map(Result::unwrap);
    assert_eq!(lines.count(), 2, "both publishers exist");
    let node = Node::builder().runtime_dir(dir.path()).open().unwrap();
    let mut feeds = ["a", "b"].map(|line| {
        let mut feed = node.log_subscriber::<Raw>(format!("shm:market-feed-{line}/market")).open().unwrap();
        assert!(feed.receive_timeout(Duration::from_secs(60)).unwrap().is_some(), "it publishes");
        feed
    });
    child.kill().unwrap();
    child.wait().unwrap();
    for feed in &mut feeds {
        let end = feed.samples().find_map(Result::err).unwrap();
        assert!(matches!(end, ReceiveError::Gone { .. }), "{end}");
    }
}

#[test]
fn publish_and_subscribe_find_each_other() {
    let dir = directory();
    // It takes thirty seconds, in which the subscribers have to begin.
    let mut publisher = example("publish", &dir).arg("300").spawn().unwrap();
    wait_for_line(&mut publisher, "publishing");
    let subscribers =
        ["pull", "push"].map(|delivery| example("subscribe", &dir).arg(delivery).spawn().unwrap());
    for subscriber in subscribers {
        let output = subscriber.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        assert!(
            text.contains("Reading { celsius: ") && text.contains("the end, after 300 readings"),
            "{text}"
        );
    }
    assert!(publisher.wait().unwrap().success());
    let output = example("subscribe", &dir).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && error.starts_with("subscribe: ") && error.contains("shm:station/reading"),
        "{error}"
    );
}

/// Reading does not involve the publisher, and works while its process is stopped. Attaching does.
#[test]
fn stopped_publisher_is_still_readable() {
    let dir = directory();
    // It would run for a minute, and is killed before.
    let mut publisher = example("publish", &dir).arg("600").spawn().unwrap();
    wait_for_line(&mut publisher, "publishing");
    let node = Node::builder().runtime_dir(dir.path()).open().unwrap();
    let attach = |timeout| node.state_subscriber::<Raw>("shm:station/reading").timeout(timeout).open();
    let mut subscriber = attach(TIMEOUT).unwrap();
    let first = subscriber.receive_timeout(TIMEOUT).unwrap().expect("a reading");
    let mut unread = attach(TIMEOUT).unwrap();

    let process = rustix::process::Pid::from_child(&publisher);
    rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
    // Returns when all of its threads have stopped.
    rustix::process::waitpid(Some(process), rustix::process::WaitOptions::UNTRACED).unwrap();
    let sample = unread.try_receive().unwrap().expect("the newest reading");
    assert!(sample.meta.sequence >= first.meta.sequence);
    drop(unread);
    // An existing session is shared; a new node has to say hello.
    let stranger = Node::builder().runtime_dir(dir.path()).open().unwrap();
    let builder = stranger.state_subscriber::<Raw>("shm:station/reading").timeout(Duration::from_millis(100));
    let error = ErrorChain(&builder.open().unwrap_err()).to_string();
    assert!(error.contains("in time"), "{error}");

    rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
    let next = subscriber.receive_timeout(TIMEOUT).unwrap().expect("the next reading");
    assert!(next.meta.sequence > first.meta.sequence);
    publisher.kill().unwrap();
    publisher.wait().unwrap();
}

#[test]
fn loan_arrives_whole() {
    let output = example("loan", &directory()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.ends_with("frame 3: 307200 bytes, whole: true\n"), "{output:?}");
}

#[test]
fn dialling_publisher_is_received_to_the_end() {
    let output = example("dial_out", &directory()).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("1 push subscriber attached\n"), "{text}");
    assert!(text.contains("5 Reading { number: 5, celsius: 17.5 }\nthe end after 5: "), "{text}");
    let last = text.lines().last().unwrap();
    let counts: Vec<u64> = last.split([' ', ':']).filter_map(|word| word.parse().ok()).collect();
    let [5, received, missed] = counts[..] else { panic!("{last}") };
    assert_eq!(received + missed, 5, "{last}");
}

#[test]
fn dial_out_reports_a_name_in_use() {
    let dir = directory();
    let _node = Node::builder().name("desk").unwrap().runtime_dir(dir.path()).open().unwrap();
    let output = example("dial_out", &dir).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && error.starts_with("dial_out: ") && error.contains("desk"),
        "{error}"
    );
}

#[test]
fn event_log_delivers_earlier_and_live_events_and_counts_missed_ones() {
    let output = example("event_log", &directory()).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("late: ") && lines[0].contains('5') && lines[0].ends_with('1'), "{text}");
    for (line, number) in lines[1..11].iter().zip(1..) {
        let expected =
            format!("late: {number} Event {{ number: {number}, what: \"order {} filled\" }}", 7000 + number);
        assert_eq!(*line, expected);
    }
    let [lost, counts] = lines[11..] else { panic!("{text}") };
    assert!(lost.contains(" from 5 on"), "{text}");
    let numbers: Vec<u64> = counts.split([' ', ':']).filter_map(|word| word.parse().ok()).collect();
    let [received, missed] = numbers[..] else { panic!("{counts}") };
    assert_eq!((received + missed, lost.split(' ').nth(1)), (1006, Some(missed.to_string().as_str())));
}

#[test]
fn warm_publisher_continues_and_leaves_a_file_that_is_read() {
    let output = example("warm", &directory()).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    let of = |role: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix(role)).map(str::to_owned).collect()
    };
    assert_eq!(of("publisher: "), ["begins after record 0", "begins after record 2"]);
    let records = ["1 101.25", "2 101.5", "3 101.75"];
    assert_eq!(of("file: "), records);
    let received = of("subscriber: ").into_iter().filter(|line| line.starts_with(char::is_numeric));
    assert_eq!(received.collect::<Vec<_>>(), records);
}

#[test]
fn table_delivers_changes_of_wanted_keys_and_a_snapshot_of_all() {
    let output = example("table", &directory()).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<&str> = text.lines().collect();
    let [new, changed, end] = [0..3, 3..6, 6..8].map(|lines_of| {
        let mut found = lines[lines_of].to_vec();
        found.sort_unstable();
        found
    });
    assert_eq!(new, ["S0007", "S0042", "S2999"].map(|symbol| format!("{symbol}: new, 100 to 100.25")));
    let values =
        ["S0007: 101.25 to 101.5, 4 replaced", "S0042: 101.5 to 101.75, 5 replaced", "S2999: removed"];
    assert_eq!(changed, values);
    let commit = "S0042: 101.5 to 101.75 by commit 7";
    assert_eq!(end, [commit, "commit 8: 2999 symbols, 2998 quoted in round 5"]);
    assert_eq!(lines.len(), 8, "{text}");
}
