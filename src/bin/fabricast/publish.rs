//! `fabricast pub`: publishes lines of standard input as values or records.

mod inferred;
mod json;
mod lines;
mod publisher;
mod table;

use std::io::{self, BufReader, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use crossbeam::channel::{Receiver, bounded};
use fabricast::{
    Address, Epoch, ErrorChain, FinishError, Node, NodeName, Payload, PublishedKind, PublisherBuilder, Raw,
    Target, limits,
};

use self::lines::{Form, Layout, Line};
use self::publisher::{Encoded, Publisher, Refused, SCHEMA};
use super::clock::Pace;
use super::failure::{Exit, Failure};
use super::interrupt::{Input, Interrupt};
use super::output::shown;
use super::setting::{SessionArguments, Setting, target};
use super::units::{duration, size_in};

/// The slowest rate: one value a year.
const INTERVAL_MAX: Duration = Duration::from_secs(365 * 86_400);

const AFTER_HELP: &str = "\
Each line, without its line end, becomes one value: a String, bytes with --raw, or with --json a
value of the type inferred from --example or from the first line that determines one. The topic is
served until the input has ended, --linger has passed, and every subscriber has received all of it,
but for at most 7 seconds more, or until Ctrl-C.

A state topic holds the newest value: without --rate, lines replace each other as fast as they
arrive. A log holds them in order, as many as fit into --capacity, and overwrites the oldest;
lines that arrive together are published with one commit. A table holds the newest value of each
key. A line is a key, a tab, and its value; the key is any text of up to 256 bytes. Lines that
arrive together are published with one commit, and replace each other's values. The table has
memory for --keys keys; a line with another key is then rejected.

Unless --quiet is given, reports on standard error what is served and until when. Rejected lines
are reported by number and skipped; the exit code is then 1. Subscribers that have not received
the last line and the end within 7 seconds are reported, too.

With --epoch, several commands that publish the same lines are lines of one topic, to be received
with `fabricast watch --line`. Each line of a table is then a commit of its own.

With --warm, the topic outlives the command: started again with the same PATH, topic, type and
sizes, it continues with the next sequence, and subscribers lose nothing that the topic holds, even
if the command was killed. PATH is in a tmpfs; remove the file to begin anew.

A publisher waits for subscribers only in programs (`SlowPolicy`) and in `perf stream --policy`.

Numbers in JSON are i64, or u64 if too large for i64, or f64 with a point or an exponent. A field
that is null or missing in some --example values is optional.

Examples:
  vmstat 1 | fabricast pub shm:host/vmstat --kind state
  date | fabricast pub shm:me/now --kind state --linger 1m
  date | fabricast pub --insecure rdma://0.0.0.0/now --kind state --linger 1m
  journalctl -f | fabricast pub shm:host/journal --kind log --capacity 10M
  fabricast pub shm:me/replay --kind state --rate 10 < lines.txt
  echo '{\"bid\": 1.5, \"ask\": 1.6}' | fabricast pub me/quote --json --linger 1m
  printf 'EURUSD\\t1.0841\\nUSDJPY\\t151.2\\n' | fabricast pub me/fx --kind table --json --linger 1m
  fabricast pub me/quotes --kind table --keys 5000 < quotes.tsv
  fabricast pub a/trades --kind log --epoch 20261123 < trades.txt
  tail -F app.log | fabricast pub shm:host/app --kind log --warm /dev/shm/app-log
  fabricast pub me/orders --json --example '{\"price\": 0.5, \"note\": \"x\"}' --example '{\"price\": 1}'";

/// Arguments of `pub`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic to publish, as in shm:NODE/TOPIC, or NODE/TOPIC for short. This creates the node, so its name must be free. With
    /// rdma://HOST[:PORT]/TOPIC it listens there too; HOST is an address of this host, or 0.0.0.0 for all of them.
    #[arg(value_parser = target)]
    target: Target,
    /// The name of the node at an rdma:// address [default: rdma-PORT].
    #[arg(long, value_name = "NAME")]
    node: Option<NodeName>,
    /// The epoch of the topic, a hexadecimal number as --json prints it, instead of a random one: 20261123 is Epoch::new(0x2026_1123) in
    /// a program. Publishers of the same lines and epoch are lines of one topic; one that is restarted continues the numbering.
    #[arg(long, value_name = "EPOCH", value_parser = epoch)]
    epoch: Option<Epoch>,
    /// What the topic holds.
    #[arg(long, value_enum, default_value_t = Holding::State)]
    kind: Holding,
    /// Publish each line as raw bytes.
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    /// Parse each line as a JSON value; the first line determines the type.
    #[arg(long)]
    json: bool,
    /// JSON value to infer the type from; repeat it to make fields optional or fractional.
    #[arg(long, value_name = "JSON", requires = "json")]
    example: Vec<String>,
    /// Publish at most this many values per second.
    #[arg(long, value_name = "N", value_parser = interval)]
    rate: Option<Duration>,
    /// Serve the last value for this long after the input ends: seconds, or with a unit, as in 5s or 1h.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0")]
    linger: Duration,
    /// Declare that values are valid for this time only: subscribers skip older ones. Seconds, or with a unit, as in 500ms.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lifespan: Option<Duration>,
    /// Keep the topic in this file in a tmpfs, as in /dev/shm/FILE: when the command is started again, it continues with the next
    /// sequence, and with what the topic holds. `fabricast tail file:PATH` and `get` read the file without this command.
    #[arg(long, value_name = "PATH")]
    warm: Option<PathBuf>,
    #[command(flatten)]
    sessions: SessionArguments,
    /// Do not report what is served.
    #[arg(long, short)]
    quiet: bool,
    /// Values held in the memory of a state topic: a power of two [default: 8].
    #[arg(long, value_name = "N")]
    slots: Option<u32>,
    /// Size of the ring of a log, in bytes or with a unit; each record takes 24 bytes besides its value [default: 1M].
    #[arg(long, value_name = "SIZE", value_parser = size_in::<usize>(0..=u64::MAX))]
    capacity: Option<usize>,
    /// The keys that a table may have; each takes twice the longest value [default: 1024].
    #[arg(long, value_name = "N")]
    keys: Option<usize>,
    /// The longest value, of a table together with its key, in bytes or with a unit; a text takes 8 bytes more than its length
    /// [default: 64k; of a table 4k].
    #[arg(long, value_name = "SIZE", value_parser = size_in::<usize>(0..=u64::MAX))]
    payload_len_max: Option<usize>,
}

