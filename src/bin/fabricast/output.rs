//! Formatting for people and programs.

use std::io::{self, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Bytes per line of a hex dump.
const DUMP_WIDTH: usize = 16;

/// One line of JSON for people, with spaces.
pub(crate) fn readable(value: &serde_json::Value) -> String {
    let mut line = Vec::new();
    // It cannot fail: what is written are texts and numbers, into memory.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut line, Spaced));
    printable(&String::from_utf8_lossy(&line))
}

/// One line of JSON for programs, flushed at once.
pub(crate) fn json_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    // Only texts have hidden characters, and there they are escaped as JSON escapes them.
    let line = printable(&serde_json::to_string(value)?) + "\n";
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// Escapes hidden characters as JSON does: text from others must not control the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match is_hidden(char) {
            true => shown.push_str(&escaped(char)),
            false => shown.push(char),
        }
    }
    shown
}

/// Whether a character acts on the terminal, reorders text, or is invisible: control characters, line and paragraph separators,
/// format characters, fillers, tags, and variation selectors other than those of emoji.
fn is_hidden(char: char) -> bool {
    match char {
        ' '..='~' => false,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' => {
            true
        }
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{fff9}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' => true,
        '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{fe00}'..='\u{fe0d}' => true,
        '\u{e0000}'..='\u{e007f}' | '\u{e0100}'..='\u{e01ef}' => true,
        other => other.is_control(),
    }
}

/// A character, escaped as in JSON.
fn escaped(char: char) -> String {
    char.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// Whether standard output has no reader any more: its pipe is closed, or its terminal gone.
pub(crate) fn is_abandoned() -> bool {
    let out = io::stdout();
    let mut waited = [PollFd::new(&out, PollFlags::empty())];
    let answered = rustix::event::poll(&mut waited, Some(&Timespec::default()));
    let [waited] = waited;
    answered.is_ok() && waited.revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// A duration in a fitting unit.
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

/// A duration in a fitting unit.
pub(crate) fn shown(duration: Duration) -> String {
    span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// The age of an event by this host's clock, nanoseconds; negative where that clock is behind.
pub(crate) fn age_ns(now_ns: u64, then_ns: u64) -> i64 {
    let age_ns = i128::from(now_ns) - i128::from(then_ns);
    i64::try_from(age_ns).unwrap_or(if age_ns < 0 { i64::MIN } else { i64::MAX })
}

/// An age in a fitting unit. A negative one means that a clock is wrong.
pub(crate) fn age(ns: i64) -> String {
    let span = span(ns.unsigned_abs());
    if ns < 0 { format!("-{span} (clock?)") } else { span }
}

/// When something happened, in words.
pub(crate) fn ago(ns: i64) -> String {
    let span = span(ns.unsigned_abs());
    if ns < 0 { format!("in {span} (clock?)") } else { format!("{span} ago") }
}

/// Bytes of values, in units of 1,000.
pub(crate) fn data(bytes: u64) -> String {
    scaled(count(bytes), 1000.0, &[" B", " kB", " MB", " GB", " TB"])
}

/// Bytes of memory, in units of 1,024.
pub(crate) fn memory(bytes: u64) -> String {
    scaled(count(bytes), 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"])
}

/// Bytes per second, in units of 1,000.
pub(crate) fn data_rate(bytes_per_s: f64) -> String {
    format!("{}/s", scaled(bytes_per_s.round(), 1000.0, &[" B", " kB", " MB", " GB", " TB"]))
}

/// Values per second.
pub(crate) fn rate(per_s: f64) -> String {
    let text = scaled(per_s, 1000.0, &["", "k", "M", "G"]);
    format!("{text}/s")
}

/// A number in the largest unit of which it has at least one, with one decimal unless it is whole and small.
fn scaled(number: f64, step: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let (mut number, mut unit) = (number, units.next());
    if number < step && number.fract() == 0.0 {
        return format!("{number}{}", unit.unwrap_or(&""));
    }
    // A number that would be shown as a full step belongs to the next unit.
    while number >= step - 0.05
        && let Some(larger) = units.next()
    {
        (number, unit) = (number / step, Some(larger));
    }
    format!("{number:.1}{}", unit.unwrap_or(&""))
}

/// A count as a float; exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of values, bytes and nanoseconds stay below 2^53")]
pub(crate) fn count(number: u64) -> f64 {
    number as f64
}

/// Rows in columns of minimal width, the last one unpadded.
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
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(out, first)
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
    fn json_has_no_hidden_characters_and_keeps_its_values() {
        let value = serde_json::json!({ "b": [1, "x\u{1b}[2J\u{9b}\u{202e}é\u{e0041}"], "a\u{200b}": null });
        let shown = "{\"b\": [1, \"x\\u001b[2J\\u009b\\u202eé\\udb40\\udc41\"], \"a\\u200b\": null}";
        assert_eq!(readable(&value), shown);
        let mut line = Vec::new();
        json_line(&mut line, &value).unwrap();
        assert_eq!(
            String::from_utf8(line.clone()).unwrap(),
            shown.replace(": ", ":").replace(", ", ",") + "\n"
        );
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&line).unwrap(), value);
    }

    #[test]
    fn hidden_characters_are_escaped_and_all_others_kept() {
        let kept = "a ~ é ß 日本 \u{301} 🦀 \\";
        assert_eq!(printable(kept), kept);
        assert_eq!(printable("a\u{202e}b\u{7f}\n"), "a\\u202eb\\u007f\\u000a");
        let invisible = [
            '\u{34f}',
            '\u{17b4}',
            '\u{17b5}',
            '\u{180b}',
            '\u{180e}',
            '\u{180f}',
            '\u{fe00}',
            '\u{fe0d}',
            '\u{e0100}',
            '\u{e01ef}',
        ];
        for char in invisible {
            assert_eq!(printable(&char.to_string()), escaped(char));
        }
    }

    #[test]
    fn negative_age_is_a_question_of_clocks() {
        let now_ns = 5_000_000_000_000;
        let ages = [0, 1_500, 3_600_000_000_000].map(|ns| age(age_ns(now_ns, now_ns - ns)));
        assert_eq!(ages, ["0ns", "1.5us", "1h00m"]);
        let ahead = age_ns(now_ns, now_ns + 3_600_000_000_000);
        assert_eq!((age(ahead).as_str(), ago(ahead).as_str()), ("-1h00m (clock?)", "in 1h00m (clock?)"));
        assert_eq!((age_ns(0, u64::MAX), age_ns(u64::MAX, 0)), (i64::MIN, i64::MAX));
        assert!(age(i64::MIN).ends_with("(clock?)"));
    }

    #[test]
    fn amounts_have_a_unit_that_fits() {
        assert_eq!([0, 13, 999, 1_000, 1_782].map(data), ["0 B", "13 B", "999 B", "1.0 kB", "1.8 kB"]);
        assert_eq!([999_949, 999_960, 8_200_000].map(data), ["999.9 kB", "1.0 MB", "8.2 MB"]);
        assert_eq!([512, 4_224, 1 << 20].map(memory), ["512 B", "4.1 KiB", "1.0 MiB"]);
        assert_eq!([0.0, 0.5, 80.0, 100_009.3].map(rate), ["0/s", "0.5/s", "80/s", "100.0k/s"]);
        assert_eq!(data_rate(8_200_410.0), "8.2 MB/s");
        assert!(data(u64::MAX).ends_with(" TB"));
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
