//! Names, connections and messages.

use std::time::Duration;

use super::{Harness, Pair, accepted, dial, message, name, next, send, until};
use crate::fabric::{Connection, FabricError, Intent, Received, Sent};
use crate::limits;

/// A message distinct from all others.
fn numbered(number: usize, len: usize) -> Vec<u8> {
    let byte = |index: usize| (index.wrapping_mul(31) ^ number.wrapping_mul(0x9E37)).to_le_bytes()[0];
    (0..len).map(byte).collect()
}

pub(crate) fn a_name_is_listened_on_once_and_free_again_afterwards(harness: &dyn Harness, _: u64) {
    let (first, second) = (harness.fabric(), harness.fabric());
    let listener = first.listen(&name("taken")).expect("the name is free");
    let error = second.listen(&name("taken")).expect_err("the name is taken");
    let told = match &error {
        FabricError::NameInUse { node, .. } => *node == name("taken"),
        FabricError::AddressInUse { address } => *address == harness.address(&name("taken")),
        _ => false,
    };
    assert!(told, "{error}");
    second.listen(&name("other")).expect("another name is free");
    drop(listener);
    second.listen(&name("taken")).expect("the name is free again");
}

pub(crate) fn a_dial_to_nobody_says_so(harness: &dyn Harness, _: u64) {
    let fabric = harness.fabric();
    let address = harness.address(&name("nobody"));
    let error = match fabric.dial(&address, Intent::Read, Duration::ZERO) {
        Err(error) => error,
        Ok(mut connection) => {
            until(harness, "the failure of a dial", || connection.receive(&mut [0; 8]).err())
        }
    };
    assert!(matches!(&error, FabricError::NoSuchNode { address: dialled } if *dialled == address), "{error}");
}

pub(crate) fn an_address_of_another_kind_is_unreachable(harness: &dyn Harness, _: u64) {
    let error = harness
        .fabric()
        .dial(&harness.foreign_address(), Intent::Read, Duration::ZERO)
        .expect_err("no fabric reaches everything");
    assert!(matches!(error, FabricError::Unreachable { .. }), "{error}");
}

/// What proofs of keys are made of.
pub(crate) fn both_ends_know_what_their_connection_connects(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    send(harness, &mut *pair.near, b"to the far end", None);
    message(harness, &mut *pair.far);
    send(harness, &mut *pair.far, b"to the near end", None);
    message(harness, &mut *pair.near);
    let binding = pair.near.binding().expect("it is established");
    assert!(!binding.is_empty());
    assert_eq!(pair.far.binding().expect("it is established"), binding);
    // Traffic does not change it.
    for _ in 0..8 {
        send(harness, &mut *pair.near, b"more", None);
        message(harness, &mut *pair.far);
    }
    assert_eq!(pair.near.binding().expect("it is established"), binding);
    assert_eq!(pair.far.binding().expect("it is established"), binding);
}

pub(crate) fn messages_arrive_whole_and_in_order(harness: &dyn Harness, _: u64) {
    let max = limits::CONTROL_MESSAGE_LEN_MAX;
    let lens = [1, 2, 7, 8, 9, 63, 64, 100, 4095, 4096, 4097, 65_536, max - 1, max, 1, 3];
    let mut pair = Pair::new(harness);
    // First several queued messages, then one at a time.
    for at_once in [4, 1] {
        for (start, lens) in lens.chunks(at_once).enumerate() {
            for (number, len) in lens.iter().enumerate() {
                send(harness, &mut *pair.near, &numbered(start + number, *len), None);
            }
            for (number, len) in lens.iter().enumerate() {
                let (bytes, offer) = message(harness, &mut *pair.far);
                assert_eq!(bytes, numbered(start + number, *len));
                assert!(offer.is_none());
            }
        }
    }
}

pub(crate) fn messages_go_both_ways_at_once(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    for number in 0..30 {
        send(harness, &mut *pair.near, &numbered(number, 40), None);
        send(harness, &mut *pair.far, &numbered(number + 1000, 50), None);
    }
    for number in 0..30 {
        assert_eq!(message(harness, &mut *pair.near).0, numbered(number + 1000, 50));
        assert_eq!(message(harness, &mut *pair.far).0, numbered(number, 40));
    }
}

pub(crate) fn a_message_over_the_limit_is_refused(harness: &dyn Harness, _: u64) {
    let limit = limits::CONTROL_MESSAGE_LEN_MAX;
    let mut pair = Pair::new(harness);
    let error = pair.near.send(&vec![1; limit + 1], None).expect_err("it is too long");
    let told = matches!(error, FabricError::MessageTooLong { len, max } if len == limit + 1 && max == limit);
    assert!(told, "{error}");
    send(harness, &mut *pair.near, b"next", None);
    assert_eq!(message(harness, &mut *pair.far).0, b"next");
}

pub(crate) fn a_message_longer_than_the_buffer_is_an_error_and_lost(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    send(harness, &mut *pair.near, &[1; 11], None);
    send(harness, &mut *pair.near, &[2; 10], None);
    let mut buffer = [0; 10];
    let error = until(harness, "an error", || pair.far.receive(&mut buffer).err());
    assert!(matches!(error, FabricError::MessageTooLong { max: 10, .. }), "{error}");
    let received = until(harness, "the next message", || match pair.far.receive(&mut buffer) {
        Ok(Received::Nothing) => None,
        other => Some(other.expect("it fits")),
    });
    assert!(matches!(received, Received::Message { len: 10, .. }), "{received:?}");
    assert_eq!(buffer, [2; 10]);
}

