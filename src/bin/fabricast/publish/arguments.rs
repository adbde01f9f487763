//! The arguments of `pub`, and what they say of the topic.

use std::io::{self, IsTerminal};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fabricast::{Epoch, Node, NodeName, Payload, PublishedKind, PublisherBuilder, Sequence, Target, limits};

use super::super::failure::{Exit, Failure};
use super::super::output::{memory, shown};
use super::super::sessions::SessionArguments;
use super::super::setting::{REGION_LEN_MAX, Setting, node_target};
use super::super::units::{duration, number_in, size_in, some_time};
use super::lines::{Form, Layout};
use super::table;

/// The slowest rate: one value a year.
const INTERVAL_MAX: Duration = Duration::from_secs(365 * 86_400);

/// The sequences that a numbering may continue after.
const AFTERS: RangeInclusive<u64> = 0..=limits::SEQUENCE_AFTER_MAX;
/// The numbers of slots.
const SLOTS: RangeInclusive<u64> = limits::SLOT_COUNT_MIN as u64..=limits::SLOT_COUNT_MAX as u64;

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
are reported by number and skipped; the exit code is then 1, as it is if the input has no line.
Subscribers that have not received the last line and the end within 7 seconds are reported, too.

With --epoch, several commands that publish the same lines are lines of one topic, to be received
with `fabricast watch --line`. Each line of a table is then a commit of its own. Subscribers skip
sequences of an epoch that they have received: a command that is started again with new lines must
continue after the last one with --after, or they are not shown. A table that is started again has
no keys at first, unless it is warm: keys that are not published again are removed, also those that
other lines still have.

A subscriber that comes too late misses lines: the topic of a short input is gone at once. Keep it
with --linger, or have the first line wait with --wait-for-subscribers.

With --warm, the topic outlives the command: started again with the same PATH, topic, type and
sizes, it continues with the next sequence, and subscribers lose nothing that the topic holds, even
if the command was killed. PATH is in a tmpfs; remove the file to begin anew. A file that ends
before --after is refused.

A full log waits for slow subscribers only in programs (`SlowPolicy`) and in `perf stream --policy`.

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
  fabricast pub a/trades --kind log --epoch 20261123 --after 5000 < later-trades.txt
  seq 1000 | fabricast pub me/numbers --kind log --wait-for-subscribers 1
  tail -F app.log | fabricast pub shm:host/app --kind log --warm /dev/shm/app-log
  fabricast pub me/orders --json --example '{\"price\": 0.5, \"note\": \"x\"}' --example '{\"price\": 1}'";

