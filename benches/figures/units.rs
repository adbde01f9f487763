//! Numbers as the pages have them.

use std::borrow::Borrow;

use super::data::{Ratios, Spread};

/// What stands where nothing was measured.
const NOTHING: &str = "";

/// Nanoseconds, in the unit that suits.
pub(crate) fn time(ns: f64) -> String {
    scaled(ns, &[(1e9, "s"), (1e6, "ms"), (1e3, "us"), (1.0, "ns")])
}

/// Records a second.
pub(crate) fn rate(per_second: f64) -> String {
    scaled(per_second, &[(1e6, "million/s"), (1e3, "thousand/s"), (1.0, "/s")])
}

/// Gigabytes a second.
pub(crate) fn throughput(gb_per_s: f64) -> String {
    scaled(gb_per_s * 1e9, &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")])
}

/// A number of bytes, short.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        count if count >= 1 << 20 && count.is_multiple_of(1 << 20) => format!("{} MiB", count >> 20),
        count if count >= 1 << 10 && count.is_multiple_of(1 << 10) => format!("{} KiB", count >> 10),
        count => format!("{count} B"),
    }
}

/// A number of bytes for a narrow axis, without its unit.
pub(crate) fn short_bytes(count: u64) -> String {
    bytes(count).trim_end_matches("iB").trim_end_matches(" B").replace(' ', "")
}

/// A number with a comma for each thousand.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A per cent number.
pub(crate) fn per_cent(share: f64) -> String {
    format!("{} %", digits(share))
}

/// A ratio, with its range if there were several rounds.
pub(crate) fn ratio(ratios: Option<impl Borrow<Ratios>>) -> String {
    match ratios.map(|ratios| ratios.borrow().spread) {
        None => NOTHING.to_owned(),
        Some(Spread { min, median, max }) if min < max => format!("{median:.2} ({min:.2} to {max:.2})"),
        Some(Spread { median, .. }) => format!("{median:.2}"),
    }
}

/// A value by one of the functions above, if there is one.
pub(crate) fn or_nothing(value: Option<f64>, text: fn(f64) -> String) -> String {
    value.map_or_else(|| NOTHING.to_owned(), text)
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let unit = units.iter().find(|(scale, _)| value >= *scale * 0.9995).or_else(|| units.last());
    unit.map_or_else(String::new, |(scale, name)| {
        let number = digits(value / scale);
        if name.starts_with('/') { format!("{number}{name}") } else { format!("{number} {name}") }
    })
}

/// Three digits, or two of a number below ten.
fn digits(number: f64) -> String {
    match number {
        number if number >= 99.95 => format!("{number:.0}"),
        number if number >= 9.995 => format!("{number:.1}"),
        number if number >= 0.0995 => format!("{number:.2}"),
        number => format!("{number:.3}"),
    }
}
