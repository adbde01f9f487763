//! Types of JSON values, inferred from examples, as schemas; and their encoding.

use std::collections::BTreeMap;

use fabricast::{Schema, limits};
use serde::Serialize;
use serde_json::{Map, Number, Value, json};

/// Characters of a value quoted in a message.
const QUOTED_CHARS_MAX: usize = 64;
/// Bytes reserved for `#` and a number that distinguishes types of one name.
const NUMBER_LEN_MAX: usize = 8;

/// The type of JSON values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum JsonShape {
    /// Not determined: an empty list has no elements, null no value.
    Unknown,
    Bool,
    I64,
    U64,
    F64,
    Text,
    /// Null, or a missing field.
    Optional(Box<Self>),
    List(Box<Self>),
    /// Fields, in the order seen.
    Object(Vec<(String, Self)>),
}

/// The JSON form of a schema, as the library writes it.
#[derive(Debug, Serialize)]
struct Described<'a> {
    #[serde(rename = "type")]
    type_name: &'a str,
    encoding: &'a str,
    format: Value,
    types: BTreeMap<String, Value>,
}

impl JsonShape {
    /// The type of this value.
    pub(crate) fn of(value: &Value) -> Result<Self, String> {
        Self::at(value, "the value")
    }

    /// The common type of both. `path` is their place in the values.
    pub(crate) fn merge(self, other: Self, path: &str) -> Result<Self, String> {
        Ok(match (self, other) {
            (Self::Unknown, shape) | (shape, Self::Unknown) => shape,
            (Self::Optional(one), Self::Optional(other)) => {
                Self::Optional(Box::new(one.merge(*other, path)?))
            }
            (Self::Optional(one), other) | (other, Self::Optional(one)) => {
                Self::Optional(Box::new(one.merge(other, path)?))
            }
            (Self::F64, Self::I64 | Self::U64) | (Self::I64 | Self::U64, Self::F64) => Self::F64,
            (Self::List(one), Self::List(other)) => Self::List(Box::new(one.merge(*other, &element(path))?)),
            (Self::Object(one), Self::Object(other)) => Self::Object(merge_fields(one, other, path)?),
            (one, other) if one == other => one,
            (one, other) => {
                return Err(format!("{path} is {} in one place and {} in another", one.name(), other.name()));
            }
        })
    }

    /// The schema of such values.
    pub(crate) fn schema(&self) -> Result<Schema, String> {
        let mut types = BTreeMap::new();
        let format = self.format("the value", "Json", &mut types)?;
        let type_name = format.as_str().map_or_else(|| "Json".to_owned(), str::to_owned);
        let described = Described { type_name: &type_name, encoding: "bincode", format, types };
        let json = serde_json::to_vec(&described).map_err(|error| error.to_string())?;
        Schema::from_json(&json).map_err(|error| error.to_string())
    }

    /// Appends the encoding of a value of this type: see `docs/layouts.md`.
    pub(crate) fn encode(&self, value: &Value, into: &mut Vec<u8>) -> Result<(), String> {
        self.encode_at(value, "the value", into)
    }

