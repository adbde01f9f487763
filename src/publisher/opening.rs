use std::any::Any;
use std::sync::Arc;

use super::{Gating, LenLimit, PublisherError, TopicMemory};
use crate::clock::Timekeeper;
use crate::fabric::{Fabric, FabricError, KeyedWaker};
use crate::id::{Epoch, Incarnation, Sequence, TopicName};
use crate::payload::{Payload, Schema};

/// The node's part in opening a topic of any kind.
#[derive(Debug)]
pub(crate) struct TopicParts<'a> {
    pub(crate) fabric: &'a dyn Fabric,
    pub(crate) time: Arc<Timekeeper>,
    pub(crate) waker: KeyedWaker,
    pub(crate) node: Arc<dyn Any + Send + Sync>,
    pub(crate) host: &'a str,
    pub(crate) name: TopicName,
    pub(crate) numbering: Numbering,
    pub(crate) memory: TopicMemory,
    /// How long its values are valid, nanoseconds; 0 for ever.
    pub(crate) lifespan_ns: u64,
    pub(crate) payload_len_max: usize,
    /// The setting that declares it.
    pub(crate) limit: LenLimit,
    /// What subscribers may ask of the publisher.
    pub(crate) gating: Option<Gating>,
    /// The example values for the payload type.
    pub(crate) samples: &'a [String],
}

/// How the values of a topic are numbered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbering {
    pub(crate) epoch: Epoch,
    pub(crate) incarnation: Incarnation,
    /// The sequence before that of the first value.
    pub(crate) after: Sequence,
}

impl Numbering {
    /// From 1, in an epoch of its own.
    pub(crate) fn new(incarnation: Incarnation) -> Self {
        Self { epoch: incarnation.into(), incarnation, after: Sequence::NONE }
    }
}

/// A new, unique incarnation.
pub(crate) fn fresh_incarnation() -> Result<Incarnation, PublisherError> {
    let number = crate::random::number().map_err(FabricError::no_random)?;
    Ok(Incarnation::new(number).ok_or_else(|| FabricError::no_random(std::io::ErrorKind::Other.into()))?)
}

impl TopicParts<'_> {
    /// The schema of this type, if its values fit. `len_min` returns the length of the shortest one.
    pub(super) fn schema<T: Payload>(
        &self,
        len_min: impl FnOnce(&Schema) -> usize,
    ) -> Result<Schema, PublisherError> {
        let (max, limit) = (self.payload_len_max, self.limit);
        let schema = T::schema_with(self.samples)?;
        match T::fixed_len() {
            Some(len) if len > max => return Err(PublisherError::PayloadLenMax { len, max }),
            Some(_) => {}
            None => {
                let len = len_min(&schema);
                if len > max {
                    return Err(PublisherError::PayloadLenMin { len, max, limit });
                }
            }
        }
        Ok(schema)
    }
}
