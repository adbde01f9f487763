//! Lines of the input, and their values.

use std::io::{BufRead, BufReader, Read};

use crossbeam::channel::Sender;
use fabricast::{Decoded, Schema};

use super::super::failure::{Exit, Failure};
use super::super::shape::{JsonShape, encode_text, is_received_as};
use super::json;

/// The most lines handed over, and published, at once.
const LINES_AT_ONCE: usize = 64;
/// Bytes that encoding adds to a text: its length.
pub(super) const TEXT_OVERHEAD: usize = 8;
/// Bytes between a key and its value in an entry of a table.
const PRESENCE_LEN: usize = 1;
/// Bytes of the longest key.
pub(super) const KEY_LEN_MAX: usize = 256;
/// Bytes of a line of JSON for each byte of the longest value: names, digits and escapes take more.
const JSON_LEN_PARTS: usize = 16;
/// Bytes that a line of JSON may always have.
const JSON_LEN_MIN: usize = 64 * 1024;

/// A line of the input, without its end.
#[derive(Debug)]
pub(super) struct Line {
    /// Its number, from 1 on.
    number: u64,
    /// The key before the value, in lines for a table; otherwise empty.
    key: String,
    /// The bytes of its value, or why they are missing; [`Rejected::Input`] is the last line.
    content: Result<Vec<u8>, Rejected>,
}

/// What lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// A value.
    Value,
    /// A key, a tab, and its value.
    KeyAndValue,
}

/// An encoded line.
#[derive(Debug)]
pub(super) struct Entry {
    /// The number of the line.
    pub(super) number: u64,
    /// Its key; empty for a topic without keys.
    pub(super) key: String,
    /// Its encoded value.
    pub(super) value: Vec<u8>,
}

/// Why a line is not published.
#[derive(Debug)]
pub(super) enum Rejected {
    /// The line cannot be a value.
    Line(String),
    /// The line could not be read.
    Input(Failure),
}

/// The longest line.
#[derive(Debug)]
pub(super) struct LineLimit {
    len_max: usize,
    /// What to say of a longer one.
    why: String,
}

/// The form of the lines.
#[derive(Debug)]
pub(super) enum Form {
    /// Texts.
    Text,
    /// Bytes.
    Raw,
    /// JSON values of this type.
    Json(JsonShape, Schema),
}

impl Rejected {
    /// The rejection of the line of this number.
    fn line(number: u64, why: &str) -> Self {
        Self::Line(not_published(number, why))
    }
}

/// The sentence about a line that was not published.
pub(super) fn not_published(number: u64, why: &str) -> String {
    format!("line {number} was not published: {why}")
}

impl Form {
    /// The form of JSON values like these.
    pub(super) fn of_examples(examples: &[impl AsRef<str>]) -> Result<Self, String> {
        let shown = examples.iter().try_fold(JsonShape::Unknown, |shape, example| {
            let value = json::parse(example.as_ref())?;
            shape.merge(JsonShape::of(&value)?, "the value")
        })?;
        let schema = shown.schema()?;
        Ok(Self::Json(shown, schema))
    }

    /// The form of JSON values like this line, which is returned.
    pub(super) fn of_line(line: Line) -> Result<(Self, Line), Rejected> {
        let Line { number, key, content } = line;
        let bytes = content?;
        let form = Self::of_examples(&[String::from_utf8_lossy(&bytes)]);
        Ok((form.map_err(|why| Rejected::line(number, &why))?, Line { number, key, content: Ok(bytes) }))
    }

    /// The longest line, and what to say of a longer one.
    pub(super) fn limit(form: Option<&Self>, layout: Layout, payload_len_max: usize) -> LineLimit {
        let len_max = Self::line_len_max(form, layout, payload_len_max);
        let why = match form {
            Some(Self::Text) => text_too_long(len_max, payload_len_max),
            Some(Self::Raw) => too_long(payload_len_max),
            Some(Self::Json(..)) | None => too_long(len_max),
        };
        LineLimit { len_max, why }
    }

