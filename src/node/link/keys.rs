//! Keys that change while a session lasts.

use std::sync::Arc;

use super::Link;
use crate::keyring::Keys;

impl Link {
    /// Compares what the peer has proven with the keys that are in force now. Returns whether all that is attached may go on.
    pub(in crate::node) fn renew_keys(&self, keys: &Arc<Keys>) -> bool {
        let mut state = self.state.lock();
        let peer = state.peer.as_ref().map(|peer| peer.node.clone());
        let state = &mut *state;
        state.session.renew_keys(peer.as_ref(), keys)
            && state.attachments.values().all(|attached| state.session.permits(&attached.topic))
    }

    /// Whether what the peer proves was compared with these keys.
    pub(in crate::node) fn uses(&self, keys: &Arc<Keys>) -> bool {
        self.state.lock().session.uses(keys)
    }
}
