use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::ser::{
    Error, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::super::{EncodeError, Encoding, Payload, Schema, bincode, quick};

/// Encodes a value into memory of its own, and as a publisher does.
fn encode<S: Serialize>(value: &S, schema: &Schema) -> Result<Vec<u8>, EncodeError> {
    let encoded = bincode::encode_checked(value, schema.plan());
    let mut out = [0; 4096];
    let published = quick::encode(value, schema.plan(), &mut out);
    assert_eq!(published.map(|len| out[..len].to_vec()), encoded);
    encoded
}

fn reason<S: Serialize>(value: &S, schema: &Schema) -> String {
    match encode(value, schema) {
        Err(EncodeError::Differs { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
enum Side {
    Buy,
    Sell(u8),
    Short { size: u8 },
    Cross(u8, u8),
}

mod other {
    #[derive(serde::Serialize)]
    pub(super) enum Side {
        Sell,
        Buy,
    }

    #[derive(serde::Serialize)]
    pub(super) enum Shapes {
        Buy(u8),
        Sell,
        Short(u8, u8),
        Cross { size: u8 },
    }
}

/// Each value against the schema of a type that has the same bytes, fewer, more, or others.
#[test]
fn values_of_other_schemas_are_refused() {
    let number = u32::schema().unwrap();
    assert!(reason(&1_i32, &number).contains("i32, u32 is read"));
    assert!(reason(&1.0_f32, &number).contains("f32, u32 is read"));
    assert!(reason(&'a', &number).contains("char, u32 is read"));
    assert!(reason(&Some(1_u32), &number).contains("an option, u32 is read"));
    assert!(reason(&"text", &Vec::<u8>::schema().unwrap()).contains("a sequence"));
    assert!(reason(&(1_u8, 2_u8), &<(u8, u8, u8)>::schema().unwrap()).contains("2 of the 3 parts"));
    assert!(reason(&[1_u8; 2], &<(u8, u16)>::schema().unwrap()).contains("u8, u16 is read"));
    assert!(reason(&vec![1_u8], &<[u8; 1]>::schema().unwrap()).contains("a sequence where a tuple"));
    assert!(reason(&BTreeMap::from([(1_u8, 2_u8)]), &Vec::<(u8, u8)>::schema().unwrap()).contains("a map"));

    let side = Side::schema().unwrap();
    assert!(reason(&other::Side::Sell, &side).contains("variant Sell as number 0, which is read as Buy"));
    assert!(reason(&other::Side::Buy, &side).contains("variant Buy as number 1"));
    for value in [other::Shapes::Buy(1), other::Shapes::Sell, other::Shapes::Short(1, 2)] {
        assert!(reason(&value, &side).contains("another shape"));
    }
    assert!(reason(&other::Shapes::Cross { size: 1 }, &side).contains("another shape"));
    for value in [Side::Buy, Side::Sell(1), Side::Short { size: 1 }, Side::Cross(1, 2)] {
        encode(&value, &side).unwrap();
    }
}

/// What its own `Serialize` does.
enum Liar {
    Seq { announced: usize, given: usize },
    Tuple { announced: usize, given: usize },
    Map { announced: usize, keys: usize, values: usize },
}

impl Serialize for Liar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Seq { announced, given } => {
                let mut seq = serializer.serialize_seq(Some(announced))?;
                (0..given).try_for_each(|_| seq.serialize_element(&1_u8))?;
                seq.end()
            }
            Self::Tuple { announced, given } => {
                let mut tuple = serializer.serialize_tuple(announced)?;
                (0..given).try_for_each(|_| tuple.serialize_element(&1_u8))?;
                tuple.end()
            }
            Self::Map { announced, keys, values } => {
                let mut map = serializer.serialize_map(Some(announced))?;
                for index in 0..keys.max(values) {
                    if index < keys {
                        map.serialize_key(&1_u8)?;
                    }
                    if index < values {
                        map.serialize_value(&1_u8)?;
                    }
                }
                map.end()
            }
        }
    }
}

#[test]
fn counts_that_are_not_kept_to_are_refused() {
    let seq = Vec::<u8>::schema().unwrap();
    let tuple = <[u8; 2]>::schema().unwrap();
    let map = BTreeMap::<u8, u8>::schema().unwrap();
    assert!(encode(&Liar::Seq { announced: 2, given: 2 }, &seq).is_ok());
    assert!(encode(&Liar::Tuple { announced: 2, given: 2 }, &tuple).is_ok());
    assert!(encode(&Liar::Map { announced: 2, keys: 2, values: 2 }, &map).is_ok());
    for given in [0, 1, 3] {
        reason(&Liar::Seq { announced: 2, given }, &seq);
        reason(&Liar::Tuple { announced: 2, given }, &tuple);
        reason(&Liar::Tuple { announced: given, given }, &tuple);
        reason(&Liar::Map { announced: 2, keys: given, values: given }, &map);
    }
    reason(&Liar::Map { announced: 2, keys: 2, values: 1 }, &map);
    reason(&Liar::Map { announced: 2, keys: 1, values: 2 }, &map);
    reason(&Liar::Map { announced: 1, keys: 2, values: 0 }, &map);
}

/// A pair of bytes that gives up behind the first if it is to.
struct Half(bool);

impl Serialize for Half {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pair = serializer.serialize_tuple(2)?;
        pair.serialize_element(&1_u8)?;
        if self.0 {
            return Err(S::Error::custom("half is enough"));
        }
        pair.serialize_element(&2_u8)?;
        pair.end()
    }
}

/// The `Serialize` of a container that ignores what its parts return. Each has `len` parts, of which the last but one gives
/// up; if `again`, it is written once more.
#[derive(Clone, Copy, Debug)]
struct Dropping {
    kind: &'static str,
    len: usize,
    again: bool,
    gives_up: bool,
}

impl Dropping {
    fn parts(self) -> impl Iterator<Item = Half> {
        let at = self.len - 2;
        (0..self.len).flat_map(move |part| {
            let fails = self.gives_up && part == at;
            [Some(Half(fails)), (fails && self.again).then_some(Half(false))].into_iter().flatten()
        })
    }
}

const FIELDS: [&str; 2] = ["a", "b"];

impl Serialize for Dropping {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let named = self.parts().zip([FIELDS[0], FIELDS[usize::from(!(self.again && self.gives_up))], "b"]);
        match self.kind {
            "seq" => {
                let mut inner = serializer.serialize_seq(Some(self.len))?;
                self.parts().for_each(|part| drop(inner.serialize_element(&part)));
                inner.end()
            }
            "tuple" => {
                let mut inner = serializer.serialize_tuple(self.len)?;
                self.parts().for_each(|part| drop(inner.serialize_element(&part)));
                inner.end()
            }
            "tuple struct" => {
                let mut inner = serializer.serialize_tuple_struct("T", self.len)?;
                self.parts().for_each(|part| drop(inner.serialize_field(&part)));
                inner.end()
            }
            "tuple variant" => {
                let mut inner = serializer.serialize_tuple_variant("Parts", 0, "Tuple", self.len)?;
                self.parts().for_each(|part| drop(inner.serialize_field(&part)));
                inner.end()
            }
            "struct" => {
                let mut inner = serializer.serialize_struct("S", self.len)?;
                named.for_each(|(part, name)| drop(inner.serialize_field(name, &part)));
                inner.end()
            }
            "struct variant" => {
                let mut inner = serializer.serialize_struct_variant("Parts", 1, "Struct", self.len)?;
                named.for_each(|(part, name)| drop(inner.serialize_field(name, &part)));
                inner.end()
            }
            "keys" => {
                let mut inner = serializer.serialize_map(Some(self.len))?;
                self.parts().for_each(|part| {
                    if inner.serialize_key(&part).is_ok() {
                        drop(inner.serialize_value(&Half(false)));
                    }
                });
                inner.end()
            }
            _ => {
                let mut inner = serializer.serialize_map(Some(self.len))?;
                let mut parts = self.parts();
                for _ in 0..self.len {
                    drop(inner.serialize_key(&Half(false)));
                    while parts.next().is_some_and(|part| inner.serialize_value(&part).is_err()) {}
                }
                inner.end()
            }
        }
    }
}

