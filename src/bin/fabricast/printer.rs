//! Values and losses as lines of standard output.

use std::io::{StdoutLock, Write};
use std::rc::Rc;

use clap::Args;
use fabricast::{AnySubscriber, Raw, Target, TopicName};
use serde::Serialize;

use super::arrivals::{CONFLATED, CUT_OFF, DAMAGED, Loss, UNDECODABLE};
use super::failure::{Exit, Failure};
use super::output::{age, hex_dump, json_line};
use super::subscription::Value;
use super::value::{Content, Schemas, ValueLine, key_text, len};

/// How values are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A line for people.
    Text,
    /// A line of JSON.
    Json,
    /// The bytes only; losses go to standard error.
    Raw,
    /// A line for people and a hex dump.
    Hex,
}

/// How values are printed, as arguments.
#[derive(Debug, Args)]
pub(crate) struct FormArguments {
    /// Write the bytes as they are.
    #[arg(long, conflicts_with_all = ["hex", "json"])]
    raw: bool,
    /// Print the bytes as hex dumps.
    #[arg(long, conflicts_with = "json")]
    hex: bool,
    /// Print one JSON object a line.
    #[arg(long)]
    json: bool,
}

impl FormArguments {
    /// What they say.
    pub(crate) fn form(&self) -> Form {
        match (self.raw, self.hex, self.json) {
            (true, ..) => Form::Raw,
            (_, true, _) => Form::Hex,
            (.., true) => Form::Json,
            _ => Form::Text,
        }
    }
}

/// A loss as a line of JSON.
#[derive(Debug, Serialize)]
struct LossLine<'a> {
    topic: &'a str,
    /// Of a table only.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<serde_json::Value>,
    lost: u64,
    first_lost: u64,
    reason: &'static str,
}

/// A value, and how it is decoded.
pub(crate) type Decodable = (Value, Rc<Schemas>);

/// Prints the values and losses of a topic.
#[derive(Debug)]
pub(crate) struct Printer {
    topic: TopicName,
    schemas: Rc<Schemas>,
    form: Form,
    out: StdoutLock<'static>,
    shown: u64,
    damaged: u64,
    cut_off: u64,
    lost: u64,
}

impl Printer {
    /// A printer for this topic.
    pub(crate) fn new(subscriber: &AnySubscriber<Raw>, form: Form) -> Self {
        let (topic, schemas) = (subscriber.topic().clone(), Rc::new(Schemas::of(subscriber)));
        Self {
            topic,
            schemas,
            form,
            out: std::io::stdout().lock(),
            shown: 0,
            damaged: 0,
            cut_off: 0,
            lost: 0,
        }
    }

    /// Goes on with the values of this subscriber, which may be of another type.
    pub(crate) fn renew(&mut self, subscriber: &AnySubscriber<Raw>) {
        self.schemas = Rc::new(Schemas::of(subscriber));
    }

    /// How values are decoded.
    pub(crate) fn schemas(&self) -> Rc<Schemas> {
        Rc::clone(&self.schemas)
    }

    /// Goes on with values that are decoded like this.
    pub(crate) fn decode_by(&mut self, schemas: Rc<Schemas>) {
        self.schemas = schemas;
    }

    /// The number of values printed.
    pub(crate) fn shown(&self) -> u64 {
        self.shown
    }

    /// The number of values that were damaged, or not of the topic's type.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged
    }

    /// The number of values that could not be read any more.
    pub(crate) fn cut_off(&self) -> u64 {
        self.cut_off
    }

    /// Prints on standard error how many records of this topic were lost in all, if some were.
    pub(crate) fn note_losses(&self, target: &Target) {
        if self.lost > 0 {
            let (lost, were) = (self.lost, if self.lost == 1 { "record was" } else { "records were" });
            let sentence = format!("{target}: {lost} {were} lost in all, {} printed", self.shown);
            Failure::new(Exit::Done, sentence).note();
        }
    }

    /// Prints a value; one that does not fit its topic's type is a loss.
    pub(crate) fn value(&mut self, value: &Value) -> Result<(), Failure> {
        let line = match self.form {
            Form::Raw => Ok(value.bytes.clone()),
            Form::Hex => {
                self.schemas.decode_key(value).map(|content| text_line(value, &content, &len(value)))
            }
            Form::Text => {
                self.schemas.decode(value).map(|content| text_line(value, &content, &content.text(value)))
            }
            Form::Json => match self.schemas.decode(value) {
                Ok(content) => {
                    self.shown += 1;
                    return Ok(json_line(&mut self.out, &ValueLine::new(&self.topic, value, content))?);
                }
                Err(error) => Err(error),
            },
        };
        match line {
            Ok(line) => {
                self.shown += 1;
                self.out.write_all(&line)?;
                if self.form == Form::Hex {
                    hex_dump(&mut self.out, &value.bytes)?;
                }
                Ok(self.out.flush()?)
            }
            Err(error) => {
                let first = value.meta.sequence.get();
                tracing::debug!(target: "fabricast", sequence = first, %error, "undecodable");
                self.loss(Loss { first, count: 1, reason: UNDECODABLE })
            }
        }
    }

    /// Prints a loss before a value: of a table, of the value's key.
    pub(crate) fn loss_before(&mut self, value: &Value, loss: Loss) -> Result<(), Failure> {
        let key = self.schemas.key(value).unwrap_or_default();
        self.print_loss(key, loss)
    }

    /// Prints a loss.
    pub(crate) fn loss(&mut self, loss: Loss) -> Result<(), Failure> {
        self.print_loss(None, loss)
    }

    fn print_loss(&mut self, key: Option<serde_json::Value>, loss: Loss) -> Result<(), Failure> {
        let Loss { first, count, reason } = loss;
        if [DAMAGED, UNDECODABLE].contains(&reason) {
            self.damaged = self.damaged.saturating_add(count);
        }
        if reason == CUT_OFF {
            self.cut_off = self.cut_off.saturating_add(count);
        }
        if reason != CONFLATED {
            self.lost = self.lost.saturating_add(count);
        }
        match self.form {
            Form::Json => {
                let topic = self.topic.as_str();
                json_line(&mut self.out, &LossLine { topic, key, lost: count, first_lost: first, reason })?;
            }
            Form::Raw => {
                let sentence = format!("{count} lost from {first} on ({})", loss.cause());
                Failure::new(Exit::No, sentence).note();
            }
            Form::Text | Form::Hex => {
                let what = match reason {
                    CONFLATED => format!("{count} skipped ({})", loss.cause()),
                    _ => format!("{count} lost ({})", loss.cause()),
                };
                match key {
                    // The number of a key is not a sequence.
                    Some(key) => writeln!(self.out, "{:>10}  {:>8}  {}\t{what}", "-", "-", key_text(&key))?,
                    None => writeln!(self.out, "{first:>10}  {:>8}  {what}", "-")?,
                }
                self.out.flush()?;
            }
        }
        Ok(())
    }
}

/// A line for people: where and when, the key, and `shown` of the value.
fn text_line(value: &Value, content: &Content<'_>, shown: &str) -> Vec<u8> {
    let (sequence, age) = (value.meta.sequence, age(content.age_ns));
    let (times, lead, marks) = (content.times("", "  "), content.lead(), content.marks());
    format!("{sequence:>10}  {age:>8}  {times}{lead}{shown}{marks}\n").into_bytes()
}
