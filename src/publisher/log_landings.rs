use std::sync::Arc;

use super::topic::Landings;
use crate::fabric::RemoteWrite;
use crate::sync::atomic::AtomicBool;

/// The landing regions of a log topic, as its node and its publisher share them.
#[derive(Debug, Default)]
pub(super) struct LogLandings;

impl Landings for LogLandings {
    fn lend(&self, _remote: Box<dyn RemoteWrite>, _closed: &Arc<AtomicBool>) -> bool {
        false
    }

    fn tend(&self) -> bool {
        false
    }

    fn owe(&self, _closed: &Arc<AtomicBool>) -> bool {
        false
    }
}
