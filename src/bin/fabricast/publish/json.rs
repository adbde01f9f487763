//! Parsing JSON without loss: each key once, each integer exact.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A value without duplicate keys.
struct Unique(Value);

/// Builds a [`Unique`].
struct UniqueVisitor;

/// Parses a value, or returns why it is rejected.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Err("it is empty: write a JSON value".to_owned());
    }
    let refused = |error: serde_json::Error| {
        let (what, column) = (if error.is_data() { "" } else { "not JSON: " }, error.column());
        let sentence = error.to_string();
        let why = sentence.strip_suffix(&format!(" at line 1 column {column}")).unwrap_or(&sentence);
        format!("{what}{why} at column {column}")
    };
    let Unique(value) = serde_json::from_str(text).map_err(refused)?;
    match integers(text).find(|digits| digits.parse::<i64>().is_err() && digits.parse::<u64>().is_err()) {
        Some(digits) => Err(format!("{digits} fits neither i64 nor u64: quote it as a string")),
        None => Ok(value),
    }
}

/// The integers outside strings. The parser would round large ones to floats.
fn integers(json: &str) -> impl Iterator<Item = &str> {
    let (mut is_string, mut is_escaped) = (false, false);
    let tokens = json.split(move |char: char| {
        let was_string = is_string;
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = is_string,
            '"' => is_string = !is_string,
            _ => {}
        }
        was_string || !matches!(char, '-' | '+' | '.' | '0'..='9' | 'a'..='z' | 'E')
    });
    tokens
        .filter(|token| token.strip_prefix('-').unwrap_or(token).bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|token| !token.is_empty())
}

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor)
    }
}

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Unique;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Unique, E> {
        Ok(Unique(Value::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Unique, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("a number out of range"))?;
        Ok(Unique(number.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Unique, E> {
        Ok(Unique(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Unique, A::Error> {
        let mut values = Vec::new();
        while let Some(Unique(value)) = elements.next_element()? {
            values.push(value);
        }
        Ok(Unique(values.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Unique, A::Error> {
        let mut fields = Map::new();
        while let Some((key, Unique(value))) = entries.next_entry::<String, _>()? {
            if fields.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} is given twice")));
            }
            fields.insert(key, value);
        }
        Ok(Unique(fields.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_usual_parser() {
        let text = r#" {"a\"1": [1, -2, 0.5, 1e3, 18446744073709551615, -9223372036854775808], "b": {"c": null, "d": true},
                      "18446744073709551617": "\\", "e": "\"18446744073709551617", "é": {}} "#;
        assert_eq!(parse(text), Ok(serde_json::from_str(text).unwrap()));
        assert!(parse("[1,]").unwrap_err().starts_with("not JSON: "));
        for float in ["18446744073709551617.0", "1e300", "-0", "-0.0"] {
            assert_eq!(parse(float), Ok(serde_json::from_str(float).unwrap()));
        }
    }

    #[test]
    fn integers_that_would_be_rounded_are_rejected() {
        for text in
            ["18446744073709551616", r#"{"a": [1, -9223372036854775809]}"#, r#"["\\",18446744073709551617]"#]
        {
            let why = parse(text).unwrap_err();
            assert!(why.contains("fits neither i64 nor u64"), "{why}");
        }
    }
}
