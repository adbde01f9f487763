//! Nodes that are open to a group of their host. Processes of other users take part, so root has to run these tests.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use fabricast::{
    Admission, ControlError, Keyring, Node, NodeBuilder, Peer as PeerOfTopic, PeerAddress, Right,
    StatePublisher, SubscriberError, TopicName, Unproven,
};

use self::support::peer::Peer;
use self::support::role::Role;
use self::support::skip::skip;
use self::support::time::PATIENCE;

#[cfg(test)]
mod support;

/// The group to which nodes are open, one of its users, and a user of another group. They need no entries in /etc.
const GROUP: u32 = 54_321;
const MEMBER: (u32, u32) = (54_322, GROUP);
const STRANGER: (u32, u32) = (54_323, 54_324);

/// A place that every user can reach.
struct Place {
    holder: tempfile::TempDir,
}

impl Place {
    /// `None` if this process may not start others as other users.
    fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "only root starts processes of other users");
            return None;
        }
        let holder = tempfile::tempdir().expect("a directory");
        fs::set_permissions(holder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
        Some(Self { holder })
    }

    fn dir(&self) -> PathBuf {
        self.holder.path().join("run")
    }

    fn builder(&self, name: &str) -> NodeBuilder {
        Node::builder().runtime_dir(self.dir()).name(name).expect("a name")
    }

    /// What a process of this user finds of the topic `md` of a node, with the key of this secret, if there is one.
    fn outcome(&self, node: &str, (user, group): (u32, u32), secret: &str) -> String {
        let arguments = format!("{node} {secret}");
        Peer::start_as((user, group), "subscriber", &self.dir(), &arguments).hear()
    }
}

fn publish(node: &Node) -> StatePublisher<u64> {
    let mut publisher = node.state_publisher::<u64>("md").open().expect("a topic");
    publisher.publish(&7).expect("it fits");
    publisher
}

/// What only the directory's mode kept others from stays closed to them.
#[test]
fn directory_with_other_files_is_not_opened_to_a_group() {
    let Some(place) = Place::new("shm-group-other-files") else { return };
    fs::create_dir(place.dir()).expect("a directory");
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o700)).expect("its mode");
    fs::write(place.dir().join("bus"), b"").expect("a file");
    let refused = place.builder("quotes").shm_group(GROUP).open().expect_err("it holds another file");
    assert!(chain(&refused).contains("it holds other files"), "{refused}");
    assert_eq!(fs::metadata(place.dir()).expect("it is there").mode() & 0o777, 0o700);
    fs::remove_file(place.dir().join("bus")).expect("a file");
    place.builder("quotes").shm_group(GROUP).open().expect("it is empty");
    assert_eq!(fs::metadata(place.dir()).expect("it is there").mode() & 0o777, 0o750);
}

/// A subscriber that dials while the socket is there for its owner only would be refused.
#[test]
fn socket_of_a_node_that_restarts_is_open_to_the_group_from_the_start() {
    let Some(place) = Place::new("shm-group-restarts") else { return };
    let is_over = AtomicBool::new(false);
    let path = place.dir().join("quotes.sock");
    let seen = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut seen = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                let Ok(found) = fs::metadata(&path) else { continue };
                assert_eq!((found.mode() & 0o777, found.gid()), (0o660, GROUP));
                seen += 1;
            }
            seen
        });
        let opened = (0..300).try_for_each(|_| place.builder("quotes").shm_group(GROUP).open().map(drop));
        is_over.store(true, Ordering::Relaxed);
        opened.expect("a node each time");
        watcher.join().expect("it was open to the group whenever it was there")
    });
    assert!(seen > 0, "the socket was never there");
}

/// Entry point of the processes that tests start.
#[test]
#[ignore = "a process of another user"]
fn role() {
    let role = Role::of_this_process();
    if role.name == "publisher" {
        let builder = Node::builder().runtime_dir(&role.dir).name("quotes").expect("a name");
        let node = builder.shm_group(GROUP).open().expect("a node");
        let _publisher = publish(&node);
        role.say("ready");
        role.command();
        return;
    }
    role.say(subscribe(&role).unwrap_or_else(|error| chain(error.as_ref())));
}

/// The error with its causes, and whether another attempt may succeed.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let is_transient = error.downcast_ref().is_some_and(SubscriberError::is_transient);
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ").replace('\n', " ")
        + if is_transient { " (transient)" } else { "" }
}

/// Receives a value by pull and one by push, lists the nodes, and tries to take a name among them.
fn subscribe(role: &Role) -> Result<String, Box<dyn std::error::Error>> {
    let mut builder = Node::builder().runtime_dir(&role.dir);
    let address = format!("shm:{}/md", role.argument(0));
    if role.has_argument(1) {
        builder = builder.keys(Keyring::from_text(&format!("mine read * {}", role.argument(1)))?);
    }
    let node = builder.open()?;
    let mut pull = node.state_subscriber::<u64>(address.as_str()).timeout(PATIENCE).open()?;
    let mut push = node.state_subscriber::<u64>(address.as_str()).push().timeout(PATIENCE).open()?;
    let pulled = pull.receive_timeout(PATIENCE)?.map(|sample| sample.value);
    let pushed = push.receive_timeout(PATIENCE)?.map(|sample| sample.value);
    let publisher = pull.peer().map(|peer| peer.address);
    let alive: Vec<_> =
        node.nodes()?.into_iter().filter(|node| node.alive).map(|node| node.node.to_string()).collect();
    let named = Node::builder().runtime_dir(&role.dir).name("squatter")?.open().is_ok();
    Ok(format!("{pulled:?} {pushed:?} {publisher:?} {} {named}", alive.join(",")))
}

