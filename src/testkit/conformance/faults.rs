//! Topics under faults, on the simulated fabric: every accepted value is right, and everything recovers afterwards.

use std::sync::Arc;

use super::kind::ConformingKind;
use super::sim::SimHarness;
use super::topics::World;
use super::{Harness, for_each_kind};
use crate::fabric::Fabric;
use crate::id::Delivery;
use crate::testkit::fabric::Reach;
use crate::testkit::fault::{Fault, FaultyFabric, Running, Script};
use crate::testkit::random::{Printed, each_seed};

/// Seeds for the scripts that mix all kinds of faults.
const MIXED_SEEDS: u64 = 200;
const REACHES: [Reach; 2] = [Reach::Mapped, Reach::Fetched];
const DELIVERIES: [Delivery; 2] = [Delivery::Pull, Delivery::Push];

/// Runs a publisher and two subscribers, one of them with faults, and returns the faults that happened.
fn run<K: ConformingKind>(
    seed: u64,
    (reach, delivery): (Reach, Delivery),
    script: &Script,
) -> Vec<(Fault, u64)> {
    let _printed = Printed::on_failure("script", &(seed, reach, delivery, script));
    let running = Arc::new(Running::new(script));
    let harness = SimHarness::new(seed, reach);
    let faulty = || -> Box<dyn Fabric> { Box::new(FaultyFabric::new(harness.fabric(), &running)) };
    // The publisher has faults of writes, the subscriber all others.
    let publishing = if delivery == Delivery::Push { faulty() } else { harness.fabric() };
    let mut world = World::<K>::over(&*publishing, &harness, delivery, seed);
    world.subscribe_over(faulty());
    world.subscribe_over(harness.fabric());
    world.subscribers.iter_mut().for_each(|subscriber| subscriber.has_faults = true);
    for quiet in [10, 2, 1, 30] {
        world.run(150, quiet);
        if running.is_over() {
            break;
        }
    }
    running.end();
    world.run(20, 5);
    world.settle_with_one_more();
    running.happened()
}

fn each_kind_of_fault_alone_harms_nothing_for_good<K: ConformingKind>() {
    for fault in Fault::EACH {
        let mut happened = 0;
        each_seed(2, |seed| {
            // Rarely, now and then, or three times at the beginning.
            for script in [(10, 60), (4, 60), (1, 3)].map(|(every, end)| Script::repeated(fault, every, end))
            {
                for way in REACHES.into_iter().flat_map(|reach| DELIVERIES.map(|delivery| (reach, delivery)))
                {
                    happened += run::<K>(seed, way, &script).len();
                }
            }
        });
        assert!(happened > 0, "{fault:?} never happened");
    }
}

fn damage_in_every_batch_is_reported_and_never_accepted<K: ConformingKind>() {
    for fault in [Fault::FlipBit { word: 12, bit: 3 }, Fault::ReplayOld, Fault::TearRead { at: 80 }] {
        each_seed(4, |seed| {
            run::<K>(seed, (Reach::Fetched, Delivery::Pull), &Script::repeated(fault, 1, 200));
        });
    }
}

fn faults_of_all_kinds_together_harm_nothing_for_good<K: ConformingKind>() {
    each_seed(MIXED_SEEDS, |seed| {
        let reach = REACHES[usize::from(seed % 2 == 0)];
        let delivery = DELIVERIES[usize::from(seed % 4 < 2)];
        run::<K>(seed, (reach, delivery), &Script::mixed(seed, 12, 120));
    });
}

macro_rules! fault_suite {
    (@kinds; $($kind:ident: $topic:ident, $behaviours:tt;)*) => {
        $(mod $kind {
            use crate::repository::$kind::$topic;

            #[test]
            fn each_kind_of_fault_alone_harms_nothing_for_good() {
                super::each_kind_of_fault_alone_harms_nothing_for_good::<$topic>();
            }

            #[test]
            fn damage_in_every_batch_is_reported_and_never_accepted() {
                super::damage_in_every_batch_is_reported_and_never_accepted::<$topic>();
            }

            #[test]
            fn faults_of_all_kinds_together_harm_nothing_for_good() {
                super::faults_of_all_kinds_together_harm_nothing_for_good::<$topic>();
            }
        })*
    };
}

for_each_kind! { [fault_suite] }
