//! Datagrams, where the medium has them.

use std::sync::Arc;

use super::{Harness, Pair, accepted, dial, message, name, send, until};
use crate::fabric::{
    ChannelReceiver, ChannelSender, Connection, DatagramReach, Datagrams, FabricError, Sent,
};
use crate::limits;

/// The channel of the far end, after a message of the near end. `None` without datagrams.
fn channel(harness: &dyn Harness, pair: &mut Pair) -> Option<Arc<dyn ChannelSender>> {
    send(harness, &mut *pair.near, b"hello", None);
    message(harness, &mut *pair.far);
    let far = pair.far.datagrams()?;
    let Some(sender) = far.channel_sender().expect("the connection stands") else {
        datagrams(&*pair.near).join_channel(b"a ticket").expect_err("there are no channels");
        far.unicast_sender(b"a ticket").expect_err("there are no channels");
        return None;
    };
    assert!((1..=limits::CHANNEL_TICKET_LEN_MAX).contains(&sender.ticket().len()));
    assert!(sender.datagram_len_max() >= 256);
    Some(sender)
}

/// The datagrams of a medium that has them.
fn datagrams(connection: &dyn Connection) -> &dyn Datagrams {
    connection.datagrams().expect("it has datagrams")
}

/// Sends a datagram once the queue accepts it.
fn multicast(harness: &dyn Harness, sender: &dyn ChannelSender, datagram: &[u8]) {
    until(harness, "room for a datagram", || {
        (sender.send(datagram).expect("the channel stands") == Sent::Done).then_some(())
    });
}

/// Sends a datagram by unicast once the queue accepts it.
fn unicast(harness: &dyn Harness, far: &dyn Connection, to: &dyn ChannelReceiver, datagram: &[u8]) {
    let sender = datagrams(far).unicast_sender(to.return_ticket()).expect("the receiver is at the other end");
    until(harness, "room for a datagram", || {
        (sender.send(datagram).expect("the receiver exists") == Sent::Done).then_some(())
    });
}

/// A datagram, and how it came.
type Came = (Vec<u8>, DatagramReach);

fn receive(receiver: &mut dyn ChannelReceiver) -> Option<Came> {
    let mut buffer = vec![0; 4096];
    let datagram = receiver.receive(&mut buffer).expect("the channel can be received from")?;
    Some((buffer[..datagram.len].to_vec(), datagram.reach))
}

/// Sends datagrams by multicast until one arrives: a receiver that has just joined may miss the first.
fn joined(harness: &dyn Harness, sender: &dyn ChannelSender, receiver: &mut dyn ChannelReceiver) {
    until(harness, "a first datagram", || {
        sender.send(b"first").expect("the channel stands");
        receive(receiver)
    });
}

/// The next datagram that is not one of the first.
fn next(harness: &dyn Harness, receiver: &mut dyn ChannelReceiver) -> Came {
    until(harness, "a datagram", || receive(receiver).filter(|(datagram, _)| datagram != b"first"))
}

pub(crate) fn datagrams_come_to_all_who_have_joined(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let Some(sender) = channel(harness, &mut pair) else { return };
    let mut receivers: Vec<_> = (0..3)
        .map(|_| datagrams(&*pair.near).join_channel(sender.ticket()).expect("the ticket is one"))
        .collect();
    // A sender that joins its own channel is a receiver like all others.
    receivers.push(datagrams(&*pair.far).join_channel(sender.ticket()).expect("the ticket is one"));
    receivers.iter_mut().for_each(|receiver| joined(harness, &*sender, &mut **receiver));
    let longest = vec![7; sender.datagram_len_max()];
    for datagram in [b"one".as_slice(), &longest, b"three"] {
        multicast(harness, &*sender, datagram);
        for receiver in &mut receivers {
            assert_eq!(next(harness, &mut **receiver), (datagram.to_vec(), DatagramReach::Multicast));
        }
    }
    // A receiver that left disturbs no others.
    let mut last = receivers.pop().expect("there are several");
    drop(receivers);
    multicast(harness, &*sender, b"four");
    assert_eq!(next(harness, &mut *last), (b"four".to_vec(), DatagramReach::Multicast));
    assert_eq!(last.passed_over(), 0);
}

pub(crate) fn one_receiver_is_reached_by_unicast(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let Some(sender) = channel(harness, &mut pair) else { return };
    let join =
        |near: &dyn Connection| datagrams(near).join_channel(sender.ticket()).expect("the ticket is one");
    let (mut alone, mut other) = (join(&*pair.near), join(&*pair.near));
    assert!((1..=limits::CHANNEL_TICKET_LEN_MAX).contains(&alone.return_ticket().len()));
    joined(harness, &*sender, &mut *other);
    unicast(harness, &*pair.far, &*alone, b"alone");
    assert_eq!(next(harness, &mut *alone), (b"alone".to_vec(), DatagramReach::Unicast));
    multicast(harness, &*sender, b"all");
    assert_eq!(next(harness, &mut *other), (b"all".to_vec(), DatagramReach::Multicast));
    // Sending to no receiver is not an error.
    let gone = datagrams(&*pair.far)
        .unicast_sender(alone.return_ticket())
        .expect("the receiver is at the other end");
    drop(alone);
    gone.send(b"hello?").expect("a datagram may be lost");
}

