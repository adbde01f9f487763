//! Whether the peer's node runs, as the node's thread sees it from time to time, whatever its subscribers do.
//!
//! The heartbeat in a repository shows it, read in place or one-sidedly, which costs the peer nothing. A session that only pushes has
//! no repository: there the node asks for an empty page of the directory, which the peer's thread answers.

use std::sync::Weak;

use crate::control::AttachmentId;
use crate::fabric::{ByteRange, Completion, FabricError, RemoteRead};
use crate::layout::header::HOT_HEARTBEAT;
use crate::limits::{HEARTBEAT_STALE_NS, PULSE_ASKED_NS, PULSE_READ_NS};
use crate::memory::{Region, WORD};

/// What is known of the peer's node.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    pub(super) heart: Option<(AttachmentId, Heart)>,
    /// The last heartbeat read.
    seen: u64,
    /// The peer has sent something since the last check.
    was_heard: bool,
    /// An answer is awaited.
    pub(super) is_asked: bool,
    checked_ns: Option<u64>,
    /// For how long it has shown nothing.
    still_ns: u64,
    due_ns: u64,
    /// It counts as hung, and the event for that was reported.
    pub(super) is_hung: bool,
    pub(super) is_reported: bool,
}

/// Where the peer's heartbeat is.
#[derive(Debug)]
pub(super) enum Heart {
    /// In a repository on this host, while its subscriber has it.
    Mapped(Weak<Region>),
    /// In a repository on another host. Whether a READ is in flight.
    Fetched(Box<dyn RemoteRead>, bool),
}

impl Pulse {
    /// When to check.
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns.max(1)
    }

    /// Records that the peer has sent something.
    pub(super) fn hear(&mut self) {
        (self.was_heard, self.is_asked) = (true, false);
    }

    /// Records that the peer has sent something, which may not be the answer that is awaited.
    pub(super) fn note_message(&mut self) {
        self.was_heard = true;
    }

    /// Stops reading the repository of this attachment, because it is about to be revoked.
    pub(super) fn forget(&mut self, id: AttachmentId) {
        self.heart.take_if(|(known, _)| *known == id);
    }

    /// Stops reading: the session is over.
    pub(super) fn end(&mut self) {
        self.heart = None;
    }

    /// Checks, if that is due. Returns whether to ask the peer.
    pub(super) fn check(&mut self, now_ns: u64) -> bool {
        if now_ns < self.due_ns {
            return false;
        }
        let was_heard = std::mem::take(&mut self.was_heard);
        let shows = match &mut self.heart {
            Some((_, heart)) => heart.beat(&mut self.seen),
            // Nothing was asked of it.
            None => Some(!self.is_asked),
        };
        if shows.is_none() {
            self.heart = None;
        }
        let step_ns = self.checked_ns.map_or(0, |checked_ns| now_ns.saturating_sub(checked_ns));
        let pause_ns = if self.heart.is_some() { PULSE_READ_NS } else { PULSE_ASKED_NS };
        let is_alive = was_heard || shows != Some(false);
        // A process that stood still itself does not take that time for the peer's: one check proves nothing.
        self.still_ns = if is_alive { 0 } else { self.still_ns + step_ns.min(HEARTBEAT_STALE_NS / 2) };
        // Checks come a little early or late.
        self.is_hung = self.still_ns + pause_ns / 4 >= HEARTBEAT_STALE_NS;
        // All sessions are checked together, so that many of them wake the thread no more often than one.
        let half_ns = pause_ns / 2;
        self.due_ns = (now_ns / half_ns + 2).saturating_mul(half_ns);
        // Not the first time: it has just answered.
        self.checked_ns.replace(now_ns).is_some() && self.heart.is_none() && !self.is_asked
    }
}

impl Heart {
    /// Whether it has beaten since the last time; `None` if that cannot be read any more.
    fn beat(&mut self, seen: &mut u64) -> Option<bool> {
        let heartbeat = match self {
            Self::Mapped(region) => region.upgrade()?.load(HOT_HEARTBEAT),
            Self::Fetched(remote, is_under_way) => fetch(remote.as_mut(), is_under_way).ok()?,
        };
        Some(std::mem::replace(seen, heartbeat) != heartbeat)
    }
}

