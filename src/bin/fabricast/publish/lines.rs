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
const TEXT_OVERHEAD: usize = 8;
/// Bytes of a line of JSON for each byte of the longest value: names, digits and escapes take more.
const JSON_LEN_PARTS: usize = 16;
/// Bytes that a line of JSON may always have.
const JSON_LEN_MIN: usize = 64 * 1024;

/// A line of the input, without its end.
#[derive(Debug)]
pub(super) struct Line {
    /// Its number, from 1 on.
    number: u64,
    /// Its bytes, or why they are missing; [`Rejected::Input`] is the last line.
    content: Result<Vec<u8>, Rejected>,
}

/// Why a line is not published.
#[derive(Debug)]
pub(super) enum Rejected {
    /// The line cannot be a value.
    Line(String),
    /// The line could not be read.
    Input(Failure),
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
        Self::Line(format!("line {number} was not published: {why}"))
    }
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
        let (number, bytes) = (line.number, line.content?);
        let form = Self::of_examples(&[String::from_utf8_lossy(&bytes)]);
        Ok((form.map_err(|why| Rejected::line(number, &why))?, Line { number, content: Ok(bytes) }))
    }

    /// The most bytes of a line for a value of so many; for JSON also before its form is known.
    pub(super) fn line_len_max(form: Option<&Self>, payload_len_max: usize) -> usize {
        match form {
            Some(Self::Text) => payload_len_max.saturating_sub(TEXT_OVERHEAD),
            Some(Self::Raw) => payload_len_max,
            Some(Self::Json(..)) | None => payload_len_max.saturating_mul(JSON_LEN_PARTS).max(JSON_LEN_MIN),
        }
    }

    /// The encoded value of a line, of at most so many bytes.
    pub(super) fn encode(&self, line: Line, payload_len_max: usize) -> Result<Vec<u8>, Rejected> {
        let rejected = |why: &str| Rejected::line(line.number, why);
        let bytes = line.content?;
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
        if value.len() <= payload_len_max { Ok(value) } else { Err(rejected(&too_long(payload_len_max))) }
    }
}

fn too_long(len_max: usize) -> String {
    format!("longer than {len_max} bytes: raise --payload-len-max")
}

/// Reads lines until the input ends or the receiver is dropped. Hands over together those available without waiting.
pub(super) fn read(input: &mut BufReader<impl Read>, len_max: usize, batches: &Sender<Vec<Line>>) {
    let mut batch = Vec::new();
    for number in 1_u64.. {
        let content = read_line(input, number, len_max).unwrap_or_else(|error| {
            let sentence = format!("cannot read standard input: {error}");
            Some(Err(Rejected::Input(Failure::new(Exit::Local, sentence))))
        });
        let is_over = matches!(content, None | Some(Err(Rejected::Input(_))));
        batch.extend(content.map(|content| Line { number, content }));
        if batch.len() < LINES_AT_ONCE && !is_over && input.buffer().contains(&b'\n') {
            continue;
        }
        let sent = batch.is_empty() || batches.send(std::mem::take(&mut batch)).is_ok();
        if is_over || !sent {
            return;
        }
    }
}

/// The next line without its end. Never takes more memory than the longest line.
fn read_line(
    input: &mut impl BufRead,
    number: u64,
    len_max: usize,
) -> std::io::Result<Option<Result<Vec<u8>, Rejected>>> {
    let mut line = Vec::new();
    // The longest line and its end.
    let room = (len_max as u64).saturating_add(2);
    if input.by_ref().take(room).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let is_whole = line.ends_with(b"\n");
    let ends: [&[u8]; 2] = [b"\r\n", b"\n"];
    let end = ends.into_iter().find(|end| line.ends_with(end)).map_or(0, <[u8]>::len);
    line.truncate(line.len() - end);
    if line.len() <= len_max {
        return Ok(Some(Ok(line)));
    }
    if !is_whole {
        skip_line(input)?;
    }
    Ok(Some(Err(Rejected::line(number, &too_long(len_max)))))
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

    fn batches(input: &[u8], len_max: usize) -> Vec<Vec<Line>> {
        let (sender, batches) = bounded(100);
        read(&mut BufReader::new(input), len_max, &sender);
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
        lines.map(|line| form.encode(line, 16).map_err(sentence)).collect()
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
