//! Work requests that are made once and posted many times.
//!
//! A program that repeats an operation has nothing to do for each repetition but to post it. The values here own the structures of
//! the library and what these point to, and link them anew each time they are posted.

use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::{AddressHandle, MemoryRegion, Remote};

/// What a prepared work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) enum Verb {
    /// Sends a message, with a number that its receiver sees.
    Send {
        /// The number.
        immediate: Option<u32>,
    },
    /// Writes to a peer's memory.
    Write(Remote),
    /// Reads a peer's memory.
    Read(Remote),
}

/// The local memory of a prepared work request.
#[derive(Clone, Debug)]
pub(in crate::fabric::verbs) enum Local {
    /// Registered memory, which the device accesses when it executes the work request.
    Registered {
        /// The memory.
        region: Arc<MemoryRegion>,
        /// Its offset, bytes from the start of the region.
        offset: usize,
        /// Its length, bytes.
        len: u32,
    },
    /// This many bytes of [`PreparedSends::inline_words`], which are copied when the work request is posted.
    Inline {
        /// Their number.
        len: u32,
    },
}

/// The parts of a work request's memory, as many as requested if there are as many bytes.
fn parts(len: u32, count: u32) -> impl Iterator<Item = (u32, u32)> {
    let count = count.clamp(1, len.max(1));
    let each = len / count;
    (0..count).map(move |index| {
        let begin = index * each;
        (begin, if index + 1 == count { len - begin } else { each })
    })
}

/// The scatter/gather elements of registered memory.
fn elements(region: &MemoryRegion, (offset, len): (usize, u32), count: u32) -> impl Iterator<Item = ibv_sge> {
    let region_len = region.region().len();
    let is_inside = offset <= region_len && len as usize <= region_len - offset;
    assert!(is_inside, "{len} bytes at {offset} of a region of {region_len}");
    let (address, lkey) = (region.iova() + offset as u64, region.local_key());
    let parts = parts(len, count).filter(|(_, length)| *length > 0);
    parts.map(move |(begin, length)| ibv_sge { addr: address + u64::from(begin), length, lkey })
}

/// A prepared work request for the send queue.
struct Prepared {
    raw: ibv_send_wr,
    elements: Vec<ibv_sge>,
    /// What is copied when it is posted, if anything.
    inline: Vec<u64>,
    /// Where in that each of the elements begins, bytes.
    inline_begins: Vec<u32>,
}

/// Work requests for the send queue.
#[derive(Default)]
pub(in crate::fabric::verbs) struct PreparedSends {
    requests: Vec<Prepared>,
    /// Keeps the memory registered that the elements name.
    regions: Vec<Arc<MemoryRegion>>,
    /// Keeps the destinations of datagrams.
    handles: Vec<Arc<AddressHandle>>,
}

// SAFETY: the pointers in it are to memory of its own and to an object that it keeps, and are followed only by calls that borrow it.
unsafe impl Send for PreparedSends {}

impl PreparedSends {
    /// Appends a work request whose memory has this many elements.
    pub(in crate::fabric::verbs) fn push(&mut self, wr_id: u64, verb: Verb, local: &Local, sge_count: u32) {
        // SAFETY: the structure is numbers and pointers, for all of which zeros are valid.
        let mut raw: ibv_send_wr = unsafe { std::mem::zeroed() };
        raw.wr_id = wr_id;
        let rdma = |Remote { address, key }| rdma_sys::rdma_t { remote_addr: address, rkey: key };
        match verb {
            Verb::Send { immediate: None } => raw.opcode = ibv_wr_opcode::IBV_WR_SEND,
            Verb::Send { immediate: Some(number) } => {
                raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
                raw.imm_data_invalidated_rkey_union.imm_data = number.to_be();
            }
            Verb::Write(remote) => {
                (raw.opcode, raw.wr.rdma) = (ibv_wr_opcode::IBV_WR_RDMA_WRITE, rdma(remote));
            }
            Verb::Read(remote) => {
                (raw.opcode, raw.wr.rdma) = (ibv_wr_opcode::IBV_WR_RDMA_READ, rdma(remote));
            }
        }
        let (mut inline, mut inline_begins) = (Vec::new(), Vec::new());
        let elements: Vec<ibv_sge> = match local {
            Local::Registered { region, offset, len } => {
                self.regions.push(Arc::clone(region));
                elements(region, (*offset, *len), sge_count).collect()
            }
            Local::Inline { len } => {
                raw.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
                inline = vec![0; (*len as usize).div_ceil(size_of::<u64>())];
                let parts = || parts(*len, sge_count).filter(|(_, length)| *length > 0);
                inline_begins = parts().map(|(begin, _)| begin).collect();
                parts().map(|(_, length)| ibv_sge { addr: 0, length, lkey: 0 }).collect()
            }
        };
        // Never more than the request asks for, which is a number of the same type.
        raw.num_sge = i32::try_from(elements.len()).unwrap_or(i32::MAX);
        self.requests.push(Prepared { raw, elements, inline, inline_begins });
    }

