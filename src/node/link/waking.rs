//! The sockets through which the peer wakes what waits for subscriptions of this session among others.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use crate::fabric::FabricError;
use crate::subscriber::Waiter;

/// The wake sockets of a session, one for each waiter: what one publisher does with its socket affects only its own topics.
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
    /// The sending end.
    sender: Arc<OwnedFd>,
}

impl WakeSockets {
    /// Returns the socket of this waiter: its number, and the sending end.
    pub(super) fn of(&mut self, waiter: &Arc<Waiter>) -> Result<(u32, Arc<OwnedFd>), FabricError> {
        self.sockets.retain(|socket| socket.waiter.strong_count() > 0);
        let known =
            self.sockets.iter().find(|socket| std::ptr::eq(socket.waiter.as_ptr(), Arc::as_ptr(waiter)));
        if let Some(SessionSocket { number, sender, .. }) = known {
            return Ok((*number, Arc::clone(sender)));
        }
        let sender = Arc::new(waiter.open_socket()?);
        let number = self.number_next;
        self.number_next = number.wrapping_add(1);
        self.sockets.push(SessionSocket {
            waiter: Arc::downgrade(waiter),
            number,
            sender: Arc::clone(&sender),
        });
        Ok((number, sender))
    }
}