/// The bytes that the part wrote before it gave up stand where another part is read.
#[test]
fn values_that_drop_the_error_of_a_part_are_refused() {
    type Pair = (u8, u8);
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Named {
        a: Pair,
        b: Pair,
    }
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Nameless(Pair, Pair);
    #[derive(serde::Serialize, serde::Deserialize)]
    enum Parts {
        Tuple(Pair, Pair),
        Struct { a: Pair, b: Pair },
    }
    let json = br#"{"type":"A","encoding":"bincode","format":{"array":{"of":{"tuple":["u8","u8"]},"len":40}},"types":{}}"#;
    let long = Schema::from_json(json);
    let cases = [
        ("seq", 3, Vec::<Pair>::schema()),
        ("tuple", 2, <[Pair; 2]>::schema()),
        ("tuple", 40, long),
        ("tuple struct", 2, Nameless::schema()),
        ("tuple variant", 2, Parts::schema()),
        ("struct", 2, Named::schema()),
        ("struct variant", 2, Parts::schema()),
        ("keys", 3, BTreeMap::<Pair, Pair>::schema()),
        ("values", 3, BTreeMap::<Pair, Pair>::schema()),
    ];
    for (kind, len, schema) in cases {
        let schema = schema.unwrap();
        let value = Dropping { kind, len, again: false, gives_up: false };
        encode(&value, &schema).unwrap();
        for again in [false, true] {
            let value = Dropping { again, gives_up: true, ..value };
            let mut out = [0; 4096];
            let published = quick::encode(&value, schema.plan(), &mut out);
            assert!(published.is_err(), "{value:?}: {:?}", published.map(|len| out[..len].to_vec()));
            assert!(encode(&value, &schema).is_err(), "{value:?}");
        }
    }
}

