use super::*;
use crate::fabric::verbs::message::{Frame, Outbound};
use crate::fabric::{ArrivalSignal, ArrivalSignals};
use crate::testkit::random::{Random, each_seed};

fn waking(token: u32) -> Arc<BatchTracker> {
    let tracker = Arc::new(BatchTracker::default());
    tracker.set_token(token);
    tracker
}

/// Posts a batch, and returns the number with which it wakes the peer.
fn post(wakes: &mut OutgoingWakes, tracker: &Arc<BatchTracker>) -> Option<u32> {
    let immediate = wakes.immediate(tracker);
    wakes.posted(tracker, immediate.is_some());
    immediate
}

#[test]
fn batches_wake_the_peer_while_there_is_credit_and_owe_one_wake_up_afterwards() {
    let (mut wakes, tracker, silent) = (OutgoingWakes::new(), waking(0), Arc::new(BatchTracker::default()));
    for _ in 0..WAKE_RECEIVES {
        assert_eq!((post(&mut wakes, &silent), post(&mut wakes, &tracker)), (None, Some(0)));
    }
    for _ in 0..1000 {
        assert_eq!(post(&mut wakes, &tracker), None);
    }
    assert!(wakes.next().is_none() && wakes.owing.len() == 1);
    wakes.credit(2).unwrap();
    let (token, owing) = wakes.next().unwrap();
    assert!(token == 0 && Arc::ptr_eq(&owing, &tracker));
    assert!(wakes.next().is_none(), "they share it");
    assert_eq!(post(&mut wakes, &tracker), Some(0));
}

#[test]
fn later_batch_that_wakes_is_for_those_that_owe_a_wake_up_too() {
    let (mut wakes, tracker) = (OutgoingWakes::new(), waking(7));
    while post(&mut wakes, &tracker).is_some() {}
    wakes.credit(1).unwrap();
    assert_eq!(post(&mut wakes, &tracker), Some(7));
    wakes.credit(1).unwrap();
    assert!(wakes.next().is_none());
    // Owed again, it is still sent once.
    while post(&mut wakes, &tracker).is_some() {}
    wakes.credit(2).unwrap();
    assert_eq!(wakes.next().map(|(token, _)| token), Some(7));
    assert!(wakes.next().is_none() && wakes.owing.is_empty());
}

#[test]
fn nothing_is_owed_to_a_region_that_is_not_written_any_more() {
    let (mut wakes, tracker) = (OutgoingWakes::new(), waking(7));
    wakes.owe(&tracker);
    wakes.forget(&tracker);
    assert!(wakes.next().is_none() && !wakes.is_due() && Arc::strong_count(&tracker) == 1);
}

#[test]
fn credits_that_were_not_used_cannot_be_returned() {
    let (mut wakes, tracker) = (OutgoingWakes::new(), waking(7));
    assert!(wakes.credit(1).is_err() && wakes.credit(u16::MAX).is_err());
    post(&mut wakes, &tracker);
    assert!(wakes.credit(2).is_err());
    assert_eq!(wakes.credit(1), Ok(()));
    let mut receiving = Outbound::new();
    for _ in 0..WAKE_RECEIVES {
        receiving.owe_wake().unwrap();
    }
    assert!(receiving.owe_wake().is_err(), "without credit");
}

/// What travels from the publisher: a value to a region, and a wake-up.
#[derive(Debug)]
enum Travelling {
    Value { region: usize, value: u64 },
    Wake(u32),
}

/// A subscriber that sleeps whenever it has found nothing new.
struct Reader {
    signal: Arc<ArrivalSignal>,
    /// The value in its region.
    held: u64,
    seen: u64,
    sleeps: bool,
}

/// A publisher and a subscriber's process, with regions as many as readers.
struct World {
    wakes: OutgoingWakes,
    trackers: Vec<Arc<BatchTracker>>,
    published: Vec<u64>,
    /// To the subscriber, in order.
    wire: VecDeque<Travelling>,
    signals: ArrivalSignals,
    readers: Vec<Reader>,
    /// Wake-ups that the subscriber's device holds.
    held: VecDeque<u32>,
    receiving: Outbound,
    /// Frames to the publisher.
    back: VecDeque<Vec<u8>>,
}

