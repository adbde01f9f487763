//! Measures the figures of `docs/performance.md`, and writes its tables and plots. `tools/bench` builds and runs it.
//!
//! The samples are kept as `docs/figures/NAME.json`. The tables of the page, between a line `<!-- figure: NAME -->` and a line
//! `<!-- end -->`, and the plots, `docs/figures/NAME.svg`, contain nothing else: `--render` writes them anew, and `--check` compares.

pub(crate) mod aims;
mod benches;
pub(crate) mod data;
pub(crate) mod files;
pub(crate) mod lab;
mod latency;
pub(crate) mod list;
pub(crate) mod machine;
pub(crate) mod page;
mod plot;
pub(crate) mod programs;
mod streams;
mod units;
pub(crate) mod verbs;
pub(crate) mod virtual_machine;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use self::data::Data;
use self::files::Files;
pub(crate) use self::files::problems;
use self::lab::{Interrupt, Lab, Programs};
use self::list::{FIGURES, Fabric, Figure};
use self::virtual_machine::{Missing, VirtualMachine};

/// How often the rounds are measured again that lack something of the placement that counts.
const AGAIN_MAX: u32 = 2;
const STATUS_INTERRUPTED: u8 = 130;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Measures the figures of docs/performance.md, and writes its tables and plots
#[derive(Debug, Parser)]
#[command(name = "tools/bench", bin_name = "tools/bench")]
struct Arguments {
    /// Measure the figures of this fabric only [default: shared memory, then RDMA verbs, if they can be measured here]
    #[arg(long, value_enum)]
    fabric: Option<Fabric>,
    /// Measure each figure so often, and show medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Measure these figures only, separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = name)]
    only: Vec<String>,
    /// List the figures
    #[arg(long)]
    list: bool,
    /// Measure next to nothing, once, into a temporary directory: shows that the tool works. Shared memory only, unless --fabric is given
    #[arg(long)]
    quick: bool,
    /// Compare the page and the plots with the samples, without measuring
    #[arg(long)]
    check: bool,
    /// Write the page and the plots from the samples, without measuring
    #[arg(long)]
    render: bool,
    /// A program that may be measured
    #[arg(long, hide = true)]
    program: Vec<PathBuf>,
    /// The commit of the programs
    #[arg(long, hide = true, default_value = "unknown")]
    commit: String,
    /// Write the samples only, to this folder: this is the virtual machine of the given one
    #[arg(long, hide = true, num_args = 2, value_names = ["FOLDER", "HOST"])]
    inside: Option<Vec<String>>,
    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

fn name(text: &str) -> Result<String, String> {
    let is_known = FIGURES.iter().any(|figure| figure.name == text);
    if is_known { Ok(text.to_owned()) } else { Err("no figure has this name: --list lists them".to_owned()) }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let interrupt = match Interrupt::install() {
        Ok(interrupt) => interrupt,
        Err(error) => return failed(&*error),
    };
    match run(&arguments, &interrupt) {
        _ if interrupt.came() => {
            eprintln!("tools/bench: interrupted; the figures that were measured before are written");
            ExitCode::from(STATUS_INTERRUPTED)
        }
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failed(&*error),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("tools/bench: {error}");
    ExitCode::FAILURE
}

/// Does what the arguments say. Returns whether nothing failed.
fn run(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<bool> {
    if arguments.list {
        for Figure { name, fabric, about, .. } in FIGURES {
            println!("{name:<18} {:<6} {about}", format!("{fabric:?}").to_lowercase());
        }
        return Ok(true);
    }
    let files = Files::new(Path::new("docs"));
    if arguments.check {
        let problems = problems(Path::new("."))?;
        problems.iter().for_each(|problem| eprintln!("tools/bench: {problem}"));
        if problems.is_empty() {
            println!("the page and the plots agree with the samples");
        }
        return Ok(problems.is_empty());
    }
    if arguments.render {
        let mut is_well = true;
        for figure in FIGURES.iter().filter(|figure| arguments.wants(figure)) {
            if let Err(error) = files.samples(figure).and_then(|data| files.render(figure, &data)) {
                eprintln!("tools/bench: {error}");
                is_well = false;
            }
        }
        return Ok(is_well);
    }
    let session = Session { arguments, interrupt };
    if let Some([folder, host]) = arguments.inside.as_deref() {
        std::fs::create_dir_all(folder)?;
        let machine = format!("soft-RoCE in an emulated machine ({}) on {host}", machine::describe());
        let keep = |_: &Figure, data: &Data| {
            files::write(&Path::new(folder).join(data.figure.clone() + ".json"), &data.emit()?)
        };
        return Ok(session.figures(Fabric::Verbs, &machine, &keep));
    }
    if arguments.quick {
        let holder = tempfile::tempdir()?;
        let copy = files.copied_to(holder.path())?;
        return session.all(&copy);
    }
    session.all(&files)
}

/// One run of the tool.
struct Session<'a> {
    arguments: &'a Arguments,
    interrupt: &'a Interrupt,
}

impl Arguments {
    fn wants(&self, figure: &Figure) -> bool {
        let is_of_fabric = self.fabric.is_none_or(|fabric| fabric == figure.fabric);
        is_of_fabric && (self.only.is_empty() || self.only.iter().any(|name| name == figure.name))
    }

    fn wanted(&self, fabric: Fabric) -> impl Iterator<Item = &'static Figure> {
        FIGURES.iter().filter(move |figure| figure.fabric == fabric && self.wants(figure))
    }

    /// Whether figures over verbs were asked for by name: then a machine that cannot measure them is a failure.
    fn needs_verbs(&self) -> bool {
        self.fabric.is_some() || !self.only.is_empty()
    }

    fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }
}

