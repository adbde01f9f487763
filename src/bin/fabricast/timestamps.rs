//! Time stamps in values: the fields that hold them, by names and types in the schema, and their distance from the publish time.

use fabricast::Schema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::feed;
use super::output::{age_ns, printable, span};

/// Fields that are looked up in each value; a type may have more.
const FIELDS_MAX: usize = 16;
/// Named types inside each other that are searched.
const DEPTH_MAX: usize = 16;
/// Parts of a schema that are searched: a short schema may describe endless values.
const PARTS_MAX: usize = 4096;

/// The years 2000 to 2099, nanoseconds since the Unix epoch. What is outside is something else.
const PLAUSIBLE_NS: std::ops::Range<i128> = 946_684_800_000_000_000..4_102_444_800_000_000_000;
/// The fields of the standard library's `SystemTime`.
const SYSTEM_TIME: [(&str, &str); 2] = [("secs_since_epoch", "u64"), ("nanos_since_epoch", "u32")];

/// The fields of a type that hold time stamps.
#[derive(Clone, Debug)]
pub(crate) struct Timestamps {
    fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq)]
struct Field {
    /// The names that lead to it, with dots between.
    name: String,
    /// The same as a JSON pointer.
    pointer: String,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// An integer, in units of so many nanoseconds.
    Integer(i128),
    SystemTime,
}

/// A time stamp of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Timestamp<'a> {
    #[serde(skip)]
    pub(crate) name: &'a str,
    /// Nanoseconds since the Unix epoch.
    ns: u64,
    /// The same after the publish time; negative before it.
    pub(crate) offset_ns: i64,
}

/// A search for time stamps in a type.
#[derive(Debug)]
struct Search<'s> {
    types: Option<&'s Value>,
    /// The named types around the present part.
    within: Vec<&'s str>,
    parts: usize,
    found: Vec<Field>,
}

/// A part of a type.
#[derive(Clone, Debug, Default)]
struct Place {
    name: String,
    pointer: String,
    /// Its name in the type around it.
    field: String,
}

impl Timestamps {
    /// Those of values of this schema; of a feed, those of its records' values.
    pub(crate) fn of(schema: &Schema) -> Self {
        // A schema is always JSON.
        let described = serde_json::to_value(schema).unwrap_or_default();
        let mut search =
            Search { types: described.get("types"), within: Vec::new(), parts: 0, found: Vec::new() };
        match (feed::value_format(&described), described.get("format")) {
            (Some(value), _) => {
                search.enter(value, Place { pointer: "/value".to_owned(), ..Place::default() })
            }
            (None, Some(format)) => search.enter(format, Place::default()),
            (None, None) => {}
        }
        Self { fields: search.found }
    }

    /// The names of the fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| field.name.as_str())
    }

    /// The time stamps of a decoded value that was published at this time.
    pub(crate) fn read(&self, value: &Value, published_ns: u64) -> Vec<Timestamp<'_>> {
        let read = |field: &'_ Field| {
            let ns = field.form.read(value.pointer(&field.pointer)?)?;
            Some((ns, age_ns(ns, published_ns)))
        };
        let fields = self.fields.iter();
        let stamps = fields.filter_map(|field| read(field).map(|(ns, offset_ns)| (field, ns, offset_ns)));
        stamps.map(|(field, ns, offset_ns)| Timestamp { name: &field.name, ns, offset_ns }).collect()
    }
}

impl Timestamp<'_> {
    /// Its name and distance from the publish time, for people.
    pub(crate) fn text(&self) -> String {
        let sign = if self.offset_ns < 0 { '-' } else { '+' };
        let offset = format!("{sign}{}", span(self.offset_ns.unsigned_abs()));
        format!("{} {offset:>8}", printable(self.name))
    }
}

