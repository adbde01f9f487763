//! Values and losses as lines of standard output.

use std::io::{StdoutLock, Write};

use clap::Args;
use fabricast::{AnySubscriber, Raw, Schema, TopicName};
use serde_json::json;

use super::failure::{Exit, Failure};
use super::feed::{CONFLATED, Loss};
use super::output::{age, data, hex_dump, json_line};
use super::subscription::Value;
use super::value::{ValueLine, age_ns, text};

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

/// Prints the values and losses of a topic.
#[derive(Debug)]
pub(crate) struct Printer {
    topic: TopicName,
    schema: Schema,
    form: Form,
    out: StdoutLock<'static>,
    shown: u64,
}

impl Printer {
    /// A printer for this topic.
    pub(crate) fn new(subscriber: &AnySubscriber<Raw>, form: Form) -> Self {
        let (topic, schema) = (subscriber.topic().clone(), subscriber.schema().clone());
        Self { topic, schema, form, out: std::io::stdout().lock(), shown: 0 }
    }

    /// The number of values printed.
    pub(crate) fn shown(&self) -> u64 {
        self.shown
    }

    /// Prints a value; one that does not fit its topic's type is a loss.
    pub(crate) fn value(&mut self, value: &Value) -> Result<(), Failure> {
        let head = || format!("{:>10}  {:>8}  ", value.meta.sequence, age(age_ns(value)));
        let line = match self.form {
            Form::Raw => Ok(value.bytes.clone()),
            Form::Hex => Ok(format!("{}{}\n", head(), data(value.bytes.len() as u64)).into_bytes()),
            Form::Text => text(&self.schema, value).map(|text| format!("{}{text}\n", head()).into_bytes()),
            Form::Json => match ValueLine::new(&self.topic, &self.schema, value) {
                Ok(line) => {
                    self.shown += 1;
                    return Ok(json_line(&mut self.out, &line)?);
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
                self.loss(Loss { first, count: 1, reason: "undecodable" })
            }
        }
    }

    /// Prints a loss.
    pub(crate) fn loss(&mut self, Loss { first, count, reason }: Loss) -> Result<(), Failure> {
        match self.form {
            Form::Json => {
                let topic = self.topic.as_str();
                let line = json!({ "topic": topic, "lost": count, "first_lost": first, "reason": reason });
                json_line(&mut self.out, &line)?;
            }
            Form::Raw => {
                let sentence = format!("{count} lost from {first} on: {reason}");
                Failure::new(Exit::No, sentence).note();
            }
            Form::Text | Form::Hex => {
                match reason {
                    CONFLATED => {
                        let what = "skipped (replaced by newer values)";
                        writeln!(self.out, "{first:>10}  {:>8}  {count} {what}", "-")?;
                    }
                    _ => writeln!(self.out, "{first:>10}  {:>8}  {count} lost: {reason}", "-")?,
                }
                self.out.flush()?;
            }
        }
        Ok(())
    }
}
