use std::sync::Arc;

use super::Node;
use super::core::NodeCore;
use super::link::{Answer, LinkAttachment, LinkError, LinkUse, Request};
use super::terms::{ListenerBuilder, SubscriberBuilder, Terms};
use crate::chain::ErrorChain;
use crate::clock::saturate;
use crate::control::{ControlError, Grant, RefuseReason};
use crate::event::Event;
use crate::fabric::{ByteRange, Completion, Exposure, Offer, Target, read_now};
use crate::id::{Delivery, KindOptions, TopicName};
use crate::layout::Geometry;
use crate::layout::GeometryError;
use crate::layout::header::{STATIC_OFFSET, StaticHeader};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::payload::{Payload, Schema, SchemaError};
use crate::repository::feed::is_record;
use crate::repository::{GrantedAt, SubscriberStats};
use crate::subscriber::{
    AnySubscriber, AttachError, Attachment, GrantError, Granted, NoticeSource, Source, Subscribed,
    SubscriberError, Subscription, TopicEnd,
};

impl Node {
    /// Returns a builder for a subscriber of the topic at this address, of any kind, for example `shm:NODE/TOPIC`.
    pub fn any_subscriber<T: Payload>(
        &self,
        target: impl TryInto<Target, Error: Into<SubscriberError>>,
    ) -> SubscriberBuilder<'_, AnySubscriber<T>> {
        SubscriberBuilder::new(self, target)
    }

    /// Returns a builder for a listener: publishers of this topic, of any kind, dial this node, which needs a name.
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
    /// The payload type must match the topic's by name and fields. A subscriber of [`Raw`](crate::Raw) receives the bytes of any
    /// topic, which its [`schema`](crate::Subscriber::schema) decodes.
    ///
    /// # Errors
    ///
    /// [`SubscriberError`] when the address is malformed, the node or topic does not exist, the topic is of another kind, the
    /// publisher refuses, or its grant is unusable.
    pub fn open(self) -> Result<S, SubscriberError> {
        let mut opening = Opening::ask(self)?;
        opening.take_grant();
        opening.finish()
    }

    /// Attaches to all of these topics, and returns what [`Self::open`] would return for each, in order.
    ///
    /// Requests up to [`limits::ATTACHMENTS_PER_SESSION_MAX`] topics of a node at a time, so that thousands of topics take a few
    /// round trips. Each topic with [`Self::notices`] takes one more. Blocks for that long, and allocates.
    ///
    /// ```
    /// use fabricast::{Node, SubscriberBuilder};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::builder().name("quotes")?.runtime_dir(dir.path()).open()?;
    /// let symbols = ["EURUSD", "GBPUSD", "USDJPY"];
    /// let open = |symbol: &&str| node.state_publisher::<f64>(symbol).open();
    /// let mut publishers = symbols.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    ///
    /// let all = symbols.map(|symbol| node.state_subscriber::<f64>(format!("shm:quotes/{symbol}").as_str()));
    /// let mut subscribers = SubscriberBuilder::open_all(all).into_iter().collect::<Result<Vec<_>, _>>()?;
    /// publishers[2].publish(&151.2)?;
    /// assert_eq!(subscribers[2].try_receive()?.map(|sample| sample.value), Some(151.2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_all(builders: impl IntoIterator<Item = Self>) -> Vec<Result<S, SubscriberError>> {
        let (mut builders, mut opened) = (builders.into_iter(), Vec::new());
        loop {
            let batch = builders.by_ref().take(limits::ATTACHMENTS_PER_SESSION_MAX);
            let mut asked: Vec<_> = batch.map(Opening::ask).collect();
            if asked.is_empty() {
                return opened;
            }
            asked.iter_mut().flatten().for_each(Opening::take_grant);
            opened.extend(asked.into_iter().map(|opening| opening.and_then(Opening::finish)));
        }
    }
}

/// A subscriber whose topic has been requested.
struct Opening<'a, S: Subscribed> {
    node: &'a Node,
    terms: Terms<S::Options>,
    target: Target,
    expected: Option<Schema>,
    link: LinkUse,
    /// The session existed before. The node may have stopped or restarted since it began.
    is_known: bool,
    attachment: LinkAttachment,
    /// The grant, or why there is none, once known.
    granted: Option<Result<(Granted, Place), AttachError>>,
}