impl Form {
    /// The form of an integer field with this name, if that is the name of a time stamp.
    fn of_name(name: &str) -> Option<Self> {
        const US: i128 = 1_000;
        let is_one = ["ts", "time", "timestamp"].contains(&name)
            || name.starts_with("ts_")
            || ["_ts", "_time", "_timestamp", "_ns", "_us", "_ms"].iter().any(|end| name.ends_with(end));
        let unit_ns = match name {
            us if us.ends_with("_us") => US,
            ms if ms.ends_with("_ms") => US * US,
            _ => 1,
        };
        is_one.then_some(Self::Integer(unit_ns))
    }

    /// Nanoseconds since the Unix epoch, if plausible.
    fn read(self, value: &Value) -> Option<u64> {
        let integer =
            |value: &Value| value.as_u64().map(i128::from).or_else(|| value.as_i64().map(i128::from));
        let ns = match self {
            Self::Integer(unit_ns) => integer(value)? * unit_ns,
            Self::SystemTime => {
                let [secs, nanos] = SYSTEM_TIME.map(|(name, _)| value.get(name).and_then(integer));
                secs? * 1_000_000_000 + nanos?
            }
        };
        u64::try_from(ns).ok().filter(|_| PLAUSIBLE_NS.contains(&ns))
    }
}

impl<'s> Search<'s> {
    /// Searches a format. Lists, arrays and maps are left out: they may hold any number of values.
    fn enter(&mut self, format: &'s Value, place: Place) {
        self.parts += 1;
        if self.parts > PARTS_MAX || self.found.len() >= FIELDS_MAX {
            return;
        }
        match format {
            Value::String(leaf) if leaf == "u64" || leaf == "i64" => {
                let form = Form::of_name(&place.field);
                self.found.extend(form.map(|form| place.holds(form)));
            }
            Value::Object(format) => {
                if let Some(of) = format.get("option") {
                    self.enter(of, place);
                } else if let Some(Value::String(name)) = format.get("type") {
                    self.enter_type(name, place);
                } else if let Some(Value::Array(parts)) = format.get("tuple") {
                    self.enter_tuple(parts, &place);
                }
            }
            _ => {}
        }
    }

    fn enter_type(&mut self, name: &'s str, place: Place) {
        if self.within.len() >= DEPTH_MAX || self.within.contains(&name) {
            return;
        }
        self.within.push(name);
        let named = self.types.and_then(|types| types.get(name));
        if let Some(shape) = named.and_then(|named| named.get("struct")) {
            self.enter_shape(shape, place);
        } else if let Some(Value::Array(variants)) = named.and_then(|named| named.get("enum")) {
            for variant in variants {
                if let (Some(Value::String(name)), Some(shape)) = (variant.get("name"), variant.get("shape"))
                {
                    let field = String::new();
                    self.enter_shape(shape, Place { field, ..place.inside(name) });
                }
            }
        }
        self.within.pop();
    }

    fn enter_shape(&mut self, shape: &'s Value, place: Place) {
        if let Some(of) = shape.get("newtype") {
            self.enter(of, place);
        } else if let Some(Value::Array(parts)) = shape.get("tuple") {
            self.enter_tuple(parts, &place);
        } else if let Some(Value::Array(fields)) = shape.get("fields") {
            let fields: Vec<(&str, &Value)> = fields.iter().filter_map(feed::named_format).collect();
            if fields
                .iter()
                .map(|(name, format)| (*name, format.as_str().unwrap_or_default()))
                .eq(SYSTEM_TIME)
            {
                self.found.push(place.holds(Form::SystemTime));
                return;
            }
            fields.into_iter().for_each(|(name, format)| self.enter(format, place.inside(name)));
        }
    }

    fn enter_tuple(&mut self, parts: &'s [Value], place: &Place) {
        for (index, part) in parts.iter().enumerate() {
            let field = String::new();
            self.enter(part, Place { field, ..place.inside(&index.to_string()) });
        }
    }
}

impl Place {
    /// The part with this name.
    fn inside(&self, field: &str) -> Self {
        let dot = if self.name.is_empty() { "" } else { "." };
        let escaped = field.replace('~', "~0").replace('/', "~1");
        Self {
            name: format!("{}{dot}{field}", self.name),
            pointer: format!("{}/{escaped}", self.pointer),
            field: field.to_owned(),
        }
    }

