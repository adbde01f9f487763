//! Publishers and subscribers in processes of their own that are killed, stopped and restarted: the dead delay no living process,
//! and their remains are cleared away.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::Duration;

use fabricast::{
    ControlError, ErrorChain, FabricError, Node, NodeError, Raw, ReceiveError, StatePublisher,
    StateSubscriber, SubscriberError,
};
use rustix::process::Signal;

use self::support::pattern::{Pattern, Random, is_whole};
use self::support::peer::{Holdings, Peer};
use self::support::role::Role;
use self::support::time::{PATIENCE, now, wait_until};

#[cfg(test)]
mod support;

const LEN_MAX: usize = 1024;
/// Values published between two polls for a command.
const PUBLISHES_AT_A_TIME: u32 = 64;
/// How often a process is killed in a row.
const CYCLES: usize = 30;

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    match role.name.as_str() {
        "publisher" => play_publisher(&role),
        "subscriber" => play_subscriber(&role),
        "watcher" => play_watcher(&role),
        "desk" => play_desk(&role),
        name => panic!("there is no role {name}"),
    }
}

/// A publisher that says `busy` instead of `ready` when its name is in use.
fn play_publisher(role: &Role) {
    let builder = Node::builder().name(role.argument(0)).expect("a name").runtime_dir(&role.dir);
    let node = match builder.open() {
        Ok(node) => node,
        Err(NodeError::Fabric(FabricError::NameInUse { .. })) => return role.say("busy"),
        Err(error) => panic!("{error}"),
    };
    let mut publisher = node.state_publisher::<Raw>("t").payload_len_max(LEN_MAX).open().expect("a topic");
    let mut pattern = Pattern::new(LEN_MAX);
    let mut running = false;
    role.say("ready");
    loop {
        let command = if running { role.command_now() } else { Some(role.command()) };
        let Some(command) = command else {
            (0..PUBLISHES_AT_A_TIME).for_each(|_| publish(&mut publisher, &mut pattern));
            continue;
        };
        match command.as_str() {
            "publish" => publish(&mut publisher, &mut pattern),
            "run" => running = true,
            "halt" => running = false,
            "newest" => {}
            "counts" => {
                role.say(format!("{} {}", publisher.pull_subscribers(), publisher.push_subscribers()));
                continue;
            }
            "end" => return,
            command => {
                let timeout = Duration::from_millis(command.parse().expect("a command, or how long to dial"));
                let dialled = node.dial_subscriber("t", "shm:desk", timeout);
                role.say(
                    dialled
                        .err()
                        .map_or_else(|| "dialled".to_owned(), |error| ErrorChain(&error).to_string()),
                );
                continue;
            }
        }
        role.say(publisher.newest());
    }
}

fn publish(publisher: &mut StatePublisher<Raw>, pattern: &mut Pattern) {
    publisher.publish(pattern.value(publisher.newest().get() + 1)).expect("it fits");
}

/// A subscriber that polls all the time, unless it waits for a command first.
fn play_subscriber(role: &Role) {
    let node = Node::builder().runtime_dir(&role.dir).open().expect("a node");
    let target = format!("shm:{}/t", role.argument(0));
    let builder = node.state_subscriber::<Raw>(&target).timeout(PATIENCE);
    let builder = if role.argument(1) == "push" { builder.push() } else { builder.pull() };
    let mut subscriber = builder.open().expect("a subscription");
    let mut following = role.argument(2) == "following";
    role.say("ready");
    loop {
        let command = if following { role.command_now() } else { Some(role.command()) };
        let Some(command) = command else {
            take(&mut subscriber).expect("a value or none");
            continue;
        };
        match command.split_once(' ').unwrap_or((command.as_str(), "")) {
            ("receive", sequence) => {
                let sequence = sequence.parse().expect("a number");
                while subscriber.last().get() < sequence {
                    take(&mut subscriber).expect("a value or none");
                }
            }
            ("newest", _) => {}
            ("halt", _) => following = false,
            ("end", _) => {
                let how = loop {
                    match take(&mut subscriber) {
                        Ok(()) => {}
                        Err(ReceiveError::Gone { .. }) => break "gone",
                        Err(ReceiveError::Ended { .. }) => break "ended",
                        Err(error) => panic!("{error}"),
                    }
                };
                following = false;
                role.say(format!("{how} {}", subscriber.last()));
                continue;
            }
            ("leave", _) => return,
            command => panic!("what is {command:?}?"),
        }
        role.say(subscriber.last());
    }
}

