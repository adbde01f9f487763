//! How things are printed.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Bytes of a line of a hex dump.
const DUMP_WIDTH: usize = 16;

/// One line of JSON for people: with spaces, and without characters that would do something to the terminal.
pub(crate) fn readable(value: &serde_json::Value) -> String {
    let mut line = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut line, Spaced);
    if value.serialize(&mut serializer).is_err() {
        return String::new();
    }
    printable(&String::from_utf8_lossy(&line))
}

/// One line of JSON for programs, written at once, so that it is seen as soon as it is there.
pub(crate) fn json_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

/// The text without control characters: what comes from others must not steer the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char }).collect()
}

/// A duration in the unit that fits it.
pub(crate) fn span(ns: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..60 => {}
        60..3_600 => return format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => return format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => return format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
    match UNITS.into_iter().find(|(unit_ns, _)| ns >= *unit_ns) {
        Some((unit_ns, unit)) => format!("{}.{}{unit}", ns / unit_ns, ns % unit_ns * 10 / unit_ns),
        None => format!("{ns}ns"),
    }
}

/// A count as a number to calculate with; exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of values, bytes and nanoseconds stay below 2^53")]
pub(crate) fn count(number: u64) -> f64 {
    number as f64
}

/// Rows in columns as wide as they need, the last one unpadded.
pub(crate) fn table<const N: usize>(out: &mut impl Write, rows: &[[String; N]]) -> io::Result<()> {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    out.flush()
}

/// Bytes as offsets, hexadecimal digits and characters.
pub(crate) fn hex_dump(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    for (index, line) in bytes.chunks(DUMP_WIDTH).enumerate() {
        let digits: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown =
            |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
        let text: String = line.iter().map(shown).collect();
        let (offset, width) = (index * DUMP_WIDTH, DUMP_WIDTH * 3 - 1);
        writeln!(out, "{offset:08x}  {:width$}  |{text}|", digits.join(" "))?;
    }
    out.flush()
}

/// JSON on one line, with a space behind each colon and comma.
#[derive(Debug)]
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_a_unit_that_fits() {
        let expected = [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1.0us"),
            (12_345_678, "12.3ms"),
            (1_990_000_000, "1.9s"),
            (61_000_000_000, "1m01s"),
            (3_720_000_000_000, "1h02m"),
            (90_000_000_000_000, "1d01h"),
        ];
        for (ns, text) in expected {
            assert_eq!(span(ns), text);
        }
        assert!(span(u64::MAX).ends_with('h'));
    }

    #[test]
    fn readable_json_has_spaces_and_no_control_characters() {
        let value = serde_json::json!({ "a": [1, "x\u{1b}[2J\u{9b}"], "b": null });
        assert_eq!(readable(&value), "{\"a\": [1, \"x\\u001b[2J\u{fffd}\"], \"b\": null}");
    }

    #[test]
    fn a_dump_shows_offsets_digits_and_characters() {
        let mut out = Vec::new();
        hex_dump(&mut out, b"0123456789abcdef\x00z").unwrap();
        let expected = "00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  |0123456789abcdef|\n\
                        00000010  00 7a                                            |.z|\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
