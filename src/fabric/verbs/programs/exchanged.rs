//! The queue pairs of a program, connected by an exchange over TCP.

use std::net::{IpAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::super::device::{Device, Wish, ip_of};
use super::super::endpoint::MIN_RNR_TIMER;
use super::super::error::VerbsError;
use super::super::exchange::packet_sequence;
use super::super::handshake::{connect, not_connected};
use super::super::manager::{Destination, RETRY_COUNT, RNR_RETRY_COUNT};
use super::super::opened::{Devices, OpenDevice};
use super::super::stream::{FrameStream, StreamEvent};
use super::super::sys::{
    AddressHandle, LinkLayer, Path, QueuePair, QueuePairKind, RtrPlan, RtsPlan, SysError,
};
use super::error::ProgramError;
use super::plan::ProgramPlan;
use super::resources::{DatagramPeer, Resources};
use super::time_limit::TimeLimit;
use super::watch::{Connection, Watch};
use super::wire::{READY, Refusal, Ticket};
use crate::fabric::FabricError;
use crate::limits;

/// An unconnected end.
struct Unconnected {
    resources: Resources,
    device: Device,
    opened: Arc<OpenDevice>,
    ticket: Ticket,
}

fn system(refusal: impl Into<std::io::Error>) -> ProgramError {
    FabricError::System { what: "use a TCP connection", source: refusal.into() }.into()
}

/// Waits until the socket is readable, or writable.
fn await_socket(
    stream: &FrameStream,
    flags: PollFlags,
    stop: BorrowedFd<'_>,
    limit: &mut TimeLimit,
) -> Result<(), ProgramError> {
    let mut sleep_ns = 0;
    loop {
        if limit.is_over(sleep_ns) {
            return Err(ProgramError::NoAnswer);
        }
        sleep_ns = limit.sleep_ns();
        let timeout = Timespec::try_from(std::time::Duration::from_nanos(sleep_ns)).ok();
        let mut polled = [PollFd::new(&stream.socket, flags), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(system(errno)),
        }
        let [is_ready, stops] = polled.map(|polled| !polled.revents().is_empty());
        if stops {
            return Err(ProgramError::Stopped);
        }
        if is_ready {
            return Ok(());
        }
    }
}

/// The next frame.
fn next_frame(
    stream: &mut FrameStream,
    stop: BorrowedFd<'_>,
    limit: &mut TimeLimit,
) -> Result<Vec<u8>, ProgramError> {
    loop {
        match stream.receive() {
            StreamEvent::Frame(frame) => return Ok(frame),
            StreamEvent::Nothing => await_socket(stream, PollFlags::IN, stop, limit)?,
            StreamEvent::Closed => return Err(ProgramError::Gone),
            StreamEvent::Lost => return Err(ProgramError::HostSilent),
            StreamEvent::Malformed => return Err(ProgramError::NotAProgram),
        }
    }
}

/// Sends a frame, which fits into a new connection's buffer.
fn say(stream: &mut FrameStream, frame: &[u8]) -> Result<(), ProgramError> {
    stream.send(frame).map_err(system)?;
    Ok(())
}

/// Connects to the process that listens there.
pub(super) fn dial<'a>(
    plan: &ProgramPlan,
    to: &Destination,
    devices: &Devices,
    stop: BorrowedFd<'a>,
) -> Result<(Resources, Watch<'a>), ProgramError> {
    let limit = &mut TimeLimit::begin(limits::verbs::CONNECT_DEADLINE_NS);
    let source = devices.source(&to.target)?;
    let failed = |error| not_connected(to, error);
    let socket = connect(source.as_ref(), &to.target).map_err(failed)?;
    let mut stream = FrameStream::new(socket).map_err(system)?;
    let unanswered = || FabricError::NoAnswer { address: to.address.clone() };
    match await_socket(&stream, PollFlags::OUT, stop, limit) {
        Err(ProgramError::NoAnswer) => return Err(unanswered().into()),
        outcome => outcome?,
    }
    if let Some(error) = stream.socket.take_error().map_err(system)? {
        return Err(failed(error).into());
    }
    let (local, peer) = addresses(&stream.socket)?;
    let mut near = Unconnected::create(plan, local, plan.program.client_drives(), devices)?;
    say(&mut stream, &plan.emit())?;
    say(&mut stream, &near.ticket.emit())?;
    let answer = match next_frame(&mut stream, stop, limit) {
        Err(ProgramError::NoAnswer) => return Err(unanswered().into()),
        answer => answer?,
    };
    if let Some(refusal) = Refusal::parse(&answer) {
        return Err(ProgramError::Refused { why: refusal.why() });
    }
    let far = Ticket::parse(&answer).ok_or(ProgramError::NotAProgram)?;
    near.connect(&far, peer)?;
    say(&mut stream, READY)?;
    Ok((near.resources, Watch::new(Connection::Exchanged(stream), stop)))
}

