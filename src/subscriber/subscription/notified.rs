//! How a subscription is notified, and what it takes from notices.

use super::Subscription;
use crate::notice::NoticeCounts;
use crate::subscriber::notices::{InlineValues, NoticePath, NoticeSource, NoticeSubscription};

impl Subscription {
    /// Sets how it is notified from now on.
    pub(crate) fn listen(&mut self, notice_source: NoticeSource) {
        self.set_notices(Some(notice_source));
    }

    /// Sets how it is notified from now on, if at all.
    pub(super) fn set_notices(&mut self, notice_source: Option<NoticeSource>) {
        self.notice_source = notice_source;
        if self.distrusts {
            self.refuse_inline();
        }
    }

    /// How it is notified at the moment.
    pub(in crate::subscriber) fn notice_path(&self) -> NoticePath {
        match &self.notice_source {
            None => NoticePath::None,
            Some(NoticeSource::Unavailable) => NoticePath::Unavailable,
            Some(NoticeSource::WakeWord(_)) => NoticePath::WakeWord,
            Some(NoticeSource::Channel(notices)) => notices.path(self.clock.monotonic_ns()),
            Some(NoticeSource::Immediate(_)) => NoticePath::Immediate,
        }
    }

    /// This process's counts on its channel.
    pub(in crate::subscriber) fn notice_counts(&self) -> NoticeCounts {
        match &self.notice_source {
            Some(NoticeSource::Channel(notices)) => notices.counts(),
            _ => NoticeCounts::default(),
        }
    }

    /// Which inline values it takes at the moment, of a kind that has some.
    pub(in crate::subscriber) fn inline_values(&self) -> InlineValues {
        match &self.notice_source {
            _ if self.distrusts => InlineValues::Contradicted,
            Some(NoticeSource::Channel(notices)) => notices.inline_values(),
            _ => InlineValues::None,
        }
    }

    /// Continues for this one, whose inline values may have been contradicted: then this one takes none either.
    pub(in crate::subscriber) fn inherit_distrust(&mut self, before: &Self) {
        if before.distrusts {
            self.distrusts = true;
            self.refuse_inline();
        }
    }

    fn refuse_inline(&mut self) {
        let notices = self.notice_source.iter_mut().filter_map(NoticeSource::subscription);
        notices.for_each(|notices| notices.refuse_inline());
    }

    /// Makes the next poll read at once: the last one has missed something, and no notice will repeat it.
    pub(in crate::subscriber) fn look_again(&mut self) {
        if let Some(NoticeSource::Channel(notices)) = &mut self.notice_source {
            notices.forget();
        }
    }

    /// Ignores inline values from now on, and reads at the next poll.
    #[cold]
    pub(in crate::subscriber) fn distrust_notices(&mut self) {
        self.distrusts = true;
        self.attachment.contradict(&self.granted);
        self.notice_source
            .iter_mut()
            .filter_map(NoticeSource::subscription)
            .for_each(NoticeSubscription::distrust);
    }
}