/// A node that subscribes to one publisher after another.
fn play_watcher(role: &Role) {
    let node = Node::builder().runtime_dir(&role.dir).open().expect("a node");
    let mut subscriber = None;
    role.say("ready");
    loop {
        let command = role.command();
        if command == "wait" {
            let mut subscriber = subscriber.take().expect("it has subscribed");
            let error = loop {
                match take(&mut subscriber) {
                    Ok(()) => {}
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, ReceiveError::Gone { .. }), "{error}");
            drop(subscriber);
            role.say("gone");
        } else {
            let builder = node.state_subscriber::<Raw>("shm:p/t").timeout(PATIENCE);
            let builder = if command == "push" { builder.push() } else { builder.pull() };
            subscriber = Some(builder.open().expect("a subscription"));
            role.say("subscribed");
        }
    }
}

/// A node that publishers dial. It receives from the last one accepted.
fn play_desk(role: &Role) {
    let builder = Node::builder().name("desk").expect("a name").runtime_dir(&role.dir);
    let node = builder.open().expect("a node");
    let builder = node.state_listener::<Raw>("t").timeout(PATIENCE);
    let builder = if role.argument(0) == "push" { builder.push() } else { builder.pull() };
    let listener = builder.open().expect("a listener");
    let mut last = None;
    role.say("ready");
    loop {
        let command = role.command();
        if command == "accept" {
            // Accepting a publisher that was killed while it dialled may fail.
            last = match listener.accept_timeout(PATIENCE) {
                Ok(accepted) => Some(accepted.expect("a publisher dials")),
                Err(error) => {
                    role.say(ErrorChain(&error));
                    continue;
                }
            };
            role.say("accepted");
            continue;
        }
        if command == "drop" {
            last = None;
            role.say("dropped");
            continue;
        }
        let subscriber = last.as_mut().expect("a publisher was accepted");
        match command.split_once(' ').unwrap_or((&command, "")) {
            ("receive", sequence) => {
                let sequence = sequence.parse().expect("a number");
                while subscriber.last().get() < sequence {
                    take(subscriber).expect("a value or none");
                }
                role.say(subscriber.last());
            }
            ("counts", _) => {
                let stats = subscriber.stats();
                role.say(format!(
                    "{} {} {}",
                    stats.received,
                    stats.conflated + stats.cut_off,
                    stats.rejected
                ));
            }
            ("end", _) => {
                let error = loop {
                    if let Err(error) = take(subscriber) {
                        break error;
                    }
                };
                role.say(ErrorChain(&error));
            }
            command => panic!("what is {command:?}?"),
        }
    }
}