/// Where a subscriber reads.
enum Place {
    Repository(Source),
    /// Its landing region, which the publisher has not accepted yet.
    Landing(Arc<Region>),
}

impl<'a, S: Subscribed> Opening<'a, S> {
    /// Requests the topic over the existing session with its node, or a new one.
    fn ask(builder: SubscriberBuilder<'a, S>) -> Result<Self, SubscriberError> {
        let SubscriberBuilder { node, terms, samples, place, .. } = builder;
        let target = place?;
        let expected = expected::<S::Payload>(&samples)?;
        let mut known = node.links().known(&target.address);
        loop {
            let is_known = known.is_some();
            let link = known.take().map_or_else(|| terms.dial(node, &target), Ok);
            let link = link.map_err(|error| explain(node, &target, error))?;
            let asked = terms.ask(node, &link, &target.topic, expected.as_ref());
            match asked.map_err(|error| unattached(&target, error)) {
                Ok(attachment) => {
                    let granted = None;
                    return Ok(Self { node, terms, target, expected, link, is_known, attachment, granted });
                }
                Err(error) if is_known && is_over(&link, &error) => {}
                Err(error) => return Err(explain(node, &target, error)),
            }
        }
    }

    /// Waits for the grant, and sends the landing region.
    fn take_grant(&mut self) {
        let (core, topic) = (self.node.core(), &self.target.topic);
        self.granted = Some(self.terms.take_grant(core, topic, &self.attachment));
    }

    /// Waits for the remaining answers.
    fn finish(self) -> Result<S, SubscriberError> {
        let Self { node, terms, target, expected, link, is_known, attachment, granted } = self;
        let (topic, expected) = (&target.topic, expected.as_ref());
        let granted = granted.unwrap_or(Err(GrantError::NoRegion.into()));
        let attached = terms.finish(node, (topic, expected), attachment, granted);
        let subscribed = match attached.map_err(|error| unattached(&target, error)) {
            Err(error) if is_known && is_over(&link, &error) => {
                let known = node.links().known(&target.address);
                let link = known.map_or_else(|| terms.dial(node, &target), Ok);
                link.and_then(|link| {
                    let attached = terms.attach(node, &link, topic, expected);
                    attached.map_err(|error| unattached(&target, error))
                })
            }
            attached => attached,
        };
        let subscription = subscribed.map_err(|error| explain(node, &target, error))?;
        S::open(subscription, terms.options).map_err(|error| unattached(&target, error.into()))
    }
}

impl<O: Copy + Into<KindOptions>> Terms<O> {
    fn dial(self, node: &Node, target: &Target) -> Result<LinkUse, SubscriberError> {
        let link = node.links().dial(&target.address, saturate(self.timeout));
        link.map_err(|error| undialled(target, error))
    }

    /// Attaches to a topic of the node at the other end of this session.
    pub(super) fn attach(
        self,
        node: &Node,
        link: &LinkUse,
        topic: &TopicName,
        expected: Option<&Schema>,
    ) -> Result<Subscription, AttachError> {
        let attachment = self.ask(node, link, topic, expected)?;
        let granted = self.take_grant(node.core(), topic, &attachment);
        self.finish(node, (topic, expected), attachment, granted)
    }

    /// Requests a topic without waiting for the answer.
    fn ask(
        self,
        node: &Node,
        link: &LinkUse,
        topic: &TopicName,
        expected: Option<&Schema>,
    ) -> Result<LinkAttachment, AttachError> {
        let (delivery, options) = (self.delivery, self.options.into());
        let schema_hash = expected.map(Schema::hash);
        let progress = (self.progress || self.slow.is_critical()).then_some(self.slow);
        let (topic, trusts_fellows) = (topic.clone(), self.trusts_fellows);
        let request = Request { topic, delivery, schema_hash, options, progress, trusts_fellows };
        Ok(link.attach(node.hold(), request)?)
    }