    fn at(value: &Value, path: &str) -> Result<Self, String> {
        Ok(match value {
            Value::Null => Self::Optional(Box::new(Self::Unknown)),
            Value::Bool(_) => Self::Bool,
            Value::Number(number) if number.is_i64() => Self::I64,
            Value::Number(number) if number.is_u64() => Self::U64,
            Value::Number(_) => Self::F64,
            Value::String(_) => Self::Text,
            Value::Array(values) => {
                let path = element(path);
                let merged = values
                    .iter()
                    .try_fold(Self::Unknown, |shape, value| shape.merge(Self::at(value, &path)?, &path));
                Self::List(Box::new(merged?))
            }
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| {
                    Ok((name.clone(), Self::at(value, &field_of(path, name))?))
                };
                Self::Object(fields.iter().map(field).collect::<Result<_, String>>()?)
            }
        })
    }

    /// Its name for people.
    fn name(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Bool => "true or false",
            Self::I64 => "an integer (i64)",
            Self::U64 => "an integer (u64)",
            Self::F64 => "a number (f64)",
            Self::Text => "a string",
            Self::Optional(_) => "null",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    /// Its format in a schema. Objects become named types.
    fn format(&self, path: &str, name: &str, types: &mut BTreeMap<String, Value>) -> Result<Value, String> {
        Ok(match self {
            Self::Unknown => {
                let instead = "give an --example with a value there";
                return Err(format!("cannot infer the type of {path}, which is null or empty: {instead}"));
            }
            Self::Bool => json!("bool"),
            Self::I64 => json!("i64"),
            Self::U64 => json!("u64"),
            Self::F64 => json!("f64"),
            Self::Text => json!("string"),
            Self::Optional(of) => json!({ "option": of.format(path, name, types)? }),
            Self::List(of) => json!({ "seq": of.format(&element(path), name, types)? }),
            Self::Object(fields) => {
                let field = |(field, shape): &(String, Self)| {
                    let format = shape.format(&field_of(path, field), &format!("{name}.{field}"), types)?;
                    Ok(json!({ "name": field, "format": format }))
                };
                let fields: Vec<Value> = fields.iter().map(field).collect::<Result<_, String>>()?;
                let name = free_name(name, types);
                let named = json!({ "type": name });
                types.insert(name, json!({ "struct": { "fields": fields } }));
                named
            }
        })
    }

    fn encode_at(&self, value: &Value, path: &str, into: &mut Vec<u8>) -> Result<(), String> {
        let differs = || {
            let instead = match (self, value) {
                (Self::I64 | Self::U64, Value::Number(number)) if number.is_f64() => {
                    "; for fractions pass an --example that has one there, such as 0.5"
                }
                _ => "",
            };
            format!("{path} is {}, but the topic's type has {} there{instead}", brief(value), self.name())
        };
        match (self, value) {
            (Self::Optional(_), Value::Null) => into.push(0),
            (Self::Optional(of), value) => {
                into.push(1);
                of.encode_at(value, path, into)?;
            }
            (Self::Bool, Value::Bool(value)) => into.push((*value).into()),
            (Self::I64, Value::Number(number)) => {
                into.extend(number.as_i64().ok_or_else(differs)?.to_le_bytes());
            }
            (Self::U64, Value::Number(number)) => {
                into.extend(number.as_u64().ok_or_else(differs)?.to_le_bytes());
            }
            (Self::F64, Value::Number(number)) => {
                into.extend(exact(number).ok_or_else(differs)?.to_le_bytes());
            }
            (Self::Text, Value::String(text)) => encode_text(text, into),
            (Self::List(of), Value::Array(values)) => {
                into.extend((values.len() as u64).to_le_bytes());
                let path = element(path);
                values.iter().try_for_each(|value| of.encode_at(value, &path, into))?;
            }
            (Self::Object(fields), Value::Object(object)) => encode_fields(fields, object, path, into)?,
            _ => return Err(differs()),
        }
        Ok(())
    }
}

/// Whether a decoded value equals the published one: a missing optional field may be null, and a whole number may be a float.
pub(crate) fn is_received_as(published: &Value, received: &Value) -> bool {
    match (published, received) {
        (Value::Object(published), Value::Object(received)) => {
            let is_same = |(name, received): (&String, &Value)| match published.get(name) {
                Some(published) => is_received_as(published, received),
                None => received.is_null(),
            };
            published.keys().all(|name| received.contains_key(name)) && received.iter().all(is_same)
        }
        (Value::Array(published), Value::Array(received)) => {
            published.len() == received.len()
                && published
                    .iter()
                    .zip(received)
                    .all(|(published, received)| is_received_as(published, received))
        }
        (Value::Number(published), Value::Number(received)) => {
            published == received || (received.is_f64() && exact(published) == received.as_f64())
        }
        (published, received) => published == received,
    }
}

/// Appends the encoding of a text.
pub(crate) fn encode_text(text: &str, into: &mut Vec<u8>) {
    into.extend((text.len() as u64).to_le_bytes());
    into.extend(text.as_bytes());
}

fn merge_fields(
    mut one: Vec<(String, JsonShape)>,
    mut other: Vec<(String, JsonShape)>,
    path: &str,
) -> Result<Vec<(String, JsonShape)>, String> {
    let missing = || JsonShape::Optional(Box::new(JsonShape::Unknown));
    for (name, shape) in &mut one {
        let found = other.iter().position(|(other, _)| other == name).map(|index| other.remove(index).1);
        let own = std::mem::replace(shape, JsonShape::Unknown);
        *shape = own.merge(found.unwrap_or_else(missing), &field_of(path, name))?;
    }
    for (name, shape) in other {
        let shape = shape.merge(missing(), &field_of(path, &name))?;
        one.push((name, shape));
    }
    Ok(one)
}

