//! A minimal subscriber. It dials again whenever something fails.

use std::sync::Arc;
use std::time::Duration;

use super::kind::ConformingKind;
use super::observer::Observer;
use super::publisher::{PULL, PUSH, bytes_of, topic, words_of};
use super::registered;
use crate::fabric::{
    Address, Completion, Connection, Exposure, Fabric, FabricError, Intent, Placement, Received,
    Registration, RemoteRead, Sent,
};
use crate::id::{Delivery, Epoch, KindOptions, Sequence, TopicId};
use crate::layout::Geometry;
use crate::layout::header::HOT_EPOCH;
use crate::memory::Region;
use crate::repository::{Fetch, Finding, GrantedAt, ReadFailure, Reader, Taken, WriteOrder};

/// The most values that a subscriber receives in one turn.
const VALUES_MAX: u32 = 4;

/// A process that subscribes.
#[derive(Debug)]
pub(super) struct Subscriber<K: ConformingKind> {
    session: Option<Session<K::Reader>>,
    reader: Option<(K::Reader, Observer)>,
    fabric: Box<dyn Fabric>,
    address: Address,
    geometry: Geometry,
    delivery: Delivery,
    /// Its initial options.
    asked: <K::Reader as Reader>::Options,
    /// The epoch to expect, whatever the publisher says.
    pub(super) believed_epoch: Option<Epoch>,
    /// Whether faults may hide the newest value.
    pub(super) has_faults: bool,
}

#[derive(Debug)]
struct Session<R: Reader> {
    connection: Box<dyn Connection>,
    /// Its options.
    options: R::Options,
    has_asked: bool,
    landing: Option<Registration>,
    source: Option<Source<R>>,
    epoch: Option<Epoch>,
}

/// The source of values.
#[derive(Debug)]
enum Source<R: Reader> {
    /// In place, at the publisher.
    Mapped(Arc<Region>),
    /// At the publisher, by transfers.
    Fetched { remote: Box<dyn RemoteRead>, next: Option<Posted<R>>, posted: Option<Posted<R>> },
    /// In its own memory, which the publisher writes while it is registered.
    Landing { landing: Registration, epoch: u64, order: WriteOrder },
}

/// A read in flight, or to be posted.
#[derive(Debug)]
struct Posted<R: Reader> {
    fetch: Fetch<R::Purpose>,
    /// The newest position when its poll began.
    floor: u64,
}

/// The outcome of a poll.
enum Look {
    /// A value or a report, and what was published before the poll began.
    Outcome(Result<Taken, ReadFailure>, u64),
    /// Nothing, and what was published before the poll began.
    Nothing(u64),
    /// A value that is yet to be taken.
    Something,
}

impl<K: ConformingKind> Subscriber<K> {
    pub(super) fn new(
        (fabric, address): (Box<dyn Fabric>, Address),
        geometry: Geometry,
        delivery: Delivery,
        asked: <K::Reader as Reader>::Options,
    ) -> Self {
        let (session, reader, believed_epoch) = (None, None, None);
        Self {
            session,
            reader,
            fabric,
            address,
            geometry,
            delivery,
            asked,
            believed_epoch,
            has_faults: false,
        }
    }

    /// What it has received of the present epoch.
    pub(super) fn observer(&self) -> Option<&Observer> {
        self.reader.as_ref().map(|(_, observer)| observer)
    }

    /// Whether it has accepted or reported everything up to here.
    pub(super) fn has_reached(&self, (epoch, sequence): (Epoch, u64)) -> bool {
        let session_epoch = self.session.as_ref().and_then(|session| session.epoch);
        let reader = self.reader.as_ref().filter(|(reader, _)| reader.has_begun());
        session_epoch == Some(epoch) && reader.map(|(reader, _)| reader.last().get()) == Some(sequence)
    }

    /// Checks its counts.
    pub(super) fn check(&self) {
        let (reader, observer) = self.reader.as_ref().expect("it was answered");
        observer.check(reader.counts());
    }

    /// Gives up the values up to this one, the last one of the topic.
    pub(super) fn give_up(&mut self, last: u64) -> Option<(Sequence, u64)> {
        self.reader.as_mut().and_then(|(reader, _)| reader.give_up(Sequence::new(last)))
    }

