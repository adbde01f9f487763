use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::{Payload, Schema, SchemaError};
use super::*;
use crate::limits;

fn text<T: Payload>() -> String {
    T::schema().unwrap().to_string()
}

fn reason<T: Payload>() -> String {
    match T::schema() {
        Err(SchemaError::Untraceable { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_lose_their_modules() {
    assert_eq!(short_name("a::b::Quote"), "Quote");
    assert_eq!(short_name("alloc::vec::Vec<(a::B, [c::D; 4])>"), "Vec<(B, [D; 4])>");
    assert_eq!(short_name("a::b::{{closure}}::Quote<c::É>"), "Quote<É>");
    assert_eq!(short_name("u8"), "u8");
    assert!(short_name(&"é".repeat(1000)).len() <= limits::TYPE_NAME_LEN_MAX);
}

#[derive(Serialize, Deserialize)]
enum Side {
    Buy,
    Sell,
    Short,
}

mod other {
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) enum Side {
        Bid,
        Ask,
    }
}

#[derive(Serialize, Deserialize)]
struct Pair<T> {
    left: T,
    right: T,
}

/// Each of these hides an enum where a single pass does not show all of it.
#[test]
fn enums_are_found_wherever_they_are() {
    #[derive(Serialize, Deserialize)]
    enum Outer {
        First,
        Second(Vec<Side>),
        Third { map: BTreeMap<u8, Option<other::Side>> },
        Fourth(Inner, Inner),
    }
    #[derive(Serialize, Deserialize)]
    enum Inner {
        Only([Deep; 2]),
    }
    #[derive(Serialize, Deserialize)]
    enum Deep {
        A(u8),
        B,
        C(()),
    }
    let expected = "\
Option<Outer> (bincode)
  option of Outer
Deep
  A(u8)
  B
  C(())
Inner
  Only([Deep; 2])
Outer
  First
  Second([Side])
  Third { map: {u8: option of Side#2} }
  Fourth(Inner, Inner)
Side
  Buy
  Sell
  Short
Side#2
  Bid
  Ask
";
    assert_eq!(text::<Option<Outer>>(), expected);
}

#[test]
fn types_of_one_name_are_told_apart() {
    #[derive(Serialize, Deserialize)]
    struct Both {
        bytes: Pair<u8>,
        floats: Pair<f64>,
        again: Pair<u8>,
    }
    let expected = "\
Both (bincode)
  bytes: Pair<u8>
  floats: Pair<f64>
  again: Pair<u8>
Pair<f64>
  left: f64
  right: f64
Pair<u8>
  left: u8
  right: u8
";
    assert_eq!(text::<Both>(), expected);
}

#[test]
fn recursive_types() {
    #[derive(Serialize, Deserialize)]
    struct Chain {
        next: Option<Box<Self>>,
        side: Side,
    }
    // The first variants have no value without the last.
    #[derive(Serialize, Deserialize)]
    enum Expression {
        Sum(Box<Self>, Box<Self>),
        Negation(Box<Self>),
        Call { arguments: Vec<Self>, side: Side },
        Value(Box<Value>),
    }
    #[derive(Serialize, Deserialize)]
    enum Value {
        Quoted(Expression),
        Number(f64),
    }
    let chain = "\
Chain (bincode)
  next: option of Chain
  side: Side
Side
  Buy
  Sell
  Short
";
    assert_eq!(text::<Chain>(), chain);
    let expression = "\
Expression (bincode)
  Sum(Expression, Expression)
  Negation(Expression)
  Call { arguments: [Expression], side: Side }
  Value(Value)
Side
  Buy
  Sell
  Short
Value
  Quoted(Expression)
  Number(f64)
";
    assert_eq!(text::<Expression>(), expression);
}

#[test]
fn a_type_without_a_finite_value_is_refused() {
    #[derive(Serialize, Deserialize)]
    enum Endless {
        One(Box<Self>),
        Two(u8, Box<Self>),
    }
    assert!(reason::<Endless>().contains("infinite"));
}

/// Types that all hold one another have many ways between them, of which a pass must not go them all.
#[test]
fn types_that_hold_one_another_take_few_passes() {
    macro_rules! web {
        ($($name:ident)*) => { web!(@ [$($name)*] $($name)*); };
        (@ $all:tt $($name:ident)*) => { $(web!(# $all $name);)* };
        (# [$($all:ident)*] $name:ident) => {
            #[expect(non_snake_case, reason = "the fields are called as their types")]
            #[derive(Serialize, Deserialize)]
            struct $name { kind: Side, $($all: Option<Box<$all>>),* }
        };
    }
    web! { A B C D E F G H I J K L }
    let schema = A::schema().unwrap();
    assert_eq!(schema.to_string().lines().filter(|line| line.contains("kind: Side")).count(), 12);
}

/// Each enum has a variant without parts, behind one that holds three of the next: 3 to the power of 12 if it took the first.
#[test]
fn short_variants_end_enums_inside_enums() {
    macro_rules! chain {
        ($name:ident) => {
            #[derive(Serialize, Deserialize)]
            enum $name { Last(u8), End }
        };
        ($name:ident $next:ident $($rest:ident)*) => {
            #[derive(Serialize, Deserialize)]
            enum $name { Next(Box<$next>, Box<$next>, Box<$next>), End }
            chain! { $next $($rest)* }
        };
    }
    chain! { A B C D E F G H I J K L }
    let traced = trace::<A>(&[]).unwrap();
    assert_eq!(traced.types.len(), 12);
    let samples =
        traced.samples.iter().map(|sample| super::super::bincode::encode_to_vec(sample).unwrap().len());
    assert!(samples.max() < Some(64 * 1024));
}

/// Each field of one enum sees all of its variants, whatever the enum is called and however many fields there are.
#[test]
fn every_field_of_an_enum_sees_all_variants() {
    macro_rules! named {
        ($($name:literal)*) => {$({
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
            #[serde(rename = $name)]
            enum Side { A, B, C, D }
            let seen = |samples: Vec<Side>| samples.into_iter().collect::<BTreeSet<Side>>();
            let all = BTreeSet::from([Side::A, Side::B, Side::C, Side::D]);
            for at in 0..2 {
                let samples = trace::<[Side; 2]>(&[]).unwrap().samples;
                assert_eq!(seen(samples.iter().map(|sample| sample[at]).collect()).len(), all.len(), $name);
            }
            for at in 0..8 {
                let samples = trace::<[Side; 8]>(&[]).unwrap().samples;
                assert_eq!(seen(samples.iter().map(|sample| sample[at]).collect()).len(), all.len(), $name);
            }
        })*};
    }
    named! { "Side" "Way" "Kind" "State" "Phase" "Venue" "Flag" "Mode" }
}

#[test]
fn types_of_the_standard_library() {
    assert!(text::<Duration>().contains("secs: u64\n  nanos: u32"));
    assert_eq!(text::<NonZeroU32>(), "NonZero<u32> (bincode)\n  u32\n");
    assert!(text::<Result<u8, String>>().contains("Ok(u8)\n  Err(string)"));
    assert!(text::<std::ops::Range<u64>>().contains("start: u64\n  end: u64"));
    assert!(text::<std::net::IpAddr>().contains("V4([u8; 4])\n  V6([u8; 16])"));
    assert!(text::<crate::TopicName>().contains("string"));
}

#[test]
fn attributes_that_do_no_harm() {
    #[derive(Serialize, Deserialize)]
    #[serde(rename = "Tick", rename_all = "camelCase")]
    struct Renamed {
        last_price: f64,
        #[serde(skip)]
        _cache: u64,
        #[serde(default)]
        volume: u32,
    }
    assert_eq!(text::<Renamed>(), "Renamed (bincode)\nTick\n  lastPrice: f64\n  volume: u32\n");
}

#[test]
fn attributes_that_need_self_describing_bytes_are_refused() {
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u8),
        Text(String),
    }
    #[derive(Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        Clear,
        Insert { size: u32 },
    }
    #[derive(Serialize, Deserialize)]
    struct Flat {
        #[serde(flatten)]
        pair: Pair<u8>,
    }
    for reason in [reason::<Untagged>(), reason::<Tagged>(), reason::<Flat>(), reason::<serde_json::Value>()]
    {
        assert!(reason.contains("untagged"), "{reason}");
    }
}

#[test]
fn types_whose_halves_disagree_are_refused() {
    #[derive(Serialize, Deserialize)]
    struct Conditional {
        #[serde(skip_serializing)]
        #[serde(default)]
        _hidden: u64,
        size: u32,
    }
    #[derive(Serialize, Deserialize)]
    enum Gap {
        First,
        #[serde(skip)]
        _Second,
        Third,
    }
    #[derive(Serialize, Deserialize)]
    struct Aliased {
        #[serde(alias = "volume")]
        size: u32,
    }
    #[derive(Serialize, Deserialize)]
    enum AliasedVariant {
        #[serde(alias = "B")]
        Buy,
        Sell,
    }
    assert!(reason::<Conditional>().contains("does not write what"), "{}", reason::<Conditional>());
    assert!(reason::<Gap>().contains("does not write what"), "{}", reason::<Gap>());
    assert!(reason::<Aliased>().contains("alias"), "{}", reason::<Aliased>());
    // The names would be shifted by one; serde refuses the index beyond the last.
    assert!(
        reason::<AliasedVariant>().ends_with("alias of a variant does that: remove it"),
        "{}",
        reason::<AliasedVariant>()
    );
}

#[test]
fn a_type_that_checks_its_values_is_traced_if_it_takes_any_constant() {
    #[derive(Serialize, Deserialize)]
    #[serde(try_from = "u8", into = "u8")]
    #[derive(Clone)]
    struct Zero(u8);
    impl TryFrom<u8> for Zero {
        type Error = &'static str;
        fn try_from(value: u8) -> Result<Self, &'static str> {
            if value == 0 { Ok(Self(value)) } else { Err("not zero") }
        }
    }
    impl From<Zero> for u8 {
        fn from(zero: Zero) -> Self {
            zero.0
        }
    }
    #[derive(Serialize, Deserialize)]
    #[serde(try_from = "u8", into = "u8")]
    #[derive(Clone)]
    struct Never(u8);
    impl TryFrom<u8> for Never {
        type Error = &'static str;
        fn try_from(_: u8) -> Result<Self, &'static str> {
            Err("never good enough")
        }
    }
    impl From<Never> for u8 {
        fn from(never: Never) -> Self {
            never.0
        }
    }
    assert_eq!(text::<Zero>(), "Zero (bincode)\n  u8\n");
    assert!(reason::<Never>().contains("never good enough"), "{}", reason::<Never>());
}

/// A type that takes only some numbers of elements, and what it says of the others.
macro_rules! counted {
    ($name:ident, $counts:pat) => {
        #[derive(Clone, Serialize, Deserialize)]
        #[serde(try_from = "Vec<(u32, String)>", into = "Vec<(u32, String)>")]
        struct $name(Vec<(u32, String)>);
        impl TryFrom<Vec<(u32, String)>> for $name {
            type Error = String;
            fn try_from(parts: Vec<(u32, String)>) -> Result<Self, String> {
                match parts.len() {
                    $counts => Ok(Self(parts)),
                    len => Err(format!("{len} are the wrong number")),
                }
            }
        }
        impl From<$name> for Vec<(u32, String)> {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    };
}

#[test]
fn types_that_want_a_number_of_elements_are_tried_with_several() {
    counted!(Polygon, 3..);
    counted!(Pairs, 2 | 4);
    counted!(AtMost, 0..=2);
    counted!(NotEmpty, 1..);
    counted!(Hundred, 100);
    #[derive(Serialize, Deserialize)]
    struct All {
        polygons: Vec<Polygon>,
        pairs: Pairs,
        at_most: AtMost,
        not_empty: NotEmpty,
    }
    assert_eq!(text::<Polygon>(), "Polygon (bincode)\n  [(u32, string)]\n");
    let samples = trace::<All>(&[]).unwrap().samples;
    assert!(samples.len() >= VARIATIONS_MIN / 2, "{}", samples.len());
    assert!(
        samples.iter().any(|sample| sample.polygons.is_empty())
            && samples.iter().any(|sample| sample.at_most.0.is_empty())
    );
    let reason = reason::<Hundred>();
    assert!(reason.contains("every sample value tried (1 are the wrong number)"), "{reason}");
}

/// Numbers of elements are the last to be varied: each multiplies the attempts.
#[test]
fn checks_of_a_whole_struct_are_met_beside_sequences() {
    #[derive(Clone, Serialize, Deserialize)]
    struct Parts {
        low: u32,
        high: u32,
        notes: Vec<String>,
        sizes: Vec<u32>,
    }
    #[derive(Clone, Serialize, Deserialize)]
    #[serde(try_from = "Parts", into = "Parts")]
    struct Band(Parts);
    impl TryFrom<Parts> for Band {
        type Error = &'static str;
        fn try_from(parts: Parts) -> Result<Self, Self::Error> {
            if parts.low < parts.high { Ok(Self(parts)) } else { Err("not in order") }
        }
    }
    impl From<Band> for Parts {
        fn from(band: Band) -> Self {
            band.0
        }
    }
    assert!(text::<Band>().contains("low: u32"));
}

/// As of two versions of one crate.
#[test]
fn types_of_one_full_name_are_told_apart_by_their_fields() {
    #[derive(Serialize, Deserialize)]
    struct Both<A, B> {
        old: A,
        new: B,
    }
    fn both<A: Payload, B: Payload>(_: fn() -> A, _: fn() -> B) -> String
    where
        Both<A, B>: Payload,
    {
        text::<Both<A, B>>()
    }
    let old = {
        #[derive(Serialize, Deserialize)]
        struct Price {
            ticks: u64,
        }
        || Price { ticks: 0 }
    };
    let new = {
        #[derive(Serialize, Deserialize)]
        struct Price {
            amount: f64,
            currency: String,
        }
        || Price { amount: 0.0, currency: String::new() }
    };
    let text = both(old, new);
    assert!(
        text.contains("Price\n  ticks: u64\n")
            && text.contains("Price#2\n  amount: f64\n  currency: string\n"),
        "{text}"
    );
}

#[test]
fn a_refusal_names_the_place_and_its_own_reason() {
    #[derive(Serialize, Deserialize)]
    struct Trade {
        price: rust_decimal::Decimal,
        account: Account,
    }
    #[derive(Clone, Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    struct Account(String);
    impl TryFrom<String> for Account {
        type Error = &'static str;
        fn try_from(_: String) -> Result<Self, Self::Error> {
            Err("not an account")
        }
    }
    impl From<Account> for String {
        fn from(account: Account) -> Self {
            account.0
        }
    }
    assert!(reason::<Trade>().contains("at Trade.account (not an account)"), "{}", reason::<Trade>());
}

#[test]
fn long_arrays_and_many_variants() {
    assert_eq!(text::<[u16; 32]>(), "[u16; 32] (bincode)\n  [u16; 32]\n");
    macro_rules! many {
        ($($variant:ident)*) => {
            #[derive(Serialize, Deserialize)]
            enum Many { $($variant(Option<Box<Many>>)),* }
        };
    }
    many! { A B C D E F G H I J K L M N O P Q R S T U V W X Y Z }
    let schema: Schema = Many::schema().unwrap();
    assert_eq!(schema.to_string().lines().filter(|line| line.contains("(option of Many)")).count(), 26);
}
