//! A subscription to a topic of any kind.

use std::time::Duration;

use fabricast::{
    AnySubscriber, Epoch, InspectError, Liveness, LogSubscriber, Raw, ReceiveError, Schema, Sequence,
    StateSubscriber, TopicName, TopicReport,
};

use super::clock::Deadline;
use super::failure::{Exit, Failure};
use super::interrupt::Interrupt;

/// The pause between two looks: it doubles from the first to the second while nothing comes.
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(4);

/// A subscription to a topic of any kind.
#[derive(Debug)]
pub(crate) enum Subscription {
    /// To the newest value.
    State(Box<StateSubscriber<Raw>>),
    /// To all records.
    Log(Box<LogSubscriber<Raw>>),
}

/// A value or record where it was checked, with where and when it was published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) sequence: Sequence,
    pub(crate) epoch: Epoch,
    pub(crate) published_ns: u64,
}

/// A value or record that was kept.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sequence: Sequence,
    pub(crate) epoch: Epoch,
    pub(crate) published_ns: u64,
}

/// A copy of what was received, to be kept.
pub(crate) fn keep(View { bytes, sequence, epoch, published_ns }: View<'_>) -> Value {
    Value { bytes: bytes.to_owned(), sequence, epoch, published_ns }
}

impl TryFrom<AnySubscriber<Raw>> for Subscription {
    type Error = Failure;

    fn try_from(subscriber: AnySubscriber<Raw>) -> Result<Self, Failure> {
        match subscriber {
            AnySubscriber::State(state) => Ok(Self::State(state)),
            AnySubscriber::Log(log) => Ok(Self::Log(log)),
            other => {
                let sentence = format!("this command does not know topics of the kind {}", other.kind());
                Err(Failure::new(Exit::No, sentence))
            }
        }
    }
}

impl Subscription {
    /// The topic's name.
    pub(crate) fn topic(&self) -> &TopicName {
        match self {
            Self::State(state) => state.topic(),
            Self::Log(log) => log.topic(),
        }
    }

    /// What its values are.
    pub(crate) fn schema(&self) -> &Schema {
        match self {
            Self::State(state) => state.schema(),
            Self::Log(log) => log.schema(),
        }
    }

    /// Logs what was granted.
    pub(crate) fn log_grant(&self) {
        let (topic, type_name) = (self.topic(), self.schema().type_name());
        tracing::info!(target: "fabricast", %topic, type_name, "subscribed");
    }

    /// The sequence of the next record of a log; [`Sequence::NONE`] of other kinds, where any may come.
    pub(crate) fn next_sequence(&self) -> Sequence {
        match self {
            Self::State(_) => Sequence::NONE,
            Self::Log(log) => log.next_sequence(),
        }
    }

    /// What its repository says of itself, with remote key and address or without.
    pub(crate) fn report(&mut self, with_keys: bool) -> Result<TopicReport, InspectError> {
        match (self, with_keys) {
            (Self::State(state), false) => TopicReport::of(state.as_mut()),
            (Self::State(state), true) => TopicReport::with_keys(state.as_mut()),
            (Self::Log(log), false) => TopicReport::of(log.as_mut()),
            (Self::Log(log), true) => TopicReport::with_keys(log.as_mut()),
        }
    }

    /// Whether its publisher lives, where that can be seen.
    pub(crate) fn liveness(&mut self) -> Option<Liveness> {
        match self {
            Self::State(state) => Liveness::of(state.as_mut()),
            Self::Log(log) => Liveness::of(log.as_mut()),
        }
    }

    /// What is made of the next value, if there is one.
    #[inline]
    pub(crate) fn try_take<R>(
        &mut self,
        take: impl FnOnce(View<'_>) -> R,
    ) -> Result<Option<R>, ReceiveError> {
        Ok(match self {
            Self::State(state) => state.try_receive_ref()?.map(|sample| {
                let (sequence, epoch, published_ns) = (sample.sequence, sample.epoch, sample.published_ns);
                take(View { bytes: sample.bytes, sequence, epoch, published_ns })
            }),
            Self::Log(log) => log.try_receive_ref()?.map(|record| {
                let (sequence, epoch, published_ns) = (record.sequence, record.epoch, record.published_ns);
                take(View { bytes: record.bytes, sequence, epoch, published_ns })
            }),
        })
    }

    /// The same, waiting for the value: looks often at first, and less often the longer none comes. `None` when the time
    /// is over or the process was asked to end.
    pub(crate) fn take<R>(
        &mut self,
        timeout: Duration,
        interrupt: &Interrupt,
        take: impl Fn(View<'_>) -> R,
    ) -> Result<Option<R>, ReceiveError> {
        let deadline = Deadline::after(timeout);
        let mut pause = PAUSE_MIN;
        loop {
            match self.try_take(&take) {
                Ok(None) | Err(ReceiveError::Contended { .. }) if !deadline.is_over() => {}
                outcome => return outcome,
            }
            if interrupt.pause(pause.min(deadline.left())) {
                return Ok(None);
            }
            pause = PAUSE_MAX.min(pause * 2);
        }
    }
}
