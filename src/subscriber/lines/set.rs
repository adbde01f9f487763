use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::damage::Damages;
use super::line::{KeyChange, Line, LineReport, Polled};
use super::published::Published;
use super::source::LineSource;
use crate::clock::{Clock, saturate};
use crate::id::{Epoch, Kind, Sequence};
use crate::limits;
use crate::repository::{Arbiter, GoneKey};
use crate::subscriber::persistent::{Persistent, SEEK_PAUSE};
use crate::subscriber::waiter::Waiter;
use crate::subscriber::{IdleStrategy, ReceiveError, Renewable, Sample};

/// How several lines are received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineSettings {
    /// It begins after the last value of the line that is ahead, otherwise of the one behind.
    pub(crate) begins_ahead: bool,
    /// The record with which a log begins, if the program has named one: one of the first epoch.
    pub(crate) begins_at: Option<Sequence>,
    /// How long a missing record is awaited.
    pub(crate) gap_timeout: Duration,
    /// How a receive waits.
    pub(crate) idle: IdleStrategy,
}

/// What waits for the lines.
#[derive(Debug)]
enum Waiting {
    /// Nothing yet.
    Nowhere,
    /// A blocking receive.
    Here(Arc<Waiter>),
    /// A set of the program.
    Elsewhere(Weak<Waiter>),
}

/// Several publishers of the same values, and what was received of all of them.
pub(crate) struct LineSet<S: LineSource + Renewable> {
    lines: Vec<Line<S>>,
    clock: Arc<dyn Clock>,
    waiting: Waiting,
    /// Exists from the first publisher on.
    arbiter: Option<Box<dyn Arbiter>>,
    /// What the lines have in common that are received.
    identity: Option<(Epoch, Kind)>,
    /// The line that is polled first.
    turn: usize,
    published: Published,
    /// More on the last value received.
    change: KeyChange,
    /// The line that brought it.
    brought: Option<usize>,
    /// The last call returned a removed key that a line has shown to be gone: there may be more.
    has_removed: bool,
    /// A line may have more.
    has_more: bool,
    /// While nothing of the epoch was received: the lines were opened in it after this record, and earlier ones are not missing.
    unasked: Sequence,
    begins_at: Option<Sequence>,
    /// Since when values are missing that a line may still bring, ns of the clock.
    gap_since_ns: Option<u64>,
    gap_timeout_ns: u64,
    /// How long a receive that waits polls before it pauses, ns.
    spin_ns: u64,
    missing: u64,
    damages: Damages,
}

impl<S: LineSource + Renewable> LineSet<S> {
    /// Receives from these lines.
    pub(crate) fn new(lines: Vec<Persistent<S>>, clock: Arc<dyn Clock>, settings: LineSettings) -> Self {
        let lines: Vec<_> = lines.into_iter().map(Line::new).collect();
        let mut set = Self {
            lines,
            clock,
            waiting: Waiting::Nowhere,
            arbiter: None,
            identity: None,
            turn: 0,
            published: Published::new(),
            change: KeyChange::default(),
            brought: None,
            has_removed: false,
            has_more: false,
            unasked: Sequence::NONE,
            begins_at: settings.begins_at,
            gap_since_ns: None,
            gap_timeout_ns: saturate(settings.gap_timeout),
            spin_ns: settings.idle.spin_ns(),
            missing: 0,
            damages: Damages::default(),
        };
        set.begin(settings.begins_ahead);
        set
    }

