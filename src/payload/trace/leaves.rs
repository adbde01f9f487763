//! The sample values of a pass, for leaves.
//!
//! A type may reject some: a decimal accepts only numbers as text, an identifier only a correct check digit. So each leaf has
//! several samples. When a pass is rejected, the leaf that was read last gets its next one; when it has no more, it starts over
//! and the leaf before it moves on. A leaf keeps an accepted sample for later passes.
//!
//! Once the whole type is known, leaves vary: the same passes run with other values, with empty sequences and without optional
//! parts, so that opening detects a type that treats some values differently.

use std::collections::{BTreeMap, BTreeSet};

/// Passes that may be rejected.
const REFUSALS_MAX: usize = 4096;

/// Places that a pass varies before it takes the shortest way out: mutually recursive types have no end of them.
const VISITS_PER_PASS_MAX: usize = 4096;

/// Places that all passes vary in total.
const VISITS_MAX: usize = 16 * VISITS_PER_PASS_MAX;

const TEXTS: [&str; 20] = [
    "a",
    "",
    "1",
    "2000-01-01T00:00:00Z",
    "2000-01-01T00:00:00",
    "2000-01-01",
    "00:00:00",
    "67e55044-10b1-426f-9247-bb680e5fe0c8",
    "1.5",
    "A",
    "AA",
    "AAA",
    "AAAA",
    "AAPL",
    "US0378331005",
    "127.0.0.1",
    "127.0.0.1:80",
    "http://localhost/",
    "a@example.org",
    "+00:00",
];

const NUMBERS: [i128; 14] =
    [1, 0, 2, 7, 10, 16, 100, 1_000, 2_000, 10_000, 1_000_000, 20_000_101, 1_000_000_000_000_000_000, -1];

const FLOATS: [f64; 7] = [1.0, 0.0, 0.5, 2.0, 100.0, -1.0, 1e9];

const CHARS: [char; 6] = ['a', 'A', '1', '0', ' ', '-'];

/// Numbers of elements tried for a sequence or map until its type accepts one: some need two or more.
const COUNTS: [usize; 6] = [1, 2, 3, 4, 8, 16];

/// The place name of each element.
const ANY_COUNT: &str = "[..]";

/// Lengths of byte strings: those of identifiers, keys and digests.
const LENGTHS: [usize; 11] = [1, 0, 16, 4, 8, 12, 20, 24, 32, 48, 64];

/// Which sample each leaf is given.
#[derive(Debug, Default)]
pub(super) struct Leaves {
    /// The user's samples, tried first.
    named: Vec<String>,
    settled: BTreeMap<String, Settled>,
    /// What this pass handed out, in order.
    offered: Vec<Offer>,
    refusals: usize,
    /// Other numbers of elements are tried, too: varying the elements was not enough.
    counts_vary: bool,
    /// For the pass that visited most places: their number, the last of them, and why it was rejected.
    refusal: Option<(usize, String, String)>,
    variation: Option<Variation>,
}

/// The number of elements or pairs of a sequence or map.
#[derive(Debug)]
pub(super) struct Len {
    count: usize,
    offer: Option<Offer>,
}

impl Len {
    /// Empty in any case.
    pub(super) fn none() -> Self {
        Self { count: 0, offer: None }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }
}

#[derive(Debug, Default)]
struct Settled {
    index: usize,
    /// Its own type has accepted a sample before.
    taken: bool,
}

#[derive(Debug)]
struct Offer {
    place: String,
    count: usize,
    alternative: usize,
    refused: bool,
}

/// The variations besides the accepted samples.
#[derive(Debug, Default)]
struct Variation {
    visits: BTreeMap<String, usize>,
    /// Places varied, in all passes and in those before this one.
    visited: usize,
    visited_before: usize,
    /// Alternatives that a type rejected.
    banned: BTreeMap<String, BTreeSet<usize>>,
}

impl Leaves {
    pub(super) fn new(named: &[String]) -> Self {
        Self { named: named.to_vec(), ..Self::default() }
    }

    pub(super) fn begin_pass(&mut self) {
        self.offered.clear();
        if let Some(variation) = &mut self.variation {
            variation.visited_before = variation.visited;
        }
    }

    pub(super) fn begin_variation(&mut self) {
        self.variation = Some(Variation::default());
    }

    pub(super) fn is_varying(&self) -> bool {
        self.variation.is_some()
    }

    /// Whether this pass has visited so much that it should end.
    pub(super) fn is_spent(&self) -> bool {
        let visited = |it: &Variation| it.visited - it.visited_before;
        self.variation.as_ref().is_some_and(|it| visited(it) > VISITS_PER_PASS_MAX)
    }

    /// Whether enough was varied.
    pub(super) fn is_done(&self) -> bool {
        self.variation.as_ref().is_some_and(|it| it.visited > VISITS_MAX)
    }