/// What a member of the group finds.
fn received(alive: &str) -> String {
    format!("Some(7) Some(7) Some(Local {{ user: 0, group: 0 }}) {alive} false")
}

/// Records which peers ask.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<PeerOfTopic>>);

impl Admission for Recorder {
    fn admit(&self, peer: &PeerOfTopic, _: &TopicName, _: Right) -> Result<(), String> {
        self.0.lock().expect("no panic").push(peer.clone());
        Ok(())
    }
}

#[test]
fn members_of_the_group_subscribe_and_others_do_not() {
    let Some(place) = Place::new("shm-group") else { return };
    let recorder = Arc::new(Recorder::default());
    let node = place.builder("quotes").shm_group(GROUP).admission(Arc::clone(&recorder) as _);
    let node = node.open().expect("a node");
    let _publisher = publish(&node);
    assert_eq!(place.outcome("quotes", MEMBER, ""), received("quotes"));
    let told = place.outcome("quotes", STRANGER, "");
    assert!(told.contains(" cannot be used: "), "{told}");

    let peers = recorder.0.lock().expect("no panic");
    let (user, group) = MEMBER;
    assert_eq!(peers.len(), 2, "by pull and by push: {peers:?}");
    for peer in peers.iter() {
        assert_eq!(peer.address, PeerAddress::Local { user, group });
        assert_ne!(peer.process, std::process::id());
    }
    for (file, mode) in [("", 0o750), ("quotes.sock", 0o660), ("quotes.node", 0o640)] {
        let found = fs::metadata(place.dir().join(file)).expect("it is there");
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (0, GROUP, mode), "{file}");
    }
}

#[test]
fn node_is_open_to_its_user_only_unless_it_says_otherwise() {
    let Some(place) = Place::new("shm-group") else { return };
    let alone = place.builder("alone").open().expect("a node");
    let _publisher = publish(&alone);
    let told = place.outcome("alone", MEMBER, "");
    assert!(told.contains(" cannot be used: "), "{told}");
    // Another node opens the directory, and this one stays as it is.
    let open = place.builder("open").shm_group(GROUP).open().expect("a node");
    let _other = publish(&open);
    let told = place.outcome("alone", MEMBER, "");
    assert!(told.contains("is open to its own user only, or to another group"), "{told}");
    assert!(!told.contains("(transient)"), "{told}");
    assert_eq!(place.outcome("open", MEMBER, ""), received("open"));
    // A name that was open is taken again.
    drop((_other, open));
    let _again = place.builder("open").open().expect("a node");
    for (file, mode) in [("open.sock", 0o600), ("open.node", 0o600)] {
        let found = fs::metadata(place.dir().join(file)).expect("it is there");
        assert_eq!(found.mode() & 0o7777, mode, "{file}");
    }
}

#[test]
fn keyring_decides_for_members_of_the_group_too() {
    let Some(place) = Place::new("shm-group") else { return };
    let secret = |byte: u8| format!("{byte:02x}").repeat(32);
    let keyring = Keyring::from_text(&format!("desk read md {}", secret(1))).expect("a line");
    let node = place.builder("quotes").shm_group(GROUP).keys(keyring).open().expect("a node");
    let _publisher = publish(&node);
    for other in [String::new(), secret(2)] {
        let told = place.outcome("quotes", MEMBER, &other);
        assert!(told.contains("it admits only nodes that prove one of its keys"), "{told}");
    }
    assert_eq!(place.outcome("quotes", MEMBER, &secret(1)), received("quotes"));
    drop((_publisher, node));

    // Of another user's node that has no keys, only its user is known.
    let node = place.builder("quotes").shm_group(GROUP).open().expect("a node");
    let _publisher = publish(&node);
    assert_eq!(place.outcome("quotes", MEMBER, &secret(1)), received("quotes"), "root is trusted");
}

/// The kernel shows whose a node is, and that is not enough where others can have nodes.
#[test]
fn node_of_another_user_has_to_prove_a_key() {
    let Some(place) = Place::new("shm-group") else { return };
    fs::create_dir(place.dir()).expect("a directory");
    std::os::unix::fs::chown(place.dir(), Some(MEMBER.0), Some(MEMBER.1)).expect("root gives it away");
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o700)).expect("its mode");
    let mut publisher = Peer::start_as(MEMBER, "publisher", &place.dir(), "");
    assert_eq!(publisher.hear(), "ready");
    let subscribe = |builder: NodeBuilder| {
        let node = builder.runtime_dir(place.dir()).open().expect("root reads any directory that it names");
        node.state_subscriber::<u64>("shm:quotes/md").timeout(PATIENCE).open()
    };
    let mut subscriber = subscribe(Node::builder()).expect("without keys nothing is to be proven");
    assert_eq!(subscriber.try_receive().expect("it goes on").map(|sample| sample.value), Some(7));
    let (user, group) = MEMBER;
    assert_eq!(subscriber.peer().expect("a publisher").address, PeerAddress::Local { user, group });
    let keyring = Keyring::from_text(&format!("mine read * {}", "01".repeat(32))).expect("a line");
    let error = subscribe(Node::builder().keys(keyring)).expect_err("it proves nothing");
    let SubscriberError::Session { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*source, ControlError::Unauthenticated { why: Unproven::DialledWithoutKeys });
}

#[test]
fn directory_is_open_to_one_group() {
    let Some(place) = Place::new("shm-group") else { return };
    let _node = place.builder("one").shm_group(GROUP).open().expect("a node");
    let _same = place.builder("same").shm_group(GROUP).open().expect("of the same group");
    let error = place.builder("other").shm_group(GROUP + 1).open().expect_err("of another group");
    assert!(error.to_string().contains(&format!("open to group {GROUP}")), "{error}");
}
