use super::*;

fn region(len: usize) -> Region {
    Region::allocate(len, Protection::PeersWrite).unwrap()
}

fn handed_over(region: &Region) -> OwnedFd {
    region.file().try_clone_to_owned().unwrap()
}

#[test]
fn fresh_memory_is_zero_and_whole_pages() {
    let region = region(100);
    assert_eq!(region.len() % 4096, 0);
    assert!((0..region.len()).step_by(8).all(|offset| region.load(offset) == 0));
}

#[test]
fn copies_of_every_length_and_offset_move_exactly_their_words() {
    let region = region(4096);
    let other = self::region(4096);
    for words in 0..40usize {
        for start in 0..10usize {
            let source: Vec<u64> = (0..words as u64).map(|i| i * 1_000_003 + 1).collect();
            (0..4096).step_by(8).for_each(|offset| region.store(offset, u64::MAX));
            (0..4096).step_by(8).for_each(|offset| other.store(offset, 7));
            region.copy_in(start * 8, &source);
            let mut back = vec![0; words];
            region.copy_out(start * 8, &mut back);
            assert_eq!(back, source);
            assert!(start == 0 || region.load(start * 8 - 8) == u64::MAX);
            assert_eq!(region.load((start + words) * 8), u64::MAX);

            region.write_across(start * 8, &other, 80, words * 8);
            let mut across = vec![0; words];
            other.copy_out(80, &mut across);
            assert_eq!(across, source);
            assert_eq!((other.load(72), other.load(80 + words * 8)), (7, 7));
        }
    }
}

#[test]
fn bytes_come_in_at_any_alignment_and_pad_the_last_word() {
    let region = region(4096);
    let bytes: Vec<u8> = (0..=255).cycle().take(600).collect();
    for len in [0, 1, 7, 8, 9, 63, 64, 65, 200, 511] {
        for shift in 0..9 {
            (0..4096).step_by(8).for_each(|offset| region.store(offset, u64::MAX));
            let source = &bytes[shift..shift + len];
            region.copy_in_bytes(16, source);
            let words = len.div_ceil(8);
            let mut back = vec![0u64; words];
            region.copy_out(16, &mut back);
            let back: &[u8] = bytemuck::cast_slice(&back);
            assert_eq!(&back[..len], source);
            assert!(back[len..].iter().all(|byte| *byte == 0));
            assert_eq!(region.load(16 + words * 8), u64::MAX);
        }
    }
}

#[test]
#[should_panic(expected = "access to 2 words")]
fn a_range_past_the_end_is_an_assertion() {
    let region = region(4096);
    region.copy_out(region.len() - 8, &mut [0; 2]);
}

#[test]
fn readers_see_stores_and_cannot_map_a_repository_for_writing() {
    let owner = Region::allocate(4096, Protection::PeersRead).unwrap();
    let reader = Region::import(owner.file(), 4096, Access::Read).unwrap();
    owner.store_release(64, 42);
    assert_eq!(reader.load_acquire(64), 42);
    let error = Region::import(owner.file(), 4096, Access::Write).unwrap_err();
    assert!(matches!(error, MemoryError::System { what: "map", .. }), "{error}");
}

#[test]
fn the_file_of_a_repository_can_be_neither_written_nor_resized() {
    let owner = Region::allocate(4096, Protection::PeersRead).unwrap();
    assert!(rustix::io::pwrite(owner.file(), &[1], 0).is_err());
    assert!(rustix::fs::ftruncate(owner.file(), 0).is_err());
    assert!(rustix::fs::ftruncate(owner.file(), 1 << 20).is_err());
}

#[test]
fn unfit_files_are_refused() {
    let unsealed = rustix::fs::memfd_create(c"x", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    let cases = [
        (unsealed, "not sealed"),
        (tempfile::tempfile().unwrap().into(), "not a memory file"),
        (handed_over(&region(4096)), "shorter"),
    ];
    for (file, why) in cases {
        let error = Region::import(file.as_fd(), 8192, Access::Read).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn memory_whose_pages_cannot_all_be_made_present_is_an_error() {
    let file = rustix::fs::memfd_create(c"x", MemfdFlags::empty()).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    // The second page cannot be allocated, as if the host were out of memory.
    let error = Region::map_populated(&file, 2 * 4096).unwrap_err();
    assert!(error.to_string().contains("cannot populate 8192 bytes of shared memory"), "{error}");
    assert_eq!(Region::map_populated(&file, 4096).unwrap().len(), 4096);
}

#[test]
fn no_more_is_mapped_than_was_agreed() {
    let long = region(64 * 4096);
    let imported = Region::import(long.file(), 4097, Access::Write).unwrap();
    assert_eq!(imported.len(), 2 * 4096);
    imported.store(8184, 5);
    assert_eq!(long.load(8184), 5);
}

#[test]
fn writable_memory_of_a_peer_keeps_its_pages() {
    use rustix::fs::FallocateFlags;

    let owner = Region::allocate(2 * 4096, Protection::PeerSeals).unwrap();
    let writer = Region::import_to_write(owner.file(), 4097).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(owner.file(), hole, 0, 4096), Err(Errno::PERM));
    for (offset, len) in [(0, usize::MAX), (4096, 4096), (100, 1), (2 * 4096, 8)] {
        writer.populate(offset, len);
    }
    writer.store(8184, 5);
    assert_eq!(owner.load(8184), 5);
    assert!(Region::import(owner.file(), 4096, Access::Write).is_err(), "no other process can write it");
}

#[test]
fn writable_memory_of_a_peer_is_refused_with_pages_missing() {
    let file = |len, seals| {
        let file = rustix::fs::memfd_create(c"x", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, len).unwrap();
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | seals).unwrap();
        file
    };
    let none = SealFlags::empty();
    for (file, why) in [
        (file(8192, none), "sparse"),
        (file(4096, none), "shorter"),
        (file(3 * 4096, none), "longer"),
        (file(8192, SealFlags::SEAL), "cannot be sealed"),
    ] {
        let error = Region::import_to_write(file.as_fd(), 8192).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_blocks, 0);
    }
    let sealed = file(8192, SealFlags::FUTURE_WRITE);
    let error = Region::import(sealed.as_fd(), 8192, Access::Read).unwrap_err();
    assert!(error.to_string().contains("sparse"), "{error}");
}

#[test]
fn absurd_lengths_are_refused() {
    for len in [0, 7, limits::REGION_LEN_MAX + 1, usize::MAX] {
        assert!(matches!(Region::allocate(len, Protection::PeersRead), Err(MemoryError::Length { .. })));
    }
}
