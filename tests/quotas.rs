//! Crowds of hostile sessions at the door of a node: its own peers find their place, and their answers.

use std::time::Duration;

use fabricast::{Delivery, Directory, Error, Node, PeerLimits, Raw, RefuseReason, SubscriberError};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, setrlimit};

use self::support::files::raise_files;
use self::support::peer::Peer;
use self::support::raw::{self, RawPeer};
use self::support::role::Role;
use self::support::skip::skip;
use self::support::time::{PATIENCE, now, wait_until, wait_within};

#[cfg(test)]
mod support;

/// Sessions of a hostile process.
const CROWD: usize = 1024;
/// How many of them a node serves.
const SHARE: usize = 256;
/// Descriptors of sessions that are refused, or of its own peers, at a time.
const PASSING: usize = 64;
/// How soon a subscriber of this host is attached, and the directory is answered.
const SOON: Duration = Duration::from_secs(1);
/// How often at least, and for how long: a peer may spend a second's requests at once.
const ROUNDS: u32 = 20;
const LONG: Duration = Duration::from_secs(4);
const LEN_MAX: usize = 64;

/// Numbers of reasons.
const TOO_MANY_SESSIONS: u16 = 35;
const IDLE: u16 = 39;

#[test]
#[ignore = "not a test: the entry point of a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    match role.name.as_str() {
        "victim" => be_victim(&role),
        "crowd" => be_crowd(&role),
        name => panic!("no role: {name}"),
    }
}

fn be_victim(role: &Role) {
    let files = role.number(0) as u64;
    if files > 0 {
        let limit = Rlimit { current: Some(files), maximum: Some(files) };
        setrlimit(Resource::Nofile, limit).expect("a limit can be lowered");
    }
    let builder = Node::builder().name("victim").expect("a name").runtime_dir(&role.dir);
    let node = builder.open().expect("a node");
    let open = |topic: &str| node.state_publisher::<Raw>(topic).payload_len_max(LEN_MAX).open();
    let mut publisher = open("t").expect("a topic");
    let (mut others, mut files, mut logs) = (Vec::new(), Vec::new(), Vec::new());
    role.say("ready");
    loop {
        let command = role.command();
        match command.as_str() {
            "publish" => role.say(publisher.publish(b"value").expect("it fits")),
            "log" => {
                logs.push(node.log_publisher::<Raw>("log").open().expect("a topic"));
                role.say("opened");
            }
            "exhaust" => {
                files.extend(std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()));
                role.say(files.len());
            }
            "release" => {
                files.clear();
                role.say("released");
            }
            "places" => role.say(node.peer_limits().shm_sessions),
            "open" => {
                let opened = open(&format!("other/{}", others.len()));
                role.say(opened.as_ref().map_or_else(ToString::to_string, |_| "opened".to_owned()));
                others.extend(opened);
            }
            command => panic!("unknown command: {command}"),
        }
    }
}

/// Keeps as many connections to the victim as possible, and does with them what it is told.
fn be_crowd(role: &Role) {
    let (manner, count) = (role.argument(0).to_owned(), role.number(1));
    let begin = || {
        let peer = RawPeer::try_dial(&role.dir, "victim").ok()?;
        if manner != "silent" {
            // It may be refused, and the connection closed, before this is sent.
            let _ = peer.try_send(&raw::hello(None), &[]);
        }
        Some(peer)
    };
    let mut peers: Vec<Option<RawPeer>> = (0..count).map(|_| begin()).collect();
    role.say("ready");
    let mut attachment = 0;
    // A pause, so that the processor is not what the node lacks.
    while role.command_within(Duration::from_millis(1)).is_none() {
        for place in &mut peers {
            attachment += 1;
            let is_over = place.as_ref().is_none_or(|peer| {
                let messages = match manner.as_str() {
                    "attach" => vec![raw::attach(attachment, "t", true), raw::detach(attachment)],
                    "list" => vec![raw::list_topics()],
                    _ => Vec::new(),
                };
                messages.iter().any(|message| peer.flood(message, 1)) || peer.drain()
            });
            if is_over {
                *place = begin();
            }
        }
    }
    role.say("stopped");
}

/// One crowd at a time.
static CROWDS: Mutex<()> = Mutex::new(());

/// A node in a process of its own.
struct Victim {
    dir: tempfile::TempDir,
    peer: Peer,
}

impl Victim {
    fn new() -> Self {
        Self::with_files(0)
    }

