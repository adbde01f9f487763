//! The keys of a table in the order of their changes.

use std::collections::HashMap;
use std::rc::Rc;

use fabricast::Sequence;

use super::super::arrivals::{Arrival, Arrivals};
use super::super::failure::{Exit, Failure};
use super::super::printer::{Decodable, Form, Printer};
use super::super::subscription::{Value, keep};
use super::super::value::Schemas;
use super::arguments::{Arguments, not_yet};
use super::earlier::{Earlier, earlier};

/// Prints the keys of a table that changed last, and those that change from now on.
pub(super) fn run(
    arguments: &Arguments,
    arrivals: &mut Arrivals<'_>,
    (mut printer, newest): (Printer, Sequence),
) -> Result<Exit, Failure> {
    if arguments.form.form() == Form::Raw {
        let sentence = "--raw does not separate the values of a table: use --hex or --json";
        return Err(Failure::usage(sentence));
    }
    if let Some(from) = arguments.from.filter(|from| *from > newest.get() && !arguments.follow) {
        return Err(not_yet(&arguments.target, ("commit", from), newest));
    }
    let (values, over) = newest_values(arrivals, &mut printer, arguments, newest)?;
    let (skipped, last) = (arguments.skipped(&values), printer.schemas());
    for (value, schemas) in values.into_iter().skip(skipped) {
        if arguments.count == Some(printer.shown()) {
            return arguments.outcome(&printer, "key", arrivals);
        }
        printer.decode_by(schemas);
        printer.value(&value)?;
    }
    printer.decode_by(last);
    if over.is_none() && !arguments.follow {
        return arguments.outcome(&printer, "key", arrivals);
    }
    let mut over = over;
    while arguments.count.is_none_or(|count| printer.shown() < count) {
        match over.take().map_or_else(|| arrivals.next(keep), Ok)? {
            Arrival::Value(value, missed) => {
                missed.map_or(Ok(()), |missed| printer.loss_before(&value, missed))?;
                printer.value(&value)?;
            }
            Arrival::Lost(_, lost) => printer.loss(lost)?,
            Arrival::Found { .. } => arrivals.current().into_iter().for_each(|it| printer.renew(it)),
            Arrival::Parted | Arrival::Nothing => {}
            // That a key is not there is said below, if all of the table was read.
            Arrival::Over(why)
                if printer.shown() == 0
                    && (arguments.follow
                        || arguments.keys.pattern().is_none()
                        || arrivals.is_out_of_time()) =>
            {
                return Err(arrivals.nothing(&why));
            }
            Arrival::Over(_) | Arrival::Interrupted => break,
        }
    }
    match arrivals.was_interrupted() {
        true => Ok(Exit::Done),
        false => arguments.outcome(&printer, "key", arrivals),
    }
}

/// The newest values of all keys, in the order of their commits; and the end, if it came first. The printer is ready for later values.
fn newest_values(
    arrivals: &mut Arrivals<'_>,
    printer: &mut Printer,
    arguments: &Arguments,
    mut newest: Sequence,
) -> Result<(Vec<Decodable>, Option<Arrival<Value>>), Failure> {
    let (mut values, mut schemas) = (HashMap::new(), printer.schemas());
    let over = earlier(arrivals, &mut newest, arguments, |arrived| {
        match arrived {
            Earlier::Value(value) => {
                let key = value.key.as_ref().map(|key| key.bytes.clone());
                values.insert(key, (value, Rc::clone(&schemas)));
            }
            Earlier::Lost(lost) => printer.loss(lost)?,
            Earlier::Found(subscriber, is_new) => {
                schemas = Rc::new(Schemas::of(subscriber));
                if is_new {
                    values.clear();
                }
            }
        }
        Ok(())
    })?;
    printer.decode_by(schemas);
    let mut values: Vec<Decodable> = values.into_values().collect();
    // The keys of one commit have an order, too, so that equal tables are shown equally.
    values.sort_by_cached_key(|(value, _)| {
        (value.meta.sequence, value.key.as_ref().map(|key| key.bytes.clone()))
    });
    Ok((values, over))
}
