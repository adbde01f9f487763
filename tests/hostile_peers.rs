//! Peers that break the protocol: a node refuses them and serves the others, a subscriber gets an error.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fabricast::{
    ControlError, Delivery, ErrorChain, Event, EventSink, GrantError, Node, Payload, Raw, ReceiveError,
    StateSubscriber, SubscriberError, TopicId, TopicName, limits,
};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Resource, Rlimit};

use self::support::files::raise_files;
use self::support::pattern::{Pattern, Random, is_whole};
use self::support::peer::{Holdings, Peer};
use self::support::raw::{self, Body, RawListener, RawPeer};
use self::support::role::Role;
use self::support::skip::skip;
use self::support::time::{PATIENCE, now, wait_until, wait_within};

#[cfg(test)]
mod support;

const LEN_MAX: usize = 64;
/// The geometry of a repository of values of up to 64 bytes in 8 slots.
const SLOT_COUNT: u32 = 8;
const SLOT_STRIDE: u64 = 128;
const SLOTS_OFFSET: u64 = 0x900;
const REGION_LEN: u64 = SLOTS_OFFSET + SLOT_COUNT as u64 * SLOT_STRIDE;
const HOT_OFFSET: u64 = 0x80;
const PAGE: u64 = 4096;
const EPOCH: u64 = 0xBB;

/// Numbers of reasons.
const LANDING_UNFIT: u16 = 5;
const VERSION_UNSUPPORTED: u16 = 32;
const MALFORMED: u16 = 33;
const UNEXPECTED: u16 = 34;
const TOO_MANY_SESSIONS: u16 = 35;
const HELLO_DEADLINE: u16 = 36;

/// The largest control message, bytes.
const MESSAGE_LEN_MAX: usize = 96 * 1024;

/// The deadline of a hello, 2 s, doubled.
const SILENCE_LEN_MAX: Duration = Duration::from_secs(4);

#[test]
#[ignore = "not a test: the entry point of a process that a test starts"]
fn role() {
    let role = Role::of_this_process();
    assert_eq!(role.name, "victim");
    let troubles = Arc::new(Troubles::default());
    let builder = Node::builder().name("victim").expect("a name").runtime_dir(&role.dir);
    let node = builder.events(Arc::<Troubles>::clone(&troubles)).open().expect("a node");
    let mut publisher = node.state_publisher::<Raw>("t").payload_len_max(LEN_MAX).open().expect("a topic");
    let mut pattern = Pattern::new(LEN_MAX);
    role.say("ready");
    loop {
        match role.command().as_str() {
            "publish" => {
                let value = pattern.value(publisher.newest().get() + 1);
                role.say(publisher.publish(value).expect("it fits"));
            }
            "counts" => role.say(publisher.pull_subscribers() + publisher.push_subscribers()),
            "troubles" => role.say(*troubles.0.lock()),
            command => panic!("unknown value: {command}"),
        }
    }
}

/// Counts the system failures that a node reports.
#[derive(Debug, Default)]
struct Troubles(Mutex<u64>);

impl EventSink for Troubles {
    fn event(&self, event: &Event) {
        if matches!(event, Event::Trouble { .. }) {
            *self.0.lock() += 1;
        }
    }
}

/// A node in a process of its own, the target of hostile peers.
#[derive(Debug)]
struct Victim {
    dir: tempfile::TempDir,
    peer: Peer,
    holdings: Holdings,
}

