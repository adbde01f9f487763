use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::super::Payload;
use super::*;

fn decoded<T: Payload<Borrowed = T>>(value: &T) -> Value {
    let mut out = vec![0; 4096];
    let len = T::encode(value, &T::schema().unwrap(), &mut out).unwrap();
    match T::schema().unwrap().decode(&out[..len]).unwrap() {
        Decoded::Value(value) => value,
        Decoded::Bytes(bytes) => panic!("{bytes:?} is not a value"),
    }
}

#[test]
fn numbers() {
    assert_eq!(decoded(&(u64::MAX, i64::MIN)), json!([u64::MAX, i64::MIN]));
    assert_eq!(decoded(&(5u128, -5i128)), json!([5, -5]));
    assert_eq!(decoded(&i128::from(u64::MAX)), json!(u64::MAX));
    assert_eq!(decoded(&u128::MAX), json!(u128::MAX.to_string()));
    assert_eq!(decoded(&i128::MIN), json!(i128::MIN.to_string()));
    assert_eq!(decoded(&0.1f32).to_string(), "0.1");
    assert_eq!(decoded(&f32::MAX), json!(3.4028235e38));
    assert_eq!(decoded(&0.1f64).to_string(), "0.1");
    assert_eq!(decoded(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]), json!(["NaN", "inf", "-inf"]));
    assert_eq!(decoded(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]), json!(["NaN", "inf", "-inf"]));
}

#[test]
fn maps_with_keys_of_text_are_objects_and_others_pairs() {
    #[derive(PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    struct Name(String);
    assert_eq!(decoded(&BTreeMap::from([("a".to_owned(), 1u8)])), json!({"a": 1}));
    assert_eq!(decoded(&BTreeMap::from([('a', 1u8)])), json!({"a": 1}));
    assert_eq!(decoded(&BTreeMap::from([(Name("a".into()), 1u8)])), json!({"a": 1}));
    assert_eq!(decoded(&BTreeMap::<String, u8>::new()), json!({}));
    assert_eq!(decoded(&BTreeMap::from([(2u8, 1u8)])), json!([[2, 1]]));
    assert_eq!(decoded(&BTreeMap::<u8, u8>::new()), json!([]));
}

#[test]
fn byte_strings_are_arrays() {
    #[derive(Debug, PartialEq)]
    struct Blob(Vec<u8>);
    impl Serialize for Blob {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.0)
        }
    }
    impl<'de> Deserialize<'de> for Blob {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Bytes;
            impl Visitor<'_> for Bytes {
                type Value = Blob;
                expects!("bytes");
                fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Blob, E> {
                    Ok(Blob(bytes))
                }
            }
            deserializer.deserialize_byte_buf(Bytes)
        }
    }
    assert_eq!(decoded(&Blob(vec![1, 2, 255])), json!([1, 2, 255]));
    let claim = (1u64 << 60).to_le_bytes();
    assert!(Blob::decode(&claim).is_err());
    assert_eq!(Blob::decode(&[1, 0, 0, 0, 0, 0, 0, 0, 9]), Ok(Blob(vec![9])));
}

/// A schema from outside can nest structs so that each level doubles the values, none of which has bytes.
#[test]
fn values_without_bytes_are_counted() {
    let mut types = String::new();
    for level in 0..40 {
        let below = level + 1;
        types += &format!(
            r#""T{level:02}":{{"struct":{{"tuple":[{{"type":"T{below:02}"}},{{"type":"T{below:02}"}}]}}}},"#
        );
    }
    types += r#""T40":{"struct":"unit"}"#;
    let json =
        format!(r#"{{"type":"T00","encoding":"bincode","format":{{"type":"T00"}},"types":{{{types}}}}}"#);
    let schema = Schema::from_json(json.as_bytes()).unwrap();
    let max = limits::EMPTY_ELEMENTS_MAX;
    assert_eq!(schema.decode(&[]), Err(DecodeError::TooManyElements { max }));

    let json = r#"{"type":"A","encoding":"bincode","format":{"array":{"of":"unit","len":1152921504606846976}},"types":{}}"#;
    let schema = Schema::from_json(json.as_bytes()).unwrap();
    assert_eq!(schema.decode(&[]), Err(DecodeError::TooManyElements { max }));
}

#[test]
fn an_unknown_variant_is_named() {
    #[derive(Serialize, Deserialize)]
    enum Side {
        Buy,
        Sell,
    }
    assert_eq!(decoded(&vec![Side::Buy, Side::Sell]), json!(["Buy", "Sell"]));
    let error = Side::schema().unwrap().decode(&[2, 0, 0, 0]).unwrap_err();
    assert_eq!(error.to_string(), "the bytes are not a value of this type: Side has no variant 2");
}
