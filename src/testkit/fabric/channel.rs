//! Channels of a simulated network, and the faults of their datagrams.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use super::Network;
use super::state::SimState;
use crate::fabric::{
    ChannelReceiver, ChannelSender, Datagram, DatagramReach, FabricError, Sent, UnicastSender,
};
use crate::limits;

#[cfg(test)]
mod tests;

/// Longest datagram, bytes: as for RoCE over Ethernet with the usual MTU.
const DATAGRAM_LEN_MAX: usize = 1024;
/// The delay of an overtaken datagram, in message times.
const OVERTAKEN_LATENCIES: u64 = 8;
/// The prefix of a channel's ticket.
const CHANNEL_MARK: [u8; 8] = *b"sim-chan";
/// The prefix of a receiver's ticket.
const RETURN_MARK: [u8; 8] = *b"sim-back";

/// The error for an invalid ticket.
const NO_TICKET: FabricError = FabricError::Access { why: "this is not a ticket of a channel" };

/// The faults of datagrams, for each receiver independently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DatagramFaults {
    /// Losses per thousand.
    pub(crate) lose_permille: u64,
    /// Duplicates per thousand.
    pub(crate) double_permille: u64,
    /// Overtaken ones per thousand.
    pub(crate) reorder_permille: u64,
    /// The longest extra delay, ns.
    pub(crate) delay_ns_max: u64,
}

/// The channels of a simulated network.
#[derive(Debug, Default)]
pub(super) struct Channels {
    faults: DatagramFaults,
    multicast_is_cut: bool,
    unicast_is_cut: bool,
    /// How many more sends find the queue full.
    full_sends: u64,
    /// The channel of each process, while used.
    senders: BTreeMap<u32, Weak<SimChannelSender>>,
    /// When each channel is ready.
    standing_ns: BTreeMap<u64, u64>,
    inboxes: BTreeMap<u64, Inbox>,
}

/// What was sent to one receiver.
#[derive(Debug)]
struct Inbox {
    process: u32,
    channel: u64,
    /// When multicast begins to arrive.
    joined_ns: u64,
    /// When the last datagram arrives that keeps its order.
    arrival_ns: u64,
    /// By time of arrival.
    waiting: VecDeque<Waiting>,
    passed_over: u64,
}

/// A datagram in flight.
#[derive(Clone, Debug)]
struct Waiting {
    due_ns: u64,
    from: u32,
    channel: u64,
    reach: DatagramReach,
    bytes: Vec<u8>,
}

impl Inbox {
    /// Inserts a datagram by its time. When full, drops the oldest.
    fn push(&mut self, datagram: Waiting) {
        let place = self.waiting.partition_point(|other| other.due_ns <= datagram.due_ns);
        self.waiting.insert(place, datagram);
        if self.waiting.len() > limits::CHANNEL_RECEIVES {
            self.waiting.pop_front();
        }
    }
}

impl Network {
    /// Sets the faults of datagrams sent from now on.
    pub(crate) fn set_datagram_faults(&self, faults: DatagramFaults) {
        self.state.lock().channels.faults = faults;
    }

    /// Loses all multicast sent from now on; or no longer.
    pub(crate) fn cut_multicast(&self, is_cut: bool) {
        self.state.lock().channels.multicast_is_cut = is_cut;
    }

    /// Loses all unicast sent from now on; or no longer.
    pub(crate) fn cut_unicast(&self, is_cut: bool) {
        self.state.lock().channels.unicast_is_cut = is_cut;
    }

    /// Makes the next `sends` sends find the queue full.
    pub(crate) fn fill_channels(&self, sends: u64) {
        self.state.lock().channels.full_sends = sends;
    }

    /// The channel of a process.
    pub(super) fn channel_sender(
        self: &Arc<Self>,
        process: u32,
    ) -> Result<Arc<SimChannelSender>, FabricError> {
        let mut state = self.state.lock();
        state.check_alive(process)?;
        if let Some(sender) = state.channels.senders.get(&process).and_then(Weak::upgrade) {
            return Ok(sender);
        }
        let (channel, standing_ns) = (state.serial(), self.now() + state.latency());
        let ticket = ticket(CHANNEL_MARK, channel);
        let sender = Arc::new(SimChannelSender { network: Arc::clone(self), process, channel, ticket });
        state.channels.senders.insert(process, Arc::downgrade(&sender));
        state.channels.standing_ns.insert(channel, standing_ns);
        Ok(sender)
    }

