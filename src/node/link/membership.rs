use std::sync::Arc;

use crate::chain::ErrorChain;
use crate::control::{Heard, NoticeChannel, TicketBytes};
use crate::fabric::{Connection, DatagramReach, FabricError};
use crate::limits;
use crate::notice::{NoticeKey, NoticeKeys, NoticeReceiver};
use crate::subscriber::{Granted, NoticeSubscription};

/// The session's membership in a notice channel, shared by all its attachments.
#[derive(Debug)]
pub(super) struct ChannelMembership {
    channel: u64,
    receiver: Arc<NoticeReceiver>,
    /// The peer knows that the channel is joined.
    is_reported: bool,
    /// When a report may be due, ns.
    pub(super) due_ns: u64,
}

impl ChannelMembership {
    /// Subscribes to a channel of the peer, which the session joins first if necessary. Inline values that came by multicast are taken
    /// only if the other subscribers of the topic are trusted.
    pub(super) fn subscribe(
        joined: &mut Option<Self>,
        connection: &dyn Connection,
        channel: &NoticeChannel,
        (granted, trusts_shared): (&Granted, bool),
    ) -> Result<NoticeSubscription, FabricError> {
        let membership = match joined {
            Some(membership) if membership.channel == channel.channel => membership,
            other => other.insert(Self::join(connection, channel)?),
        };
        let receiver = Arc::clone(&membership.receiver);
        let (shared, own) = (NoticeKey::new(channel.key), NoticeKey::new(channel.own_key));
        let keys = NoticeKeys { shared, own, trusts_shared };
        let mailbox = receiver.subscribe(granted.topic_id, granted.epoch, keys);
        Ok(NoticeSubscription::new(receiver, mailbox, trusts_shared))
    }

    /// Begins to join a channel of the peer.
    fn join(connection: &dyn Connection, channel: &NoticeChannel) -> Result<Self, FabricError> {
        let no_datagrams = FabricError::Access { why: "this medium has no datagrams" };
        let receiver = connection.datagrams().ok_or(no_datagrams)?.join_channel(channel.ticket.as_bytes())?;
        let receiver = Arc::new(NoticeReceiver::new(receiver, channel.channel));
        Ok(Self { channel: channel.channel, receiver, is_reported: false, due_ns: 0 })
    }

    /// Ends it, for its subscriptions, too.
    pub(super) fn close(self, now_ns: u64) {
        self.receiver.close(now_ns);
    }

    /// The report that is due: at first that the channel is joined, then from time to time what has arrived. Also receives,
    /// because a subscriber may not poll for long.
    pub(super) fn report(&mut self, now_ns: u64) -> Option<Heard> {
        if let Err(error) = self.receiver.turn(now_ns) {
            tracing::warn!(target: "fabricast", error = %ErrorChain(&error), "notices cannot be received; subscribers read by a timer");
        }
        if self.due_ns > now_ns {
            return None;
        }
        let reach = self.receiver.beacon();
        if self.is_reported && reach.is_none() {
            self.due_ns = now_ns.saturating_add(limits::HEARTBEAT_INTERVAL_NS);
            return None;
        }
        self.is_reported = true;
        self.due_ns = now_ns.saturating_add(limits::NOTICE_HEARD_INTERVAL_NS);
        let is_multicast_received = reach == Some(DatagramReach::Multicast);
        Some(Heard { return_ticket: TicketBytes::cut(self.receiver.return_ticket()), is_multicast_received })
    }
}
