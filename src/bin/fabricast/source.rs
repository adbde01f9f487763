//! What a command follows a topic by: a subscriber of one publisher, or one that finds the next publisher.

use std::time::Duration;

use fabricast::{AnySubscriber, ErrorChain, Persistent, Raw, ReceiveError};

use super::interrupt::Interrupt;
use super::subscription::{Received, poll, try_receive};

/// A subscriber that is followed.
#[derive(Debug)]
pub(crate) struct Source {
    subscription: Subscription,
    /// What has happened to its publisher, not reported yet.
    news: Option<News>,
}

#[derive(Debug)]
enum Subscription {
    /// Of one publisher.
    Once(AnySubscriber<Raw>),
    /// Of all publishers.
    Persistent(Persistent<AnySubscriber<Raw>>),
}

/// What happens to a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It is gone, or has ended the topic: why.
    Lost(String),
    /// A publisher of the same epoch, or the first one, was found.
    Found,
    /// A publisher of another epoch was found.
    Restarted,
}

impl Source {
    /// Ends with the publisher.
    pub(crate) fn once(subscriber: AnySubscriber<Raw>) -> Self {
        Self { subscription: Subscription::Once(subscriber), news: None }
    }

    /// Goes on with the next publisher.
    pub(crate) fn persistent(subscriber: Persistent<AnySubscriber<Raw>>) -> Self {
        Self { subscription: Subscription::Persistent(subscriber), news: None }
    }

    /// The subscriber that is attached, or was last.
    pub(crate) fn current(&self) -> Option<&AnySubscriber<Raw>> {
        match &self.subscription {
            Subscription::Once(subscriber) => Some(subscriber),
            Subscription::Persistent(persistent) => persistent.current(),
        }
    }

    /// The same, to be changed.
    pub(crate) fn current_mut(&mut self) -> Option<&mut AnySubscriber<Raw>> {
        match &mut self.subscription {
            Subscription::Once(subscriber) => Some(subscriber),
            Subscription::Persistent(persistent) => persistent.current_mut(),
        }
    }

    /// Whether it has a publisher, as far as it knows.
    pub(crate) fn is_attached(&self) -> bool {
        match &self.subscription {
            Subscription::Once(_) => true,
            Subscription::Persistent(persistent) => persistent.is_attached(),
        }
    }

    /// What has happened to its publisher since the last call.
    pub(crate) fn take_news(&mut self) -> Option<News> {
        self.news.take()
    }

    /// Whether something has happened to its publisher.
    pub(crate) fn has_news(&self) -> bool {
        self.news.is_some()
    }

    /// Receives the next value, if there is one, and returns `take` of it. Does not wait. The values of a publisher that was found
    /// come after the news of it.
    pub(crate) fn try_receive<R>(
        &mut self,
        take: impl FnOnce(Received<'_>) -> R,
    ) -> Result<Option<R>, ReceiveError> {
        let persistent = match &mut self.subscription {
            Subscription::Once(subscriber) => return Ok(try_receive(subscriber)?.map(take)),
            Subscription::Persistent(persistent) => persistent,
        };
        if !persistent.is_attached() {
            self.news = match persistent.try_receive_with(|_| Ok(None::<()>)) {
                Ok(_) => persistent.is_attached().then_some(News::Found),
                Err(ReceiveError::Restarted { .. }) => Some(News::Restarted),
                Err(error) => return Err(error),
            };
            return Ok(None);
        }
        let news = &mut self.news;
        persistent.try_receive_with(|subscriber| {
            let received = try_receive(subscriber).map(|received| received.map(take));
            if let Err(end @ (ReceiveError::Ended { .. } | ReceiveError::Gone { .. })) = &received {
                *news = Some(News::Lost(ErrorChain(end).to_string()));
            }
            received
        })
    }

    /// Receives the next value like [`receive`](super::subscription::receive). `None` also when there is news.
    pub(crate) fn receive<R>(
        &mut self,
        timeout: Duration,
        interrupt: &Interrupt,
        take: impl Fn(Received<'_>) -> R,
    ) -> Result<Option<R>, ReceiveError> {
        let received = poll(timeout, interrupt, || match self.try_receive(&take)? {
            None if !self.has_news() => Ok(None),
            received => Ok(Some(received)),
        });
        Ok(received?.flatten())
    }
}