    /// The most bytes of a line for a value of so many; for JSON also before its form is known.
    pub(super) fn line_len_max(form: Option<&Self>, layout: Layout, payload_len_max: usize) -> usize {
        match form {
            // The tab takes the place of the presence byte.
            Some(Self::Text) if layout == Layout::KeyAndValue => {
                payload_len_max.saturating_sub(2 * TEXT_OVERHEAD)
            }
            Some(Self::Text) => payload_len_max.saturating_sub(TEXT_OVERHEAD),
            Some(Self::Raw) => payload_len_max,
            Some(Self::Json(..)) | None => payload_len_max.saturating_mul(JSON_LEN_PARTS).max(JSON_LEN_MIN),
        }
    }

    /// The encoded value of a line, with its key of at most so many bytes.
    pub(super) fn encode(
        &self,
        line: Line,
        layout: Layout,
        payload_len_max: usize,
    ) -> Result<Entry, Rejected> {
        let Line { number, key, content } = line;
        let rejected = |why: &str| Rejected::line(number, why);
        let bytes = content?;
        let value = match self {
            Self::Raw => bytes,
            Self::Text => {
                let text = String::from_utf8(bytes);
                let text = text.map_err(|_| rejected("not valid UTF-8: use --raw to publish bytes"))?;
                let mut encoded = Vec::with_capacity(text.len() + TEXT_OVERHEAD);
                encode_text(&text, &mut encoded);
                encoded
            }
            Self::Json(shape, schema) => {
                let text = std::str::from_utf8(&bytes);
                let text = text.map_err(|error| rejected(&format!("not JSON: {error}")))?;
                let value = json::parse(text).map_err(|why| rejected(&why))?;
                let mut encoded = Vec::new();
                shape.encode(&value, &mut encoded).map_err(|why| rejected(&why))?;
                // Rejects what a subscriber could not decode, or would decode to another value.
                match schema.decode(&encoded).map_err(|error| rejected(&error.to_string()))? {
                    Decoded::Value(received) if is_received_as(&value, &received) => {}
                    _ => return Err(rejected("subscribers would decode another value")),
                }
                encoded
            }
        };
        let lead_len = match layout {
            Layout::Value => 0,
            Layout::KeyAndValue => TEXT_OVERHEAD + key.len() + PRESENCE_LEN,
        };
        if lead_len + value.len() > payload_len_max {
            let len = lead_len + value.len();
            return Err(rejected(&match self {
                Self::Raw => too_long(payload_len_max),
                Self::Text | Self::Json(..) => encoded_too_long(len, payload_len_max),
            }));
        }
        Ok(Entry { number, key, value })
    }
}

fn too_long(len_max: usize) -> String {
    format!("longer than {len_max} bytes: raise --payload-len-max")
}

/// Why a text is too long: it takes more bytes than it has.
fn text_too_long(len_max: usize, payload_len_max: usize) -> String {
    format!(
        "longer than {len_max} bytes, which take the {payload_len_max} of --payload-len-max with those for its length: raise it"
    )
}

/// Why an encoded value, of a table with its key, is too long.
fn encoded_too_long(len: usize, payload_len_max: usize) -> String {
    format!("longer than {payload_len_max} bytes, namely {len} when encoded: raise --payload-len-max")
}

/// Reads lines until the input ends or the receiver is dropped. Hands over together those available without waiting.
pub(super) fn read(
    input: &mut BufReader<impl Read>,
    layout: Layout,
    limit: &LineLimit,
    batches: &Sender<Vec<Line>>,
) {
    let mut batch = Vec::new();
    for number in 1_u64.. {
        let content = read_line(input, number, limit).unwrap_or_else(|error| {
            let sentence = format!("cannot read standard input: {error}");
            Some(Err(Rejected::Input(Failure::new(Exit::Local, sentence))))
        });
        let is_over = matches!(content, None | Some(Err(Rejected::Input(_))));
        batch.extend(content.map(|content| match layout {
            Layout::Value => Line { number, key: String::new(), content },
            Layout::KeyAndValue => match content.and_then(|bytes| split(number, &bytes)) {
                Ok((key, value)) => Line { number, key, content: Ok(value) },
                Err(rejected) => Line { number, key: String::new(), content: Err(rejected) },
            },
        }));
        if batch.len() < LINES_AT_ONCE && !is_over && input.buffer().contains(&b'\n') {
            continue;
        }
        let sent = batch.is_empty() || batches.send(std::mem::take(&mut batch)).is_ok();
        if is_over || !sent {
            return;
        }
    }
}

