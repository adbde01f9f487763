//! `fabricast tail`: the records of a log, including earlier ones, or the keys of a table in the order of their changes.

mod arguments;
mod earlier;
mod table;

use std::rc::Rc;
use std::sync::Arc;

use fabricast::{AnySubscriber, Delivery, Sequence};

use self::arguments::{ANSWER_TIMEOUT, not_yet};
use self::earlier::{Earlier, LastRecords, earlier};
use super::arrivals::{Arrival, Arrivals, Followed};
use super::clock::Deadline;
use super::failure::{Exit, Failure};
use super::interrupt::Interrupt;
use super::keys::KeyFilter;
use super::printer::{Form, Printer};
use super::pulses::Pulses;
use super::setting::{Following, Setting};
use super::source::Source;
use super::subscription::{Value, keep};
use super::value::Schemas;

pub(crate) use self::arguments::Arguments;

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let target = &arguments.target;
    if target.is_file() && (arguments.follow || arguments.push) {
        let sentence = "a file has no publisher: omit --follow and --push, or name a topic of a node";
        return Err(Failure::usage(sentence));
    }
    let delivery = if arguments.push { Delivery::Push } else { Delivery::Pull };
    let (start, until_end) = (arguments.start(), arguments.is_until_end());
    let (deadline, region_len_max) = (arguments.deadline, arguments.region.len_max());
    let following = Following { delivery, start, until_end, deadline, progress: true, region_len_max };
    target.check(&arguments.line)?;
    let lines = arguments.line.of(target)?;
    let source = match target.subscriber(start)? {
        Some(subscriber) => Source::once(subscriber, Arc::new(Pulses::of([&**target]))),
        None => setting.follow(lines, following)?,
    };
    // Only now: until here Ctrl-C has its default effect.
    let interrupt = Interrupt::install()?;
    let (duration, form) = (arguments.duration, arguments.form.form());
    let followed = Followed { target, duration, is_json: form == Form::Json };
    let mut arrivals = Arrivals::new(source, followed, &interrupt);
    let Some(filter) = arrivals.begin(&arguments.keys)? else { return Ok(Exit::Done) };
    let Some(subscriber) = arrivals.current() else { return Ok(Exit::Done) };
    let (newest, printer) = (arrivals.newest_at_start(), Printer::new(subscriber, form));
    let exit = match subscriber {
        AnySubscriber::Log(_) => {
            let mut printer = printer;
            let outcome = records(arguments, &mut arrivals, (&mut printer, filter, newest));
            if arguments.follow {
                printer.note_losses(target);
            }
            outcome
        }
        AnySubscriber::Table(_) => table::run(arguments, &mut arrivals, (printer, newest)),
        _ => {
            let (found, instead) =
                (subscriber.kind(), "`fabricast get` and `fabricast watch` show its values");
            let sentence = format!("{target} is a {found} topic, which holds no records: {instead}");
            return Err(Failure::usage(sentence));
        }
    }?;
    arrivals.summarize();
    arrivals.note_expired();
    Ok(exit)
}

/// Prints the records of a log.
fn records(
    arguments: &Arguments,
    arrivals: &mut Arrivals<'_>,
    (printer, mut filter, mut newest): (&mut Printer, KeyFilter, Sequence),
) -> Result<Exit, Failure> {
    let target = &arguments.target;
    if let Some(from) = arguments.from.filter(|from| *from > newest.get() && !arguments.follow) {
        return Err(not_yet(target, ("record", from), newest));
    }
    let mut over = match filter.is_some() && arguments.counts_back() {
        true => last_records(arguments, arrivals, (printer, &mut filter), &mut newest)?,
        false => None,
    };
    // The same record from which --last counts back: later ones do not add to it.
    let mut until = (!arguments.follow).then_some(newest);
    let mut idle = Deadline::after(ANSWER_TIMEOUT);
    let is_done = |arrivals: &Arrivals<'_>, printer: &Printer, until: Option<Sequence>| {
        let last = arrivals.last();
        until.is_some_and(|until| last >= until) || arguments.count == Some(printer.shown())
    };
    while !is_done(arrivals, printer, until) {
        match over.take().map_or_else(|| arrivals.next(keep), Ok)? {
            Arrival::Value(value, _) if filter.wants(&value.bytes) => printer.value(&value)?,
            Arrival::Value(..) => {}
            Arrival::Lost(_, lost) => printer.loss(lost)?,
            Arrival::Nothing if until.is_some() && idle.is_over() => {
                let next = arrivals.last().next();
                let sentence =
                    format!("records of {target} from {next} on cannot be read: they may be damaged");
                return Err(arrivals.failed(Failure::new(Exit::No, sentence)));
            }
            Arrival::Found { is_new } => {
                until = if is_new { until.map(|_| arrivals.newest_at_start()) } else { until };
                if let Some(subscriber) = arrivals.current() {
                    filter = arguments.keys.filter(subscriber, target)?;
                    printer.renew(subscriber);
                }
            }
            Arrival::Parted | Arrival::Nothing => continue,
            Arrival::Over(why) if printer.shown() == 0 => return Err(arrivals.nothing(&why)),
            Arrival::Over(_) | Arrival::Interrupted => break,
        }
        idle = Deadline::after(ANSWER_TIMEOUT);
    }
    match arrivals.was_interrupted() {
        true => Ok(Exit::Done),
        false => arguments.outcome(printer, "record of a key", arrivals),
    }
}

/// Prints the last records of the wanted keys: all records are read. Returns the end, if it came first.
fn last_records(
    arguments: &Arguments,
    arrivals: &mut Arrivals<'_>,
    (printer, filter): (&mut Printer, &mut KeyFilter),
    newest: &mut Sequence,
) -> Result<Option<Arrival<Value>>, Failure> {
    let (mut last, mut schemas) = (LastRecords::new(arguments.last), printer.schemas());
    let over = earlier(arrivals, newest, arguments, |arrived| {
        match arrived {
            Earlier::Value(record) => last.add(Ok((record, Rc::clone(&schemas))), filter),
            Earlier::Lost(lost) => last.add(Err(lost), filter),
            Earlier::Found(subscriber, is_new) => {
                if is_new {
                    last.clear();
                }
                *filter = arguments.keys.filter(subscriber, &arguments.target)?;
                schemas = Rc::new(Schemas::of(subscriber));
            }
        }
        Ok(())
    })?;
    for arrived in last.into_all() {
        match arrived {
            _ if arguments.count == Some(printer.shown()) => break,
            Ok((record, schemas)) => {
                printer.decode_by(schemas);
                printer.value(&record)?;
            }
            Err(lost) => printer.loss(lost)?,
        }
    }
    printer.decode_by(schemas);
    Ok(over)
}
