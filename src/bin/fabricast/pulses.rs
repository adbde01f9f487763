//! Whether publishers that push hang: where they are followed no heartbeat can be read, but the node notices.

use std::sync::{Mutex, MutexGuard, PoisonError};

use fabricast::{Event, EventSink, Liveness, NodeName, Target};

/// What the events of a node say of the publishers that it follows. They are also logged, as without a sink.
#[derive(Debug)]
pub(crate) struct Pulses(Mutex<Vec<Pulse>>);

/// What is known of a publisher.
#[derive(Debug)]
struct Pulse {
    /// Its topic, as events name it.
    target: String,
    /// The name of its node, and its process, if they are known.
    node: Option<NodeName>,
    process: Option<u32>,
    is_hung: bool,
}

impl Pulses {
    /// Those of the publishers of these topics.
    pub(crate) fn of<'a>(targets: impl IntoIterator<Item = &'a Target>) -> Self {
        let pulse = |target: &Target| Pulse {
            target: target.to_string(),
            node: target.address.node(),
            process: None,
            is_hung: false,
        };
        Self(Mutex::new(targets.into_iter().map(pulse).collect()))
    }

    /// Records the node and process that publish a topic, given by its place.
    pub(crate) fn identify(&self, place: usize, publisher: Option<(NodeName, u32)>) {
        if let Some(pulse) = self.lock().get_mut(place) {
            (pulse.node, pulse.process) = publisher.unzip();
        }
    }

    /// Whether the publisher of a topic is alive.
    pub(crate) fn liveness(&self, place: usize) -> Option<Liveness> {
        self.lock().get(place).map(|pulse| if pulse.is_hung { Liveness::Hung } else { Liveness::Live })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Pulse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pulse {
    /// Whether it may be that of this publisher.
    fn may_be(&self, peer: &NodeName, process: u32) -> bool {
        self.node.as_ref().is_none_or(|node| node == peer)
            && self.process.is_none_or(|known| known == process)
    }
}

impl EventSink for Pulses {
    fn event(&self, event: &Event) {
        log(event);
        let mut pulses = self.lock();
        match event {
            Event::Hung { peer, process } | Event::Recovered { peer, process } => {
                let is_hung = matches!(event, Event::Hung { .. });
                let of_peer = pulses.iter_mut().filter(|pulse| pulse.may_be(peer, *process));
                of_peer.for_each(|pulse| pulse.is_hung = is_hung);
            }
            // A session that ends while its publisher hangs has no event of a recovery, and one that begins has an answer.
            Event::Reconnected { target, .. }
            | Event::Lost { target, .. }
            | Event::Resumed { target, .. }
            | Event::Restarted { target, .. } => {
                let of_target = pulses.iter_mut().filter(|pulse| pulse.target == *target);
                of_target.for_each(|pulse| pulse.is_hung = false);
            }
            _ => {}
        }
    }
}

/// Writes an event to the log, at the level that it has in the log of a node.
fn log(event: &Event) {
    match event {
        Event::Hung { .. } | Event::Trouble { .. } => tracing::warn!(target: "fabricast", ?event),
        Event::NodeFailed { .. } => tracing::error!(target: "fabricast", ?event),
        Event::Recovered { .. }
        | Event::Reconnected { .. }
        | Event::Lost { .. }
        | Event::Resumed { .. }
        | Event::Restarted { .. } => tracing::info!(target: "fabricast", ?event),
        // The others concern subscribers, of which this node has none.
        _ => tracing::debug!(target: "fabricast", ?event),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "rdma://10.0.0.1/t";
    const B: &str = "rdma://10.0.0.2/t";

    fn of(targets: &[&str]) -> Pulses {
        let targets: Vec<Target> = targets.iter().map(|target| target.parse().unwrap()).collect();
        Pulses::of(&targets)
    }

    fn name(node: &str) -> NodeName {
        node.parse().unwrap()
    }

    fn hangs(pulses: &Pulses, node: &str, process: u32) {
        pulses.event(&Event::Hung { peer: name(node), process });
    }

    fn are_hung(pulses: &Pulses) -> Vec<bool> {
        (0..).map_while(|place| pulses.liveness(place)).map(|it| it == Liveness::Hung).collect()
    }

    #[test]
    fn node_of_this_host_is_known_by_its_name() {
        let pulses = of(&["shm:a/t", "shm:b/t"]);
        hangs(&pulses, "b", 1);
        assert_eq!(are_hung(&pulses), [false, true]);
        pulses.event(&Event::Recovered { peer: name("a"), process: 1 });
        assert_eq!(are_hung(&pulses), [false, true]);
        pulses.event(&Event::Recovered { peer: name("b"), process: 1 });
        assert_eq!(are_hung(&pulses), [false, false]);
    }

    #[test]
    fn nodes_of_other_hosts_are_told_apart_once_they_are_known() {
        let pulses = of(&[A, B]);
        hangs(&pulses, "feed", 7);
        assert_eq!(are_hung(&pulses), [true, true]);
        pulses.event(&Event::Recovered { peer: name("feed"), process: 7 });
        pulses.identify(0, Some((name("feed"), 7)));
        pulses.identify(1, Some((name("feed"), 8)));
        hangs(&pulses, "feed", 8);
        assert_eq!(are_hung(&pulses), [false, true]);
        // The next one of the line is not known yet.
        pulses.identify(1, None);
        hangs(&pulses, "other", 9);
        assert_eq!(are_hung(&pulses), [false, true]);
    }

    #[test]
    fn lost_publisher_does_not_hang_nor_does_one_that_is_found() {
        let target = A.parse::<Target>().unwrap().to_string();
        let reason = String::new;
        for event in [
            Event::Lost { target: target.clone(), reason: reason() },
            Event::Reconnected { target: target.clone(), reason: reason() },
        ] {
            let pulses = of(&[A, B]);
            hangs(&pulses, "feed", 7);
            pulses.event(&event);
            assert_eq!(are_hung(&pulses), [false, true]);
        }
    }
}