impl Victim {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let peer = Peer::ready("victim", dir.path(), "");
        let holdings = peer.holdings();
        let mut victim = Self { dir, peer, holdings };
        victim.serves_and_holds_nothing();
        victim
    }

    fn dial(&self) -> RawPeer {
        RawPeer::dial(self.dir.path(), "victim")
    }

    fn greeted(&self) -> RawPeer {
        RawPeer::greeted(self.dir.path(), "victim")
    }

    /// A peer whose attachment number 1 waits for its landing region.
    fn attached(&self) -> RawPeer {
        let peer = self.greeted();
        peer.send(&raw::attach(1, "t", true));
        assert_eq!(peer.receive().expect("a grant").kind, raw::GRANTED);
        peer
    }

    fn subscribe(&self, delivery: Delivery) -> StateSubscriber<Raw> {
        let node = Node::builder().runtime_dir(self.dir.path()).open().expect("a node");
        let builder = node.state_subscriber::<Raw>("shm:victim/t").delivery(delivery);
        builder.timeout(PATIENCE).open().expect("a subscription")
    }

    fn publishes_to(&mut self, subscriber: &mut StateSubscriber<Raw>) {
        let sequence = self.peer.ask_number("publish");
        wait_until("the value", || {
            if let Some(sample) = subscriber.try_receive_ref().expect("a receive") {
                assert!(is_whole(sample.bytes, sample.meta.sequence.get(), LEN_MAX));
            }
            subscriber.last().get() == sequence
        });
    }

    /// Checks that it still serves well-behaved peers.
    fn serves(&mut self) {
        for delivery in [Delivery::Pull, Delivery::Push] {
            let mut subscriber = self.subscribe(delivery);
            self.publishes_to(&mut subscriber);
        }
    }

    /// Checks the same, and that it holds nothing of the hostile peers.
    fn serves_and_holds_nothing(&mut self) {
        self.serves();
        let began = now();
        loop {
            self.peer.ask("publish");
            let last = (self.peer.ask_number("counts"), self.peer.holdings());
            if last == (0, self.holdings) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{last:?} instead of {:?}", self.holdings);
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

#[track_caller]
fn is_refused(peer: &RawPeer, expected: u16) -> String {
    let (reason, text) = peer.receive().expect("a refusal").refusal();
    assert_eq!(reason, expected, "{text}");
    assert!(peer.receive().is_none(), "the connection stays open");
    text
}

#[test]
fn an_invalid_message_ends_the_session_with_a_refusal() {
    let mut victim = Victim::new();
    let hello = raw::hello(None);
    let mut messages: Vec<Vec<u8>> = (1..hello.len()).map(|len| hello[..len].to_vec()).collect();
    let mut random = Random(1);
    for len in [1, 15, 16, 17, 100, 4096, MESSAGE_LEN_MAX] {
        messages.push((0..len).map(|_| random.byte()).collect());
    }
    messages.push(vec![0; MESSAGE_LEN_MAX + 1]);
    messages.push([hello.as_slice(), &[0; 100_000]].concat());
    messages.push(Body::default().message(99));
    messages.push(Body::default().long(u64::MAX).message(raw::HELLO));
    for message in &messages {
        let peer = victim.dial();
        peer.send(message);
        is_refused(&peer, MALFORMED);
    }
    for message in &messages {
        let peer = victim.greeted();
        peer.send(message);
        is_refused(&peer, MALFORMED);
    }
    victim.serves_and_holds_nothing();
}

#[test]
fn another_version_is_refused_by_both_numbers() {
    let mut victim = Victim::new();
    let peer = victim.dial();
    peer.send(&Body::default().long(1).bytes(b"from the future").other_version(raw::HELLO));
    let refusal = peer.receive().expect("a refusal");
    assert_eq!(refusal.version, raw::VERSION);
    let (reason, text) = refusal.refusal();
    assert_eq!(reason, VERSION_UNSUPPORTED);
    assert!(text.contains(&raw::other_version_text()), "{text}");
    assert!(peer.receive().is_none());
    victim.serves_and_holds_nothing();
}

#[test]
fn a_silent_peer_is_dropped() {
    let mut victim = Victim::new();
    let silent = [victim.dial(), victim.dial()];
    let half = victim.dial();
    half.send(&raw::hello(None)[..20]);
    is_refused(&half, MALFORMED);
    victim.serves();
    for peer in &silent {
        let refusal = peer.receive_within(SILENCE_LEN_MAX).expect("a refusal");
        assert_eq!(refusal.refusal().0, HELLO_DEADLINE);
        assert!(peer.receive().is_none());
    }
    victim.serves_and_holds_nothing();
}

#[test]
fn messages_out_of_turn_end_the_session() {
    let mut victim = Victim::new();
    let twice = [raw::attach(1, "t", false), raw::attach(1, "t", false)];
    let conversations: [&[Vec<u8>]; 6] = [
        &[raw::hello(None)],
        &[raw::expose(1)],
        &twice,
        &[Body::default().word(1).long(0).long(0).long(0).long(0).long(0).message(raw::DETACH)],
        &[Body::default().word(1).message(raw::EXPOSED)],
        &[raw::attach(1, "t", true), raw::expose(1)],
    ];
    for conversation in conversations {
        let peer = victim.greeted();
        conversation.iter().for_each(|message| peer.send(message));
        let refusal = std::iter::from_fn(|| peer.receive()).last().expect("a refusal").refusal();
        assert_eq!(refusal.0, UNEXPECTED, "{}", refusal.1);
    }
    let peer = victim.dial();
    peer.send(&raw::attach(1, "t", false));
    is_refused(&peer, UNEXPECTED);
    let peer = victim.dial();
    peer.send(&raw::hello(Some(7)));
    is_refused(&peer, UNEXPECTED);
    victim.serves_and_holds_nothing();
}

#[test]
fn a_peer_that_does_not_read_answers_is_dropped() {
    let mut victim = Victim::new();
    let mut neighbour = victim.subscribe(Delivery::Push);
    let peer = victim.greeted();
    wait_until("the flood to be dammed", || peer.flood(&raw::list_topics(), 10_000));
    victim.publishes_to(&mut neighbour);
    drop(neighbour);
    drop(peer);
    victim.serves_and_holds_nothing();
}

#[test]
fn sessions_beyond_the_limit_are_refused_and_the_others_continue() {
    let wanted = limits::SESSIONS_PER_PEER_DEFAULT + 76;
    // The victim inherits the limit.
    let room = raise_files();
    if room < wanted as u64 + 100 {
        let why = format!("no more than {room} files may be open, {wanted} sessions need more (ulimit -n)");
        return skip("many-files", &why);
    }
    let mut victim = Victim::new();
    let mut neighbour = victim.subscribe(Delivery::Pull);
    let mut peers = Vec::new();
    let mut refused = 0;
    for _ in 0..wanted {
        let peer = victim.dial();
        // It may be refused, and the connection closed, before this is sent.
        let _ = peer.try_send(&raw::hello(None), &[]);
        let reply = peer.receive().expect("an answer");
        if reply.kind == raw::HELLO {
            peers.push(peer);
        } else {
            assert_eq!(reply.refusal().0, TOO_MANY_SESSIONS);
            refused += 1;
        }
    }
    // The neighbour has one session.
    assert_eq!((peers.len(), refused), (limits::SESSIONS_PER_PEER_DEFAULT - 1, 77));
    victim.publishes_to(&mut neighbour);
    drop((peers, neighbour));
    wait_until("a free session", || {
        let peer = victim.dial();
        let _ = peer.try_send(&raw::hello(None), &[]);
        peer.receive().is_some_and(|reply| reply.kind == raw::HELLO)
    });
    victim.serves_and_holds_nothing();
}

#[test]
fn a_node_out_of_files_neither_spins_nor_stops() {
    let mut victim = Victim::new();
    let mut neighbour = victim.subscribe(Delivery::Push);
    let room = victim.peer.holdings().files as u64 + 10;
    let few = Rlimit { current: Some(room), maximum: Some(room) };
    rustix::process::prlimit(Some(victim.peer.pid()), Resource::Nofile, few).expect("limits can be lowered");
    let peers: Vec<RawPeer> = (0..30).map(|_| victim.dial()).collect();
    wait_until("trouble", || victim.peer.ask_number("troubles") > 0);
    let (began, before_ns) = (now(), victim.peer.cpu_ns());
    let before = victim.peer.ask_number("troubles");
    wait_until("some time to pass", || began.elapsed() > Duration::from_secs(1));
    let used = Duration::from_nanos(victim.peer.cpu_ns() - before_ns);
    let troubles = victim.peer.ask_number("troubles") - before;
    let elapsed = began.elapsed();
    assert!(used < elapsed / 5, "{used:?} of the processor's time in {elapsed:?}");
    assert!(u128::from(troubles) < 200 * elapsed.as_millis() / 1000, "{troubles} events in {elapsed:?}");
    victim.publishes_to(&mut neighbour);
    drop((peers, neighbour));
    victim.serves_and_holds_nothing();
}

#[test]
fn unrequested_files_are_closed() {
    let mut victim = Victim::new();
    let file = raw::memory_file(PAGE, SealFlags::SHRINK);
    let files = [file.as_fd(); 8];
    for count in [1, 2, 4, 5, 8] {
        for message in [raw::hello(None), vec![7; 40]] {
            let peer = victim.dial();
            peer.send_with(&message, files.get(..count).expect("eight of them"));
            let (reason, text) = peer.receive().expect("a refusal").refusal();
            assert!(matches!(reason, MALFORMED | UNEXPECTED), "{reason}: {text}");
            peer.wait_closed();
        }
        let peer = victim.attached();
        peer.send_with(&raw::list_topics(), files.get(..count).expect("eight of them"));
        peer.wait_closed();
    }
    let peer = victim.attached();
    peer.send_with(&raw::expose(1), &[file.as_fd(), file.as_fd()]);
    peer.wait_closed();
    victim.serves_and_holds_nothing();
}

#[test]
fn unfit_landing_regions_are_refused_and_a_fit_one_is_accepted_after() {
    let mut victim = Victim::new();
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    let regular = tempfile::tempfile().expect("a file");
    regular.set_len(PAGE).expect("a length");
    let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let mut unfit: Vec<(&str, OwnedFd)> = vec![
        ("not sealed", raw::memory_file(PAGE, SealFlags::empty())),
        ("sealed against growing only", raw::memory_file(PAGE, SealFlags::GROW)),
        ("sealed against writing", raw::memory_file(PAGE, fixed | SealFlags::FUTURE_WRITE)),
        ("empty", raw::memory_file(0, fixed)),
        ("no whole pages", raw::memory_file(PAGE + 8, fixed)),
        ("regular file", regular.into()),
        ("socket", socket.into()),
        ("directory", std::fs::File::open(victim.dir.path()).expect("a directory").into()),
    ];
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    // Not every kernel has them.
    if let Ok(file) = rustix::fs::memfd_create(c"hostile", flags) {
        rustix::fs::ftruncate(&file, 2 << 20).expect("a length");
        rustix::fs::fcntl_add_seals(&file, fixed).expect("seals");
        unfit.push(("huge pages", file));
    }
    let peer = victim.attached();
    for (what, file) in &unfit {
        peer.send_with(&raw::expose(1), &[file.as_fd()]);
        let (reason, text) = peer.receive().expect("an answer").refused();
        assert_eq!(reason, LANDING_UNFIT, "{what}: {text}");
        assert!(!text.is_empty(), "{what}");
    }
    let fit = raw::full_file(PAGE, fixed);
    peer.send_with(&raw::expose(1), &[fit.as_fd()]);
    assert_eq!(peer.receive().expect("an answer").kind, raw::EXPOSED);
    let sequence = victim.peer.ask_number("publish");
    let mut newest = [0; 8];
    rustix::io::pread(&fit, &mut newest, HOT_OFFSET).expect("it can be read");
    assert_eq!(u64::from_le_bytes(newest), sequence, "values come to the landing region");
    drop(peer);
    victim.serves_and_holds_nothing();
}

/// A sparse file costs its owner nothing; a process that maps all of it, pages present, pays for every page.
#[test]
fn an_oversized_landing_region_costs_only_its_used_part() {
    let mut victim = Victim::new();
    let peer = victim.attached();
    let huge = raw::memory_file(256 << 20, SealFlags::SHRINK | SealFlags::GROW);
    peer.send_with(&raw::expose(1), &[huge.as_fd()]);
    let answer = peer.receive().expect("an answer");
    victim.peer.ask("publish");
    let used = rustix::fs::fstat(&huge).expect("its size").st_blocks * 512;
    assert!(used <= 1 << 20, "{used} bytes were made present for a region of {REGION_LEN}: {answer:?}");
    drop(peer);
    victim.serves_and_holds_nothing();
}

/// The behaviour of a fake node.
type Deceit = fn(&RawPeer);

#[test]
fn a_fake_node_costs_a_subscriber_its_timeout_at_most() {
    let deceits: [(&str, Deceit); 13] = [
        ("silence", |_| {}),
        ("garbage", |peer| peer.send(&[7; 100])),
        ("too short", |peer| peer.send(b"FBCT")),
        ("too long", |peer| peer.send(&[0; MESSAGE_LEN_MAX + 1])),
        ("another version", |peer| peer.send(&Body::default().other_version(raw::HELLO))),
        ("a refusal of another version", |peer| {
            peer.send(&Body::default().short(VERSION_UNSUPPORTED).short(0).other_version(raw::REFUSE));
        }),
        ("a refusal", |peer| peer.send(&Body::default().short(999).short(0).message(raw::REFUSE))),
        ("an answer to another hello", |peer| peer.send(&raw::hello(Some(1)))),
        ("a hello that answers nothing", |peer| peer.send(&raw::hello(None))),
        ("a grant before the hello", |peer| peer.send(&grant(SLOT_STRIDE))),
        ("a file before the hello", |peer| {
            peer.send_with(&raw::hello(Some(1)), &[raw::memory_file(PAGE, SealFlags::empty()).as_fd()]);
        }),
        ("silence after the hello", greet),
        ("garbage after the hello", |peer| {
            greet(peer);
            peer.send(&[7; 100]);
        }),
    ];
    for (what, deceit) in deceits {
        let is_silent = what.contains("silence");
        let timeout = if is_silent { Duration::from_secs(2) } else { PATIENCE };
        let error = deceived(Delivery::Pull, timeout, deceit);
        assert!(matches!(error, SubscriberError::Session { .. }), "{what}: {error}");
        let is_deadline =
            matches!(error, SubscriberError::Session { source: ControlError::Deadline { .. }, .. });
        assert_eq!(is_deadline, is_silent, "{what}: {error}");
        if what.contains("another version") {
            assert!(ErrorChain(&error).to_string().contains(&raw::other_version_text()), "{error}");
        }
    }
}

#[test]
fn a_node_that_hangs_up_is_an_error_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = RawListener::bind(dir.path(), "fake");
    let server = std::thread::spawn(move || drop(listener.accept()));
    // It is dialled again. The socket's file still exists.
    for _ in 0..2 {
        let error = subscribe(dir.path(), Delivery::Pull, PATIENCE).expect_err("nobody is there");
        assert!(matches!(error, SubscriberError::Unreachable { .. }), "{error}");
    }
    server.join().expect("it hung up");
    std::fs::remove_file(dir.path().join("fake.sock")).expect("the file is there");
    let listener = RawListener::bind(dir.path(), "fake");
    std::thread::spawn(move || {
        loop {
            drop(listener.accept());
        }
    });
    let error = subscribe(dir.path(), Delivery::Pull, PATIENCE).expect_err("it hangs up each time");
    let is_cut = matches!(error, SubscriberError::Session { source: ControlError::Disconnected, .. });
    assert!(is_cut, "{error}");
}

#[test]
fn a_peer_queued_at_a_dying_node_reaches_the_next_of_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let dying = RawListener::bind(dir.path(), "fake");
    let subscriber = std::thread::spawn({
        let dir = dir.path().to_owned();
        move || subscribe(&dir, Delivery::Pull, PATIENCE)
    });
    dying.wait_dialled();
    let node = Node::builder().name("fake").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    let mut publisher = node.state_publisher::<Raw>("t").open().expect("a publisher");
    publisher.publish(b"value").expect("published");
    drop(dying);
    let mut subscriber = subscriber.join().expect("it ran").expect("the next node answers");
    let sample = subscriber.try_receive().expect("received").expect("there is one");
    assert_eq!(sample.value, b"value");
}

