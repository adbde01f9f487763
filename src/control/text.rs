//! Bounded, printable text in messages.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Text of at most `LEN_MAX` bytes without control characters, safe to print on a
/// terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Text<const LEN_MAX: usize>(Box<str>);

/// An error of an unsuitable text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TextError {
    /// It exceeds the bound.
    #[error("a text of {len} bytes exceeds the limit of {max}")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// It contains characters that control a terminal.
    #[error("a text with control characters")]
    ControlCharacters,
}

impl<const LEN_MAX: usize> Text<LEN_MAX> {
    /// Truncates this string between characters, and replaces control characters by spaces.
    pub(crate) fn cut(text: &str) -> Self {
        let mut kept = String::with_capacity(text.len().min(LEN_MAX));
        for character in text.chars() {
            if kept.len() + character.len_utf8() > LEN_MAX {
                break;
            }
            // A space is never longer than the character it replaces.
            kept.push(if character.is_control() { ' ' } else { character });
        }
        Self(kept.into())
    }

    /// Returns the text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const LEN_MAX: usize> TryFrom<String> for Text<LEN_MAX> {
    type Error = TextError;

    fn try_from(text: String) -> Result<Self, TextError> {
        if text.len() > LEN_MAX {
            Err(TextError::TooLong { len: text.len(), max: LEN_MAX })
        } else if text.chars().any(char::is_control) {
            Err(TextError::ControlCharacters)
        } else {
            Ok(Self(text.into()))
        }
    }
}

impl<const LEN_MAX: usize> From<Text<LEN_MAX>> for String {
    fn from(text: Text<LEN_MAX>) -> Self {
        text.0.into()
    }
}

impl<const LEN_MAX: usize> fmt::Display for Text<LEN_MAX> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_text_is_text() {
        for given in ["", "plain", "tab\there", "\u{1b}[2J", "äöüäöü", "\u{80}\u{80}\u{80}\u{80}\u{80}"]
        {
            let cut = Text::<8>::cut(given);
            assert_eq!(Text::<8>::try_from(cut.as_str().to_owned()), Ok(cut), "{given:?}");
        }
        assert_eq!(Text::<5>::cut("äöü").as_str(), "äö");
        assert_eq!(Text::<5>::cut("a\nb").as_str(), "a b");
    }

    #[test]
    fn text_from_outside_is_checked() {
        let too_long = Text::<3>::try_from("four".to_owned());
        assert_eq!(too_long, Err(TextError::TooLong { len: 4, max: 3 }));
        let escape = Text::<9>::try_from("\u{1b}[2J".to_owned());
        assert_eq!(escape, Err(TextError::ControlCharacters));
    }
}
