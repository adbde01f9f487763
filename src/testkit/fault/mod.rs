//! Scripted faults between a fabric and its user.
//!
//! [`FaultyFabric`] forwards everything to the fabric that it wraps, and counts the operations of each kind. A fault happens
//! where the [`Script`] names an operation by kind and number. Connections are reliable and ordered, so no message is duplicated
//! or overtaken: a lost one takes its connection along.

mod connection;
mod one_sided;
mod script;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use script::{Fault, Running, Script};

use self::connection::{FaultyConnection, FaultyListener, Session};
use self::script::Operation;
use crate::fabric::{
    Acceptor, Address, Connection, Exposure, Fabric, FabricError, Intent, NodeListing, Registration,
};
use crate::id::NodeName;
use crate::memory::Region;

/// A fabric with scripted faults.
#[derive(Debug)]
pub(crate) struct FaultyFabric {
    inner: Box<dyn Fabric>,
    script: Arc<Running>,
}

impl FaultyFabric {
    /// Applies the script to this fabric.
    pub(crate) fn new(inner: Box<dyn Fabric>, script: &Arc<Running>) -> Self {
        Self { inner, script: Arc::clone(script) }
    }
}

impl Fabric for FaultyFabric {
    fn listen(&self, node: &NodeName) -> Result<Vec<Box<dyn Acceptor>>, FabricError> {
        let faulty = |inner| Box::new(FaultyListener { inner, script: Arc::clone(&self.script) }) as _;
        Ok(self.inner.listen(node)?.into_iter().map(faulty).collect())
    }

    fn dial(
        &self,
        address: &Address,
        intent: Intent,
        timeout: Duration,
    ) -> Result<Box<dyn Connection>, FabricError> {
        if self.script.next(Operation::Dial).is_some() {
            return Err(failed("dial the peer"));
        }
        let session = Session::new(&self.script);
        Ok(Box::new(FaultyConnection::new(self.inner.dial(address, intent, timeout)?, session)))
    }

    fn register(&self, region: &Arc<Region>, exposure: Exposure) -> Result<Registration, FabricError> {
        self.inner.register(region, exposure)
    }

    fn nodes(&self) -> Result<Vec<NodeListing>, FabricError> {
        self.inner.nodes()
    }
}

/// The error of an operation that fails by script.
fn failed(what: &'static str) -> FabricError {
    FabricError::System { what, source: std::io::Error::other("the script of faults says so") }
}