    /// Begins with the lines that have the epoch of the first one attached. Returns it.
    fn begin(&mut self, is_ahead: bool) -> Option<Epoch> {
        let mut attached = self.lines.iter().filter(|line| line.persistent.is_attached());
        let identity = attached.next()?.identity()?;
        if self.identity.map(|(_, kind)| kind) != Some(identity.1) {
            let first = self.lines.iter().find(|line| line.identity() == Some(identity))?;
            self.arbiter = Some(first.persistent.current()?.arbiter());
        }
        let arbiter = self.arbiter.as_mut()?;
        let before = self.identity.map(|(epoch, _)| epoch).filter(|before| *before != identity.0);
        let same = self.lines.iter().filter(|line| line.identity() == Some(identity));
        let opened = |line: &Line<S>| line.opened_after(identity.0).unwrap_or_default();
        self.unasked = Sequence::NONE;
        let last = if before.is_none() || !arbiter.wants_each() {
            let starts = same.filter_map(|line| Some(line.position()?.last));
            let last = if is_ahead { starts.max() } else { starts.min() };
            // A line that was found later than another one begins with its first record.
            let begins_at = self.begins_at.filter(|_| before.is_none());
            last.unwrap_or_default().max(begins_at.unwrap_or_default().before())
        } else if S::VALUES_COME_FIRST {
            same.filter(|line| line.persistent.is_attached()).map(opened).max().unwrap_or_default()
        } else {
            // All records of the next epoch are received or reported, whoever has published them.
            self.unasked = same.map(opened).min().unwrap_or_default();
            Sequence::NONE
        };
        arbiter.begin(last, self.lines.len());
        self.identity = Some(identity);
        (self.brought, self.gap_since_ns) = (None, None);
        self.published.clear();
        self.damages.clear();
        self.lines.iter_mut().for_each(|line| line.begin(last, before));
        if before.is_none() && self.begins_at.is_some() {
            // Another epoch begins with its first record.
            let others = self.lines.iter_mut().filter(|line| line.persistent.is_attached());
            others.filter(|line| line.identity() != Some(identity)).for_each(Line::start_over);
        }
        Some(identity.0)
    }

    /// Returns the next value, if a line has it.
    pub(crate) fn try_next(&mut self) -> Result<Option<Sample<S::Item>>, ReceiveError> {
        // Before a later life of the same key.
        if self.has_removed
            && let Some(removal) = self.take_removed()
        {
            return Ok(Some(removal));
        }
        // Also while others arrive all the time.
        if self.damages.are_pending() {
            self.give_up_damaged()?;
        }
        let (count, mut contended) = (self.lines.len(), None);
        self.has_more = false;
        for step in 0..count {
            let index = (self.turn + step) % count;
            match self.poll(index) {
                Ok(None) => {}
                Err(error @ ReceiveError::Contended { .. }) => contended = Some(error),
                received => {
                    // The others get their turn: they stay up to date.
                    self.turn = (index + 1) % count;
                    return received;
                }
            }
        }
        self.give_up_gap()?;
        if self.damages.are_pending() {
            self.give_up_damaged()?;
        }
        self.begin_again()?;
        self.rest(false);
        let is_alone = self.lines.iter().filter(|line| line.persistent.is_attached()).count() == 1;
        contended.filter(|_| is_alone).map_or(Ok(None), Err)
    }

    /// Tells what waits for these lines among others when to poll again, of lines that were not asked for their next value: they hold one
    /// back, or are out of step. `is_timed`: something else is awaited that wakes nobody.
    pub(crate) fn rest(&self, is_timed: bool) {
        if self.has_more {
            return;
        }
        let mut is_timed = is_timed || self.damages.are_pending();
        for line in &self.lines {
            line.persistent.rest_soon(std::mem::take(&mut is_timed));
        }
    }

    /// Attaches to publishers that were found, and receives nothing yet.
    pub(crate) fn seek(&mut self) -> Result<(), ReceiveError> {
        let Self { lines, arbiter, identity, .. } = self;
        for (index, line) in lines.iter_mut().enumerate() {
            line.attach(index, *identity, arbiter.as_deref_mut())?;
        }
        if self.identity.is_none() {
            self.begin(false);
        }
        Ok(())
    }

