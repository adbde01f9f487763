//! Peers that exhaust a resource: memory, file descriptors, places in a backlog, waiting threads. None costs a node its own
//! memory or time.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use fabricast::{
    Delivery, ErrorChain, Event, EventSink, Keyring, Node, NoticePath, PeerLimits, Raw, StateSubscriber,
    SubscriberError, TopicReport,
};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SealFlags};
use rustix::process::{Resource, Rlimit, Signal};

use self::support::cgroup::Cgroup;
use self::support::files::raise_files;
use self::support::peer::Peer;
use self::support::raw::{self, RawListener, RawPeer};
use self::support::role::Role;
use self::support::skip::skip;
use self::support::time::{PATIENCE, now, wait_until, wait_within};

#[path = "resources/descriptors.rs"]
mod descriptors;
#[cfg(test)]
mod support;

const LEN_MAX: usize = 64;
/// Bytes of the ring of the log.
const CAPACITY: usize = 8 << 20;
/// Where a grant has the length of the region.
const GRANTED_LEN_AT: usize = 36;
const LANDING_UNFIT: u16 = 5;
/// The seals that a landing region needs before it is sent.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Longer than any test.
const LINGER: Duration = Duration::from_secs(3600);

#[test]
#[ignore = "no test: a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    match role.name.as_str() {
        "victim" => victim(&role),
        "subscriber" => subscriber(&role),
        "publisher" => publisher(&role),
        "table" => table(&role),
        "keyed" => keyed(&role),
        "few" => descriptors::few(&role),
        name => panic!("what is a {name}?"),
    }
}

/// A node with a state and a log.
fn victim(role: &Role) {
    if role.argument(0) == "confined" {
        role.say("started");
        assert_eq!(role.command(), "go");
    }
    let unavailable = Arc::new(Unavailable::default());
    // Hundreds of nodes of one process are its peers.
    let mut limits = PeerLimits::default();
    (limits.shm_sessions, limits.shm_sessions_per_process) = (2048, 1024);
    let builder = Node::builder().name("victim").expect("a name").runtime_dir(&role.dir).peer_limits(limits);
    let node = builder.events(Arc::<Unavailable>::clone(&unavailable)).open().expect("a node");
    let mut state = node.state_publisher::<Raw>("t").payload_len_max(LEN_MAX).open().expect("a topic");
    let log = node.log_publisher::<Raw>("log").capacity(CAPACITY).payload_len_max(LEN_MAX);
    let mut log = log.open().expect("a log");
    role.say("ready");
    loop {
        match role.command().as_str() {
            "publish" => {
                log.publish(b"record").expect("it fits");
                role.say(state.publish(b"value").expect("it fits"));
            }
            "unavailable" => role.say(unavailable.0.lock().join("; t: ")),
            command => panic!("what is {command}?"),
        }
    }
}

/// A node whose keyring is a file. Reports what is wrong with that.
fn keyed(role: &Role) {
    let troubles = Arc::new(Troubles::default());
    let keyring = Keyring::open(role.dir.join("keys")).expect("a keyring");
    let builder = Node::builder().name("keyed").expect("a name").runtime_dir(&role.dir).keys(keyring);
    let node = builder.events(Arc::<Troubles>::clone(&troubles)).open().expect("a node");
    let mut state = node.state_publisher::<Raw>("t").payload_len_max(LEN_MAX).open().expect("a topic");
    state.publish(b"value").expect("it fits");
    role.say("ready");
    loop {
        match role.command().as_str() {
            "troubles" => role.say(troubles.0.lock().join("; ")),
            command => panic!("what is {command}?"),
        }
    }
}

/// What a node has reported as trouble.
#[derive(Debug, Default)]
struct Troubles(Mutex<Vec<String>>);

impl EventSink for Troubles {
    fn event(&self, event: &Event) {
        if let Event::Trouble { what } = event {
            self.0.lock().push(what.clone());
        }
    }
}