fn encode_fields(
    fields: &[(String, JsonShape)],
    object: &Map<String, Value>,
    path: &str,
    into: &mut Vec<u8>,
) -> Result<(), String> {
    for (name, shape) in fields {
        let path = field_of(path, name);
        match (object.get(name), shape) {
            (Some(value), shape) => shape.encode_at(value, &path, into)?,
            (None, JsonShape::Optional(_)) => into.push(0),
            (None, _) => return Err(format!("{path} is missing")),
        }
    }
    let is_known = |name: &String| fields.iter().any(|(field, _)| field == name);
    match object.keys().find(|name| !is_known(name)) {
        Some(name) => Err(format!("{} is not in the type of the topic", field_of(path, name))),
        None => Ok(()),
    }
}

/// The number as a float, if exact.
fn exact(number: &Number) -> Option<f64> {
    let float = number.as_f64()?;
    let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    #[expect(clippy::cast_possible_truncation, reason = "it saturates, and is compared")]
    let back = float as i128;
    (integer.is_none_or(|integer| integer == back)).then_some(float)
}

/// A name for a type, cut to the limit, and numbered if in use: field names may have dots, too.
fn free_name(name: &str, types: &BTreeMap<String, Value>) -> String {
    let mut name = name.to_owned();
    while name.len() > limits::TYPE_NAME_LEN_MAX - NUMBER_LEN_MAX {
        name.pop();
    }
    let numbered = (2_u64..).map(|number| format!("{name}#{number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !types.contains_key(name)).unwrap_or_default()
}

/// The beginning of a value in JSON.
fn brief(value: &Value) -> String {
    let json = value.to_string();
    match json.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}…", json.split_at(end).0),
        None => json,
    }
}

fn element(path: &str) -> String {
    format!("an element of {path}")
}

