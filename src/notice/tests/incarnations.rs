//! Notices of an ended topic, and of its next incarnation.

use super::*;

/// Subscribers of an ended topic may leave after those of its next incarnation have come.
#[test]
fn forgetting_an_incarnation_keeps_later_ones() {
    let (pair, _) = Pair::with_topic();
    let (epoch, key) = (Epoch::new(2).unwrap(), NoticeKey::new([2; 16]));
    pair.sender.register(T, key).unwrap();
    let mailbox = pair.receiver.subscribe(T, epoch, keys(key));
    *pair.wire.room.lock() = Some(0);
    assert!(pair.sender.announce(&Notice { epoch, ..notice(T, 1) }, None).unwrap());
    pair.sender.forget(T, KEY);
    *pair.wire.room.lock() = None;
    assert_eq!(pair.sender.flush().ok(), Some(false));
    assert_eq!((pair.deliver(1).entries, mailbox.hint()), (1, Sequence::new(1)));
    pair.sender.announce(&Notice { epoch, ..notice(T, 2) }, None).unwrap();
    assert_eq!((pair.deliver(1).entries, mailbox.hint()), (2, Sequence::new(2)));
    pair.sender.forget(T, key);
    pair.sender.announce(&Notice { epoch, ..notice(T, 3) }, None).unwrap();
    assert!(pair.wire.take().is_empty());
}
