//! The encoding of values that are compared with their topic's schema, against bincode by itself.
//!
//! `cargo bench --bench payload`. Compare figures within one run.

use bincode::config;
use divan::{Bencher, black_box};
use fabricast::Payload;
use serde::{Deserialize, Serialize};

fn main() {
    divan::main();
}

#[derive(Clone, Serialize, Deserialize)]
enum Side {
    Buy,
    Sell,
}

#[derive(Clone, Serialize, Deserialize)]
struct Quote {
    symbol: [u8; 8],
    venue: u16,
    side: Side,
    bid: f64,
    ask: f64,
    bid_size: u32,
    ask_size: u32,
    flags: Option<u8>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Level {
    price: i64,
    size: u32,
    orders: u32,
}

#[derive(Clone, Serialize, Deserialize)]
struct Book {
    symbol: String,
    bids: Vec<Level>,
    asks: Vec<Level>,
    sequence: u64,
}

#[derive(Clone, Serialize, Deserialize)]
struct Chain {
    price: i64,
    next: Option<Box<Self>>,
}

fn quote() -> Quote {
    let side = if black_box(true) { Side::Sell } else { Side::Buy };
    let (bid, ask) = (99.5, 100.25);
    Quote { symbol: *b"ACMECORP", venue: 1, side, bid, ask, bid_size: 3, ask_size: 4, flags: Some(1) }
}

fn book() -> Book {
    let levels = vec![Level { price: 1, size: 2, orders: 3 }; 10];
    Book { symbol: "ACME".into(), bids: levels.clone(), asks: levels, sequence: 1 }
}

fn chain() -> Chain {
    (1..10).fold(Chain { price: 0, next: None }, |next, price| Chain { price, next: Some(Box::new(next)) })
}

fn bytes() -> Vec<u8> {
    vec![7; 1024]
}

fn floats() -> Vec<f64> {
    vec![99.5; 1000]
}

fn text() -> String {
    "a".repeat(1024)
}

fn checked<T: Payload<Borrowed = T>>(bencher: Bencher<'_, '_>, value: T) {
    let schema = T::schema().expect("a schema");
    let mut out = vec![0; 16 * 1024];
    bencher.bench_local(|| T::encode(black_box(&value), &schema, black_box(&mut out)));
}

fn alone<T: Serialize>(bencher: Bencher<'_, '_>, value: T) {
    let config = config::standard().with_little_endian().with_fixed_int_encoding();
    let mut out = vec![0; 16 * 1024];
    bencher.bench_local(|| {
        bincode::serde::encode_into_slice(black_box(&value), black_box(&mut out), config).expect("room")
    });
}

/// Both for each value.
macro_rules! values {
    ($($name:ident)*) => {$(
        mod $name {
            use divan::Bencher;

            #[divan::bench]
            fn checked(bencher: Bencher<'_, '_>) {
                super::checked(bencher, super::$name());
            }

            #[divan::bench]
            fn alone(bencher: Bencher<'_, '_>) {
                super::alone(bencher, super::$name());
            }
        }
    )*};
}

values! { quote book chain bytes floats text }
