//! A stream between two running processes: one receives, the other measures.

use std::time::Duration;

use fabricast::{
    Address, Delivery, Listener, LogPublisher, LogSubscriber, Node, Raw, ReceiveError, Sequence,
    StatePublisher, StateSubscriber,
};

use super::super::clock::Deadline;
use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::setting::Setting;
use super::arguments::Arguments;
use super::echo::tell_addresses;
use super::line::Seen;
use super::pattern;
use super::probe::AnswerWait;
use super::records::{Receivers, TOPIC};
use super::trouble::{Trouble, wait};

/// The topic with the receiver's progress.
const RECEIVED: &str = "received";
/// Empty polls between two checks for an interrupt.
const LOOKS: u32 = 4096;
/// Records between two reports of progress, while there are more.
const SHOW_EVERY: u32 = 64;
/// How long to wait on one listener before the next.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The timeout of an attempt to dial or subscribe.
const ATTEMPT: Duration = Duration::from_secs(1);

/// The progress of a receiver: the newest record, and the number of right, lost and wrong ones.
type Progress = (u64, u64, u64, u64);

/// The receiving end.
struct Receiver {
    subscriber: LogSubscriber<Raw>,
    publisher: StatePublisher<Progress>,
    seen: Seen,
}

/// The receiver, as the measuring process knows it.
pub(super) struct Remote<'a> {
    interrupt: &'a Interrupt,
    subscriber: StateSubscriber<Progress>,
    newest: u64,
    seen: Seen,
}

/// The topic of records with this delivery.
pub(super) fn topic(delivery: Delivery) -> &'static str {
    match delivery {
        Delivery::Push => "stream/push",
        _ => TOPIC,
    }
}

/// Receives for each measuring process in turn.
pub(super) fn serve(arguments: &Arguments, setting: &Setting) -> Result<Exit, Trouble> {
    if arguments.stream.is_given() {
        let sentence = "--delivery, --batch, --capacity and --lossy belong to the measuring process: omit them with --serve";
        return Err(Failure::usage(sentence).into());
    }
    arguments.cpus.settled()?.pin_answering()?;
    let interrupt = Interrupt::install()?;
    let rdma = arguments.rdma.clone().or_else(|| arguments.fabric.rdma());
    let node = setting.named_node(&arguments.node, rdma.as_ref())?;
    let open = |delivery| {
        let listener = node.log_listener::<Raw>(topic(delivery)).delivery(delivery);
        // From the first record on, so that its losses count as well.
        listener.at(Sequence::NONE.next()).region_len_max(usize::MAX).open()
    };
    let listeners = [open(Delivery::Pull)?, open(Delivery::Push)?];
    tell_addresses(&node, arguments.mode)?;
    while let Some(subscriber) = accept(&listeners, &interrupt)? {
        let publisher = node.state_publisher(RECEIVED).open()?;
        let mut receiver = Receiver { subscriber, publisher, seen: Seen::default() };
        if !receiver.receive(&interrupt)? {
            break;
        }
    }
    Ok(Exit::Done)
}

/// A subscription to the records of the next process that dials. `None` when interrupted.
fn accept(
    listeners: &[Listener<LogSubscriber<Raw>>],
    interrupt: &Interrupt,
) -> Result<Option<LogSubscriber<Raw>>, Trouble> {
    while !interrupt.came() {
        for listener in listeners {
            // A failed one must not keep others from dialling.
            if let Ok(Some(subscriber)) = listener.accept_timeout(LOOK_AGAIN) {
                return Ok(Some(subscriber));
            }
        }
    }
    Ok(None)
}

impl Receiver {
    /// Receives and compares records until the topic ends (true) or an interrupt (false).
    fn receive(&mut self, interrupt: &Interrupt) -> Result<bool, Trouble> {
        let len = self.subscriber.payload_len_max();
        let (mut looks, mut unshown) = (0_u32, 0);
        loop {
            match self.subscriber.try_receive_ref() {
                Ok(Some(record)) => {
                    match pattern::is_right(record.bytes, len, record.meta.sequence.get()) {
                        true => self.seen.verified += 1,
                        false => self.seen.rejected += 1,
                    }
                    unshown += 1;
                    if unshown < SHOW_EVERY {
                        continue;
                    }
                }
                Ok(None) => {
                    looks = looks.wrapping_add(1);
                    if looks.is_multiple_of(LOOKS) && interrupt.came() {
                        return Ok(false);
                    }
                    if unshown == 0 {
                        continue;
                    }
                }
                Err(
                    ReceiveError::Lapped { .. }
                    | ReceiveError::DamagedRecords { .. }
                    | ReceiveError::CutOff { .. },
                ) => {}
                Err(ReceiveError::Ended { .. } | ReceiveError::Gone { .. }) => return Ok(true),
                Err(error) => return Err(Failure::from(error).into()),
            }
            self.show()?;
            unshown = 0;
            if interrupt.came() {
                return Ok(false);
            }
        }
    }

    /// Reports the progress.
    fn show(&mut self) -> Result<(), Trouble> {
        let stats = self.subscriber.stats();
        let newest = self.subscriber.next_sequence().get() - 1;
        let Seen { verified, rejected, .. } = self.seen;
        self.publisher.publish(&(newest, verified, stats.lapped, rejected + stats.rejected))?;
        Ok(())
    }
}

impl<'a> Remote<'a> {
    /// Has the process at this address receive from this node and report its progress.
    pub(super) fn dial(
        (node, publisher): (&Node, &LogPublisher<Raw>),
        (address, delivery): (&Address, Delivery),
        deadline: Deadline,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Trouble> {
        let go_on = |error: Failure| {
            if deadline.is_over() { Err(Trouble::from(error)) } else { wait(interrupt, LOOK_AGAIN) }
        };
        let target = format!("{address}/{RECEIVED}");
        loop {
            // The dialled node may have given up its grant, and wait to be dialled again.
            if publisher.pull_subscribers() + publisher.push_subscribers() == 0
                && let Err(error) = node.dial_subscriber(topic(delivery), address, ATTEMPT)
            {
                go_on(error.into())?;
                continue;
            }
            match node.state_subscriber(&target).timeout(ATTEMPT).open() {
                Ok(subscriber) => {
                    return Ok(Self { interrupt, subscriber, newest: 0, seen: Seen::default() });
                }
                Err(error) => go_on(error.into())?,
            }
        }
    }

    /// The counts of the last report.
    pub(super) fn seen(&self) -> Seen {
        self.seen
    }
}

impl Receivers for Remote<'_> {
    fn progress(&mut self) -> Result<u64, Trouble> {
        match self.subscriber.try_receive() {
            Ok(Some(sample)) => {
                let (newest, verified, lost, rejected) = sample.value;
                self.newest = newest;
                self.seen = Seen { verified, lost, rejected, ..Seen::default() };
            }
            Ok(None) | Err(ReceiveError::Contended { .. }) => {}
            Err(error) => return Err(Failure::from(error).into()),
        }
        Ok(self.newest)
    }

    fn empty_poll(&mut self, wait: &mut AnswerWait) -> Result<(), Trouble> {
        wait.empty_poll(self.interrupt)
    }
}