pub(crate) fn nothing_is_sent_to_another_host_than_the_peers(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let Some(sender) = channel(harness, &mut pair) else { return };
    let receiver = datagrams(&*pair.near).join_channel(sender.ticket()).expect("the ticket is one");
    // All these tickets end with the host.
    let mut elsewhere = receiver.return_ticket().to_vec();
    *elsewhere.last_mut().expect("it is not empty") ^= 0x40;
    let refused = datagrams(&*pair.far).unicast_sender(&elsewhere).expect_err("a ticket of another host");
    assert!(refused.to_string().contains("host"), "{refused}");
    // A connection of the other host changes nothing.
    let other = harness.fabric();
    let mut near = dial(&*other, &harness.address(&name("far")));
    let mut far = accepted(harness, &mut *pair.listener);
    send(harness, &mut *near, b"hello", None);
    message(harness, &mut *far);
    let theirs = datagrams(&*near).join_channel(sender.ticket()).expect("the ticket is one");
    datagrams(&*far).channel_sender().expect("the connection stands");
    datagrams(&*far).unicast_sender(theirs.return_ticket()).expect("the receiver is at the other end");
    for (connection, ticket) in [(&pair.far, theirs.return_ticket()), (&far, receiver.return_ticket())] {
        assert_eq!(
            datagrams(&**connection).unicast_sender(ticket).is_err(),
            harness.has_a_host_for_each_process()
        );
    }
    datagrams(&*pair.far).unicast_sender(&elsewhere).expect_err("a ticket of another host");
}

pub(crate) fn what_is_no_datagram_or_no_ticket_is_refused(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let Some(sender) = channel(harness, &mut pair) else { return };
    let mut receiver = datagrams(&*pair.near).join_channel(sender.ticket()).expect("the ticket is one");
    let too_long = vec![0; sender.datagram_len_max() + 1];
    let alone = datagrams(&*pair.far)
        .unicast_sender(receiver.return_ticket())
        .expect("the receiver is at the other end");
    for refused in [sender.send(&too_long), alone.send(&too_long)] {
        assert!(matches!(refused, Err(FabricError::MessageTooLong { .. })), "{refused:?}");
    }
    let tickets = [sender.ticket(), receiver.return_ticket()].concat();
    let parts = (0..tickets.len()).flat_map(|begin| (begin..tickets.len()).map(move |end| begin..end));
    for part in parts.map(|part| &tickets[part]) {
        if part != sender.ticket() {
            datagrams(&*pair.near).join_channel(part).expect_err("a part of two tickets");
        }
        if part != receiver.return_ticket() {
            datagrams(&*pair.far).unicast_sender(part).expect_err("a part of two tickets");
        }
    }
    // A datagram longer than the buffer is skipped, and the next one arrives.
    joined(harness, &*sender, &mut *receiver);
    let passed_over = receiver.passed_over();
    unicast(harness, &*pair.far, &*receiver, &too_long[1..]);
    until(harness, "a datagram without room", || {
        receiver.receive(&mut [0; 8]).expect("the channel can be received from");
        (receiver.passed_over() > passed_over).then_some(())
    });
    unicast(harness, &*pair.far, &*receiver, b"short");
    assert_eq!(next(harness, &mut *receiver), (b"short".to_vec(), DatagramReach::Unicast));
}

pub(crate) fn connections_of_one_network_share_a_channel(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let Some(sender) = channel(harness, &mut pair) else { return };
    let other = harness.fabric();
    let mut near = dial(&*other, &harness.address(&name("far")));
    let mut far = accepted(harness, &mut *pair.listener);
    send(harness, &mut *near, b"hello", None);
    message(harness, &mut *far);
    let same = datagrams(&*far).channel_sender().expect("the connection stands").expect("it has channels");
    assert!(Arc::ptr_eq(&sender, &same));
    let mut receivers =
        [&pair.near, &near].map(|near| datagrams(&**near).join_channel(sender.ticket()).expect("a ticket"));
    receivers.iter_mut().for_each(|receiver| joined(harness, &*sender, &mut **receiver));
    multicast(harness, &*sender, b"to both");
    for receiver in &mut receivers {
        assert_eq!(next(harness, &mut **receiver).0, b"to both");
    }
    // The channel outlives the connections.
    let Pair { near: first, far: second, .. } = pair;
    drop((near, far, first, second));
    multicast(harness, &*sender, b"still");
    for receiver in &mut receivers {
        assert_eq!(next(harness, &mut **receiver).0, b"still");
    }
    // Another process has another channel.
    let elsewhere = harness.fabric();
    let mut listener = elsewhere.listen(&name("elsewhere")).expect("the name is free").remove(0);
    let mut near = dial(&*other, &harness.address(&name("elsewhere")));
    let mut far = accepted(harness, &mut *listener);
    send(harness, &mut *near, b"hello", None);
    message(harness, &mut *far);
    let different =
        datagrams(&*far).channel_sender().expect("the connection stands").expect("it has channels");
    assert_ne!(different.ticket(), sender.ticket());
}
