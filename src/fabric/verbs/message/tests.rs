use super::*;
use crate::testkit::random::{Random, each_seed};

const DESCRIPTOR: Descriptor = Descriptor {
    exposure: Exposure::Write,
    address: 0x0102_0304_0506_0000,
    key: 0x1122_3344,
    len: 0x0001_0000,
};

/// An empty frame.
const NOTHING: Frame<'_> = Frame { credits: 0, wakes: 0, fragment: None };

/// A frame with this fragment.
fn whole(fragment: Fragment<'_>) -> Frame<'_> {
    Frame { fragment: Some(fragment), ..NOTHING }
}

/// A number of a smaller type; the test ensures that it fits.
fn number<T: TryFrom<u64, Error: std::fmt::Debug>>(number: u64) -> T {
    T::try_from(number).unwrap()
}

fn emitted(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![7; 3];
    frame.emit(&mut bytes);
    bytes
}

/// A random frame, of the fragment in these bytes.
fn frame<'a>(random: &mut Random, bytes: &'a [u8]) -> Frame<'a> {
    let region = random.once_in(3).then(|| Descriptor {
        exposure: if random.once_in(2) { Exposure::Read } else { Exposure::Write },
        address: random.next() >> 1,
        key: number(random.next() >> 32),
        len: 8 + random.below(limits::REGION_LEN_MAX as u64 - 8),
    });
    let offset = if region.is_some() { 0 } else { number(random.below(50_000)) };
    let message_len = number(u64::from(offset) + bytes.len() as u64 + random.below(1000));
    let fragment = (!random.once_in(4)).then_some(Fragment { message_len, offset, region, bytes });
    let [credits, wakes] = [1, 0].map(|min| number(min + random.below(255)));
    Frame { credits, wakes, fragment }
}

#[test]
fn golden_bytes() {
    let fragment = Fragment { message_len: 5, offset: 0, region: Some(DESCRIPTOR), bytes: b"hello" };
    let bytes = emitted(&Frame { credits: 4, wakes: 3, ..whole(fragment) });
    let header = b"\x03\x04\x07\x01\0\0\0\x05\0\0\0\0";
    let region = b"\x01\x02\x03\x04\x05\x06\0\0\x11\x22\x33\x44\0\0\0\0\0\x01\0\0";
    assert_eq!(bytes, [header.as_slice(), region, b"hello"].concat());
    assert_eq!(emitted(&Frame { credits: 4, ..NOTHING }), b"\0\x04\0\x01\0\0\0\0\0\0\0\0");
}

#[test]
fn frames_are_read_back_as_they_were_written() {
    each_seed(20, |seed| {
        let mut random = Random::new(seed);
        for _ in 0..500 {
            let bytes = vec![number(random.next() >> 56); 1 + random.index(100)];
            let frame = frame(&mut random, &bytes);
            assert_eq!(Frame::parse(&emitted(&frame)), Ok(frame));
        }
    });
}

#[test]
fn malformed_frames_are_refused_with_the_reason() {
    let fragment = Fragment { message_len: 10, offset: 2, region: None, bytes: b"hello" };
    let frame = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = emitted(&whole(fragment));
        change(&mut bytes);
        Frame::parse(&bytes).map(|_| ()).map_err(|Malformed(why)| why)
    };
    assert_eq!(frame(&|_| {}), Ok(()));
    for (change, why) in [
        (&|bytes: &mut Vec<u8>| bytes.truncate(HEADER_LEN - 1) as _, "truncated"),
        (&|bytes| bytes[3] = 2, "version"),
        (&|bytes| bytes[2] = 0, "without a flag"),
        (&|bytes| bytes[2] = FRAGMENT | WRITABLE, "flags"),
        (&|bytes| bytes[2] = REGION, "flags"),
        (&|bytes| bytes[2] = 8, "flags"),
        (&|bytes| bytes[2] = 0x80 | FRAGMENT, "flags"),
        (&|bytes| bytes[2] = FRAGMENT | REGION, "truncated"),
        (&|bytes| bytes[5] = 2, "too long"),
        (&|bytes| bytes[7] = 6, "out of bounds"),
        (&|bytes| bytes[8] = 0xff, "out of bounds"),
        (&|bytes| bytes.truncate(HEADER_LEN), "out of bounds"),
        (&|bytes| *bytes = emitted(&NOTHING), "empty"),
    ] as [(&dyn Fn(&mut Vec<u8>), &str); 13]
    {
        let error = frame(change).unwrap_err();
        assert!(error.contains(why), "{error} instead of {why}");
    }
}

