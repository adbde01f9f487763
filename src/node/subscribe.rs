use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::Node;
use super::core::NodeCore;
use super::link::{Answer, LOOK_AGAIN, Link, LinkAttachment, LinkError};
use crate::clock::saturate;
use crate::control::{ControlError, GeometryWire, Grant, RefuseReason};
use crate::fabric::{ByteRange, Completion, Exposure, Offer, Target, wait};
use crate::id::Delivery;
use crate::layout::header::{STATIC_OFFSET, StaticLine};
use crate::layout::state::{GeometryError, StateGeometry};
use crate::limits;
use crate::memory::{Protection, Region};
use crate::payload::{Encoding, Payload, Schema};
use crate::repository::state::ReadCounts;
use crate::subscriber::{Attachment, GrantError, Granted, Source, StateSubscriber, SubscriberError};

/// Sets up a subscriber of a state topic.
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct StateSubscriberBuilder<'a, T> {
    node: &'a Node,
    target: String,
    delivery: Delivery,
    patience: Duration,
    region_len_max: usize,
    payload: PhantomData<fn() -> T>,
}

impl<'a, T: Payload> StateSubscriberBuilder<'a, T> {
    pub(super) fn new(node: &'a Node, target: String) -> Self {
        let patience = Duration::from_nanos(limits::ANSWER_DEADLINE_NS);
        let region_len_max = limits::SUBSCRIBED_LEN_MAX_DEFAULT;
        Self { node, target, delivery: Delivery::Pull, patience, region_len_max, payload: PhantomData }
    }

    /// Reads the publisher's repository one-sidedly. This is the default; it costs the publisher nothing.
    pub fn pull(self) -> Self {
        Self { delivery: Delivery::Pull, ..self }
    }

    /// Lends the publisher a landing region of the repository's size, and has each value written to it.
    pub fn push(self) -> Self {
        Self { delivery: Delivery::Push, ..self }
    }

    /// How values travel.
    pub fn delivery(self, delivery: Delivery) -> Self {
        Self { delivery, ..self }
    }

