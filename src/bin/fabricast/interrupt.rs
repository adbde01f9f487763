//! Ctrl-C, and the other signals that end a process.

use std::cell::Cell;
use std::io;
#[cfg(feature = "verbs")]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(feature = "verbs")]
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Select, TryRecvError, bounded};
#[cfg(feature = "verbs")]
use rustix::event::{EventfdFlags, eventfd};

use super::failure::{Exit, Failure};

/// Reports that the process was asked to end, so that it ends in good order. A second signal ends it at once.
#[derive(Debug)]
pub(crate) struct Interrupt {
    signals: Receiver<()>,
    came: Cell<bool>,
    /// Readable once the process was interrupted; made by [`Self::handle`].
    #[cfg(feature = "verbs")]
    event: Arc<OnceLock<OwnedFd>>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot handle signals")]
struct NoSignals(#[source] io::Error);

/// The outcome of a wait for input.
#[derive(Debug)]
pub(crate) enum Input<T> {
    /// An item.
    Item(T),
    /// The input has ended.
    End,
    /// The process was interrupted.
    Interrupted,
}

impl Interrupt {
    /// Handles SIGINT, SIGTERM and SIGHUP. Once per process.
    pub(crate) fn install() -> Result<Self, Failure> {
        let (sender, signals) = bounded(1);
        #[cfg(feature = "verbs")]
        let event = Arc::new(OnceLock::new());
        #[cfg(feature = "verbs")]
        let raised = Arc::clone(&event);
        let mut asked = false;
        let taken = ctrlc::set_handler(move || {
            if std::mem::replace(&mut asked, true) {
                std::process::exit(Exit::Interrupted.code().into());
            }
            // Cannot fail: the channel holds the only message.
            let _ = sender.try_send(());
            #[cfg(feature = "verbs")]
            raised.get().into_iter().for_each(raise);
        });
        taken.map_err(|error| match error {
            ctrlc::Error::System(error) => no_signals(error),
            error => no_signals(io::Error::other(error)),
        })?;
        Ok(Self {
            signals,
            came: Cell::new(false),
            #[cfg(feature = "verbs")]
            event,
        })
    }

    /// A descriptor that is readable once the process was interrupted.
    #[cfg(feature = "verbs")]
    pub(crate) fn handle(&self) -> Result<BorrowedFd<'_>, Failure> {
        if self.event.get().is_none() {
            let event = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| no_signals(errno.into()))?;
            let event = self.event.get_or_init(|| event);
            // A signal before this did not find it, and one after it does.
            if self.came() {
                raise(event);
            }
        }
        self.event.get().map(AsFd::as_fd).ok_or_else(|| Failure::new(Exit::Local, "cannot handle signals"))
    }

    /// Waits for `duration`, or until the process is interrupted: then it returns true, at once from then on.
    pub(crate) fn pause(&self, duration: Duration) -> bool {
        if !self.came.get() {
            self.came.set(self.signals.recv_timeout(duration) != Err(RecvTimeoutError::Timeout));
        }
        self.came.get()
    }

    /// Whether the process was interrupted.
    pub(crate) fn came(&self) -> bool {
        if !self.came.get() {
            self.came.set(self.signals.try_recv() != Err(TryRecvError::Empty));
        }
        self.came.get()
    }

    /// Waits for the next item, or until the process is interrupted.
    pub(crate) fn receive<T>(&self, items: &Receiver<T>) -> Input<T> {
        if self.came.get() {
            return Input::Interrupted;
        }
        let mut select = Select::new();
        let item = select.recv(items);
        select.recv(&self.signals);
        let ready = select.select();
        if ready.index() == item {
            return ready.recv(items).map_or(Input::End, Input::Item);
        }
        // The message itself does not matter.
        let _ = ready.recv(&self.signals);
        self.came.set(true);
        Input::Interrupted
    }
}

fn no_signals(error: io::Error) -> Failure {
    Failure::of(Exit::Local, &NoSignals(error))
}

/// Makes the descriptor readable.
#[cfg(feature = "verbs")]
fn raise(event: &OwnedFd) {
    // Cannot fail: it counts up to a number that no process reaches.
    let _ = rustix::io::write(event, &1_u64.to_le_bytes());
}