/// Why subscribers got no notices.
#[derive(Debug, Default)]
struct Unavailable(Mutex<Vec<String>>);

impl EventSink for Unavailable {
    fn event(&self, event: &Event) {
        if let Event::NoticesUnavailable { topic, reason, .. } = event {
            self.0.lock().push(format!("{topic}: {reason}"));
        }
    }
}

/// A subscriber with few descriptors, which reports the outcome.
fn subscriber(role: &Role) {
    let files = role.number(0) as u64;
    let few = Rlimit { current: Some(files), maximum: Some(files) };
    rustix::process::setrlimit(Resource::Nofile, few).expect("limits can be lowered");
    let received = || -> Result<(), fabricast::Error> {
        let node = Node::builder().runtime_dir(&role.dir).open()?;
        let builder = node.state_subscriber::<Raw>("shm:victim/t").notices();
        let mut subscriber = builder.timeout(PATIENCE).open()?;
        while subscriber.receive_timeout(PATIENCE)?.is_none() {}
        Ok(())
    };
    match received() {
        Ok(()) => role.say("received"),
        Err(error) => role.say(ErrorChain(&error)),
    }
    role.command();
}

/// A process with few descriptors that publishes as many topics as it can, and reports why no more.
fn publisher(role: &Role) {
    let node = Node::builder().name("few").expect("a name").runtime_dir(&role.dir).open().expect("a node");
    let few = Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(Resource::Nofile, few).expect("limits can be lowered");
    let mut topics = Vec::new();
    let error = loop {
        match node.state_publisher::<u64>(&format!("t{}", topics.len())).open() {
            Ok(topic) => topics.push(topic),
            Err(error) => break error,
        }
    };
    role.say(ErrorChain(&error));
    role.command();
}

fn subscribe(dir: &Path, delivery: Delivery) -> Result<StateSubscriber<Raw>, SubscriberError> {
    let node = Node::builder().runtime_dir(dir).open().expect("a node");
    node.state_subscriber::<Raw>("shm:victim/t").delivery(delivery).timeout(PATIENCE).open()
}

/// Checks that it still serves others. Returns how long they took.
fn serves(victim: &mut Peer, dir: &Path) -> Duration {
    let began = now();
    for delivery in [Delivery::Pull, Delivery::Push] {
        let mut subscriber = subscribe(dir, delivery).expect("a subscription");
        let sequence = victim.ask_number("publish");
        wait_until("the value", || {
            subscriber.try_receive().expect("a receive");
            subscriber.last().get() == sequence
        });
    }
    began.elapsed()
}

/// A peer about to send a landing region for the topic, and the required length.
fn attached(dir: &Path, attachments: u32, topic: &str) -> (RawPeer, u64) {
    let peer = RawPeer::greeted(dir, "victim");
    let mut len = 0;
    for attachment in 1..=attachments {
        peer.send(&raw::attach(attachment, topic, true));
        let grant = peer.receive().expect("a grant");
        assert_eq!(grant.kind, raw::GRANTED);
        len = grant.long(GRANTED_LEN_AT).next_multiple_of(4096);
    }
    (peer, len)
}

#[test]
fn sparse_landing_regions_are_refused_and_cost_the_publisher_no_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let group = Cgroup::with_memory(48 << 20);
    let mut victim = Peer::start("victim", dir.path(), "confined");
    assert_eq!(victim.hear(), "started");
    group.as_ref().inspect(|group| group.add(victim.pid()));
    assert_eq!(victim.ask("go"), "ready");

    let (peer, len) = attached(dir.path(), 60, "log");
    assert!(len > CAPACITY as u64);
    let files: Vec<OwnedFd> = (0..60).map(|_| raw::memory_file(len, FIXED)).collect();
    for (attachment, file) in (1..).zip(&files) {
        peer.send_with(&raw::expose(attachment), &[file.as_fd()]);
        let answer = peer.receive().expect("an answer: the publisher lives");
        let (reason, text) = answer.refused();
        assert_eq!(reason, LANDING_UNFIT, "{text}");
        assert!(text.contains("sparse"), "{text}");
    }
    serves(&mut victim, dir.path());
    let charged: i64 = files.iter().map(|file| rustix::fs::fstat(file).expect("a file").st_blocks).sum();
    assert_eq!(charged, 0, "blocks were allocated for the peer");
}

