use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use parking_lot::Mutex;

use super::fault::ChannelFault;
use super::member::{Health, Member};
use super::site::Site;
use super::ticket::{CHANNEL_LEN, ChannelTicket, ReturnTicket, gid};
use super::unicast::Way;
use crate::clock::{Clock, SystemClock};
use crate::fabric::verbs::endpoint::INLINE_LEN_MAX;
use crate::fabric::verbs::error::VerbsError;
use crate::fabric::verbs::sys::{
    AddressHandle, CHAIN_LEN_MAX, CompletionQueue, Membership, MemoryRegion, Operation, Path, QueuePair,
    QueuePairKind, QueuePairPlan, Receiver, SendChain, SendRequest, Slice, Status, WorkCompletion,
};
use crate::fabric::{ChannelSender, FabricError, Sent, UnicastSender};
use crate::limits;

/// The sending end of a channel.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct VerbsChannelSender {
    ticket: [u8; CHANNEL_LEN],
    /// Datagrams are not sent after a fault of the device.
    fault: Arc<ChannelFault>,
    state: Mutex<ChannelSenderState>,
    site: Site,
    key: u32,
}

/// Drop order matters: first it leaves the group; memory that the device uses outlives the queue
/// pair.
#[derive(Debug)]
struct ChannelSenderState {
    member: Member,
    queue_pair: QueuePair,
    /// The group's address, once joined.
    group: Option<DatagramTarget>,
    /// Datagrams in flight, in order.
    under_way: VecDeque<UnderWay>,
    /// Free buffers.
    buffers: Vec<u16>,
    memory: Arc<MemoryRegion>,
    queue: Arc<CompletionQueue>,
    depth: usize,
    /// The number of the next work request.
    serial: u64,
    health: Health,
}

/// A unicast path to one receiver.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct VerbsUnicastSender {
    way: Arc<Way>,
    queue_pair: u32,
    channel: Arc<VerbsChannelSender>,
}

/// The destination of datagrams.
#[derive(Clone, Debug)]
struct DatagramTarget {
    handle: Arc<AddressHandle>,
    queue_pair: u32,
}

/// A datagram in flight.
#[derive(Debug)]
struct UnderWay {
    serial: u64,
    buffer: Option<u16>,
    _handle: Arc<AddressHandle>,
}

impl VerbsChannelSender {
    /// Opens a channel at this local address, with this group.
    pub(super) fn open(site: Site, group: Ipv4Addr) -> Result<Self, FabricError> {
        let depth = limits::CHANNEL_SENDS.min(site.device.sends_max);
        let count = depth as usize;
        let queue = CompletionQueue::create(&site.device.context, depth, None)?;
        let plan = |inline_len_max| QueuePairPlan {
            kind: QueuePairKind::Ud,
            send_queue: &queue,
            receive_queue: &queue,
            send_wr_max: depth,
            receive_wr_max: 1,
            sge_max: 1,
            inline_len_max,
        };
        let make = |inline_len_max| site.id.create_queue_pair(&site.domain, &plan(inline_len_max));
        let queue_pair = make(INLINE_LEN_MAX).or_else(|_| make(0))?;
        let fault = ChannelFault::watch(&site.device.context, &queue_pair, &queue)?;
        let key = random_key()?;
        queue_pair.set_queue_key(key)?;
        let memory = site.buffers(count, site.mtu.into())?;
        let ticket = ChannelTicket {
            mtu: site.mtu,
            queue_pair: queue_pair.number(),
            key,
            sender: site.address,
            group,
        };
        let state = ChannelSenderState {
            member: Member::begin(&site, group, Membership::SendOnly),
            queue_pair,
            group: None,
            under_way: VecDeque::with_capacity(count),
            buffers: (0..u16::try_from(count).unwrap_or(u16::MAX)).collect(),
            memory,
            queue,
            depth: count,
            serial: 0,
            health: Health::Well,
        };
        Ok(Self { ticket: ticket.emit(), fault, state: Mutex::new(state), site, key })
    }

    /// Whether a fault of the device has ended it.
    pub(super) fn has_ended(&self) -> bool {
        self.fault.error().is_some()
    }

    fn check_len(&self, datagram: &[u8]) -> Result<(), FabricError> {
        let (len, max) = (datagram.len(), usize::from(self.site.mtu));
        // A device would report success without sending it.
        if len > max { Err(FabricError::MessageTooLong { len, max }) } else { Ok(()) }
    }

