//! Many subscriptions opened together.

use super::*;
use crate::limits;
use crate::node::SubscriberBuilder;

#[test]
fn many_subscriptions_open_together_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let node = |name: &str| Node::builder().name(name).unwrap().runtime_dir(dir.path()).open().unwrap();
    let publishing = [node("one"), node("other")];
    let count = limits::ATTACHMENTS_PER_SESSION_MAX + 40;
    let mut publishers: Vec<_> = (0..count)
        .map(|index| publishing[index % 2].state_publisher::<u64>(&format!("t{index}")).open().unwrap())
        .collect();
    let subscribing = Node::builder().runtime_dir(dir.path()).open().unwrap();
    for delivery in [Delivery::Pull, Delivery::Push] {
        let target = |index: usize| format!("shm:{}/t{index}", ["one", "other"][index % 2]);
        let builder = |index: usize| {
            // One topic is missing.
            let target = if index == 7 { "shm:one/missing".to_owned() } else { target(index) };
            subscribing.state_subscriber::<u64>(target.as_str()).delivery(delivery).timeout(TIMEOUT)
        };
        let mut opened = SubscriberBuilder::open_all((0..count).map(builder));
        assert_eq!(opened.len(), count);
        let error = opened.remove(7).unwrap_err();
        assert!(
            matches!(error, SubscriberError::Refused { reason: RefuseReason::NoSuchTopic, .. }),
            "{error}"
        );
        for (index, publisher) in publishers.iter_mut().enumerate() {
            publisher.publish(&(index as u64)).unwrap();
        }
        let values = opened.into_iter().map(|opened| opened.unwrap().try_receive().unwrap().unwrap().value);
        let expected = (0..count as u64).filter(|index| *index != 7);
        assert_eq!(values.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
    let wrong = SubscriberBuilder::open_all(
        ["shm:one/t0", "shm:one/t2"]
            .map(|target| subscribing.state_subscriber::<String>(target).timeout(TIMEOUT)),
    );
    assert!(wrong.iter().all(|it| {
        matches!(it, Err(SubscriberError::Refused { reason: RefuseReason::SchemaMismatch, .. }))
    }));
}
