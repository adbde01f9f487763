//! The end of a node's thread.

use super::*;
use crate::fabric::{Address, Connection, Exposure, Fabric, Intent, NodeListing, Registration, WakeQueue};

/// A fabric in whose turn a node's last handle is dropped.
#[derive(Debug)]
struct Dropping {
    stop: Arc<AtomicBool>,
    queue: Mutex<Option<Arc<WakeQueue>>>,
}

impl Fabric for Dropping {
    fn listen(&self, _: &NodeName) -> Result<Vec<Box<dyn Acceptor>>, FabricError> {
        Err(FabricError::Closed)
    }

    fn tend(&self) {
        if let Some(queue) = self.queue.lock().take() {
            self.stop.store(true, Ordering::Release);
            queue.wake();
        }
    }

    fn dial(&self, _: &Address, _: Intent, _: Duration) -> Result<Box<dyn Connection>, FabricError> {
        Err(FabricError::Closed)
    }

    fn register(&self, _: &Arc<Region>, _: Exposure) -> Result<Registration, FabricError> {
        Err(FabricError::Closed)
    }

    fn nodes(&self) -> Result<Vec<NodeListing>, FabricError> {
        Ok(Vec::new())
    }
}

#[test]
fn node_dropped_during_a_turn_stops_at_once() {
    let (stop, queue) = (Arc::<AtomicBool>::default(), Mutex::default());
    let fabric = Arc::new(Dropping { stop: Arc::clone(&stop), queue });
    let clock = Arc::new(SystemClock);
    let (shared, mut driver) =
        assemble((None, None), Arc::clone(&fabric) as _, clock, Arc::new(TracingSink::default())).unwrap();
    *fabric.queue.lock() = Some(Arc::clone(&shared.core.queue));
    let began_ns = SystemClock.monotonic_ns();
    driver.run(&stop);
    assert!(SystemClock.monotonic_ns() - began_ns < IDLE_NS / 2, "it waited for the next deadline");
}
