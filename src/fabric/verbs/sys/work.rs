//! Work requests, and chains of them that are posted together.

use std::marker::PhantomData;
use std::ptr;

use arrayvec::ArrayVec;
use rdma_sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::{AddressHandle, MemoryRegion, MemoryWindow, SysError};

/// Most work requests posted together.
pub(in crate::fabric::verbs) const CHAIN_LEN_MAX: usize = 16;

/// A range of registered local memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric::verbs) struct Slice<'a> {
    /// The memory.
    pub(in crate::fabric::verbs) region: &'a MemoryRegion,
    /// Its offset, bytes from the start of the region.
    pub(in crate::fabric::verbs) offset: usize,
    /// Its length, bytes.
    pub(in crate::fabric::verbs) len: u32,
}

impl Slice<'_> {
    fn entry(&self) -> ibv_sge {
        let region_len = self.region.region().len();
        let is_inside = self.offset <= region_len && self.len as usize <= region_len - self.offset;
        assert!(is_inside, "{} bytes at {} of a region of {region_len}", self.len, self.offset);
        ibv_sge {
            addr: self.region.iova() + self.offset as u64,
            length: self.len,
            lkey: self.region.local_key(),
        }
    }
}

/// A location in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fabric::verbs) struct Remote {
    /// The address, as the peer's device sees it.
    pub(in crate::fabric::verbs) address: u64,
    /// The remote key of the peer's region.
    pub(in crate::fabric::verbs) key: u32,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric::verbs) struct Receiver<'a> {
    /// The path to it.
    pub(in crate::fabric::verbs) handle: &'a AddressHandle,
    /// Its queue pair number; a group has one, too.
    pub(in crate::fabric::verbs) queue_pair: u32,
    /// The key that it requires.
    pub(in crate::fabric::verbs) key: u32,
}

/// The operation of a work request.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric::verbs) enum Operation<'a> {
    /// Reads a peer's memory.
    Read {
        /// The local destination.
        local: Slice<'a>,
        /// The source.
        remote: Remote,
    },
    /// Writes memory to a peer's. The source must not change before the completion.
    Write {
        /// The source.
        local: Slice<'a>,
        /// The destination.
        remote: Remote,
    },
    /// Writes bytes to a peer's memory. They are copied at once.
    WriteInline {
        /// The bytes.
        bytes: &'a [u8],
        /// The destination.
        remote: Remote,
    },
    /// Sends a message, which also wakes a peer whose queue is armed for solicited completions only. Its memory must not change before
    /// the completion.
    Send {
        /// The message.
        local: Slice<'a>,
    },
    /// The same, of a message that is copied at once.
    SendInline {
        /// The message.
        bytes: &'a [u8],
    },
    /// Writes nothing: the peer's device acknowledges it, which shows that its host is alive. The remote key of an empty
    /// operation is not checked, but the peer's queue pair must allow remote writes.
    Probe,
    /// Binds a window, so that the peer may read through it. Work requests after it come after that.
    Bind {
        /// The window, to a region of the queue pair's domain. It must live until the completion.
        window: &'a MemoryWindow,
    },
    /// Sends a datagram. Its memory must not change before the completion.
    Datagram {
        /// The datagram.
        local: Slice<'a>,
        /// The destination.
        to: Receiver<'a>,
    },
    /// Sends a datagram. It is copied at once.
    DatagramInline {
        /// The datagram.
        bytes: &'a [u8],
        /// The destination.
        to: Receiver<'a>,
    },
}

impl Operation<'_> {
    /// Returns the bytes that it moves.
    pub(in crate::fabric::verbs) fn len(&self) -> usize {
        match self {
            Self::Read { local, .. }
            | Self::Write { local, .. }
            | Self::Send { local }
            | Self::Datagram { local, .. } => local.len as usize,
            Self::WriteInline { bytes, .. }
            | Self::SendInline { bytes }
            | Self::DatagramInline { bytes, .. } => bytes.len(),
            Self::Probe | Self::Bind { .. } => 0,
        }
    }
}

