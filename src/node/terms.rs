use std::time::Duration;

use crate::id::{Delivery, Kind};
use crate::limits;
use crate::repository::log::LogStart;

/// What a subscriber asks for, whichever side has dialled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// What the topic has to be; `None` for whatever it is.
    pub(super) kind: Option<Kind>,
    pub(super) delivery: Delivery,
    /// Where it begins, if it is a log.
    pub(super) start: LogStart,
    /// How long each answer may take.
    pub(super) patience: Duration,
    pub(super) region_len_max: usize,
    /// Whether the publisher is to tell of what it publishes.
    pub(super) notices: bool,
}

impl Terms {
    /// What is asked of a topic of this kind, or of any, unless more is said.
    pub(super) fn of(kind: impl Into<Option<Kind>>) -> Self {
        Self {
            kind: kind.into(),
            delivery: Delivery::Pull,
            start: LogStart::Newest,
            patience: Duration::from_nanos(limits::ANSWER_DEADLINE_NS),
            region_len_max: limits::SUBSCRIBED_LEN_MAX_DEFAULT,
            notices: false,
        }
    }
}

/// The setter of samples, for the `impl` block of a builder with such a field.
macro_rules! sample_setter {
    ($($samples:ident).+) => {
        /// Names a value that the payload type takes, for a type that checks its values: it is tried first wherever the type
        /// reads a text, bytes or a character, or a number if it is one. Call it once for each such type inside the payload
        /// type. See [`Payload`](crate::Payload#types-that-check-their-values) for an example.
        pub fn sample(mut self, sample: impl Into<String>) -> Self {
            self.$($samples).+.push(sample.into());
            self
        }
    };
}

/// The setters of [`Terms`] that topics of every kind have, for the `impl` block of a builder with a field `terms`. It says what
/// its topics hold, and what else there is to know of a setter.
macro_rules! terms_setters {
    ($values:literal; $(#[$timeout:meta])* timeout; $(#[$region_len_max:meta])* region_len_max;) => {
        $crate::node::terms::sample_setter!(samples);

        /// Reads the publisher's repository one-sidedly. This is the default; it costs the publisher nothing.
        pub fn pull(self) -> Self {
            self.delivery($crate::id::Delivery::Pull)
        }

        /// Lends the publisher a landing region of the repository's size, and has
        #[doc = concat!($values, " written to it.")]
        pub fn push(self) -> Self {
            self.delivery($crate::id::Delivery::Push)
        }

        #[doc = concat!("How ", $values, " travel.")]
        pub fn delivery(mut self, delivery: $crate::id::Delivery) -> Self {
            self.terms.delivery = delivery;
            self
        }

        /// Has the publisher tell of what it publishes, so that waiting costs little. On one host it wakes this subscriber; over
        /// RDMA it sends notices by multicast, with small payloads in them, and this subscriber reads the repository only when it
        /// was told of something, or when its own timer says so
        /// ([`limits::NOTICE_DOUBT_NS`](crate::limits::NOTICE_DOUBT_NS), and
        /// [`limits::NOTICE_TIMER_NS`](crate::limits::NOTICE_TIMER_NS) while no notices arrive). Losing notices costs time, and
        /// nothing else. Without this it reads whenever it looks. A subscriber by push over RDMA is not told: what is written to it
        /// is there ([`NoticePath::None`](crate::NoticePath::None)). To ask for it takes one more round trip to the publisher's node.
        pub fn notices(mut self) -> Self {
            self.terms.notices = true;
            self
        }

        /// How long each answer of the publisher's node may take; by default
        /// [`limits::ANSWER_DEADLINE_NS`](crate::limits::ANSWER_DEADLINE_NS).
        $(#[$timeout])*
        pub fn timeout(mut self, patience: std::time::Duration) -> Self {
            self.terms.patience = patience;
            self
        }

        /// The largest repository to map, and landing region to make, bytes; by default
        /// [`limits::SUBSCRIBED_LEN_MAX_DEFAULT`](crate::limits::SUBSCRIBED_LEN_MAX_DEFAULT).
        $(#[$region_len_max])*
        pub fn region_len_max(mut self, region_len_max: usize) -> Self {
            self.terms.region_len_max = region_len_max;
            self
        }
    };
}

/// The setters of where to begin, for the `impl` block of a builder of log topics with a field `terms`. It says when that is
/// settled.
macro_rules! start_setters {
    ($(#[$start:meta])* start;) => {
        /// Begins with the oldest record that the publisher's ring still holds.
        pub fn earliest(self) -> Self {
            self.start($crate::repository::log::LogStart::Earliest)
        }

        /// Begins with the next record that is published. This is the default.
        pub fn newest(self) -> Self {
            self.start($crate::repository::log::LogStart::Newest)
        }

        /// Begins with this record. Those from it on that are overwritten already are told as lost.
        pub fn at(self, sequence: $crate::id::Sequence) -> Self {
            self.start($crate::repository::log::LogStart::At(sequence))
        }

        /// Begins so many records before the one that was the next when the publisher granted the topic, or with the oldest one that
        /// is left of them. What is published since then is received or told as lost.
        pub fn back(self, count: u64) -> Self {
            self.start($crate::repository::log::LogStart::Back(count))
        }

        /// Where to begin.
        $(#[$start])*
        pub fn start(mut self, start: $crate::repository::log::LogStart) -> Self {
            self.terms.start = start;
            self
        }
    };
}

pub(super) use {sample_setter, start_setters, terms_setters};
