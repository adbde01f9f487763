//! Values through publishers and subscribers: each is received as its `Serialize` wrote it, or refused with an error.

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};
use fabricast::{LogPublisher, Node, Payload, RefuseReason, StateSubscriber, SubscriberError};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use uuid::Uuid;

/// A node that publishes to itself, and its runtime directory.
fn node() -> (TempDir, Node) {
    let dir = tempfile::tempdir().expect("a directory");
    let node = Node::builder().name("p").expect("a name").runtime_dir(dir.path()).open().expect("a node");
    (dir, node)
}

/// What a subscriber receives of a value.
fn received<T: Payload<Borrowed = T, Owned = T>>(value: &T) -> T {
    let (_dir, node) = node();
    let mut publisher = node.state_publisher::<T>("t").open().expect("a publisher");
    let mut subscriber: StateSubscriber<T> = node.state_subscriber("shm:p/t").open().expect("a subscriber");
    publisher.publish(value).expect("published");
    subscriber.try_receive().expect("received").expect("there is one").value
}

/// The value as the command decodes it, by the schema alone.
fn decoded<T: Payload<Borrowed = T>>(value: &T) -> String {
    let (dir, node) = node();
    let mut publisher = node.state_publisher::<T>("t").open().expect("a publisher");
    publisher.publish(value).expect("published");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_fabricast"))
        .args(["get", "shm:p/t"])
        .env("FABRICAST_RUNTIME_DIR", dir.path())
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn refusal<T: Payload>() -> String {
    let (_dir, node) = node();
    node.state_publisher::<T>("t").open().expect_err("refused").to_string()
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Level {
    #[serde(skip_serializing_if = "Option::is_none")]
    venue: Option<u8>,
    size: Option<u16>,
    side: u8,
}

#[test]
fn type_that_omits_fields_is_refused() {
    let (_dir, node) = node();
    let value = Level { venue: None, size: Some(0), side: 0 };
    let outcome = node.state_publisher::<Level>("t").open().map(|mut publisher| {
        let mut subscriber = node.state_subscriber::<Level>("shm:p/t").open().expect("a subscriber");
        publisher.publish(&value).expect("published");
        subscriber.try_receive().expect("received").expect("there is one").value
    });
    let error = outcome.expect_err("refused").to_string();
    assert!(error.contains("skip_serializing_if"), "{error}");
}

/// Serializes differently after opening.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Rarely {
    size: u32,
    note: Option<u8>,
}

impl Serialize for Rarely {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Rarely", 2)?;
        fields.serialize_field("size", &self.size)?;
        match self.size {
            777 => fields.skip_field("note")?,
            778 => fields.serialize_field("size", &self.note)?,
            779 => fields.serialize_field("note", &self.size)?,
            780 => {}
            _ => fields.serialize_field("note", &self.note)?,
        }
        fields.end()
    }
}

