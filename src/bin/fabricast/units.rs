//! Durations and sizes as arguments, in the form in which the program prints them.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::output::count;

/// Units of durations, nanoseconds.
const DURATIONS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// A duration: a number of seconds, or numbers with units, as in 250ms, 5s or 1m30s.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let malformed =
        || format!("{text:?} is not a duration: write seconds, or a unit too, as in 250ms, 5s or 1m30s");
    if let Ok(seconds) = text.parse() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| malformed());
    }
    let (mut rest, mut whole) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let (number, behind) = split_number(rest).ok_or_else(malformed)?;
        let unit_len = behind.find(|char: char| char.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, next) = behind.split_at_checked(unit_len).ok_or_else(malformed)?;
        let unit_ns = DURATIONS.iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?.1;
        let part = Duration::try_from_secs_f64(number * count(unit_ns) / 1e9).map_err(|_| malformed())?;
        whole = whole.checked_add(part).ok_or_else(malformed)?;
        rest = next;
    }
    if text.is_empty() { Err(malformed()) } else { Ok(whole) }
}

/// A duration like [`duration`], but not zero.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => {
            Err(format!("{text} is too short: write a time above 0, as in 500ms, or omit the option"))
        }
        time => Ok(time),
    }
}

/// Returns a parser of whole numbers within these bounds.
pub(crate) fn number_in<T: TryFrom<u64>>(
    bounds: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| bounds.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            match (bounds.start(), bounds.end()) {
                (0, &u64::MAX) => format!("{text:?} is not a whole number"),
                (least, &u64::MAX) => format!("{text:?} is not a whole number of at least {least}"),
                (least, most) => format!("{text:?} is not a whole number from {least} to {most}"),
            }
        })
    }
}

/// A size in bytes: a number, or one with a unit. 64k and 64KiB are 65,536 bytes, 64kB are 64,000.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let malformed = || {
        format!(
            "{text:?} is not a size: write bytes, or a unit too, as in 64k (65,536 bytes) or 64kB (64,000)"
        )
    };
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    let (number, unit) = split_number(text).ok_or_else(malformed)?;
    let unit_len = size_unit(&unit.trim_start().to_ascii_lowercase()).ok_or_else(malformed)?;
    whole(number * count(unit_len)).ok_or_else(malformed)
}

/// Returns a parser of sizes within these bounds.
pub(crate) fn size_in<T: TryFrom<u64>>(
    bounds: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let bytes = size(text)?;
        let fits =
            Some(bytes).filter(|bytes| bounds.contains(bytes)).and_then(|bytes| T::try_from(bytes).ok());
        fits.ok_or_else(|| match (bounds.start(), bounds.end()) {
            (1, &u64::MAX) => format!("{text} is not a size of at least 1 byte"),
            (least, &u64::MAX) => format!("{text} is not a size of at least {least} bytes"),
            (least, most) => format!("{text} is not in {least}..={most} bytes"),
        })
    }
}

/// The bytes of a unit in lower case: a bare prefix is a power of 1,024, as for memory.
fn size_unit(unit: &str) -> Option<u64> {
    let mut rest = unit.chars();
    let Some(prefix) = rest.next().filter(|_| unit != "b") else { return Some(1) };
    let power = ['k', 'm', 'g', 't'].into_iter().zip(1_u32..).find(|(name, _)| *name == prefix)?.1;
    match rest.as_str() {
        "" | "i" | "ib" => Some(1_024_u64.pow(power)),
        "b" => Some(1_000_u64.pow(power)),
        _ => None,
    }
}

/// The number at the beginning of a text, and the rest.
fn split_number(text: &str) -> Option<(f64, &str)> {
    let len = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, behind) = text.split_at_checked(len)?;
    Some((number.parse().ok()?, behind))
}

/// A plausible number of bytes, rounded.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is checked before")]
fn whole(bytes: f64) -> Option<u64> {
    (0.0..9e18).contains(&bytes).then(|| bytes.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::output::{data, memory, span};
    use super::*;

    #[test]
    fn durations_are_read_as_they_are_printed() {
        let expected = [
            ("5", 5_000),
            ("0.05", 50),
            ("5s", 5_000),
            ("250ms", 250),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
        ];
        for (text, ms) in expected {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for ns in
            [0, 7, 1_500, 12_300_000, 1_900_000_000, 61_000_000_000, 3_720_000_000_000, 90_000_000_000_000]
        {
            assert_eq!(duration(&span(ns)), Ok(Duration::from_nanos(ns)), "{}", span(ns));
        }
        for text in [
            "",
            "s",
            "-1",
            "-1s",
            "1x",
            "1m30",
            "NaN",
            "inf",
            "1e30",
            "5 s",
            "99999999999999999999d",
            "1.2.3s",
            "5é",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_as_they_are_printed() {
        let expected = [
            ("0", 0),
            ("64", 64),
            ("64B", 64),
            ("64k", 65_536),
            ("64K", 65_536),
            ("64KiB", 65_536),
            ("64kB", 64_000),
        ];
        for (text, bytes) in expected {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        assert_eq!(
            (size("1G"), size("1.5M"), size("18446744073709551615")),
            (Ok(1 << 30), Ok(3 << 19), Ok(u64::MAX))
        );
        for bytes in [13, 1_500, 8_200_000] {
            assert_eq!(size(&data(bytes)), Ok(bytes));
        }
        assert_eq!([512, 1 << 20].map(|bytes| size(&memory(bytes))), [Ok(512), Ok(1 << 20)]);
        for text in ["", "k", "-1", "64x", "64kk", "1e30", "99999999999999999999", "99999999999T", "4é"] {
            assert!(size(text).is_err(), "{text}");
        }
        let bounded = size_in::<u32>(8..=1 << 30);
        assert_eq!((bounded("1M"), bounded("7").is_err(), bounded("2G").is_err()), (Ok(1 << 20), true, true));
    }
}