/// A work request for the send queue.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric::verbs) struct SendRequest<'a> {
    /// The number of its completion.
    pub(in crate::fabric::verbs) wr_id: u64,
    /// Its operation.
    pub(in crate::fabric::verbs) operation: Operation<'a>,
    /// Whether a success has a completion. A failure always has one.
    pub(in crate::fabric::verbs) signaled: bool,
}

/// A work request for the receive queue.
#[derive(Clone, Copy, Debug)]
pub(in crate::fabric::verbs) struct ReceiveRequest<'a> {
    /// The number of its completion.
    pub(in crate::fabric::verbs) wr_id: u64,
    /// The destination of the message.
    pub(in crate::fabric::verbs) local: Slice<'a>,
}

/// A chain that was not posted completely.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct PostError {
    /// How many of its work requests were posted: the first ones.
    pub(in crate::fabric::verbs) posted: usize,
    /// Why the next one was not.
    pub(in crate::fabric::verbs) error: SysError,
}

impl PostError {
    /// Whether the queue is full: retry after some completions.
    pub(in crate::fabric::verbs) fn is_full(&self) -> bool {
        self.error.is_out_of_memory()
    }
}

/// A scatter/gather element, and its flags.
fn piece(request: &SendRequest<'_>) -> (ibv_sge, ibv_send_flags) {
    match request.operation {
        Operation::Read { local, .. }
        | Operation::Write { local, .. }
        | Operation::Send { local }
        | Operation::Datagram { local, .. } => (local.entry(), ibv_send_flags(0)),
        Operation::Probe | Operation::Bind { .. } => {
            (ibv_sge { addr: 0, length: 0, lkey: 0 }, ibv_send_flags(0))
        }
        Operation::WriteInline { bytes, .. }
        | Operation::SendInline { bytes }
        | Operation::DatagramInline { bytes, .. } => (inline(bytes), ibv_send_flags::IBV_SEND_INLINE),
    }
}

fn inline(bytes: &[u8]) -> ibv_sge {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    ibv_sge { addr: bytes.as_ptr().expose_provenance() as u64, length, lkey: 0 }
}

/// Work requests for the send queue that are posted together, on the stack.
#[derive(Default)]
pub(in crate::fabric::verbs) struct SendChain<'a> {
    requests: ArrayVec<ibv_send_wr, CHAIN_LEN_MAX>,
    pieces: ArrayVec<ibv_sge, CHAIN_LEN_MAX>,
    /// The memory that they name.
    memory: PhantomData<Operation<'a>>,
}

impl<'a> SendChain<'a> {
    /// Whether it has as many as there may be.
    #[inline]
    pub(in crate::fabric::verbs) fn is_full(&self) -> bool {
        self.requests.is_full()
    }

    /// Returns the number of its work requests.
    #[inline]
    pub(in crate::fabric::verbs) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Removes all of them.
    #[inline]
    pub(in crate::fabric::verbs) fn clear(&mut self) {
        self.requests.clear();
        self.pieces.clear();
    }

    /// Appends a work request.
    ///
    /// # Panics
    ///
    /// If it is full, which is a bug of the caller.
    #[inline]
    pub(in crate::fabric::verbs) fn push(&mut self, request: &SendRequest<'a>) {
        self.append(request, None);
    }

    /// Appends a write that takes one of the peer's receives once all of it has arrived, which shows the peer this number.
    ///
    /// # Panics
    ///
    /// If the chain is full, or the operation is not a write: both are bugs of the caller.
    #[inline]
    pub(in crate::fabric::verbs) fn push_with_immediate(
        &mut self,
        request: &SendRequest<'a>,
        immediate: u32,
    ) {
        let operation = &request.operation;
        let is_write =
            matches!(operation, Operation::Write { .. } | Operation::WriteInline { .. } | Operation::Probe);
        assert!(is_write, "only a write has an immediate number: {operation:?}");
        self.append(request, Some(immediate));
    }