    /// How long each answer of the publisher's node may take; by default [`limits::ANSWER_DEADLINE_NS`]. A session
    /// that exists already keeps its own.
    pub fn timeout(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The largest repository to map, and landing region to make, bytes; by default
    /// [`limits::SUBSCRIBED_LEN_MAX_DEFAULT`]. The publisher's slots and largest payload say how large they are.
    pub fn region_len_max(self, region_len_max: usize) -> Self {
        Self { region_len_max, ..self }
    }

    /// Attaches to the topic. Blocks for two round trips, three for push, and allocates.
    ///
    /// The payload type must be that of the topic, by name and fields. A subscriber of [`Raw`](crate::Raw) gets the
    /// bytes of any topic, to be decoded by its [`schema`](StateSubscriber::schema).
    ///
    /// # Errors
    ///
    /// [`SubscriberError`] when the address is malformed, the node or topic is not there, the publisher refuses,
    /// or what it grants cannot be used.
    pub fn open(self) -> Result<StateSubscriber<T>, SubscriberError> {
        let target: Target = self.target.parse()?;
        let core = self.node.core();
        let failed = |error| failed(&target, error);
        let schema_hash = match T::ENCODING {
            Encoding::Raw => None,
            _ => Some(T::schema()?.hash()),
        };
        let dial = || Link::dial(core, &target.address, saturate(self.patience)).map_err(failed);
        let attach = |link: &Arc<Link>| {
            let request = (target.topic.clone(), self.delivery, schema_hash);
            let attachment = link.attach(core, self.node.hold(), request).map_err(failed)?;
            match self.take_grant(&target, &attachment) {
                Ok((granted, source)) => Ok((granted, source, attachment)),
                Err(error) => {
                    attachment.leave(ReadCounts::default());
                    Err(error)
                }
            }
        };
        let attached = match Link::known(core, &target.address) {
            None => attach(&dial()?),
            Some(link) => match attach(&link) {
                // The node may have ended, or started again, since the session began.
                Err(error) if is_over(&error) => attach(&dial()?),
                attached => attached,
            },
        };
        let (granted, source, attachment) = attached?;
        Ok(StateSubscriber::new(granted, source, Arc::new(attachment), Arc::clone(core.clock())))
    }

    /// Takes the publisher's grant, and makes of it what a subscriber reads from.
    fn take_grant(
        &self,
        target: &Target,
        attachment: &LinkAttachment,
    ) -> Result<(Granted, Source), SubscriberError> {
        let (core, delivery) = (self.node.core(), self.delivery);
        let failed = |error| failed(target, error);
        let unfit = |source| SubscriberError::Unfit { target: target.clone(), source };
        let (grant, offer) = match attachment.answer().map_err(failed)? {
            Answer::Granted { grant, offer } => (grant, offer),
            Answer::Refused { reason, text } => return Err(refused(target, reason, text)),
            Answer::Lent => return Err(unfit(GrantError::NoRegion)),
        };
        let granted = check(target, delivery, &grant).map_err(unfit)?;
        let (len, max) = (granted.geometry.region_len(), self.region_len_max);
        if len > max {
            return Err(unfit(GrantError::RegionLen { len, max }));
        }
        match delivery {
            Delivery::Pull => {
                let source = open_repository(core, &granted, offer).map_err(unfit)?;
                Ok((granted, source))
            }
            Delivery::Push => {
                let region = Arc::new(Region::allocate(len, Protection::PeersWrite)?);
                attachment.lend(core.fabric().register(&region, Exposure::Write)?).map_err(failed)?;
                match attachment.answer().map_err(failed)? {
                    Answer::Lent if attachment.writes_words_in_order() => {
                        Ok((granted, Source::Mapped(region)))
                    }
                    Answer::Lent => Ok((granted, Source::Landing(region))),
                    Answer::Refused { reason, text } => Err(refused(target, reason, text)),
                    Answer::Granted { .. } => Err(unfit(GrantError::NoRegion)),
                }
            }
        }
    }
}

/// Whether the session takes no more, rather than the request failed.
fn is_over(error: &SubscriberError) -> bool {
    let over = |source: &ControlError| {
        use ControlError::{Broken, Closed, Disconnected, TooManyAttachments};
        matches!(source, Broken { .. } | Closed { .. } | Disconnected | TooManyAttachments { .. })
    };
    matches!(error, SubscriberError::Session { source, .. } if over(source))
}

/// Checks that the numbers of a grant fit together: addresses are computed from nothing else.
fn check(target: &Target, delivery: Delivery, grant: &Grant) -> Result<Granted, GrantError> {
    let GeometryWire { slot_count, slot_stride, payload_len_max, region_len } = grant.geometry;
    let payload_len_max = usize::try_from(payload_len_max).unwrap_or(usize::MAX);
    let geometry = StateGeometry::new(slot_count, payload_len_max)?;
    if slot_stride != geometry.slot_stride() as u64 {
        return Err(GeometryError::Mismatch { field: "slot stride" }.into());
    }
    if region_len != geometry.region_len() as u64 {
        return Err(GeometryError::Mismatch { field: "region length" }.into());
    }
    Ok(Granted {
        topic: target.topic.clone(),
        topic_id: grant.topic_id,
        delivery,
        epoch: grant.epoch,
        geometry,
        schema: Schema::from_json(grant.schema.as_bytes())?,
        key: grant.key,
        address: grant.address,
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
    let line = ByteRange { offset: STATIC_OFFSET, len: size_of::<[u64; StaticLine::WORDS]>() };
    let deadline_ns = core.clock().monotonic_ns().saturating_add(limits::ANSWER_DEADLINE_NS);
    let mut completion = remote.post(&[line])?;
    while completion == Completion::Pending {
        if core.clock().monotonic_ns() >= deadline_ns {
            return Err(GrantError::Unreadable);
        }
        if let Some(handle) = remote.wait_handle()? {
            wait(&[handle], &[], LOOK_AGAIN)?;
        }
        completion = remote.poll()?;
    }
    let mut words = [0; StaticLine::WORDS];
    remote.mirror().copy_out(STATIC_OFFSET, &mut words);
    let line = StaticLine::parse(&words)?;
    let mismatch = |field| Err(GeometryError::Mismatch { field }.into());
    if StateGeometry::of(&line)? != granted.geometry {
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

fn refused(target: &Target, reason: RefuseReason, text: String) -> SubscriberError {
    SubscriberError::Refused { target: target.clone(), reason, text }
}

fn failed(target: &Target, error: LinkError) -> SubscriberError {
    let target = target.clone();
    match error {
        LinkError::Fabric(source) => SubscriberError::Unreachable { target, source },
        LinkError::Session(source) => SubscriberError::Session { target, source },
        LinkError::Random(source) => SubscriberError::Random(source),
    }
}
