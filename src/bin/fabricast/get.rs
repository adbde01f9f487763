//! `fabricast get`: the newest value of a topic or key, or record of a log.

mod newest;
mod table;

use std::io::Write;
use std::time::Duration;

use clap::Args;
use fabricast::{AnySubscriber, Delivery, ErrorChain, LogStart, Raw, ReceiveError, Target};

use self::newest::{Newest, advice_to_wait, newest};
use super::failure::{Exit, Failure};
use super::feed::{is_feed, table_of};
use super::interrupt::Interrupt;
use super::keys::{keyless, only_key};
use super::output::{hex_dump, json_line};
use super::printer::{Form, FormArguments};
use super::setting::{Setting, target};
use super::subscription::Value;
use super::units::duration;
use super::value::{Schemas, ValueLine};

const AFTER_HELP: &str = "\
The value is decoded with the topic's schema. For a log it is the newest record, for a table that
of KEY. Without KEY, all keys of a table are printed, as of one commit: a line is a key, a tab,
and its value. For a feed with KEY it is the key's value in the table of the feed, without KEY its
newest record. Time stamps in the value follow it, after a tab: see `fabricast --help`.

The exit code is 1 if nothing has been published yet, the table does not have the key, or the
topic ends without a value; 130 if Ctrl-C ends the wait.

With --json a value is one line
{\"topic\",\"key\",\"sequence\",\"epoch\",\"published_ns\",\"age_ns\",\"value\"}; raw bytes are in base64, with
\"encoding\":\"base64\". Of a table it also has \"number\", which counts the changes of the key. If
there are time stamps, \"timestamps\" has for the name of each {\"ns\",\"offset_ns\"}: its time since
the Unix epoch, and after the publish time.

Examples:
  fabricast get shm:quotes/EURUSD
  fabricast get shm:quotes/EURUSD --json | jq .value.bid
  fabricast get shm:camera/left --raw > frame.bin
  fabricast get shm:quotes/EURUSD --wait 10s
  fabricast get shm:quotes/fx EURUSD
  fabricast get shm:quotes/fx --json
  fabricast get shm:exchange/orders '[\"XETR\", 17]'";

/// Arguments of `get`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic, as in shm:NODE/TOPIC, or NODE/TOPIC for short.
    #[arg(value_parser = target)]
    target: Target,
    /// A key of a table or feed: a text as it is, any other key as JSON. Write `--` before a key that begins with a hyphen.
    key: Option<String>,
    #[command(flatten)]
    form: FormArguments,
    /// Wait this long for a value if there is none yet.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0")]
    wait: Duration,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let (mut subscriber, target) = subscribe(arguments, setting)?;
    let target = &target;
    let (form, wait) = (arguments.form.form(), arguments.wait);
    match (&mut subscriber, &arguments.key) {
        (AnySubscriber::Table(_), None) if form == Form::Raw => {
            let sentence = format!("--raw prints one value of {target}: give a KEY, or use --hex or --json");
            return Err(Failure::usage(sentence));
        }
        (AnySubscriber::Table(table), Some(key)) => only_key(table, key),
        (_, Some(_)) => return Err(keyless(&subscriber, target, "KEY")),
        (_, None) => {}
    }
    let interrupt = Interrupt::install()?;
    let found = match (&subscriber, &arguments.key) {
        (AnySubscriber::Table(_), None) => {
            return table::print_all(&mut subscriber, target, (form, wait), &interrupt);
        }
        (_, Some(_)) => table::newest_of_key(&mut subscriber, wait, &interrupt)?,
        (_, None) => newest(&mut subscriber, wait, &interrupt)?,
    };
    let value = match found {
        Newest::Value(value) => value,
        _ if interrupt.came() => return Ok(Exit::Interrupted),
        Newest::Nothing => {
            if let Some(key) = &arguments.key {
                return Err(table::no_key(&subscriber, target, key, wait));
            }
            let what = format!("{}, or watch the topic with `fabricast watch`", advice_to_wait(wait));
            return Err(Failure::new(
                Exit::No,
                format!("nothing has been published to {target} yet: {what}"),
            ));
        }
        Newest::Ended => {
            return Err(Failure::new(Exit::No, format!("nothing arrived from {target}: it has ended")));
        }
        Newest::Unread(sequence) => {
            let sentence = format!("value {sequence} of {target} cannot be read: it may be damaged");
            return Err(Failure::new(Exit::No, sentence));
        }
    };
    print(&subscriber, &value, form)
}

/// Attaches to the topic, or to the table of a feed for one of its keys.
fn subscribe(arguments: &Arguments, setting: &Setting) -> Result<(AnySubscriber<Raw>, Target), Failure> {
    let target = &arguments.target;
    let node = setting.reader(&target.address)?;
    let attach = |target: &Target| setting.attach(&node, target, Delivery::Pull, LogStart::Back(1));
    let subscriber = attach(target)?;
    let table = arguments.key.as_ref().filter(|_| is_feed(&subscriber)).and_then(|_| table_of(target));
    match table {
        Some(table) => Ok((attach(&table)?, table)),
        None => Ok((subscriber, target.clone())),
    }
}

fn print(subscriber: &AnySubscriber<Raw>, value: &Value, form: Form) -> Result<Exit, Failure> {
    let schemas = Schemas::of(subscriber);
    let mut out = std::io::stdout().lock();
    let undecodable = |source| {
        let error = ReceiveError::Decode { sequence: value.meta.sequence, source };
        Failure::new(Exit::No, format!("{}; --raw and --hex show its bytes", ErrorChain(&error)))
    };
    match form {
        Form::Raw => {
            out.write_all(&value.bytes)?;
            out.flush()?;
        }
        Form::Hex => hex_dump(&mut out, &value.bytes)?,
        Form::Json => {
            let content = schemas.decode(value).map_err(undecodable)?;
            json_line(&mut out, &ValueLine::new(subscriber.topic(), value, content))?;
        }
        Form::Text => {
            let content = schemas.decode(value).map_err(undecodable)?;
            // Of a table, the user gave the key.
            let lead = if value.key.is_some() { String::new() } else { content.lead() };
            writeln!(out, "{lead}{}", content.line(value))?;
        }
    }
    Ok(Exit::Done)
}
