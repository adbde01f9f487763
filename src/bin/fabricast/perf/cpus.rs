use std::fmt;
use std::str::FromStr;

use rustix::thread::CpuSet;

use super::super::failure::Failure;

/// The requested processors of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The first two processors available to this process; anywhere if there is only one.
    Auto,
    /// Anywhere.
    Any,
    /// On these two.
    Two(usize, usize),
}

/// The processors of the two processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpus {
    /// Those of the measuring and the answering process, if pinned.
    two: Option<(usize, usize)>,
    /// Those available to this process when unpinned.
    usable: CpuSet,
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "any" => return Ok(Self::Any),
            _ => {}
        }
        let number = |text: &str| text.parse::<usize>().ok();
        let pair = text.split_once(',').and_then(|(one, other)| Some((number(one)?, number(other)?)));
        let (one, other) = pair.ok_or("use two processors, as in 0,1, or `auto`, or `any`")?;
        if one.max(other) >= CpuSet::MAX_CPU {
            return Err(format!("processors are numbered from 0 to {}", CpuSet::MAX_CPU - 1));
        }
        Ok(Self::Two(one, other))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.two {
            None => out.write_str("any"),
            Some((one, other)) => write!(out, "{one},{other}"),
        }
    }
}

impl Choice {
    /// Resolves the choice to numbers, before either process is pinned.
    pub(super) fn settled(self) -> Result<Cpus, String> {
        let usable = rustix::thread::sched_getaffinity(None)
            .map_err(|errno| format!("cannot tell which processors this process may use: {errno}"))?;
        let mut numbers = numbers(&usable);
        let two = match self {
            Self::Auto => numbers.next().zip(numbers.next()),
            Self::Any => None,
            Self::Two(one, other) => Some((one, other)),
        };
        Ok(Cpus { two, usable })
    }
}

impl Cpus {
    /// Pins this thread, and those it starts from now on, to the measuring processor.
    pub(super) fn pin_measuring(&self) -> Result<(), Failure> {
        self.two.map_or(Ok(()), |(cpu, _)| self.pin(cpu))
    }

    /// Pins this thread, and those it starts from now on, to the answering processor.
    pub(super) fn pin_answering(&self) -> Result<(), Failure> {
        self.two.map_or(Ok(()), |(_, cpu)| self.pin(cpu))
    }

    /// Lets this thread, and those it starts from now on, run wherever it could before.
    pub(super) fn unpin(&self) -> Result<(), String> {
        rustix::thread::sched_setaffinity(None, &self.usable)
            .map_err(|errno| format!("cannot return to the processors this process had: {errno}"))
    }

    fn pin(&self, cpu: usize) -> Result<(), Failure> {
        let mut set = CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).map_err(|errno| {
            let usable = ranges(&numbers(&self.usable).collect::<Vec<_>>());
            Failure::usage(format!(
                "cannot run on processor {cpu}: {errno}; choose from {usable} with --cpus"
            ))
        })
    }
}

/// These numbers, which ascend, with runs as ranges.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(usize::to_string).collect(),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// The numbers of these processors.
fn numbers(cpus: &CpuSet) -> impl Iterator<Item = usize> {
    (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_processors_are_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[3]), "3");
    }
}
