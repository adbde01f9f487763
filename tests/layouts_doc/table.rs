//! The memory of a table, and of a landing region of it.

use std::time::Duration;

use super::*;

/// Two pages; the last cells never have a key.
pub(super) const CAPACITY: u64 = 520;
const KEYS: u64 = 515;
const PAGE_CELLS: u64 = 512;
const KEY_LEN_MAX: u64 = 16;

type Pair = (String, Option<Value>);

/// The cells of a table, in a repository or a landing region.
pub(super) struct Cells<'a> {
    file: &'a File,
    /// The static header of the repository.
    line: &'a Part<'a>,
    slot: Table,
    versions: u64,
    slots: u64,
}

/// A slot's stamp, which names the slot, and its entry.
#[derive(Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) stamp: u64,
    pub(super) number: u64,
    pub(super) added: u64,
    pub(super) published_ns: u64,
    pub(super) pair: Pair,
}

/// A part of a stamp.
pub(super) fn stamp_part(stamp: u64, name: &str) -> u64 {
    let (_, section) = PAGE.split_once("\n## Version\n").unwrap();
    let row = section.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let (bits, _) = row.into_iter().find(|(_, field)| field.starts_with(&format!("{name}:"))).unwrap();
    let (first, last) = bits.split_once(" to ").unwrap_or((bits, bits));
    let [first, last]: [u32; 2] = [first, last].map(|bit| bit.parse().unwrap());
    stamp << (63 - last) >> (63 - last + first)
}