fn take(subscriber: &mut StateSubscriber<Raw>) -> Result<(), ReceiveError> {
    match subscriber.try_receive_ref() {
        Ok(Some(sample)) => {
            assert!(is_whole(sample.bytes, sample.meta.sequence.get(), LEN_MAX), "{sample:?}")
        }
        Ok(None) => std::thread::park_timeout(Duration::from_micros(100)),
        Err(ReceiveError::Contended { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn publisher(dir: &Path) -> Peer {
    Peer::ready("publisher", dir, "p")
}

fn subscriber(dir: &Path, delivery: &str, manner: &str) -> Peer {
    Peer::ready("subscriber", dir, &format!("p {delivery} {manner}"))
}

/// A busy publisher, and a subscriber of each delivery that has followed it for a while.
fn running(dir: &Path) -> (Peer, [Peer; 2]) {
    let mut publisher = publisher(dir);
    let mut subscribers = [subscriber(dir, "pull", "following"), subscriber(dir, "push", "following")];
    publisher.ask("run");
    all_go_on(&mut publisher, &mut subscribers);
    (publisher, subscribers)
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("the directory can be read").flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Waits until the publisher counts as many subscribers, and holds as much, as before.
#[track_caller]
fn wait_for_release(publisher: &mut Peer, counts: &str, holdings: Holdings) {
    let began = now();
    loop {
        let last = (publisher.ask("counts"), publisher.holdings());
        if last == (counts.to_owned(), holdings) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{last:?} instead of {counts:?} and {holdings:?}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Waits until every subscriber has received something newer.
#[track_caller]
fn all_go_on(publisher: &mut Peer, subscribers: &mut [Peer]) {
    let newest = publisher.ask_number("newest");
    wait_until("the publisher to continue", || publisher.ask_number("newest") > newest);
    for subscriber in subscribers {
        wait_until("a subscriber to continue", || subscriber.ask_number("newest") > newest);
    }
}

#[test]
fn values_go_from_process_to_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut publisher = publisher(dir.path());
    let mut subscribers: Vec<Peer> = ["pull", "push", "pull", "push", "pull"]
        .iter()
        .map(|delivery| subscriber(dir.path(), delivery, "waiting"))
        .collect();
    for sequence in 1..=200 {
        assert_eq!(publisher.ask_number("publish"), sequence);
        for subscriber in &mut subscribers {
            assert_eq!(subscriber.ask_number(&format!("receive {sequence}")), sequence);
        }
    }
    subscribers.push(subscriber(dir.path(), "pull", "waiting"));
    subscribers.push(subscriber(dir.path(), "push", "waiting"));
    assert_eq!(publisher.ask("counts"), "4 3");
    publisher.ask("run");
    wait_until("many values", || publisher.ask_number("newest") > 20_000);
    let last = publisher.ask_number("halt");
    for subscriber in &mut subscribers {
        assert_eq!(subscriber.ask_number(&format!("receive {last}")), last);
        subscriber.tell("end");
    }
    publisher.tell("end");
    for subscriber in &mut subscribers {
        assert_eq!(subscriber.hear(), format!("ended {last}"));
    }
    assert!(publisher.status().success());
    assert_eq!(files(dir.path()), [""; 0]);
}

#[test]
fn killed_subscriber_is_forgotten_and_the_others_continue() {
    for delivery in ["pull", "push"] {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut publisher, mut survivors) = running(dir.path());
        let (holdings, files_before) = (publisher.holdings(), files(dir.path()));
        let mut victim = subscriber(dir.path(), delivery, "following");
        let counts = if delivery == "pull" { "2 1" } else { "1 2" };
        assert_eq!(publisher.ask("counts"), counts);
        assert!(publisher.holdings().files > holdings.files);
        wait_until("the victim to receive", || victim.ask_number("newest") > 0);
        victim.kill();
        wait_for_release(&mut publisher, "1 1", holdings);
        all_go_on(&mut publisher, &mut survivors);
        assert_eq!(files(dir.path()), files_before);
    }
}

#[test]
fn stopped_subscriber_delays_no_others_and_resumes_with_the_newest_value() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut publisher = publisher(dir.path());
    let mut sleepers =
        [subscriber(dir.path(), "pull", "following"), subscriber(dir.path(), "push", "following")];
    let mut others =
        [subscriber(dir.path(), "pull", "following"), subscriber(dir.path(), "push", "following")];
    publisher.ask("run");
    all_go_on(&mut publisher, &mut sleepers);
    sleepers.iter().for_each(Peer::stop);
    let newest = publisher.ask_number("newest");
    wait_until("many values", || publisher.ask_number("newest") > newest + 1000);
    all_go_on(&mut publisher, &mut others);
    assert_eq!(publisher.ask("counts"), "2 2");
    sleepers.iter().for_each(|sleeper| sleeper.signal(Signal::CONT));
    all_go_on(&mut publisher, &mut sleepers);
}

#[test]
fn killed_publisher_is_noticed_after_its_last_value_and_replaced_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut first = publisher(dir.path());
    let mut widows = [subscriber(dir.path(), "pull", "waiting"), subscriber(dir.path(), "push", "waiting")];
    first.ask("run");
    wait_until("some values", || first.ask_number("newest") > 100);
    let last = first.ask_number("halt");
    first.kill();
    for widow in &mut widows {
        assert_eq!(widow.ask("end"), format!("gone {last}"));
    }

    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let listing = node.nodes().expect("a listing");
    assert!(matches!(listing.as_slice(), [dead] if !dead.alive && dead.node.as_str() == "p"), "{listing:?}");
    let error =
        node.state_subscriber::<Raw>("shm:p/t").timeout(PATIENCE).open().expect_err("nobody is there");
    let gone = matches!(&error, SubscriberError::Unreachable { source: FabricError::NodeGone { .. }, .. });
    assert!(gone, "{error}");

    let mut second = publisher(dir.path());
    assert_eq!(files(dir.path()), ["p.node", "p.sock"]);
    for delivery in ["pull", "push"] {
        let mut subscriber = subscriber(dir.path(), delivery, "waiting");
        let sequence = second.ask_number("publish");
        assert_eq!(subscriber.ask_number(&format!("receive {sequence}")), sequence);
    }
    for widow in &mut widows {
        assert_eq!(widow.ask("end"), format!("gone {last}"), "it subscribes to what is no more");
    }
}

/// The connection to a dead publisher stays readable: a thread that waits for it would spin.
#[test]
fn subscriber_kept_after_the_end_costs_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut publisher = publisher(dir.path());
    let mut widow = subscriber(dir.path(), "pull", "waiting");
    publisher.ask("publish");
    publisher.kill();
    assert_eq!(widow.ask("end"), "gone 1");
    let (began, before_ns) = (now(), widow.cpu_ns());
    wait_until("some time to pass", || began.elapsed() > Duration::from_secs(1));
    let used = Duration::from_nanos(widow.cpu_ns() - before_ns);
    assert!(used < Duration::from_millis(100), "{used:?} of the processor's time in a second");
}

#[test]
fn two_processes_cannot_have_the_same_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut first = publisher(dir.path());
    let mut second = Peer::start("publisher", dir.path(), "p");
    assert_eq!(second.hear(), "busy");
    assert!(second.status().success());
    let mut subscriber = subscriber(dir.path(), "pull", "waiting");
    first.ask("publish");
    assert_eq!(subscriber.ask_number("receive 1"), 1);
}

#[test]
fn stopped_publisher_is_readable_but_cannot_be_attached_to() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut publisher = publisher(dir.path());
    let mut readers = [subscriber(dir.path(), "pull", "waiting"), subscriber(dir.path(), "push", "waiting")];
    let last = (0..5).map(|_| publisher.ask_number("publish")).max().expect("five of them");
    let holdings = publisher.holdings();
    // The publisher's node may still be writing to its landing region.
    assert_eq!(readers[1].ask_number(&format!("receive {last}")), last);
    publisher.stop();
    for reader in &mut readers {
        assert_eq!(reader.ask_number(&format!("receive {last}")), last);
    }
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let late = node.state_subscriber::<Raw>("shm:p/t").timeout(Duration::from_millis(300)).open();
    let error = late.expect_err("nobody answers");
    let in_vain = matches!(&error, SubscriberError::Session { source: ControlError::Deadline { .. }, .. });
    assert!(in_vain, "{error}");
    publisher.signal(Signal::CONT);
    let next = publisher.ask_number("publish");
    for reader in &mut readers {
        assert_eq!(reader.ask_number(&format!("receive {next}")), next);
    }
    let late = node.state_subscriber::<Raw>("shm:p/t").timeout(PATIENCE).open();
    drop(late.expect("a subscription"));
    drop(node);
    wait_for_release(&mut publisher, "1 1", holdings);
}

