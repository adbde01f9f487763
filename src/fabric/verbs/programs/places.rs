//! The registered memory of one end.

use std::sync::Arc;

use super::super::device;
use super::super::sys::{
    MemoryRegion, PreparedReceives, ProtectionDomain, QueuePair, QueuePairKind, RemoteAccess, WorkCompletion,
};
use super::error::ProgramError;
use super::pattern::Block;
use super::wire::{MESSAGE_LEN, MESSAGE_WORDS, Message};
use crate::fabric::FabricError;
use crate::memory::{LINE, Protection, Region, WORD};

/// Bytes before each datagram, of the header that shows its source.
const HEADER_LEN: usize = 40;

/// Blocks of one length in one registration.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The registration.
    pub(super) region: Arc<MemoryRegion>,
    len: usize,
    stride: usize,
}

impl Blocks {
    /// Registers `count` blocks.
    pub(super) fn register(
        domain: &Arc<ProtectionDomain>,
        (count, len): (usize, usize),
        remote: RemoteAccess,
        local_write: bool,
    ) -> Result<Self, ProgramError> {
        let stride = len.next_multiple_of(LINE);
        let region = register(domain, count * stride, remote, local_write)?;
        Ok(Self { region, len, stride })
    }

    /// The block with this index.
    pub(super) fn block(&self, index: usize) -> Block {
        Block::new(self.region.region(), index * self.stride, self.len)
    }

    /// The offset of this block in the registration.
    pub(super) fn offset(&self, index: usize) -> usize {
        index * self.stride
    }
}

fn register(
    domain: &Arc<ProtectionDomain>,
    len: usize,
    remote: RemoteAccess,
    local_write: bool,
) -> Result<Arc<MemoryRegion>, ProgramError> {
    let region = Region::allocate(len, Protection::PeersWrite).map_err(FabricError::Memory)?;
    Ok(Arc::new(device::register(domain, &Arc::new(region), remote, local_write)?))
}

/// Where messages and blocks arrive that the peer SENDs: receives that are posted again once they are read.
#[derive(Debug)]
pub(super) struct Inbox {
    receives: PreparedReceives,
    blocks: Vec<Block>,
    region: Arc<MemoryRegion>,
    stride: usize,
    head: usize,
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The receive that it has taken.
    pub(super) slot: usize,
    /// Its bytes.
    pub(super) len: usize,
    /// Whether it is a [`Message`], not a block.
    pub(super) is_message: bool,
}

impl Inbox {
    /// Creates `count` receives for blocks of this length, or messages if those are longer.
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        kind: QueuePairKind,
        (count, len): (usize, usize),
        sge_count: u32,
    ) -> Result<Self, ProgramError> {
        let head = if kind == QueuePairKind::Ud { HEADER_LEN } else { 0 };
        let stride = (head + len.max(MESSAGE_LEN)).next_multiple_of(LINE);
        let region = register(domain, count * stride, RemoteAccess::None, true)?;
        let stride_len = u32::try_from(stride)
            .map_err(|_| ProgramError::unfit("blocks of this length cannot be sent: use a smaller --size"))?;
        let receives = PreparedReceives::new(&region, count, stride_len, sge_count);
        let blocks = (0..count).map(|slot| Block::new(region.region(), slot * stride + head, len));
        Ok(Self { receives, blocks: blocks.collect(), region, stride, head })
    }

    /// Posts all receives.
    pub(super) fn post_all(&mut self, queue_pair: &QueuePair) -> Result<(), ProgramError> {
        (0..self.blocks.len()).try_for_each(|slot| self.post(queue_pair, slot))
    }

    /// Posts a receive.
    #[inline]
    pub(super) fn post(&mut self, queue_pair: &QueuePair, slot: usize) -> Result<(), ProgramError> {
        Ok(queue_pair.post_prepared_receive(&mut self.receives, slot)?)
    }

    /// What has arrived by this completion.
    #[inline]
    pub(super) fn arrival(&self, completion: &WorkCompletion) -> Result<Arrival, ProgramError> {
        if completion.status != super::super::sys::Status::Success {
            return Err(ProgramError::of(completion));
        }
        let len = (completion.byte_len as usize).saturating_sub(self.head);
        let slot = usize::try_from(completion.wr_id).unwrap_or(usize::MAX);
        Ok(Arrival { slot, len, is_message: completion.is_numbered })
    }

    /// The block that has arrived, if it has the right length.
    #[inline]
    pub(super) fn block(&self, arrival: Arrival) -> Option<&Block> {
        self.blocks.get(arrival.slot).filter(|block| block.len() == arrival.len)
    }

    /// The message that has arrived, if it is one.
    pub(super) fn message(&self, arrival: Arrival) -> Option<Message> {
        let is_one = arrival.is_message && arrival.len == MESSAGE_LEN && arrival.slot < self.blocks.len();
        let mut words = [0; MESSAGE_WORDS];
        if is_one {
            self.region.region().copy_out(arrival.slot * self.stride + self.head, &mut words);
        }
        Message::parse(words).filter(|_| is_one)
    }
}

/// The memory of a message that is sent.
#[derive(Debug)]
pub(super) struct MessageMemory {
    /// The registration.
    pub(super) region: Arc<MemoryRegion>,
}

impl MessageMemory {
    pub(super) fn new(domain: &Arc<ProtectionDomain>) -> Result<Self, ProgramError> {
        Ok(Self { region: register(domain, MESSAGE_LEN, RemoteAccess::None, false)? })
    }

    pub(super) fn write(&self, message: &Message) {
        self.region.region().copy_in(0, &message.emit());
    }
}

const _: () = assert!(HEADER_LEN.is_multiple_of(WORD));