    /// A unicast sender to a receiver on the peer's host, whose hardware address is looked for in the background. A peer cannot direct
    /// datagrams at a third host.
    pub(super) fn unicast(
        self: Arc<Self>,
        peer: Ipv4Addr,
        ticket: &[u8],
    ) -> Result<VerbsUnicastSender, FabricError> {
        let ReturnTicket { queue_pair, address } = ReturnTicket::parse(ticket)?;
        if address != peer {
            let why = "it names a host other than the peer's";
            return Err(VerbsError::BadTicket { why }.into());
        }
        let class = self.site.device.traffic_class.unwrap_or(0);
        let path = Path::new(self.site.port, self.site.gid_index, gid(address)).with_traffic_class(class);
        let way = Way::look_for(address, path, &self.site.domain);
        Ok(VerbsUnicastSender { way, queue_pair, channel: self })
    }

    fn post(
        &self,
        state: &mut ChannelSenderState,
        to: Option<&DatagramTarget>,
        datagram: &[u8],
    ) -> Result<Sent, FabricError> {
        if let Some(fault) = self.fault.error() {
            return Err(fault);
        }
        // On every send, so that a failure is reported promptly even if little is sent.
        self.take_completions(state)?;
        if matches!(state.health, Health::Broken { .. }) {
            // The queue does not drain before it is restarted: a caller that waits for that may wait for ever.
            return Err(
                VerbsError::NotSent { status: "the queue pair is broken".to_owned(), vendor: 0 }.into()
            );
        }
        let Some(to) = to.filter(|_| state.health == Health::Well && state.under_way.len() < state.depth)
        else {
            return Ok(Sent::Full);
        };
        let (handle, buffer_len) = (Arc::clone(&to.handle), usize::from(self.site.mtu));
        let is_small = datagram.len() <= state.queue_pair.inline_len_max() as usize;
        let buffer = if is_small { None } else { state.buffers.pop() };
        let receiver = Receiver { handle: &to.handle, queue_pair: to.queue_pair, key: self.key };
        let operation = match buffer {
            None => Operation::DatagramInline { bytes: datagram, to: receiver },
            Some(buffer) => {
                let offset = usize::from(buffer) * buffer_len;
                state.memory.region().copy_in_bytes(offset, datagram);
                let len = u32::try_from(datagram.len()).unwrap_or(u32::MAX);
                Operation::Datagram { local: Slice { region: &state.memory, offset, len }, to: receiver }
            }
        };
        // Every half queue one datagram requests a completion, which covers all before it, so that a full queue always drains.
        let signaled = state.serial.is_multiple_of(state.half_depth());
        let mut chain = SendChain::default();
        chain.push(&SendRequest { wr_id: state.serial, operation, signaled });
        if let Err(refused) = state.queue_pair.post_send(&mut chain) {
            state.buffers.extend(buffer);
            return if refused.is_full() { Ok(Sent::Full) } else { Err(refused.error.into()) };
        }
        state.under_way.push_back(UnderWay { serial: state.serial, buffer, _handle: handle });
        state.serial += 1;
        Ok(Sent::Done)
    }

    /// Polls for events of the group.
    fn take_events(&self, state: &mut ChannelSenderState) -> Result<(), FabricError> {
        let joined = state.member.next()?;
        if let Some(failure) = state.member.take_failure() {
            state.group = None;
            return Err(failure.into());
        }
        if let Some(group) = joined {
            // Linux leaves the class that the identifier was given out of the path to a group.
            let class = self.site.device.traffic_class;
            let path = class.map_or(group.path, |class| group.path.with_traffic_class(class));
            // Without an address handle the group is unusable.
            let handle = AddressHandle::create(&self.site.domain, &path)
                .inspect_err(|error| state.member.give_up(error))?;
            state.group = Some(DatagramTarget { handle: Arc::new(handle), queue_pair: group.queue_pair });
        }
        Ok(())
    }

    /// Polls for completions, and restarts a failed queue pair.
    fn take_completions(&self, state: &mut ChannelSenderState) -> Result<(), FabricError> {
        let polled = state.take_completions();
        let ChannelSenderState { health, queue_pair, under_way, .. } = state;
        if *health != Health::Well && under_way.is_empty() {
            health.mend(SystemClock.monotonic_ns(), || queue_pair.restart(self.site.port, self.key))?;
        }
        polled
    }
}

