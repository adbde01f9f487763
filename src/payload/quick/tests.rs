use std::collections::BTreeMap;

use serde::Deserialize;
use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleVariant, Serializer,
};

use super::super::format::{Field, Format, Named, Shape, Variant};
use super::super::plan::Plan;
use super::super::{EncodeError, Payload, bincode};
use super::encode_quick;
use crate::limits;
use crate::testkit::random::{Random, amount, each_seed};

/// What a `Serialize` calls; with the parts that it does not, but the schema has.
#[derive(Clone, Debug)]
enum Calls {
    Unit,
    U8,
    U16,
    Text,
    Bytes,
    Option { is_some: bool, of: Box<Self> },
    Seq { announced: usize, given: usize, of: Box<Self> },
    Map { announced: usize, keys: usize, values: usize, of: Box<(Self, Self)> },
    Tuple { announced: usize, parts: Vec<Self> },
    Newtype(Box<Self>),
    Struct { announced: usize, fields: Vec<(&'static str, Self)> },
    Enum { at: usize, name: Option<&'static str>, variants: Vec<(&'static str, Self)> },
}

const NAMES: [&str; 4] = ["bid", "ask", "a name of more than sixteen bytes", "b"];

impl Calls {
    fn random(random: &mut Random, depth: u64) -> Self {
        let kinds = if depth == 0 { 5 } else { 12 };
        let inner = |random: &mut Random| Self::random(random, depth - 1);
        let count = random.index(4);
        match random.below(kinds) {
            0 => Self::Unit,
            1 => Self::U8,
            2 => Self::U16,
            3 => Self::Text,
            4 => Self::Bytes,
            5 => Self::Option { is_some: random.once_in(2), of: inner(random).into() },
            6 => Self::Seq { announced: count, given: count, of: inner(random).into() },
            7 => {
                let of = Box::new((inner(random), inner(random)));
                Self::Map { announced: count, keys: count, values: count, of }
            }
            8 if random.once_in(4) => Self::Tuple { announced: 40, parts: vec![inner(random); 40] },
            8 => Self::Tuple { announced: count, parts: (0..count).map(|_| inner(random)).collect() },
            9 => Self::Newtype(inner(random).into()),
            10 => Self::Struct { announced: count, fields: Self::named(random, depth, count) },
            _ => {
                let variants = Self::named(random, depth, count + 1);
                Self::Enum { at: random.index(count + 1), name: None, variants }
            }
        }
    }

    fn named(random: &mut Random, depth: u64, count: usize) -> Vec<(&'static str, Self)> {
        NAMES.into_iter().take(count).map(|name| (name, Self::random(random, depth - 1))).collect()
    }

    fn format(&self, types: &mut BTreeMap<String, Named>) -> Format {
        let named = match self {
            Self::Unit => return Format::Unit,
            Self::U8 => return Format::U8,
            Self::U16 => return Format::U16,
            Self::Text => return Format::String,
            Self::Bytes => return Format::Bytes,
            Self::Option { of, .. } => return Format::Option(of.format(types).into()),
            Self::Seq { of, .. } => return Format::Seq(of.format(types).into()),
            Self::Map { of, .. } => {
                return Format::Map { key: of.0.format(types).into(), value: of.1.format(types).into() };
            }
            Self::Tuple { parts, .. } if parts.len() == 40 => {
                return Format::Array { of: parts[0].format(types).into(), len: 40 };
            }
            Self::Tuple { parts, .. } => {
                return Format::tuple(parts.iter().map(|part| part.format(types)).collect());
            }
            Self::Newtype(_) | Self::Struct { .. } => Named::Struct(self.shape(types)),
            Self::Enum { variants, .. } => {
                let variant =
                    |(name, of): &(&str, Self)| Variant { name: (*name).into(), shape: of.shape(types) };
                Named::Enum(variants.iter().map(variant).collect())
            }
        };
        let name = format!("T{}", types.len());
        types.insert(name.clone(), named);
        Format::Type(name)
    }

    fn shape(&self, types: &mut BTreeMap<String, Named>) -> Shape {
        match self {
            Self::Unit => Shape::Unit,
            Self::Tuple { parts, .. } => Shape::Tuple(parts.iter().map(|part| part.format(types)).collect()),
            Self::Struct { fields, .. } => {
                let field =
                    |(name, of): &(&str, Self)| Field { name: (*name).into(), format: of.format(types) };
                Shape::Fields(fields.iter().map(field).collect())
            }
            Self::Newtype(of) => Shape::Newtype(of.format(types)),
            other => Shape::Newtype(other.format(types)),
        }
    }

