//! The virtual machine in which figures over verbs are measured without an adapter: `tools/soft-roce`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::data::Data;
use super::lab::Interrupt;
use super::list::Figure;
use super::{Outcome, files};

/// Seconds that a figure may take for each round.
const SECONDS: u32 = 1200;
/// `tools/soft-roce setup`: this machine cannot run virtual machines.
const STATUS_SKIPPED: i32 = 77;

/// A virtual machine, and where it keeps files.
#[derive(Debug)]
pub(crate) struct VirtualMachine {
    pub(crate) tool: PathBuf,
    pub(crate) folder: PathBuf,
}

/// Why figures are missing.
#[derive(Debug)]
pub(crate) enum Missing {
    /// This machine cannot run the virtual one.
    Unavailable(String),
    /// Something failed.
    Failed(Box<dyn std::error::Error>),
}

impl std::fmt::Display for Missing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unavailable(reason) => write!(formatter, "no figures over RDMA verbs: {reason}"),
            Self::Failed(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for Missing {}

impl From<Box<dyn std::error::Error>> for Missing {
    fn from(error: Box<dyn std::error::Error>) -> Self {
        Self::Failed(error)
    }
}

impl From<&str> for Missing {
    fn from(text: &str) -> Self {
        Self::Failed(text.into())
    }
}

impl VirtualMachine {
    pub(crate) fn of_the_repository() -> Self {
        Self { tool: "tools/soft-roce".into(), folder: "target/soft-roce/out/figures".into() }
    }

    /// Prepares the machine, once.
    pub(crate) fn set_up(&self, interrupt: &Interrupt) -> Result<(), Missing> {
        let (status, text) = interrupt.finished(Command::new(&self.tool).arg("setup"))?;
        match status.code() {
            Some(0) => Ok(()),
            Some(STATUS_SKIPPED) => {
                let reason = text.lines().find_map(|line| line.strip_prefix("SKIPPED: "));
                Err(Missing::Unavailable(reason.unwrap_or("no virtual machine can run here").to_owned()))
            }
            _ => {
                let tool = self.tool.display();
                Err(Missing::Failed(
                    format!("`{tool} setup` ended with {status}: the lines above say why").into(),
                ))
            }
        }
    }

    /// Measures figures in the machine by this tool with these words. What it has kept is in the folder, even if it has failed.
    pub(crate) fn measure(
        &self,
        interrupt: &Interrupt,
        (wanted, rounds): (&[&Figure], u32),
        (words, host): (&[&str], &str),
    ) -> Outcome<()> {
        // What an earlier run has left is not of this one.
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)?;
        }
        let seconds = SECONDS * rounds * u32::try_from(wanted.len())?;
        let names: Vec<&str> = wanted.iter().map(|figure| figure.name).collect();
        let mut command = Command::new(&self.tool);
        command.args(["run", "--quiet", "--timeout", &seconds.to_string(), "--"]);
        command.arg(std::env::current_exe()?).args(words);
        command.args(["--only", &names.join(","), "--inside"]).arg(&self.folder).arg(host);
        let (status, _) = interrupt.finished(&mut command)?;
        if !status.success() {
            eprintln!("tools/bench: `{} run` ended with {status}", self.tool.display());
        }
        Ok(())
    }

    /// Hands over what the machine has kept. Fails, and names the figures, unless all are there.
    pub(crate) fn take_over(
        &self,
        wanted: &[&Figure],
        keep: &dyn Fn(&Figure, &Data) -> Outcome<()>,
    ) -> Result<(), Missing> {
        let mut missing = Vec::new();
        for figure in wanted {
            let path = self.path(figure.name);
            if path.exists() {
                keep(figure, &files::read(&path)?)?;
            } else {
                missing.push(figure.name);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let names = missing.join(", ");
        Err(Missing::Failed(
            format!("the virtual machine did not measure {names}: the lines above say why").into(),
        ))
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.folder).join(name.to_owned() + ".json")
    }
}
