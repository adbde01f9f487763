use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use super::update::{EventEnd, FeedUpdate, Updates, ValueUpdate};
use crate::clock::Clock;
use crate::repository::Reader as _;
use crate::subscriber::ReceiveError;
use crate::subscriber::table::{Change, TableSubscriber};

/// A reader of a feed's values: those of all keys that changed, once an interval.
pub(super) struct Conflated {
    interval_ns: u64,
    /// When to read next, ns of the clock.
    due_ns: u64,
    is_reading: bool,
    /// A value could not be read since the last reading that came to its end.
    has_failed: bool,
    clock: Arc<dyn Clock>,
}

impl Conflated {
    pub(super) fn new(interval_ns: u64, clock: Arc<dyn Clock>) -> Self {
        Self { interval_ns, due_ns: 0, is_reading: false, has_failed: false, clock }
    }

    /// Returns how long to wait for the next reading, ns.
    pub(super) fn rest_ns(&self) -> u64 {
        if self.is_reading { 0 } else { self.due_ns.saturating_sub(self.clock.monotonic_ns()) }
    }

    /// Adds the next updates. Returns false if there are none now.
    pub(super) fn advance<K, R, V>(
        &mut self,
        table: &mut TableSubscriber<K, V>,
        updates: &mut Updates<K, R, V>,
    ) -> Result<bool, ReceiveError>
    where
        K: Serialize + DeserializeOwned + Send + 'static,
        V: Serialize + DeserializeOwned + Send + 'static,
    {
        let now_ns = self.clock.monotonic_ns();
        if !self.is_reading {
            // The end is reported at once.
            if now_ns < self.due_ns && !table.core.subscription.has_ended() {
                return Ok(false);
            }
            self.is_reading = true;
            self.due_ns = now_ns.saturating_add(self.interval_ns);
        }
        let change = table.try_change();
        if let Ok(Some(Change { key, value, meta, number, .. })) = change {
            updates.add(FeedUpdate::Value(ValueUpdate { key, value, meta, number, ends_event: false }));
            return Ok(true);
        }
        if let Err(error) = change {
            // One about a value: the others are read all the same.
            self.is_reading = error.is_about_a_value();
            self.has_failed |= self.is_reading;
            if !self.is_reading {
                // Everything was read before the end is reported. After another error the next reading has the rest.
                let is_over = matches!(error, ReceiveError::Ended { .. } | ReceiveError::Gone { .. });
                let is_whole = is_over && !self.has_failed;
                updates.end(EventEnd { sequence: table.last(), is_whole });
            }
            updates.fail(Some(error));
            return Ok(true);
        }
        let is_fetching = table.core.fetching.is_some() || table.core.reader.wants_more();
        self.is_reading = is_fetching;
        if !is_fetching {
            let is_whole = !std::mem::take(&mut self.has_failed);
            updates.end(EventEnd { sequence: table.last(), is_whole });
        }
        Ok(false)
    }
}
