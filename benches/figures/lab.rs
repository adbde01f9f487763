//! Runs what is measured, one program at a time, and collects what it prints as samples.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;

use super::Outcome;
use super::data::{Data, Sample};

/// How often a run is repeated at once for the sizes that had another placement than the one decided for.
const REPEATS_MAX: u32 = 3;
/// The runs that decide for a placement, and what each measures.
const PROBES: u32 = 5;
const PROBE: [&str; 5] = ["pull", "--size", "64", "--for", "0.05"];

/// The programs that are measured, and where they run.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) programs: Programs,
    pub(crate) is_quick: bool,
    pub(crate) data: Data,
    pub(crate) round: u32,
    cpus: Vec<usize>,
    interrupt: Interrupt,
    is_placement_decided: bool,
    /// Whether rounds are measured again, for what they lack.
    is_again: bool,
    /// The sizes that a round lacks of a command.
    lacking: BTreeMap<(u32, String), BTreeSet<u64>>,
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
        ctrlc::set_handler(move || handled.interrupt())?;
        Ok(interrupt)
    }

    /// Asks the tool to end, and what it is running.
    pub(crate) fn interrupt(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        if let Some(pid) = state.1 {
            // It may have ended already.
            _ = kill_process(pid, Signal::TERM);
        }
    }

    pub(crate) fn came(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Runs a command to its end, and returns what it prints.
    pub(crate) fn output(&self, command: &mut Command) -> Outcome<String> {
        match self.finished(command)? {
            (status, text) if status.success() => Ok(text),
            (status, _) => Err(format!("`{}` ended with {status}", line(command)).into()),
        }
    }

    /// Runs a command to its end, and returns how it has ended, and what it prints.
    pub(crate) fn finished(&self, command: &mut Command) -> Outcome<(ExitStatus, String)> {
        let mut child = self.start(command.stdout(Stdio::piped()))?;
        let mut text = String::new();
        let read = child.stdout.take().map(|mut stdout| stdout.read_to_string(&mut text)).transpose();
        let status = child.wait();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = None;
        if self.came() {
            return Err("interrupted".into());
        }
        read?;
        Ok((status?, text))
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
        Ok(Self {
            programs,
            is_quick,
            data: Data::default(),
            round: 0,
            cpus,
            interrupt,
            is_placement_decided: false,
            is_again: false,
            lacking: BTreeMap::new(),
        })
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

    /// The rounds that lack sizes of a command with the placement that counts. From now on only those sizes are measured.
    pub(crate) fn rounds_to_repeat(&mut self) -> BTreeSet<u32> {
        self.is_again = true;
        self.lacking.keys().map(|(round, _)| *round).collect()
    }

    /// Runs `fabricast perf`, again for the sizes that had another placement than the one decided for, and returns the lines of all
    /// runs.
    pub(crate) fn perf(&mut self, arguments: &[&str]) -> Outcome<Vec<Line>> {
        self.data.processors = match self.cpus[..] {
            [one, other] => format!("processors {one} and {other}"),
            _ => "one processor".to_owned(),
        };
        let command = format!("fabricast perf {}", arguments.join(" "));
        self.note(command.clone());
        let is_shared = !arguments.contains(&"verbs");
        if is_shared && !self.is_quick && !self.is_placement_decided {
            self.decide_placement()?;
        }
        let key = (self.round, command);
        let mut lacking = self.lacking.remove(&key).unwrap_or_default();
        if self.is_again && lacking.is_empty() {
            return Ok(Vec::new());
        }
        let mut lines = Vec::new();
        for _ in 0..=REPEATS_MAX {
            lines.extend(self.perf_once(&with_sizes(arguments, &lacking))?);
            lacking = self.sizes_lacking(&lines);
            if self.is_quick || lacking.is_empty() {
                return Ok(lines);
            }
        }
        self.lacking.insert(key, lacking);
        Ok(lines)
    }

    fn perf_once(&self, arguments: &[String]) -> Outcome<Vec<Line>> {
        let cpus = self.cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let mut all = vec!["perf"];
        all.extend(arguments.iter().map(String::as_str));
        all.push("--json");
        if self.cpus.len() == 2 {
            all.extend(["--cpus", &cpus]);
        }
        let text = self.run("fabricast", &all)?;
        text.lines().map(|line| Ok(Line(serde_json::from_str(line)?))).collect()
    }

    /// Decides for the placement of most of a few short runs. All rounds wait for this one: a later majority would discard the
    /// rounds before it.
    fn decide_placement(&mut self) -> Outcome<()> {
        let probe = PROBE.map(str::to_owned);
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..PROBES {
            let lines = self.perf_once(&probe)?;
            for placement in lines.iter().filter_map(Line::placement).filter(|it| *it != "mixed") {
                *counts.entry(placement.to_owned()).or_default() += 1;
            }
        }
        self.is_placement_decided = true;
        self.data.wanted_placement = counts.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name);
        Ok(())
    }

    /// The sizes of which a line is not there with the placement decided for. The first run that did not move decides, if the
    /// probes could not.
    fn sizes_lacking(&mut self, lines: &[Line]) -> BTreeSet<u64> {
        let mut settled = lines.iter().filter_map(Line::placement).filter(|placement| *placement != "mixed");
        if !self.is_quick && self.data.wanted_placement.is_none() {
            self.data.wanted_placement = settled.next().map(str::to_owned);
        }
        let wanted = self.data.wanted_placement.as_deref();
        let is_as_wanted = |line: &Line| line.placement().is_none_or(|placement| Some(placement) == wanted);
        let is_lacking = |line: &&Line| {
            let is_same = |other: &&Line| (other.mode(), other.size()) == (line.mode(), line.size());
            !lines.iter().filter(is_same).any(is_as_wanted)
        };
        lines.iter().filter(is_lacking).map(Line::size).collect()
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
        let text = self.on_processor(false, || self.run(bench, &arguments))?;
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

    /// Does something on the first of two processors, or on the last. What it starts stays there.
    pub(crate) fn on_processor<T>(&self, is_first: bool, run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let usable = sched_getaffinity(None)?;
        let cpu = if is_first { self.cpus.first() } else { self.cpus.last() };
        let mut one = CpuSet::new();
        cpu.into_iter().for_each(|cpu| one.set(*cpu));
        sched_setaffinity(None, &one)?;
        let result = run();
        sched_setaffinity(None, &usable)?;
        result
    }
}

/// The arguments with only these sizes, or as they are if none are given, or if they name none.
fn with_sizes(arguments: &[&str], sizes: &BTreeSet<u64>) -> Vec<String> {
    let mut arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let at = arguments.iter().position(|word| word == "--size");
    if let Some(value) = at.and_then(|at| arguments.get_mut(at + 1))
        && !sizes.is_empty()
    {
        *value = sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    }
    arguments
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