    /// Sends the datagrams of this work request to this queue pair.
    pub(in crate::fabric::verbs) fn address(
        &mut self,
        index: usize,
        handle: &Arc<AddressHandle>,
        (queue_pair, key): (u32, u32),
    ) {
        if let Some(request) = self.requests.get_mut(index) {
            request.raw.wr.ud = rdma_sys::ud_t { ah: handle.raw(), remote_qpn: queue_pair, remote_qkey: key };
            self.handles.push(Arc::clone(handle));
        }
    }

    /// Sets whether a success of this work request has a completion. A failure always has one.
    #[inline]
    pub(in crate::fabric::verbs) fn set_signaled(&mut self, index: usize, signaled: bool) {
        if let Some(Prepared { raw, .. }) = self.requests.get_mut(index) {
            let flag = ibv_send_flags::IBV_SEND_SIGNALED.0;
            raw.send_flags = if signaled { raw.send_flags | flag } else { raw.send_flags & !flag };
        }
    }

    /// The bytes, as words, that are copied when this work request is posted. Empty if its memory is registered.
    #[inline]
    pub(in crate::fabric::verbs) fn inline_words(&mut self, index: usize) -> &mut [u64] {
        self.requests.get_mut(index).map_or(&mut [], |request| &mut request.inline)
    }

    /// Links the first `count` work requests, and returns the first; null if there are none. The pointer is valid until the value is
    /// used again.
    #[inline]
    pub(super) fn link(&mut self, count: usize) -> *mut ibv_send_wr {
        let mut next = ptr::null_mut();
        for request in self.requests.iter_mut().take(count).rev() {
            if !request.inline_begins.is_empty() {
                let base = request.inline.as_ptr().expose_provenance() as u64;
                for (element, begin) in request.elements.iter_mut().zip(&request.inline_begins) {
                    element.addr = base + u64::from(*begin);
                }
            }
            request.raw.sg_list = request.elements.as_mut_ptr();
            request.raw.next = next;
            next = &raw mut request.raw;
        }
        next
    }
}

impl std::fmt::Debug for PreparedSends {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("PreparedSends").field("len", &self.requests.len()).finish_non_exhaustive()
    }
}

/// Work requests for the receive queue, each of which is numbered by its index.
pub(in crate::fabric::verbs) struct PreparedReceives {
    requests: Vec<(ibv_recv_wr, Vec<ibv_sge>)>,
    /// Keeps the memory registered that the elements name.
    _region: Arc<MemoryRegion>,
}

// SAFETY: the pointers in it are to memory of its own, and are followed only by calls that borrow it.
unsafe impl Send for PreparedReceives {}

impl PreparedReceives {
    /// Creates `count` work requests for consecutive parts of a region, of `len` bytes and with this many elements each.
    pub(in crate::fabric::verbs) fn new(
        region: &Arc<MemoryRegion>,
        count: usize,
        len: u32,
        sge_count: u32,
    ) -> Self {
        let (next, sg_list) = (ptr::null_mut(), ptr::null_mut());
        let requests = (0..count).map(|index| {
            let elements: Vec<ibv_sge> = elements(region, (index * len as usize, len), sge_count).collect();
            let num_sge = i32::try_from(elements.len()).unwrap_or(i32::MAX);
            (ibv_recv_wr { wr_id: index as u64, next, sg_list, num_sge }, elements)
        });
        Self { requests: requests.collect(), _region: Arc::clone(region) }
    }

    /// Links one work request and returns it.
    ///
    /// # Panics
    ///
    /// If there is none of this index, which is a bug of the caller.
    #[inline]
    pub(super) fn link(&mut self, index: usize) -> *mut ibv_recv_wr {
        let Some((request, elements)) = self.requests.get_mut(index) else {
            unreachable!("receive {index} does not exist");
        };
        request.sg_list = elements.as_mut_ptr();
        request
    }
}

impl std::fmt::Debug for PreparedReceives {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("PreparedReceives").field("len", &self.requests.len()).finish_non_exhaustive()
    }
}
