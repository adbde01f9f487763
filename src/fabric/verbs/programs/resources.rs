//! The verbs objects of one end: its queue pair, completion queues, completion channel, protection domain and receives.

use std::sync::Arc;

use super::super::opened::OpenDevice;
use super::super::sys::{
    AddressHandle, CompletionChannel, CompletionQueue, ProtectionDomain, QueuePair, QueuePairPlan, SysError,
};
use super::error::ProgramError;
use super::places::Inbox;
use super::plan::{Program, ProgramPlan};

/// Work requests beside those of blocks.
const EXTRA_SENDS: u32 = 8;

/// A queue pair and what belongs to it.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) queue_pair: QueuePair,
    /// The completions of what this end sends.
    pub(super) sends: Arc<CompletionQueue>,
    /// The completions of what it receives.
    pub(super) receives: Arc<CompletionQueue>,
    /// Reports the events of both.
    pub(super) channel: Arc<CompletionChannel>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) inbox: Inbox,
    /// The peer, if datagrams need its address.
    pub(super) peer: Option<DatagramPeer>,
    /// Whether it sleeps until there is a completion.
    pub(super) events: bool,
}

/// Where datagrams go.
#[derive(Debug)]
pub(super) struct DatagramPeer {
    pub(super) handle: Arc<AddressHandle>,
    pub(super) queue_pair: u32,
    pub(super) key: u32,
}

impl Resources {
    /// Makes a queue pair for this plan in a domain of its own. It is not connected.
    pub(super) fn create(
        plan: &ProgramPlan,
        device: &OpenDevice,
        make: impl FnOnce(&Arc<ProtectionDomain>, &QueuePairPlan<'_>) -> Result<QueuePair, SysError>,
    ) -> Result<Self, ProgramError> {
        let ProgramPlan { program, size, sge, depth, signal_every, inline, .. } = *plan;
        if size > device.message_len_max {
            let max = device.message_len_max;
            return Err(ProgramError::unfit(format!(
                "the RDMA device moves up to {max} bytes at a time: use a smaller --size"
            )));
        }
        let context = &device.context;
        let domain = ProtectionDomain::allocate(context)?;
        let channel = CompletionChannel::create(context)?;
        // A message behind each block doubles what is in flight between two completions.
        let behind = if program == Program::WriteAck { 2 * signal_every } else { 0 };
        let (sends_max, receives_max) = (depth + signal_every + behind + EXTRA_SENDS, plan.receives());
        let refused = |error: SysError| {
            if !error.is_invalid() && !error.is_out_of_memory() {
                return ProgramError::from(error);
            }
            ProgramError::unfit(format!(
                "the RDMA device makes no queue pair with --depth {depth}, --signal-every {signal_every}, --sge {sge} and \
                 --inline {inline} ({}): use smaller numbers",
                error.reason
            ))
        };
        let sends = CompletionQueue::create(context, sends_max, Some(&channel)).map_err(refused)?;
        let receives = CompletionQueue::create(context, receives_max, Some(&channel)).map_err(refused)?;
        let queue_pair_plan = QueuePairPlan {
            kind: program.kind(),
            send_queue: &sends,
            receive_queue: &receives,
            send_wr_max: sends_max,
            receive_wr_max: receives_max,
            sge_max: sge,
            inline_len_max: if plan.is_inline() { inline } else { 0 },
        };
        let queue_pair = make(&domain, &queue_pair_plan).map_err(refused)?;
        let len = if program.sends_blocks() { size as usize } else { 0 };
        let inbox = Inbox::new(&domain, program.kind(), (receives_max as usize, len), sge)?;
        let events = plan.events;
        Ok(Self { queue_pair, sends, receives, channel, domain, inbox, peer: None, events })
    }
}

impl Resources {
    /// Posts all receives, once the queue pair accepts them.
    pub(super) fn post_receives(&mut self) -> Result<(), ProgramError> {
        self.inbox.post_all(&self.queue_pair)
    }
}
