//! A stream between two running processes: one receives, the other measures.

use fabricast::{
    Address, Delivery, LogPublisher, Node, Raw, ReceiveError, Sequence, SlowPolicy, StateSubscriber,
    SubscriberListing,
};

use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::setting::Setting;
use super::arguments::{Arguments, FabricName};
use super::echo::{accept, answering, tell_addresses};
use super::line::Seen;
use super::measurement::{ATTEMPT, Measurement};
use super::probe::AnswerWait;
use super::records::{Receivers, TOPIC, receive};
use super::trouble::Trouble;

/// The topic with the receiver's progress.
const RECEIVED: &str = "received";
/// Records between two of which it is told how far it is, while there are more.
const SHOW_EVERY: usize = 64;

/// The progress of a receiver: the newest record, and the number of right, lost and wrong ones.
type Progress = (u64, u64, u64, u64);

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
    let (interrupt, node) = answering(arguments, setting)?;
    let open = |delivery| {
        let listener = node.log_listener::<Raw>(topic(delivery)).delivery(delivery);
        let listener = listener.slow(arguments.stream.policy());
        // From the first one on: what is lost of those counts as well.
        listener.at(Sequence::NONE.next()).region_len_max(usize::MAX).open().map(|it| (delivery, it))
    };
    let listeners = [open(Delivery::Pull)?, open(Delivery::Push)?];
    tell_addresses(&node, arguments, setting)?;
    while let Some((_, mut subscriber)) = accept(&listeners, &interrupt) {
        let mut publisher = node.state_publisher::<Progress>(RECEIVED).open()?;
        let is_over = || interrupt.came();
        let has_ended = receive(
            (&mut subscriber, arguments.stream.in_place, arguments.stream.contents),
            &mut Seen::default(),
            SHOW_EVERY,
            is_over,
            |subscriber, seen| {
                let (stats, newest) = (subscriber.stats(), subscriber.next_sequence().get() - 1);
                publisher.publish(&(newest, seen.verified, stats.lapped, seen.rejected + stats.rejected))?;
                Ok(())
            },
        )?;
        if !has_ended {
            break;
        }
    }
    Ok(Exit::Done)
}

/// Fails if the other process has subscribed to this topic of the node with another policy.
fn check_policy(node: &Node, topic: &str, expected: SlowPolicy) -> Result<(), Trouble> {
    // A node lists subscribers over all fabrics, and reaches itself in shared memory.
    let target = format!("{}/{topic}", FabricName::Shm.address(node)?);
    let list = node.subscribers(target.as_str()).map_err(Failure::from)?;
    // A subscriber that reports no progress is lapped.
    let policy = |it: &SubscriberListing| it.progress.map_or(SlowPolicy::Lap, |progress| progress.policy);
    let policies: Vec<SlowPolicy> = list.subscribers.iter().map(policy).collect();
    match policies.first() {
        // Commands that show the topic may have subscribed, too.
        Some(other) if !policies.contains(&expected) => {
            let sentence = format!("the other process has --policy {other}: pass the same --policy to both");
            Err(Failure::usage(sentence).into())
        }
        _ => Ok(()),
    }
}

impl<'a> Remote<'a> {
    /// Has the process at this address receive from this node and report its progress.
    pub(super) fn dial(
        measurement: &'a Measurement<'_>,
        (node, publisher): (&Node, &LogPublisher<Raw>),
        address: &Address,
    ) -> Result<Self, Trouble> {
        let arguments = measurement.arguments;
        let topic = topic(arguments.delivery());
        let target = format!("{address}/{RECEIVED}");
        let subscriber = measurement.meet(
            || publisher.pull_subscribers() + publisher.push_subscribers(),
            || node.dial_subscriber(topic, address, ATTEMPT),
            || node.state_subscriber(&target).timeout(ATTEMPT).open(),
            || Ok(()),
        )?;
        check_policy(node, topic, arguments.stream.policy())?;
        let interrupt = &measurement.interrupt;
        Ok(Self { interrupt, subscriber, newest: 0, seen: Seen::default() })
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