#[test]
fn grants_that_do_not_fit_are_refused() {
    let error = deceived(Delivery::Pull, PATIENCE, |peer| granted(peer, SLOT_STRIDE, None));
    assert!(matches!(error, SubscriberError::Session { .. }), "{error}");
    let error = deceived(Delivery::Push, PATIENCE, |peer| granted(peer, 64, None));
    assert!(matches!(error, SubscriberError::Unfit { source: GrantError::Geometry(_), .. }), "{error}");
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
    let unfit = [
        raw::memory_file(PAGE, SealFlags::empty()),
        raw::memory_file(PAGE, SealFlags::SHRINK),
        raw::memory_file(0, sealed),
        raw::full_file(PAGE - 8, sealed),
        std::fs::File::open("/dev/zero").expect("the file exists").into(),
        std::io::pipe().expect("a pipe").0.into(),
    ];
    for file in unfit {
        let error = deceived(Delivery::Pull, PATIENCE, move |peer| granted(peer, SLOT_STRIDE, Some(&file)));
        assert!(matches!(error, SubscriberError::Unfit { source: GrantError::Fabric(_), .. }), "{error}");
    }
    let sparse = raw::memory_file(PAGE, sealed);
    let error = deceived(Delivery::Pull, PATIENCE, move |peer| granted(peer, SLOT_STRIDE, Some(&sparse)));
    assert!(ErrorChain(&error).to_string().contains("sparse"), "{error}");
    let empty = raw::full_file(PAGE, sealed);
    let error = deceived(Delivery::Pull, PATIENCE, move |peer| granted(peer, SLOT_STRIDE, Some(&empty)));
    assert!(matches!(error, SubscriberError::Unfit { source: GrantError::Header(_), .. }), "{error}");
}

