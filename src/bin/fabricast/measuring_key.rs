//! The key of one measurement.

use std::fmt;
use std::process::Command;
use std::sync::OnceLock;

use fabricast::Keyring;
use zeroize::Zeroizing;

use super::failure::{Exit, Failure};

/// The environment variable that hands the key to the processes started for the measurement: only this user can read it there.
const VARIABLE: &str = "FABRICAST_MEASURING_KEY";

/// A key that only the processes of one measurement have, if there is one: the line of a keyring.
#[derive(Default)]
pub(crate) struct MeasuringKey(OnceLock<Zeroizing<String>>);

impl MeasuringKey {
    /// Makes the key, unless there is one.
    pub(crate) fn make(&self) -> Result<(), Failure> {
        if self.0.get().is_none() {
            let secret = Keyring::new_secret().map(Zeroizing::new);
            let secret =
                secret.map_err(|error| Failure::new(Exit::Local, format!("no random numbers: {error}")))?;
            self.0.get_or_init(|| Zeroizing::new(format!("measuring read,publish * {}", *secret)));
        }
        Ok(())
    }

    /// Takes over the key of the measurement that started this process.
    pub(crate) fn inherit(&self) {
        if let Ok(line) = std::env::var(VARIABLE) {
            self.0.get_or_init(|| Zeroizing::new(line));
        }
    }

    /// Hands the key to a process of the measurement.
    pub(crate) fn share(&self, command: &mut Command) {
        if let Some(line) = self.0.get() {
            command.env(VARIABLE, line.as_str());
        }
    }

    /// Returns a keyring with the key.
    pub(crate) fn keyring(&self) -> Option<Result<Keyring, Failure>> {
        let line = self.0.get()?;
        Some(Keyring::from_text(line).map_err(|error| Failure::of(Exit::Local, &error)))
    }
}

impl fmt::Debug for MeasuringKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MeasuringKey")
    }
}
