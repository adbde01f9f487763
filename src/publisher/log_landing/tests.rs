//! The writes to a landing region of a log, and its reader: every record is received or reported lost, in order and once,
//! whatever the order of publishing, placing, acknowledging and reading.

mod meanwhile;
mod slow;
mod world;

use std::sync::Arc;

use self::world::{Medium, Subscriber, Way, World};
use super::*;
use crate::id::Sequence;
use crate::layout::WORD;
use crate::layout::log::{HOT_END, HOT_START, HOT_START_SEQUENCE, RING_OFFSET};
use crate::repository::log::{LogReader, LogStart, head};
use crate::testkit::random::{Random, amount, each_seed};

/// Orders of events tried.
const SEEDS: u64 = 60;

#[test]
fn any_order_of_events_accounts_for_every_record() {
    each_seed(amount(SEEDS / 3, 4 * SEEDS), |seed| {
        let mut random = Random::new(seed);
        let len_max = 1 + random.index(400);
        let mut world = World::new(1 << (11 + random.below(6)), len_max);
        let media = [Medium::Memory, Medium::Wire, Medium::Wire, Medium::Lossy(20)];
        for step in 0..3000_u64 {
            let (publisher, random) = (&mut world.publisher, &mut random);
            match random.below(12) {
                0..3 => world.publish(random.below(20)),
                3 => world.append(random.below(60)),
                4 => drop(publisher.commit()),
                5 => drop(world.tend()),
                6 if world.subscribers.len() < 5 => {
                    let first = 1 + random.below(publisher.newest().get() + 9);
                    let medium = media[random.index(media.len())];
                    world.subscribe(medium, first, seed ^ step);
                }
                _ => {
                    let count = world.subscribers.len();
                    let Some(subscriber) = world.subscribers.get_mut(random.index(count)) else { continue };
                    match random.below(4) {
                        0 => subscriber.way.place(random.index(3000)),
                        1 => subscriber.way.acknowledge(),
                        2 => subscriber.way.complete(),
                        _ => drop(subscriber.read(random.index(100), len_max)),
                    }
                    assert!(subscriber.told() <= world.publisher.newest().get().max(subscriber.before));
                }
            }
        }
        world.settle();
        for subscriber in &world.subscribers {
            let medium = subscriber.way.0.lock().medium;
            assert!(matches!(medium, Medium::Lossy(_)) || subscriber.damaged == 0, "seed {seed}: {medium:?}");
        }
    });
}

/// The session, and not the topic's turn, may be the first to see that the beginning has arrived.
#[test]
fn landing_region_whose_beginning_arrives_late_is_taken_by_the_publisher() {
    let mut world = World::new(1 << 13, 64);
    world.publish(3);
    world.subscribe_after(20, Medium::Wire, 1, 1);
    for _ in 0..20 {
        world.tend();
    }
    assert!(!world.tend(), "the node has nothing more to write");
    world.publish(1);
    for _ in 0..2 {
        world.subscribers[0].way.complete();
        world.subscribers[0].read(100, 64);
    }
    assert_eq!(world.subscribers[0].told(), 4);
}

/// A damaged entry of the index names a late position, and the first record.
#[test]
fn index_entry_with_the_sequence_of_an_earlier_one_costs_a_new_subscriber_nothing() {
    for medium in [Medium::Memory, Medium::Wire, Medium::Lossy(u64::MAX)] {
        let mut world = World::new(1 << 13, 64);
        world.publish(200);
        let (region, geometry) =
            (Arc::clone(world.topic.registration.region()), world.topic.geometry.log().unwrap());
        let oldest = region.load(HOT_START_SEQUENCE);
        let late = geometry.entry_offset(geometry.segment(region.load(HOT_END) - 1));
        assert!(region.load(late) > region.load(HOT_START) && region.load(late + WORD) > oldest);
        region.store(late + WORD, oldest);
        world.subscribe(medium, oldest, 1);
        world.settle();
        let subscriber = world.subscribers.last().unwrap();
        let lost = (subscriber.lapped, subscriber.damaged);
        assert_eq!((subscriber.received, lost), (201 - oldest, (0, 0)), "{medium:?}");
    }
}

