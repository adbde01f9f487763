use std::os::fd::AsFd;
use std::sync::Arc;

use super::*;
use crate::limits;
use crate::testkit::clock::VirtualClock;
use crate::testkit::random::{Random, amount, each_seed};

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;

/// A node's time stamps on a host whose clock may be set.
struct Host {
    clock: Arc<VirtualClock>,
    keeper: Timekeeper,
    /// The last stamp of a publisher.
    last_ns: u64,
    news: Vec<i64>,
}

impl Host {
    fn new() -> Self {
        let clock = Arc::new(VirtualClock::default());
        let keeper = Timekeeper::new(Arc::clone(&clock) as _);
        Self { clock, keeper, last_ns: 0, news: Vec::new() }
    }

    /// Lets time pass as a node does.
    fn run(&mut self, ns: u64) {
        let until_ns = self.clock.monotonic_ns() + ns;
        while self.clock.monotonic_ns() < until_ns {
            let left_ns = until_ns - self.clock.monotonic_ns();
            self.clock.advance(left_ns.min(limits::HEARTBEAT_INTERVAL_NS));
            self.keeper.steer(|correction| self.news.extend(correction.news_ns));
        }
    }

    /// The stamp of a value.
    fn publish(&mut self) -> u64 {
        self.last_ns = self.last_ns.max(self.keeper.now_ns());
        self.last_ns
    }

    /// How far the host's clock is ahead of the stamps.
    fn ahead_ns(&self) -> i64 {
        self.clock.realtime_ns().wrapping_sub(self.keeper.now_ns()).cast_signed()
    }
}

#[test]
fn monotonic_time_advances() {
    let before = SystemClock.monotonic_ns();
    SystemClock.pause(Duration::from_millis(2));
    assert!(SystemClock.monotonic_ns() - before >= 2_000_000);
}

#[test]
fn a_pause_ends_when_its_handle_is_readable() {
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let before = SystemClock.monotonic_ns();
    SystemClock.pause_until(event.as_fd(), Duration::from_millis(2));
    assert!(SystemClock.monotonic_ns() - before >= 2_000_000);
    rustix::io::write(&event, &1_u64.to_le_bytes()).unwrap();
    SystemClock.pause_until(event.as_fd(), Duration::from_secs(600));
    assert!(SystemClock.monotonic_ns() - before < 300_000_000_000);
}

#[test]
fn realtime_is_after_2020() {
    assert!(SystemClock.realtime_ns() > 1_577_836_800_000_000_000);
}

#[test]
fn time_stamps_follow_a_clock_that_is_set_forward_at_once() {
    let mut host = Host::new();
    let before_ns = host.publish();
    host.run(5 * SECOND);
    host.clock.set((50 * 365 * 24 * HOUR).cast_signed());
    // The node has not noticed yet.
    let meanwhile_ns = host.publish();
    assert_eq!(meanwhile_ns - before_ns, 5 * SECOND);
    host.run(limits::HEARTBEAT_INTERVAL_NS);
    assert_eq!(host.ahead_ns(), 0);
    let after_ns = host.publish();
    assert!(after_ns - meanwhile_ns > 49 * 365 * 24 * HOUR);
    host.run(3 * SECOND);
    let ages = [before_ns, meanwhile_ns, after_ns].map(|stamp_ns| host.keeper.age_ns(stamp_ns));
    assert_eq!(ages, [8 * SECOND + SECOND / 10, 3 * SECOND + SECOND / 10, 3 * SECOND]);
    assert_eq!(host.news, [(50 * 365 * 24 * HOUR).cast_signed()]);
}

#[test]
fn time_stamps_follow_a_clock_that_is_set_back_without_going_back() {
    let mut host = Host::new();
    host.run(SECOND);
    host.clock.set(-60 * SECOND.cast_signed());
    let first_ns = host.publish();
    let mut last_ns = first_ns;
    for second in 1..=6000_u64 {
        host.run(SECOND);
        let stamp_ns = host.publish();
        assert_eq!(stamp_ns - last_ns, SECOND - SECOND / 100, "second {second}");
        let age_ns = host.keeper.age_ns(first_ns);
        assert!(
            (second * SECOND / 100 * 99..=second * SECOND).contains(&age_ns),
            "{age_ns} after {second} s"
        );
        last_ns = stamp_ns;
    }
    assert_eq!(host.ahead_ns(), 0);
    host.run(SECOND);
    assert_eq!(host.publish() - last_ns, SECOND);
    assert_eq!(host.news, [-60 * SECOND.cast_signed()], "once");
}