    /// Polls a line.
    #[inline]
    fn poll(&mut self, index: usize) -> Result<Option<Sample<S::Item>>, ReceiveError> {
        let identity = self.identity;
        let Some(line) = self.lines.get_mut(index) else { return Ok(None) };
        let held = match &mut self.arbiter {
            Some(arbiter) if line.held.is_some() => line.take_held(arbiter.as_mut()),
            _ => None,
        };
        let polled = match held {
            Some(polled) => polled,
            None => {
                if !line.attach(index, identity, self.arbiter.as_deref_mut())? {
                    return Ok(None);
                }
                if self.identity.is_none() {
                    self.begin(false);
                }
                let Some((line, arbiter)) = self.lines.get_mut(index).zip(self.arbiter.as_mut()) else {
                    return Ok(None);
                };
                if line.identity() != self.identity {
                    return self.pass_by(index).map(|()| None);
                }
                line.note_step();
                let received = line.receive(index, (arbiter.as_mut(), &mut self.damages), &self.published);
                if line.persistent.current_mut().is_some_and(S::take_misread) {
                    self.doubt();
                }
                received?
            }
        };
        match polled {
            Polled::First(value, meta, change) => {
                (self.brought, self.change, self.gap_since_ns) = (Some(index), change, None);
                self.published.note(index, meta);
                value.map(Some)
            }
            Polled::Duplicates => {
                self.has_more = true;
                Ok(None)
            }
            Polled::Nothing => Ok(self.take_removed()),
        }
    }