/// A publisher may write anything into a landing region: the subscriber distinguishes a value
/// from garbage, and continues.
#[test]
fn garbage_in_a_landing_region_is_never_a_value() {
    let seed = 5;
    println!("SEED={seed}");
    let mut random = Random(seed);
    let (mut subscriber, landing, _session) = exposed();
    let (mut rejected, mut contended) = (0, 0);
    for _ in 0..20_000 {
        let newest = subscriber.last().get() + 1 + random.below(20) as u64;
        let mut bytes: Vec<u8> = (0..SLOT_STRIDE).map(|_| random.byte()).collect();
        if random.below(4) > 0 {
            bytes = slot(newest, EPOCH ^ (random.next() >> random.below(64)), &[0; 40]);
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        write(&landing, slot_offset(subscriber.last().get().wrapping_add(1)), &newest.to_le_bytes());
        write(&landing, slot_offset(newest), &bytes);
        write(&landing, HOT_OFFSET, &newest.to_le_bytes());
        write(&landing, HOT_OFFSET + 8, &random.next().to_le_bytes());
        match subscriber.try_receive() {
            Ok(None) => {}
            Ok(Some(sample)) => panic!("{sample:?} was taken for a value"),
            Err(ReceiveError::Contended { .. }) => contended += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                rejected += 1;
            }
        }
    }
    println!("{rejected} rejected, {contended} contended");
    assert!(rejected > 15_000, "{rejected} rejected, {contended} contended");
}