#[test]
fn subscribers_killed_at_any_moment_leave_nothing_behind() {
    let mut random = seeded();
    let dir = tempfile::tempdir().expect("a directory");
    let (mut publisher, mut survivors) = running(dir.path());
    let (holdings, files_before) = (publisher.holdings(), files(dir.path()));
    for _ in 0..CYCLES {
        let delivery = if random.below(3) == 0 { "pull" } else { "push" };
        let mut victim = Peer::start("subscriber", dir.path(), &format!("p {delivery} following"));
        if random.below(2) == 0 {
            assert_eq!(victim.hear(), "ready");
        }
        std::thread::park_timeout(Duration::from_micros(random.below(30_000) as u64));
        victim.kill();
    }
    wait_for_release(&mut publisher, "1 1", holdings);
    all_go_on(&mut publisher, &mut survivors);
    assert_eq!(files(dir.path()), files_before);
}

#[test]
fn publishers_killed_at_any_moment_leave_nothing_behind() {
    let mut random = seeded();
    let dir = tempfile::tempdir().expect("a directory");
    // Counts in a process of its own: other tests hold files in this one.
    let mut bystander = Peer::ready("publisher", dir.path(), "bystander");
    let mut subscribed = Peer::ready("subscriber", dir.path(), "bystander push following");
    let (holdings, files_before) = (bystander.holdings(), files(dir.path()));
    let mut widows = Vec::new();
    for _ in 0..CYCLES {
        let mut victim = publisher(dir.path());
        victim.tell("run");
        let delivery = if random.below(2) == 0 { "pull" } else { "push" };
        widows.push(subscriber(dir.path(), delivery, "waiting"));
        std::thread::park_timeout(Duration::from_micros(random.below(5_000) as u64));
        victim.kill();
    }
    for widow in &mut widows {
        assert!(widow.ask("end").starts_with("gone "));
    }
    let node = Node::builder().name("last").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    drop(node);
    assert_eq!(files(dir.path()), files_before, "the next node removes the remains");
    bystander.ask("run");
    all_go_on(&mut bystander, std::slice::from_mut(&mut subscribed));
    assert_eq!(bystander.holdings(), holdings);
}

