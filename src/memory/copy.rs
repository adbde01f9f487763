//! Copies between private memory and memory that another process may access at the same time.
//!
//! Each behaves as a sequence of relaxed atomic loads (of shared memory) or stores (to shared memory) of aligned
//! 64-bit words, in unspecified order. On x86-64 the bulk is copied by an assembly loop over 16-byte registers:
//! the processor splits such an access into its aligned 8-byte halves at most, and the compiler,
//! which treats the assembly as opaque, assumes the atomic accesses that it stands for. Compiled word-atomic loops
//! are two to three times slower, because the compiler may not widen them.

use super::WORD;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Bytes moved by one register.
const REGISTER: usize = 16;

/// Copies `words` words from private memory, which need not be aligned, to shared memory.
///
/// # Safety
///
/// `source` must be valid for reads of `words` words (at any alignment); `target` must be aligned to 8 and valid
/// for writes of `words` words that are only ever accessed atomically or by other processes; the two must not
/// overlap.
#[inline]
pub(super) unsafe fn in_(source: *const u8, target: *mut u64, words: usize) {
    // SAFETY: the caller promises both ranges, which is what `bulk` asks for.
    let done = unsafe { bulk(source, target.cast(), words * WORD) } / WORD;
    for index in done..words {
        // SAFETY: `index < words`, so that the element lies in the range that the caller promises.
        let from = unsafe { source.add(index * WORD) };
        // SAFETY: eight bytes from `from` on are readable by the caller's promise; alignment is not assumed.
        let word = unsafe { from.cast::<u64>().read_unaligned() };
        // SAFETY: `index < words`, so that the element lies in the range that the caller promises.
        let to = unsafe { target.add(index) };
        // SAFETY: in range as above, aligned by the caller's promise, and only accessed atomically.
        unsafe { AtomicU64::from_ptr(to) }.store(word, Ordering::Relaxed);
    }
}

/// Copies `words` words from shared memory to private memory, which need not be aligned.
///
/// # Safety
///
/// `source` must be aligned to 8 and valid for reads of `words` words that are only ever accessed atomically or by other processes;
/// `target` must be valid for writes of `words` words, at any alignment, that only the caller accesses; the two must not overlap.
#[inline]
pub(super) unsafe fn out(source: *const u64, target: *mut u8, words: usize) {
    // SAFETY: the caller promises both ranges, which is what `bulk` asks for.
    let done = unsafe { bulk(source.cast(), target, words * WORD) } / WORD;
    for index in done..words {
        // SAFETY: `index < words`, so that the element lies in the range that the caller promises.
        let from = unsafe { source.add(index) };
        // SAFETY: in range as above, aligned by the caller's promise, and only accessed atomically.
        let word = unsafe { AtomicU64::from_ptr(from.cast_mut()) }.load(Ordering::Relaxed);
        // SAFETY: `index < words`, so that the element lies in the range that the caller promises.
        let to = unsafe { target.add(index * WORD) };
        // SAFETY: eight bytes from `to` on are writable by the caller's promise; alignment is not assumed.
        unsafe { to.cast::<u64>().write_unaligned(word) };
    }
}

/// Copies `words` words from shared memory to shared memory, or to private memory.
///
/// # Safety
///
/// `source` and `target` must be aligned to 8 and valid for reads and writes, respectively, of `words` words. They are
/// only ever accessed atomically or by other processes, or the target by nobody else; the two must not overlap.
#[inline]
pub(super) unsafe fn across(source: *const u64, target: *mut u64, words: usize) {
    // SAFETY: the caller promises both ranges, which is what `bulk` asks for.
    let done = unsafe { bulk(source.cast(), target.cast(), words * WORD) } / WORD;
    for index in done..words {
        // SAFETY: `index < words`, so that the element lies in the range that the caller promises.
        let from = unsafe { source.add(index) };
        // SAFETY: in range as above, aligned by the caller's promise, and only accessed atomically.
        let word = unsafe { AtomicU64::from_ptr(from.cast_mut()) }.load(Ordering::Relaxed);
        // SAFETY: `index < words`, so that the element lies in the range that the caller promises.
        let to = unsafe { target.add(index) };
        // SAFETY: in range as above, aligned by the caller's promise, and only accessed atomically.
        unsafe { AtomicU64::from_ptr(to) }.store(word, Ordering::Relaxed);
    }
}

