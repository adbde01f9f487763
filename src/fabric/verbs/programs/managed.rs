//! The queue pairs of a program, connected by librdmacm.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::super::device;
use super::super::endpoint::MIN_RNR_TIMER;
use super::super::error::VerbsError;
use super::super::manager::{Destination, RETRY_COUNT, RNR_RETRY_COUNT, not_reached};
use super::super::opened::{Devices, OpenDevice};
use super::super::sys::{CmEvent, CmEventKind, CmId, ConnectParameters, EventChannel, PortSpace};
use super::error::ProgramError;
use super::plan::ProgramPlan;
use super::resources::Resources;
use super::time_limit::TimeLimit;
use super::watch::{Connection, Watch};
use super::wire::Refusal;
use crate::fabric::FabricError;
use crate::limits;

/// The reason of a rejection: no program listens.
const REJECTED_NO_LISTENER: i32 = 8;
const NS_PER_MS: u64 = 1_000_000;

/// Waits for the next event.
fn next_event(
    channel: &Arc<EventChannel>,
    stop: BorrowedFd<'_>,
    limit: &mut TimeLimit,
) -> Result<CmEvent, ProgramError> {
    let mut sleep_ns = 0;
    loop {
        if let Some(event) = channel.next()? {
            return Ok(event);
        }
        if limit.is_over(sleep_ns) {
            return Err(ProgramError::NoAnswer);
        }
        sleep_ns = limit.sleep_ns();
        let timeout = Timespec::try_from(std::time::Duration::from_nanos(sleep_ns)).ok();
        let handle = |handle| PollFd::from_borrowed_fd(handle, PollFlags::IN);
        let mut polled = [handle(channel.as_fd()), handle(stop)];
        match rustix::event::poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(FabricError::system("wait for the other process")(errno).into()),
        }
        let [_, stops] = polled.map(|polled| !polled.revents().is_empty());
        if stops {
            return Err(ProgramError::Stopped);
        }
    }
}

fn open(id: &CmId, devices: &Devices) -> Result<Arc<OpenDevice>, ProgramError> {
    let context = id.context()?.ok_or(VerbsError::DeviceGone)?;
    Ok(devices.open(&context)?)
}

/// A connection being established by this end.
struct Dialling<'a> {
    to: &'a Destination,
    id: CmId,
    channel: Arc<EventChannel>,
    stop: BorrowedFd<'a>,
    limit: TimeLimit,
}

/// Connects to the process that listens there.
pub(super) fn dial<'a>(
    plan: &ProgramPlan,
    to: &Destination,
    devices: &Devices,
    stop: BorrowedFd<'a>,
) -> Result<(Resources, Watch<'a>), ProgramError> {
    dial_with(plan, &plan.emit(), (to, devices), stop)
}

/// The same with this request.
pub(super) fn dial_with<'a>(
    plan: &ProgramPlan,
    request: &[u8],
    (to, devices): (&Destination, &Devices),
    stop: BorrowedFd<'a>,
) -> Result<(Resources, Watch<'a>), ProgramError> {
    let limit = TimeLimit::begin(limits::verbs::CONNECT_DEADLINE_NS);
    let channel = EventChannel::create().map_err(device::explain)?;
    let id = CmId::create(&channel, PortSpace::Connections)?;
    let source = devices.source(&to.target)?;
    let mut dialling = Dialling { to, id, channel, stop, limit };
    let (resources, opened) = dialling.resolve(plan, source.as_ref(), devices)?;
    dialling.id.connect(&ConnectParameters {
        private_data: request,
        responder_resources: opened.reads_served_max,
        initiator_depth: opened.reads_max,
        retry_count: RETRY_COUNT,
        rnr_retry_count: RNR_RETRY_COUNT,
    })?;
    dialling.expect(CmEventKind::Established)?;
    resources.queue_pair.set_min_rnr_timer(MIN_RNR_TIMER)?;
    resources.queue_pair.set_access(plan.program.flags(plan.program.client_drives()))?;
    let Dialling { id, channel, .. } = dialling;
    Ok((resources, Watch::new(Connection::Managed { id, channel }, stop)))
}

