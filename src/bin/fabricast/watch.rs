//! `fabricast watch`: each new value of a topic.

use std::time::Duration;

use clap::Args;
use fabricast::Target;

use super::arrivals::{Arrival, Arrivals, Followed};
use super::failure::{Exit, Failure};
use super::interrupt::Interrupt;
use super::keys::KeyArguments;
use super::printer::{Form, Printer};
use super::setting::{EndArguments, LineArguments, Setting, Way, node_target};
use super::subscription::keep;
use super::units::{duration, number_in};

const AFTER_HELP: &str = "\
A line is the sequence of a value, its age when printed, and the value. Values of a state topic
that were replaced before they were read are counted on a line of their own. For a log topic every
record published from now on is shown; `fabricast tail` shows earlier ones. Ages by push, and from
another host, compare the clocks of both hosts, and are off by their difference; `-1h00m (clock?)`
means that the value's time lies in the future. Time stamps in the value come before it: see
`fabricast --help`. Records of a feed are shown as `fabricast tail` shows them.

Of a table, all keys are shown first, and then each key that changes: the sequence is that of the
commit, and key and value are separated by a tab. `removed` in place of the value means that the
key was removed; a value that is this text has quotes. If another publisher has shown that, the
sequence is that of the first commit that may have removed the key. The keys of one commit come in
no particular order. Values that were replaced before they were read are counted before the key's
value. For the table of a feed these include values replaced within one event: they were never
visible to subscribers.

With --json a value is one line
{\"topic\",\"key\",\"sequence\",\"epoch\",\"published_ns\",\"age_ns\",\"value\"}, and a loss
{\"topic\",\"lost\",\"first_lost\",\"reason\"}: the reason is conflated (replaced), lapped (overwritten in
a log), cut off (the connection was lost first), damaged or undecodable. Of a table, a value also
has \"number\", which counts the changes of its key, and a removed key \"removed\":true; a loss of
replaced values also has \"key\", and its first_lost is a number of this key. If there are time
stamps, \"timestamps\" has for the name of each {\"ns\",\"offset_ns\"}: its time since the Unix epoch,
and after the publish time.

When the publisher is gone, or ends the topic, the command waits for the next one. A topic that
does not exist yet is waited for, too. A line on standard error says when a publisher is lost and
found, and whether it continues or has restarted: then its sequences begin anew. With --json these
are also lines of standard output, {\"topic\",\"event\",\"epoch\"}: the event is lost, resumed (also of
the first publisher) or restarted. With --until-end the command ends with the publisher.

A publisher that hangs, because its process is stopped for example, is reported in the same way
within about 3 s, once (hung), and again when it runs (recovered). It is not lost, and the command
waits for it.

With --deadline, a line on standard error says when no value has come for that time, from any
publisher; and again after the next value. With --json it is also a line of standard output,
{\"topic\",\"event\",\"epoch\",\"waited_ns\"}: the event is overdue.

With --line, several publishers of the same values, with the same sequences and the same named
epoch, are lines of one topic. Each value is shown once, from the line that has it first, and no
record is lost as long as one line has it. Standard error says when the publisher of a line is
lost, found, of another epoch (out of step) or kind (other kind: nothing is received from either),
or of another type (other type: values of both are received), and at the end what each line
brought. With --json the events of a line also have \"line\"; records that no line has are lost for
the reason missing.
With --until-end the command ends when no line has a publisher any more. A publisher that hangs is
reported while other lines bring values, too; the exit code is 5 only if all that are attached are
hung.

The exit code is 0 after --count values, after --for if a value arrived, and at Ctrl-C; 1 when no
value arrived within --for, or the next topic is of another kind; 5 when a publisher of this host
is hung at the start, or no value arrived within --for because it is. With --until-end it is 0 or 1
when the topic ends in good order after a value or without one; 3 when the topic does not exist; 6
when the publisher's process is gone.

Examples:
  fabricast watch shm:quotes/EURUSD
  fabricast watch shm:quotes/EURUSD --count 10 --json
  fabricast watch shm:quotes/EURUSD --for 5s --delivery push
  fabricast watch shm:quotes/EURUSD --until-end
  fabricast watch shm:quotes/EURUSD --deadline 2s
  fabricast watch shm:quotes/fx --key 'EUR*'
  fabricast watch shm:a/trades --line shm:b/trades";

/// Arguments of `watch`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The topic, as in shm:NODE/TOPIC, or NODE/TOPIC for short.
    #[arg(value_parser = node_target, value_name = "TARGET")]
    target: Target,
    #[command(flatten)]
    line: LineArguments,
    #[command(flatten)]
    keys: KeyArguments,
    /// End after this many values.
    #[arg(long, value_name = "N", value_parser = number_in::<u64>(1..=u64::MAX))]
    count: Option<u64>,
    /// End after this time: seconds, or with a unit, as in 5s or 1m30s.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,
    #[command(flatten)]
    end: EndArguments,
    /// How values travel.
    #[arg(long, value_enum, default_value_t = Way::Pull)]
    delivery: Way,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, setting: &Setting) -> Result<Exit, Failure> {
    let target = &arguments.target;
    let following = arguments.end.following(arguments.delivery.into());
    let source = setting.follow(arguments.line.of(target)?, following)?;
    // Only now: until here Ctrl-C has its default effect.
    let interrupt = Interrupt::install()?;
    let (duration, is_json) = (arguments.duration, arguments.json);
    let place = target.clone().into();
    let followed = Followed { target: &place, duration, is_json };
    let mut arrivals = Arrivals::new(source, followed, &interrupt);
    let Some(mut filter) = arrivals.begin(&arguments.keys)? else { return Ok(Exit::Done) };
    let Some(subscriber) = arrivals.current() else { return Ok(Exit::Done) };
    let mut printer = Printer::new(subscriber, if is_json { Form::Json } else { Form::Text });
    while arguments.count.is_none_or(|count| printer.shown() < count) {
        match arrivals.next(keep)? {
            Arrival::Value(value, _) if !filter.wants(&value.bytes) => {}
            Arrival::Value(value, missed) => {
                missed.map_or(Ok(()), |missed| printer.loss_before(&value, missed))?;
                printer.value(&value)?;
            }
            Arrival::Lost(missed, lost) => {
                missed.map_or(Ok(()), |missed| printer.loss(missed))?;
                printer.loss(lost)?;
            }
            Arrival::Found { .. } => {
                if let Some(subscriber) = arrivals.current() {
                    filter = arguments.keys.filter(subscriber, &place)?;
                    printer.renew(subscriber);
                }
            }
            Arrival::Parted | Arrival::Nothing => {}
            Arrival::Over(why) if printer.shown() == 0 => return Err(arrivals.nothing(&why)),
            Arrival::Over(_) | Arrival::Interrupted => break,
        }
    }
    arrivals.summarize();
    arrivals.note_expired();
    Ok(Exit::Done)
}
