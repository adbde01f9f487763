//! The sockets through which the peer wakes what waits for subscriptions of this session among others.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

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
    pub(super) fn of(&mut self, waiter: &Arc<Waiter>) -> Result<(u32, Arc<OwnedFd>), FabricError> {
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
