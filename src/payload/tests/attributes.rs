//! Whatever attributes a type has: a value of it is received as its `Serialize` wrote it, or the type or the value is refused.
//!
//! A field under plain `skip` is not sent, as its author says: it arrives as its default. Everything else is compared as a
//! whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::{Decoded, EncodeError, Payload, Schema};

/// What becomes of a type.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// All of its values are published and received.
    Equal,
    /// It is refused when it is opened.
    Refused,
    /// It is opened, and some of its values are refused.
    SomeRefused,
}

/// Holds values of a type to the rule, and says what became of it.
fn outcome<T>(strategy: impl Strategy<Value = T>, arrives: impl Fn(T) -> T) -> Outcome
where
    T: Serialize + DeserializeOwned + Clone + Debug + PartialEq + Send + 'static,
{
    let Ok(schema) = T::schema() else { return Outcome::Refused };
    let stranger = Schema::from_json(&schema.to_json()).unwrap();
    let refused = std::cell::Cell::new(0);
    let seed = crate::random::number().unwrap();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed.to_le_bytes().repeat(4));
    let result = TestRunner::new_with_rng(Config::default(), rng).run(&strategy, |value| {
        let mut out = [0; 16 * 1024];
        match T::encode(&value, &schema, &mut out) {
            Ok(len) => {
                prop_assert_eq!(T::decode(&out[..len]).unwrap(), arrives(value));
                prop_assert!(matches!(stranger.decode(&out[..len]), Ok(Decoded::Value(_))));
            }
            Err(EncodeError::TooLong { .. }) => prop_assert!(false, "no room"),
            Err(_) => refused.set(refused.get() + 1),
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{}, seed {seed}: {error}", std::any::type_name::<T>()));
    if refused.get() == 0 { Outcome::Equal } else { Outcome::SomeRefused }
}

/// A struct of fields that have a strategy of their own, and what becomes of it.
macro_rules! cases {
    ($($outcome:ident: $(#[$on_struct:meta])* struct $name:ident { $($(#[$on_field:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
            $(#[$on_struct])*
            struct $name { $($(#[$on_field])* $field: $type,)* }

            impl $name {
                fn strategy() -> impl Strategy<Value = Self> {
                    ($(any::<$type>(),)*).prop_map(|($($field,)*)| Self { $($field,)* })
                }
            }
        )*

        #[test]
        fn structs_are_received_as_published_or_refused() {
            $(assert_eq!(outcome($name::strategy(), |value| value), Outcome::$outcome, stringify!($name));)*
        }
    };
}

fn is_low(value: &u8) -> bool {
    *value < 100
}

mod reversed {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        value.swap_bytes().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        u32::deserialize(deserializer).map(u32::swap_bytes)
    }

    pub(super) fn as_text<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn halved<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(value / 2)
    }
}

cases! {
    Equal: struct Plain { a: u8, b: Option<u16>, c: (i8, char), d: [u64; 3], e: (), f: u128, g: bool, h: Option<Option<u8>>, }
    Refused: struct SkipIfNone { #[serde(skip_serializing_if = "Option::is_none")] a: Option<u8>, b: Option<u8>, }
    Refused: struct SkipIfNoneDefault {
        a: u8,
        #[serde(default, skip_serializing_if = "Option::is_none")] b: Option<u8>,
    }
    Refused: struct SkipIfEmpty { #[serde(skip_serializing_if = "Vec::is_empty")] a: Vec<u8>, b: u8, }
    Refused: struct SkipIfLow { #[serde(skip_serializing_if = "is_low")] a: u8, b: u8, }
    Refused: struct SkipSerializing { #[serde(skip_serializing, default)] a: u8, b: u8, }
    Refused: struct SkipDeserializing { #[serde(skip_deserializing)] a: u8, b: u8, }
    Equal: #[serde(default)] struct AllDefault { a: u8, b: Option<u8>, }
    Equal: struct FieldDefault { #[serde(default)] a: u8, b: u8, }
    Equal: #[serde(rename = "Other", rename_all = "SCREAMING-KEBAB-CASE")] struct Renamed { first_one: u8, #[serde(rename = "b")] a: u8, }
    Refused: #[serde(rename_all(serialize = "UPPERCASE"))] struct RenamedOnOneSide { a: u8, }
    Refused: struct RenamedTwoWays { #[serde(rename(serialize = "x", deserialize = "y"))] a: u8, b: u8, }
    Refused: struct Crossed {
        #[serde(rename(serialize = "a", deserialize = "b"))] a: u8,
        #[serde(rename(serialize = "b", deserialize = "a"))] b: u8,
    }
    Refused: struct Alias { #[serde(alias = "x")] a: u8, b: u8, }
    Refused: struct Flat { #[serde(flatten)] a: Inner, b: u8, }
    Refused: struct FlatMap { a: u8, #[serde(flatten)] b: BTreeMap<String, u8>, }
    Equal: #[serde(transparent)] struct Transparent { a: u32, }
    Equal: struct With { #[serde(with = "reversed")] a: u32, b: u32, }
    Refused: struct OtherKind { #[serde(serialize_with = "reversed::as_text")] a: u32, }
    Refused: struct SerializeOnly { #[serde(serialize_with = "reversed::halved")] a: u32, }
    Refused: struct OneSideReversed { #[serde(deserialize_with = "reversed::deserialize")] a: u32, b: Option<u8>, }
    Equal: struct Nested { a: Inner, b: Option<Inner>, c: Vec<Inner>, d: (Inner, u8), }
    Equal: #[serde(deny_unknown_fields)] struct Strict { a: u8, }
    Equal: struct Generic { a: Pair<u8>, b: Pair<Option<char>>, c: Pair<Pair<String>>, }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Inner {
    x: u8,
    y: Option<u16>,
}

impl Arbitrary for Inner {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> BoxedStrategy<Self> {
        any::<(u8, Option<u16>)>().prop_map(|(x, y)| Self { x, y }).boxed()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Pair<T>(T, T);

impl<T: Arbitrary + 'static> Arbitrary for Pair<T> {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> BoxedStrategy<Self> {
        any::<(T, T)>().prop_map(|(left, right)| Self(left, right)).boxed()
    }
}

/// Fields that take few of the values that they are tried with leave enough tries to the others.
#[test]
fn flaws_are_found_beside_many_checked_fields() {
    use chrono::{DateTime, Utc};
    use uuid::Uuid;

    #[derive(Serialize, Deserialize)]
    struct Order<T> {
        ids: [Uuid; 12],
        client: Uuid,
        times: (DateTime<Utc>, DateTime<Utc>, DateTime<Utc>),
        even: Even,
        field: T,
        bounds: Bounds,
    }
    #[derive(Serialize, Deserialize)]
    struct Halved(#[serde(serialize_with = "reversed::halved")] u32);
    #[derive(Serialize, Deserialize)]
    struct Noted {
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<u8>,
        size: u32,
    }
    assert!(Order::<u32>::schema().is_ok());
    for refused in [Order::<Halved>::schema(), Order::<Noted>::schema()] {
        refused.unwrap_err();
    }
}

/// A field that is not sent.
#[test]
fn skipped_field_arrives_as_its_default() {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Skipping {
        a: u8,
        #[serde(skip)]
        cache: u32,
        b: Option<u8>,
    }
    let strategy = any::<(u8, u32, Option<u8>)>().prop_map(|(a, cache, b)| Skipping { a, cache, b });
    assert_eq!(outcome(strategy, |value| Skipping { cache: 0, ..value }), Outcome::Equal);
}

/// Variants that hold values of any kind; the attributes make of them what they can.
macro_rules! enums {
    ($($outcome:ident: $(#[$on_enum:meta])* enum $name:ident {
        $(
            $(#[$on_variant:meta])*
            $variant:ident $(($($part:ty),*))? $({ $(#[$on_field:meta])? $field:ident: $type:ty })?,
        )*
    })*) => {
        $(
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            $(#[$on_enum])*
            enum $name { $($(#[$on_variant])* $variant $(($($part),*))? $({ $(#[$on_field])? $field: $type })?,)* }

            impl $name {
                fn strategy() -> impl Strategy<Value = Self> {
                    prop_oneof![$(enums!(@ $name $variant $(($($part),*))? $({ $field: $type })?)),*]
                }
            }
        )*

        #[test]
        fn enums_are_received_as_published_or_refused() {
            $(assert_eq!(outcome($name::strategy(), |value| value), Outcome::$outcome, stringify!($name));)*
        }
    };
    (@ $name:ident $variant:ident) => { Just($name::$variant) };
    (@ $name:ident $variant:ident ($part:ty)) => { any::<$part>().prop_map($name::$variant) };
    (@ $name:ident $variant:ident ($one:ty, $two:ty)) => {
        any::<($one, $two)>().prop_map(|(one, two)| $name::$variant(one, two))
    };
    (@ $name:ident $variant:ident { $field:ident: $type:ty }) => {
        any::<$type>().prop_map(|$field| $name::$variant { $field })
    };
}

enums! {
    Equal: enum External { A, B(u8), C(u8, Option<u8>), D { x: String }, }
    Refused: #[serde(untagged)] enum Untagged { A(u8), B(String), }
    Refused: #[serde(tag = "kind")] enum Internal { A, D { x: u8 }, }
    Refused: #[serde(tag = "kind", content = "value")] enum Adjacent { A(u8), B(String), }
    Refused: #[serde(tag = "kind", content = "value")] enum AdjacentUnit { A, B(u8), }
    Equal: #[serde(rename_all = "lowercase")] enum RenamedVariants { First, #[serde(rename = "2")] Second(u8), }
    Refused: enum AliasVariant { #[serde(alias = "B")] A, C(u8), }
    Refused: enum Gap { A(u8), #[serde(skip)] B(u8), C(u8), }
    SomeRefused: enum SkippedLast { A(u8), B, #[serde(skip)] C(u8), }
    Refused: enum NotWritten { A(u8), #[serde(skip_serializing)] B(u8), }
    SomeRefused: enum NotReadLast { A(u8), #[serde(skip_deserializing)] B(u8), }
    Equal: enum WithOther { A, B, #[serde(other)] Other, }
    Refused: enum SkippedField { A { #[serde(skip_serializing_if = "Option::is_none")] x: Option<u8> }, B, }
}

mod outside {
    #[derive(Clone, Debug, PartialEq)]
    pub(super) struct Point {
        pub(super) x: u8,
        pub(super) y: Option<u16>,
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "outside::Point")]
struct PointDefinition {
    x: u8,
    y: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Remote {
    #[serde(with = "PointDefinition")]
    at: outside::Point,
}

/// An even number, which is sent as its half.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
struct Even(u8);

impl TryFrom<u8> for Even {
    type Error = String;

    fn try_from(half: u8) -> Result<Self, String> {
        half.checked_mul(2).map(Self).ok_or_else(|| format!("{half} is too large"))
    }
}

impl From<Even> for u8 {
    fn from(even: Even) -> Self {
        even.0 / 2
    }
}

/// From a text, into a number: two kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "String", into = "u64")]
struct TwoKinds(u64);

impl From<String> for TwoKinds {
    fn from(text: String) -> Self {
        Self(text.len() as u64)
    }
}

impl From<TwoKinds> for u64 {
    fn from(two: TwoKinds) -> Self {
        two.0
    }
}

/// Two bounds of which the first is the lower: a sample of equal numbers is not one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "(u32, u32)", into = "(u32, u32)")]
struct Bounds(u32, u32);

impl TryFrom<(u32, u32)> for Bounds {
    type Error = &'static str;

    fn try_from((low, high): (u32, u32)) -> Result<Self, Self::Error> {
        if low < high { Ok(Self(low, high)) } else { Err("not in order") }
    }
}

impl From<Bounds> for (u32, u32) {
    fn from(bounds: Bounds) -> Self {
        (bounds.0, bounds.1)
    }
}

#[test]
fn converted_types_are_received_as_published_or_refused() {
    let remote = any::<(u8, Option<u16>)>().prop_map(|(x, y)| Remote { at: outside::Point { x, y } });
    assert_eq!(outcome(remote, |value| value), Outcome::Equal);
    assert_eq!(outcome((0..128_u8).prop_map(|half| Even(half * 2)), |value| value), Outcome::Equal);
    assert_eq!(outcome(any::<u64>().prop_map(TwoKinds), |value| value), Outcome::Refused);
    let bounds = any::<u16>().prop_map(|low| Bounds(low.into(), 1 << 20));
    assert_eq!(outcome(vec(bounds, 0..3), |value| value), Outcome::Equal);
}

#[test]
fn containers_are_received_as_published() {
    let key = || prop_oneof![Just(String::new()), ".{0,4}"];
    assert_eq!(outcome(btree_map(key(), External::strategy(), 0..4), |value| value), Outcome::Equal);
    assert_eq!(
        outcome(btree_map(any::<(u8, bool)>(), any::<Pair<u8>>(), 0..4), |value| value),
        Outcome::Equal
    );
    assert_eq!(outcome(btree_set(any::<char>(), 0..4), |value: BTreeSet<char>| value), Outcome::Equal);
    assert_eq!(outcome(vec(Plain::strategy().prop_map(Some), 0..3), |value| value), Outcome::Equal);
    assert_eq!(outcome(any::<Vec<Option<Option<()>>>>(), |value| value), Outcome::Equal);
    assert_eq!(outcome(any::<Box<[u128]>>(), |value| value), Outcome::Equal);
    assert_eq!(outcome(any::<(f64, String)>(), |value| value), Outcome::Equal);
}
