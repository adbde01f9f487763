//! Runs what is measured, one program at a time, and collects what it prints as samples.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;

use super::Outcome;
use super::data::{Data, Sample};

/// How often a run is repeated whose processors moved, or that was placed otherwise than most.
const REPEATS_MAX: u32 = 3;

/// The programs that are measured, and where they run.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) programs: Programs,
    pub(crate) is_quick: bool,
    pub(crate) data: Data,
    pub(crate) round: u32,
    cpus: Vec<usize>,
    interrupt: Interrupt,
}

/// Where the command and the benches are.
#[derive(Clone, Debug)]
pub(crate) struct Programs(Vec<PathBuf>);

/// Whether the tool was asked to end, and what it is running: that is asked to end, too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<Mutex<(bool, Option<Pid>)>>);

/// Values of one sample by their names.
pub(crate) type Values<'a> = &'a [(&'a str, f64)];

impl Programs {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self(paths)
    }

    /// The program of this name. Cargo appends a hyphen and 16 digits to the names of benches.
    pub(crate) fn path(&self, name: &str) -> Outcome<&Path> {
        let is_it = |path: &&PathBuf| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            file == name || file.rsplit_once('-').is_some_and(|(stem, hash)| stem == name && hash.len() == 16)
        };
        let found = self.0.iter().find(is_it).map(PathBuf::as_path);
        found.ok_or_else(|| {
            format!("the program {name} is not built: run tools/bench, which builds it").into()
        })
    }
}

impl Interrupt {
    /// Handles SIGINT, SIGTERM and SIGHUP. Once per process.
    pub(crate) fn install() -> Outcome<Self> {
        let interrupt = Self::default();
        let handled = interrupt.clone();
        ctrlc::set_handler(move || {
            let mut state = handled.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = true;
            if let Some(pid) = state.1 {
                // It may have ended already.
                _ = kill_process(pid, Signal::TERM);
            }
        })?;
        Ok(interrupt)
    }

    pub(crate) fn came(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Runs a command to its end, and returns what it prints.
    pub(crate) fn output(&self, command: &mut Command) -> Outcome<String> {
        let mut child = self.start(command.stdout(Stdio::piped()))?;
        let mut text = String::new();
        let read = child.stdout.take().map(|mut stdout| stdout.read_to_string(&mut text)).transpose();
        let status = child.wait();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = None;
        if self.came() {
            return Err("interrupted".into());
        }
        read?;
        match status? {
            status if status.success() => Ok(text),
            status => Err(format!("`{}` ended with {status}", line(command)).into()),
        }
    }

    fn start(&self, command: &mut Command) -> Outcome<Child> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.0 {
            return Err("interrupted".into());
        }
        let child = command.spawn().map_err(|error| format!("cannot run `{}`: {error}", line(command)))?;
        state.1 = Some(Pid::from_child(&child));
        Ok(child)
    }
}

/// The command as a user writes it, without folders.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    command.get_args().fold(program.into_owned(), |line, word| line + " " + &word.to_string_lossy())
}