#[test]
fn short_differences_are_corrected_by_degrees() {
    for set_ns in [900_000_000, -900_000_000, 50_000, -50_000_i64] {
        let mut host = Host::new();
        host.clock.set(set_ns);
        host.run(SECOND);
        assert_eq!(host.ahead_ns(), set_ns - set_ns.clamp(-10_000_000, 10_000_000));
        host.run(100 * SECOND);
        assert_eq!((host.ahead_ns(), host.news.as_slice()), (0, [].as_slice()));
    }
    let mut host = Host::new();
    host.clock.set(limits::CLOCK_TOLERANCE_NS.cast_signed());
    host.run(SECOND);
    assert_eq!(
        host.ahead_ns(),
        limits::CLOCK_TOLERANCE_NS.cast_signed(),
        "clocks are not read at one moment"
    );
}

#[test]
fn time_of_a_suspension_has_passed() {
    let mut host = Host::new();
    let before_ns = host.publish();
    host.run(SECOND);
    host.clock.suspend(8 * HOUR);
    host.run(SECOND);
    assert_eq!(host.ahead_ns(), 0);
    assert_eq!(host.keeper.age_ns(before_ns), 8 * HOUR + 2 * SECOND);
    assert!(host.publish() > before_ns + 8 * HOUR);
    assert!(host.news.is_empty(), "nobody has set the clock");
}

#[test]
fn node_without_publishers_begins_with_the_clock_of_the_host() {
    let host = Host::new();
    host.clock.set(-5 * HOUR.cast_signed());
    host.keeper.restart();
    assert_eq!(host.ahead_ns(), 0);
}

#[test]
fn stamps_of_an_earlier_process_are_continued() {
    for set_ns in [0, 5 * HOUR.cast_signed(), -2 * SECOND.cast_signed()] {
        let mut host = Host::new();
        host.run(SECOND);
        let before_ns = host.publish();
        let timeline = host.keeper.timeline();
        // While no process runs.
        host.clock.set(set_ns);
        host.clock.advance(SECOND);
        host.keeper.restart();
        host.keeper.adopt(timeline);
        assert_eq!(host.keeper.age_ns(before_ns), SECOND, "{set_ns}");
        assert!(host.publish() > before_ns);
    }
    // Too far ahead of the clock.
    let host = Host::new();
    let timeline = host.keeper.timeline();
    host.clock.set(-2 * HOUR.cast_signed());
    host.keeper.restart();
    host.keeper.adopt(timeline);
    assert_eq!(host.ahead_ns(), 0);
}

/// Whatever is done to the clock, no stamp is before an earlier one, and ages are exact to the percent by which stamps follow.
#[test]
fn order_and_ages_survive_any_steps() {
    each_seed(amount(40, 2000), |seed| {
        let (mut random, mut host) = (Random::new(seed), Host::new());
        // Stamps, and when they were made, suspensions included.
        let mut made = Vec::new();
        let passed_ns = |host: &Host| host.clock.monotonic_ns() + host.clock.suspended_ns();
        for _ in 0..200 {
            match random.below(12) {
                0 => host.clock.set(random.below(3 * HOUR).cast_signed() - HOUR.cast_signed()),
                1 => host.clock.set(random.below(3 * SECOND).cast_signed() - SECOND.cast_signed()),
                2 => {
                    host.clock.suspend(SECOND + random.below(HOUR));
                    // A value from before the node has noticed that counts as one from before the suspension.
                    host.run(limits::HEARTBEAT_INTERVAL_NS);
                }
                3..=6 => host.run(random.below(100 * SECOND)),
                _ => host.run(random.below(SECOND / 2)),
            }
            // A value right after a step comes before the node has noticed it.
            let stamp_ns = host.publish();
            assert!(made.last().is_none_or(|(last_ns, _)| *last_ns <= stamp_ns));
            host.run(limits::HEARTBEAT_INTERVAL_NS);
            made.push((stamp_ns, passed_ns(&host) - limits::HEARTBEAT_INTERVAL_NS));
            let leaps = host.keeper.timeline().leaps.map(|leap| leap.from_ns);
            let known_ns = leaps.into_iter().min().unwrap_or(0);
            for (stamp_ns, at_ns) in made.iter().rev().take(20).filter(|(stamp_ns, _)| *stamp_ns >= known_ns)
            {
                let (age_ns, true_ns) = (host.keeper.age_ns(*stamp_ns), passed_ns(&host) - at_ns);
                // While stamps stand still, because they may not go back, they are up to a correction late.
                let slack_ns = true_ns / 100 + limits::HEARTBEAT_INTERVAL_NS / 50;
                assert!(age_ns.abs_diff(true_ns) <= slack_ns, "{age_ns} instead of {true_ns}");
            }
        }
    });
}
