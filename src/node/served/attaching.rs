//! A peer's requests to attach, and whether they are granted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use super::attachment::{Preparing, ServedAttachment};
use super::request::{Asked, Objection};
use super::{DialledFor, Served};
use crate::chain::ErrorChain;
use crate::control::{Attach, AttachmentId, ControlError, Grant, Peer, RefuseReason, SchemaJson};
use crate::event::Event;
use crate::fabric::{Exposure, FabricError, Offer, Prepared, RemoteKey};
use crate::id::{Delivery, NodeName, TopicName};
use crate::keyring::Right;
use crate::limits;
use crate::node::core::NodeCore;
use crate::node::invitation::Pending;
use crate::node::serving::{LandingShare, Serving};
use crate::publisher::{ExposedLanding, PublishedTopic};
use crate::sync::atomic::Ordering;

/// Refuses further requests of a dialled peer.
const DIALLED_FOR_ONE: &str = "this session was dialled for one subscription to one topic";
/// Refuses a peer whose key was narrowed meanwhile.
const KEYS_CHANGED: &str = "no key that the subscriber's node has proven covers this topic any more";
/// Refuses a peer that attaches too late.
const GIVEN_UP: &str = "the publisher has given up waiting for this subscriber";

/// A topic that a peer may attach to.
#[derive(Debug)]
struct Admitted {
    topic: Arc<PublishedTopic>,
    schema: SchemaJson,
    /// The peer's key to its repository.
    remote_key: RemoteKey,
}

/// Whether a peer may attach at once.
enum Admission {
    Admitted(Admitted),
    /// After this work.
    Later(Work),
}

/// The work before a region can be sent.
type Work = Box<dyn FnOnce() -> Result<(), FabricError> + Send>;

impl Served {
    pub(super) fn attach(&mut self, core: &NodeCore, mut asked: Asked) -> Result<(), ControlError> {
        match self.admit(core, &asked.attach) {
            Ok(Admission::Admitted(admitted)) => match self.begin(core, &mut asked, admitted) {
                Ok(grant) => self.session.grant(grant),
                Err(objection) => self.refuse(core, &asked.attach, objection),
            },
            Ok(Admission::Later(work)) => {
                self.prepare(core, asked, work);
                Ok(())
            }
            Err(objection) => self.refuse(core, &asked.attach, objection),
        }
    }

    pub(super) fn refuse(
        &mut self,
        core: &NodeCore,
        attach: &Attach,
        objection: Objection,
    ) -> Result<(), ControlError> {
        let Objection { reason, text } = objection;
        Self::tell_refused(core, self.peer.as_ref(), &attach.topic, (reason, &text));
        self.tell_unfit(&attach.topic, reason, &text);
        self.session.refuse(attach.attachment, reason, &text)
    }

    /// Registers memory for a request in the background.
    fn prepare(&mut self, core: &NodeCore, asked: Asked, work: Work) {
        let outcome = Arc::<OnceLock<_>>::default();
        self.preparing.push(Preparing { asked, outcome: Arc::clone(&outcome) });
        let waker = core.queue.keyed(self.key);
        core.worker.run(move || {
            let done = catch_unwind(AssertUnwindSafe(work));
            let panicked =
                |_| Err(FabricError::system("register memory")(std::io::Error::other("it panicked")));
            _ = outcome.set(done.unwrap_or_else(panicked));
            waker.wake();
        });
    }

    /// Continues the requests that are prepared.
    pub(super) fn attach_prepared(&mut self, core: &NodeCore) {
        let prepared: Vec<_> =
            self.preparing.extract_if(.., |preparing| preparing.outcome.get().is_some()).collect();
        for Preparing { asked, outcome } in prepared {
            // Fails if the session has ended meanwhile, and is not needed then.
            let _ = match outcome.get() {
                Some(Err(error)) => self.refuse(core, &asked.attach, unprepared(error)),
                _ => self.attach(core, asked),
            };
        }
    }

    /// Reports a refusal of what this peer asked for at a topic.
    pub(super) fn tell_refused(
        core: &NodeCore,
        peer: Option<&NodeName>,
        topic: &TopicName,
        (reason, text): (RefuseReason, &str),
    ) {
        let peer = peer.unwrap_or(&core.identity.node).clone();
        let separator = if text.is_empty() { "" } else { ": " };
        let (topic, reason) = (topic.to_string(), format!("{reason}{separator}{text}"));
        core.tell(&Event::Refused { peer, topic, reason });
    }

    /// Reports to the dialling thread why the peer was refused.
    fn tell_unfit(&self, topic: &TopicName, reason: RefuseReason, text: &str) {
        let invited = self.invitation.iter().filter(|invitation| invitation.topic() == topic);
        invited.for_each(|invitation| invitation.unfit(reason, text));
    }