#[test]
fn newtype_on_one_side_is_let_pass() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Price(u64);
    assert_eq!(encode(&7_u64, &Price::schema().unwrap()), encode(&Price(7), &u64::schema().unwrap()));
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Bytes(Vec<u8>);
    let schema = Bytes::schema().unwrap();
    assert_eq!(encode(&vec![1_u8], &schema), encode(&Bytes(vec![1]), &schema));
}

struct Text<'t>(&'t str);

impl Display for Text<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| write!(out, "{letter}"))
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[test]
fn texts_that_are_put_together_are_whole_at_every_length() {
    let schema = String::schema().unwrap();
    for len in [0, 1, 100, 127, 128, 129, 1000] {
        let text = "a".repeat(len) + "\u{20AC}";
        assert_eq!(encode(&Text(&text), &schema), encode(&text, &schema), "{len}");
    }
}

/// Goes on after its text was refused, and returns no error.
struct Careless<'t>(&'t str);

impl Display for Careless<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = write!(out, "begin ");
        let _ = write!(out, "{}", self.0);
        let _ = write!(out, " end");
        Ok(())
    }
}

impl Serialize for Careless<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[test]
fn texts_are_whole_if_their_display_ignores_errors() {
    let schema = String::schema().unwrap();
    for len in [0, 1, 118, 119, 122, 128, 1000] {
        let text = "a".repeat(len);
        let whole = format!("begin {text} end");
        assert_eq!(encode(&Careless(&text), &schema), encode(&whole, &schema), "{len}");
    }
}

/// Has no text.
struct Textless;

impl Display for Textless {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("begin")?;
        Err(fmt::Error)
    }
}

impl Serialize for Textless {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[test]
fn value_whose_display_fails_is_refused() {
    match encode(&Textless, &String::schema().unwrap()) {
        Err(EncodeError::Refused { reason }) => assert!(reason.contains("Display"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn shortest_value_is_known() {
    let len_min = |schema: Schema| schema.value_len_min();
    assert_eq!(len_min(String::schema().unwrap()), 8);
    assert_eq!(len_min(<(u8, Option<u64>, [u16; 3], char)>::schema().unwrap()), 9);
    assert_eq!(len_min(Side::schema().unwrap()), 4);
    assert_eq!(len_min(crate::Raw::schema().unwrap()), 0);
    #[derive(serde::Serialize, serde::Deserialize)]
    enum Tree {
        Node(Box<Self>, Box<Self>),
        Leaf(u8),
    }
    assert_eq!(len_min(Tree::schema().unwrap()), 5);
    assert_eq!(len_min(Schema::of::<()>(Encoding::Bincode, &[]).unwrap()), 0);
}