/// The publisher's writes would fill a later hole, and the pages be charged to the publisher.
#[test]
fn pages_of_a_landing_region_cannot_be_released() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut victim = Peer::ready("victim", dir.path(), "free");
    for topic in ["t", "log"] {
        let (peer, len) = attached(dir.path(), 1, topic);
        let file = raw::full_file(len, FIXED);
        peer.send_with(&raw::expose(1), &[file.as_fd()]);
        let answer = peer.receive().expect("an answer");
        assert_eq!(answer.kind, raw::EXPOSED, "{answer:?}");
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(&file, hole, 0, len);
        assert_eq!(punched, Err(rustix::io::Errno::PERM), "{topic}");
        victim.ask("publish");
        drop(peer);
    }
    serves(&mut victim, dir.path());
}

#[test]
fn landing_regions_with_holes_or_of_other_lengths_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut victim = Peer::ready("victim", dir.path(), "free");
    let (peer, len) = attached(dir.path(), 1, "log");
    let punched = raw::full_file(len, FIXED);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&punched, hole, len / 2 / 4096 * 4096, 4096).expect("a hole");
    // Enough pages, but not where they are needed.
    let elsewhere = raw::memory_file(len, SealFlags::empty());
    rustix::fs::fallocate(&elsewhere, FallocateFlags::KEEP_SIZE, len, len).expect("pages behind the end");
    rustix::fs::fcntl_add_seals(&elsewhere, FIXED).expect("seals");
    let unfit = [
        ("sparse", punched),
        ("sparse", elsewhere),
        ("longer", raw::full_file(len + 4096, FIXED)),
        ("shorter", raw::full_file(len - 4096, FIXED)),
        ("cannot be sealed", raw::full_file(len, FIXED | SealFlags::SEAL)),
    ];
    for (why, file) in &unfit {
        peer.send_with(&raw::expose(1), &[file.as_fd()]);
        let answer = peer.receive().expect("an answer");
        assert_eq!(answer.kind, raw::REFUSED, "{why}");
        let (reason, text) = answer.refused();
        assert_eq!(reason, LANDING_UNFIT, "{text}");
        assert!(text.contains(why), "{why}: {text}");
    }
    peer.send_with(&raw::expose(1), &[raw::full_file(len, FIXED).as_fd()]);
    assert_eq!(peer.receive().expect("an answer").kind, raw::EXPOSED);
    serves(&mut victim, dir.path());
}

/// A socket whose last close blocks, and its other end.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (far, _) = listener.accept().expect("a connection");
    near.set_nonblocking(true).expect("it can be set");
    while near.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&near, Some(LINGER)).expect("it can be set");
    (near.into(), far)
}

/// Sends a message with descriptors whose close blocks. This process closes its own before the other one receives them, so that
/// the last close is left to that.
fn send_lingering(taker: &Peer, peer: &RawPeer, message: &[u8], count: usize) -> Vec<TcpStream> {
    let (files, ends): (Vec<OwnedFd>, Vec<TcpStream>) = (0..count).map(|_| lingering()).unzip();
    taker.stop();
    let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    // The session may be over already, and nothing be received.
    let sent = peer.try_send(message, &borrowed);
    for file in files.iter().filter(|_| sent.is_err()) {
        rustix::net::sockopt::set_socket_linger(file, None).expect("it can be set");
    }
    drop(files);
    taker.signal(Signal::CONT);
    ends
}