    /// One turn; the publisher is at `newest`.
    pub(super) fn turn(&mut self, newest: (Epoch, u64)) {
        if self.try_turn(newest).is_err() {
            self.session = None;
        }
    }

    fn try_turn(&mut self, newest: (Epoch, u64)) -> Result<(), FabricError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => {
                let connection = self.fabric.dial(&self.address, Intent::Read, Duration::ZERO)?;
                Session::new(connection, self.resumption().unwrap_or(self.asked))
            }
        };
        session.ask(&*self.fabric, self.delivery, self.geometry.region_len())?;
        if let Some(granted) = session.hear(self.geometry.region_len())? {
            self.begin(&session, granted)?;
        }
        let expects_all = !self.has_faults && self.believed_epoch.is_none();
        if let (Some(source), Some((reader, observer))) = (&mut session.source, &mut self.reader) {
            let floor = if session.epoch == Some(newest.0) && expects_all { newest.1 } else { 0 };
            source.read::<K>(reader, observer, floor)?;
        }
        self.session = Some(session);
        Ok(())
    }

    /// The options to continue after what was received, unless its reader continues.
    fn resumption(&self) -> Option<<K::Reader as Reader>::Options> {
        let begun = self.reader.as_ref().filter(|(_, observer)| observer.first().is_some());
        begun.and_then(|(reader, _)| K::resumption(reader.last()))
    }

    /// Begins to read a topic granted when this value was the newest.
    fn begin(&mut self, session: &Session<K::Reader>, granted: Sequence) -> Result<(), FabricError> {
        let epoch = self.believed_epoch.or(session.epoch).expect("it was just told");
        if let Some((reader, observer)) = &self.reader {
            let (goes_on, is_same) = (K::resumption(reader.last()).is_none(), observer.is_of(epoch));
            match (goes_on, is_same) {
                (true, true) => return Ok(()),
                (false, true) => observer.check(reader.counts()),
                // Its position in the last incarnation does not apply: it starts again.
                (false, false) if observer.first().is_some() => {
                    self.reader = None;
                    return Err(FabricError::Closed);
                }
                _ => {}
            }
        }
        let names = (epoch, TopicId::of(&topic()));
        let at = GrantedAt { newest: granted, after: Sequence::NONE };
        let reader = K::Reader::open(&self.geometry, names, at, session.options);
        let reader = reader.expect("the geometry is that of its kind");
        let beginning = K::beginning(session.options, granted.get());
        let is_lossy = session.connection.capabilities().placement == Placement::Lossy;
        let expects_damage = self.has_faults || self.believed_epoch.is_some() || is_lossy;
        let observer =
            Observer::new(epoch, self.geometry.payload_len_max() - K::OVERHEAD, beginning, expects_damage);
        self.reader = Some((reader, observer));
        Ok(())
    }
}

impl<R: Reader> Session<R> {
    fn new(connection: Box<dyn Connection>, options: R::Options) -> Self {
        Self { connection, options, has_asked: false, landing: None, source: None, epoch: None }
    }

    /// Sends its request once.
    fn ask(&mut self, fabric: &dyn Fabric, delivery: Delivery, len: usize) -> Result<(), FabricError> {
        if self.has_asked {
            return Ok(());
        }
        let sent = match delivery {
            Delivery::Pull => self.connection.send(PULL, None)?,
            Delivery::Push => {
                let landing = &*self.landing.get_or_insert_with(|| registered(fabric, len, Exposure::Write));
                let KindOptions(options) = self.options.into();
                self.connection.send(&[PUSH, &bytes_of(options)].concat(), Some(landing))?
            }
        };
        self.has_asked = sent == Sent::Done;
        Ok(())
    }

