//! Lines as entries of a table.

use std::path::Path;
use std::time::Duration;

use fabricast::{Epoch, FinishError, Node, Payload, PublishError, Sequence, TablePublisher, TopicName};
use serde::{Serialize, de::DeserializeOwned};

use super::super::failure::Failure;
use super::super::shape::JsonShape;
use super::inferred::Json;
use super::lines::{Entry, Form, KEY_LEN_MAX, TEXT_OVERHEAD};
use super::publisher::{FINISH, Publisher, Refused};

impl<V: Serialize + DeserializeOwned + Send + 'static> Publisher for TablePublisher<String, V> {
    fn publish(&mut self, entries: &[Entry]) -> Result<Vec<Refused>, PublishError> {
        let mut refused = Vec::new();
        for Entry { number, key, value } in entries {
            let mut refuse = |why| refused.push(Refused { number: *number, why });
            match <V as Payload>::decode(value) {
                Err(error) => refuse(error.to_string()),
                Ok(value) => match self.stage(key.as_str(), &value) {
                    Ok(()) => {}
                    Err(PublishError::Full { capacity }) => {
                        refuse(format!("the table has its {capacity} keys: raise --keys"));
                    }
                    Err(error @ PublishError::NodeFailed) => return Err(error),
                    Err(error) => refuse(error.to_string()),
                },
            }
        }
        self.commit();
        Ok(refused)
    }

    fn subscribers(&self) -> u64 {
        self.pull_subscribers() + self.push_subscribers()
    }

    fn finish(self: Box<Self>) -> Result<Sequence, FinishError> {
        Self::finish(*self, FINISH)
    }
}

/// A table to be opened.
#[derive(Clone, Copy)]
pub(super) struct Opening<'a> {
    pub(super) node: &'a Node,
    pub(super) topic: &'a TopicName,
    /// The keys that it may have.
    pub(super) capacity: usize,
    /// The longest value together with its key, bytes.
    pub(super) len_max: usize,
    /// Its epoch, unless a random one.
    pub(super) epoch: Option<Epoch>,
    /// The sequence before the first one.
    pub(super) after: Sequence,
    /// How long its values are valid, unless for ever.
    pub(super) lifespan: Option<Duration>,
    /// The file that it is kept in.
    pub(super) warm: Option<&'a Path>,
}

impl Opening<'_> {
    /// Opens it for values of the type of these lines.
    pub(super) fn publisher(self, form: &Form) -> Result<Box<dyn Publisher>, Failure> {
        match form {
            Form::Text | Form::Raw => self.publisher_of::<String>(),
            Form::Json(JsonShape::Bool, _) => self.publisher_of::<bool>(),
            Form::Json(JsonShape::I64, _) => self.publisher_of::<i64>(),
            Form::Json(JsonShape::U64, _) => self.publisher_of::<u64>(),
            Form::Json(JsonShape::F64, _) => self.publisher_of::<f64>(),
            Form::Json(JsonShape::Text, _) => self.publisher_of::<String>(),
            Form::Json(_, schema) => {
                Json::set_type(schema).map_err(Failure::usage)?;
                self.publisher_of::<Json>()
            }
        }
    }

    fn publisher_of<V: Serialize + DeserializeOwned + Send + 'static>(
        self,
    ) -> Result<Box<dyn Publisher>, Failure> {
        let Self { node, topic, capacity, len_max, epoch, after, lifespan, warm } = self;
        let key_len_max = (KEY_LEN_MAX + TEXT_OVERHEAD).min(len_max.saturating_sub(1));
        let mut builder = node.table_publisher::<String, V>(topic.as_str()).capacity(capacity).after(after);
        if let Some(epoch) = epoch {
            builder = builder.epoch(epoch);
        }
        if let Some(lifespan) = lifespan {
            builder = builder.lifespan(lifespan);
        }
        if let Some(path) = warm {
            builder = builder.warm(path);
        }
        Ok(Box::new(builder.payload_len_max(len_max).key_len_max(key_len_max).open()?))
    }
}