    /// Changes something in it, or inside it.
    fn depart(&mut self, random: &mut Random) {
        let go_on = !random.once_in(3);
        match self {
            Self::Option { of, .. } | Self::Seq { of, .. } | Self::Newtype(of) if go_on => of.depart(random),
            Self::Map { of, .. } if go_on => of.1.depart(random),
            Self::Tuple { parts, .. } if go_on && !parts.is_empty() => {
                let at = random.index(parts.len());
                parts[at].depart(random);
            }
            Self::Struct { fields, .. } if go_on && !fields.is_empty() => {
                let at = random.index(fields.len());
                fields[at].1.depart(random);
            }
            Self::Enum { at, variants, .. } if go_on => variants[*at].1.depart(random),
            Self::Seq { announced, .. } if random.once_in(2) => *announced += 1,
            Self::Map { keys, .. } if random.once_in(3) => *keys += 1,
            Self::Map { values, .. } if random.once_in(2) => *values += 1,
            Self::Tuple { announced, .. } | Self::Struct { announced, .. } if random.once_in(4) => {
                *announced += 1;
            }
            Self::Tuple { parts, .. } if random.once_in(3) => drop(parts.pop()),
            Self::Tuple { parts, .. } if random.once_in(2) => parts.push(Self::U8),
            Self::Struct { fields, .. } if random.once_in(3) => drop(fields.pop()),
            Self::Struct { fields, .. } if random.once_in(2) => fields.reverse(),
            Self::Struct { fields, .. } if !fields.is_empty() => fields[0].0 = NAMES[random.index(4)],
            Self::Enum { name, .. } if random.once_in(2) => *name = Some(NAMES[random.index(4)]),
            Self::Enum { variants, .. } => variants.reverse(),
            other => *other = Self::random(random, 2),
        }
    }
}

fn tuple<S: SerializeTupleVariant>(mut tuple: S, parts: &[Calls]) -> Result<S::Ok, S::Error> {
    parts.iter().try_for_each(|part| tuple.serialize_field(part))?;
    tuple.end()
}

impl Serialize for Calls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unit => serializer.serialize_unit(),
            Self::U8 => serializer.serialize_u8(7),
            Self::U16 => serializer.serialize_u16(7),
            Self::Text => serializer.serialize_str("text"),
            Self::Bytes => serializer.serialize_bytes(b"bytes"),
            Self::Option { is_some: false, .. } => serializer.serialize_none(),
            Self::Option { of, .. } => serializer.serialize_some(of),
            Self::Seq { announced, given, of } => {
                let mut seq = serializer.serialize_seq(Some(*announced))?;
                (0..*given).try_for_each(|_| seq.serialize_element(of))?;
                seq.end()
            }
            Self::Map { announced, keys, values, of } => {
                let mut map = serializer.serialize_map(Some(*announced))?;
                for at in 0..*keys.max(values) {
                    if at < *keys {
                        map.serialize_key(&of.0)?;
                    }
                    if at < *values {
                        map.serialize_value(&of.1)?;
                    }
                }
                map.end()
            }
            Self::Tuple { announced, parts } => {
                let mut tuple = serializer.serialize_tuple(*announced)?;
                parts.iter().try_for_each(|part| tuple.serialize_element(part))?;
                tuple.end()
            }
            Self::Newtype(of) => serializer.serialize_newtype_struct("N", of),
            Self::Struct { announced, fields } => {
                let mut members = serializer.serialize_struct("S", *announced)?;
                fields.iter().try_for_each(|(name, of)| members.serialize_field(name, of))?;
                members.end()
            }
            Self::Enum { at, name, variants } => {
                let (own, of) = &variants[*at];
                let (index, name) = (u32::try_from(*at).expect("few"), name.unwrap_or(own));
                match of {
                    Self::Unit => serializer.serialize_unit_variant("E", index, name),
                    Self::Tuple { announced, parts } => {
                        tuple(serializer.serialize_tuple_variant("E", index, name, *announced)?, parts)
                    }
                    Self::Struct { announced, fields } => {
                        let mut members =
                            serializer.serialize_struct_variant("E", index, name, *announced)?;
                        fields.iter().try_for_each(|(name, of)| members.serialize_field(name, of))?;
                        members.end()
                    }
                    Self::Newtype(of) => serializer.serialize_newtype_variant("E", index, name, of),
                    of => serializer.serialize_newtype_variant("E", index, name, of),
                }
            }
        }
    }
}

