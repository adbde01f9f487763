//! What the two ends of a program send each other besides blocks. Numbers are in network byte order.
//!
//! ```text
//! request   "FBPG"  version u8  program u8  events u8  0 u8  size u32  depth u32  chain u32  signal-every u32  inline u32  sge u32
//!           iterations u64  time u64, ns: of the end that dials; private data of a connection request, or the first frame over TCP
//! ticket    "FBPT"  LID u16  reads u16  queue pair u32  packet sequence u32  MTU u32  queue key u32  GID [16]: of both ends, over TCP
//! refusal   "FBPR"  reason u32
//! message   "FBPM"  kind u32, and 15 numbers u64: over the queue pair
//! ```

#![expect(clippy::big_endian_bytes, reason = "the ends may be of different kinds")]

use super::figures::Figures;
use super::plan::{Program, ProgramPlan};

/// The version of all of these.
const VERSION: u8 = 1;
const REQUEST: [u8; 4] = *b"FBPG";
const TICKET: [u8; 4] = *b"FBPT";
const REFUSAL: [u8; 4] = *b"FBPR";
const MESSAGE: u64 = u32::from_be_bytes(*b"FBPM") as u64;
/// Bytes of a request.
pub(super) const REQUEST_LEN: usize = 48;
/// Words of a message.
pub(super) const MESSAGE_WORDS: usize = 16;
/// Bytes of a message.
pub(super) const MESSAGE_LEN: usize = MESSAGE_WORDS * 8;
/// The last frame of the exchange over TCP, by the end that dials: its queue pair receives.
pub(super) const READY: &[u8] = b"FBPY";
/// Bits of queue pair numbers and packet sequence numbers.
const NUMBER_BITS: u32 = 24;

/// One end of a queue pair, as the other connects to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) lid: u16,
    /// READs that it answers at a time.
    pub(super) reads_max: u16,
    pub(super) queue_pair: u32,
    /// The sequence number of its first packet.
    pub(super) packet_sequence: u32,
    pub(super) mtu: u32,
    /// The key that its datagrams must have.
    pub(super) key: u32,
    pub(super) gid: [u8; 16],
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is not a request of this version.
    Version,
    /// The program does not exist, or its numbers contradict each other.
    Program,
    /// This end cannot do it.
    Resources,
    /// The TCP connection comes from another address than its device's.
    OtherAddress,
}

/// A message over the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) what: MessageKind,
    /// Where the sender's exposed memory is; of the first message.
    pub(super) address: u64,
    pub(super) key: u32,
    pub(super) len: u64,
    /// What the sender has seen; of the last message.
    pub(super) verified: u64,
    pub(super) whole: u64,
    pub(super) wrong: u64,
    pub(super) lost: u64,
    pub(super) cpu_ns: u64,
    pub(super) wall_ns: u64,
    pub(super) figures: Figures,
}

/// The kinds of [`Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// Where the memory is.
    Buffers,
    /// The run is over.
    End,
}

/// The first bytes.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes).map(u32::from_be_bytes)
}

impl ProgramPlan {
    /// Encodes it as a request.
    pub(super) fn emit(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        let head = [VERSION, self.program.number(), self.events.into(), 0];
        let numbers = [self.size, self.depth, self.chain, self.signal_every, self.inline, self.sge];
        let numbers = numbers.map(u32::to_be_bytes);
        let times = [self.iterations.unwrap_or(0), self.time_ns].map(u64::to_be_bytes);
        let parts = REQUEST.iter().chain(&head).chain(numbers.as_flattened()).chain(times.as_flattened());
        bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Decodes a request, which may be padded.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let rest = &mut bytes.get(..REQUEST_LEN).ok_or(Refusal::Version)?;
        let mut parse = || {
            let magic: [u8; 4] = take(rest)?;
            let [version, program, events, _] = take(rest)?;
            if (magic, version) != (REQUEST, VERSION) {
                return None;
            }
            let (size, depth, chain) = (take_u32(rest)?, take_u32(rest)?, take_u32(rest)?);
            let (signal_every, inline, sge) = (take_u32(rest)?, take_u32(rest)?, take_u32(rest)?);
            let (iterations, time_ns) = (u64::from_be_bytes(take(rest)?), u64::from_be_bytes(take(rest)?));
            let iterations = (iterations > 0).then_some(iterations);
            let program = Program::of_number(program);
            Some(program.map(|program| Self {
                program,
                size,
                iterations,
                time_ns,
                inline,
                sge,
                signal_every,
                depth,
                chain,
                events: events == 1,
            }))
        };
        let plan = parse().ok_or(Refusal::Version)?.ok_or(Refusal::Program)?;
        plan.check().map_err(|_| Refusal::Program)?;
        Ok(plan)
    }
}

impl Ticket {
    pub(super) fn emit(&self) -> Vec<u8> {
        let Self { lid, reads_max, queue_pair, packet_sequence, mtu, key, gid } = *self;
        let numbers = [queue_pair, packet_sequence, mtu, key].map(u32::to_be_bytes);
        [&TICKET[..], &lid.to_be_bytes(), &reads_max.to_be_bytes(), numbers.as_flattened(), &gid].concat()
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = &mut { bytes };
        if take(rest)? != TICKET {
            return None;
        }
        let (lid, reads_max) = (u16::from_be_bytes(take(rest)?), u16::from_be_bytes(take(rest)?));
        let (queue_pair, packet_sequence) = (take_u32(rest)?, take_u32(rest)?);
        let (mtu, key, gid) = (take_u32(rest)?, take_u32(rest)?, take(rest)?);
        let is_right = rest.is_empty()
            && queue_pair >> NUMBER_BITS == 0
            && packet_sequence >> NUMBER_BITS == 0
            && mtu.is_power_of_two()
            && (256..=4096).contains(&mtu);
        is_right.then_some(Self { lid, reads_max, queue_pair, packet_sequence, mtu, key, gid })
    }
}