/// The kind of topic, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Holding {
    /// The newest value.
    State,
    /// Values in order.
    Log,
    /// The newest value of each key.
    Table,
}

/// The longest value unless declared, of a state topic or a log, and of a table with its key: a table has memory for many.
const LEN_MAX_DEFAULT: usize = 64 * 1024;
const TABLE_LEN_MAX_DEFAULT: usize = 4 * 1024;

/// The counts of lines.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    published: u64,
    rejected: u64,
}

/// The topic that lines are published to.
struct Topic {
    form: Form,
    publisher: Box<dyn Publisher>,
    tally: Tally,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    arguments.check()?;
    let interrupt = Interrupt::install()?;
    let example = arguments.form()?;
    let node = open(arguments, setting, &arguments.target.address)?;
    let (sender, batches) = bounded(1);
    let layout = arguments.layout();
    let len_max = Form::line_len_max(example.as_ref(), layout, arguments.len_max());
    // An interrupt abandons this thread while it waits for input.
    std::thread::Builder::new()
        .spawn(move || lines::read(&mut BufReader::new(io::stdin()), layout, len_max, &sender))
        .map_err(no_thread)?;
    let mut tally = Tally::default();
    let (form, first) = match example {
        Some(form) => (form, Vec::new()),
        None => match first_lines(&batches, &interrupt, &mut tally)? {
            Some((form, first)) => (form, first),
            None if interrupt.came() => return Ok(tally.exit()),
            None => return Err(Failure::new(Exit::No, tally.typeless())),
        },
    };
    let mut topic = Topic::open(&node, arguments, form, tally)?;
    arguments.say(&format!("serving {}", arguments.outlook()));
    let outcome = topic.serve(arguments, first, &batches, &interrupt);
    // The topic ends before the node, so that all subscribers are notified.
    if outcome.is_err() || interrupt.came() {
        drop(topic.publisher);
    } else {
        arguments.finish(topic.publisher, &interrupt)?;
    }
    outcome
}

/// Why a thread was not started, and what to do.
fn no_thread(error: io::Error) -> Failure {
    let advice = "end some, or raise the limit (ulimit -u, ulimit -v)";
    Failure::new(Exit::Local, format!("cannot start a thread: {error}; {advice}"))
}

