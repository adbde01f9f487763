use crate::id::{Kind, Meta, Sequence};
use crate::payload::Payload;
use crate::repository::{Arbiter, Arrival, DamagedEntry, Reader, Verdict};
use crate::subscriber::any::inside;
use crate::subscriber::offer::Offer;
use crate::subscriber::{AnySubscriber, ReceiveError, RenewableHandle, Sample, Subscriber, TopicKind};

/// A subscriber of one line.
pub(crate) trait LineSource: RenewableHandle {
    /// What it receives.
    type Item;

    /// It begins with values that stand for all records before them.
    const VALUES_COME_FIRST: bool = false;

    /// Creates the arbiter of lines of its kind.
    fn arbiter(&self) -> Box<dyn Arbiter>;

    /// The kind of its topic.
    fn kind(&self) -> Kind;

    /// Takes the next value, and decodes it unless it is a duplicate.
    fn try_offer(
        &mut self,
        judge: impl FnOnce(&Arrival<'_>) -> Verdict,
    ) -> Result<Option<Offer<Self::Item>>, ReceiveError>;

    /// Returns the last value that it has brought or passed: see [`Reader::brought`].
    fn brought(&self) -> Sequence {
        self.position().last
    }

    /// Fails once the topic has ended, or its publisher is gone.
    fn check_end(&self) -> Result<(), ReceiveError>;

    /// Returns up to where every value was taken: see [`Reader::complete`].
    fn complete(&self) -> Sequence;

    /// Returns once whether that was wrong: see [`Reader::take_misread`].
    fn take_misread(&mut self) -> bool {
        false
    }

    /// Offers the newest value of each key once more: see [`Reader::offer_again`].
    fn offer_again(&mut self) {}

    /// Returns when this commit was published: see [`Reader::published_ns`].
    fn published_ns(&self, _commit: Sequence) -> u64 {
        0
    }

    /// Returns which value was found to be damaged last: see [`Reader::damaged`].
    fn damaged(&self) -> DamagedEntry {
        DamagedEntry::default()
    }

    /// Returns whether the table has this key.
    fn has_key(&self, key: &[u8]) -> bool;

    /// Returns whether this key of a table is received.
    fn is_wanted(&self, _key: &[u8]) -> bool {
        true
    }

    /// Returns the removal of a key, of a table. `None` if it is not wanted any more.
    fn removal(&self, _key: &[u8], _meta: Meta) -> Option<Sample<Self::Item>> {
        None
    }
}

impl<K: TopicKind, T: Payload> LineSource for Subscriber<K, T> {
    type Item = T::Owned;

    fn arbiter(&self) -> Box<dyn Arbiter> {
        Box::new(<K::Reader as Reader>::Arbiter::default())
    }

    fn kind(&self) -> Kind {
        K::Reader::KIND
    }

    #[inline]
    fn try_offer(
        &mut self,
        judge: impl FnOnce(&Arrival<'_>) -> Verdict,
    ) -> Result<Option<Offer<T::Owned>>, ReceiveError> {
        self.core.try_offer(judge, |bytes, _| T::decode(bytes))
    }

    fn brought(&self) -> Sequence {
        self.core.reader.brought()
    }

    fn check_end(&self) -> Result<(), ReceiveError> {
        self.core.subscription.check_end()
    }

    fn complete(&self) -> Sequence {
        self.core.reader.complete()
    }

    fn take_misread(&mut self) -> bool {
        self.core.reader.take_misread()
    }

    fn offer_again(&mut self) {
        self.core.reader.offer_again();
    }

    fn published_ns(&self, commit: Sequence) -> u64 {
        self.core.reader.published_ns(commit)
    }

    fn damaged(&self) -> DamagedEntry {
        self.core.reader.damaged()
    }

    fn has_key(&self, key: &[u8]) -> bool {
        self.core.reader.has_key(key)
    }

    fn is_wanted(&self, key: &[u8]) -> bool {
        self.core.reader.is_wanted(key)
    }

    fn removal(&self, key: &[u8], meta: Meta) -> Option<Sample<T::Owned>> {
        if !self.is_wanted(key) {
            return None;
        }
        // An entry without a value: see `layout::table`.
        let entry = [key, &[0]].concat();
        Some(Sample { value: T::decode(&entry).ok()?, meta, conflated: 0 })
    }
}

impl<T: Payload> LineSource for AnySubscriber<T> {
    type Item = T::Owned;

    fn arbiter(&self) -> Box<dyn Arbiter> {
        inside!(self, subscriber => subscriber.arbiter())
    }

    fn kind(&self) -> Kind {
        self.kind()
    }

    fn try_offer(
        &mut self,
        judge: impl FnOnce(&Arrival<'_>) -> Verdict,
    ) -> Result<Option<Offer<T::Owned>>, ReceiveError> {
        inside!(self, subscriber => subscriber.try_offer(judge))
    }

    fn brought(&self) -> Sequence {
        inside!(self, subscriber => subscriber.brought())
    }

    fn check_end(&self) -> Result<(), ReceiveError> {
        inside!(self, subscriber => subscriber.check_end())
    }

    fn complete(&self) -> Sequence {
        inside!(self, subscriber => subscriber.complete())
    }

    fn take_misread(&mut self) -> bool {
        inside!(self, subscriber => subscriber.take_misread())
    }

    fn offer_again(&mut self) {
        inside!(self, subscriber => subscriber.offer_again());
    }

    fn published_ns(&self, commit: Sequence) -> u64 {
        inside!(self, subscriber => subscriber.published_ns(commit))
    }

    fn damaged(&self) -> DamagedEntry {
        inside!(self, subscriber => subscriber.damaged())
    }

    fn has_key(&self, key: &[u8]) -> bool {
        inside!(self, subscriber => subscriber.has_key(key))
    }

    fn is_wanted(&self, key: &[u8]) -> bool {
        inside!(self, subscriber => subscriber.is_wanted(key))
    }

    fn removal(&self, key: &[u8], meta: Meta) -> Option<Sample<T::Owned>> {
        inside!(self, subscriber => subscriber.removal(key, meta))
    }
}