fn encoded(pair: &Pair) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    let len = Pair::encode(pair, &Pair::schema().unwrap(), &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

impl<'a> Cells<'a> {
    pub(super) fn new(file: &'a File, line: &'a Part<'a>) -> Self {
        let pages = Table::of("Region").place("pages of a table topic").0;
        let versions = (pages + CAPACITY.div_ceil(PAGE_CELLS) * 16).next_multiple_of(LINE);
        let slots = (versions + CAPACITY * 8).next_multiple_of(LINE);
        Self { file, line, slot: Table::of("Table slot"), versions, slots }
    }

    fn version(&self, cell: u64) -> u64 {
        u64::from_le_bytes(read(self.file, self.versions + cell * 8, 8).try_into().unwrap())
    }

    /// The entry in a slot of a cell, checked; `None` if the slot was never written.
    pub(super) fn entry(&self, cell: u64, slot: u64) -> Option<Entry> {
        let stride = self.line.number("third parameter");
        let part =
            Part { file: self.file, offset: self.slots + (2 * cell + slot) * stride, table: &self.slot };
        let stamp = part.number("stamp");
        if stamp == 0 {
            assert!(part.range(0, stride).iter().all(|byte| *byte == 0));
            return None;
        }
        assert_eq!(stamp_part(stamp, "slot"), slot);
        let (len, begin) = (part.number("entry length"), self.slot.place("entry").0);
        let padded = part.range(begin, begin + len.next_multiple_of(16));
        let (bytes, padding) = padded.split_at(usize::try_from(len).unwrap());
        assert!(padding.iter().all(|byte| *byte == 0));
        let head = [cell.to_le_bytes(), stamp.to_le_bytes()].concat();
        let check = crc(&[
            &self.line.bytes("topic"),
            &self.line.bytes("epoch"),
            &head,
            &part.range(0x10, 0x30),
            &padded,
        ]);
        assert_eq!((part.number("CRC-32"), part.range(0x0c, 0x10)), (check, vec![0; 4]), "cell {cell}");
        let pair = Pair::decode(bytes).unwrap();
        assert_eq!((encoded(&pair).as_slice(), part.number("key length")), (bytes, 8 + pair.0.len() as u64));
        let presence = bytes[usize::try_from(part.number("key length")).unwrap()];
        assert_eq!(presence, u8::from(pair.1.is_some()));
        let (number, added) = (part.number("number"), part.number("added"));
        Some(Entry { stamp, number, added, published_ns: part.number("time of publishing"), pair })
    }

    /// The newest entry of each key, with its cell.
    pub(super) fn newest(&self) -> BTreeMap<String, (u64, Entry)> {
        let versions =
            (0..CAPACITY).map(|cell| (cell, self.version(cell))).filter(|(_, version)| *version != 0);
        let entries = versions.map(|(cell, version)| {
            let entry = self.entry(cell, stamp_part(version, "slot")).unwrap();
            assert_eq!(entry.stamp, version, "cell {cell}");
            (entry.pair.0.clone(), (cell, entry))
        });
        entries.collect()
    }
}

fn value(number: u64) -> Value {
    (number, "x".repeat(usize::try_from(number % 60).unwrap()))
}

/// Puts, puts many, rewrites a key in one commit, removes one, and gives its cell to another one.
fn publish(publisher: &mut TablePublisher<String, Value>) {
    publisher.put("k0", &value(1)).unwrap();
    let batch: Vec<(String, Value)> = (0..KEYS).map(|key| (format!("k{key}"), value(key))).collect();
    publisher.put_batch(batch.iter().map(|(key, value)| (key.as_str(), value))).unwrap();
    (1..=3).for_each(|number| publisher.stage("k1", &value(number)).unwrap());
    publisher.commit();
    publisher.remove("k514").unwrap();
    publisher.put("new", &value(5)).unwrap();
    publisher.put("k2", &value(6)).unwrap();
}

fn assert_headers(line: &Part<'_>, file: &File, slots: u64) {
    let stride = line.number("third parameter");
    let header = Table::of("Table slot").place("entry").0;
    assert_eq!(stride, (header + PAYLOAD_LEN_MAX.next_multiple_of(8)).next_multiple_of(LINE));
    let numbers = [
        ("layout version", 3),
        ("kind of topic", 2),
        ("largest payload", PAYLOAD_LEN_MAX),
        ("region length", slots + 2 * CAPACITY * stride),
        ("first parameter", CAPACITY),
        ("second parameter", KEY_LEN_MAX),
        ("fourth parameter", 0),
    ];
    line.assert_numbers(2 * LINE, &numbers);
    assert_hot_line(file, line.number("epoch"));
}

fn assert_hot_line(file: &File, epoch: u64) {
    let table = Table::of("Table hot line");
    let hot = Part { file, offset: Table::of("Region").place("hot line").0, table: &table };
    let names =
        ["newest sequence that was committed", "keys", "heartbeat", "epoch", "time of the last commit"];
    table.assert_covers(LINE, &names);
    let numbers = [("newest sequence that was committed", 6), ("keys", KEYS), ("epoch", epoch)];
    hot.assert_numbers(LINE, &numbers);
    for time in ["heartbeat", "time of the last commit"] {
        assert!(hot.number(time) > 1_577_836_800_000_000_000);
    }
}

/// Both pages, of which the last one has the cell that got another key.
fn assert_pages(file: &File) {
    let table = Table::of("Page");
    table.assert_covers(16, &["last change", "last change of keys"]);
    for (page, words) in [[6, 2], [5, 5]].iter().enumerate() {
        let offset = Table::of("Region").place("pages of a table topic").0 + page as u64 * 16;
        let page = Part { file, offset, table: &table };
        assert_eq!([page.number("last change"), page.number("last change of keys")], *words);
    }
}

/// The landing region of this length, which has no static header.
fn landing(len: u64, epoch: u64) -> File {
    let hot = Table::of("Region").place("hot line").0 + Table::of("Table hot line").place("epoch").0;
    let is_sought = |file: &File| {
        let mut found = [[0; 8]; 2];
        let [magic, named] = &mut found;
        let is_read = file.read_exact_at(magic, 0).and_then(|()| file.read_exact_at(named, hot));
        let is_long = file.metadata().is_ok_and(|metadata| metadata.len() >= len);
        is_long && is_read.is_ok() && found == [[0; 8], epoch.to_le_bytes()]
    };
    memory_files().find(is_sought).expect("the landing region among the open files")
}

#[test]
fn the_page_describes_the_memory_of_a_table_and_of_its_landing_regions() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::builder().name("tables").unwrap().runtime_dir(dir.path()).open().unwrap();
    let builder = node.table_publisher::<String, Value>("a/table").payload_len_max(100);
    let mut publisher = builder.capacity(520).key_len_max(16).open().unwrap();
    let mut subscriber = node.table_subscriber::<String, Value>("shm:tables/a/table").push().open().unwrap();
    publish(&mut publisher);

    let (file, static_header) = (repository("a/table"), Table::of("Static header"));
    let line =
        Part { file: &file, offset: Table::of("Region").place("static header").0, table: &static_header };
    let cells = Cells::new(&file, &line);
    let names =
        ["stamp", "CRC-32", "entry length", "key length", "number", "added", "time of publishing", "entry"];
    cells.slot.assert_covers(0x30, &names);
    assert_headers(&line, &file, cells.slots);
    assert_pages(&file);

    let newest = cells.newest();
    assert_eq!(newest.len() as u64, KEYS);
    let facts = |entry: &Entry| {
        let [sequence, revision] = ["sequence", "revision"].map(|name| stamp_part(entry.stamp, name));
        [sequence, revision, entry.number, entry.added]
    };
    for (key, expected) in
        [("k0", [2, 2, 2, 1]), ("k1", [3, 4, 4, 2]), ("k2", [6, 2, 2, 2]), ("k3", [2, 1, 1, 2])]
    {
        assert_eq!(facts(&newest[key].1), expected, "{key}");
    }
    // The removed key's cell has another key; its other slot, the removal.
    let (cell, entry) = &newest["new"];
    assert_eq!((facts(entry), entry.pair.1.as_ref()), ([5, 3, 1, 5], Some(&value(5))));
    let removal = cells.entry(*cell, 1 - stamp_part(entry.stamp, "slot")).unwrap();
    assert_eq!((facts(&removal), removal.pair), ([4, 2, 2, 2], ("k514".to_owned(), None)));
    let (cell, entry) = &newest["k3"];
    assert_eq!(
        (stamp_part(entry.stamp, "slot"), cells.entry(*cell, 0)),
        (1, None),
        "the first entry of a cell"
    );
    for cell in KEYS..CAPACITY {
        assert_eq!((cells.version(cell), cells.entry(cell, 0), cells.entry(cell, 1)), (0, None, None));
    }

    let mut last = 0;
    while last < 6 {
        let change = subscriber.receive_timeout(Duration::from_secs(30)).unwrap().expect("a change");
        last = last.max(change.meta.sequence.get());
    }
    let epoch = line.number("epoch");
    let landing = landing(line.number("region length"), epoch);
    assert_hot_line(&landing, epoch);
    assert_pages(&landing);
    assert_eq!(Cells::new(&landing, &line).newest(), newest);
}