/// A value whose stamps disagree is a line of `watch`, like any other damage, and watching continues.
#[test]
#[cfg(feature = "cli")]
fn broken_stamps_are_a_loss_for_watch() {
    let (mut watch, landing, _session) = exposed_by(|dir| {
        let mut watch = std::process::Command::new(env!("CARGO_BIN_EXE_fabricast"));
        watch.args(["watch", "shm:fake/t", "--delivery", "push", "--json", "--count", "2", "--runtime-dir"]);
        watch.arg(dir).stdout(std::process::Stdio::piped()).spawn().expect("the program")
    });
    let out = watch.stdout.take().expect("standard output is a pipe");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(out)).map_while(Result::ok);
    for sequence in 1..=3_u64 {
        let mut slot = slot(sequence, EPOCH, &sequence.to_le_bytes());
        let expected = if sequence == 2 {
            *slot.last_mut().expect("a stamp") ^= 1;
            r#"{"topic":"t","lost":1,"first_lost":2,"reason":"damaged"}"#.to_owned()
        } else {
            format!(r#""sequence":{sequence},"#)
        };
        announce(&landing, sequence, &slot);
        let line = lines.next().expect("a line");
        assert!(line.contains(&expected), "{line}");
    }
    assert!(watch.wait().expect("it ends").success());
}

