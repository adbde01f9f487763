//! Writers that are killed after each word that they store, and what another one finds.

mod feeds;
mod logs;
mod states;
mod tables;

use std::sync::Arc;

use super::{Continued, Recover};
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::Geometry;
use crate::layout::header::StaticHeader;
use crate::memory::{Protection, Region, kill};
use crate::repository::Writer;
use crate::testkit::random::{Random, amount};

const TOPIC: TopicId = TopicId::new(7);
const CONTINUED: Continued = Continued { after: Sequence::NONE, until: None };

fn region(geometry: impl Into<Geometry>) -> (Arc<Region>, StaticHeader) {
    let geometry = geometry.into();
    let region = Region::allocate(geometry.region_len(), Protection::PeersRead).expect("memory");
    (Arc::new(region), geometry.static_header(Epoch::FIRST, TOPIC, 0))
}

/// The payload of a sequence, of up to this many bytes.
fn payload(sequence: u64, len_max: usize) -> Vec<u8> {
    let mut random = Random::new(sequence);
    let len = random.index(len_max + 1);
    (0..len).map(|_| random.next().to_le_bytes()[0]).collect()
}

/// The steps of a writer, each followed by a step of a reader that sees its memory.
trait Scenario {
    /// Begins.
    fn begin() -> Self;

    /// Publishes something, as the number says.
    fn publish(&mut self, number: u64);

    /// The newest sequence.
    fn newest(&self) -> u64;

    /// Receives everything, as a subscriber that outlives the writer, and checks it.
    fn receive(&mut self);

    /// Replaces the writer by one that continues its repository.
    fn recover(&mut self);

    /// Receives everything that a late subscriber can, and checks that it is what the newest sequence was published with, and before.
    fn check_held(&self);
}

/// Kills the writer of a scenario of this many steps after each word that it stores.
fn kill_after_each_word<S: Scenario>(steps: u64) {
    // The newest sequence after each step, and the words stored by then.
    let mut after: Vec<(u64, u64)> = Vec::new();
    let (words, ()) = kill::killed_after(u64::MAX, || {
        let mut scenario = S::begin();
        for step in 0..steps {
            after.push((scenario.newest(), kill::stored()));
            scenario.publish(step);
            scenario.receive();
        }
        after.push((scenario.newest(), kill::stored()));
    });
    let begun = after.first().map_or(0, |(_, stored)| *stored);
    println!("{} words in {steps} steps", words - begun);
    assert!(words - begun > 10 * steps, "{words} words are too few for a test");
    // A prime number, so that each place of each step is met, if not all of them.
    let stride = if amount(0, 1) == 1 { 1 } else { 3 };
    for killed_after in (begun..words).step_by(stride) {
        let mut step = 0;
        let mut scenario = kill::killed_after(killed_after, || {
            let mut scenario = S::begin();
            while step < steps {
                scenario.publish(step);
                if kill::is_dead() {
                    break;
                }
                step += 1;
                scenario.receive();
            }
            scenario
        })
        .1;
        // Subscribers may read before it is recovered, too.
        scenario.receive();
        scenario.recover();
        let newest = scenario.newest();
        let at = usize::try_from(step).expect("few");
        let possible = [after[at].0, after.get(at + 1).map_or(after[at].0, |(newest, _)| *newest)];
        assert!(
            (possible[0]..=possible[1]).contains(&newest),
            "{newest} after a kill at word {killed_after}: {possible:?}"
        );
        scenario.check_held();
        scenario.receive();
        for more in 0..8 {
            let before = scenario.newest();
            scenario.publish(1000 + more);
            assert!(scenario.newest() >= before, "sequences go on");
            scenario.receive();
            scenario.check_held();
        }
    }
}

/// Recovers a repository.
fn recovered<W: Recover>(
    region: &Arc<Region>,
    geometry: <W as Writer>::Geometry,
    line: &StaticHeader,
    until: Option<Sequence>,
) -> W {
    let continued = Continued { until, ..CONTINUED };
    W::recover(Arc::clone(region), geometry, line, &continued)
        .expect("a writer that was killed leaves a repository")
}