/// The type of the first valid line, that line, and those that came with it. Rejects the lines before it.
fn first_lines(
    batches: &Receiver<Vec<Line>>,
    interrupt: &Interrupt,
    tally: &mut Tally,
) -> Result<Option<(Form, Vec<Line>)>, Failure> {
    while let Input::Item(batch) = interrupt.receive(batches) {
        let mut batch = batch.into_iter();
        while let Some(line) = batch.next() {
            match Form::of_line(line) {
                Ok((form, line)) => return Ok(Some((form, std::iter::once(line).chain(batch).collect()))),
                Err(lines::Rejected::Line(sentence)) => tally.reject(sentence),
                Err(lines::Rejected::Input(failure)) => return Err(failure),
            }
        }
    }
    Ok(None)
}

impl Arguments {
    /// Rejects inconsistent arguments.
    fn check(&self) -> Result<(), Failure> {
        let sentence = match self.kind {
            Holding::State if self.capacity.is_some() => {
                "a state topic has slots, not a --capacity: omit it, or use --kind log"
            }
            Holding::Log if self.slots.is_some() => {
                "a log has a --capacity, not --slots: omit them, or use --kind state"
            }
            Holding::Table if self.slots.is_some() || self.capacity.is_some() => {
                "a table has --keys, not --slots or a --capacity: omit them, or use --kind state or log"
            }
            Holding::Table if self.raw => {
                "the lines of a table have keys: omit --raw, or use --kind state or log"
            }
            Holding::State | Holding::Log if self.keys.is_some() => {
                "only a table has --keys: omit them, or use --kind table"
            }
            _ => return Ok(()),
        };
        Err(Failure::usage(sentence))
    }

    /// The form of the lines; `None` if the first one determines it.
    fn form(&self) -> Result<Option<Form>, Failure> {
        Ok(match (self.raw, self.json, self.example.as_slice()) {
            (true, ..) => Some(Form::Raw),
            (_, false, _) => Some(Form::Text),
            (_, true, []) => None,
            (_, true, examples) => {
                let malformed = |why| Failure::usage(format!("--example cannot be used: {why}"));
                Some(Form::of_examples(examples).map_err(malformed)?)
            }
        })
    }

    /// What the lines are.
    fn layout(&self) -> Layout {
        if self.kind == Holding::Table { Layout::KeyAndValue } else { Layout::Value }
    }

    /// The longest value, of a table together with its key.
    fn len_max(&self) -> usize {
        let default = if self.kind == Holding::Table { TABLE_LEN_MAX_DEFAULT } else { LEN_MAX_DEFAULT };
        self.payload_len_max.unwrap_or(default)
    }

    /// The table to be opened.
    fn opening<'a>(&'a self, node: &'a Node) -> table::Opening<'a> {
        let capacity = self.keys.unwrap_or(limits::TABLE_CAPACITY_DEFAULT);
        let (topic, len_max, epoch) = (&self.target.topic, self.len_max(), self.epoch);
        table::Opening {
            node,
            topic,
            capacity,
            len_max,
            epoch,
            lifespan: self.lifespan,
            warm: self.warm.as_deref(),
        }
    }

    /// A builder with the epoch and the lifespan that are given.
    fn named<'a, K: PublishedKind, P: Payload>(
        &self,
        mut builder: PublisherBuilder<'a, K, P>,
    ) -> PublisherBuilder<'a, K, P> {
        if let Some(epoch) = self.epoch {
            builder = builder.epoch(epoch);
        }
        if let Some(path) = &self.warm {
            builder = builder.warm(path);
        }
        match self.lifespan {
            Some(lifespan) => builder.lifespan(lifespan),
            None => builder,
        }
    }

    /// Reports on standard error, unless --quiet.
    fn say(&self, sentence: &str) {
        if !self.quiet {
            Failure::new(Exit::Done, sentence).note();
        }
    }

    /// Ends the topic once its subscribers have received everything, unless that takes too long or the process is interrupted.
    fn finish(&self, publisher: Box<dyn Publisher>, interrupt: &Interrupt) -> Result<(), Failure> {
        let (sender, ended) = bounded(1);
        // An interrupt abandons this thread.
        let finishing = std::thread::Builder::new().spawn(move || _ = sender.send(publisher.finish()));
        finishing.map_err(no_thread)?;
        if let Input::Item(Err(error)) = interrupt.receive(&ended) {
            // Even with --quiet: it is a loss.
            Failure::new(Exit::Done, unfinished(&self.target, self.linger, &error)).note();
        }
        Ok(())
    }

    /// What is served, and until when.
    fn outlook(&self) -> String {
        let end = if io::stdin().is_terminal() { "the input ends (Ctrl-D)" } else { "the input ends" };
        match self.linger {
            Duration::ZERO => format!("{} until {end}, or Ctrl-C", self.target),
            linger => format!("{} until {} after {end}, or Ctrl-C", self.target, shown(linger)),
        }
    }
}