/// A publisher may claim to have published for 584 years.
#[test]
fn the_highest_sequences_do_no_harm() {
    for first in [1, u64::MAX - 3, u64::MAX] {
        let (mut subscriber, landing, _session) = exposed();
        let sequences = [first, u64::MAX - 2, u64::MAX - 1, u64::MAX, 0, 1, 2];
        let mut newest = 0_u64;
        for sequence in sequences {
            // The subscriber reads where the value after the last one would be.
            write(&landing, slot_offset(newest.wrapping_add(1)), &sequence.to_le_bytes());
            write(&landing, slot_offset(sequence), &slot(sequence, EPOCH, &sequence.to_le_bytes()));
            write(&landing, HOT_OFFSET, &sequence.to_le_bytes());
            write(&landing, HOT_OFFSET + 8, &8_u64.to_le_bytes());
            let sample = subscriber.try_receive().expect("a receive");
            assert_eq!(sample.is_some(), sequence > newest, "{sequence} after {newest}: {sample:?}");
            if let Some(sample) = sample {
                assert_eq!(sample.value, sequence.to_le_bytes());
                newest = sequence;
            }
        }
        assert_eq!(subscriber.last().get(), u64::MAX);
    }
}

/// Subscribes to a fake node with this timeout, and returns the error.
fn deceived(
    delivery: Delivery,
    timeout: Duration,
    deceit: impl FnOnce(&RawPeer) + Send + 'static,
) -> SubscriberError {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = RawListener::bind(dir.path(), "fake");
    let server = std::thread::spawn(move || {
        let peer = listener.accept();
        deceit(&peer);
        // Stays until the subscriber hangs up.
        peer.wait_closed();
    });
    let error = subscribe(dir.path(), delivery, timeout).expect_err("nobody is a node there");
    wait_within(PATIENCE, "the subscriber to hang up", || server.is_finished());
    server.join().expect("the deceit went as planned");
    error
}