/// The descriptors block for longer than the test waits: if the node closed them itself, it would not answer.
#[test]
fn descriptors_whose_close_blocks_delay_no_peer() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut victim = Peer::ready("victim", dir.path(), "free");
    let (mut ends, undisturbed) = (Vec::new(), serves(&mut victim, dir.path()));
    let mut slowest = Duration::ZERO;
    for count in [1, 4, 20] {
        // Before and with the hello.
        for message in [raw::list_topics(), raw::hello(None), vec![7; 40]] {
            let peer = RawPeer::dial(dir.path(), "victim");
            ends.extend(send_lingering(&victim, &peer, &message, count));
            peer.wait_closed();
            slowest = slowest.max(serves(&mut victim, dir.path()));
        }
        // As a landing region, and with a message that has none.
        let (peer, _) = attached(dir.path(), 1, "t");
        ends.extend(send_lingering(&victim, &peer, &raw::expose(1), count));
        let answer = peer.receive().expect("an answer");
        assert!(matches!(answer.kind, raw::REFUSED | raw::REFUSE), "{answer:?}");
        slowest = slowest.max(serves(&mut victim, dir.path()));
        ends.extend(send_lingering(&victim, &peer, &raw::list_topics(), count));
        peer.wait_closed();
        slowest = slowest.max(serves(&mut victim, dir.path()));
        // Not received: the node ends the session before.
        let peer = RawPeer::dial(dir.path(), "victim");
        victim.stop();
        peer.send(&[7; 40]);
        for _ in 0..100 {
            peer.send(&raw::hello(None));
        }
        ends.extend(send_lingering(&victim, &peer, &raw::hello(None), count));
        peer.wait_closed();
        slowest = slowest.max(serves(&mut victim, dir.path()));
    }
    println!("others were served within {slowest:?}, and undisturbed within {undisturbed:?}");
}

/// Neither the program's thread nor the node's waits for what a publisher's node sent.
#[test]
fn descriptors_whose_close_blocks_do_not_delay_a_subscriber() {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = RawListener::bind(dir.path(), "victim");
    let mut subscriber = Peer::start("subscriber", dir.path(), "1000");
    let peer = listener.accept();
    let nonce = peer.receive().expect("a hello").long(0);
    let _ends = send_lingering(&subscriber, &peer, &raw::hello(Some(nonce)), 2);
    let outcome = subscriber.hear();
    assert!(outcome.contains("more than 1 region"), "{outcome}");
}

#[test]
fn fifo_in_place_of_an_entry_delays_no_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fifo = dir.path().join("x.node");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a fifo");
    std::fs::create_dir(dir.path().join("y.node")).expect("a directory");
    let path = dir.path().to_owned();
    let looking = std::thread::spawn(move || {
        let node = Node::builder().name("z").expect("a name").runtime_dir(&path).open().expect("a node");
        let names: Vec<_> = node.nodes().expect("a listing").into_iter().map(|it| it.node).collect();
        assert_eq!(names, ["z".parse().expect("a name")]);
        for target in ["shm:x/t", "shm:y/t"] {
            let error = node.state_subscriber::<Raw>(target).open().expect_err("no node");
            assert!(matches!(error, SubscriberError::Unreachable { .. }), "{error}");
        }
        let error = Node::builder().name("x").expect("a name").runtime_dir(&path).open().expect_err("taken");
        assert!(ErrorChain(&error).to_string().contains("x.node"), "{error:?}");
    });
    wait_within(PATIENCE, "an end", || looking.is_finished());
    looking.join().expect("as expected");
}