#[test]
fn value_that_departs_from_the_schema_is_not_published() {
    let (_dir, node) = node();
    let mut publisher = node.state_publisher::<Rarely>("t").open().expect("a publisher");
    for (size, part) in [(777, "omits"), (778, "size where"), (779, "u32"), (780, "omits")] {
        let error = publisher.publish(&Rarely { size, note: Some(1) }).expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(publisher.publish(&Rarely { size: 1, note: Some(1) }).expect("published").get(), 1);
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Chain {
    next: Option<Box<Self>>,
}

#[test]
fn undecodable_values_are_not_published() {
    let (_dir, node) = node();
    let mut chains = node.state_publisher::<Chain>("chains").open().expect("a publisher");
    let chain =
        |links: usize| (1..links).fold(Chain::default(), |next, _| Chain { next: Some(Box::new(next)) });
    chains.publish(&chain(32)).expect("as deep as may be");
    let error = chains.publish(&chain(33)).expect_err("too deep").to_string();
    assert!(error.contains("64"), "{error}");

    let mut units: LogPublisher<Vec<()>> = node.log_publisher("units").open().expect("a publisher");
    units.publish(&vec![(); 65_552]).expect("as many as may be");
    let error = units.publish(&vec![(); 65_553]).expect_err("too many").to_string();
    assert!(error.contains("65552"), "{error}");

    let error =
        node.state_publisher::<String>("text").payload_len_max(0).open().expect_err("no room").to_string();
    assert!(error.contains("8 bytes") && error.contains(" 0"), "{error}");
    node.state_publisher::<String>("text").payload_len_max(8).open().expect("room for an empty text");
}

mod here {
    #[derive(serde::Serialize, serde::Deserialize)]
    pub(super) struct Quote {
        pub(super) bid: f64,
        pub(super) size: u64,
    }
}

#[derive(Serialize, Deserialize)]
struct Quote {
    bid: f64,
    size: u32,
    venue: u16,
}

#[test]
fn refusal_names_the_fields_that_differ() {
    let (_dir, node) = node();
    let _publisher = node.state_publisher::<Quote>("t").open().expect("a publisher");
    for builder in [node.state_subscriber::<here::Quote>("shm:p/t"), node.state_subscriber("shm:p/t").push()]
    {
        let error = builder.open().expect_err("refused");
        assert!(
            matches!(error, SubscriberError::Refused { reason: RefuseReason::SchemaMismatch, .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("field size is u32 there and u64 here"), "{text}");
        assert!(text.contains("field venue: u16 is missing here"), "{text}");
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Trade {
    price: Decimal,
    quantity: Option<Decimal>,
    at: DateTime<Utc>,
    local: DateTime<chrono::FixedOffset>,
    settles: NaiveDate,
    entered: NaiveDateTime,
    time: chrono::NaiveTime,
    id: Uuid,
    parents: Vec<Uuid>,
    isin: Isin,
}

/// Two letters, nine letters or digits, and a check digit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Isin(String);

impl TryFrom<String> for Isin {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_one = text.len() == 12
            && text.bytes().take(2).all(|byte| byte.is_ascii_uppercase())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_one { Ok(Self(text)) } else { Err(format!("{text:?} is not an ISIN")) }
    }
}

impl From<Isin> for String {
    fn from(isin: Isin) -> Self {
        isin.0
    }
}

/// An account with a private format: no built-in sample fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Account(String);

impl TryFrom<String> for Account {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        if text.starts_with("ACME-7:") { Ok(Self(text)) } else { Err("not an account") }
    }
}

impl From<Account> for String {
    fn from(account: Account) -> Self {
        account.0
    }
}

fn trade() -> Trade {
    Trade {
        price: "101.250".parse().expect("a decimal"),
        quantity: None,
        at: "2026-03-04T05:06:07.000000008Z".parse().expect("a time"),
        local: "2026-03-04T05:06:07+02:00".parse().expect("a time"),
        settles: "2026-03-06".parse().expect("a date"),
        entered: "2026-03-04T05:06:07.5".parse().expect("a time"),
        time: "05:06:07".parse().expect("a time"),
        id: Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        parents: vec![Uuid::from_u128(7)],
        isin: Isin("US0378331005".into()),
    }
}

#[test]
fn types_of_market_data_are_published_and_received() {
    assert_eq!(received(&trade()), trade());
    assert_eq!(received(&Decimal::MAX), Decimal::MAX);
    assert_eq!(received(&Uuid::nil()), Uuid::nil());
}

#[test]
fn program_decodes_types_of_market_data() {
    let text = decoded(&trade());
    for part in ["101.250", "2026-03-04T05:06:07.000000008Z", "2026-03-06", "05:06:07", "US0378331005"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn types_of_the_standard_library_are_published_and_received() {
    use std::net::{IpAddr, SocketAddr};
    use std::num::{NonZeroI8, NonZeroU128};
    use std::time::{Duration, SystemTime};
    type Many =
        (IpAddr, SocketAddr, NonZeroI8, NonZeroU128, Duration, SystemTime, Option<Option<()>>, char, u128);
    let value: Many = (
        [127, 0, 0, 1].into(),
        ([0_u16; 8], 80).into(),
        NonZeroI8::MIN,
        NonZeroU128::MAX,
        Duration::MAX,
        SystemTime::UNIX_EPOCH + Duration::new(1, 2),
        Some(None),
        '\u{10FFFF}',
        u128::MAX,
    );
    assert_eq!(received(&value), value);
}

#[test]
fn sample_is_named_where_no_known_one_fits() {
    let error = refusal::<Account>();
    assert!(error.contains("not an account") && error.contains("sample"), "{error}");
    let (_dir, node) = node();
    let value = Account("ACME-7:42".into());
    let builder = node.state_publisher::<Account>("t").sample("ACME-7:1");
    let mut publisher = builder.open().expect("a publisher");
    let builder = node.state_subscriber::<Account>("shm:p/t").sample("ACME-7:2");
    let mut subscriber = builder.open().expect("a subscriber");
    publisher.publish(&value).expect("published");
    assert_eq!(subscriber.try_receive().expect("received").expect("there is one").value, value);
}

/// Twenty-four bytes of an exchange's own.
#[derive(Clone, Debug, PartialEq)]
struct Order([u8; 24]);

impl Payload for Order {
    type Borrowed = Self;
    type Owned = Self;
    const ENCODING: fabricast::Encoding = fabricast::Encoding::Raw;

    fn as_bytes(order: &Self) -> Option<&[u8]> {
        Some(&order.0)
    }

    fn encode(order: &Self, _: &fabricast::Schema, out: &mut [u8]) -> Result<usize, fabricast::EncodeError> {
        let max = out.len();
        let room = out.first_chunk_mut::<24>().ok_or(fabricast::EncodeError::TooLong { max })?;
        *room = order.0;
        Ok(room.len())
    }

    fn decode(bytes: &[u8]) -> Result<Self, fabricast::DecodeError> {
        let found = bytes.len();
        let bytes = bytes.try_into().map_err(|_| fabricast::DecodeError::Length { expected: 24, found })?;
        Ok(Self(bytes))
    }

    fn fixed_len() -> Option<usize> {
        Some(24)
    }

    fn schema() -> Result<fabricast::Schema, fabricast::SchemaError> {
        fabricast::Schema::own("Order (exchange format 3)")
    }
}

#[test]
fn payload_of_an_own_encoding_keeps_its_type_check() {
    let (_dir, node) = node();
    let _other = node.state_publisher::<[u8; 24]>("other").open().expect("a publisher");
    let error = node.state_subscriber::<Order>("shm:p/other").open().expect_err("refused");
    let SubscriberError::Refused { reason: RefuseReason::SchemaMismatch, text, .. } = error else {
        panic!("{error}")
    };
    assert!(text.contains("[u8; 24]") && text.contains("Order (exchange format 3)"), "{text}");

    let mut publisher = node.state_publisher::<Order>("t").open().expect("a publisher");
    assert!(node.state_subscriber::<[u8; 24]>("shm:p/t").open().is_err());
    let mut subscriber = node.state_subscriber::<Order>("shm:p/t").open().expect("a subscriber");
    let mut bytes = node.state_subscriber::<fabricast::Raw>("shm:p/t").open().expect("a subscriber");
    publisher.publish(&Order([7; 24])).expect("published");
    assert_eq!(subscriber.try_receive().expect("received").expect("there is one").value, Order([7; 24]));
    assert_eq!(bytes.try_receive().expect("received").expect("there is one").value, [7; 24]);
}
