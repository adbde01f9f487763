use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::{ByteRange, Completion, RemoteRead};
use crate::layout::progress::{PROGRESS_LEN, Progress, SEEN};
use crate::memory::Region;

/// A subscriber's progress slot, which lies in the subscriber's memory: read in place, or with one-sided reads.
///
/// Nothing in it is trusted.
#[derive(Debug)]
pub(crate) struct ProgressSlot {
    /// The slot, or a copy of it.
    mirror: Arc<Region>,
    /// What brings the copy up to date; `None` for the slot itself, and after the end of the attachment.
    remote: Mutex<Option<Fetching>>,
    is_mapped: bool,
}

/// A reader of a slot on another host.
#[derive(Debug)]
struct Fetching {
    remote: Box<dyn RemoteRead>,
    is_under_way: bool,
}

impl ProgressSlot {
    /// Reads the slot with this.
    pub(crate) fn new(remote: Box<dyn RemoteRead>) -> Self {
        let (mirror, is_mapped) = (Arc::clone(remote.mirror()), remote.is_mapped());
        let fetching = (!is_mapped).then_some(Fetching { remote, is_under_way: false });
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
        let Some(Fetching { remote, is_under_way }) = held.as_mut() else { return };
        let range = ByteRange { offset: 0, len: PROGRESS_LEN };
        let mut completion = if *is_under_way { remote.poll() } else { Ok(Completion::Done) };
        if matches!(completion, Ok(Completion::Done)) {
            completion = remote.post(&[range]);
        }
        match completion {
            Ok(completion) => *is_under_way = completion == Completion::Pending,
            // The session reports a lost connection; until then the last copy counts.
            Err(_) => *held = None,
        }
    }

    /// Reads it no more: the subscriber is about to withdraw it.
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
