//! The program as a user runs it: the real binary, in a runtime directory of its own.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use fabricast::Node;
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// How long a test waits for what must come; only ends a hang.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// How long the program may run in a test that waits for its end: longer than its own timeouts.
pub(crate) const RUN_MAX: Duration = Duration::from_secs(120);
/// The pause between checks.
const LOOK: Duration = Duration::from_millis(10);

/// A runtime directory.
pub(crate) struct Place {
    directory: tempfile::TempDir,
}

/// The result of a run of the program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) error: String,
}

/// The program, running. Killed when it is dropped.
pub(crate) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    out: Receiver<String>,
    error: Receiver<String>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// A node of the test's own process.
    pub(crate) fn node(&self, name: &str) -> Node {
        Node::builder().name(name).unwrap().runtime_dir(self.directory.path()).open().unwrap()
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        self.run_with_input(arguments, "")
    }

    /// Runs the program to its end with this standard input.
    pub(crate) fn run_with_input(&self, arguments: &[&str], input: impl Into<Vec<u8>>) -> Ended {
        let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_fabricast"));
        command.env("FABRICAST_RUNTIME_DIR", self.path()).env_remove("RUST_LOG").args(arguments);
        let output = command.timeout(RUN_MAX).write_stdin(input.into()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended { code: output.status.code(), out: text(output.stdout), error: text(output.stderr) }
    }

    /// The program, ready to be started.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
        command.env("FABRICAST_RUNTIME_DIR", self.path()).env_remove("RUST_LOG").args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the program.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Self::spawn(self.command(arguments))
    }

    /// A process that becomes the program when a line is written to it.
    pub(crate) fn hold(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new("sh");
        command.env("FABRICAST_RUNTIME_DIR", self.path()).env_remove("RUST_LOG");
        command.args(["-c", "read -r go && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_fabricast")]);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::spawn(command)
    }

    /// Starts the program with an output without a reader.
    pub(crate) fn start_unread(&self, arguments: &[&str]) -> Running {
        let mut child = self.command(arguments).spawn().unwrap();
        drop(child.stdout.take());
        let error = lines(child.stderr.take().unwrap());
        Running { input: child.stdin.take(), child, out: lines(std::io::empty()), error }
    }

    fn spawn(mut command: Command) -> Running {
        let mut child = command.spawn().unwrap();
        let out = lines(child.stdout.take().unwrap());
        let error = lines(child.stderr.take().unwrap());
        Running { input: child.stdin.take(), child, out, error }
    }

    /// Starts `fabricast pub` in a process of its own, and waits for its topic.
    pub(crate) fn publish(&self, target: &str) -> Running {
        self.publish_as("state", target)
    }

    /// The same for a topic of this kind.
    pub(crate) fn publish_as(&self, kind: &str, target: &str) -> Running {
        self.publish_with(target, &["--kind", kind])
    }

    /// The same with these options.
    pub(crate) fn publish_with(&self, target: &str, options: &[&str]) -> Running {
        let running = self.start(&[&["pub", target, "--quiet"], options].concat());
        let (address, topic) = target.split_once('/').unwrap();
        wait_until("the topic", || self.list(&[address]).iter().any(|row| row["topic"] == topic));
        running
    }

    /// The rows of `list --json`.
    pub(crate) fn list(&self, arguments: &[&str]) -> Vec<Value> {
        let ended = self.run(&[&["list", "--json"], arguments].concat());
        ended.out.lines().map(json).collect()
    }
}

impl Ended {
    /// Checks that it printed only one line, on standard error, with all of these parts.
    #[track_caller]
    pub(crate) fn assert_failure(&self, code: i32, parts: &[&str]) {
        assert_eq!((self.code, self.out.as_str()), (Some(code), ""), "{self:?}");
        assert!(self.error.starts_with("fabricast: ") && self.error.lines().count() == 1, "{self:?}");
        for part in parts {
            assert!(self.error.contains(part), "{part:?} is missing in {self:?}");
        }
    }

    /// Checks that it printed nothing.
    #[track_caller]
    pub(crate) fn assert_nothing(&self, code: i32) {
        assert_eq!((self.code, self.out.as_str(), self.error.as_str()), (Some(code), "", ""));
    }

    /// Checks that it succeeded, and returns its output.
    #[track_caller]
    pub(crate) fn printed(&self) -> &str {
        assert_eq!((self.code, self.error.as_str()), (Some(0), ""), "{self:?}");
        &self.out
    }
}

impl Running {
    /// The next line on standard output.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.out.recv_timeout(TIMEOUT).expect("a line on standard output in time")
    }

    /// The next line on standard error.
    #[track_caller]
    pub(crate) fn error_line(&self) -> String {
        self.error.recv_timeout(TIMEOUT).expect("a line on standard error in time")
    }

    /// Writes a line to standard input.
    pub(crate) fn write(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Writes bytes to standard input.
    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Ends standard input.
    pub(crate) fn end_input(&mut self) {
        self.input = None;
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        wait_until("the end of the program", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        // The readers end with the pipes.
        let rest = |lines: &Receiver<String>| lines.iter().map(|line| line + "\n").collect();
        Ended { code, out: rest(&self.out), error: rest(&self.error) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process has a handler for this signal: the mask `SigCgt` in proc(5) `status`.
pub(crate) fn catches(process: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << (signal.as_raw() - 1)) != 0
}

/// Checks repeatedly until `done`.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..TIMEOUT.as_millis() / LOOK.as_millis() {
        if done() {
            return;
        }
        std::thread::park_timeout(LOOK);
    }
    panic!("waited in vain for {what}");
}

/// Changes the first byte of this text in the memory that this process publishes.
pub(crate) fn damage(text: &str) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
    let mut damaged = 0;
    for line in maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("/memfd:")) {
        let (begin, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [begin, end] = [begin, end].map(|place| u64::from_str_radix(place, 16).unwrap());
        let mut bytes = vec![0; usize::try_from(end - begin).unwrap()];
        if memory.read_exact_at(&mut bytes, begin).is_err() {
            // Another test of this process has unmapped it meanwhile.
            continue;
        }
        for at in (0..bytes.len() - text.len()).filter(|at| bytes[*at..].starts_with(text.as_bytes())) {
            memory.write_all_at(&[!bytes[at]], begin + at as u64).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1, "{text:?} in {maps}");
}

#[track_caller]
pub(crate) fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?} is not JSON: {error}"))
}

/// The names of a JSON line's fields, in their order.
pub(crate) fn fields(line: &str) -> Vec<String> {
    let Value::Object(object) = json(line) else { panic!("{line:?} is no object") };
    let mut names: Vec<String> = object.keys().cloned().collect();
    names.sort_by_key(|name| line.find(&format!("\"{name}\":")));
    names
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
