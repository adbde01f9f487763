//! Stores to private memory.

/// Stores four words of private memory by 16-byte registers, so that the 16-byte loads of the checksum that follow
/// are forwarded from the store buffer. After stores of 8 bytes they would stall until the stores
/// reach the cache: 13 ns of a publish of 64 bytes.
#[inline]
pub(crate) fn set_quad(target: &mut [u64; 4], words: [u64; 4]) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_mm_set_epi64x, _mm_storeu_si128};
        let [a, b, c, d] = words.map(u64::cast_signed);
        let (low, high) = target.split_at_mut(2);
        // SAFETY: the function only requires SSE2, which is part of x86-64.
        let first = unsafe { _mm_set_epi64x(b, a) };
        // SAFETY: the function only requires SSE2, which is part of x86-64.
        let second = unsafe { _mm_set_epi64x(d, c) };
        // SAFETY: `low` holds two words, all of the 16 bytes that the store writes, at any alignment; SSE2 is part
        // of x86-64.
        unsafe { _mm_storeu_si128(low.as_mut_ptr().cast(), first) };
        // SAFETY: `high` holds the other two words of the four, all of the 16 bytes that the store writes.
        unsafe { _mm_storeu_si128(high.as_mut_ptr().cast(), second) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        *target = words;
    }
}
