//! Publish/subscribe over one-sided memory access.

#[cfg(target_endian = "big")]
compile_error!("fabricast regions are little-endian words; big-endian hosts are not supported");

mod checksum;
mod clock;
mod control;
mod event;
mod fabric;
mod id;
mod layout;
pub mod limits;
mod memory;
mod metrics;
mod payload;
mod repository;
mod sync;
#[cfg(test)]
mod testkit;

pub use event::{Event, EventSink};
pub use fabric::{Address, AddressError, FabricError, Target};
pub use id::{Delivery, Epoch, Kind, NameError, NodeName, Sequence, TopicId, TopicName};