    /// Joins a channel, whether it exists or not.
    pub(super) fn join_channel(
        self: &Arc<Self>,
        process: u32,
        ticket_bytes: &[u8],
    ) -> Result<SimChannelReceiver, FabricError> {
        let channel = parse_ticket(CHANNEL_MARK, ticket_bytes)?;
        let mut state = self.state.lock();
        state.check_alive(process)?;
        let (serial, joined_ns) = (state.serial(), self.now() + state.latency());
        let ticket = return_ticket(process, serial);
        let waiting = VecDeque::new();
        let inbox = Inbox { process, channel, joined_ns, arrival_ns: 0, waiting, passed_over: 0 };
        state.channels.inboxes.insert(serial, inbox);
        Ok(SimChannelReceiver { network: Arc::clone(self), serial, ticket })
    }

    /// Unicast from the channel of a process to a receiver of this peer. Each process is a host of its own.
    pub(super) fn unicast_sender(
        self: &Arc<Self>,
        process: u32,
        peer: u32,
        ticket_bytes: &[u8],
    ) -> Result<SimUnicastSender, FabricError> {
        let (ticket, host) = ticket_bytes.split_last_chunk().ok_or(NO_TICKET)?;
        let inbox = parse_ticket(RETURN_MARK, ticket)?;
        if u32::from_le_bytes(*host) != peer {
            return Err(FabricError::Access {
                why: "the ticket names another host than its connection comes from",
            });
        }
        Ok(SimUnicastSender { channel: self.channel_sender(process)?, inbox })
    }
}

/// The sending end of a channel.
#[derive(Debug)]
pub(super) struct SimChannelSender {
    network: Arc<Network>,
    process: u32,
    channel: u64,
    ticket: [u8; 16],
}

impl SimChannelSender {
    fn send_as(&self, reach: DatagramReach, to: Option<u64>, bytes: &[u8]) -> Result<Sent, FabricError> {
        let (len, max) = (bytes.len(), DATAGRAM_LEN_MAX);
        if len > max {
            return Err(FabricError::MessageTooLong { len, max });
        }
        let now = self.network.now();
        let mut state = self.network.state.lock();
        state.check_alive(self.process)?;
        if state.channels.standing_ns.get(&self.channel).is_none_or(|standing_ns| *standing_ns > now) {
            return Ok(Sent::Full);
        }
        if let Some(left) = state.channels.full_sends.checked_sub(1) {
            state.channels.full_sends = left;
            return Ok(Sent::Full);
        }
        let (from, channel, bytes) = (self.process, self.channel, bytes.to_vec());
        let datagram = Waiting { due_ns: now, from, channel, reach, bytes };
        state.send_datagram(&datagram, to);
        Ok(Sent::Done)
    }
}

impl ChannelSender for SimChannelSender {
    fn ticket(&self) -> &[u8] {
        &self.ticket
    }

    fn datagram_len_max(&self) -> usize {
        DATAGRAM_LEN_MAX
    }

    fn send(&self, datagram: &[u8]) -> Result<Sent, FabricError> {
        self.send_as(DatagramReach::Multicast, None, datagram)
    }
}

/// Unicast to one receiver.
#[derive(Debug)]
pub(super) struct SimUnicastSender {
    channel: Arc<SimChannelSender>,
    inbox: u64,
}

impl UnicastSender for SimUnicastSender {
    fn send(&self, datagram: &[u8]) -> Result<Sent, FabricError> {
        self.channel.send_as(DatagramReach::Unicast, Some(self.inbox), datagram)
    }
}

/// The receiving end of a channel.
#[derive(Debug)]
pub(super) struct SimChannelReceiver {
    network: Arc<Network>,
    serial: u64,
    ticket: [u8; 20],
}

impl ChannelReceiver for SimChannelReceiver {
    fn return_ticket(&self) -> &[u8] {
        &self.ticket
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Datagram>, FabricError> {
        self.network.state.lock().receive_datagram(self.serial, into, self.network.now())
    }

    fn passed_over(&self) -> u64 {
        let state = self.network.state.lock();
        state.channels.inboxes.get(&self.serial).map_or(0, |inbox| inbox.passed_over)
    }

    fn wait_handle(&mut self) -> Result<Option<BorrowedFd<'_>>, FabricError> {
        Ok(None)
    }
}

impl Drop for SimChannelReceiver {
    fn drop(&mut self) {
        self.network.state.lock().channels.inboxes.remove(&self.serial);
    }
}