/// The key and the value of a line.
fn split(number: u64, line: &[u8]) -> Result<(String, Vec<u8>), Rejected> {
    let rejected = |why: &str| Rejected::line(number, why);
    let at = line.iter().position(|byte| *byte == b'\t');
    let (key, value) = at.and_then(|at| line.split_at_checked(at)).ok_or_else(|| {
        rejected("it has no tab: a line for a table is a key, a tab, and a value, as in KEY<TAB>VALUE")
    })?;
    let key = std::str::from_utf8(key).map_err(|_| rejected("its key is not valid UTF-8"))?;
    if key.len() > KEY_LEN_MAX {
        return Err(rejected(&format!("its key is longer than {KEY_LEN_MAX} bytes: use a shorter one")));
    }
    Ok((key.to_owned(), value.get(1..).unwrap_or_default().to_owned()))
}

/// The next line without its end. Never takes more memory than the longest line.
fn read_line(
    input: &mut impl BufRead,
    number: u64,
    LineLimit { len_max, why }: &LineLimit,
) -> std::io::Result<Option<Result<Vec<u8>, Rejected>>> {
    let mut line = Vec::new();
    // The longest line and its end.
    let room = (*len_max as u64).saturating_add(2);
    if input.by_ref().take(room).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let is_whole = line.ends_with(b"\n");
    let ends: [&[u8]; 2] = [b"\r\n", b"\n"];
    let end = ends.into_iter().find(|end| line.ends_with(end)).map_or(0, <[u8]>::len);
    line.truncate(line.len() - end);
    if line.len() <= *len_max {
        return Ok(Some(Ok(line)));
    }
    if !is_whole {
        skip_line(input)?;
    }
    Ok(Some(Err(Rejected::line(number, why))))
}

