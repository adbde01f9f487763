use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::{ByteRange, Completion, FabricError, RemoteRead};
use crate::layout::progress::{PROGRESS_LEN, Progress, SEEN};
use crate::memory::Region;

/// A subscriber's progress slot, which lies in the subscriber's memory: read in place, or with one-sided reads.
///
/// Nothing in it is trusted.
#[derive(Debug)]
pub(crate) struct ProgressSlot {
    /// The slot, or a copy of it.
    mirror: Arc<Region>,
    /// What brings the copy up to date; `None` for the slot itself, and once it is not read any more.
    remote: Mutex<Option<Fetching>>,
    is_mapped: bool,
}

/// A reader of a slot on another host.
#[derive(Debug)]
struct Fetching {
    remote: Box<dyn RemoteRead>,
    is_under_way: bool,
    /// The attachment has ended: no other read begins.
    is_last: bool,
}

impl ProgressSlot {
    /// Reads the slot with this.
    pub(crate) fn new(remote: Box<dyn RemoteRead>) -> Self {
        let (mirror, is_mapped) = (Arc::clone(remote.mirror()), remote.is_mapped());
        let fetching = (!is_mapped).then_some(Fetching { remote, is_under_way: false, is_last: false });
        Self { mirror, remote: Mutex::new(fetching), is_mapped }
    }

    /// Takes the result of the last read, and begins the next one. Never waits; one branch if the slot is mapped.
    #[inline]
    pub(super) fn refresh(&self) {
        if !self.is_mapped {
            self.fetch();
        }
    }

    #[cold]
    fn fetch(&self) {
        // Another thread that holds it does the same.
        let Some(mut held) = self.remote.try_lock() else { return };
        let Some(fetching) = held.as_mut().filter(|fetching| !fetching.is_last) else { return };
        let mut completion = fetching.poll();
        if matches!(completion, Ok(Completion::Done)) {
            completion = fetching.remote.post(&[ByteRange { offset: 0, len: PROGRESS_LEN }]);
        }
        match completion {
            Ok(completion) => fetching.is_under_way = completion == Completion::Pending,
            // The session reports a lost connection; until then the last copy counts.
            Err(_) => *held = None,
        }
    }

    /// Begins no other read. Returns [`Completion::Done`] once none is in flight, so that the subscriber may withdraw the slot; otherwise
    /// call it again. A lost answer has the device repeat a READ: if the slot was withdrawn by then, the connection would fail.
    pub(super) fn retire(&self) -> Completion {
        let mut held = self.remote.lock();
        let Some(fetching) = held.as_mut() else { return Completion::Done };
        fetching.is_last = true;
        if matches!(fetching.poll(), Ok(Completion::Pending)) {
            return Completion::Pending;
        }
        *held = None;
        Completion::Done
    }

    /// Reads it no more, nor waits for the read in flight: the session is over.
    pub(super) fn close(&self) {
        drop(self.remote.lock().take());
    }

    /// What it says.
    pub(super) fn progress(&self) -> Progress {
        Progress::load(&self.mirror)
    }

    /// Up to which position frames are released.
    #[inline]
    pub(super) fn released(&self) -> u64 {
        // Acquire: pairs with the Release in `Progress::store`: the frames were copied before the publisher overwrites them.
        self.mirror.load_acquire(crate::layout::progress::RELEASED)
    }

    /// A number that changes while the subscriber's node runs.
    pub(super) fn seen(&self) -> u64 {
        self.mirror.load(SEEN)
    }
}

impl Fetching {
    /// Whether the read in flight, if any, is complete.
    fn poll(&mut self) -> Result<Completion, FabricError> {
        if self.is_under_way {
            let completion = self.remote.poll()?;
            self.is_under_way = completion == Completion::Pending;
        }
        Ok(if self.is_under_way { Completion::Pending } else { Completion::Done })
    }
}
