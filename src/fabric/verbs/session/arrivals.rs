//! The wake-ups that come over a session with the peer's writes.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;

use super::{FRAME_WORDS, HeldFrame, Session, SessionEnd, SessionState, malformed};
use crate::clock::{Clock, SystemClock};
use crate::fabric::verbs::endpoint::{Arrival, Endpoint};
use crate::fabric::verbs::message::Frame;
use crate::fabric::verbs::service::Service;
use crate::fabric::{ArrivalSignal, ArrivalSource, FabricError, wait};

/// A session's wake-ups.
///
/// Threads wait at the channel of the receive completions itself, and the first that is woken takes what arrived for all of them. A thread
/// that waits for one signal has the channel for itself: meanwhile it does not wake the owner of the connection, for whom the thread
/// leaves the messages.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct SessionArrivals {
    session: Arc<Session>,
    service: Arc<Service>,
}

impl SessionArrivals {
    pub(in crate::fabric::verbs) fn new(session: &Arc<Session>, service: &Arc<Service>) -> Self {
        Self { session: Arc::clone(session), service: Arc::clone(service) }
    }
}

impl ArrivalSource for SessionArrivals {
    fn signal(&self, token: u32) -> Arc<ArrivalSignal> {
        self.session.signals.add(token)
    }

    fn take(&self) {
        self.session.take_wakes();
        self.service.attend(&self.session);
    }

    fn arm(&self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        // What is awaited decides what has an event.
        self.take();
        let endpoint = self.session.endpoint.get();
        Ok(endpoint.filter(|endpoint| endpoint.failure().is_none()).map(|endpoint| endpoint.wait_handle()))
    }

    fn wait(&self, signal: &ArrivalSignal, _clock: &dyn Clock, timeout: Duration) -> Result<(), FabricError> {
        let woken = signal.expect_here()?;
        let waited = if signal.is_raised() { Ok(()) } else { self.wait_at(signal, woken, timeout) };
        signal.lower();
        waited
    }
}

impl SessionArrivals {
    fn wait_at(
        &self,
        signal: &ArrivalSignal,
        woken: BorrowedFd<'_>,
        timeout: Duration,
    ) -> Result<(), FabricError> {
        let _borrowed = ChannelBorrowed::begin(&self.session);
        let Some(arrivals) = self.arm()? else { return wait(&[woken], &[], timeout) };
        if signal.is_raised() {
            return Ok(());
        }
        let waited = wait(&[arrivals, woken], &[], timeout);
        // Before the owner waits at the channel again, which it then finds empty.
        self.take();
        waited
    }
}

/// While a thread waits at the channel of a session, it does not wake the owner of the connection.
#[derive(Debug)]
struct ChannelBorrowed<'a> {
    session: &'a Session,
}

impl<'a> ChannelBorrowed<'a> {
    fn begin(session: &'a Session) -> Self {
        let mut borrowers = session.borrowers.lock();
        *borrowers += 1;
        if *borrowers == 1 {
            session.watch_channel(false);
        }
        Self { session }
    }
}

impl Drop for ChannelBorrowed<'_> {
    fn drop(&mut self) {
        let mut borrowers = self.session.borrowers.lock();
        *borrowers -= 1;
        if *borrowers == 0 {
            self.session.watch_channel(true);
        }
    }
}

impl Session {
    /// Polls what was received. Returned credits count at once, wake-ups raise their signals, fragments wait for the owner.
    pub(super) fn take_arrivals(
        &self,
        state: &mut SessionState,
        endpoint: &Endpoint,
    ) -> Result<(), FabricError> {
        let mut arrivals = VecDeque::new();
        endpoint.take_arrivals(&mut arrivals, self.signals.are_awaited())?;
        if !arrivals.is_empty() {
            // It shows that the peer received the acceptance.
            self.establish(state)?;
        }
        for arrival in arrivals {
            let arrival = match arrival {
                Arrival::Frame(arrival) => arrival,
                Arrival::Wake { token, unused } => {
                    state.outbound.owe_wake().map_err(malformed)?;
                    endpoint.release(unused)?;
                    self.signals.raise(token);
                    continue;
                }
            };
            let mut words = [0; FRAME_WORDS];
            let frame = Frame::parse(endpoint.read(arrival, &mut words)).map_err(malformed)?;
            if frame.fragment.is_none() {
                // Before the credits are used: the peer's next credit frame may answer them.
                endpoint.release(arrival)?;
            } else {
                state.arrivals.push_back(HeldFrame::Buffer(arrival));
            }
            state.outbound.credit(frame.credits).map_err(malformed)?;
            endpoint.credit_wakes(frame.wakes).map_err(malformed)?;
        }
        Ok(())
    }

    /// Takes what has arrived, for all threads that wait for it. The link is left to the owner of the connection.
    fn take_wakes(&self) {
        let mut state = self.state.lock();
        let Some(endpoint) = self.endpoint.get() else { return };
        if state.end.is_some() {
            // The receives that its queue pair flushes raise an event, and no other thread takes it.
            return endpoint.drop_events();
        }
        if let Err(error) = self.take_arrivals(&mut state, endpoint) {
            self.end(&mut state, SessionEnd::Failed(Some(error)));
        }
        self.check_endpoint(&mut state, endpoint, SystemClock.monotonic_ns());
        self.flush(&mut state);
        self.wake_owner(&mut state);
    }

    /// Whether receive completions wake the owner of the connection. If this fails, they do so in vain.
    fn watch_channel(&self, is_watched: bool) {
        let Some(endpoint) = self.endpoint.get() else { return };
        let events = if is_watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(0);
        if let Err(error) = epoll::modify(&self.readable, endpoint.wait_handle(), data, events) {
            tracing::debug!(target: "fabricast", %error, "a session cannot be waited for otherwise");
        }
    }
}
