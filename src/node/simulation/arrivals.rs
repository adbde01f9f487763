//! Push subscribers over a wire, which the publisher's writes wake.

use super::*;
use crate::payload::Raw;
use crate::subscriber::{AnySubscriber, NoticePath, WaitSet};

/// How long nothing is published before a set counts on wake-ups only: longer than what arrived is checked for damage.
const QUIET_TURNS: usize = 30;
const QUIET_NS: u64 = 100_000_000;
/// Waits in a row that find no subscriber ready.
const EMPTY_WAITS: usize = 3;

/// Push subscribers that one set waits for.
struct Pushed {
    world: Arc<World>,
    set: WaitSet,
    subscribers: Vec<AnySubscriber<Raw>>,
}

impl Pushed {
    fn new(world: &Arc<World>, node: &Node, topics: &[&str]) -> Self {
        let mut set = WaitSet::new().unwrap();
        // It relies on wake-ups from now on.
        set.waiter();
        let open = |topic: &&str| {
            let target = format!("shm:publishing/{topic}");
            node.any_subscriber::<Raw>(target.as_str()).delivery(Delivery::Push).open().expect("a grant")
        };
        let mut subscribers: Vec<_> = topics.iter().map(open).collect();
        subscribers.iter_mut().enumerate().for_each(|(key, subscriber)| set.add(subscriber, key));
        Self { world: Arc::clone(world), set, subscribers }
    }

    /// One turn of the world. The subscribers that are ready receive everything. Returns whether there was one.
    fn turn(&mut self) -> bool {
        self.world.turn();
        let ready = self.set.wait(Duration::ZERO).unwrap().to_vec();
        for key in &ready {
            while self.subscribers[*key].try_receive_ref().expect("the topic is there").is_some() {}
        }
        !ready.is_empty()
    }

    /// Lets everything settle: from now on only wake-ups make a subscriber ready.
    fn settle(&mut self) {
        for _ in 0..QUIET_TURNS {
            self.turn();
            self.world.network.clock().advance(QUIET_NS);
        }
        let mut empty = 0;
        for _ in 0..TURNS {
            empty = if self.turn() { 0 } else { empty + 1 };
            if empty == EMPTY_WAITS {
                assert!(self.subscribers.iter().all(|it| it.notice_path() == NoticePath::Immediate));
                return;
            }
        }
        panic!("a subscriber is ready again and again, though nothing is published");
    }

    fn last(&self) -> Vec<u64> {
        self.subscribers.iter().map(|subscriber| subscriber.last().get()).collect()
    }
}

#[test]
fn set_of_pushed_subscribers_is_woken_for_every_value_and_for_nothing_else() {
    each_seed(SEEDS / 6, |seed| {
        let world = World::new(seed, Reach::Fetched);
        let publishing = world.node("publishing", true);
        let mut state = publishing.state_publisher::<u64>("state").open().unwrap();
        let mut log = publishing.log_publisher::<u64>("log").open().unwrap();
        let mut table = publishing.table_publisher::<u64, u64>("table").open().unwrap();
        let subscribing = world.node("subscribing", false);
        let mut pushed = Pushed::new(&world, &subscribing, &["state", "log", "table"]);
        let (mut random, mut published) = (Random::new(seed), [0; 3]);
        for _ in 0..8 {
            pushed.settle();
            assert_eq!(pushed.last(), published);
            for _ in 0..1 + random.below(12) {
                match random.below(4) {
                    0 => published[0] = state.publish(&seed).unwrap().get(),
                    1 => published[1] = log.publish(&seed).unwrap().get(),
                    2 => published[2] = table.put(&random.below(3), &seed).unwrap().get(),
                    _ => (0..random.below(20)).for_each(|_| _ = pushed.turn()),
                }
            }
            let has_all = (0..TURNS).any(|_| {
                pushed.turn();
                pushed.last() == published
            });
            assert!(has_all, "{:?} of {published:?} without another wake-up", pushed.last());
        }
    });
}
