//! A publisher as small as it can be: one state repository, sessions that pull it or are pushed to.

use super::observer::{payload, published_ns};
use super::{Harness, name, registered};
use crate::fabric::{
    Address, Completion, Connection, Exposure, Fabric, FabricError, Listener, Received, Registration,
    RemoteWrite, Sent, Write,
};
use crate::id::{Epoch, Sequence, TopicId};
use crate::layout::header::{HOT_LEN, HOT_OFFSET};
use crate::layout::state::StateGeometry;
use crate::layout::{LINE, WORD};
use crate::repository::state::StateWriter;

/// The topic of the suite.
pub(super) const TOPIC: TopicId = TopicId::new(0x70);
/// What a subscriber sends to pull.
pub(super) const PULL: &[u8] = b"pull";
/// What a subscriber sends, with a landing region, to be pushed to.
pub(super) const PUSH: &[u8] = b"push";

/// The process that publishes.
#[derive(Debug)]
pub(super) struct Publisher {
    sessions: Vec<Session>,
    listener: Box<dyn Listener>,
    writer: StateWriter,
    registration: Registration,
    epoch: Epoch,
    /// Whether it publishes only while no push is under way, as the seam asks for.
    pub(super) waits: bool,
}

#[derive(Debug)]
struct Session {
    connection: Box<dyn Connection>,
    /// Whether the answer is still to be sent.
    owes_answer: bool,
    push: Option<Push>,
}

/// A landing region that each value is written to.
#[derive(Debug)]
struct Push {
    remote: Box<dyn RemoteWrite>,
    under_way: bool,
    pushed: Sequence,
    /// The payload length that each slot of the landing region holds.
    held_lens: Vec<usize>,
}

impl Publisher {
    /// Where the publisher is found.
    pub(super) fn address(harness: &dyn Harness) -> Address {
        harness.address(&name("publisher"))
    }

    pub(super) fn new(fabric: &dyn Fabric, geometry: StateGeometry, epoch: Epoch) -> Self {
        let registration = registered(fabric, geometry.region_len(), Exposure::Read);
        let line = geometry.static_line(epoch, TOPIC, 0);
        let writer = StateWriter::new(registration.region().clone(), geometry, &line);
        let listener = fabric.listen(&name("publisher")).expect("the name is free");
        Self { sessions: Vec::new(), listener, writer, registration, epoch, waits: true }
    }

    /// The epoch, and the position of the newest value.
    pub(super) fn newest(&self) -> (Epoch, u64) {
        (self.epoch, self.writer.last().get())
    }

    /// Publishes the next value, unless it has to wait. Says whether it did.
    pub(super) fn publish(&mut self) -> bool {
        let pushing = |session: &Session| session.push.as_ref().is_some_and(|push| push.under_way);
        if self.waits && self.sessions.iter().any(pushing) {
            return false;
        }
        let sequence = self.writer.last().next().get();
        let payload = payload(self.epoch, sequence, self.writer.geometry().payload_len_max());
        self.writer.publish(&payload, 1, published_ns(sequence)).expect("the payload fits");
        true
    }

    /// Serves whoever is there.
    pub(super) fn turn(&mut self) {
        while let Some(connection) = self.listener.accept().expect("the listener works") {
            self.sessions.push(Session { connection, owes_answer: false, push: None });
        }
        let Self { sessions, writer, registration, epoch, .. } = self;
        sessions.retain_mut(|session| session.turn(writer, registration, *epoch).is_ok());
    }
}

impl Session {
    fn turn(
        &mut self,
        writer: &StateWriter,
        registration: &Registration,
        epoch: Epoch,
    ) -> Result<(), FabricError> {
        let geometry = writer.geometry();
        let mut buffer = [0; 16];
        match self.connection.receive(&mut buffer)? {
            Received::Nothing => {}
            Received::Closed => return Err(FabricError::Closed),
            Received::Message { len, offer } => {
                assert_eq!(&buffer[..len], if offer.is_some() { PUSH } else { PULL });
                let remote = offer.map(|offer| offer.open_write(geometry.region_len())).transpose()?;
                self.push = remote.map(|remote| Push::new(remote, geometry));
                self.owes_answer = true;
            }
        }
        if self.owes_answer {
            let region = self.push.is_none().then_some(registration);
            let sent = self.connection.send(&epoch.get().to_le_bytes(), region)?;
            self.owes_answer = sent == Sent::Full;
        }
        self.push.as_mut().map_or(Ok(()), |push| push.turn(writer, registration))
    }
}

impl Push {
    fn new(remote: Box<dyn RemoteWrite>, geometry: StateGeometry) -> Self {
        let held_lens = vec![0; geometry.slot_count() as usize];
        Self { remote, under_way: false, pushed: Sequence::NONE, held_lens }
    }

    /// Pushes the newest value, once the one before it has arrived.
    fn turn(&mut self, writer: &StateWriter, source: &Registration) -> Result<(), FabricError> {
        if self.under_way {
            self.under_way = self.remote.in_flight()? > 0;
        }
        if !self.under_way && self.pushed < writer.last() {
            let last = std::mem::replace(&mut self.pushed, writer.last());
            let writes = self.writes(writer, last);
            self.under_way = self.remote.post(source, &writes)? == Completion::Pending;
        }
        Ok(())
    }

    /// The old tail stamp where it stands in this landing region, the slot, and the hot line. Where only whole writes
    /// appear in order, that is left out as long as values follow each other, and what was passed over is told in the
    /// slot of the value that would have followed.
    fn writes(&mut self, writer: &StateWriter, last: Sequence) -> Vec<Write> {
        let (geometry, sequence) = (writer.geometry(), writer.last());
        let follows = last != Sequence::NONE && sequence == last.next();
        let len = usize::try_from(writer.region().load(HOT_LEN)).expect("the length of a payload");
        let slot = geometry.slot_range(sequence, len);
        let held = std::mem::replace(&mut self.held_lens[geometry.slot_index(sequence)], len);
        let retired = slot.offset + StateGeometry::tail_offset(held);
        let moved = held != len;
        let retired = moved.then_some(Write::Word { offset: retired, word: sequence.get() });
        // The hot line goes as it is now: in the repository it changes with the next publish.
        let mut words = [0; LINE / WORD];
        writer.region().copy_out(HOT_OFFSET, &mut words);
        let hot = Write::Line { offset: HOT_OFFSET, words };
        let ordered = self.remote.writes_words_in_order();
        let hot = (ordered || !follows).then_some(hot);
        let stamp = Write::Word { offset: geometry.slot_offset(last.next()), word: sequence.get() };
        let stamp = (!ordered && !follows).then_some(stamp);
        retired.into_iter().chain([Write::Range(slot)]).chain(hot).chain(stamp).collect()
    }
}
