//! Threads for long-running work, which keeps it off the threads that others wait for.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Threads of a worker: one that blocks does not delay the others.
const THREADS_MAX: usize = 4;
/// How long an idle thread waits for work before it ends.
const IDLE: Duration = Duration::from_millis(500);

/// Runs long work on threads that start on demand and end when idle. No thread waits for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Worker(Arc<Pool>);

/// Threads that share one queue.
#[derive(Debug)]
struct Pool {
    state: Mutex<PoolState>,
    /// Signalled when work is queued.
    added: Condvar,
    threads_max: usize,
}

impl Default for Pool {
    fn default() -> Self {
        Self { state: Mutex::default(), added: Condvar::default(), threads_max: THREADS_MAX }
    }
}

#[derive(Default)]
struct PoolState {
    waiting: VecDeque<Box<dyn FnOnce() + Send>>,
    threads: usize,
    idle: usize,
    /// The last attempt to start a thread failed, which was logged.
    is_short: bool,
}

impl Worker {
    /// A worker that runs one chore at a time.
    pub(crate) fn single() -> Self {
        Self(Arc::new(Pool { threads_max: 1, ..Pool::default() }))
    }

    /// Queues a chore.
    pub(crate) fn run(&self, chore: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        state.waiting.push_back(Box::new(chore));
        if state.waiting.len() <= state.idle || state.threads >= self.0.threads_max {
            self.0.added.notify_one();
            return;
        }
        self.start(state);
    }

    /// Retries starting a thread for queued work.
    pub(crate) fn tend(&self) {
        let state = self.0.state.lock();
        if state.is_short && state.threads < self.0.threads_max && !state.waiting.is_empty() {
            self.start(state);
        }
    }

    /// Number of queued chores.
    pub(crate) fn waiting_count(&self) -> usize {
        self.0.state.lock().waiting.len()
    }

    /// Whether a thread will run the queued chores.
    pub(crate) fn has_threads(&self) -> bool {
        self.0.state.lock().threads > 0
    }

    /// Starts a thread.
    fn start(&self, mut state: MutexGuard<'_, PoolState>) {
        state.threads += 1;
        drop(state);
        let pool = Arc::clone(&self.0);
        let begun =
            std::thread::Builder::new().name("fabricast-work".to_owned()).spawn(move || while pool.work() {});
        let mut state = self.0.state.lock();
        if let Err(error) = &begun {
            state.threads -= 1;
            if !state.is_short {
                let message = "cannot start a background thread: retrying";
                tracing::warn!(target: "fabricast", %error, message);
            }
        }
        state.is_short = begun.is_err();
    }
}

impl Pool {
    /// Runs one chore. False if none came for a while: the thread ends.
    fn work(&self) -> bool {
        let mut state = self.state.lock();
        while state.waiting.is_empty() {
            state.idle += 1;
            let has_waited = self.added.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if has_waited && state.waiting.is_empty() {
                state.threads -= 1;
                return false;
            }
        }
        let chore = state.waiting.pop_front();
        drop(state);
        // A panic must not end the thread: other chores are queued behind.
        let done = chore.map(|chore| catch_unwind(AssertUnwindSafe(chore)));
        if let Some(Err(_)) = done {
            tracing::error!(target: "fabricast", "a background chore panicked");
        }
        true
    }
}

impl fmt::Debug for PoolState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { waiting, threads, idle, is_short } = self;
        let mut out = out.debug_struct("PoolState");
        out.field("waiting", &waiting.len()).field("threads", threads).field("idle", idle);
        out.field("is_short", is_short).finish()
    }
}

#[cfg(any(test, feature = "verbs"))]
impl Worker {
    /// Whether all queued chores are done.
    pub(crate) fn is_done(&self) -> bool {
        let state = self.0.state.lock();
        state.waiting.is_empty() && state.threads == state.idle
    }
}

#[cfg(test)]
impl Worker {
    /// As if this many threads were blocked, and the last start had failed or not.
    pub(crate) fn pretend(&self, threads: Option<usize>, is_short: bool) {
        let mut state = self.0.state.lock();
        (state.threads, state.is_short) = (threads.unwrap_or(self.0.threads_max), is_short);
    }

    /// Queues a chore without starting a thread.
    pub(crate) fn queue(&self, chore: impl FnOnce() + Send + 'static) {
        self.0.state.lock().waiting.push_back(Box::new(chore));
    }

    /// Drops all queued chores.
    pub(crate) fn discard(&self) {
        let chores = std::mem::take(&mut self.0.state.lock().waiting);
        drop(chores);
    }

    /// Whether a thread was started for queued chores.
    pub(crate) fn is_tended(&self) -> bool {
        let state = self.0.state.lock();
        state.threads > 1 || state.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panicking_chore_ends_no_thread_and_delays_no_other() {
        let worker = Worker::default();
        let done = Arc::new(Mutex::new(0));
        for number in 0..100 {
            let done = Arc::clone(&done);
            worker.run(move || {
                assert!(number % 10 != 0, "it fails");
                *done.lock() += 1;
            });
        }
        while *done.lock() < 90 || !worker.is_done() {
            std::thread::yield_now();
        }
        assert!(worker.has_threads());
    }
}
