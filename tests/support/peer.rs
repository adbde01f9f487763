//! A process that plays a role in a test, controlled by the test.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions};

use super::role::{ARGUMENTS, DIR, MARK, ROLE};
use super::time::{PATIENCE, wait_until};

/// A process of the test program itself, which plays a role. Killed on drop.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    role: String,
}

impl Peer {
    /// Starts it. The test program has an ignored test named `role`, which plays the roles: the harness runs it only on
    /// request, so that it never counts as a test.
    pub(crate) fn start(role: &str, dir: &Path, arguments: &str) -> Self {
        Self::start_by(&mut Self::program(), role, dir, arguments)
    }

    /// Like [`Self::start`], as a process of this user and this group only, which only root can start.
    pub(crate) fn start_as((user, group): (u32, u32), role: &str, dir: &Path, arguments: &str) -> Self {
        Self::start_by(Self::program().uid(user).gid(group), role, dir, arguments)
    }

    /// Like [`Self::start`], as the first process of a namespace of processes (pid_namespaces(7)), as containers have them.
    /// Only root can.
    pub(crate) fn start_contained(role: &str, dir: &Path, arguments: &str) -> Self {
        let own = Self::program();
        let mut program = Command::new("unshare");
        program.args(["--pid", "--fork", "--kill-child", "--"]).arg(own.get_program());
        program.env("MALLOC_ARENA_MAX", "1");
        Self::start_by(&mut program, role, dir, arguments)
    }

    fn program() -> Command {
        let mut program = Command::new(std::env::current_exe().expect("the test program knows where it is"));
        // The freed memory that malloc keeps for each thread would pass for memory that is lost.
        program.env("MALLOC_ARENA_MAX", "1");
        program
    }

    fn start_by(program: &mut Command, role: &str, dir: &Path, arguments: &str) -> Self {
        let mut child = program
            .args(["role", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(DIR, dir)
            .env(ARGUMENTS, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process can be started");
        let commands = child.stdin.take().expect("standard input is a pipe");
        let output = child.stdout.take().expect("standard output is a pipe");
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix(MARK)
                    && sender.send(answer.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        Self { child, commands, answers, role: role.to_owned() }
    }

    /// Like [`Self::start`], and waits for its first line.
    pub(crate) fn ready(role: &str, dir: &Path, arguments: &str) -> Self {
        let mut peer = Self::start(role, dir, arguments);
        assert_eq!(peer.hear(), "ready");
        peer
    }

    /// Sends it a command.
    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the process takes commands");
        self.commands.flush().expect("the process takes commands");
    }

    /// Returns its next line.
    #[track_caller]
    pub(crate) fn hear(&mut self) -> String {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(error) => panic!("the {} says nothing ({error}): {:?}", self.role, self.child.try_wait()),
        }
    }

    /// Returns its next line, or how it ended without one.
    pub(crate) fn outcome(&mut self) -> Result<String, ExitStatus> {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => Ok(answer),
            Err(_) => Err(self.status()),
        }
    }

    /// Sends it a command, and waits for its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.hear()
    }

    /// Like [`Self::ask`], for a numeric answer.
    #[track_caller]
    pub(crate) fn ask_number(&mut self, command: &str) -> u64 {
        let answer = self.ask(command);
        answer.parse().unwrap_or_else(|_| panic!("not a number: {answer}"))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Limits its open files to this number. Returns the limit before.
    pub(crate) fn limit_files(&self, current: u64) -> u64 {
        let limit = Rlimit { current: Some(current), ..rustix::process::getrlimit(Resource::Nofile) };
        let before = rustix::process::prlimit(Some(self.pid()), Resource::Nofile, limit);
        before.expect("it can be set").current.expect("a limit")
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("the process runs");
    }

    /// Stops it, and waits until all of its threads have stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        // The status is left in place: it may be stopped already, and be asked again.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        let stopped =
            rustix::process::waitid(WaitId::Pid(self.pid()), options).expect("it can be waited for");
        assert!(stopped.is_some_and(|status| status.stopped()), "it is not stopped");
    }

    /// Kills it, and waits for its death.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process can be waited for");
    }

    /// Waits until it exits.
    pub(crate) fn status(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the process to end", || {
            status = self.child.try_wait().expect("the process can be waited for");
            status.is_some()
        });
        status.expect("it was waited for")
    }

    /// Returns the resources that it holds.
    pub(crate) fn holdings(&self) -> Holdings {
        Holdings { files: self.open_files(), regions: self.regions() }
    }

    /// Returns its processor time in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.scheduled(0)
    }

    /// Returns how often its threads were scheduled.
    pub(crate) fn turns(&self) -> u64 {
        self.scheduled(2)
    }

    /// The sum of this field in the `schedstat` of its threads: see sched-stats of the kernel's documentation.
    fn scheduled(&self, field: usize) -> u64 {
        let schedstat = |path: std::path::PathBuf| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.split_whitespace().nth(field).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0)
        };
        let tasks = std::fs::read_dir(self.proc("task")).expect("the process runs");
        tasks.flatten().map(|task| schedstat(task.path().join("schedstat"))).sum()
    }

    fn open_files(&self) -> usize {
        std::fs::read_dir(self.proc("fd")).map_or(0, Iterator::count)
    }

    /// Mapped memory files of this library.
    fn regions(&self) -> usize {
        let maps = std::fs::read_to_string(self.proc("maps")).unwrap_or_default();
        maps.lines().filter(|line| line.contains("memfd:")).count()
    }

    fn proc(&self, what: &str) -> std::path::PathBuf {
        format!("/proc/{}/{what}", self.child.id()).into()
    }
}

/// Resources of a process that could leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Open file descriptors.
    pub(crate) files: usize,
    /// Mapped memory files.
    pub(crate) regions: usize,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails if the process is already dead.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
