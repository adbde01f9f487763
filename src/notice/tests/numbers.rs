//! Datagram numbers that are too high, or not the sender's.

use super::*;

/// A datagram of this number with a notice of the topic [`T`].
fn made_up(pair: &Pair, number: u64, sequence: u64, key: NoticeKey, is_unicast: bool) -> Parcel {
    let mut draft = DatagramDraft::new(MTU).unwrap();
    draft.push(&notice(T, sequence), &key, None);
    let header = DatagramHeader { is_beacon: false, is_unicast, channel: pair.sender.identity, number };
    let bytes = if is_unicast { draft.seal_for(&header, &SECRET) } else { draft.seal(&header) }.to_vec();
    (is_unicast.then(|| TICKET.to_vec()), bytes)
}

/// Any reader of a topic has its key. A datagram that it forges has no effect.
#[test]
fn number_far_ahead_is_not_trusted_and_hides_no_losses() {
    for is_unicast in [false, true] {
        let (pair, mailbox) = Pair::with_topic();
        (1..=3).for_each(|sequence| assert!(!pair.announce(sequence)));
        pair.deliver(1);
        pair.inbox.put(&made_up(&pair, u64::MAX, 3, KEY, is_unicast));
        let counts = pair.deliver(2);
        assert_eq!((counts.entries, counts.forged), (3, 1));
        // It does not count.
        pair.assert_heard(DatagramReach::Multicast, 1);
        assert!(mailbox.take_gap(), "one read in vain");
        for sequence in 4..=8 {
            pair.announce(sequence);
            let counts = pair.deliver(sequence);
            assert_eq!((counts.entries, mailbox.hint().get()), (sequence, sequence));
            pair.assert_heard(DatagramReach::Multicast, sequence);
        }
        assert!(!mailbox.take_gap());
        let lost = pair.receiver.counts().lost;
        (9..=10).for_each(|sequence| assert!(!pair.announce(sequence)));
        pair.inbox.put(&pair.wire.take()[1]);
        assert_eq!((lost, pair.deliver(9).lost), (0, 1));
        assert!(mailbox.take_gap());
    }
}

/// The network may have been down for an hour.
#[test]
fn after_many_losses_the_second_notice_is_trusted() {
    let (pair, mailbox) = Pair::with_topic();
    pair.announce(1);
    pair.deliver(1);
    for (number, sequence, believed) in
        [(limits::NOTICE_LEAP_MAX + 1, 2, 2), ((1 << 40) + 1, 3, 2), ((1 << 40) + 2, 4, 4)]
    {
        pair.inbox.put(&made_up(&pair, number, sequence, KEY, false));
        pair.deliver(2);
        assert_eq!(mailbox.hint().get(), believed);
        assert_eq!(mailbox.take_gap(), sequence < 4);
    }
}

/// An untrusted datagram may be of a foreign topic, and no loss; a forged one is not the sender's at all.
#[test]
fn forged_and_damaged_datagrams_do_not_make_up_for_lost_ones() {
    let (pair, mailbox) = Pair::with_topic();
    (1..=4).for_each(|sequence| assert!(!pair.announce(sequence)));
    let parcels = pair.wire.take();
    pair.inbox.put(&parcels[0]);
    pair.inbox.put(&made_up(&pair, 2, 9, NoticeKey::new([9; 16]), false));
    let (_, mut cut) = made_up(&pair, 3, 9, KEY, false);
    cut.truncate(HEADER_LEN + ENTRY_LEN - 1);
    pair.inbox.put(&(None, cut));
    assert!(!mailbox.take_gap());
    pair.inbox.put(&parcels[3]);
    let counts = pair.deliver(1);
    assert_eq!((counts.forged, counts.malformed, counts.lost), (1, 1, 2));
    assert!(mailbox.take_gap());
}

/// A sender without the key cannot silence a receiver by a high number, nor can the key of one topic silence another topic.
#[test]
fn high_number_silences_only_its_own_topic() {
    let (pair, mailbox) = Pair::with_topic();
    let (other, other_key) = (TopicId::new(8), NoticeKey::new([3; 16]));
    let other_mailbox = pair.receiver.subscribe(other, Epoch::FIRST, keys(other_key));
    let channel = pair.sender.identity;
    for (topic, key) in [(T, NoticeKey::new([9; 16])), (other, other_key)] {
        let mut draft = DatagramDraft::new(MTU).unwrap();
        draft.push(&notice(topic, 77), &key, None);
        let header = DatagramHeader { is_beacon: false, is_unicast: false, channel, number: u64::MAX };
        pair.inbox.put(&(None, draft.seal(&header).to_vec()));
    }
    pair.announce(1);
    let counts = pair.deliver(1);
    assert_eq!((counts.forged, counts.entries), (1, 2));
    assert_eq!((mailbox.hint().get(), other_mailbox.hint().get()), (1, 77));
}

/// Beacons come five times in that time: when none is accepted, the accepted number was forged.
#[test]
fn number_slightly_too_high_does_not_silence_a_topic_for_long() {
    for is_unicast in [false, true] {
        for ahead in [1, 100, limits::CHANNEL_RECEIVES as u64 + 5, limits::NOTICE_LEAP_MAX] {
            let (pair, mailbox) = Pair::with_topic();
            (1..=3).for_each(|sequence| assert!(!pair.announce(sequence)));
            pair.deliver(1);
            pair.inbox.put(&made_up(&pair, 3 + ahead, 3, KEY, is_unicast));
            pair.deliver(2);
            for sequence in 4..20 {
                pair.announce(sequence);
                pair.deliver(2 + (sequence - 3) * limits::HEARTBEAT_INTERVAL_NS);
            }
            assert_eq!(mailbox.hint().get(), 19, "{ahead} ahead, alone: {is_unicast}");
        }
    }
}