fn subscribe(
    dir: &Path,
    delivery: Delivery,
    timeout: Duration,
) -> Result<StateSubscriber<Raw>, SubscriberError> {
    let node = Node::builder().runtime_dir(dir).open().expect("a node");
    node.state_subscriber::<Raw>("shm:fake/t").delivery(delivery).timeout(timeout).open()
}

/// Sends a hello like a node.
fn greet(peer: &RawPeer) {
    let nonce = peer.receive().expect("a hello").long(0);
    peer.send(&raw::hello(Some(nonce)));
}

/// Grants the request, with this file.
fn granted(peer: &RawPeer, slot_stride: u64, file: Option<&OwnedFd>) {
    greet(peer);
    assert_eq!(peer.receive().expect("a request").kind, raw::ATTACH);
    match file {
        Some(file) => peer.send_with(&grant(slot_stride), &[file.as_fd()]),
        None => peer.send(&grant(slot_stride)),
    }
}

/// The grant of attachment number 0.
fn grant(slot_stride: u64) -> Vec<u8> {
    let schema = Raw::schema().expect("bytes can be described").to_json();
    let body = Body::default().word(0).long(topic_id()).word(0).long(EPOCH).long(EPOCH);
    let body = body
        .word(u32::try_from(LEN_MAX).expect("it is small"))
        .long(REGION_LEN)
        .long(SLOT_COUNT.into())
        .long(slot_stride)
        .long(0)
        .long(0);
    body.bytes(&schema).long(1).long(0).long(0).long(0).long(0).message(raw::GRANTED)
}

/// The topic's number in messages and checksums.
fn topic_id() -> u64 {
    let topic: TopicName = "t".parse().expect("a name");
    TopicId::of(&topic).get()
}

/// A push subscriber, the landing region that it exposed, and the session, which ends on drop.
fn exposed() -> (StateSubscriber<Raw>, OwnedFd, RawPeer) {
    exposed_by(|dir| subscribe(dir, Delivery::Push, PATIENCE).expect("a subscription"))
}

/// Like [`exposed`], with the subscriber started there.
fn exposed_by<S>(start: impl FnOnce(&Path) -> S) -> (S, OwnedFd, RawPeer) {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = RawListener::bind(dir.path(), "fake");
    let server = std::thread::spawn(move || {
        let peer = listener.accept();
        granted(&peer, SLOT_STRIDE, None);
        let mut expose = peer.receive().expect("a landing region");
        assert_eq!((expose.kind, expose.files.len()), (raw::EXPOSE, 1));
        peer.send(&Body::default().word(0).message(raw::EXPOSED));
        (expose.files.remove(0), peer)
    });
    let subscriber = start(dir.path());
    let (landing, peer) = server.join().expect("the deceit went as planned");
    (subscriber, landing, peer)
}

fn slot_offset(sequence: u64) -> u64 {
    SLOTS_OFFSET + sequence % u64::from(SLOT_COUNT) * SLOT_STRIDE
}

/// Writes a value's slot into a landing region, and announces it.
#[cfg(feature = "cli")]
fn announce(landing: &OwnedFd, sequence: u64, slot: &[u8]) {
    write(landing, slot_offset(sequence), slot);
    write(landing, HOT_OFFSET + 8, &8_u64.to_le_bytes());
    write(landing, HOT_OFFSET, &sequence.to_le_bytes());
}

fn write(landing: &OwnedFd, offset: u64, bytes: &[u8]) {
    assert_eq!(rustix::io::pwrite(landing, bytes, offset), Ok(bytes.len()));
}

/// A slot with this value, as written by a publisher. The value's length is a multiple of 8.
fn slot(sequence: u64, epoch: u64, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(epoch.to_le_bytes());
    bytes.extend((value.len() as u64 | 3 << 32).to_le_bytes());
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend(value);
    let crc = raw::crc32(&[topic_id().to_le_bytes().as_slice(), &bytes].concat());
    bytes.extend(u64::from(crc).to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes
}