impl SimState {
    /// Sends a datagram by multicast, or to one receiver.
    fn send_datagram(&mut self, datagram: &Waiting, to: Option<u64>) {
        let now = datagram.due_ns;
        let channels = &self.channels;
        let (is_cut, serials) = match to {
            Some(serial) => (channels.unicast_is_cut, vec![serial]),
            None => {
                let has_joined =
                    |(_, inbox): &(&u64, &Inbox)| inbox.channel == datagram.channel && inbox.joined_ns <= now;
                let joined = channels.inboxes.iter().filter(has_joined);
                (channels.multicast_is_cut, joined.map(|(serial, _)| *serial).collect())
            }
        };
        for serial in serials {
            if is_cut || self.happens(self.channels.faults.lose_permille) {
                continue;
            }
            let times = 1 + u32::from(self.happens(self.channels.faults.double_permille));
            (0..times).for_each(|_| self.put_datagram(serial, datagram));
        }
    }

    fn put_datagram(&mut self, serial: u64, datagram: &Waiting) {
        let faults = self.channels.faults;
        let latency = self.latency() + self.random.below(faults.delay_ns_max + 1);
        let is_overtaken = self.happens(faults.reorder_permille);
        let Some(inbox) = self.channels.inboxes.get_mut(&serial) else { return };
        if inbox.channel != datagram.channel {
            inbox.passed_over += 1;
            return;
        }
        let due_ns = if is_overtaken {
            inbox.arrival_ns.max(datagram.due_ns) + latency * OVERTAKEN_LATENCIES
        } else {
            inbox.arrival_ns = inbox.arrival_ns.max(datagram.due_ns + latency);
            inbox.arrival_ns
        };
        inbox.push(Waiting { due_ns, ..datagram.clone() });
    }

    /// True this often in a thousand.
    fn happens(&mut self, permille: u64) -> bool {
        self.random.below(1000) < permille
    }

    fn receive_datagram(
        &mut self,
        serial: u64,
        into: &mut [u8],
        now: u64,
    ) -> Result<Option<Datagram>, FabricError> {
        while let Some(datagram) = self.take_datagram(serial, now)? {
            let len = datagram.bytes.len();
            if let Some(room) = into.get_mut(..len) {
                room.copy_from_slice(&datagram.bytes);
                return Ok(Some(Datagram { len, reach: datagram.reach }));
            }
            self.channels.inboxes.entry(serial).and_modify(|inbox| inbox.passed_over += 1);
        }
        Ok(None)
    }

    fn take_datagram(&mut self, serial: u64, now: u64) -> Result<Option<Waiting>, FabricError> {
        let inbox = self.channels.inboxes.get(&serial).ok_or(FabricError::Closed)?;
        self.check_alive(inbox.process)?;
        let has_left = |datagram: &Waiting| datagram.due_ns <= now && self.runs(datagram.from);
        if !self.runs(inbox.process) || !inbox.waiting.front().is_some_and(has_left) {
            return Ok(None);
        }
        Ok(self.channels.inboxes.get_mut(&serial).and_then(|inbox| inbox.waiting.pop_front()))
    }

    /// When the next datagram arrives, or the next channel is ready or joined.
    pub(super) fn datagrams_due(&self) -> impl Iterator<Item = u64> {
        let channels = &self.channels;
        let running = channels.inboxes.values().filter(|inbox| self.runs(inbox.process));
        let arriving = running.flat_map(|inbox| {
            let waiting = inbox.waiting.iter().filter(|datagram| self.runs(datagram.from));
            waiting.map(|datagram| datagram.due_ns).chain([inbox.joined_ns])
        });
        arriving.chain(channels.standing_ns.values().copied())
    }
}

/// The ticket of the channel or receiver with this number.
fn ticket(mark: [u8; 8], serial: u64) -> [u8; 16] {
    let mut ticket = [0; 16];
    let (first, second) = ticket.split_at_mut(mark.len());
    first.copy_from_slice(&mark);
    second.copy_from_slice(&serial.to_le_bytes());
    ticket
}

/// The ticket of this receiver in that process.
fn return_ticket(process: u32, serial: u64) -> [u8; 20] {
    let mut bytes = [0; 20];
    let (first, second) = bytes.split_at_mut(16);
    first.copy_from_slice(&ticket(RETURN_MARK, serial));
    second.copy_from_slice(&process.to_le_bytes());
    bytes
}

fn parse_ticket(mark: [u8; 8], bytes: &[u8]) -> Result<u64, FabricError> {
    let parsed = bytes.strip_prefix(&mark).and_then(|number| number.try_into().ok());
    parsed.map(u64::from_le_bytes).ok_or(NO_TICKET)
}