    /// Receives the publisher's answer: the newest value at the time of the request.
    fn hear(&mut self, len: usize) -> Result<Option<Sequence>, FabricError> {
        let mut buffer = [0; 16];
        let offer = match self.connection.receive(&mut buffer)? {
            Received::Nothing => return Ok(None),
            Received::Closed => return Err(FabricError::Closed),
            Received::Message { offer, .. } => offer,
        };
        let [epoch, granted] = words_of(&buffer);
        self.epoch = Epoch::new(epoch);
        self.source = match (offer, self.landing.take()) {
            (None, Some(landing)) => {
                let order = match self.connection.capabilities().placement {
                    Placement::Words => WriteOrder::Words,
                    Placement::Writes => WriteOrder::Writes,
                    Placement::Lossy => WriteOrder::FinalWrites,
                };
                Some(Source::Landing { landing, epoch, order })
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
        Ok(Some(Sequence::new(granted)))
    }
}

impl<R: Reader> Source<R> {
    /// Reads everything that can be read without waiting.
    fn read<K: ConformingKind<Reader = R>>(
        &mut self,
        reader: &mut R,
        observer: &mut Observer,
        floor: u64,
    ) -> Result<(), FabricError> {
        for _ in 0..VALUES_MAX {
            match self.look::<K>(reader, observer, floor)? {
                Look::Outcome(Ok(taken), floor) => observer.value::<K>(&reader.verified(taken), floor),
                Look::Outcome(Err(failure), _) => observer.failure::<K>(failure, reader.last().get()),
                Look::Something => {}
                Look::Nothing(floor) => {
                    assert!(reader.last().get() >= floor, "{floor} was there: {reader:?}");
                    break;
                }
            }
        }
        Ok(())
    }

    fn look<K: ConformingKind<Reader = R>>(
        &mut self,
        reader: &mut R,
        observer: &mut Observer,
        floor: u64,
    ) -> Result<Look, FabricError> {
        let outcome = |taken: Result<Option<Taken>, _>, floor| match taken.transpose() {
            Some(outcome) => Look::Outcome(outcome, floor),
            None => Look::Nothing(floor),
        };
        if let Some(taken) = reader.take_held() {
            return Ok(Look::Outcome(Ok(taken), floor));
        }
        match self {
            Self::Mapped(region) => {
                reader.settle(region);
                let taken = reader.poll(region);
                Ok(outcome(taken, if reader.has_more() { 0 } else { floor }))
            }
            Self::Landing { landing, epoch, .. }
                if !reader.has_begun() && landing.region().load_acquire(HOT_EPOCH) != *epoch =>
            {
                Ok(Look::Nothing(0))
            }
            Self::Landing { landing, order, .. } => {
                reader.settle(landing.region());
                let now_ns = observer.tick::<K>();
                // The newest value may be in flight.
                Ok(outcome(reader.follow(landing.region(), *order, || now_ns), 0))
            }
            Self::Fetched { remote, next, posted } => {
                let now_ns = observer.tick::<K>();
                if let Some(fetched) = reader.take_fetched(remote.mirror(), || now_ns).transpose() {
                    return Ok(Look::Outcome(fetched, 0));
                }
                let completion = match posted {
                    Some(_) => remote.poll()?,
                    None => {
                        let begun = next.take().unwrap_or_else(|| Posted { fetch: reader.plan(), floor });
                        remote.post(reader.ranges(&posted.insert(begun).fetch))?
                    }
                };
                if completion == Completion::Pending {
                    return Ok(Look::Nothing(0));
                }
                let Posted { fetch, floor: begun_at } = posted.take().expect("it was just posted or polled");
                match reader.check(remote.mirror(), &fetch, now_ns) {
                    Ok(Finding::Taken(taken)) => return Ok(Look::Outcome(Ok(taken), begun_at)),
                    Ok(Finding::More(fetch)) => *next = Some(Posted { fetch, floor: begun_at }),
                    // Fetches more while held values are taken.
                    Ok(Finding::Something) if reader.is_behind() => {
                        let begun = posted.insert(Posted { fetch: reader.plan(), floor });
                        remote.post(reader.ranges(&begun.fetch))?;
                    }
                    Ok(Finding::Something) => {}
                    Ok(Finding::Nothing) => return Ok(Look::Nothing(begun_at)),
                    Err(failure) => return Ok(Look::Outcome(Err(failure), begun_at)),
                }
                Ok(Look::Something)
            }
        }
    }
}