    fn holds(self, form: Form) -> Field {
        let name = if self.name.is_empty() { "time".to_owned() } else { self.name };
        Field { name, pointer: self.pointer, form }
    }
}

/// Time stamps as an object of JSON, by their names.
pub(crate) fn as_object(stamps: &[Timestamp<'_>]) -> Map<String, Value> {
    // A time stamp is always JSON.
    stamps
        .iter()
        .map(|stamp| (stamp.name.to_owned(), serde_json::to_value(stamp).unwrap_or_default()))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use fabricast::{Decoded, Payload};
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    const NOW_NS: u64 = 1_764_000_000_000_000_000;

    #[derive(Serialize, Deserialize)]
    struct Quote {
        ts_event: u64,
        ts_recv: Option<i64>,
        price: f64,
        leg: Leg,
        seen: (u8, Wrapped),
        cause: Cause,
        at: SystemTime,
        ts_flags: u32,
        latency_ns: u64,
        lists: Vec<Leg>,
        next: Option<Box<Self>>,
    }

    #[derive(Serialize, Deserialize)]
    struct Leg {
        #[serde(rename = "a/b~c_time")]
        time: Nanos,
        sent_us: i64,
        sent_ms: u64,
        its: u64,
        ts: u64,
    }

    #[derive(Serialize, Deserialize)]
    struct Nanos(u64);

    #[derive(Serialize, Deserialize)]
    struct Wrapped {
        timestamp: u64,
    }

    #[derive(Serialize, Deserialize)]
    enum Cause {
        None,
        Order { order_ts: u64 },
        Trade(Wrapped, u64),
    }

    fn leg() -> Leg {
        Leg {
            time: Nanos(NOW_NS),
            sent_us: 1_764_000_000_000_001,
            sent_ms: 1_764_000_000_002,
            its: NOW_NS,
            ts: NOW_NS,
        }
    }

    fn quote() -> Quote {
        Quote {
            ts_event: NOW_NS - 312_400,
            ts_recv: Some((NOW_NS - 2_100) as i64),
            price: 1.5,
            leg: leg(),
            seen: (1, Wrapped { timestamp: NOW_NS }),
            cause: Cause::Order { order_ts: NOW_NS + 1 },
            at: SystemTime::UNIX_EPOCH + Duration::from_nanos(NOW_NS + 7),
            ts_flags: 1,
            latency_ns: 500,
            lists: vec![leg()],
            next: None,
        }
    }

    /// The time stamps of this value, published at [`NOW_NS`]: names and offsets.
    fn read<T: Payload<Borrowed = T>>(value: &T) -> Vec<(String, i64)> {
        let schema = T::schema().unwrap();
        let mut bytes = [0; 1024];
        let len = T::encode(value, &schema, &mut bytes).unwrap();
        let Decoded::Value(decoded) = schema.decode(&bytes[..len]).unwrap() else { panic!("no bytes") };
        let timestamps = Timestamps::of(&schema);
        let stamps = timestamps.read(&decoded, NOW_NS);
        stamps.iter().map(|stamp| (stamp.name.to_owned(), stamp.offset_ns)).collect()
    }

    #[test]
    fn fields_with_the_names_and_types_of_time_stamps_are_found() {
        let expected = [
            ("ts_event", -312_400),
            ("ts_recv", -2_100),
            ("leg.a/b~c_time", 0),
            ("leg.sent_us", 1_000),
            ("leg.sent_ms", 2_000_000),
            ("leg.ts", 0),
            ("seen.1.timestamp", 0),
            ("cause.Order.order_ts", 1),
            ("at", 7),
        ];
        assert_eq!(read(&quote()), expected.map(|(name, offset_ns)| (name.to_owned(), offset_ns)));
        let names: Vec<String> =
            Timestamps::of(&Quote::schema().unwrap()).names().map(str::to_owned).collect();
        let by_name = ["cause.Trade.0.timestamp", "latency_ns"];
        assert!(by_name.iter().all(|name| names.iter().any(|found| found == name)), "{names:?}");
        assert_eq!(names.len(), expected.len() + by_name.len(), "{names:?}");
        assert_eq!(read(&SystemTime::UNIX_EPOCH), []);
        assert_eq!(read(&(SystemTime::UNIX_EPOCH + Duration::from_nanos(NOW_NS))), [("time".to_owned(), 0)]);
    }

    #[test]
    fn what_is_not_of_this_century_is_not_a_time_stamp() {
        let year_2000_ns = 946_684_800_000_000_000;
        let year_2100_ns = 4_102_444_800_000_000_000;
        let plausible = |ts: u64| read(&Wrapped { timestamp: ts }).len() == 1;
        assert!(plausible(year_2000_ns) && plausible(year_2100_ns - 1));
        for ts in [0, 1, 1_764_000_000, year_2000_ns - 1, year_2100_ns, u64::MAX] {
            assert!(!plausible(ts), "{ts}");
        }
        let leg = |us, ms| Leg { sent_us: us, sent_ms: ms, time: Nanos(0), its: 0, ts: 0 };
        for (us, ms) in [(i64::MIN, 0), (i64::MAX, u64::MAX), (-1, u64::MAX / 1_000_000)] {
            assert_eq!(read(&leg(us, ms)), []);
        }
        let timestamps = Timestamps::of(&Quote::schema().unwrap());
        let hostile = [
            json!(null),
            json!([]),
            json!({ "ts_event": "x", "at": { "secs_since_epoch": u64::MAX, "nanos_since_epoch": u32::MAX } }),
            json!({ "ts_event": 1.5, "at": { "secs_since_epoch": 1_764_000_000 } }),
        ];
        hostile.iter().for_each(|value| assert_eq!(timestamps.read(value, NOW_NS), []));
        // The publish time is the publisher's, too.
        for (published_ns, offset_ns) in [(0, NOW_NS as i64), (u64::MAX, i64::MIN)] {
            assert_eq!(timestamps.read(&json!({ "ts_event": NOW_NS }), published_ns)[0].offset_ns, offset_ns);
        }
    }

    /// A struct of each number holds three of the next one: 3^40 time stamps.
    #[test]
    fn search_of_a_hostile_schema_ends() {
        for (format, is_found) in [("u64", true), ("u32", false)] {
            let field = |name: &str, format: Value| json!({ "name": name, "format": format });
            let level = |level: u32| {
                let inside = json!({ "type": format!("T{}", 10 + level + 1) });
                let parts = ["a", "b", "c"].map(|name| field(name, inside.clone()));
                let fields = [parts.to_vec(), vec![field("ts", json!(format))]].concat();
                (format!("T{}", 10 + level), json!({ "struct": { "fields": fields } }))
            };
            let mut types: Map<String, Value> = (0..40).map(level).collect();
            types.insert("T50".to_owned(), json!({ "struct": { "fields": [field("ts", json!(format))] } }));
            let schema =
                json!({ "type": "T10", "encoding": "bincode", "format": { "type": "T10" }, "types": types });
            let schema = Schema::from_json(&serde_json::to_vec(&schema).unwrap()).unwrap();
            let names = Timestamps::of(&schema).names().count();
            assert_eq!(names, if is_found { FIELDS_MAX } else { 0 });
        }
    }

    #[test]
    fn offsets_have_a_sign_and_names_no_hidden_characters() {
        let text = |name, offset_ns| Timestamp { name, ns: NOW_NS, offset_ns }.text();
        assert_eq!(text("ts_event", -312_400), "ts_event -312.4us");
        assert_eq!(text("ts", 0), "ts     +0ns");
        assert_eq!(text("t\u{202e}_ts", 1_500_000_000), "t\\u202e_ts    +1.5s");
        assert!(text("ts", i64::MIN).starts_with("ts -"));
    }
}