/// Arguments of `pub`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic to publish, as in shm:NODE/TOPIC, or NODE/TOPIC for short. This creates the node, so its name must be free. With
    /// rdma://HOST[:PORT]/TOPIC it listens there too; HOST is an address of this host, or 0.0.0.0 for all of them.
    #[arg(value_parser = node_target, value_name = "TARGET")]
    pub(super) target: Target,
    /// The name of the node at an rdma:// address [default: rdma-PORT].
    #[arg(long, value_name = "NAME")]
    pub(super) node: Option<NodeName>,
    /// The epoch of the topic, a hexadecimal number as --json prints it, instead of a random one: 20261123 is Epoch::new(0x2026_1123) in
    /// a program. Publishers of the same lines and epoch are lines of one topic. A command that is started again numbers from 1 again:
    /// give it all lines, from the first one on, or say with --after where it continues.
    #[arg(long, value_name = "EPOCH", value_parser = epoch)]
    pub(super) epoch: Option<Epoch>,
    /// Continue the numbering of --epoch after this sequence, that of the last line that was published: the first line has the next one.
    #[arg(long, value_name = "SEQ", requires = "epoch", value_parser = number_in::<u64>(AFTERS))]
    pub(super) after: Option<u64>,
    /// What the topic holds.
    #[arg(long, value_enum, default_value_t = Holding::State)]
    pub(super) kind: Holding,
    /// Publish each line as raw bytes.
    #[arg(long, conflicts_with = "json")]
    pub(super) raw: bool,
    /// Parse each line as a JSON value; the first line determines the type.
    #[arg(long)]
    pub(super) json: bool,
    /// JSON value to infer the type from; repeat it to make fields optional or fractional.
    #[arg(long, value_name = "JSON", requires = "json")]
    pub(super) example: Vec<String>,
    /// Publish at most this many values per second.
    #[arg(long, value_name = "N", value_parser = interval)]
    pub(super) rate: Option<Duration>,
    /// Serve the last value for this long after the input ends: seconds, or with a unit, as in 5s or 1h.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0")]
    pub(super) linger: Duration,
    /// Publish the first line once this many subscribers are attached.
    #[arg(long, value_name = "N", value_parser = number_in::<u64>(0..=u64::MAX))]
    pub(super) wait_for_subscribers: Option<u64>,
    /// Declare that values are valid for this time only: subscribers skip older ones. Seconds, or with a unit, as in 500ms.
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    pub(super) lifespan: Option<Duration>,
    /// Keep the topic in this file in a tmpfs, as in /dev/shm/FILE: when the command is started again, it continues with the next
    /// sequence, and with what the topic holds. `fabricast tail file:PATH` and `get` read the file without this command.
    #[arg(long, value_name = "PATH")]
    pub(super) warm: Option<PathBuf>,
    #[command(flatten)]
    pub(super) sessions: SessionArguments,
    /// Do not report what is served.
    #[arg(long, short)]
    pub(super) quiet: bool,
    /// Values held in the memory of a state topic: a power of two from 2 to 65536 [default: 8].
    #[arg(long, value_name = "N", value_parser = number_in::<u32>(SLOTS))]
    pub(super) slots: Option<u32>,
    /// Size of the ring of a log, in bytes or with a unit; each record takes 24 bytes besides its value [default: 1M].
    #[arg(long, value_name = "SIZE", value_parser = size_in::<usize>(1..=u64::MAX))]
    pub(super) capacity: Option<usize>,
    /// The keys that a table may have; each takes twice the longest value [default: 1024].
    #[arg(long, value_name = "N", value_parser = number_in::<usize>(1..=limits::TABLE_CAPACITY_MAX as u64))]
    pub(super) keys: Option<usize>,
    /// The longest value, of a table together with its key, in bytes or with a unit; a text takes 8 bytes more than its length
    /// [default: 64k; of a table 4k].
    #[arg(long, value_name = "SIZE", value_parser = size_in::<usize>(1..=u64::MAX))]
    pub(super) payload_len_max: Option<usize>,
}

/// The kind of topic, as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Holding {
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