impl ChannelSenderState {
    fn half_depth(&self) -> u64 {
        (self.depth as u64 / 2).max(1)
    }

    fn take_completions(&mut self) -> Result<(), FabricError> {
        let mut completions = [WorkCompletion::default(); CHAIN_LEN_MAX];
        loop {
            let len = self.queue.poll(&mut completions)?;
            let mut failure = None;
            for completion in completions.iter().take(len) {
                if completion.status != Status::Success && self.health == Health::Well {
                    failure = Some(self.fail(completion));
                }
                let is_over = |sent: &&UnderWay| sent.serial <= completion.wr_id;
                let count = self.under_way.iter().take_while(is_over).count();
                self.buffers.extend(self.under_way.drain(..count).filter_map(|sent| sent.buffer));
            }
            match failure {
                Some(failure) => return Err(failure.into()),
                None if len < completions.len() => return Ok(()),
                None => {}
            }
        }
    }

    /// Starts draining the failed queue pair.
    fn fail(&mut self, completion: &WorkCompletion) -> VerbsError {
        let (status, vendor) = (completion.status.to_string(), completion.vendor_err);
        tracing::debug!(target: "fabricast", %status, vendor, "restarting a channel's sender");
        self.health = Health::Failing;
        if let Err(error) = self.queue_pair.to_error() {
            tracing::warn!(target: "fabricast", %error, "a queue pair could not be stopped");
        }
        VerbsError::NotSent { status, vendor }
    }
}

impl ChannelSender for VerbsChannelSender {
    fn ticket(&self) -> &[u8] {
        &self.ticket
    }

    fn datagram_len_max(&self) -> usize {
        self.site.mtu.into()
    }

    fn send(&self, datagram: &[u8]) -> Result<Sent, FabricError> {
        self.check_len(datagram)?;
        if let Some(fault) = self.fault.error() {
            return Err(fault);
        }
        let mut state = self.state.lock();
        let is_due = state.serial.is_multiple_of(state.half_depth());
        if state.member.is_unsettled() || is_due {
            self.take_events(&mut state)?;
        }
        let Some(group) = state.group.clone() else {
            // Out of the group, the datagram is lost. While joining, the caller tries again.
            return Ok(if state.member.is_out() { Sent::Done } else { Sent::Full });
        };
        self.post(&mut state, Some(&group), datagram)
    }
}

impl UnicastSender for VerbsUnicastSender {
    fn send(&self, datagram: &[u8]) -> Result<Sent, FabricError> {
        self.channel.check_len(datagram)?;
        let to = self.way.handle().map(|handle| DatagramTarget { handle, queue_pair: self.queue_pair });
        let mut state = self.channel.state.lock();
        self.channel.post(&mut state, to.as_ref(), datagram)
    }
}

/// A random key outside the privileged range.
fn random_key() -> Result<u32, FabricError> {
    loop {
        let [a, b, c, d, ..] = crate::random::number().map_err(FabricError::no_random)?.to_le_bytes();
        let key = u32::from_le_bytes([a, b, c, d & 0x7f]);
        if key != 0 {
            return Ok(key);
        }
    }
}

/// Interfaces that go down and up again, and networks without multicast.
#[cfg(test)]
impl VerbsChannelSender {
    /// Makes the queue pair fail.
    pub(in crate::fabric::verbs) fn break_down(&self) {
        self.state.lock().queue_pair.to_error().expect("a valid queue pair");
    }

    /// Makes the queue pair fail for good.
    pub(in crate::fabric::verbs) fn break_for_good(&self) {
        self.state.lock().health = Health::Broken { again_ns: u64::MAX };
    }

    /// Makes the queue pair fail, as if it could not be restarted until this time.
    pub(in crate::fabric::verbs) fn break_until(&self, again_ns: u64) {
        let mut state = self.state.lock();
        state.queue_pair.to_error().expect("a valid queue pair");
        // It comes to that when nothing is in flight any more.
        let sent: Vec<_> = state.under_way.drain(..).filter_map(|sent| sent.buffer).collect();
        state.buffers.extend(sent);
        state.health = Health::Broken { again_ns };
    }

    /// Loses the group.
    pub(in crate::fabric::verbs) fn lose_group(&self) {
        self.state.lock().member.lose();
    }
}
