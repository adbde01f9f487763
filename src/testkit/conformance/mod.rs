//! The requirements of every fabric, in one place. [`conformance_suite!`] makes one test of each behaviour:
//!
//! ```text
//! conformance_suite!(mapped, SimHarness::mapped);
//! ```
//!
//! The second argument is a function that makes a [`Harness`] from a seed. A number of seeds and an attribute of the tests may
//! follow. Behaviours of topics are tested for every kind and delivery:
//! `mapped::log::push::readers_follow_to_the_next_incarnation`. A kind has its own file here (see [`kind::ConformingKind`]) and
//! an entry in [`for_each_kind!`].

pub(crate) mod channels;
pub(crate) mod connections;
pub(crate) mod kind;
pub(crate) mod log;
pub(crate) mod regions;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod topics;

mod faults;
mod observer;
mod publisher;
mod shm;
mod sim;
mod subscriber;
#[cfg(feature = "verbs")]
mod verbs;

use std::fmt::Debug;
use std::time::Duration;

use crate::fabric::{
    Acceptor, Address, ByteRange, Completion, Connection, Exposure, Fabric, FabricError, Intent, Offer,
    Received, Registration, RemoteRead, Sent,
};
use crate::id::NodeName;
use crate::limits;
use crate::memory::{Protection, Region};

/// Default number of steps in which a behaviour must show. In real time each takes 100 us.
const STEPS_MAX: u32 = 50_000;
/// Seeds for each behaviour.
pub(crate) const SEEDS: u64 = 6;

/// What a suite needs from a fabric. A harness is a world without nodes at first.
pub(crate) trait Harness: Debug {
    /// The fabric of one more process.
    fn fabric(&self) -> Box<dyn Fabric>;

    /// Where a node of this name is found.
    fn address(&self, node: &NodeName) -> Address;

    /// An address that this fabric can never reach.
    fn foreign_address(&self) -> Address;

    /// Lets a little time pass: about 100 us on a real clock, one or more arrivals on a virtual one.
    fn step(&self);

    /// Whether nodes can be listed, and have distinct names.
    fn lists_nodes(&self) -> bool {
        true
    }

    /// Whether using a withdrawn region may end the session.
    fn ends_sessions_by_refusals(&self) -> bool {
        false
    }

    /// Whether each process has its own host.
    fn has_a_host_for_each_process(&self) -> bool {
        false
    }

    /// The number of steps in which a behaviour must show.
    fn steps_max(&self) -> u32 {
        STEPS_MAX
    }
}

