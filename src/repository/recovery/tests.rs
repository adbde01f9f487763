//! Writers that are killed after each word that they store, and what another one finds; and one that is killed after that.

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
use crate::testkit::random::{Printed, Random, amount};

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

/// The writers of a repository, one after another, by the newest sequence of each that is gone.
#[derive(Default)]
struct Lives(Vec<u64>);

impl Lives {
    /// The payload of a sequence: as long in each life, and of bytes that name it.
    fn payload(&self, sequence: u64, len_max: usize) -> Vec<u8> {
        let life = self.0.iter().filter(|newest| **newest < sequence).count();
        let name = u8::try_from(life).expect("few").wrapping_mul(0x35);
        payload(sequence, len_max).into_iter().map(|byte| byte ^ name).collect()
    }

    /// One is over.
    fn end(&mut self, newest: u64) {
        self.0.push(newest);
    }
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

/// Kills the writer of a scenario of this many steps after each word that it stores, and the next one after a few words.
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
        let (mut scenario, step) = killed::<S>(killed_after, steps);
        let newest = scenario.newest();
        let possible = [after[step].0, after.get(step + 1).map_or(after[step].0, |(newest, _)| *newest)];
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
        // Soon enough that what the first writer left unfinished is not overwritten yet.
        let soon = (words - begun) * STEPS_SOON / steps;
        let mut random = Random::new(killed_after);
        (0..amount(2, 10)).for_each(|_| kill_again::<S>(killed_after, steps, random.below(soon)));
    }
}

/// Steps of a second writer within which it is killed.
const STEPS_SOON: u64 = 5;

/// Runs a writer of a scenario of this many steps, kills it after this many words, and recovers what it leaves. Returns the step in which
/// it was killed, too.
fn killed<S: Scenario>(killed_after: u64, steps: u64) -> (S, usize) {
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
    (scenario, usize::try_from(step).expect("few"))
}

/// Kills the writer that continues, too, after this many words.
fn kill_again<S: Scenario>(killed_after: u64, steps: u64, again: u64) {
    let _printed = Printed::on_failure("kills after words", &[killed_after, again]);
    let (mut scenario, _) = killed::<S>(killed_after, steps);
    let mut newest = scenario.newest();
    kill::killed_after(again, || {
        for step in 0..2 * STEPS_SOON {
            newest = scenario.newest();
            scenario.publish(step);
            if kill::is_dead() {
                break;
            }
            scenario.receive();
        }
    });
    let published = scenario.newest();
    scenario.receive();
    scenario.recover();
    assert!((newest..=published).contains(&scenario.newest()), "{} after {newest}", scenario.newest());
    scenario.check_held();
    scenario.receive();
    scenario.publish(1);
    scenario.receive();
    scenario.check_held();
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
