//! Peers that would take all descriptors of a node: by messages that are full of them, and by wake sockets.

use std::os::unix::net::UnixStream;

use super::*;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

/// Refused, and trouble.
#[derive(Debug, Default)]
struct Told(Mutex<(usize, usize)>);

impl EventSink for Told {
    fn event(&self, event: &Event) {
        match event {
            Event::Refused { .. } => self.0.lock().0 += 1,
            Event::Trouble { .. } => self.0.lock().1 += 1,
            _ => {}
        }
    }
}

/// A node of a process that may have this many descriptors.
pub(super) fn few(role: &Role) {
    let files = role.number(0) as u64;
    let few = Rlimit { current: Some(files), maximum: Some(files) };
    rustix::process::setrlimit(Resource::Nofile, few).expect("limits can be lowered");
    let told = Arc::new(Told::default());
    let builder = Node::builder().name("victim").expect("a name").runtime_dir(&role.dir);
    let node = builder.events(Arc::<Told>::clone(&told)).open().expect("a node");
    let mut state = node.state_publisher::<Raw>("t").payload_len_max(LEN_MAX).open().expect("a topic");
    role.say("ready");
    let mut filling = Vec::new();
    loop {
        match role.command().as_str() {
            "publish" => role.say(state.publish(b"value").expect("it fits")),
            // All that are left.
            "fill" => {
                filling.extend(std::iter::from_fn(|| rustix::io::dup(std::io::stdin()).ok()));
                role.say(filling.len());
            }
            "free" => role.say(filling.drain(..).count()),
            "refused" => role.say(told.0.lock().0),
            "troubles" => role.say(told.0.lock().1),
            command => panic!("what is {command}?"),
        }
    }
}

/// A socket whose close blocks until the other end is closed, although it does not linger: a message in it holds one that does.
fn blocking() -> (OwnedFd, TcpStream) {
    let (file, end) = lingering();
    let flags = SocketFlags::CLOEXEC;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (carrier, carried) = pair.expect("a pair of sockets");
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&files)));
    let message = [std::io::IoSlice::new(b"carried")];
    rustix::net::sendmsg(&carrier, &message, &mut ancillary, SendFlags::empty()).expect("it is sent");
    (carried, end)
}

/// As many as a message can carry, in messages that the node does not receive, and in some that it does.
#[test]
fn peers_whose_messages_are_full_of_descriptors_leave_most_to_the_node() {
    const FILES: usize = 1024;
    const SESSIONS: usize = 6;
    let dir = tempfile::tempdir().expect("a directory");
    // As many may be under way between two processes.
    let (files, wanted) = (raise_files(), 4 * FILES as u64);
    if files < wanted {
        let why = format!("{wanted} open files are needed, and the hard limit (ulimit -Hn) is {files}");
        return skip("many-files", &why);
    }
    let mut victim = Peer::ready("few", dir.path(), &FILES.to_string());
    serves(&mut victim, dir.path());
    let before = victim.holdings().files;

    let null: OwnedFd = std::fs::File::open("/dev/null").expect("a file").into();
    let mut ends = Vec::new();
    for is_received in [false, true] {
        let peers: Vec<RawPeer> = (0..SESSIONS).map(|_| RawPeer::dial(dir.path(), "victim")).collect();
        victim.stop();
        for peer in &peers {
            let (file, end) = blocking();
            let mut laden = vec![null.as_fd(); raw::FILES_MAX];
            laden[0] = file.as_fd();
            if !is_received {
                // It ends the session, and the next message is not read.
                peer.send(&[7; 40]);
            }
            peer.send_with(&raw::hello(None), &laden);
            ends.push(end);
        }
        victim.signal(Signal::CONT);
        peers.iter().for_each(RawPeer::wait_closed);
        wait_until("descriptors that are being closed", || victim.holdings().files > before + FILES / 32);
        for _ in 0..3 {
            serves(&mut victim, dir.path());
            // One message at a time, a sixteenth of what it may have, and the connections that wait.
            let most = before + FILES / 16 + 2 * SESSIONS + 16;
            let files = victim.holdings().files;
            assert!(files <= most, "{files} descriptors, {before} before, and at most {most} are expected");
        }
    }
    drop(ends);
    wait_until("the end of all", || victim.holdings().files <= before + 1);
    serves(&mut victim, dir.path());
}

/// Its last copy would be closed by the kernel, on the node's thread, if the message were received.
#[test]
fn descriptor_for_which_a_process_has_no_room_delays_nobody() {
    const FILES: usize = 256;
    let dir = tempfile::tempdir().expect("a directory");
    let mut victim = Peer::ready("few", dir.path(), &FILES.to_string());
    serves(&mut victim, dir.path());
    let innocent = RawPeer::greeted(dir.path(), "victim");
    let peer = RawPeer::greeted(dir.path(), "victim");
    assert!(victim.ask_number("fill") > 0);
    let ends = send_lingering(&victim, &peer, &raw::hello(None), 1);
    // A second hello, and nothing is left of its session.
    peer.wait_closed();
    for _ in 0..10 {
        innocent.send(&raw::list_topics());
        assert!(innocent.receive().is_some(), "it is answered");
    }
    victim.ask_number("free");
    serves(&mut victim, dir.path());
    drop(ends);
}

/// Asks to be woken through this socket. Returns whether it will be.
fn is_woken(peer: &RawPeer, (attachment, socket): (u32, u32), file: &impl AsFd) -> bool {
    peer.send_with(&raw::wake_by(attachment, socket), &[file.as_fd()]);
    let answer = peer.receive().expect("an answer");
    assert_eq!(answer.kind, raw::WAKE_SLOT, "{answer:?}");
    answer.body.get(4) == Some(&1)
}

#[test]
fn peer_with_many_wake_sockets_leaves_descriptors_to_the_node() {
    const FILES: usize = 256;
    const SOCKETS: u32 = 60;
    let dir = tempfile::tempdir().expect("a directory");
    let mut victim = Peer::ready("few", dir.path(), &FILES.to_string());
    serves(&mut victim, dir.path());
    let peer = RawPeer::greeted(dir.path(), "victim");
    for attachment in 1..=SOCKETS {
        peer.send(&raw::attach(attachment, "t", false));
        assert_eq!(peer.receive().expect("a grant").kind, raw::GRANTED);
        peer.send(&raw::listen(attachment));
        assert_eq!(peer.receive().expect("an answer").kind, raw::NOTICES);
    }
    let before = victim.holdings().files;

    // What wakes nobody is refused, and is not the node's trouble.
    let null = std::fs::File::open("/dev/null").expect("a file");
    for socket in 0..5 {
        assert!(!is_woken(&peer, (1, socket), &null));
    }
    assert_eq!((victim.ask_number("refused"), victim.ask_number("troubles")), (5, 0));

    let pairs: Vec<_> = (0..SOCKETS).map(|_| UnixStream::pair().expect("a pair of sockets")).collect();
    let mut woken = 0;
    for (attachment, (_, theirs)) in (1..).zip(&pairs) {
        woken += usize::from(is_woken(&peer, (attachment, 100 + attachment), theirs));
    }
    assert_eq!(woken, FILES / 8, "an eighth of what the process may have");
    wait_until("the others to be closed", || victim.holdings().files <= before + woken);
    serves(&mut victim, dir.path());
    drop(peer);
    // A publisher lets go of those that it woke when it publishes next.
    wait_until("all to be closed", || {
        victim.ask_number("publish");
        victim.holdings().files <= before
    });
}
