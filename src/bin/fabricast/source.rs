//! What a command follows a topic by: a subscriber of one publisher, one that finds the next publisher, or one of several lines.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fabricast::{AnySubscriber, ErrorChain, Liveness, Persistent, Raw, ReceiveError, Sequence, Target};

use super::interrupt::Interrupt;
use super::lines::FollowedLines;
use super::news::News;
use super::pulses::Pulses;
use super::subscription::{Received, poll, try_receive};

/// A subscriber that is followed.
#[derive(Debug)]
pub(crate) struct Source {
    subscription: Subscription,
    /// What the node knows of its publishers.
    pulses: Arc<Pulses>,
    /// What has happened to its publisher, not reported yet.
    news: VecDeque<News>,
}

#[derive(Debug)]
enum Subscription {
    /// Of one publisher.
    Once(AnySubscriber<Raw>),
    /// Of all publishers.
    Persistent(Box<Outlasting>),
    /// Of several publishers of the same values.
    Lines(Box<FollowedLines>),
}

/// A subscriber of all publishers.
#[derive(Debug)]
struct Outlasting {
    persistent: Persistent<AnySubscriber<Raw>>,
    /// Why the last session ended, and whether its publisher does not admit this command any more.
    end: (String, bool),
    /// The outages that were reported, and whether it was reported lost, and not found since.
    outages: u64,
    is_lost: bool,
}

impl Source {
    /// Ends with the publisher.
    pub(crate) fn once(subscriber: AnySubscriber<Raw>, pulses: Arc<Pulses>) -> Self {
        Self { subscription: Subscription::Once(subscriber), pulses, news: VecDeque::new() }
    }

    /// Goes on with the next publisher.
    pub(crate) fn persistent(subscriber: Persistent<AnySubscriber<Raw>>, pulses: Arc<Pulses>) -> Self {
        let is_lost = !subscriber.is_attached();
        let outlasting = Outlasting { persistent: subscriber, end: Default::default(), outages: 0, is_lost };
        Self { subscription: Subscription::Persistent(Box::new(outlasting)), pulses, news: VecDeque::new() }
    }

    /// Receives from several lines.
    pub(crate) fn of_lines(lines: FollowedLines, pulses: Arc<Pulses>) -> Self {
        Self { subscription: Subscription::Lines(Box::new(lines)), pulses, news: VecDeque::new() }
    }

    /// The subscriber that is attached, or was last.
    pub(crate) fn current(&self) -> Option<&AnySubscriber<Raw>> {
        match &self.subscription {
            Subscription::Once(subscriber) => Some(subscriber),
            Subscription::Persistent(it) => it.persistent.current(),
            Subscription::Lines(lines) => lines.current(),
        }
    }

    /// How many lines it has.
    pub(crate) fn lines(&self) -> usize {
        match &self.subscription {
            Subscription::Lines(lines) => lines.count(),
            _ => 1,
        }
    }

    /// The publisher of a line, if it has several.
    pub(crate) fn target(&self, line: usize) -> Option<&Target> {
        match &self.subscription {
            Subscription::Lines(lines) => lines.target(line),
            _ => None,
        }
    }

    /// Whether a line has a publisher, as far as it knows.
    pub(crate) fn has_publisher(&self, line: usize) -> bool {
        match &self.subscription {
            Subscription::Lines(lines) => lines.has_publisher(line),
            _ => self.is_attached(),
        }
    }

    /// Whether the publisher of a line is alive, which was hung or not before; `None` if it has none.
    pub(crate) fn liveness(&mut self, line: usize, was_hung: bool) -> Option<Liveness> {
        if !self.has_publisher(line) {
            return None;
        }
        let by_heart = match &mut self.subscription {
            Subscription::Once(subscriber) => Liveness::of(subscriber),
            Subscription::Persistent(it) => Liveness::of(it.persistent.current_mut()?),
            Subscription::Lines(lines) => lines.liveness(line, was_hung),
        };
        // One that pushes shows no heartbeat.
        by_heart.or_else(|| self.pulses.liveness(line))
    }

    /// Adds to the news that the publisher of a line hangs, or does not any more.
    pub(crate) fn note_pulse(&mut self, line: usize, is_hung: bool) {
        let news = match &self.subscription {
            Subscription::Lines(lines) => lines.pulse_news(line, is_hung),
            _ => Some(if is_hung { News::Hung } else { News::Recovered }),
        };
        self.news.extend(news);
    }