fn field_of(path: &str, name: &str) -> String {
    if path == "the value" { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use fabricast::Decoded;

    use super::*;

    fn shape(examples: &[Value]) -> Result<JsonShape, String> {
        let merged = examples
            .iter()
            .try_fold(JsonShape::Unknown, |shape, example| shape.merge(JsonShape::of(example)?, "the value"));
        merged.and_then(|shape| shape.schema().map(|_| shape))
    }

    /// What a subscriber decodes from a value.
    fn received(shape: &JsonShape, value: &Value) -> Result<Value, String> {
        let mut bytes = Vec::new();
        shape.encode(value, &mut bytes)?;
        match shape.schema()?.decode(&bytes) {
            Ok(Decoded::Value(value)) => Ok(value),
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn values_are_received_as_they_were_published() {
        let values = [
            json!({ "bid": 1.5, "size": 7, "venue": "X", "live": true, "legs": [[1, -2], []], "none": [] }),
            json!({ "bid": 2.0, "size": -7, "live": false, "legs": [], "none": [{ "b": 1, "a": u64::MAX }], "venue": null }),
        ];
        let shape = shape(&values).unwrap();
        for value in &values {
            assert_eq!(received(&shape, value).unwrap(), *value);
        }
        let mut whole = values[1].clone();
        whole["bid"] = json!(2);
        assert_eq!(received(&shape, &whole).unwrap(), values[1]);
        // Type names derive from field names, which may have dots.
        let dotted = json!({ "a.b": { "x": 1 }, "a": { "b": { "y": 2 }, "b.c": {} }, "a.b.c": { "z": "3" } });
        for value in [json!(7), json!("text"), json!([1.5]), json!(true), json!({}), json!(u64::MAX), dotted]
        {
            let shape = JsonShape::of(&value).unwrap();
            assert_eq!(received(&shape, &value).unwrap(), value);
        }
    }

    #[test]
    fn deeply_nested_objects_have_types_of_names_that_fit() {
        for key in ["a_name_of_twenty_eight_letters", "ä_näme_öf_ümläüts"] {
            let nested = |value| (0..30).fold(value, |value, _| json!({ key: value, "other": { "x": 1 } }));
            let value = nested(json!(7));
            let shape = JsonShape::of(&value).unwrap();
            assert_eq!(received(&shape, &value).unwrap(), value);
        }
    }

    #[test]
    fn bytes_are_those_of_the_same_type_in_rust() {
        let value = json!({ "a": 1, "b": 0.5, "c": "é", "d": [true], "e": { "f": null } });
        let example = json!({ "a": 1, "b": 0.5, "c": "é", "d": [true], "e": { "f": -1 } });
        let mut bytes = Vec::new();
        shape(&[value.clone(), example]).unwrap().encode(&value, &mut bytes).unwrap();
        type Same = (i64, f64, String, Vec<bool>, (Option<i64>,));
        let same = <Same as fabricast::Payload>::decode(&bytes).unwrap();
        assert_eq!(same, (1, 0.5, "é".to_owned(), vec![true], (None,)));
    }

    #[test]
    fn example_without_one_type_is_refused() {
        let refused = |examples: &[Value]| shape(examples).unwrap_err();
        for (example, path) in
            [(json!({ "a": { "b": null } }), " a.b,"), (json!([]), " an element of the value,")]
        {
            let sentence = refused(&[example]);
            assert!(sentence.contains(path) && sentence.contains("--example"), "{sentence}");
        }
        for two in [&[json!({ "a": 1 }), json!({ "a": "x" })][..], &[json!({ "a": [1, "x"] })]] {
            let sentence = refused(two);
            assert!(["a is", "i64", "string"].iter().all(|part| sentence.contains(part)), "{sentence}");
        }
        let sentence = refused(&[json!({ "": 1 })]);
        assert!(sentence.starts_with("\"\" can"), "an empty name: {sentence}");
    }

    #[test]
    fn value_of_another_type_is_refused_with_its_place() {
        let shape = shape(&[json!({ "a": 1, "b": [0.5], "c": { "d": true } })]).unwrap();
        let refused = |value: Value| shape.encode(&value, &mut Vec::new()).unwrap_err();
        let rest = json!({ "b": [1], "c": { "d": true } });
        let with = |a: Value| {
            let mut value = rest.clone();
            value.as_object_mut().unwrap().insert("a".into(), a);
            value
        };
        let sentence = refused(with(json!(1.5)));
        assert!(sentence.starts_with("a is 1.5, ") && sentence.contains("i64"), "{sentence}");
        assert_eq!(refused(rest.clone()), "a is missing");
        let mut value = with(json!(1));
        value["c"]["e"] = json!(1);
        assert_eq!(refused(value), "c.e is not in the type of the topic");
        let mut value = with(json!(1));
        // Not a float.
        value["b"][0] = json!((1_u64 << 53) + 1);
        let sentence = refused(value);
        assert!(sentence.starts_with("an element of b is 9007199254740993, "), "{sentence}");
    }

    #[test]
    fn only_the_published_value_counts_as_received() {
        let published = json!({ "a": 1, "b": [2, 0.5], "c": { "d": "x" } });
        let same = json!({ "a": 1, "b": [2.0, 0.5], "c": { "d": "x" }, "e": null });
        assert!(is_received_as(&published, &same));
        for (place, other) in [
            ("/a", json!(2)),
            ("/b", json!([2.0])),
            ("/b/0", json!(2.5)),
            ("/c", json!({})),
            ("/c", json!({ "e": "x" })),
            ("/c/d", json!("y")),
            ("/e", json!(0)),
        ] {
            let mut received = same.clone();
            *received.pointer_mut(place).unwrap() = other;
            assert!(!is_received_as(&published, &received), "{received}");
        }
    }

    #[test]
    fn a_rejected_value_is_quoted_in_brief_beside_the_name_of_the_type() {
        let refused = |example: Value, value: Value| {
            shape(&[example]).unwrap().encode(&value, &mut Vec::new()).unwrap_err()
        };
        for (example, value, parts) in [
            (json!({ "a": 1 }), json!({ "a": u64::MAX }), ["a is 18446744073709551615,", "i64"]),
            (json!({ "a": u64::MAX }), json!({ "a": -1 }), ["a is -1,", "u64"]),
            (json!({ "a": 0.5 }), json!({ "a": "high" }), ["a is \"high\",", "f64"]),
        ] {
            let sentence = refused(example, value);
            assert!(parts.iter().all(|part| sentence.contains(part)), "{sentence}");
        }
        let sentence = refused(json!(1), json!("é".repeat(10_000)));
        assert!(sentence.chars().count() < 200 && sentence.contains('…'), "{sentence}");
    }
}
