use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::id::Sequence;

/// What was received of each key, each at a place of its own. Places and their memory are used again.
#[derive(Debug, Default)]
pub(super) struct KnownKeys {
    places: HashTable<u32>,
    known: Vec<KnownKey>,
    free: Vec<u32>,
    hasher: DefaultHashBuilder,
}

/// What was received of a key.
#[derive(Debug)]
pub(super) struct KnownKey {
    pub(super) key: Vec<u8>,
    pub(super) life: KeyLife,
}

/// The life of a key, and its newest value.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyLife {
    /// The commit that added it.
    pub(super) added: Sequence,
    /// The commit of its value.
    pub(super) sequence: Sequence,
    /// How often it had changed.
    pub(super) number: u64,
    /// The line that brought its first value.
    pub(super) line: usize,
    /// It has a value. Otherwise it was removed, and so were all lives up to this one.
    pub(super) is_present: bool,
}

impl KnownKeys {
    /// Returns the place of a key.
    pub(super) fn find(&self, key: &[u8]) -> Option<u32> {
        let has = |place: &u32| self.known.get(*place as usize).is_some_and(|known| known.key == key);
        self.places.find(self.hasher.hash_one(key), has).copied()
    }

    /// Returns what was received of the key at a place.
    pub(super) fn get(&mut self, place: u32) -> Option<&mut KnownKey> {
        self.known.get_mut(place as usize)
    }

    /// Returns the places of all keys. Allocates.
    pub(super) fn places(&self) -> Vec<u32> {
        self.places.iter().copied().collect()
    }

    /// Adds a key that is not known. Returns its place.
    pub(super) fn insert(&mut self, key: &[u8], life: KeyLife) -> u32 {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.known.push(KnownKey { key: Vec::new(), life });
                u32::try_from(self.known.len() - 1).unwrap_or(u32::MAX)
            }
        };
        if let Some(known) = self.known.get_mut(place as usize) {
            known.key.clear();
            known.key.extend_from_slice(key);
            known.life = life;
        }
        let Self { places, known, hasher, .. } = self;
        let rehash = |place: &u32| known.get(*place as usize).map_or(0, |known| hasher.hash_one(&*known.key));
        places.insert_unique(hasher.hash_one(key), place, rehash);
        place
    }

    /// Forgets the key at a place.
    pub(super) fn remove(&mut self, place: u32) {
        let Some(known) = self.known.get(place as usize) else { return };
        let hash = self.hasher.hash_one(&*known.key);
        if let Ok(found) = self.places.find_entry(hash, |other| *other == place) {
            found.remove();
            self.free.push(place);
        }
    }

    /// Returns for how many keys it holds memory.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.known.len()
    }
}
