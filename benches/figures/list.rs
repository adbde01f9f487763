//! The figures of the pages. To add one, add a `Figure` here, and its marks to the page.

use super::data::Data;
use super::lab::Lab;
use super::page::Block;
use super::{Outcome, benches, latency, programs, streams, verbs};

/// What carries the values that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Fabric {
    /// Shared memory, on this machine
    Shm,
    /// RDMA verbs: the adapter of FABRICAST_VERBS_ADDRESS, or soft-RoCE in a virtual machine
    Verbs,
}

#[derive(Debug)]
pub(crate) struct Figure {
    /// Names of figures over verbs begin with `verbs-`: tools/bench goes by that.
    pub(crate) name: &'static str,
    pub(crate) fabric: Fabric,
    /// What it shows.
    pub(crate) about: &'static str,
    /// Adds the samples of one round.
    pub(crate) measure: fn(&mut Lab) -> Outcome<()>,
    /// What the pages show of the samples.
    pub(crate) show: fn(&Data) -> Vec<Block>,
}

pub(crate) const FIGURES: &[Figure] = &[
    Figure {
        name: "latency",
        fabric: Fabric::Shm,
        about: "round trips of pull, push and notify by size",
        measure: latency::measure,
        show: latency::show,
    },
    Figure {
        name: "parts",
        fabric: Fabric::Shm,
        about: "the parts of a publish and a receive",
        measure: benches::measure_parts,
        show: benches::show_parts,
    },
    Figure {
        name: "payload",
        fabric: Fabric::Shm,
        about: "encoding with and without the check of the schema",
        measure: benches::measure_payload,
        show: benches::show_payload,
    },
    Figure {
        name: "subscribers",
        fabric: Fabric::Shm,
        about: "the publisher's processor time by subscribers",
        measure: benches::measure_subscribers,
        show: benches::show_subscribers,
    },
    Figure {
        name: "throughput",
        fabric: Fabric::Shm,
        about: "streams by size, beside a bare and a checked ring",
        measure: streams::measure_throughput,
        show: streams::show_throughput,
    },
    Figure {
        name: "commits",
        fabric: Fabric::Shm,
        about: "streams by batch, lapped and in place, beside a bare ring",
        measure: streams::measure_commits,
        show: streams::show_commits,
    },
    Figure {
        name: "policies",
        fabric: Fabric::Shm,
        about: "streams whose publisher waits for slow subscribers",
        measure: streams::measure_policies,
        show: streams::show_policies,
    },
    Figure {
        name: "wake",
        fabric: Fabric::Shm,
        about: "one way to a subscriber that sleeps",
        measure: latency::measure_wake,
        show: latency::show_wake,
    },
    Figure {
        name: "table",
        fabric: Fabric::Shm,
        about: "puts and changes by the keys of a table",
        measure: benches::measure_table,
        show: benches::show_table,
    },
    Figure {
        name: "feed",
        fabric: Fabric::Shm,
        about: "events beside a log and a table",
        measure: benches::measure_feed,
        show: benches::show_feed,
    },
    Figure {
        name: "node",
        fabric: Fabric::Shm,
        about: "the node's thread by topics and sessions",
        measure: benches::measure_node,
        show: benches::show_node,
    },
    Figure {
        name: "verbs-latency",
        fabric: Fabric::Verbs,
        about: "round trips of pull, push and notify by size",
        measure: verbs::measure_latency,
        show: verbs::show_latency,
    },
    Figure {
        name: "verbs-throughput",
        fabric: Fabric::Verbs,
        about: "streams by size, beside perftest",
        measure: verbs::measure_throughput,
        show: verbs::show_throughput,
    },
    Figure {
        name: "verbs-perftest",
        fabric: Fabric::Verbs,
        about: "deliveries and wake-ups beside perftest (tools/perf-verbs)",
        measure: verbs::measure_perftest,
        show: verbs::show_perftest,
    },
    Figure {
        name: "verbs-programs",
        fabric: Fabric::Verbs,
        about: "programs of one queue pair beside perftest (tools/perf-programs)",
        measure: programs::measure,
        show: programs::show,
    },
];
