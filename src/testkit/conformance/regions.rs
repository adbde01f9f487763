//! Regions that travel with messages, and one-sided access to them.

use super::{Harness, Pair, accepted, dial, fetch, message, name, registered, send, until};
use crate::fabric::{ByteRange, Completion, Exposure, FabricError, Registration, RemoteWrite, Write};
use crate::layout::WORD;
use crate::memory::{MemoryError, Region};
use crate::testkit::random::Random;

/// Fills a region with random words.
fn fill(region: &Region, random: &mut Random) {
    (0..region.len()).step_by(WORD).for_each(|offset| region.store(offset, random.next()));
}

fn words(region: &Region, ByteRange { offset, len }: ByteRange) -> Vec<u64> {
    let mut words = vec![0; len / WORD];
    region.copy_out(offset, &mut words);
    words
}

/// Writes a batch and waits until it is complete.
fn write(harness: &dyn Harness, remote: &mut dyn RemoteWrite, source: &Registration, writes: &[Write]) {
    let mut done = remote.post(source, writes).expect("the peer can be reached") == Completion::Done;
    until(harness, "a write", || {
        done = done || remote.in_flight().expect("the peer can be reached") == 0;
        done.then_some(())
    });
}

/// A landing region of the near process, exposed to the far one.
fn landing(harness: &dyn Harness, pair: &mut Pair, len: usize) -> (Registration, Box<dyn RemoteWrite>) {
    let registration = registered(&*pair.dialler, len, Exposure::Write);
    send(harness, &mut *pair.near, b"landing", Some(&registration));
    let (_, offer) = message(harness, &mut *pair.far);
    let offer = offer.expect("the region comes with its message");
    let remote = offer.open_write(len).expect("it is as long as was agreed");
    (registration, remote)
}

pub(crate) fn a_region_arrives_at_its_message(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let registrations = [1, 2].map(|mark| {
        let registration = registered(&*pair.listening, 4096, Exposure::Read);
        registration.region().store(8, mark);
        registration
    });
    for number in 0..6_u8 {
        let region = (number % 3 == 1).then(|| &registrations[usize::from(number / 3)]);
        send(harness, &mut *pair.far, &[number], region);
    }
    for number in 0..6_u8 {
        let (bytes, offer) = message(harness, &mut *pair.near);
        assert_eq!((bytes, offer.is_some()), (vec![number], number % 3 == 1));
        if let Some(offer) = offer {
            let mut read = offer.open_read(4096).expect("it is as long as was agreed");
            fetch(harness, &mut *read, &[ByteRange { offset: 8, len: 8 }]).expect("the peer can be reached");
            assert_eq!(read.mirror().load(8), u64::from(number / 3) + 1);
        }
    }
}

pub(crate) fn later_stores_are_seen_at_every_size_and_offset(harness: &dyn Harness, seed: u64) {
    let mut random = Random::new(seed);
    let mut pair = Pair::new(harness);
    for len in [8, 4096, 5000, 65_536] {
        let registration = registered(&*pair.listening, len, Exposure::Read);
        let source = registration.region();
        fill(source, &mut random);
        let offer = pair.offer(harness, &registration);
        let mut read = offer.open_read(len).expect("it is as long as was agreed");
        let whole = ByteRange { offset: 0, len: len / WORD * WORD };
        assert!(read.mirror().len() >= whole.len);
        fetch(harness, &mut *read, &[whole]).expect("the peer can be reached");
        assert_eq!(words(read.mirror(), whole), words(source, whole));
        for _ in 0..20 {
            fill(source, &mut random);
            let mut range = || {
                let offset = random.index(len / WORD) * WORD;
                ByteRange { offset, len: random.index((len - offset) / WORD + 1) * WORD }
            };
            let ranges = [range(), range()];
            fetch(harness, &mut *read, &ranges).expect("the peer can be reached");
            for range in ranges {
                assert_eq!(words(read.mirror(), range), words(source, range), "{range:?} of {len}");
            }
        }
        fetch(harness, &mut *read, &[]).expect("nothing can be read, too");
    }
}