    /// Looks at a line that is out of step.
    #[cold]
    fn pass_by(&mut self, index: usize) -> Result<(), ReceiveError> {
        // If its publisher has ended, the next one may have the epoch that is received. Without a line of that, what this one has
        // published is received first.
        let is_left = self.lines.iter().any(|line| line.identity() == self.identity && line.lives());
        if let Some(line) = self.lines.get_mut(index).filter(|_| is_left) {
            match line.ask(|subscriber| subscriber.check_end().map(|()| None::<()>)) {
                // Nobody reads it: it attaches again.
                Ok(_) | Err(ReceiveError::Overtaken { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.note_difference(index)
    }

    /// Has all lines offer again what they have: a line that misread its publisher's memory may have shown keys to be gone that others
    /// have.
    #[cold]
    fn doubt(&mut self) {
        let identity = self.identity;
        let same = self.lines.iter_mut().filter(|line| line.identity() == identity);
        same.filter_map(|line| line.persistent.current_mut()).for_each(S::offer_again);
        self.arbiter.iter_mut().for_each(|arbiter| arbiter.doubt());
    }

    /// Returns the removal of a key that a line has shown to be gone.
    #[inline]
    fn take_removed(&mut self) -> Option<Sample<S::Item>> {
        let removed = self.arbiter.as_mut()?.take_removed();
        self.has_removed = removed.is_some();
        let GoneKey { key, number, meta } = removed?;
        let removal = self.current()?.removal(&key, meta);
        self.change = KeyChange { number, key_len: key.len(), is_new: false };
        removal
    }

    /// Reports records as missing that no line brings any more, or none has brought in time.
    fn give_up_gap(&mut self) -> Result<(), ReceiveError> {
        let Some(arbiter) = self.arbiter.as_ref().filter(|arbiter| arbiter.wants_each()) else {
            return Ok(());
        };
        let Some(next) = arbiter.last().get().checked_add(1).map(Sequence::new) else { return Ok(()) };
        let (mut reached, mut may_come, mut is_holding) = (None::<Sequence>, false, false);
        for line in &self.lines {
            if (line.identity() != self.identity || line.is_anew()) && line.held.is_none() {
                may_come |= line.may_bring(next, self.identity);
                continue;
            }
            let held = line.held.as_ref();
            let held = held.map(|(held, _)| Sequence::new(held.sequence.get().saturating_sub(1)));
            is_holding |= held.is_some();
            let Some(last) = held.or_else(|| Some(line.position()?.last)) else { continue };
            if last < next {
                may_come |= line.may_bring(next, self.identity);
            } else {
                reached = Some(reached.map_or(last, |reached| reached.min(last)));
            }
        }
        let Some(reached) = reached else {
            self.gap_since_ns = None;
            return Ok(());
        };
        if may_come && !is_holding {
            // Nothing waits for it.
            self.gap_since_ns = None;
            return Ok(());
        }
        // What nobody asked for may come, but is not missing.
        let is_asked = self.brought.is_some() || reached > self.unasked;
        if may_come {
            let now_ns = self.clock.monotonic_ns();
            let since_ns = *self.gap_since_ns.get_or_insert(now_ns);
            let timeout_ns = self.gap_timeout_ns.min(if is_asked { u64::MAX } else { limits::LINE_GAP_NS });
            if now_ns.saturating_sub(since_ns) < timeout_ns {
                return Ok(());
            }
        }
        let identity = self.identity;
        // What was asked for is awaited later all the same.
        let overdue = self.lines.iter_mut().filter(|line| is_asked && line.may_bring(next, identity));
        overdue.for_each(Line::note_overdue);
        self.miss_until(reached)
    }

    /// Reports the records up to this one missing, if any were not received that were asked for.
    fn miss_until(&mut self, last: Sequence) -> Result<(), ReceiveError> {
        let Some(arbiter) = self.arbiter.as_mut().filter(|arbiter| arbiter.last() < last) else {
            return Ok(());
        };
        let unasked = if self.brought.is_none() { self.unasked } else { Sequence::NONE };
        let before = arbiter.last().max(unasked);
        arbiter.skip_to(last);
        self.gap_since_ns = None;
        // What comes next may be held already.
        self.has_more = true;
        let (first_lost, count) = (before.next(), last.get().saturating_sub(before.get()));
        if count == 0 {
            return Ok(());
        }
        self.missing = self.missing.saturating_add(count);
        Err(ReceiveError::Missing { first_lost, count })
    }

    /// Reports a value that is damaged on every line that has got so far, or that no other line has brought in time.
    #[cold]
    fn give_up_damaged(&mut self) -> Result<(), ReceiveError> {
        let newest = self.arbiter.as_ref().and_then(|arbiter| arbiter.newest_value());
        newest.into_iter().for_each(|newest| self.damages.forget(newest));
        let may_bring = |line: &Line<S>| line.persistent.is_attached() && line.identity() == self.identity;
        let last_of =
            |line: &Line<S>| line.position().filter(|_| may_bring(line)).map(|position| position.last);
        let lasts: Vec<_> = self.lines.iter().map(last_of).collect();
        let lost = self.damages.next(&lasts, self.clock.monotonic_ns(), self.gap_timeout_ns);
        lost.map_or(Ok(()), Err)
    }

    /// Returns whether a value that a line could not bring is neither received nor reported yet.
    pub(crate) fn has_pending_damage(&self) -> bool {
        self.damages.are_pending()
    }

    /// Goes over to the epoch of a line if no other is left. Before that it reports the last records of the epoch that were cut off or
    /// overwritten on a line: none brings them any more.
    pub(crate) fn begin_again(&mut self) -> Result<(), ReceiveError> {
        let Some((before, _)) = self.identity else { return Ok(()) };
        if self.is_left() {
            return Ok(());
        }
        let wants_each = self.arbiter.as_ref().is_some_and(|arbiter| arbiter.wants_each());
        if wants_each && self.lines.iter().any(|line| line.persistent.is_attached()) {
            let given_up = self.lines.iter().map(|line| line.given_up).max();
            self.miss_until(given_up.unwrap_or_default())?;
        }
        // They bring all again, because the program has discarded it.
        self.lines.iter_mut().filter(|line| line.is_stale()).for_each(Line::start_over);
        let last = self.last();
        match self.begin(false) {
            Some(epoch) => Err(ReceiveError::Restarted { epoch, before, last }),
            None => Ok(()),
        }
    }

    /// Whether a line has the epoch that is received, or a value of it.
    fn is_left(&self) -> bool {
        let is_reconnecting =
            |line: &Line<S>| line.identity() == self.identity && line.persistent.is_reconnecting();
        // First the lines that it costs no lock to look at.
        self.is_attached()
            || self.lines.iter().any(|line| line.held.is_some())
            || self.lines.iter().any(is_reconnecting)
    }

    /// Reports once that a line has another epoch than others, if there are others.
    #[cold]
    fn note_difference(&mut self, index: usize) -> Result<(), ReceiveError> {
        let (is_left, now_ns) = (self.is_left(), self.clock.monotonic_ns());
        let (Some(line), Some((expected, _))) = (self.lines.get_mut(index), self.identity) else {
            return Ok(());
        };
        let Some((epoch, kind)) = line.identity().filter(|_| is_left) else { return Ok(()) };
        let since_ns = *line.differs_since_ns.get_or_insert(now_ns);
        if now_ns.saturating_sub(since_ns) < limits::OUT_OF_STEP_NS {
            return Ok(());
        }
        if line.reported.replace((epoch, kind)) == Some((epoch, kind)) {
            return Ok(());
        }
        Err(ReceiveError::OutOfStep { line: Box::new(line.persistent.target().clone()), epoch, expected })
    }

    /// Waits a little for the next value: less after it has waited `waited_ns`, and at most until `timeout`.
    pub(crate) fn wait(&mut self, waited_ns: u64, timeout: Duration) -> Result<(), ReceiveError> {
        if self.has_more {
            return Ok(());
        }
        let left = timeout.saturating_sub(Duration::from_nanos(waited_ns));
        let mut attached = self.lines.iter_mut().filter(|line| line.persistent.is_attached());
        match (attached.next(), attached.next()) {
            (None, _) => self.clock.pause(SEEK_PAUSE.min(left)),
            (Some(only), None) => {
                match only.persistent.current_mut().map(|subscriber| subscriber.wait(waited_ns, timeout)) {
                    // The session reports its end soon.
                    Some(Err(error)) if error.ends_connection() => self.clock.pause(SEEK_PAUSE.min(left)),
                    Some(waited) => waited?,
                    None => {}
                }
            }
            _ if waited_ns < self.spin_ns => std::hint::spin_loop(),
            _ => self.sleep(left)?,
        }
        Ok(())
    }

    /// Sleeps until a line may have something new.
    fn sleep(&mut self, left: Duration) -> Result<(), ReceiveError> {
        match &self.waiting {
            Waiting::Elsewhere(waiter) if waiter.strong_count() > 0 => {
                self.clock.pause(Duration::from_nanos(limits::WAITER_POLL_NS).min(left))
            }
            Waiting::Here(waiter) => waiter.pause(self.clock.as_ref(), left)?,
            Waiting::Nowhere | Waiting::Elsewhere(_) => {
                let waiter = Waiter::new()?;
                self.each_line(|line| line.join(Some(waiter.add(0))));
                // The lines are polled once more before it sleeps.
                self.waiting = Waiting::Here(waiter);
            }
        }
        Ok(())
    }

    /// Lets a waiter of the program wait for the lines, under this key, or no waiter any more.
    pub(crate) fn enter(&mut self, waiter: Option<(&Arc<Waiter>, usize)>) {
        let elsewhere = |(waiter, _)| Waiting::Elsewhere(Arc::downgrade(waiter));
        self.waiting = waiter.map_or(Waiting::Nowhere, elsewhere);
        self.each_line(|line| line.join(waiter.map(|(waiter, key)| waiter.add(key))));
    }

    /// Returns how often lines have attached to a publisher since they were opened.
    pub(crate) fn attachments(&self) -> u64 {
        self.lines.iter().map(|line| line.attachments).sum()
    }

    /// Returns the last value that was received or reported missing.
    pub(crate) fn last(&self) -> Sequence {
        self.arbiter.as_ref().map_or(Sequence::NONE, |arbiter| arbiter.last())
    }

    /// Returns the epoch that is received; `None` before the first publisher was found.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.identity.map(|(epoch, _)| epoch)
    }

    /// Returns whether a publisher of that epoch is attached.
    pub(crate) fn is_attached(&self) -> bool {
        self.lines.iter().any(|line| line.persistent.is_attached() && line.identity() == self.identity)
    }

    /// Returns how many records no line has brought.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// Returns the line that brought the last value, by its place; `None` before the first one of an epoch.
    pub(super) fn brought(&self) -> Option<usize> {
        self.brought
    }

    /// Returns the subscriber of the line that brought the last value, or else of another one that is received, or was last.
    pub(crate) fn current(&self) -> Option<&S> {
        let brought = self.brought.and_then(|index| self.lines.get(index));
        let same = brought.into_iter().chain(&self.lines).find(|line| line.identity() == self.identity)?;
        same.persistent.current()
    }

    /// Returns the subscribers of all lines, those that are attached and those that were last.
    pub(crate) fn subscribers(&self) -> impl Iterator<Item = &S> {
        self.lines.iter().filter_map(|line| line.persistent.current())
    }

    /// Calls this with the subscriber of each line.
    pub(crate) fn each_line(&mut self, change: impl FnMut(&mut Persistent<S>)) {
        self.lines.iter_mut().map(|line| &mut line.persistent).for_each(change);
    }

    /// Returns the subscriber of a line, by its place.
    pub(crate) fn line(&self, index: usize) -> Option<&Persistent<S>> {
        self.lines.get(index).map(|line| &line.persistent)
    }

    /// Returns the subscriber of a line that is attached, by its place.
    pub(super) fn attached(&mut self, index: usize) -> Option<&mut S> {
        let line = self.lines.get_mut(index).filter(|line| line.persistent.is_attached())?;
        line.persistent.current_mut()
    }

    /// Returns more on the last change.
    pub(super) fn change(&self) -> KeyChange {
        self.change
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns what is known of each line.
    pub(crate) fn report(&self) -> Vec<LineReport> {
        let same = self.lines.iter().filter(|line| line.identity() == self.identity);
        let ahead = same.filter_map(|line| Some(line.position()?.last)).max().unwrap_or_default();
        self.lines.iter().map(|line| line.report(self.identity, ahead)).collect()
    }

    /// Asks the attached subscribers of the epoch that is received for something else than the next value, those that are ahead first,
    /// until one has it. The caller has attached those that were found ([`Self::seek`]), and goes over to another epoch afterwards
    /// ([`Self::begin_again`]).
    pub(crate) fn ask<T>(
        &mut self,
        mut ask: impl FnMut(&mut S) -> Result<Option<T>, ReceiveError>,
    ) -> Result<Option<T>, ReceiveError> {
        // What there is to wait for is what it asks for.
        self.has_more = false;
        let identity = self.identity;
        let mut same: Vec<&mut Line<S>> = self.lines.iter_mut().collect();
        same.retain(|line| line.persistent.is_attached() && line.identity() == identity);
        same.sort_by_key(|line| std::cmp::Reverse(line.position().map(|position| position.last)));
        let mut failure = None;
        for line in same {
            match line.ask(&mut ask) {
                Ok(Some(answer)) => return Ok(Some(answer)),
                Ok(None) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// Returns the attached subscribers of the epoch that is received, those that are ahead first.
    pub(crate) fn in_step(&mut self) -> Vec<&mut S> {
        let identity = self.identity;
        let lines = self.lines.iter_mut();
        let same = lines.filter(|line| line.persistent.is_attached() && line.identity() == identity);
        let mut subscribers: Vec<&mut S> = same.filter_map(|line| line.persistent.current_mut()).collect();
        subscribers.sort_by_key(|subscriber| std::cmp::Reverse(subscriber.position().last));
        subscribers
    }

    /// Applies a setting to the subscriber of each line, also to those found later.
    pub(crate) fn configure(&mut self, setting: impl Fn(&mut S) + Send + Sync + 'static) {
        let setting = Arc::new(setting);
        for line in &mut self.lines {
            let setting = Arc::clone(&setting);
            line.persistent.configure(move |subscriber| setting(subscriber));
        }
        let Self { lines, arbiter, .. } = self;
        if let Some(arbiter) = arbiter {
            let subscribers: Vec<&S> = lines.iter().filter_map(|line| line.persistent.current()).collect();
            // A key that is wanted is kept also if no line has it at present: one that has attached again has not brought it yet.
            arbiter.retain_keys(&|key| subscribers.iter().any(|subscriber| subscriber.is_wanted(key)));
        }
    }
}

impl<S: LineSource + Renewable> fmt::Debug for LineSet<S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LineSet").field("lines", &self.report()).finish_non_exhaustive()
    }
}