/// The heartbeat as the last READ found it. Begins the next one.
fn fetch(remote: &mut dyn RemoteRead, is_under_way: &mut bool) -> Result<u64, FabricError> {
    if *is_under_way {
        *is_under_way = remote.poll()? == Completion::Pending;
    }
    let heartbeat = remote.mirror().load(HOT_HEARTBEAT);
    if !*is_under_way {
        let posted = remote.post(&[ByteRange { offset: HOT_HEARTBEAT, len: WORD }])?;
        *is_under_way = posted == Completion::Pending;
    }
    Ok(heartbeat)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::layout::header::BODY_OFFSET;

    const MS: u64 = 1_000_000;

    /// Checks whenever that is due until this time. Returns how often the peer was asked.
    fn run(pulse: &mut Pulse, until_ns: u64, mut act: impl FnMut(&mut Pulse, bool)) -> u32 {
        let mut asked = 0;
        while pulse.due_ns() < until_ns {
            let now_ns = pulse.due_ns();
            let asks = pulse.check(now_ns);
            assert!(pulse.due_ns() > now_ns && pulse.due_ns() <= now_ns + PULSE_ASKED_NS);
            pulse.is_asked |= asks;
            asked += u32::from(asks);
            act(pulse, asks);
        }
        asked
    }

    #[test]
    fn peer_that_does_not_answer_hangs_until_it_does() {
        let mut pulse = Pulse::default();
        let asked = run(&mut pulse, 20_000 * MS, |pulse, asks| {
            assert!(!pulse.is_hung);
            if asks {
                pulse.hear();
            }
        });
        assert!((15..=20).contains(&asked), "{asked}");
        let mut hung_ns = None;
        assert!(
            run(&mut pulse, 60_000 * MS, |pulse, _| {
                hung_ns = hung_ns.or_else(|| pulse.is_hung.then_some(pulse.checked_ns));
            }) <= 1,
            "it is asked once"
        );
        assert!(hung_ns.flatten().is_some_and(|hung_ns| hung_ns <= 23_000 * MS), "{hung_ns:?}");
        pulse.hear();
        run(&mut pulse, 62_000 * MS, |pulse, asks| {
            assert!(!pulse.is_hung);
            if asks {
                pulse.hear();
            }
        });
    }

    #[test]
    fn still_heart_is_noticed_and_costs_no_question() {
        let region = Arc::new(Region::allocate(BODY_OFFSET, crate::memory::Protection::PeersRead).unwrap());
        let heart = Heart::Mapped(Arc::downgrade(&region));
        let mut pulse = Pulse { heart: Some((AttachmentId::new(0), heart)), ..Pulse::default() };
        let mut beats = 0;
        let asked = run(&mut pulse, 10_000 * MS, |pulse, _| {
            beats += 1;
            region.store(HOT_HEARTBEAT, beats);
            assert!(!pulse.is_hung);
        });
        assert!((18..=21).contains(&beats), "{beats}");
        assert_eq!(asked + run(&mut pulse, 12_000 * MS, |_, _| {}), 0);
        assert!(pulse.is_hung);
        region.store(HOT_HEARTBEAT, 1);
        pulse.check(12_500 * MS);
        assert!(!pulse.is_hung);
        // Its subscriber is gone: from now on the peer is asked.
        drop(region);
        assert_eq!(run(&mut pulse, 14_900 * MS, |_, _| {}), 1);
    }

    /// A process that was stopped finds that the heart of its peer has not been read for long.
    #[test]
    fn own_standstill_is_not_the_peers() {
        let mut pulse = Pulse::default();
        run(&mut pulse, 3_000 * MS, |pulse, asks| {
            if asks {
                pulse.hear()
            }
        });
        (pulse.is_asked, pulse.was_heard) = (true, false);
        pulse.check(3_600_000 * MS);
        assert!(pulse.still_ns > 0 && !pulse.is_hung);
        // Its peer is gone on meanwhile.
        pulse.hear();
        pulse.check(pulse.due_ns());
        assert_eq!(pulse.still_ns, 0);
    }
}