/// The head may be outdated: the publisher may have gone round its ring since it was read.
#[test]
fn outdated_head_never_goes_back() {
    for medium in [Medium::Memory, Medium::Wire, Medium::Lossy(u64::MAX)] {
        let mut world = World::new(1 << 13, 64);
        world.publish(50);
        let (registration, geometry) =
            (Arc::clone(&world.topic.registration), world.topic.geometry.log().unwrap());
        let (old, mut budget) = (head(registration.region()), u64::MAX);
        let first = LogPlace { position: 0, sequence: Sequence::new(1) };
        let (way, closed) = (Way::new(medium, geometry.region_len(), 1), Arc::default());
        let writer = LandingWriter::new(Box::new(way.clone()), Arc::clone(&closed), limits::LOG_BATCHES_MAX);
        let mut landing = LogLanding::new(writer, geometry, world.topic.epoch, first);
        world.publish(1000);
        landing.advance(&registration, &old, &mut budget);
        assert!(landing.start.position > old.end && landing.written == landing.start.position, "{landing:?}");
        way.complete();
        let target = Arc::clone(&way.0.lock().target);
        let start = LogStart::At(first.sequence);
        let reader = LogReader::new(geometry, world.topic.epoch, world.topic.topic_id, start);
        let (received, lapped, damaged) = (0, 0, 0);
        let mut subscriber =
            Subscriber { way, closed, target, reader, received, lapped, damaged, before: 0, now_ns: 0 };
        while subscriber.told() < 1050 {
            landing.advance(&registration, &head(registration.region()), &mut budget);
            subscriber.way.complete();
            assert!(subscriber.read(100, 64) > 0, "{landing:?}");
        }
        assert!((subscriber.damaged, subscriber.received > 50) == (0, true), "{}", subscriber.damaged);
    }
}

/// After a lost write the reader finds the next frame only by the index.
#[test]
fn lost_write_costs_at_most_one_segment() {
    const EACH: u64 = 30;
    let mut world = World::new(1 << 16, 64);
    // Only what is removed below is lost.
    world.subscribe(Medium::Lossy(u64::MAX), 1, 1);
    let mut ends = vec![0];
    for _ in 0..20 {
        world.publish(EACH);
        world.tend();
        let subscriber = world.subscribers.last_mut().unwrap();
        subscriber.way.complete();
        ends.push(subscriber.target.load(HOT_END));
    }
    let geometry = world.topic.geometry.log().unwrap();
    let subscriber = world.subscribers.last_mut().unwrap();
    let lost = geometry.range([ends[4], ends[5]]).unwrap();
    (lost.offset..lost.offset + lost.len).step_by(WORD).for_each(|offset| subscriber.target.store(offset, 0));
    while subscriber.read(100, 64) > 0 {}
    assert_eq!((subscriber.told(), subscriber.lapped), (20 * EACH, 0));
    let segment = geometry.segment_len() as u64 / frame_len(0) as u64;
    assert!((EACH..=EACH + segment).contains(&subscriber.damaged), "{} are lost", subscriber.damaged);
}

/// Loses the first frames of a segment of a subscriber's landing region, and reads: it continues with the next segment.
fn lose_frames_of(segment: u64, world: &mut World) {
    let (geometry, len_max) = (world.topic.geometry.log().unwrap(), world.len_max);
    let repository = Arc::clone(world.topic.registration.region());
    let [from, to] = [segment, segment + 1]
        .map(|segment| place_behind(&geometry, &repository, segment * geometry.segment_len() as u64));
    assert!(geometry.segment(from.position) == segment && geometry.segment(to.position) == segment + 1);
    let subscriber = world.subscribers.last_mut().unwrap();
    let offset = geometry.offset(from.position);
    (offset..offset + 3 * frame_len(len_max))
        .step_by(WORD)
        .for_each(|offset| subscriber.target.store(offset, 0));
    while subscriber.read(100, len_max) > 0 {}
    assert_eq!((subscriber.told(), subscriber.lapped), (world.appended, 0));
    assert_eq!(subscriber.damaged, to.sequence.get() - from.sequence.get(), "only that segment");
}

