use std::collections::{BTreeMap, HashMap};

use super::super::{DecodeError, Payload, Raw};
use super::*;

#[derive(Serialize, Deserialize)]
enum Side {
    Buy,
    Sell,
}

#[derive(Serialize, Deserialize)]
struct Level {
    price: f64,
    size: u32,
}

#[derive(Serialize, Deserialize)]
enum Change {
    Clear,
    Delete(u64),
    Move(u64, u32),
    Insert { side: Side, level: Level },
}

#[derive(Serialize, Deserialize)]
struct Book {
    symbol: String,
    side: Option<Side>,
    levels: Vec<Level>,
    names: BTreeMap<String, u8>,
    window: [f64; 3],
    pair: (i8, char),
    changes: Vec<Change>,
}

#[test]
fn prints_a_field_a_line() {
    let text = "\
Book (bincode)
  symbol: string
  side: option of Side
  levels: [Level]
  names: {string: u8}
  window: [f64; 3]
  pair: (i8, char)
  changes: [Change]
Change
  Clear
  Delete(u64)
  Move(u64, u32)
  Insert { side: Side, level: Level }
Level
  price: f64
  size: u32
Side
  Buy
  Sell
";
    assert_eq!(Book::schema().unwrap().to_string(), text);
    assert_eq!(Vec::<u8>::schema().unwrap().to_string(), "Vec<u8> (bincode)\n  [u8]\n");
    assert_eq!(Raw::schema().unwrap().to_string(), "bytes (raw)\n  bytes\n");
}

#[test]
fn golden_json() {
    let schema = Level::schema().unwrap();
    let json = concat!(
        r#"{"type":"Level","encoding":"bincode","format":{"type":"Level"},"types":{"Level":"#,
        r#"{"struct":{"fields":[{"name":"price","format":"f64"},{"name":"size","format":"u32"}]}}}}"#
    );
    assert_eq!(String::from_utf8(schema.to_json()).unwrap(), json);
    assert_eq!(schema.hash(), 0xA8_0000_0000 | u64::from(checksum::crc32(json.as_bytes())));
    assert_eq!(json.len(), 0xA8);
}

#[test]
fn every_flip_and_cut_of_the_json_is_refused_or_another_schema() {
    let schema = Book::schema().unwrap();
    let json = schema.to_json();
    assert_eq!(Schema::from_json(&json), Ok(schema.clone()));
    for cut in 0..json.len() {
        assert!(Schema::from_json(&json[..cut]).is_err());
    }
    for bit in 0..json.len() * 8 {
        let mut flipped = json.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = Schema::from_json(&flipped) {
            assert_ne!(other, schema);
            assert_ne!(other.hash(), schema.hash());
            assert_eq!(other.to_json(), flipped);
            let _ = other.decode(&[0; 256]);
        }
    }
}

fn parse(format: &str, types: &str) -> Result<Schema, SchemaError> {
    let json = format!(r#"{{"type":"A","encoding":"bincode","format":{format},"types":{{{types}}}}}"#);
    Schema::from_json(json.as_bytes())
}

#[test]
fn hostile_json_is_refused() {
    assert!(parse(r#""u8""#, "").is_ok());
    assert!(matches!(parse(r#""u9""#, ""), Err(SchemaError::Malformed { .. })));
    assert_eq!(parse(r#" "u8""#, ""), Err(SchemaError::NotCanonical));
    let twice = r#""B":{"struct":"unit"},"B":{"struct":"unit"}"#;
    assert_eq!(parse(r#"{"type":"B"}"#, twice), Err(SchemaError::NotCanonical));
    let unknown = parse(r#"{"seq":{"type":"B"}}"#, "");
    assert_eq!(unknown, Err(SchemaError::UnknownType { type_name: "B".into() }));
    let escape = parse(r#"{"type":"\u001b[2J"}"#, r#""\u001b[2J":{"struct":"unit"}"#);
    assert!(matches!(escape, Err(SchemaError::Name { .. })));
    let max = limits::SCHEMA_LEN_MAX;
    let long = vec![b'['; max + 1];
    assert_eq!(Schema::from_json(&long), Err(SchemaError::TooLong { len: max + 1, max }));
    assert!(matches!(Schema::from_json(&long[..max]), Err(SchemaError::Malformed { .. })));
    let raw = br#"{"type":"A","encoding":"raw","format":"u8","types":{}}"#;
    assert!(matches!(Schema::from_json(raw), Err(SchemaError::Malformed { .. })));
}

#[test]
fn nesting_is_bounded() {
    let nested =
        |depth: usize| parse(&format!(r#"{}"u8"{}"#, r#"{"seq":"#.repeat(depth), "}".repeat(depth)), "");
    assert!(nested(limits::SCHEMA_DEPTH_MAX - 1).is_ok());
    assert_eq!(nested(limits::SCHEMA_DEPTH_MAX), Err(SchemaError::TooDeep { max: limits::SCHEMA_DEPTH_MAX }));
    assert!(matches!(nested(1000), Err(SchemaError::Malformed { .. })));
}

#[test]
fn a_type_may_hold_itself_only_at_a_distance() {
    let holding = |format: &str| {
        parse(
            r#"{"type":"B"}"#,
            &format!(r#""B":{{"struct":{{"fields":[{{"name":"b","format":{format}}}]}}}}"#),
        )
    };
    let endless = Err(SchemaError::Endless { type_name: "B".into() });
    assert_eq!(holding(r#"{"type":"B"}"#), endless);
    assert_eq!(holding(r#"{"tuple":["u8",{"type":"B"}]}"#), endless);
    assert_eq!(holding(r#"{"array":{"of":{"type":"B"},"len":2}}"#), endless);
    assert!(holding(r#"{"array":{"of":{"type":"B"},"len":0}}"#).is_ok());
    assert!(holding(r#"{"option":{"type":"B"}}"#).is_ok());
    assert!(holding(r#"{"seq":{"type":"B"}}"#).is_ok());
    assert!(holding(r#"{"map":{"key":"u8","value":{"type":"B"}}}"#).is_ok());
    let ring = r#""B":{"struct":{"newtype":{"type":"C"}}},"C":{"struct":{"newtype":{"type":"B"}}}"#;
    assert_eq!(parse(r#"{"type":"B"}"#, ring), endless);
    let by_enum = r#""B":{"struct":{"newtype":{"type":"C"}}},"C":{"enum":[{"name":"D","shape":{"newtype":{"type":"B"}}}]}"#;
    let schema = parse(r#"{"type":"B"}"#, by_enum).unwrap();
    assert!(matches!(schema.decode(&[0; 4096]), Err(DecodeError::TooDeep { .. })));
}

#[test]
fn equal_types_have_equal_schemas_and_others_have_not() {
    mod elsewhere {
        #[derive(serde::Serialize, serde::Deserialize)]
        pub(super) struct Level {
            pub(super) price: f64,
            pub(super) size: u32,
        }
    }
    let schema = Level::schema().unwrap();
    assert_eq!(schema, elsewhere::Level::schema().unwrap());
    assert_eq!(schema.hash(), elsewhere::Level::schema().unwrap().hash());
    assert_ne!(schema.hash(), Book::schema().unwrap().hash());
    assert_eq!(HashMap::<String, Level>::schema().unwrap().type_name(), "HashMap<String, Level>");
}
