use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::fault::ChannelFault;
use super::member::{Health, Member};
use super::site::Site;
use super::ticket::{ChannelTicket, RECEIVER_LEN, ReturnTicket};
use crate::clock::{Clock, SystemClock};
use crate::fabric::verbs::sys::{
    CHAIN_LEN_MAX, CompletionChannel, CompletionQueue, Membership, MemoryRegion, QueuePair, QueuePairKind,
    QueuePairPlan, ReceiveRequest, Slice, Status, WorkCompletion,
};
use crate::fabric::wait::together;
use crate::fabric::{ChannelReceiver, Datagram, DatagramReach, FabricError, Waker};
use crate::limits;
use crate::memory::WORD;

/// Bytes before the payload of a received datagram: its source and destination.
const HEADER_LEN: usize = 40;

/// The receiving end of a channel.
///
/// Drop order matters: first it leaves the group; memory that the device uses outlives the queue pair. Receives need no
/// draining: the device cannot access their buffers once the queue pair is gone.
#[derive(Debug)]
pub(in crate::fabric::verbs) struct VerbsChannelReceiver {
    member: Member,
    queue_pair: QueuePair,
    memory: Arc<MemoryRegion>,
    queue: Arc<CompletionQueue>,
    completions: Arc<CompletionChannel>,
    waker: Waker,
    /// Readable when a datagram arrived, an operation is due, or the network answered.
    readable: OwnedFd,
    site: Site,
    channel: ChannelTicket,
    ticket: [u8; RECEIVER_LEN],
    /// Words of one buffer.
    buffer_words: usize,
    /// Completions not processed yet, the next one last.
    arrivals: ArrayVec<WorkCompletion, CHAIN_LEN_MAX>,
    /// Buffers to post again.
    idle: Vec<u16>,
    /// Posted receives.
    posted: usize,
    /// Scratch for one buffer.
    scratch: Vec<u64>,
    passed_over: u64,
    health: Health,
    fault: Arc<ChannelFault>,
    /// Nothing is received after a fault, which is reported once.
    has_ended: bool,
}

impl VerbsChannelReceiver {
    /// Starts joining a channel from this local address.
    pub(super) fn open(site: Site, channel: ChannelTicket) -> Result<Self, FabricError> {
        if channel.mtu > site.mtu {
            let (theirs, ours) = (channel.mtu, site.mtu);
            tracing::warn!(
                target: "fabricast",
                theirs, ours, "the sender's packets may exceed this interface's MTU: long datagrams are lost"
            );
        }
        let count = u16::try_from(limits::CHANNEL_RECEIVES).unwrap_or(u16::MAX);
        let completions = CompletionChannel::create(&site.device.context)?;
        // One more, for the unused send queue.
        let queue = CompletionQueue::create(&site.device.context, u32::from(count) + 1, Some(&completions))?;
        let plan = QueuePairPlan {
            kind: QueuePairKind::Ud,
            send_queue: &queue,
            receive_queue: &queue,
            send_wr_max: 1,
            receive_wr_max: count.into(),
            sge_max: 1,
            inline_len_max: 0,
        };
        let queue_pair = site.id.create_queue_pair(&site.domain, &plan)?;
        let fault = ChannelFault::watch(&site.device.context, &queue_pair, &queue)?;
        queue_pair.set_queue_key(channel.key)?;
        let buffer_words = (usize::from(channel.mtu.max(site.mtu)) + HEADER_LEN).div_ceil(WORD);
        let memory = site.buffers(count.into(), buffer_words * WORD)?;
        let member = Member::begin(&site, channel.group, Membership::Full);
        let waker = Waker::new()?;
        let handles = [completions.as_fd(), member.wait_handle(), waker.wait_handle()];
        let readable = together(&[handles.as_slice(), &[fault.waker().wait_handle()]].concat())?;
        let ticket = ReturnTicket { queue_pair: queue_pair.number(), address: site.address }.emit();
        let mut this = Self {
            member,
            queue_pair,
            memory,
            queue,
            completions,
            waker,
            readable,
            site,
            channel,
            ticket,
            buffer_words,
            arrivals: ArrayVec::new(),
            idle: (0..count).collect(),
            posted: 0,
            scratch: vec![0; buffer_words],
            passed_over: 0,
            health: Health::Well,
            fault,
            has_ended: false,
        };
        this.post_idle()?;
        Ok(this)
    }