impl World {
    fn new(regions: u32) -> Self {
        let (signals, trackers) = (ArrivalSignals::default(), (0..regions).map(waking).collect::<Vec<_>>());
        let reader = |token| Reader { signal: signals.add(token), held: 0, seen: 0, sleeps: false };
        let readers = (0..regions).map(reader).collect();
        let (published, receiving) = (vec![0; trackers.len()], Outbound::new());
        let (wire, held, back) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let wakes = OutgoingWakes::new();
        Self { wakes, trackers, published, wire, signals, readers, held, receiving, back }
    }

    fn publish(&mut self, region: usize) {
        self.published[region] += 1;
        self.wire.push_back(Travelling::Value { region, value: self.published[region] });
        let immediate = post(&mut self.wakes, &self.trackers[region]);
        self.wire.extend(immediate.map(Travelling::Wake));
        self.check();
    }

    fn send_owed(&mut self) {
        while let Some((token, _)) = self.wakes.next() {
            self.wire.push_back(Travelling::Wake(token));
        }
        self.check();
    }

    /// Every wake-up finds a receive, and what is owed is bounded.
    fn check(&self) {
        let travelling = self.wire.iter().filter(|it| matches!(it, Travelling::Wake(_))).count();
        assert!(travelling + self.held.len() <= usize::from(WAKE_RECEIVES));
        assert!(self.wakes.owing.len() <= self.trackers.len());
    }

    fn arrive(&mut self) {
        match self.wire.pop_front() {
            Some(Travelling::Value { region, value }) => self.readers[region].held = value,
            Some(Travelling::Wake(token)) => self.held.push_back(token),
            None => {}
        }
    }

    /// Any thread of the subscriber takes what has arrived, and returns credits.
    fn take(&mut self) {
        for token in self.held.drain(..) {
            self.receiving.owe_wake().unwrap();
            self.signals.raise(token);
        }
        let mut frame = Vec::new();
        while self.receiving.next(&mut frame) {
            self.back.push_back(frame.clone());
        }
    }

    fn credit(&mut self) {
        let Some(frame) = self.back.pop_front() else { return };
        self.wakes.credit(Frame::parse(&frame).unwrap().wakes).unwrap();
    }

    fn read(&mut self, reader: usize) {
        let it = &mut self.readers[reader];
        it.sleeps &= !it.signal.is_raised();
        if it.sleeps {
            return;
        }
        it.seen = it.held;
        if !it.signal.lower() {
            it.signal.expect(None);
            it.sleeps = true;
            // It arms the queue, and takes what has arrived meanwhile.
            self.take();
        }
    }

    fn step(&mut self, random: &mut Random) {
        let region = random.index(self.readers.len());
        match random.below(8) {
            0 | 1 => self.publish(region),
            2 | 3 => self.arrive(),
            4 => self.take(),
            5 => self.credit(),
            6 => self.send_owed(),
            _ => self.read(region),
        }
    }

    /// Lets everything arrive without another value. The subscriber takes what arrives only while a reader waits.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.arrive();
            self.credit();
            self.send_owed();
            if self.signals.are_awaited() {
                self.take();
            }
            (0..self.readers.len()).for_each(|reader| self.read(reader));
        }
    }
}

#[test]
fn wake_up_that_is_owed_always_arrives() {
    each_seed(200, |seed| {
        let mut random = Random::new(seed);
        let mut world = World::new(1 + u32::try_from(random.below(40)).unwrap());
        for _ in 0..random.index(3000) {
            world.step(&mut random);
        }
        world.settle();
        let seen: Vec<u64> = world.readers.iter().map(|reader| reader.seen).collect();
        assert_eq!(seen, world.published);
        assert!(world.readers.iter().all(|reader| reader.sleeps), "nothing keeps a reader awake");
        assert!(world.wire.is_empty() && world.held.is_empty() && !world.wakes.is_due());
    });
}