impl Topic {
    fn open(node: &Node, arguments: &Arguments, form: Form, tally: Tally) -> Result<Self, Failure> {
        let publisher = match &form {
            _ if arguments.kind == Holding::Table => arguments.opening(node).publisher(&form)?,
            Form::Raw => open_publisher::<Raw>(node, arguments)?,
            Form::Text => open_publisher::<Encoded>(node, arguments)?,
            Form::Json(_, schema) => {
                // Cannot fail: a process has one topic.
                let _ = SCHEMA.set(schema.clone());
                open_publisher::<Encoded>(node, arguments)?
            }
        };
        Ok(Self { form, publisher, tally })
    }

    /// Publishes the lines, and lingers.
    fn serve(
        &mut self,
        arguments: &Arguments,
        first: Vec<Line>,
        batches: &Receiver<Vec<Line>>,
        interrupt: &Interrupt,
    ) -> Result<Exit, Failure> {
        let mut pace = arguments.rate.map(Pace::new);
        let mut next = Some(Input::Item(first));
        loop {
            let batch = match next.take().unwrap_or_else(|| interrupt.receive(batches)) {
                Input::Item(batch) => batch,
                Input::End => break,
                Input::Interrupted => return Ok(self.tally.exit()),
            };
            // Other publishers of the same lines have the same commits.
            let is_single = arguments.epoch.is_some() && arguments.kind == Holding::Table;
            if pace.is_none() && !is_single {
                self.publish(arguments, batch)?;
                continue;
            }
            for line in batch {
                if let Some(pace) = &mut pace {
                    if interrupt.pause(pace.left()) {
                        return Ok(self.tally.exit());
                    }
                    pace.advance();
                }
                self.publish(arguments, vec![line])?;
            }
        }
        arguments.say(&self.tally.at_end(arguments));
        interrupt.pause(arguments.linger);
        Ok(self.tally.exit())
    }

    /// Publishes lines. Reports and skips those that cannot be values.
    fn publish(&mut self, arguments: &Arguments, lines: Vec<Line>) -> Result<(), Failure> {
        let mut entries = Vec::with_capacity(lines.len());
        let mut trouble = None;
        for line in lines {
            match self.form.encode(line, arguments.layout(), arguments.len_max()) {
                Ok(entry) => entries.push(entry),
                Err(lines::Rejected::Line(sentence)) => self.tally.reject(sentence),
                Err(lines::Rejected::Input(failure)) => trouble = Some(failure),
            }
        }
        let refused = self.publisher.publish(&entries).map_err(|error| Failure::of(Exit::No, &error))?;
        self.tally.published += (entries.len() - refused.len()) as u64;
        for Refused { number, why } in refused {
            self.tally.reject(lines::not_published(number, &why));
        }
        trouble.map_or(Ok(()), Err)
    }
}

impl Tally {
    fn exit(self) -> Exit {
        if self.rejected == 0 { Exit::Done } else { Exit::No }
    }

    /// Reports a line that is not published.
    fn reject(&mut self, sentence: String) {
        self.rejected += 1;
        Failure::new(Exit::No, sentence).note();
    }

    /// Returns why no topic could be opened when the input ended.
    fn typeless(self) -> String {
        let why = match self.rejected {
            0 => "the input is empty".to_owned(),
            1 => "the only one was rejected".to_owned(),
            rejected => format!("all {rejected} were rejected"),
        };
        format!("no line to infer a type from: {why}")
    }