/// Makes a module of this name with one test of every required behaviour.
macro_rules! conformance_suite {
    ($module:ident, $harness:expr) => {
        $crate::testkit::conformance::conformance_suite!(
            $module, $harness, $crate::testkit::conformance::SEEDS,
        );
    };
    ($module:ident, $harness:expr, $seeds:expr, $(#[$attribute:meta])*) => {
        mod $module {
            use super::*;

            $crate::testkit::conformance::conformance_suite! { @tests $harness, $seeds, [$(#[$attribute])*];
                connections:
                    a_name_is_listened_on_once_and_free_again_afterwards,
                    a_dial_to_nobody_says_so,
                    both_ends_know_what_their_connection_connects,
                    an_address_of_another_kind_is_unreachable,
                    messages_arrive_whole_and_in_order,
                    messages_go_both_ways_at_once,
                    a_message_over_the_limit_is_refused,
                    a_message_longer_than_the_buffer_is_an_error_and_lost,
                    a_close_is_seen_after_everything_that_was_sent,
                    what_was_sent_before_a_close_is_received_whatever_else_fails,
                    a_send_to_a_peer_that_is_gone_is_an_error,
                    a_connection_that_nobody_accepts_closes_with_the_listener,
                    a_peer_that_does_not_read_fills_up_and_recovers,
                    many_connections_keep_apart,
                    nodes_are_listed_while_they_listen;
                channels:
                    datagrams_come_to_all_who_have_joined,
                    one_receiver_is_reached_by_unicast,
                    nothing_is_sent_to_another_host_than_the_peers,
                    what_is_no_datagram_or_no_ticket_is_refused,
                    connections_of_one_network_share_a_channel;
                regions:
                    a_region_arrives_at_its_message,
                    later_stores_are_seen_at_every_size_and_offset,
                    a_region_is_used_only_as_it_was_registered,
                    a_region_shorter_than_agreed_is_refused,
                    an_offer_that_is_given_up_harms_nothing,
                    one_region_serves_several_peers,
                    writes_appear_at_the_same_offsets_and_nowhere_else,
                    words_of_a_region_that_is_written_are_fetched,
                    the_writes_of_a_batch_appear_in_order,
                    several_batches_appear_and_complete_in_order,
                    a_region_outlives_its_connection_as_the_medium_allows,
                    a_registration_dropped_under_a_reader_harms_nobody;
            }
            $crate::testkit::conformance::for_each_kind! { [$crate::testkit::conformance::topic_suite]
                $harness, $seeds, [$(#[$attribute])*], [pull: Pull, push: Push]
            }
        }
    };
    (@tests $harness:expr, $seeds:expr, $attributes:tt; $($suite:ident: $($behaviour:ident),*;)*) => {
        $($(
            $crate::testkit::conformance::conformance_suite! { @test $harness, $seeds, $attributes, $behaviour,
                $crate::testkit::conformance::$suite::$behaviour
            }
        )*)*
    };
    (@test $harness:expr, $seeds:expr, [$(#[$attribute:meta])*], $name:ident, $behaviour:expr) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            $crate::testkit::random::each_seed($seeds, |seed| $behaviour(&($harness)(seed), seed));
        }
    };
}
pub(crate) use conformance_suite;

/// Passes all kinds of topics to a macro: their modules, their types, and the behaviours of one kind only.
macro_rules! for_each_kind {
    ([$($suite:tt)*] $($arguments:tt)*) => {
        $($suite)*! { @kinds $($arguments)*;
            state: StateTopic, [a_late_reader_gets_the_newest_value_first];
            table: TableTopic, [];
            log: LogTopic, [
                a_late_reader_begins_where_it_asks_to,
                a_lapped_reader_is_told_how_many_records_it_missed
            ];
        }
    };
}
pub(crate) use for_each_kind;

/// Makes a module for each kind of topic, and in it one for each delivery, with one test of every behaviour.
macro_rules! topic_suite {
    (
        @kinds $harness:expr, $seeds:expr, $attributes:tt, $deliveries:tt;
        $($kind:ident: $topic:ident, $behaviours:tt;)*
    ) => {
        $(mod $kind {
            use super::*;

            $crate::testkit::conformance::topic_suite! {
                @deliveries $harness, $seeds, $attributes, $deliveries; $kind: $topic, $behaviours
            }
        })*
    };
    (
        @deliveries $harness:expr, $seeds:expr, $attributes:tt, [$($module:ident: $delivery:ident),*];
        $kind:ident: $topic:ident, $behaviours:tt
    ) => {
        $(mod $module {
            use super::*;

            $crate::testkit::conformance::topic_suite! { @tests $harness, $seeds, $attributes, $delivery;
                topics [::<$crate::repository::$kind::$topic>] [
                    values_are_right_and_counted,
                    several_readers_keep_their_own_pace,
                    readers_follow_to_the_next_incarnation,
                    a_publisher_that_does_not_wait_gets_nothing_wrong_accepted,
                    a_reader_of_another_epoch_accepts_nothing
                ];
                $kind [] $behaviours;
            }
        })*
    };
    (
        @tests $harness:expr, $seeds:expr, $attributes:tt, $delivery:ident;
        $($suite:ident $generics:tt [$($behaviour:ident),*];)*
    ) => {
        $($(
            $crate::testkit::conformance::topic_suite! {
                @test $harness, $seeds, $attributes, $delivery, $suite, $behaviour, $generics
            }
        )*)*
    };
    (
        @test $harness:expr, $seeds:expr, $attributes:tt, $delivery:ident, $suite:ident, $behaviour:ident,
        [$($generics:tt)*]
    ) => {
        $crate::testkit::conformance::conformance_suite! { @test $harness, $seeds, $attributes, $behaviour,
            |harness: &dyn $crate::testkit::conformance::Harness, seed| {
                let delivery = $crate::id::Delivery::$delivery;
                $crate::testkit::conformance::$suite::$behaviour $($generics)* (harness, delivery, seed);
            }
        }
    };
}
pub(crate) use topic_suite;

/// A connection of two processes.
#[derive(Debug)]
struct Pair {
    dialler: Box<dyn Fabric>,
    listening: Box<dyn Fabric>,
    /// The dialling end.
    near: Box<dyn Connection>,
    /// The accepting end.
    far: Box<dyn Connection>,
    listener: Box<dyn Acceptor>,
}

impl Pair {
    /// Dialled as a subscriber does: regions are exposed to the far end for writing.
    fn new(harness: &dyn Harness) -> Self {
        Self::dialled(harness, Intent::Read)
    }

    /// Dialled as a publisher does: regions are exposed to the near end for writing, too.
    fn to_write(harness: &dyn Harness) -> Self {
        Self::dialled(harness, Intent::Write)
    }

    fn dialled(harness: &dyn Harness, intent: Intent) -> Self {
        let (dialler, listening) = (harness.fabric(), harness.fabric());
        let mut listener = listening.listen(&name("far")).expect("the name is free").remove(0);
        let near = dialler.dial(&harness.address(&name("far")), intent, Duration::ZERO);
        let near = near.expect("a node listens");
        let far = accepted(harness, &mut *listener);
        Self { dialler, listening, near, far, listener }
    }

    /// A region of the far process, sent to the near one.
    fn offer(&mut self, harness: &dyn Harness, registration: &Registration) -> Box<dyn Offer> {
        send(harness, &mut *self.far, b"region", Some(registration));
        let (_, offer) = message(harness, &mut *self.near);
        offer.expect("the region comes with its message")
    }
}

fn name(text: &str) -> NodeName {
    text.parse().expect("the tests use well-formed names")
}

/// Retries until there is a result, with steps in between.
fn until<T>(harness: &dyn Harness, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    for _ in 0..harness.steps_max() {
        if let Some(result) = attempt() {
            return result;
        }
        harness.step();
    }
    panic!("waited in vain for {what}");
}

fn dial(fabric: &dyn Fabric, address: &Address) -> Box<dyn Connection> {
    fabric.dial(address, Intent::Read, Duration::ZERO).expect("a node listens")
}

/// The next connection that is established. On a busy host a dial may make several attempts, and the listener returns each: it keeps
/// one of them, and the others close.
fn accepted(harness: &dyn Harness, listener: &mut dyn Acceptor) -> Box<dyn Connection> {
    let mut attempts = Vec::new();
    until(harness, "a connection", || {
        attempts.extend(listener.accept().expect("the listener works"));
        let kept = attempts.iter().position(|attempt| !attempt.capabilities().is_connecting)?;
        Some(attempts.swap_remove(kept))
    })
}

/// Sends a message once the queue accepts it.
fn send(harness: &dyn Harness, to: &mut dyn Connection, bytes: &[u8], region: Option<&Registration>) {
    until(harness, "room for a message", || {
        (to.send(bytes, region).expect("the connection stands") == Sent::Done).then_some(())
    });
}

/// A message and the region that came with it.
type Message = (Vec<u8>, Option<Box<dyn Offer>>);

/// The next message, or `None` when the connection is closed.
fn next(harness: &dyn Harness, from: &mut dyn Connection) -> Option<Message> {
    let mut buffer = vec![0; limits::CONTROL_MESSAGE_LEN_MAX];
    until(harness, "a message or the end", || match from.receive(&mut buffer).expect("messages fit") {
        Received::Message { len, offer } => Some(Some((buffer[..len].to_vec(), offer))),
        Received::Nothing => None,
        Received::Closed => Some(None),
    })
}

fn message(harness: &dyn Harness, from: &mut dyn Connection) -> Message {
    next(harness, from).expect("the connection stands")
}

/// A zeroed region of a process, registered.
fn registered(fabric: &dyn Fabric, len: usize, exposure: Exposure) -> Registration {
    let protection = match exposure {
        Exposure::Read => Protection::PeersRead,
        Exposure::Write => Protection::PeerSeals,
    };
    let region = Region::allocate(len, protection).expect("there is memory");
    fabric.register(&region.into(), exposure).expect("a new region can be registered")
}

/// Brings these ranges into the mirror.
fn fetch(harness: &dyn Harness, read: &mut dyn RemoteRead, ranges: &[ByteRange]) -> Result<(), FabricError> {
    let mut completion = read.post(ranges)?;
    for _ in 0..harness.steps_max() {
        if completion == Completion::Done {
            return Ok(());
        }
        harness.step();
        completion = read.poll()?;
    }
    panic!("waited in vain for a read");
}
