use super::update::{Advance, EventEnd, FeedEvent, FeedUpdate, Received, Updates};
use crate::subscriber::ReceiveError;

/// Gives the updates of a feed one by one, or by event.
pub(super) struct Assembly<K, R, V> {
    updates: Updates<K, R, V>,
    /// The updates of the event that is received as a whole.
    event: Vec<FeedUpdate<K, R, V>>,
    /// The most updates of an event, as far as that was asked for.
    event_len_max: usize,
    /// Updates of the current event were received one by one.
    is_begun: bool,
    /// Reported after a part of that event.
    failure: Option<ReceiveError>,
}

impl<K, R, V> Assembly<K, R, V> {
    pub(super) fn new() -> Self {
        let (updates, event) = (Updates::default(), Vec::new());
        Self { updates, event, event_len_max: 0, is_begun: false, failure: None }
    }

    /// Keeps the updates of these keys only.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(&K) -> bool) {
        self.updates.retain(&is_wanted);
        self.event.retain(|update| is_wanted(update.key()));
    }

    /// Returns whether the next update is a value.
    pub(super) fn begins_with_a_value(&self) -> bool {
        self.updates.begins_with_a_value()
    }

    /// Returns the next update, if there is one. `advance` adds updates, or returns the only one.
    #[inline]
    pub(super) fn try_update(
        &mut self,
        mut advance: impl FnMut(&mut Updates<K, R, V>) -> Result<Advance<K, R, V>, ReceiveError>,
    ) -> Result<Option<FeedUpdate<K, R, V>>, ReceiveError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if !self.event.is_empty() {
            self.updates.put_back(std::mem::take(&mut self.event));
        }
        loop {
            let next = self.next(&mut advance);
            match next.inspect_err(|error| self.is_begun &= error.loses_nothing())? {
                Some(Received::Update(update)) => {
                    self.is_begun = !update.ends_event();
                    return Ok(Some(update));
                }
                Some(Received::End(_)) => self.is_begun = false,
                None => return Ok(None),
            }
        }
    }

    /// Returns the next event, if there is one, or the part of it that was received before a failure. `len_max` returns the most
    /// updates of an event of this source.
    pub(super) fn try_event<S>(
        &mut self,
        source: &mut S,
        mut advance: impl FnMut(&mut S, &mut Updates<K, R, V>) -> Result<Advance<K, R, V>, ReceiveError>,
        len_max: impl Fn(&S) -> usize,
    ) -> Result<Option<FeedEvent<K, R, V>>, ReceiveError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        loop {
            match self.next(&mut |updates: &mut _| advance(source, updates)) {
                Ok(None) => return Ok(None),
                Ok(Some(Received::Update(update))) => {
                    self.event.push(update);
                    if self.event.len() > self.event_len_max {
                        // Asked for only now: a publisher that was found meanwhile may have longer events.
                        self.event_len_max = self.event_len_max.max(len_max(source));
                    }
                    // No publisher of a feed has so long events.
                    if self.event.len() > self.event_len_max {
                        return Ok(self.take_part());
                    }
                }
                Ok(Some(Received::End(EventEnd { sequence, is_whole }))) => {
                    let is_whole = is_whole && !std::mem::take(&mut self.is_begun);
                    if !self.event.is_empty() {
                        let updates = std::mem::take(&mut self.event);
                        return Ok(Some(FeedEvent { sequence, updates, is_whole }));
                    }
                }
                // The next call goes on with the event.
                Err(failure) if failure.loses_nothing() => return Err(failure),
                Err(failure) => {
                    let Some(part) = self.take_part() else { return Err(failure) };
                    self.failure = Some(failure);
                    return Ok(Some(part));
                }
            }
        }
    }

    /// Takes the part of an event that was received.
    fn take_part(&mut self) -> Option<FeedEvent<K, R, V>> {
        let updates = std::mem::take(&mut self.event);
        let sequence = updates.last()?.meta().sequence;
        Some(FeedEvent { sequence, updates, is_whole: false })
    }

    /// Takes the next step.
    #[inline]
    fn next(
        &mut self,
        advance: &mut impl FnMut(&mut Updates<K, R, V>) -> Result<Advance<K, R, V>, ReceiveError>,
    ) -> Result<Option<Received<K, R, V>>, ReceiveError> {
        loop {
            if let Some(next) = self.updates.next()? {
                return Ok(Some(next));
            }
            match advance(&mut self.updates)? {
                Advance::Update(update) => return Ok(Some(Received::Update(update))),
                Advance::More => {}
                Advance::Nothing => return self.updates.next(),
            }
        }
    }
}
