use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::super::clock::Deadline;
use super::super::failure::{Exit, Failure};
use super::super::interrupt::Interrupt;
use super::super::setting::Setting;
use super::arguments::Mode;
use super::line::Seen;
use super::trouble::{Quiet, Trouble};

/// How long a process may take to end.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a process may take to end by itself once its sessions are gone.
const AFTERMATH: Duration = Duration::from_millis(500);
/// How often it is checked meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A process started by a measurement. Ended when dropped.
pub(super) struct Process {
    what: &'static str,
    child: Child,
    output: BufReader<ChildStdout>,
}

/// What the other process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Wait,
    Probe,
    Floor,
    Checked,
    Deliver,
    Stop,
}

impl Process {
    /// Starts a process; messages call it `what`.
    pub(super) fn start(what: &'static str, mut command: Command, input: OwnedFd) -> Result<Self, Trouble> {
        let mut child = command.stdin(Stdio::from(input)).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("a started process has no output")?;
        Ok(Self { what, child, output: BufReader::new(output) })
    }

    /// Its number.
    pub(super) fn number(&self) -> u32 {
        self.child.id()
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<(), Trouble> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.ended(status)),
        }
    }

    /// Waits for the next line that it prints.
    pub(super) fn line(&mut self) -> Result<String, Trouble> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(self.ended(status));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Why it has ended, which it must not yet.
    fn ended(&self, status: ExitStatus) -> Trouble {
        let ended = || format!("the {} process has ended before the measurement", self.what);
        self.failure(status).unwrap_or_else(|| Failure::new(Exit::Gone, ended()).into())
    }

    /// The failure of this process, if it explains `noticed`; otherwise `noticed`.
    pub(super) fn explain(&mut self, noticed: Trouble) -> Trouble {
        if noticed.is::<Quiet>() {
            return noticed;
        }
        let deadline = Deadline::after(AFTERMATH);
        while !deadline.is_over() {
            match self.child.try_wait() {
                Ok(Some(status)) => return self.failure(status).unwrap_or(noticed),
                Ok(None) => std::thread::park_timeout(LOOK_AGAIN),
                Err(_) => return noticed,
            }
        }
        noticed
    }

    /// Waits for its end, and returns its counts.
    pub(super) fn end(mut self, interrupt: &Interrupt) -> Result<Seen, Trouble> {
        let deadline = Deadline::after(ANSWER_TIMEOUT);
        // Its output fits into the pipe.
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if interrupt.pause(LOOK_AGAIN) {
                return Err(Quiet(Exit::Interrupted).into());
            }
            if deadline.is_over() {
                return Err(format!("the {} process does not end: end it", self.what).into());
            }
        };
        self.failure(status).map_or_else(|| self.seen(), Err)
    }

    /// The counts that it printed before it ended.
    fn seen(&mut self) -> Result<Seen, Trouble> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let untold = || format!("the {} process has ended without reporting its counts", self.what);
        serde_json::from_str(&line).map_err(|_| untold().into())
    }

    /// The failure shown by this status: none after success, and only the exit code if the process has reported the rest.
    fn failure(&self, status: ExitStatus) -> Option<Trouble> {
        if let Some(signal) = status.signal() {
            let sentence = format!("the {} process was ended by signal {signal}", self.what);
            return Some(Failure::new(Exit::Gone, sentence).into());
        }
        let known = [
            Exit::Usage,
            Exit::Unreachable,
            Exit::Refused,
            Exit::Hung,
            Exit::Gone,
            Exit::Local,
            Exit::Interrupted,
        ];
        let exit = known.into_iter().find(|exit| Some(i32::from(exit.code())) == status.code());
        (!status.success()).then(|| Quiet(exit.unwrap_or(Exit::No)).into())
    }
}

/// The beginning of a command that has this program measure, with the same settings.
pub(super) fn command(setting: &Setting, mode: Mode) -> Result<Command, Trouble> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(setting.as_arguments()).args(["perf", mode.name()]);
    setting.measuring_key().share(&mut command);
    Ok(command)
}

/// What the process that has started this one has handed over. This one ends with it, from now on: it may be killed, and nobody
/// would tell this one to stop then.
pub(super) fn inherited() -> Result<OwnedFd, Trouble> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(std::io::stdin().as_fd().try_clone_to_owned()?)
}

impl Phase {
    const ALL: [Self; 6] = [Self::Wait, Self::Probe, Self::Floor, Self::Checked, Self::Deliver, Self::Stop];

    pub(super) fn number(self) -> u64 {
        self as u64
    }

    pub(super) fn of(number: u64) -> Self {
        Self::ALL.into_iter().find(|phase| phase.number() == number).unwrap_or(Self::Stop)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Usually it ends by itself; killing an ended process does no harm.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn ended(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let input = File::open("/dev/null").unwrap().into();
        let mut process = Process::start("trying", command, input).unwrap();
        process.child.wait().unwrap();
        process
    }

    fn sentence(script: &str) -> String {
        ended(script).check().unwrap_err().to_string()
    }

    #[test]
    fn end_of_a_process_is_reported_once() {
        assert_eq!(sentence("exit 0"), "the trying process has ended before the measurement");
        assert_eq!(sentence("kill -9 $$"), "the trying process was ended by signal 9");
        for (script, exit) in [("exit 2", Exit::Usage), ("exit 6", Exit::Gone), ("exit 101", Exit::No)] {
            let told = ended(script).check().unwrap_err();
            assert_eq!(told.downcast::<Quiet>().unwrap().0, exit);
            let explained = ended(script).explain("it does not answer".into());
            assert_eq!(explained.downcast::<Quiet>().unwrap().0, exit);
        }
        let explained = ended("exit 0").explain("it does not answer".into());
        assert_eq!(explained.to_string(), "it does not answer");
    }

    #[test]
    fn process_without_output_is_reported() {
        for script in ["", "echo", "echo 7"] {
            let untold = ended(script).seen().unwrap_err().to_string();
            assert!(untold.contains("trying"), "{untold}");
        }
        let told = r#"echo '{"verified":3,"torn_retries":0,"lost":1,"rejected":0}'"#;
        let seen = ended(told).seen().unwrap();
        assert_eq!((seen.verified, seen.lost), (3, 1));
    }
}