#[test]
fn reading_node_creates_no_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("missing");
    let node = Node::builder().runtime_dir(&path).open().expect("a node");
    assert_eq!(node.nodes().expect("a listing"), []);
    let error = node.state_subscriber::<Raw>("shm:victim/t").open().expect_err("no node");
    assert!(matches!(error, SubscriberError::Unreachable { .. }), "{error}");
    assert!(!path.exists(), "the directory was made");
    // It finds a node that starts later.
    let mut victim = Peer::ready("victim", &path, "free");
    let mut subscriber =
        node.state_subscriber::<Raw>("shm:victim/t").timeout(PATIENCE).open().expect("it is there");
    assert_eq!(victim.ask_number("publish"), 1);
    wait_until("the value", || subscriber.try_receive().expect("a receive").is_some());
}

#[test]
fn subscriber_out_of_descriptors_names_the_limit() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut victim = Peer::ready("victim", dir.path(), "free");
    victim.ask("publish");
    let mut outcomes = Vec::new();
    for files in 4..16 {
        let mut subscriber = Peer::start("subscriber", dir.path(), &files.to_string());
        let outcome = subscriber.hear();
        let named = format!("at most {files} open files");
        let says = outcome.contains(&named) && outcome.contains("ulimit -n");
        assert!(outcome == "received" || says, "with {files} descriptors: {outcome}");
        outcomes.push(outcome);
    }
    assert_ne!(outcomes.first().map(String::as_str), Some("received"));
    assert_eq!(outcomes.last().map(String::as_str), Some("received"));
    serves(&mut victim, dir.path());
}

#[test]
fn publisher_out_of_descriptors_names_the_limit() {
    let dir = tempfile::tempdir().expect("a directory");
    let error = Peer::start("publisher", dir.path(), "").hear();
    assert!(error.contains("at most 64 open files") && error.contains("ulimit -n"), "{error}");
    assert!(!error.contains("memory limit"), "{error}");
}

#[test]
fn subscriber_of_a_publisher_out_of_descriptors_reports_missing_notices() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut victim = Peer::ready("victim", dir.path(), "free");
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let open = || node.state_subscriber::<Raw>("shm:victim/t").notices().timeout(PATIENCE);
    let _session =
        node.state_subscriber::<Raw>("shm:victim/t").timeout(PATIENCE).open().expect("a subscription");
    let before = victim.limit_files(3);

    let mut subscriber = open().open().expect("a subscription");
    assert_eq!(subscriber.notice_path(), NoticePath::Unavailable);
    let error = open().push().open().expect_err("there is no descriptor for the landing region").to_string();
    assert!(error.contains("at most 3 open files") && error.contains("ulimit -n"), "{error}");
    victim.limit_files(before);
    let unavailable = victim.ask("unavailable");
    assert!(unavailable.starts_with("t: ") && unavailable.contains("ulimit -n"), "{unavailable}");
    assert!(!unavailable.contains("; t: "), "told once: {unavailable}");
    assert_eq!(victim.ask_number("publish"), 1);
    assert!(subscriber.receive_timeout(PATIENCE).expect("a receive").is_some());
    let report = TopicReport::of(&mut subscriber).expect("a report");
    let counter = report.counters.iter().find(|counter| counter.name == "without notices");
    assert_eq!(counter.map(|counter| counter.value), Some(1));
    assert_eq!(open().open().expect("a subscription").notice_path(), NoticePath::WakeWord);
}

/// A peer that takes all descriptors while a key is removed does not keep that key in force: the file is read again.
#[test]
fn key_removed_while_descriptors_are_short_is_out_of_force_afterwards() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, next) = (dir.path().join("keys"), dir.path().join("next"));
    let line = |name: &str, byte: &str| format!("{name} read * {}", byte.repeat(32));
    let replace = |text: &str| {
        std::fs::write(&next, text).expect("a file");
        std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o600)).expect("its mode");
        std::fs::rename(&next, &path).expect("the same directory");
    };
    replace(&line("old", "07"));
    let mut keyed = Peer::ready("keyed", dir.path(), "");
    let keyring = Keyring::from_text(&line("old", "07")).expect("a line");
    let node = Node::builder().runtime_dir(dir.path()).keys(keyring).open().expect("a node");
    let mut subscriber =
        node.state_subscriber::<Raw>("shm:keyed/t").timeout(PATIENCE).open().expect("the key is in force");

    let before = keyed.limit_files(3);
    replace(&line("new", "08"));
    wait_until("a report", || keyed.ask("troubles").contains("the previous keys stay in force"));
    keyed.limit_files(before);
    let error = loop {
        match subscriber.receive_timeout(PATIENCE) {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the removed key is still in force"),
            Err(error) => break error,
        }
    };
    assert!(ErrorChain(&error).to_string().contains("no longer in the keyring"), "{error:?}");
    let troubles = keyed.ask("troubles");
    assert_eq!(troubles.matches("the previous keys stay in force").count(), 1, "told once: {troubles}");
}

