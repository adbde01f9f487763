//! Publish/subscribe over one-sided memory access.

#[cfg(target_endian = "big")]
compile_error!("fabricast regions are little-endian words; big-endian hosts are not supported");

mod checksum;
mod clock;
mod control;
mod event;
mod fabric;
mod id;
mod inspect;
mod layout;
pub mod limits;
mod memory;
mod metrics;
mod node;
mod payload;
mod publisher;
mod random;
mod repository;
mod subscriber;
mod sync;

pub use control::{ControlError, RefuseReason};
pub use event::{Event, EventSink};
pub use fabric::{Address, AddressError, FabricError, Target};
pub use id::{Delivery, Epoch, Kind, NameError, NodeName, Sequence, TopicId, TopicName};
pub use inspect::{GeometryReport, InspectError, Liveness, TopicReport};
pub use layout::header::HeaderError;
pub use layout::state::GeometryError;
pub use memory::MemoryError;
pub use metrics::{Counter, Unit};
pub use node::{
    Directory, DirectoryError, Node, NodeBuilder, NodeError, NodeListing, StatePublisherBuilder,
    StateSubscriberBuilder, TopicListing,
};
pub use payload::{DecodeError, Decoded, EncodeError, Encoding, Payload, Pod, Raw, Schema, SchemaError};
pub use publisher::{Loan, PublishError, PublisherError, StatePublisher};
pub use subscriber::{
    GrantError, ReceiveError, Sample, SampleRef, StateSubscriber, SubscriberError, SubscriberStats,
};