/// Discards the rest of a line.
fn skip_line(input: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let available = input.fill_buf()?;
        let (len, end) = (available.len(), available.iter().position(|byte| *byte == b'\n'));
        input.consume(end.map_or(len, |end| end + 1));
        if end.is_some() || len == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use crossbeam::channel::bounded;

    use super::*;

    fn limit(len_max: usize) -> LineLimit {
        LineLimit { len_max, why: too_long(len_max) }
    }

    fn batches(input: &[u8], len_max: usize) -> Vec<Vec<Line>> {
        let (sender, batches) = bounded(100);
        read(&mut BufReader::new(input), Layout::Value, &limit(len_max), &sender);
        drop(sender);
        batches.iter().collect()
    }

    /// The lines, or for longer ones the limit.
    fn lines(input: &[u8], len_max: usize) -> Vec<Result<String, usize>> {
        let content = |line: Line| match line.content {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(Rejected::Line(sentence)) if sentence.ends_with(&too_long(len_max)) => Err(len_max),
            Err(rejected) => panic!("{rejected:?}"),
        };
        batches(input, len_max).into_iter().flatten().map(content).collect()
    }

    fn encode(form: &Form, input: &[u8]) -> Vec<Result<Vec<u8>, String>> {
        let lines = batches(input, 1000).into_iter().flatten();
        let sentence = |rejected| match rejected {
            Rejected::Line(sentence) => sentence,
            Rejected::Input(failure) => panic!("{failure}"),
        };
        let encode = |line| form.encode(line, Layout::Value, 16).map(|entry| entry.value);
        lines.map(|line| encode(line).map_err(sentence)).collect()
    }

    #[test]
    fn lines_available_at_once_are_handed_over_together() {
        let lens = |text: &str| batches(text.as_bytes(), 10).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lens("one\ntwo\nthree\n"), [3]);
        // An unfinished line would have to be waited for.
        assert_eq!(lens("one\ntwo\nthr"), [2, 1]);
        assert_eq!(lens(&"x\n".repeat(150)), [64, 64, 22]);
    }

    #[test]
    fn lines_lose_only_their_ends() {
        let read = lines(b"one\r\n\n two \nlast", 10);
        assert_eq!(read, ["one", "", " two ", "last"].map(|line| Ok(line.to_owned())));
        assert_eq!(lines(b"", 10), []);
        assert_eq!(lines(b"abc\n", 3), [Ok("abc".to_owned())]);
        assert_eq!(lines(b"abc\r\n", 3), [Ok("abc".to_owned())]);
    }

    #[test]
    fn overlong_line_is_skipped_whole() {
        let kept = |text: &str| Ok(text.to_owned());
        assert_eq!(lines(b"ok\nabcd\nnext\nx\n", 3), [kept("ok"), Err(3), Err(3), kept("x")]);
        assert_eq!(lines(b"abcdefghijklmnop\nx\n", 3), [Err(3), kept("x")]);
        assert_eq!(lines(b"abcdefghijklmnop", 3), [Err(3)]);
        // Its end may be where reading stopped.
        assert_eq!(lines(b"abcd\n\nx\n", 3), [Err(3), kept(""), kept("x")]);
        assert_eq!(lines(b"abcde\nx\n", 3), [Err(3), kept("x")]);
    }

    #[test]
    fn line_for_a_table_begins_with_a_key_and_a_tab() {
        let entries = |input: &[u8], len_max| {
            let (sender, batches) = bounded(100);
            read(&mut BufReader::new(input), Layout::KeyAndValue, &limit(1000), &sender);
            drop(sender);
            let encoded = batches.iter().flatten().map(|line| {
                let entry = Form::Text.encode(line, Layout::KeyAndValue, len_max).ok()?;
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                Some((entry.key, text(entry.value.get(TEXT_OVERHEAD..).unwrap())))
            });
            encoded.collect::<Vec<_>>()
        };
        let entry = |key: &str, value: &str| Some((key.to_owned(), value.to_owned()));
        let read = entries(b"AAC+\t1\r\n a \t b\tc \n\t\nno tab\n\nBRK.B\t\n", 100);
        assert_eq!(
            read,
            [entry("AAC+", "1"), entry(" a ", " b\tc "), entry("", ""), None, None, entry("BRK.B", "")]
        );
        // Two lengths, a presence byte, a key and a value.
        assert_eq!(entries(b"ab\tcd\nab\tcde\n", 8 + 2 + 1 + 8 + 2), [entry("ab", "cd"), None]);
        assert_eq!(Form::line_len_max(Some(&Form::Text), Layout::KeyAndValue, 21), "ab\tcd".len());
    }

    #[test]
    fn rejected_json_names_its_place_in_the_input() {
        let form = Form::of_examples(&["{}"]).unwrap();
        let why = |input: &[u8]| encode(&form, input).pop().unwrap().unwrap_err();
        let doubled = why(b"{}\n{\"a\": 1, \"a\": 2}\n");
        assert!(
            doubled.contains("line 2") && doubled.contains("\"a\"") && !doubled.contains("line 1"),
            "{doubled}"
        );
        for input in [&b"{}\n\n"[..], b"{}\n \n"] {
            let empty = why(input);
            assert!(empty.contains("line 2") && empty.contains("empty") && !empty.contains("EOF"), "{empty}");
        }
    }

    #[test]
    fn invalid_line_is_rejected_by_its_number() {
        let not_text = "line 2 was not published: not valid UTF-8: use --raw to publish bytes";
        let text = encode(&Form::Text, b"a\n\xff\n");
        assert_eq!(text, [Ok(b"\x01\0\0\0\0\0\0\0a".to_vec()), Err(not_text.to_owned())]);
        assert_eq!(encode(&Form::Raw, b"\xff\x00\n"), [Ok(b"\xff\x00".to_vec())]);
        let too_long = "line 1 was not published: longer than 16 bytes: raise --payload-len-max";
        assert_eq!(encode(&Form::Raw, &[b'x'; 17]), [Err(too_long.to_owned())]);
        let form = Form::of_examples(&["[1]".to_owned()]).unwrap();
        let values = encode(&form, b"[2]\n[\n[\"x\"]\n[1, 2]\n");
        assert!(values[0].is_ok());
        assert!(values[1].as_ref().unwrap_err().starts_with("line 2 was not published: not JSON: "));
        assert!(
            values[2]
                .as_ref()
                .unwrap_err()
                .starts_with("line 3 was not published: an element of the value is")
        );
        assert!(values[3].as_ref().unwrap_err().contains("longer than 16 bytes"));
    }
}