    /// Checks a request.
    fn admit(&mut self, core: &NodeCore, attach: &Attach) -> Result<Admission, Objection> {
        // Again: the keys may have changed while memory was registered.
        if !self.session.permits(&attach.topic) {
            return Err(Objection::new(RefuseReason::NotPermitted, KEYS_CHANGED));
        }
        let is_meant = |dialled: &DialledFor| !dialled.is_granted && dialled.topic == attach.topic;
        if !self.dialled_for.as_ref().is_none_or(is_meant) {
            return Err(Objection::new(RefuseReason::NotPermitted, DIALLED_FOR_ONE));
        }
        // Before it is looked for: the refusal does not show whether there is such a topic. What a peer may list, its keys decide.
        let admitted = core.guard.admit(&self.subscriber(core, &attach.topic), &attach.topic, Right::Read);
        admitted.map_err(|reason| Objection::new(RefuseReason::NotPermitted, reason))?;
        let Some(topic) = core.topic(&attach.topic) else {
            return Err(Objection::new(RefuseReason::NoSuchTopic, ""));
        };
        let schema = &topic.schema;
        if attach.schema_hash.is_some_and(|hash| hash != schema.hash()) {
            let text = format!("the topic's values are {} ({})", schema.type_name(), schema.encoding());
            return Err(Objection::new(RefuseReason::SchemaMismatch, text));
        }
        let Some(schema) = SchemaJson::new(schema.to_json()) else {
            return Err(Objection::new(
                RefuseReason::NotPermitted,
                "the topic's schema is too long to be sent",
            ));
        };
        let remote_key = match self.connection.prepare(&topic.registration) {
            Ok(Prepared::Done(remote_key)) => remote_key,
            Ok(Prepared::Work(work)) => return Ok(Admission::Later(work)),
            // Sending the answer will notice it.
            Err(FabricError::Closed) => RemoteKey::default(),
            Err(error) => return Err(unprepared(&error)),
        };
        Ok(Admission::Admitted(Admitted { topic, schema, remote_key }))
    }

    /// The peer, as an admission sees it.
    pub(super) fn subscriber(&self, core: &NodeCore, topic: &TopicName) -> Peer {
        Peer {
            node: self.peer.as_ref().unwrap_or(&core.identity.node).clone(),
            process: self.process,
            host: self.host.clone(),
            address: self.connection.peer_address(),
            key: self.session.key_for(topic),
        }
    }

    /// Begins the attachment and sends the grant, which attaches a pull subscriber.
    fn begin(
        &mut self,
        core: &NodeCore,
        asked: &mut Asked,
        Admitted { topic, schema, remote_key: RemoteKey { key, address } }: Admitted,
    ) -> Result<Grant, Objection> {
        let peer = self.peer.as_ref().unwrap_or(&core.identity.node).clone();
        let subscriber = asked.subscriber(&topic, (peer, self.process))?;
        let Attach { attachment, delivery, options, .. } = asked.attach;
        assert_eq!(topic.registration.exposure(), Exposure::Read, "peers can only read a repository");
        // One by push needs no key: where keys are not revoked one by one, it would keep it for as long as the topic lasts.
        let (key, address) = if delivery == Delivery::Push { Default::default() } else { (key, address) };
        let mut attached = ServedAttachment::new((self.key, attachment), topic, delivery, options);
        // Before the newest sequence is read: the publisher overwrites nothing that a critical subscriber may need from then on. What it
        // had begun to give up, the oldest records, it may still overwrite: one that begins with them reports them lost.
        attached.add(subscriber);
        let topic = Arc::clone(&attached.topic);
        let grant = Grant {
            attachment,
            topic_id: topic.topic_id,
            kind: topic.kind(),
            epoch: topic.epoch,
            incarnation: topic.incarnation,
            geometry: topic.geometry.numbers(),
            schema,
            key,
            address,
            newest: topic.newest(),
            after: topic.after,
            lifespan_ns: topic.lifespan_ns,
        };
        attached.begin(grant.newest);
        if delivery == Delivery::Pull {
            settle(&mut self.invitation, &mut attached)?;
            attached.tell(core, self.peer.as_ref());
        }
        self.attachments.insert(attachment, attached);
        if let Some(dialled_for) = &mut self.dialled_for {
            dialled_for.is_granted = true;
        }
        Ok(grant)
    }

    pub(super) fn accept_landing(
        &mut self,
        serving: &Serving,
        id: AttachmentId,
        offer: Option<Box<dyn Offer>>,
    ) -> Result<(), ControlError> {
        match self.take_landing(serving, id, offer) {
            Ok(()) => Ok(()),
            Err(Objection { reason, text }) => {
                if let Some(attachment) = self.attachments.get(&id) {
                    let topic = &attachment.topic.name;
                    Self::tell_refused(&serving.core, self.peer.as_ref(), topic, (reason, &text));
                    self.tell_unfit(topic, reason, &text);
                }
                self.session.refuse(id, reason, &text)
            }
        }
    }

