//! Sessions whose connections fail.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::*;
use crate::control::ClientSession;
use crate::event::EventSink;
use crate::fabric::{Registration, Sent};
use crate::node::Node;

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventSink for Recorder {
    fn event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

/// A connection over which these messages come, and then this error.
#[derive(Debug)]
struct Failing {
    messages: VecDeque<Vec<u8>>,
    error: fn() -> FabricError,
    sent: Arc<Mutex<usize>>,
}

impl Connection for Failing {
    fn send(&mut self, _: &[u8], _: Option<&Registration>) -> Result<Sent, FabricError> {
        *self.sent.lock() += 1;
        Ok(Sent::Done)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Received, FabricError> {
        let message = self.messages.pop_front().ok_or_else(self.error)?;
        into[..message.len()].copy_from_slice(&message);
        Ok(Received::Message { len: message.len(), offer: None })
    }

    fn writes_words_in_order(&self) -> bool {
        true
    }

    fn prepare(&self, _: &Registration) -> Result<RemoteKey, FabricError> {
        Ok(RemoteKey::default())
    }

    fn withdraw(&mut self, _: &Registration) {}

    fn wait_handle(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// How many messages a peer was sent that said hello, and how the session ended.
fn end(error: fn() -> FabricError) -> (usize, Vec<Event>) {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder::default());
    let builder = Node::builder().runtime_dir(dir.path()).events(Arc::clone(&recorder) as _);
    let node = builder.open().unwrap();
    let core = node.core();
    let mut peer = ClientSession::connect(0, core.identity().clone(), core.nonce().unwrap(), u64::MAX);
    let messages = std::iter::from_fn(|| peer.next_message()).map(|message| message.bytes).collect();
    let sent = Arc::new(Mutex::new(0));
    let connection = Failing { messages, error, sent: Arc::clone(&sent) };
    let mut served = Served::new(core, Box::new(connection), core.clock().monotonic_ns(), true).unwrap();
    served.turn(core, core.clock().monotonic_ns(), &mut vec![0; limits::CONTROL_MESSAGE_LEN_MAX]);
    assert!(served.is_over());
    let events = recorder.0.lock().drain(..).collect();
    let sent = *sent.lock();
    (sent, events)
}

#[test]
fn a_connection_that_fails_is_no_fault_of_the_peer() {
    let failed: fn() -> FabricError =
        || FabricError::System { what: "reach the peer", source: std::io::ErrorKind::HostUnreachable.into() };
    for error in [failed, || FabricError::Closed] {
        let (sent, events) = end(error);
        assert_eq!(sent, 1, "its hello is answered, and that is all");
        let [Event::SessionOpened { .. }, Event::SessionClosed { orderly: false, .. }] = &events[..] else {
            panic!("{events:?}")
        };
    }
}

#[test]
fn a_message_that_is_too_long_is_the_fault_of_the_peer() {
    let (sent, events) = end(|| FabricError::MessageTooLong { len: 1 << 20, max: 1 << 16 });
    assert_eq!(sent, 2, "a hello and a refusal");
    assert!(events.iter().any(|event| matches!(event, Event::PeerRejected { .. })), "{events:?}");
}