/// The index may be lost like the frames: the next records repeat it.
#[test]
fn lost_index_is_repeated_with_the_next_batch() {
    let mut world = World::new(1 << 20, 64);
    world.subscribe(Medium::Lossy(u64::MAX), 1, 1);
    // The publisher takes it.
    world.tend();
    let geometry = world.topic.geometry.log().unwrap();
    let segment_of_end = |world: &World| geometry.segment(head(world.topic.registration.region()).end);
    while segment_of_end(&world) < 2 {
        world.publish(5);
        world.subscribers[0].way.complete();
    }
    world.subscribers[0].way.0.lock().indexes_to_lose = 1;
    while segment_of_end(&world) < 3 {
        world.publish(5);
        world.subscribers[0].way.complete();
    }
    assert_eq!(world.subscribers[0].way.0.lock().indexes_to_lose, 0);
    for _ in 0..20 {
        world.publish(5);
        world.subscribers[0].way.complete();
    }
    assert_eq!(segment_of_end(&world), 3, "only the index says where it begins");
    lose_frames_of(2, &mut world);
}

/// The node repeats it if nothing follows.
#[test]
fn lost_index_is_repeated_by_the_node() {
    let mut world = World::new(1 << 20, 64);
    world.subscribe(Medium::Lossy(u64::MAX), 1, 1);
    let geometry = world.topic.geometry.log().unwrap();
    // Nothing is acknowledged: the publisher leaves it to the node.
    while head(world.topic.registration.region()).end < 5 * geometry.segment_len() as u64 / 2 {
        world.publish(5);
    }
    let way = world.subscribers[0].way.clone();
    way.complete();
    way.0.lock().indexes_to_lose = u64::MAX;
    world.tend();
    assert!(way.0.lock().indexes_to_lose < u64::MAX, "with the last batch");
    way.0.lock().indexes_to_lose = 0;
    for _ in 0..2 {
        way.complete();
        world.tend();
    }
    way.complete();
    lose_frames_of(1, &mut world);
}

/// Nothing is lost between the two rings.
#[test]
fn unconsumed_records_are_not_overwritten() {
    for medium in [Medium::Memory, Medium::Wire] {
        let mut world = World::new(64 << 10, 100);
        world.subscribe(medium, 1, 1);
        while world.appended < 1300 {
            world.publish(3);
            world.subscribers[0].way.complete();
            world.tend();
        }
        let end = head(world.topic.registration.region()).end;
        assert!(end > 96 << 10 && end < 120 << 10, "one ring and a half: {end}");
        world.settle();
        let Subscriber { received, lapped, damaged, .. } = world.subscribers[0];
        assert_eq!((received, lapped, damaged), (world.appended, 0, 0), "{medium:?}");
    }
}

#[test]
fn stalled_subscriber_gets_its_region_then_one_gap_and_what_follows() {
    for medium in [Medium::Memory, Medium::Wire] {
        let mut world = World::new(64 << 10, 100);
        world.subscribe(medium, 1, 1);
        world.publish(1);
        for _ in 0..3000 {
            world.publish(3);
            world.subscribers[0].way.complete();
            world.tend();
        }
        let subscriber = &mut world.subscribers[0];
        let held = subscriber.read(usize::MAX, 100) as u64;
        assert!(held > 600 && subscriber.lapped + subscriber.damaged == 0, "{held}");
        world.settle();
        let Subscriber { received, lapped, damaged, .. } = world.subscribers[0];
        assert!(received > held + 300 && damaged == 0 && lapped > 6000, "{received} and {lapped}");
        assert_eq!(received + lapped, 9001);
    }
}

/// A subscriber with an impossible consumed position harms only itself.
#[test]
fn impossible_consumed_position_is_capped_at_what_was_written() {
    each_seed(8, |seed| {
        let mut random = Random::new(seed);
        let mut world = World::new(16 << 10, 100);
        world.subscribe(Medium::Memory, 1, seed);
        world.subscribe(Medium::Wire, 1, seed);
        world.subscribe(Medium::Memory, 1, seed);
        for _ in 0..800 {
            world.publish(random.below(9));
            world.tend();
            for subscriber in world.subscribers.split_at(2).0 {
                subscriber.way.complete();
                let word = random.next() >> random.below(64);
                subscriber.target.store(LANDING_CONSUMED, word);
            }
            world.subscribers[2].read(usize::MAX, 100);
        }
        world.tend();
        let subscriber = &mut world.subscribers[2];
        subscriber.read(usize::MAX, 100);
        assert_eq!(subscriber.received, world.publisher.newest().get());
    });
}