#[test]
fn invalid_regions_are_refused() {
    let parse = |change: &dyn Fn(&mut Descriptor), offset| {
        let mut region = DESCRIPTOR;
        change(&mut region);
        let fragment = Fragment { message_len: 5, offset, region: Some(region), bytes: b"x" };
        Frame::parse(&emitted(&whole(fragment))).map(|_| ()).is_ok()
    };
    assert!(parse(&|_| {}, 0));
    assert!(!parse(&|_| {}, 1), "in the middle");
    assert!(!parse(&|region| region.len = 7, 0), "too short");
    assert!(!parse(&|region| region.len = limits::REGION_LEN_MAX as u64 + 1, 0), "too long");
    assert!(!parse(&|region| region.len = u64::MAX, 0), "too long");
    assert!(!parse(&|region| region.address = u64::MAX, 0), "beyond the last address");
}

/// Any input gets an answer, and no fragment beyond its bytes.
#[test]
fn flips_cuts_and_random_bytes_are_survived() {
    each_seed(20, |seed| {
        let mut random = Random::new(seed);
        let (mut inbound, mut outbound) = (Inbound::default(), Outbound::new());
        let mut take = |bytes: &[u8]| {
            let Ok(frame) = Frame::parse(bytes) else { return };
            let _ = outbound.credit(frame.credits);
            if let Some(fragment) = frame.fragment {
                assert!(!fragment.bytes.is_empty() && fragment.bytes.len() <= bytes.len() - HEADER_LEN);
                let _ = inbound.take(&fragment);
            }
            assert!(inbound.bytes.len() <= limits::CONTROL_MESSAGE_LEN_MAX);
        };
        for _ in 0..100 {
            let payload = vec![number(random.next() >> 56); 1 + random.index(40)];
            let whole = emitted(&frame(&mut random, &payload));
            take(&whole);
            for cut in 0..whole.len() {
                take(&whole[..cut]);
            }
            for bit in 0..whole.len() * 8 {
                let mut damaged = whole.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                take(&damaged);
            }
            let noise: Vec<u8> = (0..random.index(200)).map(|_| number(random.next() >> 56)).collect();
            take(&noise);
            // With a valid header, so that the noise reaches the parser.
            take(&[&[0, 0, FRAGMENT | REGION, VERSION, 0, 0, 4, 0, 0, 0, 0, 0], noise.as_slice()].concat());
        }
    });
}

#[test]
fn fragments_that_do_not_follow_each_other_are_refused() {
    let fragment = |message_len, offset, bytes| Fragment { message_len, offset, region: None, bytes };
    let whole = |bytes: &[u8]| Ok(Some(Message { bytes: bytes.to_vec(), region: None }));
    let mut inbound = Inbound::default();
    assert!(inbound.take(&fragment(4, 1, b"x")).is_err(), "not the first");
    let mut inbound = Inbound::default();
    assert_eq!(inbound.take(&fragment(4, 0, b"ab")), Ok(None));
    assert!(inbound.take(&fragment(5, 2, b"c")).is_err(), "of another message");
    assert!(inbound.take(&fragment(4, 0, b"ab")).is_err(), "once more");
    assert!(inbound.take(&fragment(4, 3, b"d")).is_err(), "one left out");
    assert_eq!(inbound.take(&fragment(4, 2, b"cd")), whole(b"abcd"));
    assert_eq!(inbound.take(&fragment(1, 0, b"e")), whole(b"e"));
}

#[test]
fn credits_that_were_not_used_cannot_be_returned() {
    let mut outbound = Outbound::new();
    assert_eq!(outbound.credit(0), Ok(()));
    assert!(outbound.credit(1).is_err());
    outbound.push(b"one", None);
    assert!(outbound.next(&mut Vec::new()));
    assert!(outbound.credit(2).is_err());
    assert!(outbound.credit(u16::MAX).is_err());
    assert_eq!(outbound.credit(1), Ok(()));
}