    /// Makes a subscription from the grant.
    fn finish(
        self,
        node: &Node,
        (topic, expected): (&TopicName, Option<&Schema>),
        attachment: LinkAttachment,
        granted: Result<(Granted, Place), AttachError>,
    ) -> Result<Subscription, AttachError> {
        let core = node.core();
        let accepted = |(granted, place)| match place {
            Place::Repository(source) => Ok((granted, source)),
            Place::Landing(region) => match attachment.answer()? {
                Answer::Exposed => Ok((granted, attachment.landing(region))),
                Answer::Refused { reason, text } => Err(AttachError::Refused { reason, text }),
                Answer::Granted { .. } | Answer::Notices { .. } | Answer::WakeSlot(_) => {
                    Err(GrantError::NoRegion.into())
                }
            },
        };
        match granted.and_then(accepted) {
            Ok((granted, source)) => {
                attachment.watch(&source);
                let is_mapped = matches!(source, Source::Mapped(_));
                let listening =
                    if self.notices { listen(core, &attachment, &granted, is_mapped) } else { None };
                let (clock, progress) = (Arc::clone(&core.clock), attachment.progress(&granted));
                let mut subscription = Subscription::new(granted, source, Arc::new(attachment), clock);
                listening.into_iter().for_each(|it| subscription.listen(it));
                subscription.expect_within(self.deadline);
                subscription.spin_ns = self.idle.spin_ns();
                progress.into_iter().for_each(|it| subscription.report(it));
                Ok(subscription)
            }
            Err(error) => {
                let link = attachment.link().clone();
                attachment.leave(SubscriberStats::default());
                drop(attachment);
                Err(match (error, expected) {
                    (AttachError::Refused { reason: RefuseReason::SchemaMismatch, text }, Some(expected)) => {
                        let text = difference(node, &link, topic, expected).unwrap_or(text);
                        AttachError::Refused { reason: RefuseReason::SchemaMismatch, text }
                    }
                    (error, _) => error,
                })
            }
        }
    }

    /// Accepts the publisher's grant: opens its repository, or exposes a landing region to it.
    fn take_grant(
        self,
        core: &NodeCore,
        topic: &TopicName,
        attachment: &LinkAttachment,
    ) -> Result<(Granted, Place), AttachError> {
        let (grant, offer) = match attachment.answer()? {
            Answer::Granted { grant, offer } => (grant, offer),
            Answer::Refused { reason, text } => return Err(AttachError::Refused { reason, text }),
            Answer::Exposed | Answer::Notices { .. } | Answer::WakeSlot(_) => {
                return Err(GrantError::NoRegion.into());
            }
        };
        let granted = Granted { peer: attachment.link().peer_of(topic), ..self.check(topic, &grant)? };
        let (len, max) = (granted.geometry.region_len(), self.region_len_max);
        if len > max {
            return Err(GrantError::RegionLen { len, max }.into());
        }
        match self.delivery {
            Delivery::Pull => {
                let source = open_repository(core, &granted, offer)?;
                Ok((granted, Place::Repository(source)))
            }
            Delivery::Push => {
                attachment.await_released(max)?;
                let region = Arc::new(Region::allocate(len, Protection::PeerSeals)?);
                let exposed = attachment.expose(core.fabric.register(&region, Exposure::Write)?);
                exposed.map_err(|error| if has_ended(attachment) { topic_ended() } else { error.into() })?;
                Ok((granted, Place::Landing(region)))
            }
        }
    }

    /// Checks that the numbers of a grant are consistent: every address is computed from them.
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
            incarnation: grant.incarnation,
            geometry,
            schema: Schema::from_json(grant.schema.as_bytes())?,
            key: grant.key,
            address: grant.address,
            at: GrantedAt { newest: grant.newest, after: grant.after },
            peer: None,
            lifespan_ns: grant.lifespan_ns,
        })
    }
}

/// The schema that the topic must have; `None` for untyped bytes, which any topic provides.
pub(super) fn expected<T: Payload>(samples: &[String]) -> Result<Option<Schema>, SchemaError> {
    let schema = T::schema_with(samples)?;
    Ok(if schema == Schema::raw() { None } else { Some(schema) })
}

