use std::sync::Arc;

use crate::control::{Heard, NoticeChannel, TicketBytes};
use crate::fabric::{Connection, DatagramReach, FabricError};
use crate::limits;
use crate::notice::{NoticeKey, NoticeReceiver};
use crate::subscriber::{Ear, Granted};

/// The channel of notices that a session has joined, shared by all its attachments.
#[derive(Debug)]
pub(super) struct Hearing {
    channel: u64,
    receiver: Arc<NoticeReceiver>,
    /// The peer was told that the channel is joined.
    is_told: bool,
    /// When there may be something to tell, ns.
    due_ns: u64,
}

impl Hearing {
    /// A subscriber's part in a channel of the peer's, which the session joins unless it has.
    pub(super) fn ear(
        joined: &mut Option<Self>,
        connection: &dyn Connection,
        channel: &NoticeChannel,
        granted: &Granted,
    ) -> Result<Ear, FabricError> {
        let hearing = match joined {
            Some(hearing) if hearing.channel == channel.channel => hearing,
            other => other.insert(Self::join(connection, channel)?),
        };
        let receiver = Arc::clone(&hearing.receiver);
        let mailbox = receiver.subscribe(granted.topic_id, granted.epoch, NoticeKey::new(channel.key));
        Ok(Ear::new(receiver, mailbox))
    }

    /// Begins to join a channel of the peer's.
    fn join(connection: &dyn Connection, channel: &NoticeChannel) -> Result<Self, FabricError> {
        let no_datagrams = FabricError::Access { why: "this medium has no datagrams" };
        let receiver = connection.datagrams().ok_or(no_datagrams)?.join_channel(channel.ticket.as_bytes())?;
        let receiver = Arc::new(NoticeReceiver::new(receiver, channel.channel));
        Ok(Self { channel: channel.channel, receiver, is_told: false, due_ns: 0 })
    }

    /// What to tell the peer now: that the channel was joined, and then, now and again, what is heard. Takes what has come, too:
    /// a subscriber may not look for long.
    pub(super) fn tell(&mut self, now_ns: u64) -> Option<Heard> {
        if let Err(error) = self.receiver.turn(now_ns) {
            tracing::warn!(target: "fabricast", %error, "notices cannot be received; looking goes on by a timer");
        }
        if self.due_ns > now_ns {
            return None;
        }
        let reach = self.receiver.beacon();
        if self.is_told && reach.is_none() {
            self.due_ns = now_ns.saturating_add(limits::HEARTBEAT_INTERVAL_NS);
            return None;
        }
        self.is_told = true;
        self.due_ns = now_ns.saturating_add(limits::NOTICE_HEARD_INTERVAL_NS);
        let is_multicast_received = reach == Some(DatagramReach::Multicast);
        Some(Heard { return_ticket: TicketBytes::cut(self.receiver.return_ticket()), is_multicast_received })
    }

    /// When there may be something to tell.
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }
}