/// Takes a connection that a peer dialled. `None` if it was refused.
pub(super) fn accept<'a>(
    socket: TcpStream,
    devices: &Devices,
    stop: BorrowedFd<'a>,
) -> Result<Option<(ProgramPlan, Resources, Watch<'a>)>, ProgramError> {
    let limit = &mut TimeLimit::begin(limits::verbs::CONNECT_DEADLINE_NS);
    let mut stream = FrameStream::new(socket).map_err(system)?;
    let (local, peer) = addresses(&stream.socket)?;
    let plan = match ProgramPlan::parse(&next_frame(&mut stream, stop, limit)?) {
        Ok(plan) => plan,
        Err(refusal) => {
            say(&mut stream, &refusal.emit())?;
            return Ok(None);
        }
    };
    let far = Ticket::parse(&next_frame(&mut stream, stop, limit)?).ok_or(ProgramError::NotAProgram)?;
    let near = Unconnected::create(&plan, local, !plan.program.client_drives(), devices);
    let near = near.and_then(|mut near| near.connect(&far, peer).map(|()| near)).inspect_err(|error| {
        let is_other =
            matches!(error, ProgramError::Fabric(FabricError::Verbs(VerbsError::OtherAddress { .. })));
        let refusal = if is_other { Refusal::OtherAddress } else { Refusal::Resources };
        // If it fails, the peer is gone.
        let _ = say(&mut stream, &refusal.emit());
    })?;
    say(&mut stream, &near.ticket.emit())?;
    if next_frame(&mut stream, stop, limit)? != READY {
        return Err(ProgramError::NotAProgram);
    }
    Ok(Some((plan, near.resources, Watch::new(Connection::Exchanged(stream), stop))))
}

fn addresses(socket: &TcpStream) -> Result<(IpAddr, IpAddr), ProgramError> {
    Ok((socket.local_addr().map_err(system)?.ip(), socket.peer_addr().map_err(system)?.ip()))
}

impl Unconnected {
    /// Makes a queue pair on the device with this address.
    fn create(
        plan: &ProgramPlan,
        local: IpAddr,
        drives: bool,
        devices: &Devices,
    ) -> Result<Self, ProgramError> {
        let device = Device::choose(&Wish::from_environment(Some(local))?)?;
        let opened = devices.open(&device.context)?;
        let mtu = device.port_attributes.active_mtu;
        let kind = plan.program.kind();
        if kind == QueuePairKind::Ud && plan.size > mtu {
            let sentence =
                format!("a datagram has up to {mtu} bytes here, not {}: use a smaller --size", plan.size);
            return Err(ProgramError::unfit(sentence));
        }
        let mut resources = Resources::create(plan, &opened, QueuePair::create)?;
        let random = || crate::random::number().map_err(FabricError::no_random);
        // Keys from 2^31 on are privileged.
        let key = packet_sequence(random()?);
        match kind {
            QueuePairKind::Ud => resources.queue_pair.restart(device.port, key)?,
            _ => resources.queue_pair.to_init(device.port, plan.program.flags(drives))?,
        }
        resources.post_receives()?;
        let ticket = Ticket {
            lid: device.port_attributes.lid,
            reads_max: opened.reads_served_max.into(),
            queue_pair: resources.queue_pair.number(),
            packet_sequence: packet_sequence(random()?),
            mtu,
            key,
            gid: device.gid.bytes,
        };
        Ok(Self { resources, device, opened, ticket })
    }

    /// Connects it to the peer's, which is reached over TCP by this address: its device must have the same, as of nodes.
    fn connect(&mut self, far: &Ticket, peer: IpAddr) -> Result<(), ProgramError> {
        let is_global = self.device.port_attributes.link_layer == LinkLayer::Ethernet;
        let (claimed, address) = (ip_of(far.gid), peer.to_canonical());
        if is_global && claimed != address {
            return Err(VerbsError::OtherAddress { claimed, address }.into());
        }
        let gid_index = u8::try_from(self.device.gid.index)
            .map_err(|_| SysError::new("ibv_modify_qp", rustix::io::Errno::RANGE))?;
        let queue_pair = &self.resources.queue_pair;
        if queue_pair.kind() == QueuePairKind::Ud {
            let path = Path::new(self.device.port, gid_index, far.gid).with_lid(far.lid);
            let path = path.with_traffic_class(self.opened.traffic_class.unwrap_or(0));
            let handle = Arc::new(AddressHandle::create(&self.resources.domain, &path)?);
            self.resources.peer = Some(DatagramPeer { handle, queue_pair: far.queue_pair, key: far.key });
            return Ok(());
        }
        queue_pair.to_rtr(&RtrPlan {
            mtu: self.ticket.mtu.min(far.mtu),
            dest_qp_num: far.queue_pair,
            rq_psn: far.packet_sequence,
            max_dest_rd_atomic: self.opened.reads_served_max,
            min_rnr_timer: MIN_RNR_TIMER,
            port: self.device.port,
            dlid: far.lid,
            global: is_global.then_some((far.gid, gid_index)),
            traffic_class: self.opened.traffic_class.unwrap_or(0),
        })?;
        queue_pair.to_rts(&RtsPlan {
            sq_psn: self.ticket.packet_sequence,
            timeout: self.opened.ack_timeout,
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY_COUNT,
            max_rd_atomic: self.opened.reads_max.min(u8::try_from(far.reads_max).unwrap_or(u8::MAX)),
        })?;
        Ok(())
    }
}
