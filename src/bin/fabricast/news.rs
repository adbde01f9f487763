//! What happens to publishers that are followed.

use std::time::Duration;

use fabricast::{Epoch, Kind, Schema, Target};
use serde::Serialize;

use super::output::shown;

/// What happens to a publisher, or to one of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It is gone, has ended the topic, or does not admit this command any more.
    Lost { why: String, is_refused: bool },
    /// A publisher of the same epoch, or the first one, was found.
    Found,
    /// A publisher of another epoch was found.
    Restarted,
    /// It shows no sign of life, and is attached still.
    Hung,
    /// It does again.
    Recovered,
    /// No value has come for this long.
    Overdue(Duration),
    /// Something has happened to one of several lines.
    Line(LineNews),
    /// The next values are of another type: another line brings them.
    Retyped,
}

/// What happens to a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineNews {
    pub(crate) target: Target,
    /// The epoch of its publisher, or of the last one.
    pub(crate) epoch: Option<Epoch>,
    pub(crate) event: LineEvent,
}

/// What may happen to a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LineEvent {
    /// Its publisher is gone, or has ended the topic: why.
    Lost(&'static str),
    /// A publisher was found, the first one or another.
    Found { is_first: bool },
    /// Its publisher has another epoch than the others, which is this one.
    OutOfStep { expected: Epoch },
    /// Its topic is of this kind, and of the same epoch as those of the others, which are of another one.
    OtherKind { kind: Kind, expected: Kind },
    /// Its values are of another type than those of another line: both types. They are received.
    OtherType(String),
    /// Its publisher shows no sign of life, and is attached still.
    Hung,
    /// It does again.
    Recovered,
}

/// News as a line of JSON.
#[derive(Debug, Serialize)]
pub(crate) struct NewsLine<'a> {
    pub(crate) topic: &'a str,
    pub(crate) event: &'static str,
    pub(crate) epoch: Option<String>,
    /// Of one of several lines only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<String>,
    /// Of values that are overdue only: for how long none has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waited_ns: Option<u64>,
    /// Of publishers that are lost because they do not admit the command any more only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'static str>,
}

/// What it means that a publisher hangs, and that it does not any more.
const HUNG: &str = "the publisher is hung: it shows no sign of life";
const RECOVERED: &str = "the publisher runs again";

impl News {
    /// Whether the publisher is the same as before: it hangs, for example, or does not any more.
    pub(crate) fn is_of_same(&self) -> bool {
        use LineEvent::{Hung, OtherType, Recovered};
        match self {
            Self::Hung | Self::Recovered | Self::Overdue(_) => true,
            Self::Line(news) => matches!(news.event, Hung | Recovered | OtherType(_)),
            _ => false,
        }
    }

    /// For how long no value has come, if that is the news, nanoseconds.
    pub(crate) fn waited_ns(&self) -> Option<u64> {
        match self {
            Self::Overdue(waited) => u64::try_from(waited.as_nanos()).ok(),
            _ => None,
        }
    }

    /// Why a publisher is lost, if it is not gone.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        matches!(self, Self::Lost { is_refused: true, .. }).then_some("refused")
    }

    /// The name of the event, and what happened, for people. A first publisher is called found.
    pub(crate) fn described(&self, is_first: bool) -> (&'static str, String) {
        match self {
            Self::Lost { why, is_refused: true } => {
                ("lost", format!("{why}; trying again, in case it is restored"))
            }
            Self::Lost { why, .. } => ("lost", format!("{why}; waiting for a publisher")),
            Self::Found if is_first => ("resumed", "its publisher was found".to_owned()),
            Self::Found => ("resumed", "the publisher is back and continues".to_owned()),
            Self::Restarted => ("restarted", "the publisher has restarted: sequences begin anew".to_owned()),
            Self::Hung => ("hung", format!("{HUNG}; waiting for it")),
            Self::Recovered => ("recovered", RECOVERED.to_owned()),
            Self::Overdue(waited) => ("overdue", format!("no value has come for {}", shown(*waited))),
            Self::Line(news) => news.described(),
            Self::Retyped => ("retyped", "values are of another type".to_owned()),
        }
    }
}

/// What is wrong with a line of this kind.
pub(crate) fn other_kind(kind: Kind, expected: Kind) -> String {
    format!("it is a {kind}, other lines are a {expected}: it is left out; publish all with the same kind")
}

/// What is wrong with a line of another epoch than this.
pub(crate) fn other_epoch(epoch: Option<Epoch>, expected: Epoch) -> String {
    let epoch = epoch.map_or_else(|| "another epoch".to_owned(), |epoch| format!("epoch {epoch}"));
    format!(
        "its publisher has {epoch}, other lines have {expected}: it is left out; publish all with the same epoch"
    )
}

/// The types of a line and of this other one, if they differ.
pub(crate) fn other_type(schema: &Schema, (other, expected): (&Target, &Schema)) -> Option<String> {
    if schema == expected {
        return None;
    }
    let (found, wanted) = (schema.type_name(), expected.type_name());
    let sentence = match (schema.encoding(), expected.encoding()) {
        _ if found != wanted => format!("its values are {found}, those of {other} are {wanted}"),
        (one, another) if one != another => {
            format!("its values are {found} ({one}), those of {other} are {wanted} ({another})")
        }
        _ => format!("its values are another {found} than those of {other}: see `fabricast info`"),
    };
    Some(sentence)
}

impl LineNews {
    fn described(&self) -> (&'static str, String) {
        match &self.event {
            LineEvent::Lost(why) => ("lost", (*why).to_owned()),
            LineEvent::Found { is_first: true } => ("resumed", "its publisher was found".to_owned()),
            LineEvent::Found { is_first: false } => ("resumed", "the publisher is back".to_owned()),
            LineEvent::OutOfStep { expected } => ("out of step", other_epoch(self.epoch, *expected)),
            LineEvent::OtherKind { kind, expected } => ("other kind", other_kind(*kind, *expected)),
            LineEvent::OtherType(types) => (
                "other type",
                format!("{types}; values of both are received: publish all with the same type"),
            ),
            LineEvent::Hung => ("hung", HUNG.to_owned()),
            LineEvent::Recovered => ("recovered", RECOVERED.to_owned()),
        }
    }
}