    #[inline]
    fn append(&mut self, request: &SendRequest<'a>, immediate: Option<u32>) {
        let (piece, mut flags) = piece(request);
        if request.signaled {
            flags |= ibv_send_flags::IBV_SEND_SIGNALED;
        }
        if matches!(request.operation, Operation::Send { .. } | Operation::SendInline { .. }) {
            flags |= ibv_send_flags::IBV_SEND_SOLICITED;
        }
        // SAFETY: the structure is numbers and pointers, for all of which zeros are valid.
        let mut raw: ibv_send_wr = unsafe { std::mem::zeroed() };
        raw.wr_id = request.wr_id;
        // An element of no bytes would mean the maximum length.
        raw.num_sge = i32::from(piece.length > 0);
        raw.send_flags = flags.0;
        let rdma = |Remote { address, key }| rdma_sys::rdma_t { remote_addr: address, rkey: key };
        match request.operation {
            Operation::Read { remote, .. } => {
                (raw.opcode, raw.wr.rdma) = (ibv_wr_opcode::IBV_WR_RDMA_READ, rdma(remote));
            }
            Operation::Write { remote, .. } | Operation::WriteInline { remote, .. } => {
                (raw.opcode, raw.wr.rdma) = (ibv_wr_opcode::IBV_WR_RDMA_WRITE, rdma(remote));
            }
            Operation::Probe => raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Operation::Bind { window } => {
                raw.opcode = ibv_wr_opcode::IBV_WR_BIND_MW;
                raw.bind_mw_tso_union.bind_mw = window.binding();
            }
            Operation::Send { .. } | Operation::SendInline { .. } => raw.opcode = ibv_wr_opcode::IBV_WR_SEND,
            Operation::Datagram { to, .. } | Operation::DatagramInline { to, .. } => {
                let Receiver { handle, queue_pair, key } = to;
                raw.opcode = ibv_wr_opcode::IBV_WR_SEND;
                raw.wr.ud = rdma_sys::ud_t { ah: handle.raw(), remote_qpn: queue_pair, remote_qkey: key };
            }
        }
        if let Some(immediate) = immediate {
            raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
            raw.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
        }
        self.requests.push(raw);
        self.pieces.push(piece);
    }

    /// Links them, and returns the first; null if empty. The pointer is valid until the chain is used again.
    #[inline]
    pub(super) fn link(&mut self) -> *mut ibv_send_wr {
        let mut next = ptr::null_mut();
        for (request, piece) in self.requests.iter_mut().zip(&mut self.pieces).rev() {
            request.next = next;
            request.sg_list = piece;
            next = request;
        }
        next
    }
}

/// Work requests for the receive queue that are posted together, on the stack.
#[derive(Default)]
pub(super) struct ReceiveChain {
    requests: ArrayVec<ibv_recv_wr, CHAIN_LEN_MAX>,
    pieces: ArrayVec<ibv_sge, CHAIN_LEN_MAX>,
}

impl ReceiveChain {
    /// Creates a chain of these work requests, at most [`CHAIN_LEN_MAX`].
    #[inline]
    pub(super) fn of(requests: &[ReceiveRequest<'_>]) -> Self {
        let mut chain = Self::default();
        for ReceiveRequest { wr_id, local } in requests {
            let piece = local.entry();
            let num_sge = i32::from(piece.length > 0);
            let (next, sg_list) = (ptr::null_mut(), ptr::null_mut());
            chain.requests.push(ibv_recv_wr { wr_id: *wr_id, next, sg_list, num_sge });
            chain.pieces.push(piece);
        }
        chain
    }

    /// Links them, and returns the first; null if empty. The pointer is valid until the chain is used again.
    #[inline]
    pub(super) fn link(&mut self) -> *mut ibv_recv_wr {
        let mut next = ptr::null_mut();
        for (request, piece) in self.requests.iter_mut().zip(&mut self.pieces).rev() {
            request.next = next;
            request.sg_list = piece;
            next = request;
        }
        next
    }
}

/// How many work requests of a chain were posted: those before the one that the device refused.
pub(super) fn posted<T>(head: *const T, refused: *const T) -> usize {
    refused.addr().saturating_sub(head.addr()) / size_of::<T>()
}
