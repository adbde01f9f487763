//! The sockets through which the peer wakes what waits for subscriptions of this session among others.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use super::LinkAttachment;
use crate::control::WakeBy;
use crate::fabric::FabricError;
use crate::subscriber::Waiter;

/// The wake sockets of a session, one for each waiter of its attachments: what one publisher does with its socket affects only its own
/// topics.
#[derive(Debug, Default)]
pub(super) struct WakeSockets {
    sockets: Vec<SessionSocket>,
    number_next: u32,
}

#[derive(Debug)]
struct SessionSocket {
    waiter: Weak<Waiter>,
    /// Its number in the session.
    number: u32,
    /// The sending end, which the attachments that are woken through it keep open.
    sender: Weak<OwnedFd>,
}

impl WakeSockets {
    /// Returns the socket of this waiter: its number, and the sending end.
    fn of(&mut self, waiter: &Arc<Waiter>) -> Result<(u32, Arc<OwnedFd>), FabricError> {
        let is_used = |it: &SessionSocket| it.waiter.strong_count() > 0 && it.sender.strong_count() > 0;
        self.sockets.retain(is_used);
        let mut same = self.sockets.iter().filter(|it| std::ptr::eq(it.waiter.as_ptr(), Arc::as_ptr(waiter)));
        if let Some((number, sender)) = same.find_map(|it| Some((it.number, it.sender.upgrade()?))) {
            return Ok((number, sender));
        }
        let sender = Arc::new(waiter.open_socket()?);
        let number = self.number_next;
        self.number_next = number.wrapping_add(1);
        self.sockets.push(SessionSocket {
            waiter: Arc::downgrade(waiter),
            number,
            sender: Arc::downgrade(&sender),
        });
        Ok((number, sender))
    }
}

impl LinkAttachment {
    /// Asks the peer to wake this waiter by a socket, with this token.
    pub(super) fn ask_to_wake(&self, waiter: &Arc<Waiter>, token: u32) -> Result<(), FabricError> {
        let state = &mut *self.link.state.lock();
        if !state.connection.capabilities().shares_memory {
            return Err(FabricError::Access { why: "this medium carries no sockets" });
        }
        let (socket, sender) = state.wake_sockets.of(waiter)?;
        self.attached.inbox.lock().socket = Some(sender);
        let asked = state.session.wake_by(WakeBy { attachment: self.id, socket, token });
        // The session is over, or the topic has ended: the waiter is told.
        asked.map_err(|_| FabricError::Closed)?;
        state.flush();
        Ok(())
    }
}
