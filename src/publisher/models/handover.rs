//! Models of landing regions that change hands between the publisher and its node.

use std::collections::BTreeSet;
use std::sync::Arc;

use loom::thread;

use super::landings::{publish, reader, receive, writer};
use super::{landing, repository};
use crate::fabric::WakeQueue;
use crate::id::KindOptions;
use crate::publisher::CopyBudget;
use crate::publisher::handover::{Handover, Landings as _};
use crate::publisher::state_landing::StateLanding;
use crate::repository::{Reader as _, Writer as _};
use crate::sync::model::{Preemptions, check};

/// Two threads. The node accepts a landing region, and tends it once, while two values are published; the publisher takes the region, or
/// leaves it to the node. Then the node does what it was woken for, or has put off: the subscriber has the last value.
pub fn last_value_arrives_in_a_landing_region_that_is_new() {
    check_handover(false);
}

/// The same with a region that the node has settled before, so that only the publisher can wake it.
pub fn last_value_arrives_in_a_landing_region_that_is_settled() {
    check_handover(true);
}

fn check_handover(is_settled: bool) {
    check(Preemptions { quick: Some(1), long: Some(2) }, move || {
        let mut writer = writer();
        publish(&mut writer);
        let woken = Arc::new(WakeQueue::with_capacity(4).unwrap());
        let repository = repository(writer.region(), writer.geometry());
        let handover = Arc::new(Handover::<StateLanding>::new(repository, woken.keyed(1)));
        let (target, exposed) =
            landing(writer.geometry().region_len(), KindOptions::default(), writer.last());
        let mut reader = reader(&writer);
        let budget = CopyBudget::new();
        let mut exposed = Some(exposed);
        if is_settled {
            handover.accept(exposed.take().unwrap(), &budget).unwrap();
            settle(&handover, &woken, &budget, true);
        }
        loom::explore();
        let publishing = thread::spawn({
            let handover = Arc::clone(&handover);
            move || {
                let mut landings = Vec::new();
                for _ in 0..2 {
                    let commit = publish(&mut writer);
                    handover.deliver(&mut landings, &commit);
                }
            }
        });
        if let Some(exposed) = exposed {
            handover.accept(exposed, &budget).unwrap();
        }
        receive(&mut reader, &target);
        let is_due = handover.tend(&budget).again_ns.is_some();
        publishing.join().unwrap();
        settle(&handover, &woken, &budget, is_due);
        receive(&mut reader, &target);
        assert_eq!(reader.last().get(), 3, "the last value arrives");
    });
}

/// Does what the node was woken for, or has put off, until there is nothing left.
fn settle(handover: &Handover<StateLanding>, woken: &WakeQueue, budget: &CopyBudget, mut is_due: bool) {
    loop {
        let mut keys = BTreeSet::new();
        woken.take(&mut keys);
        if !is_due && keys.is_empty() {
            break;
        }
        budget.refill();
        is_due = handover.tend(budget).again_ns.is_some();
    }
}
