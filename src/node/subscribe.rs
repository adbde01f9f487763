use std::sync::Arc;

use super::Node;
use super::core::NodeCore;
use super::link::{Answer, LinkAttachment, LinkError, LinkUse, Request};
use super::terms::{ListenerBuilder, SubscriberBuilder, Terms};
use crate::chain::ErrorChain;
use crate::clock::saturate;
use crate::control::{ControlError, Grant, NoticesBy, RefuseReason};
use crate::event::Event;
use crate::fabric::{ByteRange, Completion, Exposure, FabricError, Offer, Target, read_now};
use crate::id::{Delivery, KindOptions, TopicName};
use crate::layout::Geometry;
use crate::layout::GeometryError;
use crate::layout::header::{STATIC_OFFSET, StaticHeader};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::notice::{BELL_LEN, Bell};
use crate::payload::{Payload, Schema, SchemaError};
use crate::repository::SubscriberStats;
use crate::subscriber::{
    AnySubscriber, AttachError, Attachment, End, GrantError, Granted, Listening, Source, Subscribed,
    SubscriberError, Subscription,
};

impl Node {
    /// Begins to set up a subscriber of the topic at this address, of whatever kind it is, for example `shm:NODE/TOPIC`.
    pub fn any_subscriber<T: Payload>(
        &self,
        target: impl TryInto<Target, Error: Into<SubscriberError>>,
    ) -> SubscriberBuilder<'_, AnySubscriber<T>> {
        SubscriberBuilder::new(self, target)
    }

    /// Begins to set up a listener for publishers of this topic, of whatever kind it is, whose nodes dial this one. The node needs
    /// a name.
    pub fn any_listener<T: Payload>(
        &self,
        topic: impl TryInto<TopicName, Error: Into<SubscriberError>>,
    ) -> ListenerBuilder<'_, AnySubscriber<T>> {
        SubscriberBuilder::new(self, topic)
    }
}

impl<S: Subscribed> SubscriberBuilder<'_, S> {
    /// Attaches to the topic. Blocks for two round trips, three for push and for a log on another host, and allocates.
    ///
    /// The payload type must be that of the topic, by name and fields. A subscriber of [`Raw`](crate::Raw) gets the
    /// bytes of any topic, to be decoded by its [`schema`](crate::Subscriber::schema).
    ///
    /// # Errors
    ///
    /// [`SubscriberError`] when the address is malformed, the node or topic is not there, the topic is of another kind, the
    /// publisher refuses, or what it grants cannot be used.
    pub fn open(self) -> Result<S, SubscriberError> {
        let Self { node, terms, samples, .. } = self;
        let target = self.place?;
        let subscription = terms.subscribe(node, &target, expected::<S::Payload>(&samples)?.as_ref())?;
        S::open(subscription, terms.options).map_err(|source| SubscriberError::Unfit { target, source })
    }
}

impl<O: Copy + Into<KindOptions>> Terms<O> {
    /// Attaches to a topic of the node at this address: by the session that there is with it, or a new one.
    pub(super) fn subscribe(
        self,
        node: &Node,
        target: &Target,
        expected: Option<&Schema>,
    ) -> Result<Subscription, SubscriberError> {
        let core = node.core();
        let dial = || {
            let link = node.links().dial(&target.address, saturate(self.patience));
            link.map_err(|error| undialled(target, error))
        };
        let attach = |link: &LinkUse| {
            let attached = self.attach(node, link, &target.topic, expected);
            attached.map_err(|error| unattached(target, error))
        };
        let subscribed = match node.links().known(&target.address) {
            None => dial().and_then(|link| attach(&link)),
            Some(link) => match attach(&link) {
                // The node may have ended, or started again, since the session began.
                Err(error) if is_over(&link, &error) => dial().and_then(|link| attach(&link)),
                attached => attached,
            },
        };
        subscribed.map_err(|error| match (&error, core.check_runs()) {
            // A session that was lost with the node's thread says nothing of the peer.
            (SubscriberError::Session { .. }, Err(source)) => {
                SubscriberError::NodeFailed { topic: target.topic.clone(), source }
            }
            _ => error,
        })
    }