pub(crate) fn a_region_is_used_only_as_it_was_registered(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::to_write(harness);
    let readable = registered(&*pair.listening, 4096, Exposure::Read);
    let writable = registered(&*pair.listening, 4096, Exposure::Write);
    let refused = [
        pair.offer(harness, &readable).open_write(4096).expect_err("peers may only read it"),
        pair.offer(harness, &writable).open_read(4096).expect_err("peers may only write it"),
    ];
    for error in refused {
        assert!(matches!(error, FabricError::Access { .. }), "{error}");
    }
    pair.offer(harness, &readable).open_read(4096).expect("peers may read it");
    pair.offer(harness, &writable).open_write(4096).expect("peers may write it");
}

pub(crate) fn a_region_shorter_than_agreed_is_refused(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::to_write(harness);
    let readable = registered(&*pair.listening, 4096, Exposure::Read);
    let writable = registered(&*pair.listening, 4096, Exposure::Write);
    for len_min in [readable.region().len() + 1, 1 << 33, usize::MAX] {
        let refused = [
            pair.offer(harness, &readable).open_read(len_min).expect_err("it is shorter"),
            pair.offer(harness, &writable).open_write(len_min).expect_err("it is shorter"),
        ];
        for error in refused {
            assert!(matches!(error, FabricError::Memory(MemoryError::Unfit { .. })), "{error}");
            assert!(error.to_string().contains("shorter"), "{error}");
        }
    }
}

pub(crate) fn an_offer_that_is_given_up_harms_nothing(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let registration = registered(&*pair.listening, 4096, Exposure::Read);
    registration.region().store(0, 5);
    (0..100).for_each(|_| drop(pair.offer(harness, &registration)));
    // This one is never received.
    let unread = registered(&*pair.dialler, 4096, Exposure::Read);
    send(harness, &mut *pair.near, b"unread", Some(&unread));
    let mut read = pair.offer(harness, &registration).open_read(8).expect("it is as long as was agreed");
    fetch(harness, &mut *read, &[ByteRange { offset: 0, len: 8 }]).expect("the peer can be reached");
    assert_eq!(read.mirror().load(0), 5);
}

pub(crate) fn one_region_serves_several_peers(harness: &dyn Harness, _: u64) {
    let listening = harness.fabric();
    let mut listener = listening.listen(&name("far")).expect("the name is free").remove(0);
    let registration = registered(&*listening, 4096, Exposure::Read);
    let attach = |_| {
        let fabric = harness.fabric();
        let mut near = dial(&*fabric, &harness.address(&name("far")));
        let mut far = accepted(harness, &mut *listener);
        send(harness, &mut *far, b"region", Some(&registration));
        let (_, offer) = message(harness, &mut *near);
        let offer = offer.expect("the region comes with its message");
        let read = offer.open_read(4096).expect("it is as long as was agreed");
        (read, fabric, near, far)
    };
    let mut peers: Vec<_> = (0..5).map(attach).collect();
    for word in 1..4 {
        registration.region().store(64, word);
        for (read, ..) in &mut peers {
            fetch(harness, &mut **read, &[ByteRange { offset: 64, len: 8 }])
                .expect("the peer can be reached");
            assert_eq!(read.mirror().load(64), word);
        }
        // A process that leaves disturbs no others.
        peers.pop();
    }
}

