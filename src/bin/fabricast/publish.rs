//! `fabricast pub`: publishes lines of standard input as values or records.

mod arguments;
mod inferred;
mod json;
mod lines;
mod publisher;
mod table;

use std::io::{self, BufReader};
use std::time::Duration;

use crossbeam::channel::{Receiver, bounded};
use fabricast::{Address, ErrorChain, FinishError, Node, Payload, Raw, Target, limits};

use self::arguments::Holding;
use self::lines::{Form, Line};
use self::publisher::{Encoded, Publisher, Refused, SCHEMA};
use super::clock::Pace;
use super::failure::{Exit, Failure};
use super::interrupt::{Input, Interrupt};
use super::output::shown;
use super::setting::Setting;

pub(crate) use self::arguments::Arguments;

/// How often to count subscribers that are waited for.
const SUBSCRIBERS_LOOK: Duration = Duration::from_millis(10);

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
    arguments.check(setting)?;
    let interrupt = Interrupt::install()?;
    let example = arguments.form()?;
    let node = open(arguments, setting, &arguments.target.address)?;
    let (sender, batches) = bounded(1);
    let layout = arguments.layout();
    let limit = Form::limit(example.as_ref(), layout, arguments.len_max());
    // An interrupt abandons this thread while it waits for input.
    std::thread::Builder::new()
        .spawn(move || lines::read(&mut BufReader::new(io::stdin()), layout, &limit, &sender))
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
    if let Some(warning) = arguments.too_large() {
        arguments.say(&warning);
    }
    let outcome = match topic.wait_for_subscribers(arguments, &interrupt) {
        true => topic.serve(arguments, first, &batches, &interrupt),
        false => Ok(topic.tally.exit()),
    };
    // The topic ends before the node, so that all subscribers are notified.
    if outcome.is_err() || interrupt.came() {
        drop(topic.publisher);
    } else {
        finish(arguments, topic.publisher, &interrupt)?;
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

    /// Waits until there are as many subscribers as the first line waits for. Returns false if the process was interrupted before.
    fn wait_for_subscribers(&self, arguments: &Arguments, interrupt: &Interrupt) -> bool {
        let awaited = arguments.wait_for_subscribers.unwrap_or(0);
        while self.publisher.subscribers() < awaited {
            if interrupt.pause(SUBSCRIBERS_LOOK) {
                return false;
            }
        }
        true
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
        // What produces the input may have failed.
        Ok(if self.tally.published == 0 { Exit::No } else { self.tally.exit() })
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
        let upto = match (arguments.epoch, arguments.after) {
            (Some(_), after) if arguments.warm.is_none() && arguments.kind != Holding::Table => {
                format!(", up to sequence {}", after.unwrap_or(0) + published)
            }
            _ => String::new(),
        };
        format!("input ended after {published} {values}{upto}; {next}")
    }
}

/// Ends the topic once its subscribers have received everything, unless that takes too long or the process is interrupted.
fn finish(
    arguments: &Arguments,
    publisher: Box<dyn Publisher>,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let (sender, ended) = bounded(1);
    // An interrupt abandons this thread.
    let finishing = std::thread::Builder::new().spawn(move || _ = sender.send(publisher.finish()));
    finishing.map_err(no_thread)?;
    if let Input::Item(Err(error)) = interrupt.receive(&ended) {
        // Even with --quiet: it is a loss.
        Failure::new(Exit::Done, unfinished(&arguments.target, arguments.linger, &error)).note();
    }
    Ok(())
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
    for obstacle in setting.group_obstacles(arguments.warm.is_some()) {
        Failure::new(Exit::Refused, obstacle).note();
    }
    Ok(node)
}
