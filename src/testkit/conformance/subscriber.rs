//! A subscriber as small as it can be. It dials again whenever something fails.

use std::sync::Arc;
use std::time::Duration;

use super::observer::Observer;
use super::publisher::{PULL, PUSH, topic};
use super::registered;
use crate::fabric::{
    Address, Completion, Connection, Exposure, Fabric, FabricError, Intent, Placement, Received,
    Registration, RemoteRead, Sent,
};
use crate::id::{Delivery, Epoch, TopicId};
use crate::layout::state::StateGeometry;
use crate::memory::Region;
use crate::repository::state::StateReader;
use crate::repository::{Fetch, Finding, ReadFailure, Reader, WriteOrder};

type StateFetch = Fetch<<StateReader as Reader>::Purpose>;

/// A process that subscribes.
#[derive(Debug)]
pub(super) struct Subscriber {
    session: Option<Session>,
    reader: Option<(StateReader, Observer)>,
    fabric: Box<dyn Fabric>,
    address: Address,
    delivery: Delivery,
    geometry: StateGeometry,
    /// The epoch to look for, whatever the publisher says.
    pub(super) believed_epoch: Option<Epoch>,
    /// Whether faults may hide the newest value.
    pub(super) has_faults: bool,
}

#[derive(Debug)]
struct Session {
    connection: Box<dyn Connection>,
    asked: bool,
    landing: Option<Registration>,
    source: Option<Source>,
    epoch: Option<Epoch>,
}

/// Where values are read.
#[derive(Debug)]
enum Source {
    /// In place, at the publisher.
    Mapped(Arc<Region>),
    /// At the publisher, by transfers.
    Fetched { remote: Box<dyn RemoteRead>, next: Option<Posted>, posted: Option<Posted> },
    /// In memory of its own that the publisher writes, as long as it is registered; word by word in order, or not.
    Landing { landing: Registration, has_word_order: bool },
}

/// A read under way, or to be posted.
#[derive(Clone, Copy, Debug)]
struct Posted {
    fetch: StateFetch,
    /// The newest position when the look that it belongs to began.
    floor: u64,
}

impl Subscriber {
    pub(super) fn new(
        fabric: Box<dyn Fabric>,
        address: Address,
        delivery: Delivery,
        geometry: StateGeometry,
    ) -> Self {
        let (session, reader, believed_epoch) = (None, None, None);
        Self { session, reader, fabric, address, delivery, geometry, believed_epoch, has_faults: false }
    }

    /// What it has seen of the present epoch.
    pub(super) fn observer(&self) -> Option<&Observer> {
        self.reader.as_ref().map(|(_, observer)| observer)
    }

    /// Whether it has accepted or rejected everything up to here.
    pub(super) fn has_reached(&self, (epoch, sequence): (Epoch, u64)) -> bool {
        let session_epoch = self.session.as_ref().and_then(|session| session.epoch);
        let last = self.reader.as_ref().map(|(reader, _)| reader.last().get());
        session_epoch == Some(epoch) && last == Some(sequence)
    }

    /// Checks what it has counted.
    pub(super) fn check(&self) {
        let (reader, observer) = self.reader.as_ref().expect("it was answered");
        observer.check(reader.counts());
    }

    /// Does what there is to be done, the publisher standing at `newest`.
    pub(super) fn turn(&mut self, newest: (Epoch, u64)) {
        if self.try_turn(newest).is_err() {
            self.session = None;
        }
    }

    fn try_turn(&mut self, newest: (Epoch, u64)) -> Result<(), FabricError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => Session::new(self.fabric.dial(&self.address, Intent::Read, Duration::ZERO)?),
        };
        session.ask(&*self.fabric, self.delivery, self.geometry.region_len())?;
        if session.hear(self.geometry.region_len())? {
            self.begin_epoch(self.believed_epoch.or(session.epoch).expect("it was just told"));
        }
        if let (Some(source), Some((reader, observer))) = (&mut session.source, &mut self.reader) {
            let floor = if session.epoch == Some(newest.0) && !self.has_faults { newest.1 } else { 0 };
            source.read(reader, observer, floor)?;
        }
        self.session = Some(session);
        Ok(())
    }

    /// Begins to read another epoch, if it is another one.
    fn begin_epoch(&mut self, epoch: Epoch) {
        if self.reader.as_ref().is_none_or(|(_, observer)| !observer.is_of(epoch)) {
            let reader = StateReader::new(self.geometry, epoch, TopicId::of(&topic()));
            self.reader = Some((reader, Observer::new(epoch, self.geometry.payload_len_max())));
        }
    }
}