pub(crate) fn writes_appear_at_the_same_offsets_and_nowhere_else(harness: &dyn Harness, seed: u64) {
    let mut random = Random::new(seed);
    let mut pair = Pair::new(harness);
    let len = 16_384;
    let source = registered(&*pair.listening, len, Exposure::Read);
    let (landing, mut remote) = landing(harness, &mut pair, len);
    let landing = landing.region();
    let whole = ByteRange { offset: 0, len };
    let mut expected = vec![0; len / WORD];
    for _ in 0..30 {
        fill(source.region(), &mut random);
        let mut writes = Vec::new();
        for _ in 0..random.below(4) {
            let offset = random.index(len / WORD);
            if random.once_in(3) {
                expected[offset] = random.next();
                writes.push(Write::Word { offset: offset * WORD, word: expected[offset] });
            } else {
                let range =
                    ByteRange { offset: offset * WORD, len: random.index(len / WORD - offset + 1) * WORD };
                let end = offset + range.len / WORD;
                expected[offset..end].copy_from_slice(&words(source.region(), range));
                writes.push(Write::Range(range));
            }
        }
        write(harness, &mut *remote, &source, &writes);
        assert_eq!(words(landing, whole), expected);
    }
}

/// The writer of a region can read a word that its owner has stored; a revocation ends that, too.
pub(crate) fn words_of_a_region_that_is_written_are_fetched(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let source = registered(&*pair.listening, 4096, Exposure::Read);
    let (landing, mut remote) = landing(harness, &mut pair, 4096);
    let fetched = |remote: &mut Box<dyn RemoteWrite>, offset| {
        until(harness, "a word", || remote.fetch_word(offset).expect("the peer can be reached"))
    };
    for word in 1..20 {
        let offset = usize::try_from(word).expect("it is small") * WORD;
        landing.region().store_release(offset, word);
        assert_eq!(fetched(&mut remote, offset), word);
        // Writes proceed meanwhile.
        write(harness, &mut *remote, &source, &[Write::Word { offset, word: word + 100 }]);
        assert_eq!(fetched(&mut remote, offset), word + 100);
    }
    // In flight, where that takes time.
    let _ = remote.fetch_word(0).expect("the peer can be reached");
    let revocation = remote.revocation();
    until(harness, "the end of all", || (revocation.revoke() == Completion::Done).then_some(()));
}

/// A reader that sees a write of a batch sees all earlier ones.
pub(crate) fn the_writes_of_a_batch_appear_in_order(harness: &dyn Harness, seed: u64) {
    const WORDS: usize = 50;
    let mut random = Random::new(seed);
    let mut pair = Pair::new(harness);
    let source = registered(&*pair.listening, 4096, Exposure::Read);
    let (landing, mut remote) = landing(harness, &mut pair, 4096);
    let landing = landing.region();
    let (early, body, late) = (2048, ByteRange { offset: 64, len: WORDS * WORD }, 1024);
    for round in 1..200 {
        source.region().copy_in(body.offset, &[round; WORDS]);
        source.region().store(late, round);
        let writes = [
            Write::Word { offset: early, word: round },
            Write::Range(body),
            Write::Range(ByteRange { offset: late, len: WORD }),
        ];
        let mut done = remote.post(&source, &writes).expect("the peer can be reached") == Completion::Done;
        until(harness, "a write", || {
            let seen_late = landing.load_acquire(late);
            let seen_body = words(landing, body);
            let seen_early = landing.load_acquire(early);
            assert!(seen_late < round || seen_body.iter().all(|word| *word == round));
            assert!(seen_body.iter().all(|word| *word < round) || seen_early == round);
            assert!(!done || seen_late == round);
            let was_done = done;
            if random.once_in(2) {
                done = remote.in_flight().expect("the peer can be reached") == 0;
            }
            was_done.then_some(())
        });
    }
}

