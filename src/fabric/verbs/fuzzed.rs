//! What this provider parses of the bytes of peers.

use super::channel;
use super::exchange::QpInfo;
use super::greeting::{Greeting, Rejection};
use super::message::{Frame, Inbound};
use super::programs;
use super::stream::{StreamEvent, take_frame};
use crate::limits;

/// Parses them as everything. What has one form only is that form.
pub(in crate::fabric) fn parse(bytes: &[u8]) {
    if let Ok(greeting) = Greeting::parse(bytes) {
        assert!(bytes.starts_with(&greeting.emit()), "a greeting with two forms");
        assert!(
            bytes.starts_with(&greeting.emit_request(Greeting::shown(bytes))),
            "a request with two forms"
        );
    }
    let _ = Rejection::parse(bytes);
    if let Ok(info) = QpInfo::parse(bytes) {
        assert_eq!(info.emit().as_slice(), bytes, "a queue pair with two forms");
    }
    channel::fuzzed::parse(bytes);
    frames(bytes);
    stream(bytes);
    programs::fuzzed::parse(bytes);
}

/// Frames one after another, each behind its length in two bytes, at one end of a session.
fn frames(mut bytes: &[u8]) {
    let mut inbound = Inbound::default();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
        let (frame, rest) = rest.split_at(len);
        bytes = rest;
        let Ok(parsed) = Frame::parse(frame) else { continue };
        let mut again = Vec::new();
        parsed.emit(&mut again);
        assert_eq!(again, frame, "a frame with two forms");
        let Some(fragment) = &parsed.fragment else { continue };
        match inbound.take(fragment) {
            Ok(Some(message)) => assert!(message.bytes.len() <= limits::CONTROL_MESSAGE_LEN_MAX),
            Ok(None) => {}
            Err(_) => return,
        }
    }
}

/// Frames of a TCP connection are the same in whatever pieces they arrive.
fn stream(bytes: &[u8]) {
    let Some((len, bytes)) = bytes.split_first() else { return };
    for has_beats in [false, true] {
        let pieces = bytes.chunks(1 + usize::from(*len));
        assert_eq!(frames_of(pieces, has_beats), frames_of([bytes], has_beats), "{has_beats}");
    }
}

/// The frames of a stream that arrives in these pieces, up to one that is malformed.
fn frames_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, has_beats: bool) -> Vec<StreamEvent> {
    let (mut arrived, mut events) = (Vec::new(), Vec::new());
    for piece in pieces {
        arrived.extend_from_slice(piece);
        loop {
            let event = take_frame(&mut arrived, has_beats);
            match &event {
                StreamEvent::Nothing => break,
                StreamEvent::Frame(frame) => {
                    assert!((1..=limits::verbs::FRAME_LEN_MAX).contains(&frame.len()))
                }
                _ => {
                    events.push(event);
                    return events;
                }
            }
            events.push(event);
        }
        // No more is kept than one frame.
        assert!(arrived.len() < size_of::<u16>() + limits::verbs::FRAME_LEN_MAX);
    }
    events
}

/// One of each.
#[cfg(test)]
pub(in crate::fabric) fn samples() -> Vec<Vec<u8>> {
    use super::message::Outbound;
    use super::sys::QueuePairKind;
    let gid = *b"\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x4d\0\x01";
    let info = QpInfo {
        kind: QueuePairKind::Rc,
        lid: 1,
        queue_pair: 17,
        packet_sequence: 0x00ab_cdef,
        gid,
        mtu: 4096,
        reads_max: 16,
        writes: true,
    };
    let mut outbound = Outbound::new();
    outbound.push(b"hello", None);
    let (mut frame, mut frames) = (Vec::new(), Vec::new());
    while outbound.next(&mut frame) {
        frames.extend(u16::try_from(frame.len()).unwrap().to_le_bytes());
        frames.append(&mut frame);
    }
    let mut samples = vec![
        Greeting::parse(b"FBC1\x01\x01\x02\x03\x04\x05\x06\x07\x08\x01").unwrap().emit().to_vec(),
        Rejection::NoRoom.emit().to_vec(),
        info.emit().to_vec(),
        frames,
    ];
    samples.extend(channel::fuzzed::samples());
    samples.extend(programs::fuzzed::samples());
    samples.push(b"\x04\0\0\0\0\0\x03abc\0\0\0\x01d\0\x05abcd".to_vec());
    let greeting = Greeting::parse(b"FBC1\x01\x01\x02\x03\x04\x05\x06\x07\x08\x00").unwrap();
    samples.push(greeting.emit_request(b"shown"));
    samples
}
