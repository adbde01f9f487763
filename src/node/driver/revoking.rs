//! Revoking the access of peers: because the program asks for it, or their keys are gone.

use std::sync::Arc;

use super::Driver;
use crate::control::Unproven;
use crate::limits;
use crate::node::core::KEYRING_KEY;
use crate::node::revocation::Revocation;

impl Driver {
    /// Revokes what the program has asked for. Marks the sessions affected.
    pub(super) fn revoke(&mut self) {
        for revocation in self.shared.core.revocations.take() {
            let mut count = 0;
            let table = self.shared.core.topics.table_of_feed(revocation.topic());
            for (key, served) in &mut self.served {
                let revoked = served.revoke(&self.shared.core, revocation.serial, &|topic, peer| {
                    revocation.covers(topic, table.as_ref(), peer)
                });
                if revoked > 0 {
                    self.agenda.mark(*key);
                }
                count += revoked;
            }
            self.revoking.push((revocation, count));
        }
    }

    /// Tells the program once the peers reach nothing any more.
    pub(super) fn finish_revoking(&mut self) {
        let served = &self.served;
        let is_over =
            |(it, _): &mut (Revocation, usize)| !served.values().any(|served| served.is_revoking(it.serial));
        self.revoking.extract_if(.., is_over).for_each(|(revocation, count)| revocation.done(count));
    }

    /// Looks from time to time whether the keyring has changed, and ends what it does not permit any more.
    pub(super) fn renew_keys(&mut self, now_ns: u64) {
        let Some(keyring) = &self.shared.core.guard.keyring else { return };
        self.agenda.set_due(KEYRING_KEY, Some(now_ns.saturating_add(limits::KEYRING_CHECK_NS)));
        let keys = self.shared.core.keys(keyring);
        let are_new = self.keys.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &keys));
        // Another thread may have dialled with the previous ones: that session shows after the last look.
        for (key, served) in self.served.iter_mut().filter(|(_, served)| are_new || !served.uses(&keys)) {
            served.renew_keys(&self.shared.core, &keys);
            self.agenda.mark(*key);
        }
        for link in self.shared.links.all() {
            if (are_new || !link.uses(&keys)) && !link.renew_keys(&keys) {
                let _ = link.abandon(Unproven::KeysRemoved.into());
                self.agenda.mark(link.key());
            }
        }
        self.keys = Some(keys);
    }
}
