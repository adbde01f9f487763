use std::fmt;
use std::str::FromStr;

use rustix::thread::CpuSet;

/// Where the two processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cpus {
    /// On the first two processors that this process may use; anywhere if there is only one.
    Auto,
    /// Anywhere.
    Any,
    /// On these two.
    Two(usize, usize),
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "any" => return Ok(Self::Any),
            _ => {}
        }
        let number = |text: &str| text.parse::<usize>().ok();
        let pair = text.split_once(',').and_then(|(one, other)| Some((number(one)?, number(other)?)));
        let (one, other) = pair.ok_or("write two processors, as in 0,1, or `auto`, or `any`")?;
        if one.max(other) >= CpuSet::MAX_CPU {
            return Err(format!("processors are numbered from 0 to {}", CpuSet::MAX_CPU - 1));
        }
        Ok(Self::Two(one, other))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::Any => out.write_str("any"),
            Self::Two(one, other) => write!(out, "{one},{other}"),
        }
    }
}

impl Cpus {
    /// The choice with numbers: to be made before either process is kept on its processor.
    pub(super) fn settled(self) -> Self {
        if self != Self::Auto {
            return self;
        }
        let Ok(usable) = rustix::thread::sched_getaffinity(None) else { return Self::Any };
        let mut usable = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu));
        match (usable.next(), usable.next()) {
            (Some(one), Some(other)) => Self::Two(one, other),
            _ => Self::Any,
        }
    }

    /// Keeps this process, and the threads it starts from now on, on the processor of the measuring one.
    pub(super) fn pin_measuring(self) -> Result<(), String> {
        match self {
            Self::Two(cpu, _) => pin(cpu),
            Self::Any | Self::Auto => Ok(()),
        }
    }

    /// Keeps this process, and the threads it starts from now on, on the processor of the answering one.
    pub(super) fn pin_answering(self) -> Result<(), String> {
        match self {
            Self::Two(_, cpu) => pin(cpu),
            Self::Any | Self::Auto => Ok(()),
        }
    }
}

fn pin(cpu: usize) -> Result<(), String> {
    let mut set = CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|errno| format!("cannot run on processor {cpu}: {errno}; choose others with --cpus"))
}
