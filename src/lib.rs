//! Publish/subscribe over one-sided memory access.

#[cfg(target_endian = "big")]
compile_error!("fabricast regions are little-endian words; big-endian hosts are not supported");

mod checksum;
mod clock;
mod control;
mod event;
mod id;
pub mod limits;
mod payload;
mod sync;

pub use event::{Event, EventSink};
pub use id::{Delivery, Epoch, Kind, NameError, NodeName, Sequence, TopicId, TopicName};
pub use payload::{DecodeError, Decoded, EncodeError, Encoding, Payload, Pod, Raw, Schema, SchemaError};
