use std::sync::Arc;

use crate::chain::ErrorChain;
use crate::control::{Heard, NoticeChannel, NoticesBy, TicketBytes};
use crate::event::Event;
use crate::fabric::{Connection, Datagrams, Exposure, FabricError, PeerAddress, UnicastSender};
use crate::id::{Delivery, NodeName};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::node::served::attachment::ServedAttachment;
use crate::node::serving::Serving;
use crate::notice::{NoticeKey, NoticeSender, RegisterError, WAKE_WORD_LEN, draw_key};

/// How notices reach a session's peer.
#[derive(Debug, Default)]
pub(super) struct Audience {
    sender: Option<Arc<NoticeSender>>,
    /// What the keys of unicast to the peer are made of, once it was sent one.
    secret: Option<NoticeKey>,
    /// The ticket for unicast to the peer.
    return_ticket: TicketBytes,
    /// When the peer joined, or last confirmed multicast, ns. `None` before that.
    confirmed_ns: Option<u64>,
    /// Sends notices by unicast too.
    unicast: Option<Arc<dyn UnicastSender>>,
}

/// Why a peer gets no notices.
#[derive(Debug, thiserror::Error)]
enum NoticeError {
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error(transparent)]
    Register(#[from] RegisterError),
}

impl Audience {
    /// Provides notices of this attachment's topic in the way that the medium has. A failure costs only the notices.
    pub(super) fn answer(
        &mut self,
        serving: &mut Serving,
        (peer, connection): (&NodeName, &dyn Connection),
        attachment: &mut ServedAttachment,
    ) -> NoticesBy {
        self.admit(serving, connection, attachment).unwrap_or_else(|error| {
            let (peer, topic) = (peer.clone(), attachment.topic.name.clone());
            serving.core.tell(&Event::NoticesUnavailable {
                peer,
                topic,
                reason: ErrorChain(&error).to_string(),
            });
            let count = &attachment.topic.without_notices;
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
            // The next incarnation may have subscriptions on the channel already.
            return Ok(NoticesBy::Nothing);
        }
        let notices = &attachment.topic.notices;
        if connection.capabilities().shares_memory {
            let wake_word = notices.wake_word(|| {
                let region = Arc::new(Region::allocate(WAKE_WORD_LEN, Protection::PeersWrite)?);
                serving.core.fabric.register(&region, Exposure::Write)
            })?;
            attachment.wake_word = Some(wake_word);
            return Ok(NoticesBy::WakeWord);
        }
        if attachment.delivery == Delivery::Push && attachment.announce() {
            return Ok(NoticesBy::Immediate);
        }
        // Of a push subscriber nothing else wakes: it sees writes in its own memory.
        let datagrams = connection.datagrams().filter(|_| attachment.delivery == Delivery::Pull);
        let channel = datagrams.map(|datagrams| datagrams.channel_sender()).transpose()?.flatten();
        let Some(channel) = channel else { return Ok(NoticesBy::Nothing) };
        let sender = serving.senders.of(channel, &attachment.topic)?;
        let listener = notices.register(&sender)?;
        let secret = match self.secret {
            Some(secret) => secret,
            None => *self.secret.insert(draw_key()?),
        };
        let (channel, key) = (sender.identity, notices.key.bytes());
        let own_key = notices.key.for_session(&secret).bytes();
        let ticket = TicketBytes::cut(sender.ticket());
        attachment.listener = Some(listener);
        self.sender = Some(sender);
        if !self.return_ticket.as_bytes().is_empty() {
            // A peer that joined this channel before reports only when something arrives.
            self.confirmed_ns.get_or_insert_with(|| serving.core.clock.monotonic_ns());
        }
        Ok(NoticesBy::Channel(NoticeChannel { channel, key, own_key, ticket }))
    }

    /// Records the peer's report.
    pub(super) fn record(&mut self, heard: Heard, now_ns: u64) {
        if heard.return_ticket != self.return_ticket {
            self.leave_alone();
            self.return_ticket = heard.return_ticket;
            self.confirmed_ns = Some(now_ns);
        }
        if heard.is_multicast_received {
            self.confirmed_ns = Some(now_ns);
            self.leave_alone();
        }
    }

    /// Begins unicast when multicast has not arrived for a while, and ends it with the last subscription.
    pub(super) fn tend(&mut self, connection: &dyn Connection, is_listening: bool, now_ns: u64) {
        if !is_listening {
            self.leave_alone();
            (self.sender, self.confirmed_ns) = (None, None);
        }
        let Some((sender, confirmed_ns)) = self.sender.as_ref().zip(self.confirmed_ns) else { return };
        let Some(datagrams) = connection.datagrams() else { return };
        if self.unicast.is_some() || now_ns.saturating_sub(confirmed_ns) < limits::NOTICE_UNHEARD_NS {
            return;
        }
        self.confirmed_ns = Some(now_ns);
        let Some(secret) = self.secret else { return };
        let peer = (connection.peer_address(), secret);
        match add_unicast((peer, datagrams), sender, self.return_ticket.as_bytes()) {
            Ok(unicast) => self.unicast = Some(unicast),
            // The peer reads by its timer, and unicast is tried again later.
            Err(error) => {
                tracing::debug!(target: "fabricast", error = %ErrorChain(&error), "notices cannot be sent by unicast")
            }
        }
    }

    /// When unicast may have to begin.
    pub(super) fn due_ns(&self) -> Option<u64> {
        let awaited_ns = self.confirmed_ns.filter(|_| self.sender.is_some() && self.unicast.is_none());
        awaited_ns.map(|confirmed_ns| confirmed_ns.saturating_add(limits::NOTICE_UNHEARD_NS))
    }

    /// Whether notices of a topic are requested.
    pub(super) fn is_asked_for(&self) -> bool {
        self.sender.is_some()
    }

    fn leave_alone(&mut self) {
        if let Some((sender, unicast)) = self.sender.as_ref().zip(self.unicast.take()) {
            sender.remove_unicast(&unicast);
        }
    }
}

/// Adds unicast to the receiver with this ticket.
fn add_unicast(
    (peer, datagrams): ((PeerAddress, NoticeKey), &dyn Datagrams),
    sender: &NoticeSender,
    return_ticket: &[u8],
) -> Result<Arc<dyn UnicastSender>, NoticeError> {
    let unicast = datagrams.unicast_sender(return_ticket)?;
    sender.add_unicast(peer, Arc::clone(&unicast))?;
    Ok(unicast)
}

impl Drop for Audience {
    fn drop(&mut self) {
        self.leave_alone();
    }
}