    /// Hands the landing region that was exposed over to the publisher, or says why that cannot be.
    fn take_landing(
        &mut self,
        serving: &Serving,
        id: AttachmentId,
        offer: Option<Box<dyn Offer>>,
    ) -> Result<(), Objection> {
        let unfit = |text: &str| Objection::new(RefuseReason::LandingUnfit, text);
        let attachment = self.attachments.get_mut(&id).ok_or_else(|| unfit(""))?;
        let offer = offer.ok_or_else(|| unfit("the message came without a region"))?;
        let topic = Arc::clone(&attachment.topic);
        if topic.push_subscribers.value() >= limits::PUSH_SUBSCRIBERS_MAX as u64 {
            let reason = RefuseReason::TooManySubscribers;
            return Err(Objection::new(reason, reason.advice()));
        }
        let len = topic.geometry.region_len();
        let (held, peer_limits) = (self.landing_len(id), &serving.core.guard.limits);
        let max = peer_limits.landing_len_per_session;
        if len > max.saturating_sub(held) {
            let text = format!(
                "the session has {held} bytes of landing regions and may have {max}, {len} more are too many: raise \
                 PeerLimits::landing_len_per_session there"
            );
            return Err(unfit(&text));
        }
        let Some(share) = LandingShare::take(&serving.landings, len, peer_limits.landing_len) else {
            let max = peer_limits.landing_len;
            let text = format!(
                "the sessions of the node may have {max} bytes of landing regions, {len} more are too many: raise \
                 PeerLimits::landing_len there"
            );
            return Err(unfit(&text));
        };
        let remote = offer.open_write(len).map_err(|error| {
            Objection::over(&error, RefuseReason::LandingUnfit, ErrorChain(&error).to_string())
        })?;
        let attachment = self.attachments.get_mut(&id).ok_or_else(|| unfit(""))?;
        (attachment.revocation, attachment.announcer) = (Some(remote.revocation()), remote.announcer());
        // An earlier refused one stays closed.
        attachment.closed = Arc::default();
        if let Some(landing) = remote.mapped() {
            topic.show_in(landing, &attachment.closed, &serving.core.clock_line());
        }
        let (closed, subscriber) = (Arc::clone(&attachment.closed), attachment.subscriber.clone());
        let ServedAttachment { options, granted, .. } = *attachment;
        let exposed = ExposedLanding { remote, closed, options, granted, subscriber };
        let accepted = topic.landings.accept(exposed, &serving.budget);
        accepted.map_err(|error| unfit(&ErrorChain(&error).to_string()))?;
        if let Err(objection) = settle(&mut self.invitation, attachment) {
            attachment.closed.store(true, Ordering::Relaxed);
            return Err(objection);
        }
        attachment.landing = Some(share);
        attachment.tell(&serving.core, self.peer.as_ref());
        self.beginning.insert(id);
        // The node keeps its landing region until the publisher takes it.
        topic.wake();
        Ok(())
    }

    /// Bytes of the peer's landing regions, except that of this attachment.
    fn landing_len(&self, except: AttachmentId) -> usize {
        let revoked = self.revoked.iter().map(|(id, revoked)| (id, &revoked.attachment));
        let held =
            self.attachments.iter().chain(&self.leaving).chain(revoked).filter(|(id, _)| **id != except);
        let has_landing = |it: &&ServedAttachment| it.revocation.is_some();
        held.map(|(_, it)| it).filter(has_landing).map(|it| it.topic.geometry.region_len()).sum()
    }

    /// Notifies the peer of landing regions that it can begin to read.
    pub(super) fn tell_exposed(&mut self) {
        let (attachments, session) = (&self.attachments, &mut self.session);
        self.beginning.retain(|id| {
            let Some(attachment) = attachments.get(id) else { return false };
            let is_begun = attachment.topic.landings.is_begun(&attachment.closed);
            if is_begun {
                // Fails if the session or the topic has ended meanwhile; the peer was notified of that.
                let _ = session.exposed(*id);
            }
            !is_begun
        });
    }
}

/// Refuses a topic whose memory cannot be registered.
fn unprepared(error: &FabricError) -> Objection {
    let text = format!("the publisher's node cannot offer the topic: {}", ErrorChain(error));
    Objection::over(error, RefuseReason::NotPermitted, text)
}

/// Counts the attachment, which makes it effective, and only then settles its invitation: so the subscriber receives everything
/// published after a dial returns. Refuses if the dialling thread has given up.
fn settle(invitation: &mut Option<Pending>, attachment: &mut ServedAttachment) -> Result<(), Objection> {
    let topic = attachment.topic.name.clone();
    let Some(invited) = invitation.take_if(|invitation| *invitation.topic() == topic) else {
        attachment.count();
        return Ok(());
    };
    *invitation = invited.attached(|| attachment.count()).err();
    match invitation {
        None => Ok(()),
        Some(_) => Err(Objection::new(RefuseReason::NotPermitted, GIVEN_UP)),
    }
}