impl Session<'_> {
    /// Measures all wanted figures, and writes them to these files.
    fn all(&self, files: &Files) -> Outcome<bool> {
        let keep = |figure: &Figure, data: &Data| files.keep(figure, data);
        let machine = machine::describe();
        let is_well = self.figures(Fabric::Shm, &machine, &keep);
        if self.arguments.wanted(Fabric::Verbs).next().is_none() || self.interrupt.came() {
            return Ok(is_well);
        }
        if self.arguments.quick && self.arguments.fabric.is_none() {
            return Ok(is_well);
        }
        if std::env::var_os("FABRICAST_VERBS_ADDRESS").is_some() {
            return Ok(self.figures(Fabric::Verbs, &machine, &keep) && is_well);
        }
        match self.in_a_machine(&machine, files) {
            Ok(()) => Ok(is_well),
            Err(Missing::Unavailable(reason)) if !self.arguments.needs_verbs() => {
                eprintln!("tools/bench: no figures over RDMA verbs: {reason}");
                Ok(is_well)
            }
            Err(missing) => Err(missing.into()),
        }
    }

    /// Measures the wanted figures of a fabric here, and keeps each. Returns whether none failed.
    fn figures(&self, fabric: Fabric, machine: &str, keep: &dyn Fn(&Figure, &Data) -> Outcome<()>) -> bool {
        let mut is_well = true;
        for figure in self.arguments.wanted(fabric) {
            if self.interrupt.came() {
                return false;
            }
            let measured = self.measured(figure, machine).and_then(|data| keep(figure, &data));
            if let Err(error) = measured
                && !self.interrupt.came()
            {
                eprintln!("tools/bench: the figure {} was not measured: {error}", figure.name);
                is_well = false;
            }
        }
        is_well
    }

    fn measured(&self, figure: &Figure, machine: &str) -> Outcome<Data> {
        let programs = Programs::new(self.arguments.program.clone());
        let mut lab = Lab::new(programs, self.arguments.quick, self.interrupt.clone())?;
        if figure.fabric == Fabric::Verbs {
            lab.data.device = machine::device_here();
        }
        for round in 1..=self.arguments.rounds() {
            eprintln!("{}: round {round} of {}", figure.name, self.arguments.rounds());
            lab.round = round;
            (figure.measure)(&mut lab)?;
        }
        for _ in 0..AGAIN_MAX {
            for round in lab.rounds_to_repeat() {
                eprintln!("{}: round {round} again, for what had another placement", figure.name);
                lab.round = round;
                (figure.measure)(&mut lab)?;
            }
        }
        let rounds = self.arguments.rounds();
        let (figure, machine, commit) =
            (figure.name.to_owned(), machine.to_owned(), self.arguments.commit.clone());
        Ok(Data { figure, machine, commit, rounds, ..lab.data })
    }

    /// Measures the wanted figures over verbs in a virtual machine, and writes those that it has kept.
    fn in_a_machine(&self, host: &str, files: &Files) -> Result<(), Missing> {
        let machine = VirtualMachine::of_the_repository();
        machine.set_up(self.interrupt)?;
        if !cfg!(feature = "verbs") {
            return Err("the feature `verbs` is not built: install libibverbs-dev, librdmacm-dev, pkg-config and libclang".into());
        }
        let arguments = self.arguments;
        let wanted: Vec<&Figure> = arguments.wanted(Fabric::Verbs).collect();
        let rounds = arguments.rounds().to_string();
        let mut words = vec!["--fabric", "verbs", "--rounds", &rounds, "--commit", &arguments.commit];
        words.extend(arguments.quick.then_some("--quick"));
        let programs: Vec<_> = arguments.program.iter().map(|path| path.to_string_lossy()).collect();
        programs.iter().for_each(|path| words.extend(["--program", path]));
        eprintln!("starting a machine with soft-RoCE");
        machine.measure(self.interrupt, (&wanted, arguments.rounds()), (&words, host))?;
        machine.take_over(&wanted, &|figure, data| files.keep(figure, data))
    }
}
