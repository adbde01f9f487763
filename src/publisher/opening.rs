use std::any::Any;
use std::sync::Arc;

use super::PublisherError;
use crate::clock::Clock;
use crate::fabric::{Fabric, FabricError, KeyedWaker};
use crate::id::{Epoch, TopicName};
use crate::payload::{Payload, Schema};

/// The node's part in opening a topic of any kind.
#[derive(Debug)]
pub(crate) struct TopicParts<'a> {
    pub(crate) fabric: &'a dyn Fabric,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) waker: KeyedWaker,
    pub(crate) node: Arc<dyn Any + Send + Sync>,
    pub(crate) host: &'a str,
    pub(crate) name: TopicName,
    /// Unique.
    pub(crate) epoch: Epoch,
    pub(crate) payload_len_max: usize,
    /// The example values for the payload type.
    pub(crate) samples: &'a [String],
}

/// A new, unique epoch.
pub(crate) fn fresh_epoch() -> Result<Epoch, PublisherError> {
    let number = crate::random::number().map_err(FabricError::no_random)?;
    Ok(Epoch::new(number).ok_or_else(|| FabricError::no_random(std::io::ErrorKind::Other.into()))?)
}

impl TopicParts<'_> {
    /// The schema of this type, if its values fit.
    pub(super) fn schema<T: Payload>(&self) -> Result<Schema, PublisherError> {
        let max = self.payload_len_max;
        let schema = T::schema_with(self.samples)?;
        match T::fixed_len() {
            Some(len) if len > max => Err(PublisherError::PayloadLenMax { len, max }),
            None if schema.value_len_min() > max => {
                Err(PublisherError::PayloadLenMin { len: schema.value_len_min(), max })
            }
            _ => Ok(schema),
        }
    }
}
