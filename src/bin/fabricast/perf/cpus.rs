use std::str::FromStr;

use rustix::thread::CpuSet;

/// Where the two processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cpus(Option<(usize, usize)>);

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self(None));
        }
        let wrong = || "write two processors, as in 0,1, or `any`".to_owned();
        let (one, other) = text.split_once(',').ok_or_else(wrong)?;
        let cpus: (usize, usize) = (one.parse().map_err(|_| wrong())?, other.parse().map_err(|_| wrong())?);
        if cpus.0.max(cpus.1) >= CpuSet::MAX_CPU {
            return Err(format!("processors are numbered from 0 to {}", CpuSet::MAX_CPU - 1));
        }
        Ok(Self(Some(cpus)))
    }
}

impl std::fmt::Display for Cpus {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some((one, other)) => write!(out, "{one},{other}"),
            None => out.write_str("any"),
        }
    }
}

impl Cpus {
    /// Keeps this process, and the threads it starts from now on, on the processor of the measuring one.
    pub(super) fn pin_measuring(self) -> Result<(), String> {
        self.0.map_or(Ok(()), |(cpu, _)| pin(cpu))
    }

    /// Keeps this process, and the threads it starts from now on, on the processor of the answering one.
    pub(super) fn pin_answering(self) -> Result<(), String> {
        self.0.map_or(Ok(()), |(_, cpu)| pin(cpu))
    }
}

fn pin(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|errno| {
        format!("cannot run on processor {cpu}: {errno}; choose others with --cpus, or `--cpus any`")
    })
}
