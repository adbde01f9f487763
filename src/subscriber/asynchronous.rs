//! Subscribers under tokio: what waits is a task instead of a thread.
//!
//! Every future here is a poll that takes nothing before it is ready, so that one that is dropped while it waits has taken nothing.

mod kinds;
mod receive;
mod registered;
mod subscriber;
mod wait_set;

pub use self::receive::AsyncReceive;
pub use self::registered::AsyncError;
pub(crate) use self::registered::Registered;
pub use self::subscriber::AsyncSubscriber;
pub use self::wait_set::AsyncWaitSet;