#[test]
fn subscriber_outlives_many_publishers_without_growing() {
    let mut random = seeded();
    let dir = tempfile::tempdir().expect("a directory");
    let mut survivor = Peer::ready("watcher", dir.path(), "");
    let holdings = survivor.holdings();
    for _ in 0..CYCLES {
        let mut victim = publisher(dir.path());
        victim.tell("run");
        survivor.ask(if random.below(2) == 0 { "pull" } else { "push" });
        victim.kill();
        assert_eq!(survivor.ask("wait"), "gone");
        wait_until("the survivor to release its memory", || survivor.holdings() == holdings);
    }
}

/// How long a publisher dials, ms.
const DIAL: &str = "60000";

/// A publisher that has dialled the desk, which has accepted it.
fn accepted_publisher(dir: &Path, desk: &mut Peer) -> Peer {
    let mut publisher = publisher(dir);
    publisher.tell(DIAL);
    assert_eq!(desk.ask("accept"), "accepted");
    assert_eq!(publisher.hear(), "dialled");
    publisher
}

#[test]
fn listening_process_gets_every_value_of_a_dialling_publisher() {
    for delivery in ["pull", "push"] {
        let dir = tempfile::tempdir().expect("a directory");
        let mut desk = Peer::ready("desk", dir.path(), delivery);
        let mut publisher = accepted_publisher(dir.path(), &mut desk);
        assert_eq!(publisher.ask("counts"), if delivery == "pull" { "1 0" } else { "0 1" });
        for sequence in 1..=200 {
            assert_eq!(publisher.ask_number("publish"), sequence);
            assert_eq!(desk.ask_number(&format!("receive {sequence}")), sequence);
        }
        assert_eq!(desk.ask("counts"), "200 0 0");
        publisher.ask("run");
        wait_until("many values", || publisher.ask_number("newest") > 20_000);
        let last = publisher.ask_number("halt");
        desk.ask(&format!("receive {last}"));
        let counts = desk.ask("counts");
        let counts: Vec<u64> = counts.split(' ').map(|count| count.parse().expect("a number")).collect();
        let [received, conflated, 0] = counts[..] else { panic!("{counts:?}") };
        assert_eq!(received + conflated, last);
        publisher.tell("end");
        assert!(desk.ask("end").contains(&format!("after {last} values")));
        assert!(publisher.status().success());
    }
}