    /// Attaches to a topic of the node at the other end of this session.
    pub(super) fn attach(
        self,
        node: &Node,
        link: &LinkUse,
        topic: &TopicName,
        expected: Option<&Schema>,
    ) -> Result<Subscription, AttachError> {
        let core = node.core();
        let (delivery, options) = (self.delivery, self.options.into());
        let schema_hash = expected.map(Schema::hash);
        let request = Request { topic: topic.clone(), delivery, schema_hash, options };
        let attachment = link.attach(node.hold(), request)?;
        match self.take_grant(core, topic, &attachment) {
            Ok((granted, source)) => {
                let is_mapped = matches!(source, Source::Mapped(_));
                let listening =
                    if self.notices { listen(core, &attachment, &granted, is_mapped) } else { None };
                let clock = Arc::clone(core.clock());
                let mut subscription = Subscription::new(granted, source, Arc::new(attachment), clock);
                listening.into_iter().for_each(|it| subscription.listen(it));
                Ok(subscription)
            }
            Err(error) => {
                attachment.leave(SubscriberStats::default());
                drop(attachment);
                Err(match (error, expected) {
                    (AttachError::Refused { reason: RefuseReason::SchemaMismatch, text }, Some(expected)) => {
                        let text = difference(node, link, topic, expected).unwrap_or(text);
                        AttachError::Refused { reason: RefuseReason::SchemaMismatch, text }
                    }
                    (error, _) => error,
                })
            }
        }
    }

    /// Takes the publisher's grant, and makes of it what a subscriber reads from.
    fn take_grant(
        self,
        core: &NodeCore,
        topic: &TopicName,
        attachment: &LinkAttachment,
    ) -> Result<(Granted, Source), AttachError> {
        let (grant, offer) = match attachment.answer()? {
            Answer::Granted { grant, offer } => (grant, offer),
            Answer::Refused { reason, text } => return Err(AttachError::Refused { reason, text }),
            Answer::Lent | Answer::Notices { .. } => return Err(GrantError::NoRegion.into()),
        };
        let granted = self.check(topic, &grant)?;
        let (len, max) = (granted.geometry.region_len(), self.region_len_max);
        if len > max {
            return Err(GrantError::RegionLen { len, max }.into());
        }
        match self.delivery {
            Delivery::Pull => {
                let source = open_repository(core, &granted, offer)?;
                Ok((granted, source))
            }
            Delivery::Push => {
                let region = Arc::new(Region::allocate(len, Protection::PeerSeals)?);
                let is_log = granted.geometry.log().is_some();
                let exposure = if is_log { Exposure::Exchange } else { Exposure::Write };
                let lent = attachment.lend(core.fabric().register(&region, exposure)?);
                lent.map_err(|error| if has_ended(attachment) { topic_ended() } else { error.into() })?;
                match attachment.answer()? {
                    Answer::Lent => Ok((granted, attachment.landing(region))),
                    Answer::Refused { reason, text } => Err(AttachError::Refused { reason, text }),
                    Answer::Granted { .. } | Answer::Notices { .. } => Err(GrantError::NoRegion.into()),
                }
            }
        }
    }

    /// Checks that the numbers of a grant fit together: addresses are computed from nothing else.
    fn check(self, topic: &TopicName, grant: &Grant) -> Result<Granted, GrantError> {
        let found = grant.kind;
        if let Some(expected) = self.kind.filter(|expected| *expected != found) {
            return Err(GrantError::Kind { expected, found });
        }
        let geometry = Geometry::new(grant.kind, &grant.geometry)?;
        Ok(Granted {
            topic: topic.clone(),
            topic_id: grant.topic_id,
            delivery: self.delivery,
            epoch: grant.epoch,
            geometry,
            schema: Schema::from_json(grant.schema.as_bytes())?,
            key: grant.key,
            address: grant.address,
            newest: grant.newest,
        })
    }
}

/// What the topic's values have to be; `None` for bytes without a type, which are taken from any topic.
pub(super) fn expected<T: Payload>(samples: &[String]) -> Result<Option<Schema>, SchemaError> {
    let schema = T::schema_with(samples)?;
    Ok(if schema == Schema::raw() { None } else { Some(schema) })
}

/// Describes how the topic's schema differs from the expected one, if its node answers. Attaches as a push subscriber of raw
/// bytes, because a subscriber without a landing region is not counted.
fn difference(node: &Node, link: &LinkUse, topic: &TopicName, expected: &Schema) -> Option<String> {
    let (delivery, options) = (Delivery::Push, KindOptions::default());
    let request = Request { topic: topic.clone(), delivery, schema_hash: None, options };
    let attachment = link.attach(node.hold(), request).ok()?;
    let answer = attachment.answer();
    attachment.leave(SubscriberStats::default());
    let Ok(Answer::Granted { grant, .. }) = answer else { return None };
    Some(Schema::from_json(grant.schema.as_bytes()).ok()?.difference(expected))
}

