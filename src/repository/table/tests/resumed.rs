//! A subscription that is lost and found again at any moment, at this publisher or at one that is behind, against the model.

use super::*;

/// Copies of the table as it was, as publishers that are behind have it.
const COPIES_MAX: usize = 4;

/// A table, its copies, and a subscriber of one of them.
struct Outages {
    world: World,
    copies: Vec<Arc<Region>>,
    /// What the subscriber reads.
    memory: Arc<Region>,
    reader: TableReader,
    replica: Replica,
    /// The commits of the last values received, also of keys that were removed.
    last: BTreeMap<Vec<u8>, Sequence>,
}

impl Outages {
    fn new(seed: u64) -> Self {
        let world = World::new(6, 5, seed);
        let (memory, reader) = (Arc::clone(&world.region), world.reader());
        let (replica, last) = Default::default();
        Self { world, copies: Vec::new(), memory, reader, replica, last }
    }

    fn step(&mut self) {
        match self.world.random.below(16) {
            0..=4 => self.world.publish(),
            5 => self.copy(),
            6 => self.resume(true),
            7 => self.resume(false),
            _ => _ = self.receive(),
        }
    }

    fn copy(&mut self) {
        let len = self.world.region.len();
        let copy = Region::allocate(len, Protection::PeersRead).unwrap();
        self.world.region.write_across(0, &copy, 0, len);
        let at = self.world.random.index(COPIES_MAX);
        self.copies.truncate(at);
        self.copies.push(Arc::new(copy));
    }

    /// Goes on with the next subscription.
    fn resume(&mut self, may_be_behind: bool) {
        let behind = self.copies.get(self.world.random.index(COPIES_MAX)).filter(|_| may_be_behind);
        self.memory = Arc::clone(behind.unwrap_or(&self.world.region));
        let newest = Sequence::new(self.memory.load(crate::layout::header::HOT_SEQUENCE));
        let reader = TableReader::new(self.world.writer.geometry(), (Epoch::FIRST, TOPIC), newest);
        let mut before = std::mem::replace(&mut self.reader, reader);
        self.reader.resume(&mut before, true);
        self.replica.granted = newest.get();
    }

    /// Receives once. Returns whether there may be more.
    fn receive(&mut self) -> bool {
        match self.reader.poll(&self.memory).unwrap() {
            None => self.reader.has_more(),
            Some(taken) => {
                let (Verified { meta, payload, .. }, changed) =
                    (self.reader.verified(taken), self.reader.changed());
                if changed.is_present {
                    let last = self.last.insert(payload[..changed.key_len].to_vec(), meta.sequence);
                    assert!(last < Some(meta.sequence), "{payload:?}: {} after {last:?}", meta.sequence);
                }
                self.replica.take(&self.reader, &self.world, taken);
                true
            }
        }
    }
}

#[test]
fn subscriber_has_the_table_after_any_outages() {
    each_seed(amount(500, 50_000), |seed| {
        let mut outages = Outages::new(seed);
        (0..200).for_each(|_| outages.step());
        outages.resume(false);
        while outages.receive() {}
        outages.replica.check(&outages.world.model, |_| true);
        assert_eq!(outages.reader.complete(), outages.world.writer.last());
        outages.world.publish();
        while outages.receive() {}
        outages.replica.check(&outages.world.model, |_| true);
    });
}
