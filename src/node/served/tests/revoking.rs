//! When a peer can read no more.

use std::time::Duration;

use super::*;
use crate::control::LetGoReason;
use crate::limits;

/// A peer that reads this topic of a node, over a medium where one region can be withdrawn.
fn reading() -> (Setup, StatePublisher<Raw>, AttachmentId) {
    let mut setup = Setup::new();
    setup.line.lock().capabilities.withdraws_one = true;
    let publisher = setup.node.state_publisher::<Raw>("t").open().unwrap();
    setup.turn(None);
    let topic = "t".parse().unwrap();
    let id = setup.client.attach(topic, Delivery::Pull, None, KindOptions::default()).unwrap();
    (setup, publisher, id)
}

fn grants_and_withdrawals(setup: &Setup) -> (usize, usize) {
    let line = setup.line.lock();
    (line.exposed, line.withdrawn)
}

/// A peer that sends both messages at once would have a key, and no attachment to be revoked.
#[test]
fn peer_that_detaches_before_its_grant_is_sent_receives_no_region() {
    let (mut honest, _publisher, id) = reading();
    let granted = honest.turn(None);
    assert!(matches!(granted[..], [Ok(ClientEvent::Granted { .. })]));
    assert_eq!(grants_and_withdrawals(&honest), (1, 0));
    honest.client.detach(id, SubscriberCounts::default()).unwrap();
    let detach = honest.client.next_message().unwrap();

    let (mut hasty, _publisher, _) = reading();
    let attach = hasty.client.next_message().unwrap();
    hasty.line.lock().arriving.extend([(attach.bytes, None), (detach.bytes, None)]);
    hasty.turn(None);
    assert_eq!(grants_and_withdrawals(&hasty), (0, 1));
}

#[test]
fn revoked_peer_may_stop_reading_before_its_region_is_withdrawn() {
    for detaches in [false, true] {
        let (mut setup, _publisher, id) = reading();
        setup.turn(None);
        let core = Arc::clone(setup.node.core());
        assert_eq!(setup.served.revoke(&core, 7, &|_, _| true), 1);
        let told = setup.turn(None);
        let [Ok(ClientEvent::LetGo(let_go))] = &told[..] else { panic!("{told:?}") };
        assert_eq!((let_go.attachment, let_go.reason), (id, LetGoReason::Revoked));
        assert_eq!(grants_and_withdrawals(&setup), (1, 0));
        assert!(setup.served.is_revoking(7) && !setup.served.is_revoking(8));
        if detaches {
            setup.client.detach(id, SubscriberCounts::default()).unwrap();
        } else {
            core.clock.pause(Duration::from_nanos(limits::REVOKED_GRACE_NS));
        }
        setup.turn(None);
        assert_eq!(grants_and_withdrawals(&setup), (1, 1));
        assert!(!setup.served.is_revoking(7) && !setup.served.is_over());
        assert_eq!(setup.served.revoke(&core, 8, &|_, _| true), 0);
    }
}

/// Where one region cannot be withdrawn alone, the session ends.
#[test]
fn session_ends_where_one_region_cannot_be_withdrawn() {
    let (mut setup, _publisher, _) = reading();
    setup.line.lock().capabilities.withdraws_one = false;
    setup.turn(None);
    let core = Arc::clone(setup.node.core());
    assert_eq!(setup.served.revoke(&core, 1, &|_, _| true), 1);
    core.clock.pause(Duration::from_nanos(limits::REVOKED_GRACE_NS));
    let told = setup.turn(None);
    assert!(told.iter().any(|event| matches!(event, Err(ControlError::Refused { .. }))), "{told:?}");
    assert!(setup.served.is_over() && !setup.served.is_revoking(1));
}
