//! What a publisher writes down before it publishes, in a file that outlives it: the next one continues from there.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::value::Value;

/// The numbers of a publisher, in a file of seven words.
#[derive(Debug)]
pub(crate) struct Ledger {
    file: File,
    /// The epoch of its topics.
    pub(crate) epoch: u64,
    /// The number of the last value before this epoch.
    pub(crate) base: u64,
    /// The last sequence that it was about to publish to each topic but the feed.
    pub(crate) newest: u64,
    /// The epoch of the feed.
    pub(crate) feed_epoch: u64,
    /// The last event that it was about to publish.
    pub(crate) event: u64,
}

/// Events that a publisher of the same epoch repeats at most.
const REPEATED_MAX: u64 = 300;

impl Ledger {
    /// Opens the ledger of this name, and begins another epoch or continues the last one.
    pub(crate) fn open(dir: &Path, name: &str, begins_anew: bool) -> Self {
        let path = dir.join(format!("{name}.ledger"));
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.expect("a file");
        let mut bytes = [0; 40];
        if file.read_exact_at(&mut bytes, 0).is_err() {
            bytes = [0; 40];
        }
        let (words, _) = bytes.as_chunks::<8>();
        let [epoch, base, newest, feed_epoch, event] =
            words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<_>>()[..]
        else {
            unreachable!("there are five words")
        };
        let mut ledger = Self { file, epoch, base, newest, feed_epoch, event };
        if begins_anew || epoch == 0 {
            (ledger.epoch, ledger.base, ledger.newest) = (epoch + 1, base + newest, 0);
        }
        if begins_anew || feed_epoch == 0 || event > REPEATED_MAX {
            (ledger.feed_epoch, ledger.event) = (feed_epoch + 1, 0);
        }
        ledger.write();
        ledger
    }

    /// Begins the next value, and the next event with each eighth. Returns whether there is an event.
    pub(crate) fn advance(&mut self) -> (Value, bool) {
        self.newest += 1;
        let has_event = self.newest.is_multiple_of(8);
        self.event += u64::from(has_event);
        self.write();
        (Value::new(self.base + self.newest, self.epoch, self.newest), has_event)
    }

    fn write(&self) {
        let words = [self.epoch, self.base, self.newest, self.feed_epoch, self.event];
        self.file.write_all_at(bytemuck::cast_slice(&words.map(u64::to_le)), 0).expect("room for a page");
    }
}
