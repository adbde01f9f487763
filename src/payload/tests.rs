use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use serde::Deserialize;

use super::*;
use crate::limits;

mod attributes;

mod venue {
    use serde::{Deserialize, Serialize};

    /// The same name as the type beside this module, and something else.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    pub(super) enum Side {
        Bid,
        Ask,
        Auction,
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Side {
    Buy,
    Sell,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Action {
    Clear,
    Cancel(u64),
    Replace(u64, Option<Side>),
    Insert { side: Side, level: Level<i64>, hidden: Option<Level<u16>> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Level<T> {
    price: T,
    size: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Symbol(String);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Marker;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rich {
    symbol: Symbol,
    venue_side: venue::Side,
    actions: Vec<Action>,
    levels: BTreeMap<String, Vec<Level<i64>>>,
    window: [f64; 4],
    pair: (u8, char),
    note: Option<Option<String>>,
    marker: Marker,
    open: bool,
    small: i8,
    unit: (),
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Buy), Just(Side::Sell)]
}

fn level<T: Arbitrary + Clone>() -> impl Strategy<Value = Level<T>> {
    (any::<T>(), any::<u32>()).prop_map(|(price, size)| Level { price, size })
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        Just(Action::Clear),
        any::<u64>().prop_map(Action::Cancel),
        (any::<u64>(), proptest::option::of(side())).prop_map(|(id, side)| Action::Replace(id, side)),
        (side(), level(), proptest::option::of(level())).prop_map(|(side, level, hidden)| Action::Insert {
            side,
            level,
            hidden
        }),
    ]
}

fn rich() -> impl Strategy<Value = Rich> {
    let venue_side = prop_oneof![Just(venue::Side::Bid), Just(venue::Side::Ask), Just(venue::Side::Auction)];
    let levels = proptest::collection::btree_map(".{0,5}", proptest::collection::vec(level(), 0..4), 0..4);
    let actions = proptest::collection::vec(action(), 0..6);
    let finite = -1e300..1e300f64;
    let window = [finite.clone(), finite.clone(), finite.clone(), finite];
    let note = proptest::option::of(Just(Some("n".to_owned())));
    (".{0,8}", venue_side, actions, levels, window, any::<(u8, char)>(), note, any::<(bool, i8)>()).prop_map(
        |(symbol, venue_side, actions, levels, window, pair, note, (open, small))| Rich {
            symbol: Symbol(symbol),
            venue_side,
            actions,
            levels,
            window,
            pair,
            note,
            marker: Marker,
            open,
            small,
            unit: (),
        },
    )
}

fn sample() -> Rich {
    Rich {
        symbol: Symbol("AAPL".into()),
        venue_side: venue::Side::Auction,
        actions: vec![
            Action::Clear,
            Action::Replace(7, Some(Side::Sell)),
            Action::Insert { side: Side::Buy, level: Level { price: -1, size: 2 }, hidden: None },
        ],
        levels: BTreeMap::from([("x".into(), vec![Level { price: 3, size: 4 }])]),
        window: [0.5; 4],
        pair: (1, 'é'),
        note: Some(Some("note".into())),
        marker: Marker,
        open: true,
        small: -3,
        unit: (),
    }
}

fn encoded<T: Payload>(value: &T::Borrowed) -> Vec<u8> {
    encoded_by::<T>(value, &T::schema().unwrap())
}

fn encoded_by<T: Payload>(value: &T::Borrowed, schema: &Schema) -> Vec<u8> {
    let mut out = vec![0; 64 * 1024];
    let len = T::encode(value, schema, &mut out).unwrap();
    out.truncate(len);
    out
}

fn rich_schema() -> &'static Schema {
    static SCHEMA: std::sync::OnceLock<Schema> = std::sync::OnceLock::new();
    SCHEMA.get_or_init(|| Rich::schema().unwrap())
}

/// The length prefix of a sequence, text or map.
fn claim(len: u64) -> Vec<u8> {
    len.to_le_bytes().to_vec()
}

proptest! {
    #[test]
    fn typed_and_untyped_decoding_agree_with_the_value(value in rich()) {
        let schema = rich_schema();
        let bytes = encoded_by::<Rich>(&value, schema);
        prop_assert_eq!(&Rich::decode(&bytes).unwrap(), &value);
        let schema = Schema::from_json(&schema.to_json()).unwrap();
        prop_assert_eq!(schema.decode(&bytes).unwrap(), Decoded::Value(serde_json::to_value(&value).unwrap()));
    }

    #[test]
    fn arbitrary_bytes_are_an_error_or_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let schema = rich_schema();
        let typed = Rich::decode(&bytes);
        let untyped = schema.decode(&bytes);
        prop_assert_eq!(typed.is_ok(), untyped.is_ok());
        let _ = Schema::from_json(&bytes);
    }
}

