//! What connections leave behind: nothing.

use std::process::Command;

use super::*;
use crate::fabric::verbs::endpoint::leftovers::{SHARED, releasers};
use crate::fabric::verbs::sys::{are_identifiers_destroyed, destroyers};
use crate::sync::atomic::AtomicBool;

/// Resources of this host's devices, and the open files of this process.
fn resources() -> (String, usize) {
    let listed = Command::new("rdma").args(["resource", "show"]).output().unwrap();
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (String::from_utf8(listed.stdout).unwrap(), files)
}

/// Waits until nothing is destroyed in the background. The kernel has taken a minute for an identifier whose peer was gone, and that of
/// an earlier test may be among them.
fn await_destruction() {
    let begun_ns = SystemClock.monotonic_ns();
    while !(are_identifiers_destroyed() && releasers().is_done()) {
        assert!(SystemClock.monotonic_ns() - begun_ns < 4 * TIMEOUT_NS, "identifiers are not destroyed");
        SystemClock.pause(Duration::from_millis(50));
    }
}

/// Runs something twice, and waits until the second run has left no more than the first.
pub(super) fn leaves_nothing(mut run: impl FnMut()) {
    run();
    await_destruction();
    until("the end of the first round", || {
        let before = resources();
        SystemClock.pause(Duration::from_millis(50));
        (are_identifiers_destroyed() && resources() == before).then_some(())
    });
    let before = resources();
    run();
    let begun_ns = SystemClock.monotonic_ns();
    let mut after = resources();
    while after != before && SystemClock.monotonic_ns() - begun_ns < TIMEOUT_NS {
        SystemClock.pause(Duration::from_millis(20));
        after = resources();
    }
    assert_eq!(after, before);
}

#[test]
#[ignore = "needs an RDMA device"]
fn two_hundred_connections_leave_nothing() {
    let mut world = World::new();
    leaves_nothing(|| {
        for number in 0..100_u64 {
            let (mut near, mut far) = world.connect();
            let repository = registered(&world.far, 4096, Exposure::Read);
            repository.region().store(0, number);
            let mut read = open_read(&mut *far, &mut *near, &repository);
            read.post(&[WORD_0]).unwrap();
            finish(&mut *read).unwrap();
            assert_eq!(read.mirror().load(0), number);
            let landing = registered(&world.near, 4096, Exposure::Write);
            let mut write = open_write(&mut *near, &mut *far, &landing);
            write.post(&repository, &[Write::Range(WORD_0)]).unwrap();
            finish_writes(&mut *write).unwrap();
            assert_eq!(landing.region().load(0), number);
            // Either end goes first.
            if number % 2 == 0 { drop(near) } else { drop(far) }
        }
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_end_in_the_middle_of_reads_and_writes_leaves_nothing() {
    let mut world = World::new();
    let len = 1 << 20;
    let whole = ByteRange { offset: 0, len };
    leaves_nothing(|| {
        for way in 0..6 {
            let (mut near, mut far) = world.connect();
            let repository = registered(&world.far, len, Exposure::Read);
            let landing = registered(&world.near, len, Exposure::Write);
            let mut reads: Vec<_> = (0..4).map(|_| open_read(&mut *far, &mut *near, &repository)).collect();
            let mut write = open_write(&mut *near, &mut *far, &landing);
            reads.iter_mut().for_each(|read| {
                read.post(&[whole]).unwrap();
            });
            (0..4).for_each(|_| {
                write.post(&repository, &[Write::Range(whole)]).unwrap();
            });
            match way {
                0 => drop(near),
                1 => drop(far),
                2 => drop(repository),
                3 => drop(landing),
                4 => drop(reads),
                _ => drop(write),
            }
        }
    });
}

/// The thread limit of a process or container may be reached when the last connection ends.
#[test]
fn work_without_a_thread_gets_one_in_the_next_turn_of_the_node() {
    let fabric = fabric();
    for worker in [releasers(), destroyers()] {
        until("the end of idle threads", || (worker.is_done() && !worker.has_threads()).then_some(()));
        let done = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&done);
        // As if no thread could be started for it.
        worker.pretend(Some(0), true);
        worker.queue(move || set.store(true, Ordering::Relaxed));
        fabric.tend();
        until("the chore", || done.load(Ordering::Relaxed).then_some(()));
    }
}

/// Otherwise the thread that is to be kept from it might destroy a queue pair, or one might be destroyed after its memory.
#[test]
#[ignore = "needs an RDMA device"]
fn what_is_released_in_the_background_is_held_by_nothing_else() {
    let mut world = World::new();
    let before = SHARED.load(Ordering::Relaxed);
    for _ in 0..10 {
        let (mut near, mut far) = world.connect();
        send(&mut *near, b"hello", None);
        receive(&mut *far);
    }
    await_destruction();
    assert_eq!(SHARED.load(Ordering::Relaxed), before);
}