/// Describes how the topic's schema differs from the expected one, if its node answers. Attaches as a push subscriber of raw
/// bytes, because the publisher does not count a subscriber without a landing region.
fn difference(node: &Node, link: &LinkUse, topic: &TopicName, expected: &Schema) -> Option<String> {
    let (delivery, options) = (Delivery::Push, KindOptions::default());
    let request = Request {
        topic: topic.clone(),
        delivery,
        schema_hash: None,
        options,
        progress: None,
        trusts_fellows: false,
    };
    let attachment = link.attach(node.hold(), request).ok()?;
    let answer = attachment.answer();
    attachment.leave(SubscriberStats::default());
    let Ok(Answer::Granted { grant, .. }) = answer else { return None };
    let found = Schema::from_json(grant.schema.as_bytes()).ok()?;
    Some(match (is_record(&found), is_record(expected)) {
        (false, true) => {
            let kind = grant.kind;
            format!("it is a {kind} and not a feed: subscribe to it with Node::{kind}_subscriber")
        }
        (true, false) => format!(
            "it is the log of a feed: subscribe to it with Node::feed_subscriber, or to its table, {topic}/table, with \
             Node::table_subscriber"
        ),
        _ => found.difference(expected),
    })
}

/// Whether the session accepts no more requests, as opposed to a failed request.
fn is_over(link: &LinkUse, error: &SubscriberError) -> bool {
    let over = |source: &ControlError| {
        use ControlError::{Broken, Closed, Disconnected, TooManyAttachments};
        matches!(source, Broken { .. } | Closed { .. } | Disconnected | TooManyAttachments { .. })
    };
    matches!(error, SubscriberError::Session { source, .. } if over(source) || link.failure().is_some())
}

/// Whether the topic has ended since the grant.
fn has_ended(attachment: &LinkAttachment) -> bool {
    matches!(attachment.end(), Some(TopicEnd::Ended { .. }))
}

fn topic_ended() -> AttachError {
    AttachError::Refused { reason: RefuseReason::TopicEnded, text: String::new() }
}

/// Requests notices from the publisher. On failure the subscriber polls instead. Where memory `is_mapped`, every publisher
/// provides notices unless it fails.
fn listen(
    core: &NodeCore,
    attachment: &LinkAttachment,
    granted: &Granted,
    is_mapped: bool,
) -> Option<NoticeSource> {
    let listening = || -> Result<Option<NoticeSource>, AttachError> {
        attachment.listen()?;
        let Answer::Notices { by, offer } = attachment.answer()? else { return Ok(None) };
        attachment.notice_source((by, offer), granted, is_mapped)
    };
    listening().unwrap_or_else(|error| {
        if has_ended(attachment) {
            return None;
        }
        core.tell(&Event::Trouble {
            what: format!("no notices of {}: {}", granted.topic, ErrorChain(&error)),
        });
        Some(NoticeSource::Unavailable)
    })
}

/// Opens the repository of a grant, and checks that it is the granted one.
fn open_repository(
    core: &NodeCore,
    granted: &Granted,
    offer: Option<Box<dyn Offer>>,
) -> Result<Source, GrantError> {
    let offer = offer.ok_or(GrantError::NoRegion)?;
    let mut remote = offer.open_read(granted.geometry.region_len())?;
    let line = ByteRange { offset: STATIC_OFFSET, len: size_of::<[u64; StaticHeader::WORDS]>() };
    let read = read_now(remote.as_mut(), line, core.clock.as_ref(), limits::ANSWER_DEADLINE_NS)?;
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

/// Reports a panic of the node's thread in place of the session error that it caused.
fn explain(node: &Node, target: &Target, error: SubscriberError) -> SubscriberError {
    match (&error, node.core().check_runs()) {
        (SubscriberError::Session { .. }, Err(source)) => {
            SubscriberError::NodeFailed { topic: target.topic.clone(), source }
        }
        _ => error,
    }
}

fn undialled(target: &Target, error: LinkError) -> SubscriberError {
    let target = target.clone();
    match error {
        LinkError::Fabric(source) => SubscriberError::Unreachable { target, source },
        LinkError::Session(source) => SubscriberError::Session { target, source },
    }
}

fn unattached(target: &Target, error: AttachError) -> SubscriberError {
    let target = target.clone();
    match error {
        AttachError::Refused { reason, text } => SubscriberError::Refused { target, reason, text },
        AttachError::Session(source) => SubscriberError::Session { target, source },
        AttachError::Unfit(source) => SubscriberError::Unfit { target, source },
        AttachError::Memory(source) => SubscriberError::Memory(source),
        AttachError::Fabric(source) => SubscriberError::Unreachable { target, source },
    }
}

impl From<LinkError> for AttachError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Fabric(source) => Self::Fabric(source),
            LinkError::Session(source) => Self::Session(source),
        }
    }
}