/// Batches may be posted while others are in flight. A complete batch has arrived, and so have all batches before one that has
/// arrived.
pub(crate) fn several_batches_appear_and_complete_in_order(harness: &dyn Harness, seed: u64) {
    const BATCHES: usize = 4;
    const BODY_LEN: usize = 256;
    let mut random = Random::new(seed);
    let mut pair = Pair::new(harness);
    let source = registered(&*pair.listening, 4096, Exposure::Read);
    let (landing, mut remote) = landing(harness, &mut pair, 4096);
    let body = |batch: usize| ByteRange { offset: batch * BODY_LEN, len: BODY_LEN };
    let mark = |batch: usize| 2048 + batch * WORD;
    for round in 1..60 {
        let (mut posted, mut in_flight) = (0, 0);
        until(harness, "several batches", || {
            if posted < BATCHES && random.once_in(2) {
                source.region().copy_in(body(posted).offset, &[round; BODY_LEN / WORD]);
                let writes = [Write::Range(body(posted)), Write::Word { offset: mark(posted), word: round }];
                let done = remote.post(&source, &writes).expect("the peer can be reached");
                in_flight = if done == Completion::Done { 0 } else { in_flight + 1 };
                posted += 1;
            }
            // From the last one on: if one has arrived, all before it have.
            let appeared =
                (0..BATCHES).rev().find(|batch| landing.region().load_acquire(mark(*batch)) == round);
            let complete = posted - in_flight;
            for batch in 0..appeared.map_or(complete, |last| complete.max(last + 1)) {
                assert!(
                    words(landing.region(), body(batch)).iter().all(|word| *word == round),
                    "batch {batch}"
                );
            }
            assert!((0..complete).all(|batch| landing.region().load_acquire(mark(batch)) == round));
            let count = remote.in_flight().expect("the peer can be reached");
            assert!(count <= in_flight, "{count} batches of {in_flight} are in flight");
            in_flight = count;
            (posted == BATCHES && in_flight == 0).then_some(())
        });
    }
}

pub(crate) fn a_region_outlives_its_connection_as_the_medium_allows(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let registration = registered(&*pair.listening, 4096, Exposure::Read);
    registration.region().store(8, 1);
    let mut read = pair.offer(harness, &registration).open_read(4096).expect("it is as long as was agreed");
    let range = [ByteRange { offset: 8, len: 8 }];
    fetch(harness, &mut *read, &range).expect("the peer can be reached");
    drop(pair.far);
    registration.region().store(8, 2);
    until(harness, "the end of the connection", || {
        matches!(pair.near.receive(&mut [0; 8]), Ok(crate::fabric::Received::Closed)).then_some(())
    });
    match fetch(harness, &mut *read, &range) {
        Ok(()) => assert_eq!(read.mirror().load(8), 2),
        Err(FabricError::Closed) if !read.is_mapped() => {
            assert_eq!(read.mirror().load(8), 1)
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn a_registration_dropped_under_a_reader_harms_nobody(harness: &dyn Harness, _: u64) {
    let mut pair = Pair::new(harness);
    let registration = registered(&*pair.listening, 65_536, Exposure::Read);
    registration.region().copy_in(0, &[3; 8192]);
    let mut read = pair.offer(harness, &registration).open_read(65_536).expect("it is as long as was agreed");
    let whole = ByteRange { offset: 0, len: 65_536 };
    fetch(harness, &mut *read, &[whole]).expect("the peer can be reached");
    let posted = read.post(&[whole]);
    drop(registration);
    let mut outcome = posted;
    let outcome = until(harness, "the end of the read", || {
        let last = std::mem::replace(&mut outcome, Ok(Completion::Done));
        match last {
            Ok(Completion::Pending) => {
                outcome = read.poll();
                None
            }
            end => Some(end),
        }
    });
    let mapped = read.is_mapped();
    assert!(!mapped || outcome.is_ok(), "mapped memory stays: {outcome:?}");
    assert!(words(read.mirror(), whole).iter().all(|word| *word == 3));
    if outcome.is_err() && harness.ends_sessions_by_refusals() {
        for end in [&mut pair.near, &mut pair.far] {
            until(harness, "the end of the session", || match end.receive(&mut [0; 8]) {
                Ok(crate::fabric::Received::Closed) | Err(_) => Some(()),
                Ok(_) => None,
            });
        }
        return;
    }
    send(harness, &mut *pair.near, b"still here", None);
    assert_eq!(message(harness, &mut *pair.far).0, b"still here");
}
