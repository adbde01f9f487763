use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use zeroize::Zeroizing;

use super::key::{Key, KeyName, Keys, SECRET_LEN, Secret, Topics};
use crate::id::NodeName;
use crate::limits;

/// Characters of a secret in base64, one of padding included.
const SECRET_BASE64_LEN: usize = 44;

/// Why a keyring is unusable. No secret appears in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyringError {
    /// The file cannot be read.
    #[error("cannot read the keyring {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The path names something else than a regular file.
    #[error("the keyring {} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Group or others have rights on the file.
    #[error("the keyring {} has mode {mode:04o}, so that others have access to its secrets: chmod 600 it", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The file belongs to another user than this process's, or root.
    #[error("the keyring {} belongs to user {owner}, who can change it: it must belong to this user, or to root", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// The keyring is too long.
    #[error("the keyring is longer than {max} bytes", max = limits::KEYRING_LEN_MAX)]
    TooLong,
    /// The keyring is not text.
    #[error("the keyring is not UTF-8 text")]
    NotText,
    /// The keyring has no key.
    #[error("the keyring has no key: make one with `fabricast key`")]
    Empty,
    /// A line is malformed.
    #[error("line {line} of the keyring")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        source: KeyLineError,
    },
    /// What the file holds is not a keyring.
    #[error("{} cannot be used", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Why, as [`Keyring::from_text`](super::Keyring::from_text) says it.
        source: Box<Self>,
    },
}

/// What is wrong with a line of a keyring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyLineError {
    /// It has too few or too many fields.
    #[error("it has {found} fields instead of 4 or 5: name, rights, topics, secret, and optionally nodes")]
    Fields {
        /// The number of fields.
        found: usize,
    },
    /// The name is malformed.
    #[error("the name must have 1 to {max} letters, digits, '-', '_' and '.'", max = limits::KEY_NAME_LEN_MAX)]
    Name,
    /// The rights are malformed.
    #[error("the rights must be read, publish, or read,publish")]
    Rights,
    /// The topics are malformed.
    #[error("the topics must be * or prefixes such as md,orders/eu")]
    Topics,
    /// The secret is malformed.
    #[error(
        "the secret must be 32 bytes, as 64 hexadecimal digits or 44 characters of base64: make one with `fabricast key`"
    )]
    Secret,
    /// The nodes are malformed.
    #[error("the nodes must be names separated by commas")]
    Nodes,
    /// Another line has the same name.
    #[error("another key is called {name}, too")]
    SameName {
        /// The name.
        name: KeyName,
    },
    /// Another line has the same secret.
    #[error("the key {name} has the same secret: give each key its own")]
    SameSecret {
        /// The other key.
        name: KeyName,
    },
    /// There are too many keys.
    #[error("a keyring has at most {max} keys", max = limits::KEYS_MAX)]
    TooMany,
}

/// Parses the text of a keyring.
pub(super) fn keys_of(bytes: &[u8]) -> Result<Keys, KeyringError> {
    if bytes.len() > limits::KEYRING_LEN_MAX {
        return Err(KeyringError::TooLong);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| KeyringError::NotText)?;
    let mut keys = Keys::default();
    let mut names = BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = |source| KeyringError::Line { line: index + 1, source };
        let key = key_of(line).map_err(at)?;
        if keys.all.len() >= limits::KEYS_MAX {
            return Err(at(KeyLineError::TooMany));
        }
        if let Some(other) = keys.with(key.id) {
            return Err(at(KeyLineError::SameSecret { name: other.name.clone() }));
        }
        if !names.insert(key.name.as_str().to_owned()) {
            return Err(at(KeyLineError::SameName { name: key.name }));
        }
        keys.all.push(Arc::new(key));
    }
    if keys.all.is_empty() { Err(KeyringError::Empty) } else { Ok(keys) }
}

fn key_of(line: &str) -> Result<Key, KeyLineError> {
    let fields: Vec<&str> = line.split_whitespace().take(limits::KEY_FIELDS_MAX + 1).collect();
    let (name, rights, topics, secret, nodes) = match *fields.as_slice() {
        [name, rights, topics, secret] => (name, rights, topics, secret, None),
        [name, rights, topics, secret, nodes] => (name, rights, topics, secret, Some(nodes)),
        _ => return Err(KeyLineError::Fields { found: fields.len() }),
    };
    let name = KeyName::parse(name).ok_or(KeyLineError::Name)?;
    let (reads, publishes) = match rights {
        "read" => (true, false),
        "publish" => (false, true),
        "read,publish" | "publish,read" => (true, true),
        _ => return Err(KeyLineError::Rights),
    };
    let topics = match topics {
        "*" => Topics::All,
        prefixes => {
            let prefixes = prefixes.split(',').map(str::parse).collect::<Result<_, _>>();
            Topics::Below(prefixes.map_err(|_| KeyLineError::Topics)?)
        }
    };
    let secret = Secret::new(secret_of(secret).ok_or(KeyLineError::Secret)?);
    let nodes = nodes.map(|nodes| nodes.split(',').map(str::parse).collect::<Result<Vec<NodeName>, _>>());
    let nodes = nodes.transpose().map_err(|_| KeyLineError::Nodes)?;
    Ok(Key { name, id: secret.id(), secret, reads, publishes, topics, nodes })
}

/// Decodes hexadecimal digits, or base64.
fn secret_of(text: &str) -> Option<Zeroizing<[u8; SECRET_LEN]>> {
    if text.len() == SECRET_BASE64_LEN { of_base64(text) } else { of_digits(text) }
}

fn of_base64(text: &str) -> Option<Zeroizing<[u8; SECRET_LEN]>> {
    // As long as the characters may be without padding.
    let mut decoded = Zeroizing::new([0; SECRET_BASE64_LEN / 4 * 3]);
    let len = BASE64_STANDARD.decode_slice(text, decoded.as_mut_slice()).ok()?;
    let secret = decoded.first_chunk().filter(|_| len == SECRET_LEN)?;
    Some(Zeroizing::new(*secret))
}

fn of_digits(text: &str) -> Option<Zeroizing<[u8; SECRET_LEN]>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != SECRET_LEN {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut secret = Zeroizing::new([0; SECRET_LEN]);
    for (byte, [high, low]) in secret.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(secret)
}
