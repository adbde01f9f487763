//! The cost of asking a subscriber for its consumed position less often.

use super::world::{Medium, World};
use crate::limits;
use crate::publisher::CopyBudget;

const MS_NS: u64 = 1_000_000;
const LEN_MAX: usize = 100;

/// A subscriber that reads so many records at a time.
#[derive(Clone, Copy, Debug)]
struct Reading {
    every_ms: u64,
    records: u64,
}

/// How many records it receives in four seconds from a faster publisher, and how many turns that takes the node. The node's
/// thread tends it when due, or every 5 ms if `restless`.
fn received(reading: Reading, medium: Medium, restless: bool) -> (u64, u64) {
    let mut world = World::new(64 << 10, LEN_MAX);
    world.subscribe(medium, 1, 1);
    let budget = CopyBudget::new();
    let (mut again_ns, mut beat_ns, mut turns) = (Some(0), 0, 0);
    for ms in 0..4_000 {
        let now_ns = ms * MS_NS;
        world.publish(20);
        if ms % reading.every_ms == 0 {
            world.subscribers[0].read(usize::try_from(reading.records).unwrap(), LEN_MAX);
        }
        let is_beat = now_ns >= beat_ns;
        if world.is_woken() || is_beat || again_ns.is_some_and(|again_ns| again_ns <= now_ns) {
            if is_beat {
                beat_ns = now_ns + limits::HEARTBEAT_INTERVAL_NS;
            }
            budget.begin(now_ns, is_beat || restless);
            let soon_ns = now_ns + limits::LANDING_TENDED_NS;
            again_ns = world.topic.landings.tend(&budget).again_ns;
            again_ns = if restless { Some(soon_ns) } else { again_ns };
            turns += 1;
        }
        world.subscribers[0].way.complete();
    }
    (world.subscribers[0].received, turns)
}

#[test]
fn slow_subscriber_receives_as_much_as_if_asked_every_five_milliseconds() {
    for medium in [Medium::Memory, Medium::Wire] {
        for (every_ms, records) in [(1, 10), (50, 2000), (150, 2000), (400, 2000)] {
            let reading = Reading { every_ms, records };
            let ((before, turns_before), (now, turns)) =
                (received(reading, medium, true), received(reading, medium, false));
            println!(
                "{medium:?} {reading:?}: {before} records in {turns_before} turns, now {now} in {turns}"
            );
            assert!(now * 100 >= before * 97, "{medium:?} {reading:?}: {now} of {before} records");
        }
    }
}