impl Arguments {
    /// Rejects inconsistent arguments.
    pub(super) fn check(&self, setting: &Setting) -> Result<(), Failure> {
        if self.target.address.is_local() {
            setting.check_local()?;
        }
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
    pub(super) fn form(&self) -> Result<Option<Form>, Failure> {
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
    pub(super) fn layout(&self) -> Layout {
        if self.kind == Holding::Table { Layout::KeyAndValue } else { Layout::Value }
    }

    /// The longest value, of a table together with its key.
    pub(super) fn len_max(&self) -> usize {
        let default = if self.kind == Holding::Table { TABLE_LEN_MAX_DEFAULT } else { LEN_MAX_DEFAULT };
        self.payload_len_max.unwrap_or(default)
    }

    /// The table to be opened.
    pub(super) fn opening<'a>(&'a self, node: &'a Node) -> table::Opening<'a> {
        let capacity = self.keys.unwrap_or(limits::TABLE_CAPACITY_DEFAULT);
        let (topic, len_max, epoch, after) =
            (&self.target.topic, self.len_max(), self.epoch, self.first_after());
        table::Opening {
            node,
            topic,
            capacity,
            len_max,
            epoch,
            after,
            lifespan: self.lifespan,
            warm: self.warm.as_deref(),
        }
    }

    /// The sequence before that of the first line.
    fn first_after(&self) -> Sequence {
        self.after.map_or(Sequence::NONE, Sequence::new)
    }

    /// A builder with the epoch and the lifespan that are given.
    pub(super) fn named<'a, K: PublishedKind, P: Payload>(
        &self,
        builder: PublisherBuilder<'a, K, P>,
    ) -> PublisherBuilder<'a, K, P> {
        let mut builder = builder.after(self.first_after());
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

    /// The bytes of the topic's memory: see "Memory per topic" in docs/guides.md.
    fn region_len(&self) -> u64 {
        const FRONT: u64 = 2304;
        let payload = self.len_max() as u64;
        let part = |of: u64, overhead: u64, to: u64| of.saturating_add(overhead).next_multiple_of(to);
        match self.kind {
            Holding::State => {
                let slots = u64::from(self.slots.unwrap_or(limits::SLOT_COUNT_DEFAULT));
                FRONT.saturating_add(slots.saturating_mul(part(payload, 48, 128)))
            }
            Holding::Log => {
                let capacity = self.capacity.unwrap_or(limits::LOG_CAPACITY_DEFAULT) as u64;
                FRONT + 1024 + capacity.max(payload.saturating_mul(4))
            }
            Holding::Table => {
                let keys = self.keys.unwrap_or(limits::TABLE_CAPACITY_DEFAULT) as u64;
                FRONT.saturating_add(keys.saturating_mul(2 * part(payload, 48, 64) + 8))
            }
        }
    }

    /// What to say if subscribers refuse so much memory, unless their limit is raised.
    pub(super) fn too_large(&self) -> Option<String> {
        let (len, target) = (self.region_len(), &self.target);
        let (of_programs, of_command) = (limits::SUBSCRIBED_LEN_MAX_DEFAULT as u64, REGION_LEN_MAX as u64);
        let command = match len > of_command {
            true => format!(", and of this command over {}: pass --region-len-max", memory(of_command)),
            false => String::new(),
        };
        (len > of_programs).then(|| {
            let (len, limit) = (memory(len), memory(of_programs));
            format!(
                "{target} has {len} of memory, and programs refuse to map more than {limit} unless they raise region_len_max{command}"
            )
        })
    }

    /// Reports on standard error, unless --quiet.
    pub(super) fn say(&self, sentence: &str) {
        if !self.quiet {
            Failure::new(Exit::Done, sentence).note();
        }
    }

    /// What is served, and until when.
    pub(super) fn outlook(&self) -> String {
        let end = if io::stdin().is_terminal() { "the input ends (Ctrl-D)" } else { "the input ends" };
        let first = match self.wait_for_subscribers {
            None | Some(0) => String::new(),
            Some(1) => "; the first line waits for a subscriber".to_owned(),
            Some(awaited) => format!("; the first line waits for {awaited} subscribers"),
        };
        match self.linger {
            Duration::ZERO => format!("{} until {end}, or Ctrl-C{first}", self.target),
            linger => format!("{} until {} after {end}, or Ctrl-C{first}", self.target, shown(linger)),
        }
    }
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

    #[derive(Debug, clap::Parser)]
    struct Only {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(options: &str) -> Arguments {
        let parsed =
            <Only as clap::Parser>::try_parse_from(["pub", "me/t"].into_iter().chain(options.split(' ')));
        parsed.expect("valid arguments").arguments
    }

    #[test]
    fn memory_of_a_topic_is_what_subscribers_find() {
        let directory = tempfile::tempdir().unwrap();
        let node = Node::builder().name("me").unwrap().runtime_dir(directory.path()).open().unwrap();
        for options in [
            "--kind state --slots 16 --payload-len-max 1000",
            "--kind log --capacity 300k",
            "--kind log --capacity 1 --payload-len-max 1M",
            "--kind table --keys 700 --payload-len-max 500",
        ] {
            let arguments = parse(options);
            let form = arguments.form().unwrap().expect("the form of texts");
            let topic = super::super::Topic::open(&node, &arguments, form, Default::default()).unwrap();
            let mut subscriber = node.any_subscriber::<fabricast::Raw>("shm:me/t").open().unwrap();
            let found = fabricast::TopicReport::of(&mut subscriber).unwrap().geometry.region_len as u64;
            let difference = arguments.region_len().abs_diff(found);
            assert!(difference < 8192, "{options}: {} and {found}", arguments.region_len());
            drop(topic);
        }
    }

    #[test]
    fn topic_that_subscribers_would_refuse_is_pointed_out() {
        assert_eq!(parse("--kind log --capacity 255M").too_large(), None);
        let of_programs = parse("--kind log --capacity 300M").too_large().unwrap();
        assert!(
            of_programs.contains("256.0 MiB") && !of_programs.contains("--region-len-max"),
            "{of_programs}"
        );
        for options in
            ["--kind log --capacity 1100M", "--slots 65536", "--kind table --keys 3000 --payload-len-max 1M"]
        {
            let of_command = parse(options).too_large().unwrap();
            assert!(
                of_command.contains("region_len_max") && of_command.contains("--region-len-max"),
                "{of_command}"
            );
        }
    }

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