    /// One that may have so many descriptors, if not 0.
    fn with_files(files: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let peer = Peer::ready("victim", dir.path(), &files.to_string());
        Self { dir, peer }
    }

    fn crowd(&self, manner: &str, count: usize) -> Peer {
        Peer::ready("crowd", self.dir.path(), &format!("{manner} {count}"))
    }

    /// A new node, as in another program, whose subscriber receives a value and whose user lists the topics.
    fn serves(&mut self, delivery: Delivery) -> Result<Directory, Error> {
        let node = Node::builder().runtime_dir(self.dir.path()).open()?;
        let builder = node.state_subscriber::<Raw>("shm:victim/t").delivery(delivery);
        let mut subscriber = builder.timeout(PATIENCE).open()?;
        self.peer.ask("publish");
        assert!(subscriber.receive_timeout(PATIENCE)?.is_some());
        let other = Node::builder().runtime_dir(self.dir.path()).open()?;
        Ok(other.directory("shm:victim")?)
    }
}

/// Whether this process and those that it starts may open enough files.
fn has_files() -> bool {
    let (room, needed) = (raise_files(), 2 * CROWD as u64 + 200);
    if room < needed {
        skip(
            "many-files",
            &format!("no more than {room} files may be open, {needed} are needed (ulimit -n)"),
        );
    }
    room >= needed
}

/// Before there were quotas, the node was full after 0.4 s, the directory was refused, and still was after 25 s.
fn crowd_delays_nobody(manner: &str) {
    if !has_files() {
        return;
    }
    let _alone = CROWDS.lock();
    let mut victim = Victim::new();
    let before = victim.peer.holdings().files;
    let mut crowd = victim.crowd(manner, CROWD);
    let (mut times, mut most) = (Vec::new(), 0);
    let (at, cpu_ns) = (now(), victim.peer.cpu_ns());
    for round in 0.. {
        if round >= ROUNDS && at.elapsed() > LONG {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(10));
        let delivery = if round % 2 == 0 { Delivery::Pull } else { Delivery::Push };
        let began = now();
        let directory = victim.serves(delivery).expect("the crowd delays nobody");
        times.push(began.elapsed());
        most = most.max(victim.peer.holdings().files - before);
        assert_eq!(directory.topics.len(), 1);
    }
    crowd.ask("stop");
    let busy = Duration::from_nanos(victim.peer.cpu_ns() - cpu_ns);
    times.sort();
    let (median, slowest) = (times.get(times.len() / 2), times.last());
    let (median, slowest) = median.zip(slowest).expect("rounds");
    println!(
        "{manner}: attached, received and listed in {median:?}, at most {slowest:?}, beside {most} connections"
    );
    println!("{manner}: the node used {busy:?} of the processor's time in {:?}", at.elapsed());
    // A busy machine may hold one of them up.
    assert!(*median < SOON, "{manner}: it took {median:?}");
    assert!(most <= SHARE + PASSING, "{manner}: {most} connections are open");
}

#[test]
fn crowd_that_says_nothing_delays_nobody() {
    crowd_delays_nobody("silent");
}

#[test]
fn crowd_that_only_says_hello_delays_nobody() {
    crowd_delays_nobody("hello");
}

#[test]
fn crowd_that_lists_in_a_loop_delays_nobody() {
    crowd_delays_nobody("list");
}

#[test]
fn crowd_that_attaches_and_detaches_in_a_loop_delays_nobody() {
    crowd_delays_nobody("attach");
}

#[test]
fn process_is_refused_more_than_its_share_and_learns_what_raises_it() {
    if !has_files() {
        return;
    }
    let victim = Victim::new();
    let peers: Vec<RawPeer> = (0..SHARE).map(|_| RawPeer::greeted(victim.dir.path(), "victim")).collect();
    let node = Node::builder().runtime_dir(victim.dir.path()).open().expect("a node");
    let refused = node.state_subscriber::<Raw>("shm:victim/t").open().expect_err("it has as many as it may");
    let text = fabricast::ErrorChain(&refused).to_string();
    assert!(text.contains("256") && text.contains("PeerLimits::shm_sessions_per_process"), "{text}");
    let refused = RawPeer::dial(victim.dir.path(), "victim").receive().expect("a refusal").refusal();
    assert_eq!(refused.0, TOO_MANY_SESSIONS);
    drop(peers);
    wait_until("a place", || node.state_subscriber::<Raw>("shm:victim/t").open().is_ok());
}

