//! Ctrl-C, and the other signals that ask a process to end.

use std::cell::Cell;
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, Select, TryRecvError, bounded};

use super::failure::{Exit, Failure};

/// Tells when the process was asked to end, so that it ends in good order. Who asks again ends it at once.
#[derive(Debug)]
pub(crate) struct Interrupt {
    signals: Receiver<()>,
    came: Cell<bool>,
}

/// What a wait for input has brought.
#[derive(Debug)]
pub(crate) enum Input<T> {
    /// This.
    Item(T),
    /// There is no more.
    End,
    /// The process was asked to end.
    Interrupted,
}

impl Interrupt {
    /// Takes SIGINT, SIGTERM and SIGHUP. Once in a process.
    pub(crate) fn install() -> Result<Self, Failure> {
        let (sender, signals) = bounded(1);
        let mut asked = false;
        let taken = ctrlc::set_handler(move || {
            if std::mem::replace(&mut asked, true) {
                std::process::exit(Exit::Interrupted.code().into());
            }
            // It cannot fail: the channel has room for the one message there is.
            let _ = sender.try_send(());
        });
        taken.map_err(|error| Failure::new(Exit::Local, format!("cannot take signals: {error}")))?;
        Ok(Self { signals, came: Cell::new(false) })
    }

    /// Waits for so long, or until the process is asked to end: then it is true, and from then on at once.
    pub(crate) fn pause(&self, duration: Duration) -> bool {
        if !self.came.get() {
            self.came.set(self.signals.recv_timeout(duration) != Err(RecvTimeoutError::Timeout));
        }
        self.came.get()
    }

    /// Whether the process was asked to end.
    pub(crate) fn came(&self) -> bool {
        if !self.came.get() {
            self.came.set(self.signals.try_recv() != Err(TryRecvError::Empty));
        }
        self.came.get()
    }

    /// Waits for the next item, or until the process is asked to end.
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
        // The message is of no further interest: it has come.
        let _ = ready.recv(&self.signals);
        self.came.set(true);
        Input::Interrupted
    }
}