/// As many as a node must accept at once; where net.core.somaxconn is 128 (kernels before 5.4), more than the backlog holds.
#[test]
fn many_subscribers_that_connect_together_all_attach() {
    const SUBSCRIBERS: usize = 900;
    let dir = tempfile::tempdir().expect("a directory");
    // The victim inherits the limit.
    let (files, wanted) = (raise_files(), SUBSCRIBERS as u64 * 8);
    if files < wanted {
        let why = format!("{wanted} open files are needed, and the hard limit (ulimit -Hn) is {files}");
        return skip("many-files", &why);
    }
    let mut victim = Peer::ready("victim", dir.path(), "free");
    victim.ask("publish");
    let nodes: Vec<Node> =
        (0..SUBSCRIBERS).map(|_| Node::builder().runtime_dir(dir.path()).open().expect("a node")).collect();
    let (together, began) = (Barrier::new(SUBSCRIBERS), now());
    let attach = |node: &Node| {
        together.wait();
        let attached = node.state_subscriber::<Raw>("shm:victim/t").timeout(PATIENCE).open();
        let received = attached.map(|mut subscriber| subscriber.try_receive().map(|sample| sample.is_some()));
        (received, began.elapsed())
    };
    let slowest = std::thread::scope(|scope| {
        let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| attach(node))).collect();
        let ended = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        let (outcomes, times): (Vec<_>, Vec<_>) = ended.unzip();
        let failed: Vec<String> = outcomes
            .iter()
            .filter(|outcome| !matches!(outcome, Ok(Ok(true))))
            .map(|it| format!("{it:?}"))
            .collect();
        assert!(failed.is_empty(), "{} of {SUBSCRIBERS} failed: {:?}", failed.len(), failed.first());
        times.into_iter().max()
    });
    println!("{SUBSCRIBERS} subscribers attached within {slowest:?}");
}

/// A node that accepts nothing, with a full backlog.
fn crowded(dir: &Path) -> (RawListener, Vec<RawPeer>) {
    let listener = RawListener::bind(dir, "victim");
    // The kernel accepts one more than the backlog.
    (listener, (0..17).map(|_| RawPeer::dial(dir, "victim")).collect())
}

#[test]
fn subscriber_waits_for_a_place_in_the_backlog() {
    let dir = tempfile::tempdir().expect("a directory");
    let (listener, crowd) = crowded(dir.path());
    let path = dir.path().to_owned();
    let (sender, thread) = channel();
    let subscribing = std::thread::spawn(move || {
        sender.send(rustix::thread::gettid()).expect("somebody waits for it");
        subscribe(&path, Delivery::Pull).map(drop)
    });
    let thread = thread.recv().expect("it runs").as_raw_nonzero();
    // Asleep in connect(2), so that it asks for a place before one is free.
    let connect = format!("{} ", libc::SYS_connect);
    wait_until("the subscriber to wait", || {
        let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")).unwrap_or_default();
        subscribing.is_finished() || call.starts_with(&connect)
    });
    assert!(!subscribing.is_finished(), "{:?}", subscribing.join());
    for _ in &crowd {
        listener.accept();
    }
    let peer = listener.accept();
    assert_eq!(peer.receive().expect("a hello").kind, raw::HELLO);
    drop(peer);
    // A subscriber whose session breaks before the peer's hello dials again, three times.
    for _ in 0..3 {
        let peer = listener.accept();
        assert_eq!(peer.receive().expect("a hello").kind, raw::HELLO);
    }
    let error = subscribing.join().expect("no panic").expect_err("the node hung up");
    assert!(matches!(error, SubscriberError::Session { .. }), "{error}");
}

