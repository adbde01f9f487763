//! Makes a schema from a Rust type, by observing what its `Deserialize` reads.
//!
//! A pass gives the type a deserializer (`probe`) that hands out sample values (`leaves`) and records the requests. One pass
//! shows one variant of each enum that it meets, so passes repeat until each variant has been seen: each goes into variants that
//! no earlier one has. A type inside itself is recorded by name and not entered again; where a value of it is needed all the
//! same, options and sequences are empty and an enum takes the variant of its shortest value so far.

mod leaves;
mod probe;
mod tracer;

use serde::de::DeserializeOwned;

use self::probe::{Probe, TraceError};
use self::tracer::{STUCK, Tracer};
pub(super) use self::tracer::{Traced, short_name};

/// Passes for one type; more than the variants that a schema's length allows.
const PASSES_MAX: usize = 16 * 1024;

/// Passes for each variant, to vary values, and for what is in no enum.
const VARIATIONS: usize = 8;
const VARIATIONS_MIN: usize = 32;
const VARIATIONS_MAX: usize = 1024;

/// Traces the type with sample values, these first. The error is the reason, as a sentence part.
pub(super) fn trace<T: DeserializeOwned>(named: &[String]) -> Result<Traced<T>, String> {
    Tracer::new(named).run::<T>()
}

impl Tracer {
    fn run<T: DeserializeOwned>(mut self) -> Result<Traced<T>, String> {
        let mut samples = Vec::new();
        let mut root = None;
        for _ in 0..PASSES_MAX {
            self.begin_pass();
            let before = self.progress;
            let outcome = T::deserialize(Probe::new(&mut self, &mut root));
            match outcome {
                Ok(value) => samples.push(value),
                Err(_) if self.blocked => self.give_up_variant(before)?,
                Err(TraceError::Refused(reason)) => {
                    self.leaves.advance(reason)?;
                    continue;
                }
                Err(TraceError::Untraceable(reason)) => return Err(reason),
            }
            if self.blocked {
                continue;
            }
            match root {
                Some(format) if !self.leads_on(&format) => {
                    self.vary(&mut samples);
                    return self.finish(format, samples);
                }
                _ if self.progress == before => return Err(STUCK.into()),
                _ => self.unblock(),
            }
        }
        Err(STUCK.into())
    }

    /// Makes more samples of a fully known type. Skips values that the type rejects.
    fn vary<T: DeserializeOwned>(&mut self, samples: &mut Vec<T>) {
        self.leaves.begin_variation();
        let variants: usize = self.types.values().map(|state| state.variants.len()).sum();
        let passes = variants.saturating_mul(VARIATIONS).clamp(VARIATIONS_MIN, VARIATIONS_MAX);
        let mut left = passes;
        while left > 0 && !self.leaves.is_done() {
            self.begin_pass();
            let outcome = T::deserialize(Probe::new(self, &mut None));
            // A pass that bans an alternative is repeated: there are only so many.
            left -= usize::from(outcome.is_ok() || !self.leaves.ban());
            samples.extend(outcome.ok());
        }
    }
}

#[cfg(test)]
mod tests;
