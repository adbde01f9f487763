//! Schemas of peers, and payloads by a schema or a type.

#[cfg(test)]
use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::input::Input;
use crate::payload::{Decoded, Payload, Schema};

/// A schema of a peer, then bytes that may be a value of it: both lines of the input.
pub(super) fn schemas(bytes: &[u8]) {
    let (json, value) = bytes.iter().position(|byte| *byte == b'\n').map_or((bytes, &[][..]), |at| {
        let (json, rest) = bytes.split_at(at);
        (json, rest.split_first().map_or(&[][..], |(_, value)| value))
    });
    let Ok(schema) = Schema::from_json(json) else { return };
    assert_eq!(schema.to_json(), json, "a schema with two forms");
    let _ = (schema.value_len_min(), schema.hash());
    if let Ok(Decoded::Value(decoded)) = schema.decode(value) {
        assert!(value.len() >= schema.value_len_min(), "{decoded} of {} bytes", value.len());
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Side {
    Buy,
    Sell(u8),
    Both { least: i16, most: Option<u32> },
}

/// Something of everything.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    side: Side,
    price: f64,
    texts: Vec<String>,
    pair: (i128, bool),
    nested: Option<Box<[u16; 3]>>,
}

/// A value without names.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Pair(Vec<(char, i8)>, u128);

/// A value of a type: what decodes also does so by the schema, and again from its own encoding.
fn value<T: Payload<Owned = T, Borrowed = T>>(schema: &LazyLock<Schema>, bytes: &[u8]) {
    let (typed, by_schema) = (T::decode(bytes), schema.decode(bytes));
    assert!(typed.is_err() || by_schema.is_ok(), "{:?}: only by the type", by_schema.err());
    let Ok(decoded) = typed else { return };
    let mut again = vec![0; bytes.len()];
    let len = T::encode(&decoded, schema, &mut again).expect("it has room for as many bytes");
    assert_eq!(again.get(..len), Some(bytes), "a value with two encodings");
}

/// The schema of a type. Making one takes longer than all that is done with it.
fn schema_of<T: Payload>() -> Schema {
    T::schema().expect("a type with a schema")
}

/// Values of several types.
pub(super) fn values(bytes: &[u8]) {
    static ORDER: LazyLock<Schema> = LazyLock::new(schema_of::<Order>);
    static OPTION: LazyLock<Schema> = LazyLock::new(schema_of::<(u64, Option<String>)>);
    static SIDES: LazyLock<Schema> = LazyLock::new(schema_of::<Vec<Side>>);
    static UNITS: LazyLock<Schema> = LazyLock::new(schema_of::<[(); 4]>);
    static PAIR: LazyLock<Schema> = LazyLock::new(schema_of::<Pair>);
    let mut input = Input::new(bytes);
    match input.byte() % 5 {
        0 => value::<Order>(&ORDER, input.rest()),
        1 => value::<(u64, Option<String>)>(&OPTION, input.rest()),
        2 => value::<Vec<Side>>(&SIDES, input.rest()),
        3 => value::<[(); 4]>(&UNITS, input.rest()),
        _ => value::<Pair>(&PAIR, input.rest()),
    }
}

/// Schemas and values of these types.
#[cfg(test)]
pub(super) mod seeds {
    use super::*;

    fn encoded<T: Payload<Owned = T, Borrowed = T>>(value: &T) -> (Vec<u8>, Vec<u8>) {
        let schema = T::schema().unwrap();
        let mut bytes = vec![0; 1000];
        let len = T::encode(value, &schema, &mut bytes).unwrap();
        bytes.truncate(len);
        (schema.to_json(), bytes)
    }

    fn all() -> Vec<(Vec<u8>, Vec<u8>)> {
        let order = |side| Order {
            side,
            price: 99.5,
            texts: vec!["one".into(), String::new()],
            pair: (-1, true),
            nested: Some(Box::new([1, 2, 3])),
        };
        vec![
            encoded(&order(Side::Both { least: -3, most: Some(4) })),
            encoded(&(7_u64, Some("text".to_owned()))),
            encoded(&vec![Side::Buy, Side::Sell(3)]),
            encoded(&[(); 4]),
            encoded(&Pair(vec![('x', -1), ('\u{1F980}', 2)], u128::MAX)),
            encoded(&BTreeMap::from([("key".to_owned(), vec![1_u16, 2])])),
        ]
    }

    pub(in crate::fuzz) fn schemas() -> Vec<Vec<u8>> {
        all().into_iter().map(|(schema, bytes)| [schema, b"\n".to_vec(), bytes].concat()).collect()
    }

    pub(in crate::fuzz) fn values() -> Vec<Vec<u8>> {
        (0..5).zip(all()).map(|(number, (_, bytes))| [vec![number], bytes].concat()).collect()
    }
}
