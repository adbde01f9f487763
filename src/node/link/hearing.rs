use std::sync::Arc;

use crate::control::{Heard, NoticeChannel, Ticket};
use crate::fabric::{Connection, DatagramReach, FabricError};
use crate::limits;
use crate::notice::NoticeReceiver;

/// The channel of notices that a session has joined, shared by all its attachments.
#[derive(Debug)]
pub(super) struct Hearing {
    channel: u64,
    receiver: Arc<NoticeReceiver>,
    /// When the peer was last told what is heard, ns; `None` before the first time.
    told_ns: Option<u64>,
}

impl Hearing {
    /// Begins to join a channel of the peer's.
    pub(super) fn join(connection: &dyn Connection, channel: &NoticeChannel) -> Result<Self, FabricError> {
        let receiver = connection.join_channel(channel.ticket.as_bytes())?;
        let receiver = Arc::new(NoticeReceiver::new(receiver, channel.channel));
        Ok(Self { channel: channel.channel, receiver, told_ns: None })
    }

    /// Whether it is this channel.
    pub(super) fn is_of(&self, channel: &NoticeChannel) -> bool {
        self.channel == channel.channel
    }

    /// The receiving end.
    pub(super) fn receiver(&self) -> &Arc<NoticeReceiver> {
        &self.receiver
    }

    /// What to tell the peer now: that the channel was joined, and then, now and again, what is heard. Takes what has come, too:
    /// a subscriber may not look for long.
    pub(super) fn tell(&mut self, now_ns: u64) -> Option<Heard> {
        if let Err(error) = self.receiver.turn(now_ns) {
            tracing::warn!(target: "fabricast", %error, "notices cannot be received; looking goes on by a timer");
        }
        if self.due_ns() > now_ns {
            return None;
        }
        let reach = self.receiver.beacon();
        if self.told_ns.is_some() && reach.is_none() {
            return None;
        }
        self.told_ns = Some(now_ns);
        let is_multicast_heard = reach == Some(DatagramReach::Multicast);
        Some(Heard { return_ticket: Ticket::new(self.receiver.return_ticket()), is_multicast_heard })
    }

    /// When there may be something to tell.
    pub(super) fn due_ns(&self) -> u64 {
        self.told_ns.map_or(0, |told_ns| told_ns.saturating_add(limits::NOTICE_HEARD_INTERVAL_NS))
    }
}