/// Whether the session takes no more, rather than the request failed.
fn is_over(link: &LinkUse, error: &SubscriberError) -> bool {
    let over = |source: &ControlError| {
        use ControlError::{Broken, Closed, Disconnected, TooManyAttachments};
        matches!(source, Broken { .. } | Closed { .. } | Disconnected | TooManyAttachments { .. })
    };
    matches!(error, SubscriberError::Session { source, .. } if over(source) || link.failure().is_some())
}

/// Whether the topic has ended since it was granted.
fn has_ended(attachment: &LinkAttachment) -> bool {
    matches!(attachment.end(), Some(End::Ended { .. }))
}

fn topic_ended() -> AttachError {
    AttachError::Refused { reason: RefuseReason::TopicEnded, text: String::new() }
}

/// Asks the publisher for notices. What fails costs these, and nothing else: the subscriber polls. Where memory `is_mapped` a
/// publisher has them, unless something fails there.
fn listen(
    core: &NodeCore,
    attachment: &LinkAttachment,
    granted: &Granted,
    is_mapped: bool,
) -> Option<Listening> {
    let listening = || -> Result<Option<Listening>, AttachError> {
        attachment.listen()?;
        let Answer::Notices { by, offer } = attachment.answer()? else { return Ok(None) };
        Ok(match by {
            NoticesBy::Nothing => is_mapped.then_some(Listening::Unavailable),
            NoticesBy::Bell => {
                let memory = offer.ok_or(GrantError::NoRegion)?.open_shared(BELL_LEN)?;
                Some(Listening::Bell(Bell::new(memory)))
            }
            NoticesBy::Channel(channel) => Some(Listening::Channel(attachment.hear(&channel, granted)?)),
        })
    };
    listening().unwrap_or_else(|error| {
        if has_ended(attachment) {
            return None;
        }
        core.tell(&Event::Trouble {
            what: format!("no notices of {}: {}", granted.topic, ErrorChain(&error)),
        });
        Some(Listening::Unavailable)
    })
}

/// Opens the repository that came with a grant, and checks that it is the one that was granted.
fn open_repository(
    core: &NodeCore,
    granted: &Granted,
    offer: Option<Box<dyn Offer>>,
) -> Result<Source, GrantError> {
    let offer = offer.ok_or(GrantError::NoRegion)?;
    let mut remote = offer.open_read(granted.geometry.region_len())?;
    let line = ByteRange { offset: STATIC_OFFSET, len: size_of::<[u64; StaticHeader::WORDS]>() };
    let read = read_now(remote.as_mut(), line, core.clock().as_ref(), limits::ANSWER_DEADLINE_NS)?;
    if read == Completion::Pending {
        return Err(GrantError::Unreadable);
    }
    let mut words = [0; StaticHeader::WORDS];
    remote.mirror().copy_out(STATIC_OFFSET, &mut words);
    let line = StaticHeader::parse(&words)?;
    let mismatch = |field| Err(GeometryError::Mismatch { field }.into());
    if Geometry::of(&line)? != granted.geometry {
        return mismatch("geometry");
    }
    if line.epoch != granted.epoch {
        return mismatch("epoch");
    }
    if line.topic != granted.topic_id {
        return mismatch("topic");
    }
    if line.schema_hash != granted.schema.hash() {
        return mismatch("schema");
    }
    Ok(if remote.is_mapped() { Source::Mapped(Arc::clone(remote.mirror())) } else { Source::Remote(remote) })
}

fn undialled(target: &Target, error: LinkError) -> SubscriberError {
    let target = target.clone();
    match error {
        LinkError::Fabric(source) => SubscriberError::Unreachable { target, source },
        LinkError::Session(source) => SubscriberError::Session { target, source },
        LinkError::Random(source) => SubscriberError::Random(source),
    }
}

fn unattached(target: &Target, error: AttachError) -> SubscriberError {
    let target = target.clone();
    match error {
        AttachError::Refused { reason, text } => SubscriberError::Refused { target, reason, text },
        AttachError::Session(source) => SubscriberError::Session { target, source },
        AttachError::Unfit(source) => SubscriberError::Unfit { target, source },
        AttachError::Memory(source) => SubscriberError::Memory(source),
        AttachError::Fabric(source) => SubscriberError::Fabric(source),
    }
}

impl From<LinkError> for AttachError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Fabric(source) => Self::Fabric(source),
            LinkError::Session(source) => Self::Session(source),
            LinkError::Random(source) => {
                Self::Fabric(FabricError::System { what: "draw a random number", source })
            }
        }
    }
}
