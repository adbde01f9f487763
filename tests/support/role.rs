//! The other side of [`Peer`](super::peer::Peer): a test program started again to play a role.
//!
//! Commands arrive as lines on standard input, answers leave as marked lines on standard output. The process ends
//! when its standard input does, so it never outlives the test.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

/// The variables with the role, its directory and its arguments.
pub(crate) const ROLE: &str = "FABRICAST_TEST_ROLE";
pub(crate) const DIR: &str = "FABRICAST_TEST_DIR";
pub(crate) const ARGUMENTS: &str = "FABRICAST_TEST_ARGUMENTS";
/// Marks the lines for the test: the test harness prints lines of its own.
pub(crate) const MARK: &str = "@@ ";

/// The role of this process.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    arguments: Vec<String>,
    commands: Receiver<String>,
}

impl Role {
    /// Returns the role of this process.
    ///
    /// # Panics
    ///
    /// If no test started this process: the test named `role` is only an entry point.
    pub(crate) fn of_this_process() -> Self {
        let variable =
            |name| std::env::var(name).unwrap_or_else(|_| panic!("only tests start this; no {name}"));
        let (name, arguments) = (variable(ROLE), variable(ARGUMENTS));
        let dir = std::env::var_os(DIR).expect("a role has a directory").into();
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        let (sender, commands) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
            std::process::exit(0);
        });
        Self { name, dir, arguments, commands }
    }

    /// Returns an argument.
    pub(crate) fn argument(&self, index: usize) -> &str {
        self.arguments.get(index).expect("the role was given its arguments")
    }

    /// Returns whether there is such an argument.
    pub(crate) fn has_argument(&self, index: usize) -> bool {
        self.arguments.get(index).is_some()
    }

    /// Returns a numeric argument.
    pub(crate) fn number(&self, index: usize) -> usize {
        self.argument(index).parse().expect("a number")
    }

    /// Sends the test a line.
    pub(crate) fn say(&self, what: impl std::fmt::Display) {
        let mut out = std::io::stdout().lock();
        // The test may be over: then the end of standard input ends this process.
        let _ = writeln!(out, "\n{MARK}{what}");
        let _ = out.flush();
    }

    /// Returns the next command.
    pub(crate) fn command(&self) -> String {
        self.commands.recv().unwrap_or_else(|_| std::process::exit(0))
    }

    /// Returns the next command, if one arrives within this time.
    pub(crate) fn command_within(&self, timeout: Duration) -> Option<String> {
        match self.commands.recv_timeout(timeout) {
            Ok(command) => Some(command),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => std::process::exit(0),
        }
    }

    /// Returns the next command, if there is one now.
    pub(crate) fn command_now(&self) -> Option<String> {
        match self.commands.try_recv() {
            Ok(command) => Some(command),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => std::process::exit(0),
        }
    }
}