    /// Posts all free buffers.
    fn post_idle(&mut self) -> Result<(), FabricError> {
        let len = self.buffer_words * WORD;
        while !self.idle.is_empty() {
            let begin = self.idle.len().saturating_sub(CHAIN_LEN_MAX);
            let batch = self.idle.split_off(begin);
            let request = |buffer: &u16| {
                let offset = usize::from(*buffer) * len;
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                ReceiveRequest { wr_id: (*buffer).into(), local: Slice { region: &self.memory, offset, len } }
            };
            let requests: ArrayVec<_, CHAIN_LEN_MAX> = batch.iter().map(request).collect();
            if let Err(refused) = self.queue_pair.post_receive(&requests) {
                self.posted += refused.posted;
                self.idle.extend(batch.iter().skip(refused.posted));
                return Err(refused.error.into());
            }
            self.posted += batch.len();
        }
        Ok(())
    }

    /// Polls for the next completion.
    fn next(&mut self) -> Result<Option<WorkCompletion>, FabricError> {
        if self.arrivals.is_empty() {
            let mut completions = [WorkCompletion::default(); CHAIN_LEN_MAX];
            let len = self.queue.poll(&mut completions)?;
            self.arrivals.extend(completions.into_iter().take(len).rev());
        }
        Ok(self.arrivals.pop())
    }

    /// Copies a datagram out of its buffer and frees the buffer. `None` if the datagram is to be skipped.
    fn take(&mut self, completion: &WorkCompletion, into: &mut [u8]) -> Option<Datagram> {
        self.posted = self.posted.saturating_sub(1);
        let buffer = u16::try_from(completion.wr_id).ok()?;
        let taken = self.copy_out(buffer, completion, into);
        self.idle.push(buffer);
        taken
    }

    fn copy_out(&mut self, buffer: u16, completion: &WorkCompletion, into: &mut [u8]) -> Option<Datagram> {
        let (received_len, room) = (completion.byte_len as usize, self.buffer_words * WORD);
        if !completion.has_header || completion.source_queue_pair != self.channel.queue_pair {
            return None;
        }
        let len = received_len.checked_sub(HEADER_LEN).filter(|_| received_len <= room)?;
        let words = self.scratch.get_mut(..received_len.div_ceil(WORD))?;
        self.memory.region().copy_out(usize::from(buffer) * room, words);
        let (header, datagram) = bytemuck::cast_slice(words).split_first_chunk::<HEADER_LEN>()?;
        let reach = reach(header, &self.channel, self.site.address)?;
        into.get_mut(..len)?.copy_from_slice(datagram.get(..len)?);
        Some(Datagram { len, reach })
    }

    /// Handles a failed receive.
    fn fail(&mut self, completion: &WorkCompletion) {
        self.posted = self.posted.saturating_sub(1);
        self.idle.extend(u16::try_from(completion.wr_id).ok());
        if completion.status != Status::Flushed {
            self.passed_over += 1;
        }
        if self.health != Health::Well {
            return;
        }
        self.health = Health::Failing;
        let (status, vendor) = (completion.status, completion.vendor_err);
        tracing::debug!(target: "fabricast", %status, vendor, "restarting a channel's receiver");
        if let Err(error) = self.queue_pair.to_error() {
            tracing::warn!(target: "fabricast", %error, "a queue pair could not be stopped");
        }
    }

    /// Posts free buffers, if there are enough for a chain or no receive is posted.
    fn replenish(&mut self, is_idle: bool) -> Result<(), FabricError> {
        if self.health != Health::Well && self.posted == 0 {
            let (port, key) = (self.site.port, self.channel.key);
            self.health.mend(SystemClock.monotonic_ns(), || self.queue_pair.restart(port, key))?;
        }
        let is_due = is_idle || self.idle.len() >= CHAIN_LEN_MAX;
        if is_due && self.health == Health::Well { self.post_idle() } else { Ok(()) }
    }