#[test]
fn killed_dialling_publisher_is_noticed_and_the_next_one_accepted() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut desk = Peer::ready("desk", dir.path(), "push");
    let holdings = desk.holdings();
    for round in 1..=3 {
        let mut publisher = accepted_publisher(dir.path(), &mut desk);
        for _ in 0..round {
            publisher.ask("publish");
        }
        publisher.kill();
        let end = desk.ask("end");
        assert!(end.starts_with("the publisher is gone: "), "{end}");
        assert_eq!(desk.ask("counts").split(' ').nth(2), Some("0"));
        assert_eq!(desk.ask_number("receive 0"), round);
        desk.ask("drop");
        wait_until("the desk to release its memory", || desk.holdings() == holdings);
    }
}

/// A stopped process is not attached to, even after it resumes.
#[test]
fn stopped_subscriber_cannot_be_dialled_until_it_resumes() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut desk = Peer::ready("desk", dir.path(), "push");
    let mut publisher = publisher(dir.path());
    let holdings = publisher.holdings();
    desk.stop();
    let error = publisher.ask("300");
    assert!(error.contains("shm:desk"), "{error}");
    desk.signal(Signal::CONT);
    wait_for_release(&mut publisher, "0 0", holdings);
    publisher.tell(DIAL);
    assert_eq!(desk.ask("accept"), "accepted");
    assert_eq!(publisher.hear(), "dialled");
    assert_eq!(publisher.ask("counts"), "0 1");
    publisher.ask("publish");
    assert_eq!(desk.ask_number("receive 1"), 1);
    desk.kill();
    wait_until("the subscriber to be forgotten", || publisher.ask("counts") == "0 0");
    // A publisher releases landing regions when it publishes.
    publisher.ask("publish");
    wait_for_release(&mut publisher, "0 0", holdings);
    let error = publisher.ask(DIAL);
    assert!(error.contains("the node at shm:desk is gone"), "{error}");
}

#[test]
fn publishers_killed_while_dialling_leave_nothing_behind() {
    let mut random = seeded();
    let dir = tempfile::tempdir().expect("a directory");
    let mut desk = Peer::ready("desk", dir.path(), "push");
    let holdings = desk.holdings();
    for _ in 0..CYCLES {
        let mut victim = publisher(dir.path());
        victim.tell(DIAL);
        std::thread::park_timeout(Duration::from_micros(random.below(3_000) as u64));
        victim.kill();
    }
    // A killed publisher waits no more.
    wait_until("the desk to release its memory", || desk.holdings() == holdings);
    let mut publisher = accepted_publisher(dir.path(), &mut desk);
    publisher.ask("publish");
    assert_eq!(desk.ask_number("receive 1"), 1);
}

/// Random numbers from a printed seed.
fn seeded() -> Random {
    let given = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("SEED={seed}");
    Random(seed)
}