    /// Whether the optional part in this place is missing in this pass.
    pub(super) fn is_absent(&mut self, place: &str) -> bool {
        self.is_spent() || self.turn(place, 2) == 1
    }

    /// The number of elements or pairs in this place; they are visited before [`Self::ended`].
    pub(super) fn len(&mut self, place: &str) -> Len {
        if self.is_spent() {
            return Len::none();
        }
        let place = format!("{place}{ANY_COUNT}");
        let index = self.settled.entry(place.clone()).or_default().index;
        // The alternative is to be empty.
        let alternative = self.turn(&place, 2);
        let count = if alternative == 0 { COUNTS.get(index).copied().unwrap_or_default() } else { 0 };
        Len { count, offer: Some(Offer { place, count: COUNTS.len(), alternative, refused: false }) }
    }

    /// Records that all elements were accepted.
    pub(super) fn ended(&mut self, len: Len) {
        self.offered.extend(len.offer);
    }

    /// The number below `count` for this place in this pass; 0 while nothing varies.
    pub(super) fn turn(&mut self, place: &str, count: usize) -> usize {
        self.variation.as_mut().map_or(0, |variation| variation.turn(place, count))
    }

    /// Records whether the leaf's type accepted the last sample.
    pub(super) fn answered(&mut self, is_taken: bool) {
        if let Some(offer) = self.offered.last_mut() {
            offer.refused = !is_taken;
            if let Some(settled) = self.settled.get_mut(&offer.place) {
                settled.taken |= is_taken;
            }
        }
    }

    /// Moves on to other samples, because the type rejected those of this pass. Fails when none are left.
    pub(super) fn advance(&mut self, reason: String) -> Result<(), String> {
        let places = self.offered.iter().map(|offer| &offer.place).collect::<BTreeSet<_>>().len();
        if self.refusal.as_ref().is_none_or(|(most, ..)| *most < places) {
            let place = self.offered.last().map_or_else(String::new, |offer| offer.place.clone());
            self.refusal = Some((places, place, reason));
        }
        let has_counts = self.offered.iter().any(|offer| offer.place.ends_with(ANY_COUNT));
        self.refusals += 1;
        if self.refusals <= REFUSALS_MAX && self.next() {
            return Ok(());
        }
        if self.counts_vary || !has_counts {
            return Err(self.exhausted());
        }
        self.counts_vary = true;
        self.refusals = 0;
        self.settled.values_mut().for_each(|settled| settled.index = 0);
        Ok(())
    }

    /// Moves on the last leaf of this pass that has another sample, and starts over those after it. Returns whether there was
    /// one.
    fn next(&mut self) -> bool {
        let mut seen = BTreeSet::new();
        while let Some(Offer { place, count, refused, .. }) = self.offered.pop() {
            if !self.counts_vary && place.ends_with(ANY_COUNT) {
                continue;
            }
            let Some(settled) = self.settled.get_mut(&place) else { continue };
            if !seen.insert(place) {
                continue;
            }
            if settled.index + 1 < count {
                settled.index += 1;
                return true;
            }
            settled.index = 0;
            if refused && !settled.taken {
                break;
            }
        }
        false
    }

    /// The error when a type accepts no sample.
    fn exhausted(&self) -> String {
        let (place, reason) = self.refusal.as_ref().map_or(("", ""), |(_, place, reason)| (place, reason));
        // After all elements of a sequence: the rejected one may be anywhere.
        let is_known = !place.is_empty() && !place.ends_with(ANY_COUNT);
        let at = if is_known { format!(" at {place}") } else { String::new() };
        format!(
            "its Deserialize rejects every sample value tried{at} ({reason}): pass one that it accepts to sample(\"...\") on the \
             publisher's and the subscriber's builder, or validate after decoding"
        )
    }

    /// Bans the last alternative of a rejected pass. Returns whether there was one.
    pub(super) fn ban(&mut self) -> bool {
        let last = self.offered.iter().rfind(|offer| offer.alternative > 0);
        let (Some(offer), Some(variation)) = (last, &mut self.variation) else { return false };
        variation.banned.entry(offer.place.clone()).or_default().insert(offer.alternative)
    }

    pub(super) fn integer<T: TryFrom<i128> + Copy>(&mut self, place: &str) -> Option<T> {
        let fitting = |number: i128| T::try_from(number).ok();
        let named: Vec<i128> = self.named.iter().filter_map(|text| text.parse().ok()).collect();
        let samples: Vec<T> = named.into_iter().chain(NUMBERS).filter_map(fitting).collect();
        let largest = (7..=127).rev().find_map(|bits| fitting(i128::MAX >> (127 - bits)));
        let smallest = (7..=127).rev().find_map(|bits| fitting(i128::MIN >> (127 - bits)));
        let others = [fitting(0), fitting(own_number(place).into()), largest, smallest];
        self.choose(place, &samples, &others.into_iter().flatten().collect::<Vec<T>>())
    }