#[test]
fn session_that_attaches_nothing_is_ended() {
    let mut victim = Victim::new();
    let peer = RawPeer::greeted(victim.dir.path(), "victim");
    let began = now();
    let attached = RawPeer::greeted(victim.dir.path(), "victim");
    attached.send(&raw::attach(1, "t", false));
    assert_eq!(attached.receive().expect("a grant").kind, raw::GRANTED);
    let (reason, text) = peer.receive_within(PATIENCE).expect("a refusal").refusal();
    assert_eq!((reason, RefuseReason::from(reason)), (IDLE, RefuseReason::Idle));
    assert!(text.contains("10 s"), "{text}");
    assert!(began.elapsed() >= Duration::from_secs(9), "{:?}", began.elapsed());
    // One that is attached goes on.
    attached.send(&raw::list_topics());
    assert_eq!(attached.receive().expect("a page").kind, raw::TOPICS);
    victim.serves(Delivery::Pull).expect("it serves");
}

/// What its process may open is not all for its peers.
#[test]
fn node_with_a_crowd_at_its_door_opens_topics() {
    let _alone = CROWDS.lock();
    const FILES: u64 = 300;
    let mut victim = Victim::with_files(FILES);
    let places = victim.peer.ask_number("places");
    // Of the rest, what peers send besides takes a part: closing, of an unread message, wake sockets.
    assert_eq!(places, FILES - FILES / 4 - (64 + FILES / 16 + FILES / 8));
    let before = victim.peer.holdings().files as u64;
    // Of n processes with as many sessions each, the node leaves one part of n + 1 free, and a sixteenth to other users.
    let mut crowds: Vec<Peer> = (0..8).map(|_| victim.crowd("hello", 100)).collect();
    wait_until("the crowd at the door", || victim.peer.holdings().files as u64 - before > places * 3 / 4);
    for number in 0..20 {
        assert_eq!(victim.peer.ask("open"), "opened", "topic {number}");
    }
    let files = victim.peer.holdings().files;
    println!("20 topics are open beside {places} places for sessions, with {files} of {FILES} descriptors");
    crowds.iter_mut().for_each(|crowd| _ = crowd.ask("stop"));
}

/// A subscriber that is refused because the publisher's process has no descriptor left may try again.
#[test]
fn node_that_is_short_of_files_says_so() {
    let _alone = CROWDS.lock();
    let mut victim = Victim::with_files(64);
    assert_eq!(victim.peer.ask("log"), "opened");
    let node = Node::builder().runtime_dir(victim.dir.path()).open().expect("a node");
    let open = || node.log_subscriber::<Raw>("shm:victim/log").progress().timeout(PATIENCE).open();
    let first = open().expect("a session");
    assert!(victim.peer.ask_number("exhaust") > 0);
    let refused = open().expect_err("there is no descriptor for its progress");
    assert!(
        matches!(refused, SubscriberError::Refused { reason: RefuseReason::Shortage, .. }),
        "{refused:?}"
    );
    assert!(refused.is_transient() && refused.to_string().contains("short of open files"), "{refused}");
    let push = || {
        let builder = node.log_subscriber::<Raw>("shm:victim/log").delivery(Delivery::Push);
        builder.timeout(PATIENCE).open()
    };
    let refused = push().expect_err("the publisher has no descriptor left for a landing region");
    assert!(
        matches!(refused, SubscriberError::Refused { reason: RefuseReason::Shortage, .. }),
        "{refused:?}"
    );
    assert_eq!(victim.peer.ask("release"), "released");
    drop((open().expect("another try succeeds"), push().expect("so does this one"), first));
}

#[test]
fn limits_of_a_node_are_those_of_its_builder_within_what_the_process_may_have() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut limits = PeerLimits::default();
    (limits.shm_sessions, limits.shm_sessions_per_process) = (8, 2);
    let builder = Node::builder().name("few").expect("a name").runtime_dir(dir.path());
    let node = builder.peer_limits(limits).open().expect("a node");
    assert_eq!(node.peer_limits().shm_sessions, 8);
    assert_eq!(node.peer_limits().rdma_sessions, 0, "it does not listen there");
    let _publisher = node.state_publisher::<u64>("t").open().expect("a topic");
    let peers = [(); 2].map(|()| RawPeer::greeted(dir.path(), "few"));
    let refused = RawPeer::dial(dir.path(), "few").receive().expect("a refusal").refusal();
    assert_eq!(refused.0, TOO_MANY_SESSIONS);
    drop(peers);
    wait_within(PATIENCE, "a place", || node.state_subscriber::<u64>("shm:few/t").open().is_ok());
}
