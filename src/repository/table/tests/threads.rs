//! A reader beside a writer on another thread.

use std::thread;

use super::*;
use crate::sync::atomic::{AtomicBool, Ordering};

const ACCOUNTS: usize = 16;
const TOTAL: u64 = 1_000_000;

/// Every commit moves an amount between two accounts, so that only the values of one commit add up.
#[test]
fn a_snapshot_beside_a_writer_is_of_one_commit() {
    let geometry = TableGeometry::new(ACCOUNTS, 8, 8 + 1 + 8).unwrap();
    let region = Arc::new(Region::allocate(geometry.region_len(), Protection::PeersRead).unwrap());
    let line = Geometry::from(geometry).static_header(Epoch::FIRST, TOPIC, 0);
    let mut writer = TableWriter::new(Arc::clone(&region), geometry, &line);
    let mut balances = [0; ACCOUNTS];
    balances[0] = TOTAL;
    let put = |writer: &mut TableWriter, account: usize, balance: u64| {
        let room = writer.room();
        room[..8].copy_from_slice(&(account as u64).to_le_bytes());
        room[9..17].copy_from_slice(&balance.to_le_bytes());
        writer.stage_filled((8, 17), None, 0).unwrap();
    };
    (0..balances.len()).for_each(|account| put(&mut writer, account, balances[account]));
    writer.commit(0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(1);
            while !is_over.load(Ordering::Relaxed) {
                let (from, to) = (random.index(balances.len()), random.index(balances.len()));
                let amount = random.below(balances[from] + 1);
                balances[from] -= amount;
                balances[to] += amount;
                [from, to].into_iter().for_each(|account| put(&mut writer, account, balances[account]));
                writer.commit(0);
                (0..random.below(400)).for_each(|_| std::hint::spin_loop());
            }
        });
        let mut reader = TableReader::new(geometry, (Epoch::FIRST, TOPIC), Sequence::NONE);
        let mut held = BTreeMap::new();
        let (mut snapshots, mut changes, mut last) = (0, 0_u64, 0);
        while snapshots < amount(300, 30_000) || changes < amount(20_000, 2_000_000) {
            let mut scan = SnapshotScan::new(&reader);
            while scan.passes() < 20 {
                let Some(sequence) = scan.step(&mut reader, &region, None) else { continue };
                let balance = |bytes: &[u8]| u64::from_le_bytes(bytes[9..17].try_into().unwrap());
                let sum: u64 = scan.entries(&reader).map(|entry| balance(entry.bytes)).sum();
                assert_eq!(sum, TOTAL, "as of {sequence}");
                assert!(sequence.get() >= last);
                last = sequence.get();
                snapshots += 1;
                break;
            }
            for _ in 0..100 {
                let Some(taken) = reader.poll(&region).unwrap() else { break };
                let value = reader.verified(taken);
                let number = reader.changed().number;
                let before = held.insert(value.payload[..8].to_vec(), number).unwrap_or(0);
                assert!(number > before);
                assert!(before == 0 || number == before + 1 + value.conflated);
                changes += 1;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