#[test]
fn every_bit_flip_and_every_cut_is_an_error_or_a_value() {
    let schema = Rich::schema().unwrap();
    let bytes = encoded::<Rich>(&sample());
    for cut in 0..bytes.len() {
        assert!(Rich::decode(&bytes[..cut]).is_err());
        assert!(schema.decode(&bytes[..cut]).is_err());
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let typed = Rich::decode(&flipped);
        let untyped = schema.decode(&flipped);
        assert_eq!(typed.is_ok(), untyped.is_ok(), "bit {bit}: {typed:?} {untyped:?}");
        if let (Ok(typed), Ok(Decoded::Value(untyped))) = (typed, untyped)
            && typed.window.iter().all(|number| number.is_finite())
        {
            assert_eq!(serde_json::to_value(typed).unwrap(), untyped, "bit {bit}");
        }
    }
}

#[test]
fn a_false_length_allocates_nothing() {
    for len in [1, 1 << 20, 1 << 60, u64::MAX] {
        let claims = claim(len);
        assert!(matches!(String::decode(&claims), Err(DecodeError::Malformed { .. })), "{len}");
        assert!(Vec::<u8>::decode(&claims).is_err());
        assert!(BTreeMap::<u8, u8>::decode(&claims).is_err());
        for schema in [String::schema(), Vec::<u8>::schema(), BTreeMap::<u8, u8>::schema()] {
            assert!(schema.unwrap().decode(&claims).is_err());
        }
    }
}

#[test]
fn elements_without_bytes_are_counted() {
    let max = limits::EMPTY_ELEMENTS_MAX;
    let fine = claim(u64::try_from(max).unwrap() / 2);
    assert_eq!(Vec::<()>::decode(&fine).unwrap().len(), max / 2);
    assert!(Vec::<()>::schema().unwrap().decode(&fine).is_ok());
    for len in [1 << 20, 1 << 60, u64::MAX] {
        let bomb = claim(len);
        assert_eq!(Vec::<()>::decode(&bomb), Err(DecodeError::TooManyElements { max: max + 16 }));
        assert_eq!(Vec::<Marker>::decode(&bomb), Err(DecodeError::TooManyElements { max: max + 16 }));
        let schema = Vec::<Marker>::schema().unwrap();
        assert_eq!(schema.decode(&bomb), Err(DecodeError::TooManyElements { max: max + 16 }));
    }
    // Many sequences share one budget.
    let many: Vec<u8> = claim(1000).into_iter().chain((0..1000).flat_map(|_| claim(1000))).collect();
    assert!(matches!(Vec::<Vec<()>>::decode(&many), Err(DecodeError::TooManyElements { .. })));
}

#[test]
fn full_sequences_of_the_smallest_elements_are_within_the_budget() {
    let flat = vec![7u8; 200_000];
    let nested: Vec<Vec<Option<bool>>> = vec![vec![None]; 30_000];
    let mut out = vec![0; 300_000];
    let len = Vec::<u8>::encode(&flat, &Vec::<u8>::schema().unwrap(), &mut out).unwrap();
    assert_eq!(Vec::<u8>::decode(&out[..len]).unwrap(), flat);
    let schema = Vec::<Vec<Option<bool>>>::schema().unwrap();
    let len = Vec::<Vec<Option<bool>>>::encode(&nested, &schema, &mut out).unwrap();
    assert_eq!(Vec::<Vec<Option<bool>>>::decode(&out[..len]).unwrap(), nested);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Tree {
    Node(Box<Self>, Box<Self>),
    Leaf(u8),
}

#[test]
fn a_recursive_type_does_not_run_out_of_stack() {
    let schema = Tree::schema().unwrap();
    let tree = Tree::Node(Box::new(Tree::Leaf(1)), Box::new(Tree::Leaf(2)));
    let bytes = encoded::<Tree>(&tree);
    assert_eq!(Tree::decode(&bytes).unwrap(), tree);
    let value = json!({"Node": [{"Leaf": 1}, {"Leaf": 2}]});
    assert_eq!(schema.decode(&bytes).unwrap(), Decoded::Value(value));
    // Nothing but the first index, again and again: one node further down for each four bytes.
    let bottomless = vec![0; 4 << 20];
    let too_deep = DecodeError::TooDeep { max: limits::SCHEMA_DEPTH_MAX };
    assert_eq!(Tree::decode(&bottomless), Err(too_deep.clone()));
    assert_eq!(schema.decode(&bottomless), Err(too_deep));
}

#[test]
fn raw_bytes_pass_unchanged() {
    assert_eq!(encoded::<Raw>(b"abc"), b"abc");
    let schema = Raw::schema().unwrap();
    assert_eq!(Raw::encode(b"abc", &schema, &mut [0; 2]), Err(EncodeError::TooLong { max: 2 }));
    assert_eq!(Raw::decode(b"abc").unwrap(), b"abc");
    assert_eq!(schema.decode(b"abc").unwrap(), Decoded::Bytes(b"abc".to_vec()));
    assert_eq!(Schema::from_json(&schema.to_json()), Ok(schema));
}

#[test]
fn a_schema_goes_between_threads() {
    fn goes<T: Send + Sync>() {}
    goes::<Schema>();
    goes::<Pod<u64>>();
}