impl Dialling<'_> {
    /// Resolves the address and the route, and makes the queue pair between.
    fn resolve(
        &mut self,
        plan: &ProgramPlan,
        source: Option<&SocketAddr>,
        devices: &Devices,
    ) -> Result<(Resources, Arc<OpenDevice>), ProgramError> {
        let timeout_ms = i32::try_from(limits::verbs::CONNECT_DEADLINE_NS / NS_PER_MS).unwrap_or(i32::MAX);
        let begun = self.id.resolve_address(source, &self.to.target, timeout_ms);
        begun.map_err(|error| not_reached(self.to, error.into()))?;
        self.expect(CmEventKind::AddressResolved)?;
        let opened = open(&self.id, devices)?;
        let id = &self.id;
        let mut resources =
            Resources::create(plan, &opened, |domain, plan| id.create_queue_pair(domain, plan))?;
        resources.post_receives()?;
        opened.prepare(&self.id)?;
        self.id.resolve_route(timeout_ms)?;
        self.expect(CmEventKind::RouteResolved)?;
        Ok((resources, opened))
    }

    fn expect(&mut self, wanted: CmEventKind) -> Result<(), ProgramError> {
        let address = || self.to.address.clone();
        loop {
            let event = match next_event(&self.channel, self.stop, &mut self.limit) {
                Err(ProgramError::NoAnswer) => {
                    return Err(FabricError::NoAnswer { address: address() }.into());
                }
                event => event?,
            };
            match event.kind {
                kind if kind == wanted => return Ok(()),
                CmEventKind::Rejected if event.status == REJECTED_NO_LISTENER => {
                    return Err(FabricError::NoSuchNode { address: address() }.into());
                }
                CmEventKind::Rejected => {
                    return Err(match Refusal::parse(&event.private_data) {
                        Some(refusal) => ProgramError::Refused { why: refusal.why() },
                        None => ProgramError::NotAProgram,
                    });
                }
                CmEventKind::AddressError
                | CmEventKind::RouteError
                | CmEventKind::ConnectError
                | CmEventKind::Unreachable
                | CmEventKind::Disconnected
                | CmEventKind::DeviceRemoval => {
                    let (name, status) = (format!("{:?}", event.kind), event.status);
                    return Err(not_reached(self.to, VerbsError::NotConnected { event: name, status }).into());
                }
                _ => {}
            }
        }
    }
}

/// Accepts a peer's request. `None` if it was refused.
pub(super) fn accept<'a>(
    request: CmEvent,
    devices: &Devices,
    stop: BorrowedFd<'a>,
) -> Result<Option<(ProgramPlan, Resources, Watch<'a>)>, ProgramError> {
    let Some(id) = &request.new_id else { return Ok(None) };
    let plan = match ProgramPlan::parse(&request.private_data) {
        Ok(plan) if plan.program.has_manager() => plan,
        refused => {
            // It fails if the peer is gone already.
            let _ = id.reject(&refused.err().unwrap_or(Refusal::Program).emit());
            return Ok(None);
        }
    };
    let accepted = answer(&plan, &request, id, devices).map_err(|error| {
        // Rejecting fails if the peer has given up. Then creating the queue pair has failed for that reason, too.
        if id.reject(&Refusal::Resources.emit()).is_ok() { error } else { ProgramError::Gone }
    });
    let (resources, channel) = accepted?;
    // Its first message shows that the peer has the acceptance, also where its last message of the connection manager is lost.
    Ok(Some((plan, resources, Watch::new(Connection::Managed { id: id.clone(), channel }, stop))))
}

fn answer(
    plan: &ProgramPlan,
    request: &CmEvent,
    id: &CmId,
    devices: &Devices,
) -> Result<(Resources, Arc<EventChannel>), ProgramError> {
    let channel = EventChannel::create()?;
    id.migrate(&channel)?;
    let opened = open(id, devices)?;
    opened.prepare(id)?;
    let mut resources = Resources::create(plan, &opened, |domain, plan| id.create_queue_pair(domain, plan))?;
    resources.post_receives()?;
    id.accept(&ConnectParameters {
        private_data: &[],
        responder_resources: request.responder_resources.min(opened.reads_served_max),
        initiator_depth: request.initiator_depth.min(opened.reads_max),
        retry_count: RETRY_COUNT,
        rnr_retry_count: RNR_RETRY_COUNT,
    })?;
    resources.queue_pair.set_min_rnr_timer(MIN_RNR_TIMER)?;
    resources.queue_pair.set_access(plan.program.flags(!plan.program.client_drives()))?;
    Ok((resources, channel))
}