impl Lab {
    pub(crate) fn new(programs: Programs, is_quick: bool, interrupt: Interrupt) -> Outcome<Self> {
        let usable = sched_getaffinity(None)?;
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu)).take(2).collect();
        Ok(Self { programs, is_quick, data: Data::default(), round: 0, cpus, interrupt })
    }

    /// This time, or much less if the tool only tries itself.
    pub(crate) fn seconds(&self, seconds: f64) -> String {
        if self.is_quick { "0.02".to_owned() } else { seconds.to_string() }
    }

    /// These places, or only the first if the tool only tries itself.
    pub(crate) fn some<'a, T>(&self, all: &'a [T]) -> &'a [T] {
        if self.is_quick { all.get(..1).unwrap_or(all) } else { all }
    }

    /// Adds a sample of this round.
    pub(crate) fn add(&mut self, (series, x): (&str, u64), placement: Option<&str>, values: Values<'_>) {
        // No measurement has more digits.
        let rounded = |value: f64| (value * 1e6).round() / 1e6;
        self.data.samples.push(Sample {
            series: series.to_owned(),
            x,
            round: self.round,
            placement: placement.map(str::to_owned),
            values: values.iter().map(|(name, value)| ((*name).to_owned(), rounded(*value))).collect(),
        });
    }

    /// Remembers what was run, as a user would write it.
    pub(crate) fn note(&mut self, command: String) {
        if !self.data.commands.contains(&command) {
            self.data.commands.push(command);
        }
    }

    /// Runs a program of this project, and returns what it prints.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Outcome<String> {
        self.interrupt.output(Command::new(self.programs.path(program)?).args(arguments))
    }

    /// Runs any program, and returns what it prints.
    pub(crate) fn run_command(&self, command: &mut Command) -> Outcome<String> {
        self.interrupt.output(command)
    }

    /// Runs `fabricast perf`, again if the processors moved meanwhile, and returns the lines of all runs.
    pub(crate) fn perf(&mut self, arguments: &[&str]) -> Outcome<Vec<Line>> {
        self.data.processors = match self.cpus[..] {
            [one, other] => format!("processors {one} and {other}"),
            _ => "one processor".to_owned(),
        };
        self.note(format!("fabricast perf {}", arguments.join(" ")));
        let cpus = self.cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut all = vec!["perf"];
        all.extend(arguments);
        all.push("--json");
        if self.cpus.len() == 2 {
            all.extend(["--cpus", &cpus]);
        }
        let mut lines = Vec::new();
        for _ in 0..=REPEATS_MAX {
            let text = self.run("fabricast", &all)?;
            let parsed = text.lines().map(|line| Ok(Line(serde_json::from_str(line)?)));
            lines.extend(parsed.collect::<Outcome<Vec<Line>>>()?);
            if self.is_quick || self.is_complete(&lines) {
                break;
            }
        }
        Ok(lines)
    }

    /// Whether each line is there with the placement of most samples, or of the first line.
    fn is_complete(&self, lines: &[Line]) -> bool {
        let first = lines.iter().filter_map(Line::placement).find(|placement| *placement != "mixed");
        let Some(wanted) = self.data.placement().or(first) else {
            return lines.iter().all(|line| line.placement().is_none());
        };
        let is_as_wanted = |line: &Line| line.placement().is_none_or(|placement| placement == wanted);
        lines.iter().all(|line| {
            let is_same = |other: &&Line| (other.mode(), other.size()) == (line.mode(), line.size());
            lines.iter().filter(is_same).any(is_as_wanted)
        })
    }

    /// Runs a bench of divan's on one processor, and returns its medians, nanoseconds, by the name and the argument.
    pub(crate) fn divan(&mut self, bench: &str) -> Outcome<BTreeMap<(String, u64), f64>> {
        self.note(format!("cargo bench --bench {bench}"));
        self.data.processors =
            self.cpus.last().map_or_else(String::new, |cpu| format!("one process on processor {cpu}"));
        let mut arguments = vec!["--bench"];
        if self.is_quick {
            // Large tables take long to fill.
            arguments.extend(["--sample-count", "1", "--sample-size", "1", "--skip", "0000"]);
        }
        let text = self.on_one_processor(|lab| lab.run(bench, &arguments))?;
        let medians = medians(&text);
        if medians.is_empty() {
            return Err(format!("`cargo bench --bench {bench}` printed no medians").into());
        }
        Ok(medians)
    }

    /// Runs a bench that prints a table, and returns its rows: what stands in the first columns, and the numbers by their names.
    pub(crate) fn table(&mut self, bench: &str, arguments: &[&str]) -> Outcome<Vec<Row>> {
        self.note(format!("cargo bench --bench {bench} -- {}", arguments.join(" ")));
        let text = self.run(bench, arguments)?;
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        let row = |line: &str| {
            let mut words = line.split_whitespace();
            let (series, x) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
            let names = head.iter().skip(2).map(|name| (*name).to_owned());
            Some((series, x, names.zip(words.map_while(|word| word.parse().ok())).collect()))
        };
        let rows: Vec<Row> = lines.map_while(row).collect();
        if rows.is_empty() { Err(format!("`{bench}` printed no table").into()) } else { Ok(rows) }
    }

    fn on_one_processor<T>(&self, run: impl FnOnce(&Self) -> Outcome<T>) -> Outcome<T> {
        let usable = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        self.cpus.last().iter().for_each(|cpu| one.set(**cpu));
        sched_setaffinity(None, &one)?;
        let result = run(self);
        sched_setaffinity(None, &usable)?;
        result
    }
}

/// A row of a table: series, place, and numbers by name.
pub(crate) type Row = (String, u64, Vec<(String, f64)>);

/// A line of `fabricast perf --json`.
#[derive(Debug)]
pub(crate) struct Line(Value);

impl Line {
    pub(crate) fn mode(&self) -> &str {
        self.0.get("mode").and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn size(&self) -> u64 {
        self.0.get("size").and_then(Value::as_u64).unwrap_or_default()
    }

    /// Where the processes were to each other, if values went through memory that they share.
    pub(crate) fn placement(&self) -> Option<&str> {
        let is_shared = self.0.get("fabric").and_then(Value::as_str) == Some("shm");
        self.0.get("placement").and_then(Value::as_str).filter(|_| is_shared)
    }

    /// Those of these numbers that the line has.
    pub(crate) fn values<'a>(&self, names: &[&'a str]) -> Vec<(&'a str, f64)> {
        names.iter().filter_map(|name| Some((*name, self.0.get(name)?.as_f64()?))).collect()
    }
}

/// The medians in a table of divan's, nanoseconds.
pub(crate) fn medians(text: &str) -> BTreeMap<(String, u64), f64> {
    let mut medians = BTreeMap::new();
    // The names above the current line, by depth.
    let mut names: Vec<String> = Vec::new();
    for line in text.lines() {
        let Some(at) = line.find("─ ") else { continue };
        let depth = line.get(..at).unwrap_or_default().chars().count() / 3;
        let mut columns = line.get(at + "─ ".len()..).unwrap_or_default().split('│');
        let mut first = columns.next().unwrap_or_default().split_whitespace();
        let name = first.next().unwrap_or_default();
        names.truncate(depth);
        // The fastest stands beside the name; the median is the second column after it.
        if let Some(median) = columns.nth(1).and_then(nanoseconds) {
            let argument: Option<u64> = name.parse().ok();
            let path =
                if argument.is_some() { names.clone() } else { [&names[..], &[name.to_owned()]].concat() };
            medians.insert((path.join("/"), argument.unwrap_or(0)), median);
        }
        names.resize(depth, String::new());
        names.push(name.to_owned());
    }
    medians
}

/// A time as divan writes it.
fn nanoseconds(text: &str) -> Option<f64> {
    let (number, unit) = text.trim().split_once(' ')?;
    let scale = match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
}