/// Prefetches the cache line of this address for writing.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(super) fn request_line(address: *const u64) {
    // SAFETY: the instruction is a hint: it changes nothing, never faults, and is a no-op on x86-64 processors
    // that do not support it.
    unsafe {
        core::arch::asm!("prefetchw [{address}]", address = in(reg) address, options(readonly, nostack, preserves_flags));
    }
}

/// Does nothing: the prefetch is only a hint.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub(super) fn request_line(_address: *const u64) {}

/// Moves all whole registers in `len` bytes, and returns the bytes moved.
///
/// # Safety
///
/// `source` must be valid for reads and `target` for writes of `len` bytes, the two must not overlap, and any of
/// the two that is shared must be aligned to 8 and only ever accessed atomically or by other processes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn bulk(source: *const u8, target: *mut u8, len: usize) -> usize {
    let moved = len / REGISTER * REGISTER;
    // SAFETY: the loops read and write `moved <= len` bytes from each pointer on, which the caller vouches for:
    // four registers a turn while there are four, then one. `movups` asks for no alignment; SSE2 is part of
    // x86-64; all registers that change are declared; the block is a barrier for the compiler, as it declares no
    // memory option. Where memory is shared and aligned to 8, each half of a 16-byte access is a single-copy
    // atomic access (Intel SDM vol. 3A, 9.1.1; AMD APM vol. 2, 7.3.2), as a relaxed one would be, and stores
    // become visible in program order.
    unsafe {
        core::arch::asm!(
            "sub {left}, 64",
            "jb 3f",
            "2:",
            "movups {a}, [{source}]",
            "movups {b}, [{source} + 16]",
            "movups {c}, [{source} + 32]",
            "movups {d}, [{source} + 48]",
            "movups [{target}], {a}",
            "movups [{target} + 16], {b}",
            "movups [{target} + 32], {c}",
            "movups [{target} + 48], {d}",
            "add {source}, 64",
            "add {target}, 64",
            "sub {left}, 64",
            "jae 2b",
            "3:",
            "add {left}, 64",
            "jz 5f",
            "4:",
            "movups {a}, [{source}]",
            "movups [{target}], {a}",
            "add {source}, 16",
            "add {target}, 16",
            "sub {left}, 16",
            "jnz 4b",
            "5:",
            source = inout(reg) source => _,
            target = inout(reg) target => _,
            left = inout(reg) moved => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
    moved
}

/// Moves nothing: the callers' word loops do the whole copy.
///
/// # Safety
///
/// No requirements; the signature is that of the other processors' version.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
unsafe fn bulk(_source: *const u8, _target: *mut u8, _len: usize) -> usize {
    let _ = REGISTER;
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under Miri, which would report an access that is not atomic, the copies are the loops over words.
    #[test]
    fn words_copied_while_another_thread_writes_are_old_or_new() {
        const WORDS: usize = 37;
        let (old, new) = (0x5555_5555_5555_5555_u64, 0xAAAA_AAAA_AAAA_AAAA_u64);
        let shared: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(old)).collect();
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    let word = if round % 2 == 0 { new } else { old };
                    shared.iter().for_each(|place| place.store(word, Ordering::Relaxed));
                }
            });
            for _ in 0..rounds {
                // At an odd address, as private memory may be.
                let mut bytes = [0; WORDS * WORD + 1];
                // SAFETY: the source has as many words, and is accessed atomically only; the target has a byte more than they, and is
                // this thread's own.
                unsafe { out(shared.as_ptr().cast(), bytes.as_mut_ptr().wrapping_add(1), WORDS) };
                let (words, _) = bytes.split_at(1).1.as_chunks::<WORD>();
                assert!(words.iter().all(|word| [old, new].contains(&u64::from_le_bytes(*word))));
                let mut words = [0; WORDS];
                // SAFETY: as above, with a target that is aligned.
                unsafe { across(shared.as_ptr().cast(), words.as_mut_ptr(), WORDS) };
                assert!(words.iter().all(|word| [old, new].contains(word)));
            }
        });
    }
}
