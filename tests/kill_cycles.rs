//! Publishers and subscribers that are killed again and again under load, each at a random moment, and started again: all are
//! back soon, no value is wrong, each is received once or reported lost, and those that are never killed hold no more than before.
//!
//! Between two hosts, half of the cycles have a host that dies or stands still. Each of the last two tests is one host's part:
//!
//! ```text
//! tools/soft-roce run2 'kill_cycles --ignored --nocapture --exact publishers_of_a_host_that_dies' \
//!     'kill_cycles --ignored --nocapture --exact all_are_back_soon_after_a_host_has_died'
//! ```
//!
//! A host that dies is one whose wire carries nothing any more that it sends, and whose process is killed; the process starts again when
//! the wire is back. A host that stands still is one whose virtual machine does.
//!
//! FABRICAST_KILL_CYCLES is the number of cycles, SEED repeats a run.

#![expect(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    reason = "counts are small, publishers are two, answers of this program have their words"
)]

use std::time::Duration;

use fabricast::Node;

use self::driver::{Driver, Near, PUBLISHERS, Way, check_directory};
use self::support::long::is_long;
use self::support::peer::Peer;
use self::support::role::Role;

#[path = "kill_cycles/account.rs"]
mod account;
#[path = "kill_cycles/driver.rs"]
mod driver;
#[cfg(feature = "verbs")]
#[path = "kill_cycles/far.rs"]
mod far;
#[path = "kill_cycles/ledger.rs"]
mod ledger;
#[path = "kill_cycles/publisher.rs"]
mod publisher;
#[path = "kill_cycles/subscriber.rs"]
mod subscriber;
#[cfg(test)]
mod support;
#[path = "kill_cycles/value.rs"]
mod value;

/// Cycles, unless FABRICAST_KILL_CYCLES or FABRICAST_TEST_LONG overrides it.
const CYCLES: usize = 40;
const CYCLES_LONG: usize = 1000;
/// The most cycles before the processes that are never killed are asked for the first time what they hold.
const WARM_UP: usize = 10;
/// The pause of a publisher after four values, and of a subscriber that has nothing to do, microseconds.
const PAUSE_US: u64 = 300;
/// How soon all are back: an answer that a subscriber awaits has five seconds; two more. Usually it takes a tenth of a second.
const BACK: Duration = Duration::from_secs(7);
/// Memory that a process may hold more than before, KiB.
const GROWTH_MAX: u64 = 4096;

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    match role.name.as_str() {
        "publisher" => publisher::play(&role),
        _ => subscriber::play(&role),
    }
}

/// The cycles, of so many, before the processes that are never killed are asked for the first time what they hold.
fn warm_up(cycles: usize) -> usize {
    WARM_UP.min(cycles / 2).max(1)
}

fn cycles(default: usize) -> usize {
    std::env::var("FABRICAST_KILL_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn all_are_back_soon_after_each_kill() {
    let dir = tempfile::tempdir().expect("a directory");
    let near = Near::new(dir.path(), PUBLISHERS.map(|_| "shm".to_owned()), PAUSE_US);
    let mut driver = Driver::new(near, dir.path(), PAUSE_US);
    let cycles = cycles(if is_long() { CYCLES_LONG } else { CYCLES });
    let mut held = None;
    for cycle in 0..cycles {
        let moment = driver.moment(30_000);
        std::thread::park_timeout(moment);
        match driver.random.below(6) {
            victim @ 0..3 => driver.kill_subscriber(victim, Way::Killed, Peer::kill),
            _ => driver.kill_publisher(Way::Killed),
        }
        if cycle + 1 == warm_up(cycles) {
            held = Some(driver.held());
        }
    }
    driver.check_held(&held.expect("there are cycles"), GROWTH_MAX);
    let (mut outcome, near) = driver.finish();
    near.end();
    outcome.print(cycles);
    // The remains of the last ones that were killed.
    drop(Node::builder().name("last").expect("a name").runtime_dir(dir.path()).open().expect("a node"));
    check_directory(dir.path());
    outcome.check(BACK);
}

/// Of two emulated hosts.
#[cfg(feature = "verbs")]
mod two_hosts {
    use std::path::Path;

    use super::far::{Far, in_silence, serve};
    use super::*;

    const DIR: &str = "/tmp/fabricast-kill-cycles";
    const CYCLES: usize = 8;
    const PAUSE_US: u64 = 100_000;
    /// A dead host is noticed within two seconds, an answer that a subscriber awaits has five; two more.
    const BACK: Duration = Duration::from_secs(9);

    pub(super) fn host_of_publishers() {
        std::fs::create_dir_all(DIR).expect("a directory");
        serve(Path::new(DIR), PAUSE_US);
    }

    pub(super) fn host_of_subscribers() {
        let dir = Path::new(DIR);
        std::fs::create_dir_all(dir).expect("a directory");
        let mut driver = Driver::new(Far::connect(), dir, PAUSE_US / 5);
        let (cycles, mut held) = (cycles(CYCLES), None);
        for cycle in 0..cycles {
            let moment = driver.moment(200_000);
            std::thread::park_timeout(moment);
            let victim = driver.random.below(3);
            match cycle % 8 {
                1 | 5 => driver.kill_publisher(Way::HostFreezes),
                3 => driver.kill_publisher(Way::HostDies),
                7 => driver.kill_subscriber(victim, Way::HostDies, |peer| in_silence(|| peer.kill())),
                0 | 4 => driver.kill_publisher(Way::Killed),
                _ => driver.kill_subscriber(victim, Way::Killed, Peer::kill),
            }
            if cycle + 1 == warm_up(cycles) {
                held = Some(driver.held());
            } else if (cycle + 1).is_multiple_of(WARM_UP) {
                println!("held after {} cycles {:?}", cycle + 1, driver.held());
            }
        }
        driver.check_held(&held.expect("there are cycles"), GROWTH_MAX);
        let (mut outcome, far) = driver.finish();
        far.end();
        outcome.print(cycles);
        outcome.check(BACK);
    }
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn publishers_of_a_host_that_dies() {
    two_hosts::host_of_publishers();
}

#[cfg(feature = "verbs")]
#[test]
#[ignore = "needs another host: tools/soft-roce run2"]
fn all_are_back_soon_after_a_host_has_died() {
    two_hosts::host_of_subscribers();
}
