//! What a node shows with a request to connect: short tags of its keys, by which a stranger is turned away before anything is set up for
//! it. They are no proofs: the same request may be made again by one who has recorded it, and gets no further than to the handshake.

use hmac::Mac;
use sha2::{Digest, Sha256};

use super::key::{Key, Keys, Right};
use crate::limits;

/// Bytes of a short tag.
pub(crate) const REQUEST_TAG_LEN: usize = 5;
/// Distinguishes short tags from all else that a secret may be used for, and from those of other versions.
const REQUEST_LABEL: &[u8] = b"fabricast request\0\x01";
/// The purposes of requests.
const READ: u8 = 1;
const PUBLISH: u8 = 2;

/// A short tag.
type Tag = [u8; REQUEST_TAG_LEN];

impl Keys {
    /// Returns how many requests it takes to show all keys with this right.
    pub(crate) fn request_turns(&self, right: Right) -> usize {
        self.giving(right).count().div_ceil(limits::KEYS_PER_REQUEST).max(1)
    }

    /// Returns the short tags of the keys with this right that are shown in this turn.
    pub(crate) fn request_tags(&self, right: Right, binding: &[u8], turn: usize) -> Vec<u8> {
        let request = digest(right, binding);
        let keys = self.giving(right).skip(turn.saturating_mul(limits::KEYS_PER_REQUEST));
        keys.take(limits::KEYS_PER_REQUEST).flat_map(|key| tag(key, &request)).collect()
    }

    /// Whether one of these tags was made with a key that gives this right.
    pub(crate) fn recognise(&self, right: Right, binding: &[u8], tags: &[u8]) -> bool {
        let (tags, []) = tags.as_chunks::<REQUEST_TAG_LEN>() else { return false };
        if tags.is_empty() || tags.len() > limits::KEYS_PER_REQUEST {
            return false;
        }
        let request = digest(right, binding);
        let keys = self.all.iter().filter(|key| key.gives(right));
        // All of them, so that the time says nothing about which one it was.
        keys.fold(false, |known, key| {
            let own = number(&tag(key, &request));
            tags.iter().fold(known, |known, tag| known | (number(tag) == own))
        })
    }
}

/// A request in few bytes, whatever its length: it is the same for all keys.
fn digest(right: Right, binding: &[u8]) -> [u8; 32] {
    let purpose = match right {
        Right::Read => READ,
        Right::Publish => PUBLISH,
    };
    Sha256::new_with_prefix([purpose]).chain_update(binding).finalize().into()
}

fn tag(key: &Key, request: &[u8; 32]) -> Tag {
    let mac = key.secret.mac().chain_update(REQUEST_LABEL).chain_update(request);
    let tag: [u8; 32] = mac.finalize().into_bytes().into();
    let [a, b, c, d, e, ..] = tag;
    [a, b, c, d, e]
}

/// A tag as a number, which is compared at once.
fn number(tag: &Tag) -> u64 {
    let [a, b, c, d, e] = *tag;
    u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::super::tests::{keys, secret};
    use super::*;

    const BINDING: &[u8] = b"from here to there";

    fn line(number: u8, rights: &str) -> String {
        format!("key-{number} {rights} * {}\n", secret(number))
    }

    /// Computed by Python's hmac module.
    #[test]
    fn short_tags_are_stable() {
        let keys = keys(&line(1, "read,publish"));
        assert_eq!(keys.request_tags(Right::Read, BINDING, 0), [0x05, 0x1d, 0x00, 0x71, 0xce]);
        assert_eq!(keys.request_tags(Right::Publish, BINDING, 0), [0x18, 0x1c, 0xb6, 0xbd, 0xf0]);
    }

    #[test]
    fn key_with_the_right_is_recognised_among_others() {
        let here = keys(&(line(1, "read") + &line(2, "publish") + &line(3, "read")));
        for (lines, right, expected) in [
            (line(1, "read"), Right::Read, true),
            (line(9, "read") + &line(3, "read"), Right::Read, true),
            (line(9, "read"), Right::Read, false),
            (line(2, "read"), Right::Read, false),
            (line(2, "publish"), Right::Publish, true),
            (line(1, "publish"), Right::Publish, false),
        ] {
            let tags = keys(&lines).request_tags(right, BINDING, 0);
            assert_eq!(here.recognise(right, BINDING, &tags), expected, "{lines}");
            let other = if right == Right::Read { Right::Publish } else { Right::Read };
            assert!(!here.recognise(other, BINDING, &tags), "it was made for another purpose");
            assert!(!here.recognise(right, b"from there to here", &tags), "it was made for another request");
        }
    }

    #[test]
    fn what_is_no_list_of_tags_is_not_recognised() {
        let keys = keys(&line(1, "read"));
        let tags = keys.request_tags(Right::Read, BINDING, 0);
        let is_known = |tags: &[u8]| keys.recognise(Right::Read, BINDING, tags);
        assert!(is_known(&tags) && is_known(&[&*tags, &[0; 35]].concat()));
        for bit in 0..tags.len() * 8 {
            let mut flipped = tags.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_known(&flipped), "bit {bit}");
        }
        for malformed in [&tags[..0], &tags[..4], &[&*tags, &[0]].concat(), &[&*tags, &[0; 40]].concat()] {
            assert!(!is_known(malformed), "{malformed:?}");
        }
    }

    /// A node with a key for each of many peers shows them all, a few with each request.
    #[test]
    fn every_key_is_shown_in_some_turn() {
        let lines: String = (1..=70).map(|number| line(number, "read")).collect();
        let all = keys(&lines);
        assert_eq!((all.request_turns(Right::Read), all.request_turns(Right::Publish)), (8, 1));
        let first_turn = |number: u8| {
            let there = keys(&line(number, "read"));
            let is_known = |turn: &usize| {
                there.recognise(Right::Read, BINDING, &all.request_tags(Right::Read, BINDING, *turn))
            };
            (0..all.request_turns(Right::Read)).find(is_known)
        };
        for number in 1..=70 {
            // Those beyond the limit are not proven in a session either.
            let expected = (number <= 64).then(|| (usize::from(number) - 1) / 8);
            assert_eq!(first_turn(number), expected, "key {number}");
        }
        assert!(all.request_tags(Right::Read, BINDING, 8).is_empty());
        assert!(all.request_tags(Right::Read, BINDING, usize::MAX).is_empty());
    }
}
