//! A process that subscribes to all topics of two publishers, and accounts for each value until it is killed.

use std::time::{Duration, Instant};

use fabricast::{EventQueue, Node};

use super::account;
use super::publisher::Mark;
use super::support::role::Role;
use super::support::time::now;

/// Values of one topic between two of the others.
const AT_A_TIME: usize = 64;
/// Longer than any recovery: a subscriber that has not come so far by then says what it lacks.
pub(crate) const HOPELESS: Duration = Duration::from_secs(20);

/// A subscriber that has not come so far by then says where it stands.
const SLOW: Duration = Duration::from_secs(1);

/// What it was told to reach, of which publisher, and when it was told.
struct Goal {
    publisher: usize,
    mark: Mark,
    since: Instant,
    /// When it says next where it stands.
    due: Duration,
    /// How long its thread had waited for a processor then.
    starved: Duration,
}

/// Plays a subscriber. Its arguments: pull, push or block, the pause when there is nothing, microseconds, and the two publishers.
pub(crate) fn play(role: &Role) {
    let mut events = EventQueue::new().expect("a queue");
    let node = Node::builder().runtime_dir(&role.dir).events(events.sink()).open().expect("a node");
    let pause = Duration::from_micros(role.number(1) as u64);
    let mut topics = [2, 3].map(|target| account::open(&node, role.argument(target), role.argument(0)));
    role.say("ready");
    let mut goal: Option<Goal> = None;
    loop {
        let mut is_idle = true;
        for topic in topics.iter_mut().flatten() {
            let taken = (0..AT_A_TIME).take_while(|_| topic.take()).count();
            is_idle &= taken == 0;
        }
        if let Some(Goal { publisher, mark, since, due, starved }) = &mut goal {
            let behind: Vec<_> = topics[*publisher].iter().filter(|topic| !topic.has_reached(mark)).collect();
            if behind.is_empty() {
                role.say(since.elapsed().as_millis());
                goal = None;
            } else if since.elapsed() > *due {
                *due += SLOW;
                let told: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
                let behind: Vec<_> = behind.iter().map(|topic| topic.describe()).collect();
                let (elapsed, starved) = (since.elapsed(), time_starved() - *starved);
                eprintln!("after {elapsed:?}, {starved:?} of it without a processor: {behind:#?}, {told:#?}");
            } else if since.elapsed() > HOPELESS {
                let behind: Vec<_> = behind.iter().map(|topic| topic.describe()).collect();
                panic!("after {HOPELESS:?} {mark:?} of publisher {publisher} is not reached: {behind:#?}");
            }
        }
        let Some(command) = role.command_now() else {
            if is_idle {
                std::thread::park_timeout(pause);
            }
            continue;
        };
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["reach", publisher, ..] => {
                let publisher = publisher.parse().expect("a number");
                goal = Some(Goal {
                    publisher,
                    mark: mark_of(&words[2..]),
                    since: now(),
                    due: SLOW,
                    starved: time_starved(),
                });
            }
            ["counts"] => {
                let counts = topics.iter().flatten().map(|topic| topic.counts());
                let [received, lost] = counts.fold([0; 2], |[a, b], [c, d]| [a + c, b + d]);
                role.say(format!("{received} {lost}"));
            }
            ["close", publisher, ..] => {
                let publisher: usize = publisher.parse().expect("a number");
                let mark = mark_of(&words[2..]);
                let lines: Vec<_> = topics[publisher].iter().map(|topic| topic.close(&mark)).collect();
                role.say(lines.join("; "));
            }
            ["end"] => return,
            _ => panic!("what is {command:?}?"),
        }
    }
}

/// How long this thread has waited for a processor since it began.
fn time_starved() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(times.split(' ').nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// A mark, as a publisher reports it.
pub(crate) fn mark_of(words: &[&str]) -> Mark {
    let number = |at: usize| words[at].parse().expect("a number");
    Mark { epoch: number(0), newest: number(1), feed_epoch: number(2), event: number(3) }
}
