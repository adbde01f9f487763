//! Notices by unicast are under a key of the session, and other subscribers, who know only the shared one, cannot forge them.

use super::*;

/// The secret of the receiver's session.
pub(super) const SECRET: NoticeKey = NoticeKey::new([0x5e; 16]);
/// That of another subscriber's session.
const OTHER_SECRET: NoticeKey = NoticeKey::new([0x0e; 16]);

/// The keys of the receiver's session with this topic's key, which trusts what is shared.
pub(super) fn keys(shared: NoticeKey) -> NoticeKeys {
    NoticeKeys { shared, own: shared.for_session(&SECRET), trusts_shared: true }
}

/// A pair, and a mailbox that does not trust what is shared.
fn careful() -> (Pair, Arc<Mailbox>) {
    let pair = Pair::new();
    pair.sender.register(T, KEY).unwrap();
    let careful = NoticeKeys { trusts_shared: false, ..keys(KEY) };
    let mailbox = pair.receiver.subscribe(T, Epoch::FIRST, careful);
    (pair, mailbox)
}

/// A datagram of this number with a notice of [`T`] and one inline word, by multicast or as if it were sent to the receiver only.
fn forged(pair: &Pair, (number, sequence): (u64, u64), unicast_key: Option<NoticeKey>) -> Parcel {
    let mut draft = DatagramDraft::new(MTU).unwrap();
    let key = unicast_key.unwrap_or(KEY);
    assert!(draft.push(&notice(T, sequence), &key, pair.inline(9, 1)));
    let is_unicast = unicast_key.is_some();
    let header = DatagramHeader { is_beacon: false, is_unicast, channel: pair.sender.identity, number };
    (is_unicast.then(|| TICKET.to_vec()), draft.seal(&header).to_vec())
}

#[test]
fn other_subscribers_cannot_forge_unicast() {
    for (pair, mailbox) in [Pair::with_topic(), careful()] {
        for key in [KEY, SECRET, KEY.for_session(&OTHER_SECRET), OTHER_SECRET.for_session(&KEY)] {
            pair.inbox.put(&forged(&pair, (1, 1), Some(key)));
        }
        let counts = pair.deliver(1);
        assert_eq!((counts.forged, counts.entries, mailbox.hint()), (4, 0, Sequence::NONE));
        assert_eq!(mailbox.take(&mut Vec::new()), None);
        pair.inbox.put(&forged(&pair, (1, 1), Some(KEY.for_session(&SECRET))));
        assert_eq!((pair.deliver(1).entries, mailbox.hint()), (1, Sequence::new(1)));
        assert!(mailbox.take(&mut Vec::new()).is_some());
    }
}

/// Each of two receivers gets what was sent to it, and nothing made of what was sent to the other counts.
#[test]
fn datagram_for_one_receiver_is_none_for_another() {
    let (pair, mailbox) = Pair::with_topic();
    pair.sender.add_unicast((PeerAddress::Unknown, OTHER_SECRET), pair.way(b"other")).unwrap();
    pair.sender.add_unicast((PeerAddress::Unknown, SECRET), pair.way(TICKET)).unwrap();
    pair.announce(1);
    let parcels = pair.wire.take();
    let [_, (to_other, for_other), own] = &parcels[..] else { panic!("{parcels:?}") };
    assert_eq!(to_other.as_deref(), Some(&b"other"[..]));
    pair.inbox.put(&(Some(TICKET.to_vec()), for_other.clone()));
    assert_eq!((pair.deliver(1).forged, mailbox.hint()), (1, Sequence::NONE));
    pair.inbox.put(own);
    assert_eq!((pair.deliver(1).entries, mailbox.hint()), (1, Sequence::new(1)));
}

#[test]
fn multicast_is_only_a_hint_for_those_that_do_not_trust_what_is_shared() {
    let (pair, mailbox) = careful();
    let trusting = pair.receiver.subscribe(T, Epoch::FIRST, keys(KEY));
    pair.sender.announce(&notice(T, 1), pair.inline(0, 4)).unwrap();
    let counts = pair.deliver(1);
    assert_eq!((counts.entries, counts.inline_taken, counts.inline_untrusted), (1, 1, 1));
    assert_eq!([&mailbox, &trusting].map(|mailbox| mailbox.hint().get()), [1, 1]);
    let pieces = [&mailbox, &trusting].map(|mailbox| mailbox.take(&mut Vec::new()).is_some());
    assert_eq!(pieces, [false, true]);
    // What was sent to this session only brings its values.
    pair.sender.add_unicast((PeerAddress::Unknown, SECRET), pair.way(TICKET)).unwrap();
    pair.sender.announce(&notice(T, 2), pair.inline(0, 4)).unwrap();
    pair.deliver(2);
    let mut words = Vec::new();
    assert_eq!(mailbox.take(&mut words), Some(notice(T, 2)));
    assert_eq!(words, [0, 1, 2, 3]);
}

/// Those that know the shared key may number and announce what they like by multicast.
#[test]
fn forged_multicast_hides_no_unicast() {
    let (pair, mailbox) = careful();
    pair.sender.add_unicast((PeerAddress::Unknown, SECRET), pair.way(TICKET)).unwrap();
    for sequence in 1..=20 {
        let number = sequence + [0, 1, 600, 1 << 19][usize::try_from(sequence % 4).unwrap()];
        pair.inbox.put(&forged(&pair, (number, 1 << 40), None));
        while pair.receiver.turn(1).unwrap() {}
        pair.sender.announce(&notice(T, sequence), pair.inline(0, 4)).unwrap();
        let genuine = pair.wire.take().pop().unwrap();
        pair.inbox.put(&genuine);
        while pair.receiver.turn(1).unwrap() {}
        assert_eq!(mailbox.take(&mut Vec::new()), Some(notice(T, sequence)));
        assert_eq!(mailbox.take(&mut Vec::new()), None, "the forged one brought nothing");
    }
}