    /// Polls for events of the group.
    fn poll_events(&mut self) -> Result<(), FabricError> {
        // Only a sender needs the joined group's address handle.
        self.member.next()?;
        self.member.take_failure().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

/// How a datagram of the channel was sent, by its header; `None` if it is from another sender.
fn reach(header: &[u8; HEADER_LEN], channel: &ChannelTicket, own: Ipv4Addr) -> Option<DatagramReach> {
    // An IPv4 header is in the second half of the 40 bytes; the first half is undefined.
    let (_, ip) = header.split_last_chunk::<20>()?;
    let [version, .., s0, s1, s2, s3, d0, d1, d2, d3] = *ip;
    let (source, target) = (Ipv4Addr::new(s0, s1, s2, s3), Ipv4Addr::new(d0, d1, d2, d3));
    if version >> 4 != 4 || source != channel.sender {
        return None;
    }
    match target {
        _ if target == channel.group => Some(DatagramReach::Multicast),
        _ if target == own => Some(DatagramReach::Unicast),
        _ => None,
    }
}

impl ChannelReceiver for VerbsChannelReceiver {
    fn return_ticket(&self) -> &[u8] {
        &self.ticket
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Datagram>, FabricError> {
        if self.has_ended {
            return Ok(None);
        }
        if let Some(fault) = self.fault.error() {
            self.has_ended = true;
            self.fault.waker().reset();
            return Err(fault);
        }
        if self.member.is_unsettled() {
            self.poll_events()?;
        }
        // After skipping this many, let the caller do other work.
        for _ in 0..limits::CHANNEL_RECEIVES {
            let Some(completion) = self.next()? else {
                self.replenish(true)?;
                return Ok(None);
            };
            if completion.status != Status::Success {
                self.fail(&completion);
                self.replenish(false)?;
                continue;
            }
            let taken = self.take(&completion, into);
            self.replenish(false)?;
            if taken.is_some() {
                return Ok(taken);
            }
            self.passed_over += 1;
        }
        Ok(None)
    }

    fn passed_over(&self) -> u64 {
        self.passed_over
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        if self.has_ended {
            return Ok(Some(self.readable.as_fd()));
        }
        self.completions.drain()?;
        self.queue.arm()?;
        let arrived = match self.next()? {
            // Restores the order.
            Some(completion) => self.arrivals.try_push(completion).is_ok(),
            None => false,
        };
        self.member.next()?;
        if arrived || self.member.has_failure() {
            self.waker.wake()
        } else {
            self.waker.reset()
        }
        Ok(Some(self.readable.as_fd()))
    }
}

/// An interface that goes down and up again.
#[cfg(test)]
impl VerbsChannelReceiver {
    /// Makes the queue pair fail.
    pub(in crate::fabric::verbs) fn break_down(&self) {
        self.queue_pair.to_error().expect("a valid queue pair");
    }

    /// The same, as if it could not be restarted until this time.
    pub(in crate::fabric::verbs) fn break_until(&mut self, again_ns: u64) {
        self.break_down();
        self.health = Health::Broken { again_ns };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_shows_where_a_datagram_came_from_and_went() {
        let channel = ChannelTicket {
            mtu: 1024,
            queue_pair: 17,
            key: 5,
            sender: Ipv4Addr::new(10, 0, 0, 1),
            group: Ipv4Addr::new(239, 255, 1, 2),
        };
        let own = Ipv4Addr::new(10, 0, 0, 2);
        let of = |version, source: [u8; 4], target: [u8; 4]| {
            let mut header = [0xa5; HEADER_LEN];
            header[20] = version;
            header[32..36].copy_from_slice(&source);
            header[36..].copy_from_slice(&target);
            reach(&header, &channel, own)
        };
        assert_eq!(of(0x45, [10, 0, 0, 1], [239, 255, 1, 2]), Some(DatagramReach::Multicast));
        assert_eq!(of(0x45, [10, 0, 0, 1], [10, 0, 0, 2]), Some(DatagramReach::Unicast));
        assert_eq!(of(0x45, [10, 0, 0, 3], [239, 255, 1, 2]), None);
        assert_eq!(of(0x45, [10, 0, 0, 1], [239, 255, 1, 3]), None);
        assert_eq!(of(0x60, [10, 0, 0, 1], [239, 255, 1, 2]), None);
    }
}
