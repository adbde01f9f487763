//! The subscribers of a topic, for `info`.

use std::io::{self, Write};
use std::time::Duration;

use fabricast::{Delivery, Node, NodeName, ProgressListing, SlowPolicy, SubscriberListing, Target};
use serde::Serialize;

use super::failure::Failure;
use super::output::{shown, table};

/// The subscribers of a topic.
#[derive(Debug, Serialize)]
pub(crate) struct Subscribers {
    /// How many there are.
    count: usize,
    /// Those that the node describes, the slowest first.
    listed: Vec<Row>,
}

/// A subscriber. What it does not report is null.
#[derive(Debug, Serialize)]
struct Row {
    node: NodeName,
    process: u32,
    delivery: Delivery,
    policy: Option<SlowPolicy>,
    gating: Option<bool>,
    sequence: Option<u64>,
    lag: Option<u64>,
    received: Option<u64>,
    lost: Option<u64>,
    retries: Option<u64>,
    rejected: Option<u64>,
    unseen_ns: Option<u64>,
}

impl Subscribers {
    /// Asks the node of this topic.
    pub(crate) fn of(node: &Node, target: &Target) -> Result<Self, Failure> {
        let list = node.subscribers(target.clone())?;
        let listed = list.subscribers.into_iter().map(Row::of).collect();
        Ok(Self { count: list.count, listed })
    }

    /// Writes them as a table, if there are any.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        writeln!(out)?;
        let head = ["SUBSCRIBER", "PID", "VIA", "POLICY", "SEQUENCE", "LAG", "LOST", "RETRIES", "SEEN"]
            .map(str::to_owned);
        let rows = std::iter::once(head).chain(self.listed.iter().map(Row::cells));
        table(out, &rows.collect::<Vec<_>>())?;
        match self.count.saturating_sub(self.listed.len()) {
            0 => Ok(()),
            more => writeln!(out, "and {more} more"),
        }
    }
}

impl Row {
    fn of(listing: SubscriberListing) -> Self {
        let SubscriberListing { node, process, delivery, progress, .. } = listing;
        let of = |field: fn(&ProgressListing) -> u64| progress.as_ref().map(field);
        Self {
            node,
            process,
            delivery,
            policy: progress.map(|progress| progress.policy),
            gating: progress.map(|progress| progress.is_gating),
            sequence: of(|progress| progress.last.get()),
            lag: of(|progress| progress.lag),
            received: of(|progress| progress.received),
            lost: of(|progress| progress.lost),
            retries: of(|progress| progress.retries),
            rejected: of(|progress| progress.rejected),
            unseen_ns: of(|progress| u64::try_from(progress.unseen.as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    fn cells(&self) -> [String; 9] {
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let policy = match (self.policy, self.gating) {
            (None, _) => "-".to_owned(),
            (Some(SlowPolicy::Lap), _) | (Some(_), Some(true)) => {
                self.policy.map_or_else(String::new, |policy| policy.to_string())
            }
            (Some(policy), _) => format!("{policy} (let go)"),
        };
        let seen = self.unseen_ns.map_or_else(|| "-".to_owned(), |ns| shown(Duration::from_nanos(ns)));
        [
            self.node.to_string(),
            self.process.to_string(),
            self.delivery.to_string(),
            policy,
            number(self.sequence),
            number(self.lag),
            number(self.lost),
            number(self.retries),
            seen,
        ]
    }
}