impl Session {
    fn new(connection: Box<dyn Connection>) -> Self {
        Self { connection, asked: false, landing: None, source: None, epoch: None }
    }

    /// Says what it wants, once.
    fn ask(&mut self, fabric: &dyn Fabric, delivery: Delivery, len: usize) -> Result<(), FabricError> {
        if self.asked {
            return Ok(());
        }
        let sent = match delivery {
            Delivery::Pull => self.connection.send(PULL, None)?,
            Delivery::Push => {
                let landing = &*self.landing.get_or_insert_with(|| registered(fabric, len, Exposure::Write));
                self.connection.send(PUSH, Some(landing))?
            }
        };
        self.asked = sent == Sent::Done;
        Ok(())
    }

    /// Takes the publisher's answer. Says whether it has come just now.
    fn hear(&mut self, len: usize) -> Result<bool, FabricError> {
        let mut buffer = [0; 8];
        let offer = match self.connection.receive(&mut buffer)? {
            Received::Nothing => return Ok(false),
            Received::Closed => return Err(FabricError::Closed),
            Received::Message { offer, .. } => offer,
        };
        self.epoch = Epoch::new(u64::from_le_bytes(buffer));
        self.source = match (offer, self.landing.take()) {
            (None, Some(landing)) => {
                let has_word_order = self.connection.capabilities().placement == Placement::Words;
                Some(Source::Landing { landing, has_word_order })
            }
            (Some(offer), None) => {
                let remote = offer.open_read(len)?;
                Some(if remote.is_mapped() {
                    Source::Mapped(Arc::clone(remote.mirror()))
                } else {
                    Source::Fetched { remote, next: None, posted: None }
                })
            }
            _ => panic!("an answer to another question"),
        };
        Ok(true)
    }
}

impl Source {
    /// Reads the newest value, as far as that can be done at once.
    fn read(
        &mut self,
        reader: &mut StateReader,
        observer: &mut Observer,
        floor: u64,
    ) -> Result<(), FabricError> {
        match self {
            Self::Mapped(region) => match reader.read(region) {
                Ok(Some(value)) => observer.value(&value, floor),
                Ok(None) => assert!(reader.last().get() >= floor, "the newest value is {floor}"),
                Err(failure) => observer.failure(failure, reader.last().get()),
            },
            // The newest value may be on its way.
            Self::Landing { landing, has_word_order } => {
                let now_ns = observer.tick();
                let order = if *has_word_order { WriteOrder::Words } else { WriteOrder::Writes };
                let taken = reader.follow(landing.region(), order, || now_ns);
                match taken.map(|taken| taken.map(|taken| reader.verified(taken))) {
                    Ok(Some(value)) => observer.value(&value, 0),
                    Ok(None) => {}
                    Err(failure) => observer.failure(failure, reader.last().get()),
                }
            }
            Self::Fetched { remote, next, posted } => {
                let completion = match posted {
                    Some(_) => remote.poll()?,
                    None => {
                        let begun = next.take().unwrap_or_else(|| Posted { fetch: reader.plan(), floor });
                        *posted = Some(begun);
                        remote.post(begun.fetch.ranges())?
                    }
                };
                if completion == Completion::Done {
                    let posted = posted.take().expect("it was just posted or polled");
                    let fetch = check(reader, observer, remote.mirror(), posted);
                    *next = fetch.map(|fetch| Posted { fetch, ..posted });
                }
            }
        }
        Ok(())
    }
}

/// Looks at what was fetched, and says what else to fetch.
fn check(
    reader: &mut StateReader,
    observer: &mut Observer,
    mirror: &Region,
    Posted { fetch, floor }: Posted,
) -> Option<StateFetch> {
    let failure: ReadFailure = match reader.check(mirror, &fetch, observer.tick()) {
        Ok(Finding::Taken(taken)) => {
            observer.value(&reader.verified(taken), floor);
            return None;
        }
        Ok(Finding::More(next)) => return Some(next),
        Ok(Finding::Something | Finding::Nothing) => {
            assert!(reader.last().get() >= floor, "the newest value is {floor}");
            return None;
        }
        Err(failure) => failure,
    };
    observer.failure(failure, reader.last().get());
    None
}