impl Refusal {
    const ALL: [Self; 4] = [Self::Version, Self::Program, Self::Resources, Self::OtherAddress];

    pub(super) fn emit(self) -> [u8; 8] {
        let [a, b, c, d] = REFUSAL;
        [a, b, c, d, 0, 0, 0, self as u8]
    }

    /// A peer's reason, which may be padded.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = &mut { bytes };
        let magic: [u8; 4] = take(rest)?;
        let number = take_u32(rest)?;
        let found = Self::ALL.into_iter().find(|refusal| *refusal as u32 == number);
        found.filter(|_| magic == REFUSAL)
    }

    /// The reason in words.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Version => "it is of a different version",
            Self::Program => "it does not have this program, or not with these options",
            Self::Resources => {
                "its device or its memory does not suffice: use a smaller --depth, --size, --sge or --inline"
            }
            Self::OtherAddress => {
                "the TCP connection does not come from the address of the RDMA device: set FABRICAST_RDMA_DEVICE to \
                 the device that has the route there"
            }
        }
    }
}

impl Message {
    /// Where this much memory is.
    pub(super) fn buffers(address: u64, key: u32, len: u64) -> Self {
        Self {
            what: MessageKind::Buffers,
            address,
            key,
            len,
            verified: 0,
            whole: 0,
            wrong: 0,
            lost: 0,
            cpu_ns: 0,
            wall_ns: 0,
            figures: Figures::default(),
        }
    }

    /// Encodes it as words that are stored in network byte order.
    pub(super) fn emit(&self) -> [u64; MESSAGE_WORDS] {
        let Figures { iterations, total_ns, p50_ns, p99_ns, p999_ns, max_ns } = self.figures;
        let what = match self.what {
            MessageKind::Buffers => 1,
            MessageKind::End => 2,
        };
        [
            MESSAGE << 32 | what,
            self.address,
            self.key.into(),
            self.len,
            self.verified,
            self.whole,
            self.wrong,
            self.lost,
            self.cpu_ns,
            self.wall_ns,
            iterations,
            total_ns,
            p50_ns,
            p99_ns,
            p999_ns,
            max_ns,
        ]
        .map(u64::to_be)
    }

    pub(super) fn parse(words: [u64; MESSAGE_WORDS]) -> Option<Self> {
        let [head, address, key, len, verified, whole, wrong, lost, cpu_ns, wall_ns, iterations, times @ ..] =
            words.map(u64::from_be);
        let [total_ns, p50_ns, p99_ns, p999_ns, max_ns] = times;
        let what = match (head >> 32 == MESSAGE, head & u64::from(u32::MAX)) {
            (true, 1) => MessageKind::Buffers,
            (true, 2) => MessageKind::End,
            _ => return None,
        };
        let key = u32::try_from(key).ok()?;
        let figures = Figures { iterations, total_ns, p50_ns, p99_ns, p999_ns, max_ns };
        Some(Self { what, address, key, len, verified, whole, wrong, lost, cpu_ns, wall_ns, figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_back_and_damaged_ones_refused() {
        let plan = ProgramPlan {
            iterations: Some(7),
            events: true,
            inline: 64,
            ..ProgramPlan::new(Program::Send, 64)
        };
        let bytes = plan.emit();
        assert_eq!(ProgramPlan::parse(&[&bytes[..], &[0; 8]].concat()), Ok(plan));
        for len in 0..bytes.len() {
            assert_eq!(ProgramPlan::parse(&bytes[..len]), Err(Refusal::Version));
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The last bits of a byte have no meaning.
            if !(48..64).contains(&bit) {
                assert_ne!(ProgramPlan::parse(&damaged), Ok(plan), "bit {bit}");
            }
        }
    }

    #[test]
    fn tickets_refusals_and_messages_are_read_back() {
        let ticket = Ticket {
            lid: 1,
            reads_max: 16,
            queue_pair: 17,
            packet_sequence: 0x00ab_cdef,
            mtu: 4096,
            key: 5,
            gid: *b"0123456789abcdef",
        };
        let bytes = ticket.emit();
        assert_eq!(Ticket::parse(&bytes), Some(ticket));
        for len in 0..bytes.len() {
            assert_eq!(Ticket::parse(&bytes[..len]), None);
        }
        assert_eq!(Ticket::parse(&Ticket { mtu: 4095, ..ticket }.emit()), None);
        assert_eq!(Ticket::parse(&Ticket { queue_pair: 1 << 24, ..ticket }.emit()), None);
        for refusal in Refusal::ALL {
            assert_eq!(Refusal::parse(&[&refusal.emit()[..], &[0; 140]].concat()), Some(refusal));
        }
        assert_eq!(Refusal::parse(b"FBPR\0\0\0\x09"), None);
        let figures = Figures { iterations: 1, total_ns: 2, p50_ns: 3, p99_ns: 4, p999_ns: 5, max_ns: 6 };
        let message = Message { what: MessageKind::End, figures, ..Message::buffers(7, 8, 9) };
        assert_eq!(Message::parse(message.emit()), Some(message));
        assert_eq!(Message::parse([0; MESSAGE_WORDS]), None);
    }
}
