use std::sync::Arc;

use crate::control::{Heard, NoticeChannel, NoticesBy, TicketBytes};
use crate::event::Event;
use crate::fabric::{Connection, Datagrams, Exposure, FabricError, UnicastSender};
use crate::id::{Delivery, NodeName};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::node::served::attachment::ServedAttachment;
use crate::node::serving::Serving;
use crate::notice::{BELL_LEN, NoticeSender, RegisterError};

/// What a session's peer hears of the channel of notices.
#[derive(Debug, Default)]
pub(super) struct Audience {
    sender: Option<Arc<NoticeSender>>,
    /// Where the peer can be reached alone.
    return_ticket: TicketBytes,
    /// When the peer joined, or last told that what is sent to all arrives, ns. `None` before that.
    heard_ns: Option<u64>,
    /// Where notices are sent to it alone, too.
    alone: Option<Arc<dyn UnicastSender>>,
}

/// Why a peer is not told of what a topic publishes.
#[derive(Debug, thiserror::Error)]
enum NoticeError {
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error("cannot draw a random number: {0}")]
    Random(#[from] std::io::Error),
}

impl Audience {
    /// Notifies the peer of what the topic of this attachment publishes, in the way that the medium has. A failure costs it that,
    /// and nothing else.
    pub(super) fn answer(
        &mut self,
        serving: &mut Serving,
        (peer, connection): (&NodeName, &dyn Connection),
        attachment: &mut ServedAttachment,
    ) -> NoticesBy {
        self.admit(serving, connection, attachment).unwrap_or_else(|error| {
            let (peer, topic) = (peer.clone(), attachment.topic.name().clone());
            serving.core.tell(&Event::NoticesUnavailable { peer, topic, reason: error.to_string() });
            let count = attachment.topic.without_notices();
            count.set(count.value() + 1);
            NoticesBy::Nothing
        })
    }

    fn admit(
        &mut self,
        serving: &mut Serving,
        connection: &dyn Connection,
        attachment: &mut ServedAttachment,
    ) -> Result<NoticesBy, NoticeError> {
        if attachment.topic.has_ended() {
            // The next incarnation may have its listeners on the channel already.
            return Ok(NoticesBy::Nothing);
        }
        let notices = attachment.topic.notices();
        if connection.capabilities().shares_memory {
            let bell = notices.bell(|| {
                let region = Arc::new(Region::allocate(BELL_LEN, Protection::PeersWrite)?);
                serving.core.fabric().register(&region, Exposure::Write)
            })?;
            attachment.bell = Some(bell);
            return Ok(NoticesBy::Bell);
        }
        // What is written to the peer's own memory it sees there.
        let datagrams = connection.datagrams().filter(|_| attachment.delivery == Delivery::Pull);
        let channel = datagrams.map(|datagrams| datagrams.channel_sender()).transpose()?.flatten();
        let Some(channel) = channel else { return Ok(NoticesBy::Nothing) };
        let sender = serving.senders.of(channel, &attachment.topic)?;
        let listener = notices.listen(&sender)?;
        let (channel, key) = (sender.identity(), notices.key().bytes());
        let ticket = TicketBytes::cut(sender.ticket());
        attachment.listener = Some(listener);
        self.sender = Some(sender);
        if !self.return_ticket.as_bytes().is_empty() {
            // It may have joined this channel already, and says so only when it hears something.
            self.heard_ns.get_or_insert_with(|| serving.core.clock().monotonic_ns());
        }
        Ok(NoticesBy::Channel(NoticeChannel { channel, key, ticket }))
    }

    /// Takes note of what the peer hears.
    pub(super) fn hear(&mut self, heard: Heard, now_ns: u64) {
        if heard.return_ticket != self.return_ticket {
            self.leave_alone();
            self.return_ticket = heard.return_ticket;
            self.heard_ns = Some(now_ns);
        }
        if heard.is_multicast_received {
            self.heard_ns = Some(now_ns);
            self.leave_alone();
        }
    }

    /// Sends notices to the peer alone as soon as those that are sent to all have not arrived for a while; and
    /// nothing as soon as it listens to nothing any more.
    pub(super) fn tend(&mut self, connection: &dyn Connection, is_listening: bool, now_ns: u64) {
        if !is_listening {
            self.leave_alone();
            (self.sender, self.heard_ns) = (None, None);
        }
        let Some((sender, heard_ns)) = self.sender.as_ref().zip(self.heard_ns) else { return };
        let Some(datagrams) = connection.datagrams() else { return };
        if self.alone.is_some() || now_ns.saturating_sub(heard_ns) < limits::NOTICE_UNHEARD_NS {
            return;
        }
        self.heard_ns = Some(now_ns);
        match reach_alone(datagrams, sender, self.return_ticket.as_bytes()) {
            Ok(alone) => self.alone = Some(alone),
            // It looks by its own timer, and it is tried again later.
            Err(error) => {
                tracing::debug!(target: "fabricast", %error, "a subscriber cannot be sent notices alone")
            }
        }
    }

    /// When notices may have to be sent to it alone.
    pub(super) fn due_ns(&self) -> Option<u64> {
        let awaited_ns = self.heard_ns.filter(|_| self.sender.is_some() && self.alone.is_none());
        awaited_ns.map(|heard_ns| heard_ns.saturating_add(limits::NOTICE_UNHEARD_NS))
    }

    /// Whether it has asked for the notices of a topic.
    pub(super) fn is_asked_for(&self) -> bool {
        self.sender.is_some()
    }

    fn leave_alone(&mut self) {
        if let Some((sender, alone)) = self.sender.as_ref().zip(self.alone.take()) {
            sender.remove_unicast(&alone);
        }
    }
}

/// Has notices sent alone to the receiver at the other end that has this ticket.
fn reach_alone(
    datagrams: &dyn Datagrams,
    sender: &NoticeSender,
    return_ticket: &[u8],
) -> Result<Arc<dyn UnicastSender>, NoticeError> {
    let alone = datagrams.unicast_sender(return_ticket)?;
    sender.add_unicast(Arc::clone(&alone))?;
    Ok(alone)
}

impl Drop for Audience {
    fn drop(&mut self) {
        self.leave_alone();
    }
}
