//! Logs between whole nodes.

use super::*;
use crate::publisher::LogPublisher;
use crate::subscriber::LogSubscriber;

/// Takes what there is; records and losses are one row without a hole.
fn take(subscriber: &mut LogSubscriber<Value>) -> Result<(), ReceiveError> {
    loop {
        let next = subscriber.next_sequence();
        match subscriber.try_receive() {
            Ok(None) => return Ok(()),
            Ok(Some(record)) => {
                assert_eq!((record.sequence, record.value), (next, value(next.get())));
            }
            Err(ReceiveError::Lapped { first_lost, count } | ReceiveError::CutOff { first_lost, count }) => {
                assert_eq!(first_lost, next);
                assert_eq!(subscriber.next_sequence().get(), next.get() + count);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Everything that was published is received or told as lost, whatever becomes of the publisher after the end of its topic.
fn the_end_accounts_for_every_record(reach: Reach) {
    each_seed(SEEDS, |seed| {
        let world = World::new(seed, reach);
        let mut random = Random::new(seed);
        let publishing = world.node("publishing", true);
        let builder = publishing.log_publisher::<Value>("log").capacity(2048).payload_len_max(128);
        let mut publisher: LogPublisher<Value> = builder.open().unwrap();
        let subscribing = world.node("subscribing", false);
        let mut subscriber =
            subscribing.log_subscriber::<Value>("shm:publishing/log").earliest().open().unwrap();
        for _ in 0..random.below(60) {
            let number = publisher.newest().get() + 1;
            publisher.publish(&value(number)).unwrap();
            (0..random.below(3)).for_each(|_| world.turn());
            if random.once_in(4) {
                take(&mut subscriber).unwrap();
            }
        }
        let newest = publisher.newest().get();
        drop(publisher);
        // Its node has been told of the end when it dies.
        (0..200).for_each(|_| world.turn());
        world.kill("publishing");
        let mut end = Ok(());
        for _ in 0..TURNS {
            world.turn();
            end = take(&mut subscriber);
            if end.is_err() {
                break;
            }
        }
        let end = end.unwrap_err();
        assert!(matches!(end, ReceiveError::Ended { published } if published.get() == newest), "{end}");
        let stats = subscriber.stats();
        assert_eq!(stats.received + stats.lapped + stats.cut_off, newest, "{stats:?}");
        assert_eq!(stats.rejected, 0);
    });
}

#[test]
fn the_end_of_a_log_in_place_accounts_for_every_record() {
    the_end_accounts_for_every_record(Reach::Mapped);
}

#[test]
fn the_end_of_a_fetched_log_accounts_for_every_record() {
    the_end_accounts_for_every_record(Reach::Fetched);
}