#[test]
fn largest_records_wrap_around_the_ring() {
    for medium in [Medium::Memory, Medium::Wire] {
        let len_max = 1000;
        let mut world = World::new(0, len_max);
        assert_eq!(world.publisher.capacity(), 4096);
        world.subscribe(medium, 1, 1);
        for _ in 0..2000 {
            world.publish(1);
            world.tend();
            world.subscribers[0].way.complete();
            world.subscribers[0].read(usize::MAX, len_max);
        }
        world.settle();
        let Subscriber { received, lapped, damaged, .. } = world.subscribers[0];
        assert_eq!((received, lapped, damaged), (2000, 0, 0), "{medium:?}");
    }
}

/// The publisher leaves slow subscribers to the node.
#[test]
fn stalled_subscriber_is_left_to_the_node_and_taken_back_when_it_resumes() {
    let mut world = World::new(16 << 10, 100);
    world.subscribe(Medium::Memory, 1, 1);
    for _ in 0..100 {
        world.publish(30);
        assert!(world.topic.landings.owe(&world.subscribers[0].closed) || world.appended < 300);
    }
    for _ in 0..20 {
        world.tend();
        world.subscribers[0].read(usize::MAX, 100);
    }
    let told = world.subscribers[0].told();
    assert_eq!(told, world.appended);
    // Only the publisher writes now.
    world.publish(5);
    world.subscribers[0].read(usize::MAX, 100);
    assert_eq!(world.subscribers[0].told(), told + 5);
}

/// On a path that breaks again and again, earlier arrivals count.
#[test]
fn batches_to_a_subscriber_far_behind_grow_as_they_arrive() {
    let mut world = World::new(8 << 20, 100);
    world.publish(70_000);
    world.subscribe(Medium::Wire, 1, 1);
    let way = world.subscribers[0].way.clone();
    let (min, max) = (limits::LOG_BATCH_LEN_MIN, limits::LOG_BATCH_LEN_MAX);
    let batches = || way.0.lock().batches.clone();
    let in_first_turn = batches();
    assert_eq!(in_first_turn.len(), limits::LOG_BATCHES_MAX, "as many as may be in flight");
    let mut turns = 0;
    while world.subscribers[0].told() < 70_000 {
        world.tend();
        world.subscribers[0].way.complete();
        world.subscribers[0].read(usize::MAX, 100);
        turns += 1;
        assert!(turns < 100);
    }
    let (mut len_max, mut under_way) = (min, 0);
    for len in batches() {
        assert!(len <= len_max, "{len} after {len_max}");
        under_way += 1;
        if under_way == limits::LOG_BATCHES_MAX {
            (len_max, under_way) = ((2 * len_max).min(max), 0);
        }
    }
    assert!(batches().iter().any(|len| *len > max - 200), "they reach full length");
    let Subscriber { received, lapped, damaged, .. } = world.subscribers[0];
    assert_eq!((received, lapped, damaged), (70_000, 0, 0));
}

#[test]
fn batches_grow_while_they_have_full_length() {
    let geometry = LogGeometry::new(32 << 20, 100).unwrap();
    let mut pace = Pace::new(&geometry, false, false);
    let (min, max) = (limits::LOG_BATCH_LEN_MIN as u64, limits::LOG_BATCH_LEN_MAX as u64);
    assert_eq!(pace.len, min);
    let arrived = |pace: &mut Pace, len| pace.arrived(FrameSpan { from: 1000, to: 1000 + len });
    for len in [0, 16 << 10, min / 2] {
        arrived(&mut pace, len);
        assert_eq!(pace.len, min, "after {len}");
    }
    for _ in 0..10 {
        let before = pace.len;
        // Batches begun before count no more.
        (0..limits::LOG_BATCHES_MAX).for_each(|_| arrived(&mut pace, before));
        assert_eq!(pace.len, (2 * before).min(max));
    }
    // The longest record fits one batch.
    let pace = Pace::new(&LogGeometry::new(32 << 20, 4 << 20).unwrap(), false, false);
    assert_eq!((pace.len, pace.len_max), ((4 << 20) + 24, (4 << 20) + 24));
    // No completion says that a batch has arrived.
    for len_max in [100, 64 << 10, 4 << 20] {
        let pace = Pace::new(&LogGeometry::new(32 << 20, len_max).unwrap(), false, true);
        assert_eq!((pace.len, pace.len_max), (min, min), "records of up to {len_max} bytes");
    }
}