fn quick<T: Serialize>(value: &T, plan: &Plan) -> Option<Vec<u8>> {
    // As much as the exact check takes, and some where it refuses the value.
    let room = bincode::encode_checked(value, plan).map_or(1 << 20, |bytes| bytes.len());
    let mut out = vec![0; room];
    encode_quick(value, plan.runs.as_ref()?, &mut out).ok().map(|len| out[..len].to_vec())
}

/// Thousands of random schemas, values of them and values that depart from them: what passes here passes the exact check, with
/// the same bytes; and every value of a schema passes here.
#[test]
fn values_pass_as_the_exact_check_lets_them() {
    each_seed(amount(4_000, 400_000), |seed| {
        let mut random = Random::new(seed);
        let mut calls = Calls::random(&mut random, 4);
        let mut types = BTreeMap::new();
        let root = calls.format(&mut types);
        let plan = Plan::new(&root, &types);
        let exact = bincode::encode_checked(&calls, &plan).expect("a value of the schema");
        let exact_len = exact.len();
        if plan.runs.is_some() {
            assert!(quick(&calls, &plan) == Some(exact), "{exact_len} bytes");
        }
        for _ in 0..4 {
            calls.depart(&mut random);
            let exact = bincode::encode_checked(&calls, &plan);
            if let Some(bytes) = quick(&calls, &plan) {
                assert_eq!(exact, Ok(bytes), "{calls:?} by {root:?} with {types:?}");
            }
        }
    });
}

/// So many newtypes inside each other.
struct Nested(usize);

impl Serialize for Nested {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.checked_sub(1) {
            Some(inside) => serializer.serialize_newtype_struct("N", &Self(inside)),
            None => serializer.serialize_u8(7),
        }
    }
}

#[test]
fn types_may_nest_as_deep_as_values() {
    for depth in [1, 63, 64, 65, 66, 1_000] {
        let newtype = |number: usize| {
            let inside = if number == 0 { Format::U8 } else { Format::Type(format!("{:04}", number - 1)) };
            (format!("{number:04}"), Named::Struct(Shape::Newtype(inside)))
        };
        let types: BTreeMap<String, Named> = (0..depth).map(newtype).collect();
        let plan = Plan::new(&Format::Type(format!("{:04}", depth - 1)), &types);
        let fits = depth <= limits::SCHEMA_DEPTH_MAX;
        assert_eq!(quick(&Nested(depth), &plan), fits.then(|| vec![7]), "{depth}");
        let exact = bincode::encode_checked(&Nested(depth), &plan);
        assert!(if fits { exact.is_ok() } else { matches!(exact, Err(EncodeError::TooDeep { .. })) });
    }
}

#[derive(serde::Serialize, Deserialize)]
enum Tree {
    Leaf,
    Node(Box<Self>),
}

#[test]
fn types_that_need_counting_are_left_to_the_exact_check() {
    let has_runs = |schema: crate::Schema| schema.plan().runs.is_some();
    assert!(!has_runs(Tree::schema().unwrap()));
    assert!(!has_runs(Vec::<()>::schema().unwrap()));
    assert!(!has_runs(Vec::<[(); 3]>::schema().unwrap()));
    assert!(has_runs(Vec::<(Option<Vec<u8>>, [u64; 32])>::schema().unwrap()));
    let _ = (Tree::Leaf, Tree::Node(Tree::Leaf.into()));
}

/// Of values without anything odd none is encoded twice.
#[test]
fn ordinary_values_are_encoded_at_once() {
    fn passes<T: Payload<Borrowed = T> + Serialize>(value: T) {
        let schema = T::schema().unwrap();
        assert_eq!(quick(&value, schema.plan()), Some(bincode::encode_to_vec(&value).unwrap()));
    }
    passes((true, 'a', "text".to_owned(), 1_i128, 2_u128, 1.5_f32, ()));
    passes((vec![Some((1_u8, 2_i64))], [7_u16; 32], [[1_u8; 3]; 4]));
    passes(BTreeMap::from([("a".to_owned(), vec![1.5]), ("b".to_owned(), vec![])]));
    passes((std::time::Duration::MAX, std::net::IpAddr::from([127, 0, 0, 1]), chrono::DateTime::UNIX_EPOCH));
    passes((uuid::Uuid::nil(), rust_decimal::Decimal::MAX, chrono::NaiveDate::MIN));
}