    /// Returns what to report when the input ends.
    fn at_end(self, arguments: &Arguments) -> String {
        let (published, target) = (self.published, &arguments.target);
        let values = if published == 1 { "value" } else { "values" };
        let next = match arguments.linger {
            Duration::ZERO => format!("ending {target}: use --linger 1m to keep it available"),
            linger => format!("serving {target} for another {}", shown(linger)),
        };
        format!("input ended after {published} {values}; {next}")
    }
}

/// What to report when subscribers have not received the end.
fn unfinished(target: &Target, linger: Duration, error: &FinishError) -> String {
    let advice = if linger.is_zero() { "--linger 1m" } else { "a longer --linger" };
    match error {
        FinishError::Unfinished { subscribers, published } => {
            let have = if *subscribers == 1 { "subscriber of {} has" } else { "subscribers of {} have" };
            let have = have.replace("{}", &target.to_string());
            format!(
                "{subscribers} {have} not received everything up to {published} and the end: use {advice} to give them time"
            )
        }
        error => ErrorChain(error).to_string(),
    }
}

fn open_publisher<P: Payload<Borrowed = [u8]>>(
    node: &Node,
    arguments: &Arguments,
) -> Result<Box<dyn Publisher>, Failure> {
    let (topic, len_max) = (arguments.target.topic.as_str(), arguments.len_max());
    Ok(match arguments.kind {
        Holding::Log => {
            let capacity = arguments.capacity.unwrap_or(limits::LOG_CAPACITY_DEFAULT);
            let builder = arguments.named(node.log_publisher::<P>(topic)).capacity(capacity);
            Box::new(builder.payload_len_max(len_max).open()?)
        }
        // A table has another publisher: see `table::open`.
        Holding::State | Holding::Table => {
            let slots = arguments.slots.unwrap_or(limits::SLOT_COUNT_DEFAULT);
            let builder = arguments.named(node.state_publisher::<P>(topic)).slots(slots);
            Box::new(builder.payload_len_max(len_max).open()?)
        }
    })
}

/// Opens the publishing node.
fn open(arguments: &Arguments, setting: &Setting, address: &Address) -> Result<Node, Failure> {
    let limits = arguments.sessions.limits();
    let node = match (&address.node(), &arguments.node, address.port()) {
        (Some(name), None, _) => setting.serving_node(name, None, limits),
        (Some(_), Some(_), _) => {
            Err(Failure::usage(format!("{address} already names the node: omit --node")))
        }
        (None, Some(name), _) => setting.serving_node(name, Some(address), limits),
        (None, None, Some(port)) => {
            let name = format!("{}-{port}", address.scheme()).parse().map_err(Failure::usage)?;
            setting.serving_node(&name, Some(address), limits)
        }
        (None, None, None) => Err(Failure::usage(format!("{address} needs --node NAME"))),
    }?;
    if let Some(shortfall) = arguments.sessions.shortfall(&node, !address.is_local()) {
        Failure::new(Exit::Local, shortfall).note();
    }
    Ok(node)
}

/// An epoch, as an argument.
fn epoch(text: &str) -> Result<Epoch, String> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    // A sign would be read, too.
    let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u64::from_str_radix(digits, 16).ok().filter(|_| is_number).and_then(Epoch::new);
    number.ok_or_else(|| {
        format!("{text:?} is not an epoch: write a hexadecimal number of up to 16 digits, above 0")
    })
}

/// The interval for a rate per second, as an argument.
fn interval(text: &str) -> Result<Duration, String> {
    let malformed = || format!("{text:?} is not a rate: write values per second, above 0");
    let rate: f64 = text.parse().map_err(|_| malformed())?;
    let interval = Duration::try_from_secs_f64(1.0 / rate).map_err(|_| malformed())?;
    if interval <= INTERVAL_MAX { Ok(interval) } else { Err(malformed()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_an_interval() {
        assert_eq!(interval("10"), Ok(Duration::from_millis(100)));
        for text in ["0", "-1", "x", "NaN", "1e-9"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_epoch_is_written_as_it_is_printed() {
        let named = epoch("20261123").unwrap();
        assert_eq!((named.get(), epoch(&named.to_string())), (0x2026_1123, Ok(named)));
        assert_eq!([epoch("0x7"), epoch("0X7")], [epoch("7"), epoch("7")]);
        for text in ["0", "", "-1", "+1", "x", "0x", "0x0", "0x+1", "10000000000000000"] {
            assert!(epoch(text).is_err(), "{text}");
        }
    }
}