/// There each WRITE is one packet, up to a number: only a long record makes a longer batch, not the declared maximum.
#[test]
fn where_writes_may_be_lost_only_a_long_record_makes_a_long_batch() {
    let short = limits::LOG_BATCH_LEN_MIN;
    for (declared, len_max) in [(64 << 10, 300), (64 << 10, 64 << 10), (1 << 20, 100), (256 << 10, 256 << 10)]
    {
        let mut world = World::new(8 << 20, declared);
        world.len_max = len_max;
        while head(world.topic.registration.region()).end < 4 << 20 {
            world.publish(10);
        }
        // Nothing is lost.
        world.subscribe(Medium::Lossy(u64::MAX), 1, 1);
        for _ in 0..10 {
            world.tend();
            world.publish(2);
            world.subscribers[0].way.complete();
            world.subscribers[0].read(usize::MAX, len_max);
        }
        world.settle();
        let Subscriber { way, received, lapped, damaged, .. } = &world.subscribers[0];
        assert_eq!((*received, *lapped, *damaged), (world.appended, 0, 0), "up to {len_max} of {declared}");
        let long = way.0.lock().batches.iter().copied().filter(|len| *len > short).collect::<Vec<_>>();
        // By itself, or after the unused rest of the ring.
        assert!(long.iter().all(|len| *len <= frame_len(len_max)), "up to {len_max} of {declared}: {long:?}");
        assert_eq!(!long.is_empty(), len_max > short, "up to {len_max} of {declared}");
    }
}

/// More than one copy: batches and turns are bounded, and every subscriber advances.
#[test]
fn long_ring_is_copied_in_parts_to_all_subscribers_in_turn() {
    let len_max = limits::LOG_COPY_LEN_MAX;
    for record_len in [200, 256 << 10] {
        let mut world = World::new(5 * len_max, record_len);
        let count = 4 * len_max / record_len;
        let payload = vec![7; record_len];
        world.publisher.publish_batch((0..count).map(|_| payload.as_slice())).unwrap();
        let end = head(world.topic.registration.region()).end;
        let end = usize::try_from(end).unwrap();
        (0..3).for_each(|seed| world.subscribe(Medium::Memory, 1, seed));
        let copied = |world: &World| {
            let mut of_each = world.subscribers.iter().map(|it| it.way.0.lock().batches.iter().sum());
            [(); 3].map(|()| of_each.next().unwrap())
        };
        let mut before: [usize; 3] = copied(&world);
        assert!(before.iter().all(|copied| *copied > len_max / 2 && *copied <= 2 * len_max), "{before:?}");
        let mut turns = 0;
        while before != [end; 3] {
            world.tend();
            let now = copied(&world);
            let in_turn = now.iter().sum::<usize>() - before.iter().sum::<usize>();
            assert!(in_turn > 0 && in_turn <= len_max + len_max / 2, "{in_turn} bytes");
            let apart = now.iter().max().unwrap() - now.iter().min().unwrap();
            assert!(apart <= len_max + len_max / 2, "a subscriber falls behind: {now:?}");
            (before, turns) = (now, turns + 1);
        }
        assert!(turns >= 6, "{turns} turns");
        for Subscriber { way, closed, target, .. } in &world.subscribers {
            assert!(way.0.lock().batches.iter().all(|len| *len <= len_max));
            assert!(!world.topic.landings.owe(closed));
            let repository = world.topic.registration.region();
            let mut offsets = (RING_OFFSET..RING_OFFSET + end).step_by(WORD);
            assert!(offsets.all(|offset| target.load(offset) == repository.load(offset)));
        }
    }
}