pub(crate) fn a_close_is_seen_after_everything_that_was_sent(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    (0..20).for_each(|number| send(harness, &mut *pair.near, &numbered(number, 300), None));
    drop(pair.near);
    for number in 0..20 {
        assert_eq!(message(harness, &mut *pair.far).0, numbered(number, 300));
    }
    for _ in 0..3 {
        assert!(next(harness, &mut *pair.far).is_none());
    }
}

/// The closing end may have unread messages, and the other end may send before it reads.
pub(crate) fn what_was_sent_before_a_close_is_received_whatever_else_fails(harness: &dyn Harness, _: u64) {
    for (unread, sends_first) in [(3, false), (0, true), (3, true)] {
        let mut pair = Pair::new(harness);
        (0..unread).for_each(|number| send(harness, &mut *pair.far, &numbered(number, 40), None));
        (0..5).for_each(|number| send(harness, &mut *pair.near, &numbered(number, 300), None));
        drop(pair.near);
        if sends_first {
            until(harness, "an error", || pair.far.send(b"anybody there?", None).err());
        }
        for number in 0..5 {
            let received = next(harness, &mut *pair.far).map(|(bytes, _)| bytes);
            assert_eq!(received, Some(numbered(number, 300)), "{unread} unread, {sends_first}");
        }
        assert!(next(harness, &mut *pair.far).is_none());
    }
}

pub(crate) fn a_send_to_a_peer_that_is_gone_is_an_error(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    drop(pair.far);
    let error = until(harness, "an error", || pair.near.send(b"anybody there?", None).err());
    assert!(matches!(error, FabricError::Closed), "{error}");
}

pub(crate) fn a_connection_that_nobody_accepts_closes_with_the_listener(harness: &dyn Harness, _: u64) {
    let pair = Pair::new(harness);
    let mut waiting = dial(&*pair.dialler, &harness.address(&name("far")));
    // A message still in flight would find no receiver.
    harness.step();
    let handle = pair.listener.wait_handle();
    crate::fabric::wait(&[handle], &[], Duration::from_secs(10)).expect("the handle can be waited for");
    let mut polled = [rustix::event::PollFd::from_borrowed_fd(handle, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec::default();
    assert_eq!(rustix::event::poll(&mut polled, Some(&now)), Ok(1), "the handle is not ready");
    drop(pair.listener);
    assert!(next(harness, &mut *waiting).is_none());
}

pub(crate) fn a_peer_that_does_not_read_fills_up_and_recovers(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let mut sent = 0;
    while pair.near.send(&numbered(sent, 500), None).expect("the connection stands") == Sent::Done {
        sent += 1;
        assert!(sent < 1_000_000, "a queue without a bound");
    }
    assert!(sent > 0);
    for number in 0..sent {
        assert_eq!(message(harness, &mut *pair.far).0, numbered(number, 500));
    }
    for number in sent..sent + 10 {
        send(harness, &mut *pair.near, &numbered(number, 500), None);
        assert_eq!(message(harness, &mut *pair.far).0, numbered(number, 500));
    }
}

pub(crate) fn many_connections_keep_apart(harness: &dyn Harness, _: u64) {
    let (dialler, listening) = (harness.fabric(), harness.fabric());
    let mut listener = listening.listen(&name("far")).expect("the name is free").remove(0);
    let dial = |number: usize| {
        let mut near = dial(&*dialler, &harness.address(&name("far")));
        send(harness, &mut *near, &numbered(number, 10 + number), None);
        (near, accepted(harness, &mut *listener))
    };
    let mut pairs: Vec<(Box<dyn Connection>, Box<dyn Connection>)> = (0..50).map(dial).collect();
    // The order of accepting is unspecified; the messages identify the dials.
    for (_, far) in &mut pairs {
        let (bytes, _) = message(harness, &mut **far);
        assert_eq!(bytes, numbered(bytes.len() - 10, bytes.len()));
        send(harness, &mut **far, &bytes, None);
    }
    for (number, (near, _)) in pairs.iter_mut().enumerate() {
        assert_eq!(message(harness, &mut **near).0, numbered(number, 10 + number));
    }
}

pub(crate) fn nodes_are_listed_while_they_listen(harness: &dyn Harness, _: u64) {
    if !harness.lists_nodes() {
        assert_eq!(harness.fabric().nodes().expect("no node can be listed"), []);
        return;
    }
    let (first, second) = (harness.fabric(), harness.fabric());
    let living = || -> Vec<String> {
        let nodes = harness.fabric().nodes().expect("nodes can be listed");
        let alive = nodes.into_iter().filter(|entry| entry.alive);
        let mut names: Vec<String> = alive.map(|entry| entry.node.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(living(), [""; 0]);
    let a = first.listen(&name("a")).expect("the name is free");
    let b = second.listen(&name("b")).expect("the name is free");
    assert_eq!(living(), ["a", "b"]);
    drop(a);
    assert_eq!(living(), ["b"]);
    drop(b);
    assert_eq!(living(), [""; 0]);
}