    pub(super) fn float(&mut self, place: &str) -> f64 {
        let named = self.named.iter().filter_map(|text| text.parse::<f64>().ok());
        let samples: Vec<f64> = named.chain(FLOATS).collect();
        self.choose(place, &samples, &[0.0, own_number(place).into(), -1.5]).unwrap_or_default()
    }

    pub(super) fn single_float(&mut self, place: &str) -> f32 {
        // A single would not return other digits.
        #[expect(clippy::cast_possible_truncation, reason = "all samples but the user's own are exact")]
        let single = self.float(place) as f32;
        single
    }

    pub(super) fn boolean(&mut self, place: &str) -> bool {
        self.choose(place, &[false, true], &[true, false]).unwrap_or_default()
    }

    pub(super) fn character(&mut self, place: &str) -> char {
        let single = |text: &String| text.chars().next().filter(|letter| letter.len_utf8() == text.len());
        let samples: Vec<char> = self.named.iter().filter_map(single).chain(CHARS).collect();
        let own = char::from(b'A' + own_number(place) % 26);
        self.choose(place, &samples, &['\0', own, '\u{20AC}']).unwrap_or_default()
    }

    pub(super) fn text(&mut self, place: &str) -> String {
        let own = own_number(place);
        match self.pick(place, TEXTS.len(), 3) {
            Pick::Named(text) => text.clone(),
            Pick::Known(index) => TEXTS.get(index).copied().unwrap_or_default().to_owned(),
            Pick::Other(0) => String::new(),
            Pick::Other(1) => own.to_string(),
            Pick::Other(_) => format!("text {own}"),
        }
    }

    pub(super) fn bytes(&mut self, place: &str) -> Vec<u8> {
        let own = own_number(place);
        let len = |index: usize| LENGTHS.get(index).copied().unwrap_or_default();
        match self.pick(place, LENGTHS.len(), LENGTHS.len()) {
            Pick::Named(text) => text.clone().into_bytes(),
            Pick::Known(index) => vec![b'a'; len(index)],
            Pick::Other(index) => vec![own; len(index)],
        }
    }

    /// One of these samples, or of `others` in this pass.
    fn choose<T: Copy>(&mut self, place: &str, samples: &[T], others: &[T]) -> Option<T> {
        let named = std::mem::take(&mut self.named);
        let pick = match self.pick(place, samples.len(), others.len()) {
            Pick::Other(index) => others.get(index),
            Pick::Known(index) => samples.get(index),
            Pick::Named(_) => None,
        };
        let pick = pick.copied();
        self.named = named;
        pick
    }

    fn pick(&mut self, place: &str, known: usize, others: usize) -> Pick<'_> {
        let count = self.named.len() + known;
        let index = self.settled.entry(place.to_owned()).or_default().index;
        let alternative = self.turn(place, others + 1);
        self.offered.push(Offer { place: place.to_owned(), count, alternative, refused: false });
        match (alternative.checked_sub(1), self.named.get(index)) {
            (Some(other), _) => Pick::Other(other),
            (None, Some(text)) => Pick::Named(text),
            (None, None) => Pick::Known(index - self.named.len()),
        }
    }
}

/// A sample.
#[derive(Debug)]
enum Pick<'l> {
    /// The user's.
    Named(&'l String),
    /// One that every type is tried with.
    Known(usize),
    /// One besides those.
    Other(usize),
}

impl Variation {
    fn turn(&mut self, place: &str, count: usize) -> usize {
        self.visited += 1;
        let visits = match self.visits.get_mut(place) {
            Some(visits) => visits,
            None => self.visits.entry(place.to_owned()).or_default(),
        };
        let visit = *visits;
        *visits += 1;
        let Some(banned) = self.banned.get(place) else { return nth_turn(place, visit, count) };
        let turns: Vec<usize> = (0..count).filter(|turn| !banned.contains(turn)).collect();
        turns.get(nth_turn(place, visit, turns.len())).copied().unwrap_or_default()
    }
}

/// The turn, of `count`, at this visit to a place. Every other round has each turn once and begins anywhere; the rounds between
/// are random, but the same on every host. So neither neighbouring places nor paired visits vary in step.
fn nth_turn(place: &str, visit: usize, count: usize) -> usize {
    let hash = |number: usize| {
        let seed = [place.as_bytes(), &(number as u64).to_le_bytes()].concat();
        usize::try_from(crate::checksum::crc32(&seed) >> 8).unwrap_or_default()
    };
    let round = visit.checked_div(count).unwrap_or_default();
    let at = if round.is_multiple_of(2) { hash(round).wrapping_add(visit) } else { hash(visit) };
    at.checked_rem(count).unwrap_or_default()
}

/// A number from 3 to 115, mostly different for each place: the same on every host.
fn own_number(place: &str) -> u8 {
    let hash = crate::checksum::crc32(place.as_bytes());
    u8::try_from(hash % 113).unwrap_or_default() + 3
}
