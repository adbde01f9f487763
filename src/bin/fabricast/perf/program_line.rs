//! What `perf ping-pong` and `perf blast` print of a run.

use fabricast::measure::{EndReport, ProgramReport};
use serde::Serialize;

/// One line of the outcome of a program.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ProgramLine {
    mode: &'static str,
    program: String,
    fabric: &'static str,
    /// The address of the other process, or else the connection method.
    connect: String,
    rdma_connect: &'static str,
    size: u32,
    subscribers: u32,
    iterations: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
    max_ns: Option<u64>,
    msgs_per_s: f64,
    gb_per_s: f64,
    lost: u64,
    rejected: u64,
    verified: u64,
    /// Blocks of which every byte was compared.
    whole: u64,
    client_cpu_ns: u64,
    client_cpu_percent: f64,
    agent_cpu_ns: u64,
    agent_cpu_percent: f64,
}

/// What a line is of.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) mode: &'static str,
    pub(super) program: String,
    pub(super) connect: String,
    pub(super) rdma_connect: &'static str,
    pub(super) size: u32,
}

/// The share of the run in which a process used a processor.
fn percent(end: &EndReport) -> f64 {
    if end.wall_ns == 0 { 0.0 } else { real(end.cpu_ns) / real(end.wall_ns) * 100.0 }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn real(number: u64) -> f64 {
    number as f64
}

impl ProgramLine {
    /// The line of a run.
    pub(super) fn of(subject: Subject, report: &ProgramReport) -> Self {
        let Subject { mode, program, connect, rdma_connect, size } = subject;
        let ProgramReport { figures, client, agent, .. } = report;
        let quantile = |ns: u64| (figures.max_ns > 0).then_some(ns);
        let seconds = real(figures.total_ns) / 1e9;
        let msgs_per_s = if seconds > 0.0 { real(figures.iterations) / seconds } else { 0.0 };
        Self {
            mode,
            program,
            fabric: "verbs",
            connect,
            rdma_connect,
            size,
            subscribers: 1,
            iterations: figures.iterations,
            p50_ns: quantile(figures.p50_ns),
            p99_ns: quantile(figures.p99_ns),
            p999_ns: quantile(figures.p999_ns),
            max_ns: quantile(figures.max_ns),
            msgs_per_s,
            gb_per_s: msgs_per_s * f64::from(size) / 1e9,
            lost: client.lost.saturating_add(agent.lost),
            rejected: client.wrong.saturating_add(agent.wrong),
            verified: client.verified.saturating_add(agent.verified),
            whole: client.whole.saturating_add(agent.whole),
            client_cpu_ns: client.cpu_ns,
            client_cpu_percent: percent(client),
            agent_cpu_ns: agent.cpu_ns,
            agent_cpu_percent: percent(agent),
        }
    }

    /// Whether no block had wrong bytes.
    pub(super) fn is_right(&self) -> bool {
        self.rejected == 0
    }

    /// The heading for people.
    pub(super) fn heading() -> String {
        format!(
            "{:<10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>11} {:>7} {:>9} {:>9} {:>5} {:>5} {:>8} {:>8}",
            "program",
            "size",
            "blocks",
            "p50 ns",
            "p99 ns",
            "p99.9 ns",
            "max ns",
            "msgs/s",
            "GB/s",
            "verified",
            "whole",
            "wrong",
            "lost",
            "client",
            "agent",
        )
    }

    /// The line for people.
    pub(super) fn text(&self) -> String {
        let figure = |figure: Option<u64>| figure.map_or_else(|| "-".to_owned(), |figure| figure.to_string());
        format!(
            "{:<10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>11.0} {:>7.3} {:>9} {:>9} {:>5} {:>5} {:>6.2} % {:>6.2} %",
            self.program,
            self.size,
            self.iterations,
            figure(self.p50_ns),
            figure(self.p99_ns),
            figure(self.p999_ns),
            figure(self.max_ns),
            self.msgs_per_s,
            self.gb_per_s,
            self.verified,
            self.whole,
            self.rejected,
            self.lost,
            self.client_cpu_percent,
            self.agent_cpu_percent,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_block_of_either_end_makes_a_run_wrong() {
        let line = |client_wrong: u64, agent_wrong: u64| {
            let subject = Subject {
                mode: "ping-pong",
                program: "send".to_owned(),
                connect: "manager".to_owned(),
                rdma_connect: "manager",
                size: 64,
            };
            let mut report = ProgramReport::default();
            (report.client.wrong, report.agent.wrong) = (client_wrong, agent_wrong);
            ProgramLine::of(subject, &report)
        };
        assert!(line(0, 0).is_right());
        for wrong in [line(1, 0), line(0, 1), line(u64::MAX, u64::MAX)] {
            assert!(!wrong.is_right() && wrong.rejected > 0);
        }
    }
}