    /// Applies a setting to the subscriber, of several lines to those of all.
    pub(crate) fn configure(&mut self, setting: impl Fn(&mut AnySubscriber<Raw>) + Send + Sync + 'static) {
        match &mut self.subscription {
            Subscription::Once(subscriber) => setting(subscriber),
            Subscription::Persistent(it) => it.persistent.configure(setting),
            Subscription::Lines(lines) => lines.configure(setting),
        }
    }

    /// The last sequence received.
    pub(crate) fn last(&self) -> Sequence {
        match &self.subscription {
            Subscription::Lines(lines) => lines.last(),
            _ => self.current().map_or(Sequence::NONE, AnySubscriber::last),
        }
    }

    /// Whether a damaged value of one line is still expected from another.
    pub(crate) fn has_pending_damage(&self) -> bool {
        match &self.subscription {
            Subscription::Lines(lines) => lines.has_pending_damage(),
            _ => false,
        }
    }

    /// The last sequence published before.
    pub(crate) fn newest_at_start(&self) -> Sequence {
        match &self.subscription {
            Subscription::Lines(lines) => lines.newest_at_start(),
            _ => self.current().map_or(Sequence::NONE, AnySubscriber::newest_at_start),
        }
    }

    /// Prints what is known of each line on standard error, if it has several.
    pub(crate) fn summarize(&self) {
        if let Subscription::Lines(lines) = &self.subscription {
            lines.summarize();
        }
    }

    /// Of several lines, the publisher of one from which values are received.
    pub(crate) fn received(&self) -> Option<Target> {
        match &self.subscription {
            Subscription::Lines(lines) => lines.received_target(),
            _ => None,
        }
    }

    /// Whether it has a publisher, as far as it knows.
    pub(crate) fn is_attached(&self) -> bool {
        match &self.subscription {
            Subscription::Once(_) => true,
            Subscription::Persistent(it) => !it.is_lost,
            Subscription::Lines(lines) => lines.is_attached(),
        }
    }

    /// What has happened to its publisher since the last call.
    pub(crate) fn take_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Whether something has happened to its publisher.
    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Receives the next value, if there is one, and returns `take` of it. Does not wait. The values of a publisher that was found
    /// come after the news of it.
    pub(crate) fn try_receive<R>(
        &mut self,
        take: impl FnOnce(Received<'_>) -> R,
    ) -> Result<Option<R>, ReceiveError> {
        match &mut self.subscription {
            Subscription::Once(subscriber) => Ok(try_receive(subscriber)?.map(take)),
            Subscription::Persistent(it) => it.try_receive(&mut self.news, take),
            Subscription::Lines(lines) => lines.try_receive(&mut self.news, take),
        }
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

impl Outlasting {
    /// Receives the next value. Adds what has happened to the publisher to the news: values of the next one come with the next call.
    fn try_receive<R>(
        &mut self,
        news: &mut VecDeque<News>,
        take: impl FnOnce(Received<'_>) -> R,
    ) -> Result<Option<R>, ReceiveError> {
        let Self { persistent, end, .. } = self;
        if persistent.is_attached() {
            let received = persistent.try_receive_with(|subscriber| {
                let received = try_receive(subscriber).map(|received| received.map(take));
                if let Err(why @ (ReceiveError::Ended { .. } | ReceiveError::Gone { .. })) = &received {
                    let is_refused = matches!(why, ReceiveError::Gone { source } if source.denies_access());
                    *end = (ErrorChain(why).to_string(), is_refused);
                }
                received
            });
            self.note_outage(news);
            return received;
        }
        let sought = persistent.try_receive_with(|_| Ok(None::<()>));
        self.note_outage(news);
        match sought {
            Ok(_) if self.is_lost && self.persistent.is_attached() => news.push_back(News::Found),
            Ok(_) => return Ok(None),
            Err(ReceiveError::Restarted { .. }) => news.push_back(News::Restarted),
            Err(error) => return Err(error),
        }
        self.is_lost = false;
        Ok(None)
    }

    /// Adds the loss of the publisher to the news.
    fn note_outage(&mut self, news: &mut VecDeque<News>) {
        let outages = self.persistent.outages();
        if std::mem::replace(&mut self.outages, outages) != outages {
            self.is_lost = true;
            let (why, is_refused) = std::mem::take(&mut self.end);
            news.push_back(News::Lost { why, is_refused });
        }
    }
}
