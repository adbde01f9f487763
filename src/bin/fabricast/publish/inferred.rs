//! JSON values as values of the type that was inferred for the topic of this process, for a table, whose entries serde encodes.

use std::fmt;
use std::sync::OnceLock;

use fabricast::Schema;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, SerializeStruct, Serializer};
use serde_json::{Map, Number, Value};

/// A value of [`TYPE`]. Schemas name the type as it is named here.
#[derive(Debug)]
pub(super) struct Json(Value);

/// The type of the values of this process's only topic.
static TYPE: OnceLock<Type> = OnceLock::new();

/// A type as serde needs it, with names that last as long as the process.
#[derive(Debug)]
enum Type {
    Bool,
    I64,
    U64,
    F64,
    Text,
    Optional(Box<Self>),
    List(Box<Self>),
    Object(Object),
}

#[derive(Debug)]
struct Object {
    name: &'static str,
    names: &'static [&'static str],
    types: Vec<Type>,
}

/// A value of a type.
#[derive(Debug)]
struct Typed<'a>(&'a Type, &'a Value);

impl Json {
    /// Sets the type of all values, once per process. `schema` describes an inferred type.
    pub(super) fn set_type(schema: &Schema) -> Result<(), String> {
        let described: Value =
            serde_json::from_slice(&schema.to_json()).map_err(|error| error.to_string())?;
        let parts = described.get("format").zip(described.get("types"));
        let inferred = parts.and_then(|(format, types)| Type::of(format, types));
        let inferred = inferred.ok_or_else(|| format!("{} is not an inferred type", schema.type_name()))?;
        TYPE.set(inferred).map_err(|_| "a process has one topic".to_owned())
    }
}

impl Type {
    /// The type of this format in a schema with these named types.
    fn of(format: &Value, types: &Value) -> Option<Self> {
        let boxed = |of: &Value| Self::of(of, types).map(Box::new);
        Some(match (format.as_str(), format.get("option"), format.get("seq")) {
            (Some("bool"), ..) => Self::Bool,
            (Some("i64"), ..) => Self::I64,
            (Some("u64"), ..) => Self::U64,
            (Some("f64"), ..) => Self::F64,
            (Some("string"), ..) => Self::Text,
            (_, Some(of), _) => Self::Optional(boxed(of)?),
            (_, _, Some(of)) => Self::List(boxed(of)?),
            _ => Self::Object(Object::of(format.get("type")?.as_str()?, types)?),
        })
    }
}

impl Object {
    fn of(name: &str, types: &Value) -> Option<Self> {
        let fields = types.get(name)?.pointer("/struct/fields")?.as_array()?;
        let names = fields.iter().map(|field| Some(lasting(field.get("name")?.as_str()?)));
        let names: Vec<&'static str> = names.collect::<Option<_>>()?;
        let types = fields.iter().map(|field| Type::of(field.get("format")?, types));
        Some(Self { name: lasting(name), names: names.leak(), types: types.collect::<Option<_>>()? })
    }
}

/// A copy that lasts as long as the process.
fn lasting(text: &str) -> &'static str {
    text.to_owned().leak()
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = TYPE.get().ok_or_else(|| S::Error::custom("the type is not known yet"))?;
        Typed(kind, &self.0).serialize(serializer)
    }
}

impl Serialize for Typed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let differs = || S::Error::custom("a value is not of the topic's type");
        match (self.0, self.1) {
            (Type::Bool, Value::Bool(value)) => serializer.serialize_bool(*value),
            (Type::I64, Value::Number(number)) => {
                serializer.serialize_i64(number.as_i64().ok_or_else(differs)?)
            }
            (Type::U64, Value::Number(number)) => {
                serializer.serialize_u64(number.as_u64().ok_or_else(differs)?)
            }
            (Type::F64, Value::Number(number)) => {
                serializer.serialize_f64(number.as_f64().ok_or_else(differs)?)
            }
            (Type::Text, Value::String(text)) => serializer.serialize_str(text),
            (Type::Optional(_), Value::Null) => serializer.serialize_none(),
            (Type::Optional(of), value) => serializer.serialize_some(&Typed(of, value)),
            (Type::List(of), Value::Array(values)) => {
                serializer.collect_seq(values.iter().map(|value| Typed(of, value)))
            }
            (Type::Object(object), Value::Object(fields)) => {
                let mut parts = serializer.serialize_struct(object.name, object.names.len())?;
                for (name, of) in object.names.iter().zip(&object.types) {
                    parts.serialize_field(name, &Typed(of, fields.get(*name).ok_or_else(differs)?))?;
                }
                parts.end()
            }
            _ => Err(differs()),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = TYPE.get().ok_or_else(|| D::Error::custom("the type is not known yet"))?;
        kind.deserialize(deserializer).map(Self)
    }
}

impl<'de> DeserializeSeed<'de> for &Type {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Type::Bool => deserializer.deserialize_bool(self),
            Type::I64 => deserializer.deserialize_i64(self),
            Type::U64 => deserializer.deserialize_u64(self),
            Type::F64 => deserializer.deserialize_f64(self),
            Type::Text => deserializer.deserialize_string(self),
            Type::Optional(_) => deserializer.deserialize_option(self),
            Type::List(_) => deserializer.deserialize_seq(self),
            Type::Object(object) => deserializer.deserialize_struct(object.name, object.names, self),
        }
    }
}

impl<'de> Visitor<'de> for &Type {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value of the inferred type")
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("JSON has finite numbers only"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Type::Optional(of) => of.deserialize(deserializer),
            _ => Err(D::Error::custom("an unexpected option")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Value, A::Error> {
        match self {
            Type::List(of) => {
                let mut values = Vec::new();
                while let Some(value) = parts.next_element_seed(&**of)? {
                    values.push(value);
                }
                Ok(values.into())
            }
            Type::Object(object) => {
                let mut fields = Map::new();
                for (name, of) in object.names.iter().zip(&object.types) {
                    let value = parts.next_element_seed(of)?;
                    let value = value.ok_or_else(|| A::Error::missing_field(name))?;
                    fields.insert((*name).to_owned(), value);
                }
                Ok(fields.into())
            }
            _ => Err(A::Error::custom("an unexpected sequence")),
        }
    }
}
