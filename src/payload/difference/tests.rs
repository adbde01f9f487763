use serde::{Deserialize, Serialize};

use super::super::{Payload, Raw, Schema};

mod there {
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) enum Side {
        Buy,
        Sell,
        Cross(u8),
    }
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) struct Level {
        pub(super) price: f64,
        pub(super) size: u32,
    }
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) struct Book {
        pub(super) side: Side,
        pub(super) levels: Vec<Level>,
        pub(super) best: Option<Level>,
        pub(super) pair: (u8, String),
    }
}

#[derive(Serialize, Deserialize)]
enum Side {
    Buy,
    Cross(u16),
    Short,
}

#[derive(Serialize, Deserialize)]
struct Level {
    size: u32,
    price: f64,
}

#[derive(Serialize, Deserialize)]
struct Book {
    side: Side,
    levels: Vec<Level>,
    best: Level,
    pair: (u8, u16),
}

#[test]
fn differences_are_named_where_they_are() {
    let text = there::Book::schema().unwrap().difference(&Book::schema().unwrap());
    let expected = "the topic's Book differs from this program's: \
        field best is option of Level there and Level here; \
        field pair is string there and u16 here; \
        variant Sell of Side is missing here; \
        what is inside of variant Cross of Side is u8 there and u16 here; \
        variant Short of Side is missing there; \
        the fields of Level are in the order price, size there and size, price here";
    let sorted = |text: &str| {
        let (begin, list) = text.split_once(": ").unwrap();
        let mut list: Vec<String> = list.split("; ").map(str::to_owned).collect();
        list.sort();
        (begin.to_owned(), list)
    };
    assert_eq!(sorted(&text), sorted(expected));
}

#[test]
fn other_types_are_named_with_their_encoding() {
    let text = Book::schema().unwrap().difference(&Raw::schema().unwrap());
    assert_eq!(text, "the topic's values are Book (bincode), this program's are bytes (raw)");
}

#[test]
fn text_of_a_huge_schema_is_short() {
    let fields = |letter: char| -> String {
        let field = |number| format!(r#"{{"name":"{letter}{number:0>200}","format":"u8"}}"#);
        (0..100).map(field).collect::<Vec<_>>().join(",")
    };
    let schema = |letter| {
        let json = format!(
            r#"{{"type":"A","encoding":"bincode","format":{{"type":"A"}},"types":{{"A":{{"struct":{{"fields":[{}]}}}}}}}}"#,
            fields(letter)
        );
        Schema::from_json(json.as_bytes()).unwrap()
    };
    let text = schema('a').difference(&schema('b'));
    assert!(text.len() < 1000 && text.ends_with("; and more"), "{text}");
    let deep = |leaf: &str| {
        let (open, close) = (r#"{"option":"#.repeat(60), "}".repeat(60));
        let json =
            format!(r#"{{"type":"A","encoding":"bincode","format":{open}{leaf}{close},"types":{{}}}}"#);
        Schema::from_json(json.as_bytes()).unwrap()
    };
    assert!(deep(r#""u8""#).difference(&deep(r#""u16""#)).contains("is u8 there and u16 here"));
}
