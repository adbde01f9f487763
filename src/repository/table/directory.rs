use std::fmt;
use std::hash::{BuildHasher, Hasher};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::layout::WORD;

/// Bytes before a key: its length.
const LEN_LEN: usize = size_of::<u16>();

/// The key of each cell, and the cell of each key. Allocates only when created.
pub(super) struct Directory {
    /// For each cell its key, after the key's length. Pages of memory that hold no key are never touched.
    keys: Box<[u8]>,
    stride: usize,
    /// The cells that have keys.
    cells: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Directory {
    /// Creates a directory of this many cells without keys.
    pub(super) fn new(capacity: usize, key_len_max: usize) -> Self {
        let stride = (LEN_LEN + key_len_max).next_multiple_of(WORD);
        let hasher = DefaultHashBuilder::default();
        Self {
            keys: vec![0; capacity * stride].into(),
            stride,
            cells: HashTable::with_capacity(capacity),
            hasher,
        }
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Returns the cell of this key.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<usize> {
        let hash = hash_of(&self.hasher, key);
        self.cells.find(hash, |cell| self.key(*cell as usize) == key).map(|cell| *cell as usize)
    }

    /// Returns the last key of this cell, even if it was removed.
    #[inline]
    pub(super) fn key(&self, cell: usize) -> &[u8] {
        key_at(&self.keys, self.stride, cell)
    }

    /// Returns whether this cell is that of its last key.
    #[inline]
    pub(super) fn has(&self, cell: usize) -> bool {
        self.find(self.key(cell)) == Some(cell)
    }

    /// Returns the cells that have keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.cells.iter().map(|cell| *cell as usize)
    }

    /// Gives a cell this key, which no cell has.
    pub(super) fn insert(&mut self, cell: usize, key: &[u8]) {
        self.remove(cell);
        let Some(held) = self.keys.get_mut(cell * self.stride..(cell + 1) * self.stride) else { return };
        let (Some((len, room)), Ok(key_len)) =
            (held.split_first_chunk_mut::<LEN_LEN>(), u16::try_from(key.len()))
        else {
            return;
        };
        let Some(room) = room.get_mut(..key.len()) else { return };
        room.copy_from_slice(key);
        *len = key_len.to_le_bytes();
        self.restore(cell);
    }

    /// Gives a cell its last key again, which no cell has.
    pub(super) fn restore(&mut self, cell: usize) {
        let Self { keys, stride, cells, hasher } = self;
        let of_cell = |cell: &u32| hash_of(hasher, key_at(keys, *stride, *cell as usize));
        // A capacity has 24 bits.
        let cell = u32::try_from(cell).unwrap_or(u32::MAX);
        cells.insert_unique(of_cell(&cell), cell, of_cell);
    }

    /// Takes the key of this cell away.
    pub(super) fn remove(&mut self, cell: usize) {
        let hash = hash_of(&self.hasher, self.key(cell));
        if let Ok(found) = self.cells.find_entry(hash, |found| *found as usize == cell) {
            found.remove();
        }
    }
}

#[inline]
fn hash_of(hasher: &DefaultHashBuilder, key: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(key);
    hasher.finish()
}

#[inline]
fn key_at(keys: &[u8], stride: usize, cell: usize) -> &[u8] {
    let held = keys.get(cell * stride..).unwrap_or_default();
    let Some((len, key)) = held.split_first_chunk::<LEN_LEN>() else { return &[] };
    key.get(..u16::from_le_bytes(*len).into()).unwrap_or_default()
}

impl fmt::Debug for Directory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Directory").field("len", &self.len()).finish_non_exhaustive()
    }
}