#[test]
fn subscriber_that_times_out_on_a_full_backlog_names_the_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_listener, _crowd) = crowded(dir.path());
    let node = Node::builder().runtime_dir(dir.path()).open().expect("a node");
    let builder = node.state_subscriber::<Raw>("shm:victim/t").timeout(Duration::from_millis(50));
    let error = builder.open().expect_err("nobody accepts");
    let error = ErrorChain(&error).to_string();
    assert!(error.contains("timed out") && error.contains("shm:victim"), "{error}");
}

/// The number of open descriptors.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("the descriptors").count()
}

/// Bytes of memory that this process has written, shared pages counted once. The pages of its program do not count: each is divided
/// among the processes that run it now, so this process's share of them grows whenever another ends.
fn memory() -> usize {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").expect("the memory map");
    let kilobytes = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)).expect("a total");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
    };
    (kilobytes("Pss_Anon:") + kilobytes("Pss_Shmem:")) * 1024
}

/// Three thousand topics would need as many descriptors.
#[test]
fn table_of_many_instruments_takes_one_descriptor_and_the_memory_of_its_cells() {
    let dir = tempfile::tempdir().expect("a directory");
    // A process of its own: other tests open descriptors and write memory beside this one.
    let mut table = Peer::start("table", dir.path(), "");
    assert_eq!(table.hear(), "1", "descriptors");
    let (len, cells) = (table.hear(), KEYS * CELL_LEN);
    println!("{len} bytes for cells of {cells}");
    let len = len.parse::<usize>().expect("a number");
    assert!((cells..=cells * 3 / 2).contains(&len), "{len} bytes for cells of {cells}");
}

/// The instruments of a table.
const KEYS: usize = 3000;
const PAYLOAD_LEN: usize = 208;
/// Two slots, each with 48 bytes before the payload.
const CELL_LEN: usize = 2 * (48 + PAYLOAD_LEN);

/// A publisher and a subscriber of a table. Says what it takes: descriptors, bytes.
fn table(role: &Role) {
    type Value = [u64; 20];
    let node = |name: &str| Node::builder().name(name).expect("a name").runtime_dir(&role.dir).open();
    let (publishing, subscribing) = (node("p").expect("a node"), node("s").expect("a node"));
    let keys: Vec<String> = (0..KEYS).map(|number| format!("I{number:04}")).collect();
    let value: Value = [7; 20];
    let open = |topic: &str, capacity: usize| {
        let builder = publishing.table_publisher::<String, Value>(topic).capacity(capacity).key_len_max(16);
        let mut publisher = builder.payload_len_max(PAYLOAD_LEN).open().expect("a topic");
        let builder = subscribing.table_subscriber::<String, Value>(&format!("shm:p/{topic}"));
        let mut subscriber = builder.timeout(PATIENCE).open().expect("a subscription");
        for _ in 0..2 {
            publisher.put_batch(keys.iter().take(capacity).map(|key| (key, &value))).expect("they fit");
            assert_eq!(subscriber.changes().count(), capacity);
        }
        (publisher, subscriber)
    };
    // The session of the two nodes, and the program's own pages.
    let _small = open("small", 8);
    let before = (descriptors(), memory());
    let _large = open("large", KEYS);
    let after = (descriptors(), memory());
    role.say(after.0 - before.0);
    role.say(after.1.saturating_sub(before.1));
}
