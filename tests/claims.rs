//! Values filled in place: committed ones are received, and no others are published.

use fabricast::{Node, Pod, PublishError, Raw};

/// Longer than what is gathered before it is copied.
type Levels = [[u32; 20]; 30];

const LEVELS: [u8; 3] = [1, 2, 3];

#[test]
fn value_filled_in_place_is_received_as_committed() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::builder().name("n").unwrap().runtime_dir(dir.path()).open().unwrap();
    let mut states = node.state_publisher::<Pod<Levels>>("state").open().unwrap();
    let mut logs = node.log_publisher::<Pod<Levels>>("log").open().unwrap();
    let mut newest = node.state_subscriber::<Pod<Levels>>("shm:n/state").push().open().unwrap();
    let mut records = node.log_subscriber::<Pod<Levels>>("shm:n/log").push().open().unwrap();
    for round in 1..=5_u32 {
        let expected: Levels = std::array::from_fn(|row| [round * 0x9E37 + u32::from(LEVELS[row % 3]); 20]);
        states.claim().fill([u32::MAX; 20]);
        logs.claim().fill([u32::MAX; 20]);
        let mut claim = states.claim();
        claim.copy_from_slice(&expected);
        assert_eq!(*claim, expected);
        assert_eq!(claim.commit().unwrap().get(), u64::from(round), "dropped claims publish nothing");
        let mut claim = logs.claim();
        claim.copy_from_slice(&expected);
        assert_eq!(claim.commit().unwrap().get(), u64::from(round), "dropped claims publish nothing");
        assert_eq!(newest.try_receive().unwrap().unwrap().value, expected);
        assert_eq!(records.try_receive().unwrap().unwrap().value, expected);
    }
}

#[test]
fn claims_of_bytes_have_the_requested_length() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::builder().name("n").unwrap().runtime_dir(dir.path()).open().unwrap();
    let mut states = node.state_publisher::<Raw>("state").payload_len_max(3000).open().unwrap();
    let mut logs = node.log_publisher::<Raw>("log").payload_len_max(3000).open().unwrap();
    let mut newest = node.state_subscriber::<Raw>("shm:n/state").open().unwrap();
    let mut records = node.log_subscriber::<Raw>("shm:n/log").open().unwrap();
    logs.append(b"before").unwrap();
    for len in [0, 1, 7, 8, 9, 1024, 1025, 2048, 2049, 3000] {
        let bytes: Vec<u8> = (0..len).map(|index: usize| index.to_le_bytes()[0]).collect();
        for mut claim in [states.claim(len).unwrap(), logs.claim(len).unwrap()] {
            assert_eq!(claim.len(), len);
            claim.copy_from_slice(&bytes);
            claim.commit().unwrap();
        }
        assert_eq!(newest.try_receive().unwrap().unwrap().value, bytes);
        let record = records.try_receive().unwrap().unwrap();
        if len == 0 {
            assert_eq!(record.value, b"before", "what was appended before is committed with it");
            assert_eq!(records.try_receive().unwrap().unwrap().value, bytes);
        } else {
            assert_eq!(record.value, bytes);
        }
    }
    for error in [states.claim(3001).unwrap_err(), logs.claim(3001).unwrap_err()] {
        assert!(matches!(error, PublishError::TooLong { len: Some(3001), max: 3000, .. }), "{error}");
    }
}
