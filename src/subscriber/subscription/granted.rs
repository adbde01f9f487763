use crate::control::Peer;
use crate::id::{Delivery, Epoch, Incarnation, TopicId, TopicName};
use crate::layout::Geometry;
use crate::payload::Schema;
use crate::repository::GrantedAt;

/// The publisher's grant, checked.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) topic: TopicName,
    pub(crate) topic_id: TopicId,
    pub(crate) delivery: Delivery,
    pub(crate) epoch: Epoch,
    pub(crate) incarnation: Incarnation,
    pub(crate) geometry: Geometry,
    pub(crate) schema: Schema,
    pub(crate) key: u64,
    pub(crate) address: u64,
    /// What the repository held.
    pub(crate) at: GrantedAt,
    /// The publisher's node; `None` in tests of parts.
    pub(crate) peer: Option<Peer>,
    /// How long values are valid, nanoseconds; 0 for ever.
    pub(crate) lifespan_ns: u64,
}
