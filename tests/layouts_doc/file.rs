//! Repository files.

use super::*;

#[test]
fn repository_file_is_as_described() {
    let dir = tempfile::tempdir().unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = memory.path().join("file");
    let node = Node::builder().name("layouts-file").unwrap().runtime_dir(dir.path()).open().unwrap();
    let builder = node.state_publisher::<u64>("kept/topic").after(fabricast::Sequence::new(5));
    let mut publisher = builder.warm(&path).open().unwrap();
    assert_eq!(publisher.publish(&1).unwrap().get(), 6);
    let schema = <u64 as Payload>::schema().unwrap().to_json();
    drop(publisher);

    let file = File::open(&path).unwrap();
    let (header, table) = (Table::of("Static header"), Table::of("Repository file"));
    let line = Part { file: &file, offset: 0, table: &header };
    assert_eq!(line.bytes("magic"), b"FBCREPO1");
    let offset = line.number("region length").next_multiple_of(4096);
    let part = Part { file: &file, offset, table: &table };
    let names = [
        "magic",
        "length of the name",
        "length of the schema",
        "sequence before that of the first value",
        "boot",
    ];
    let begin = table.place("name of the topic").0;
    table.assert_covers(begin, &[&names[..], &["CRC-32", "name of the topic"]].concat());
    assert_eq!(part.bytes("magic"), b"FBCFILE1");
    let lens = [part.number(names[1]), part.number(names[2])];
    assert_eq!(lens, ["kept/topic".len() as u64, schema.len() as u64]);
    assert_eq!(part.number(names[3]), 5);
    assert_ne!(part.number("boot"), 0);
    let rest = part.range(begin, begin + lens[0] + lens[1]);
    assert_eq!(rest, [b"kept/topic", &schema[..]].concat());
    let (crc, _) = table.place("CRC-32");
    let checked = [part.range(0, crc), rest].concat();
    assert_eq!(part.number("CRC-32"), u64::from(crc32fast::hash(&checked)));
    let end = offset + begin + lens[0] + lens[1];
    assert_eq!(file.metadata().unwrap().size(), end.next_multiple_of(65536));
}