#[test]
fn a_queue_that_is_not_drained_fills_up() {
    let mut small = Outbound::new();
    let count = (0..).take_while(|_| small.push(b"x", None) == Sent::Done).count();
    assert_eq!(count, limits::OUTBOUND_MESSAGES_MAX);
    let mut large = Outbound::new();
    let message = vec![1; limits::CONTROL_MESSAGE_LEN_MAX];
    let count = (0..).take_while(|_| large.push(&message, None) == Sent::Done).count();
    assert_eq!(count, 2);
    assert_eq!(large.queued_len, 2 * message.len());
}

/// One end of a connection: what it sends, what it has received, and what is posted for the peer.
struct Side {
    outbound: Outbound,
    inbound: Inbound,
    /// Frames in flight to it.
    wire: VecDeque<Vec<u8>>,
    /// Fragments that the device holds for it.
    arrivals: VecDeque<Vec<u8>>,
    expected: VecDeque<Message>,
}

impl Side {
    fn new() -> Self {
        let (outbound, inbound) = (Outbound::new(), Inbound::default());
        let (wire, arrivals, expected) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { outbound, inbound, wire, arrivals, expected }
    }

    /// The device and its driver: takes frames off the wire.
    fn arrive(&mut self, count: usize) {
        for frame in self.wire.drain(..count.min(self.wire.len())) {
            let parsed = Frame::parse(&frame).unwrap();
            let is_fragment = parsed.fragment.is_some();
            self.outbound.credit(parsed.credits).unwrap();
            self.arrivals.extend(is_fragment.then_some(frame));
        }
    }

    /// The owner: takes a fragment.
    fn take(&mut self) {
        let Some(frame) = self.arrivals.pop_front() else { return };
        let fragment = Frame::parse(&frame).unwrap().fragment.unwrap();
        let message = self.inbound.take(&fragment).unwrap();
        self.outbound.owe().unwrap();
        if let Some(message) = message {
            assert_eq!(Some(message), self.expected.pop_front());
        }
    }

    fn send_to(&mut self, peer: &mut Self) {
        let mut frame = Vec::new();
        while self.outbound.next(&mut frame) {
            assert!(frame.len() <= limits::verbs::FRAME_LEN_MAX);
            peer.wire.push_back(frame.clone());
            let is_signal = |frame: &&Vec<u8>| frame.len() == HEADER_LEN;
            let signals = peer.wire.iter().filter(is_signal).count();
            let fragments = peer.wire.len() - signals + peer.arrivals.len();
            assert!(signals <= usize::from(limits::verbs::SIGNAL_RECEIVES), "{signals} signals");
            assert!(fragments <= usize::from(limits::verbs::RECEIVES), "{fragments} fragments");
        }
    }
}

/// A peer that does not receive what returns its credits.
#[test]
fn fragments_without_credit_are_refused() {
    let mut outbound = Outbound::new();
    (0..limits::verbs::RECEIVES).for_each(|_| outbound.owe().unwrap());
    for _ in 0..=u16::MAX {
        assert_eq!(outbound.owe(), Err(Malformed("it exceeds its credits")));
    }
    let mut frame = Vec::new();
    assert!(outbound.next(&mut frame));
    assert_eq!(Frame::parse(&frame).unwrap().credits, limits::verbs::RECEIVES);
    outbound.owe().unwrap();
}

/// Frames always find a receive, and never stall.
#[test]
fn everything_arrives_whatever_the_order_of_things() {
    each_seed(40, |seed| {
        let mut random = Random::new(seed);
        let mut sides = [Side::new(), Side::new()];
        let (mut sent, mut round) = (0_u8, 0);
        while sent < 60 || sides.iter().any(|side| !side.expected.is_empty()) {
            round += 1;
            assert!(round < 200_000, "it has stopped");
            let which = random.index(2);
            let (one, other) = sides.split_at_mut(1);
            let (near, far) =
                if which == 0 { (&mut one[0], &mut other[0]) } else { (&mut other[0], &mut one[0]) };
            match random.below(4) {
                0 if sent < 60 => {
                    let longest = if random.once_in(4) { limits::CONTROL_MESSAGE_LEN_MAX } else { 9000 };
                    let message = vec![sent; 1 + random.index(longest)];
                    let region = random.once_in(3).then_some(DESCRIPTOR);
                    if near.outbound.push(&message, region) == Sent::Done {
                        far.expected.push_back(Message { bytes: message, region });
                        sent += 1;
                    }
                }
                0 | 1 => near.arrive(1 + random.index(4)),
                2 => (0..random.index(6)).for_each(|_| near.take()),
                _ => near.send_to(far),
            }
        }
    });
}
