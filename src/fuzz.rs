//! Fuzz targets: what reads bytes of others, as functions of arbitrary bytes. `tools/fuzz` runs them under cargo-fuzz, which compiles
//! this with `--cfg fuzzing`; the tests run the same functions over the corpus and over seeded mutations of it.
//!
//! A target panics if a rule is broken: nothing panics by itself, reads beyond its bytes, or takes bytes for a value that no check
//! has passed. cargo-fuzz bounds time and memory.

mod files;
mod input;
mod keyrings;
mod logs;
mod messages;
mod notices;
mod payloads;
mod regions;
mod states;
mod tables;
mod wires;

#[cfg(test)]
mod tests;

/// A fuzz target.
#[expect(missing_debug_implementations, reason = "a name and a function")]
pub struct Target {
    /// Its name, which is that of its corpus.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(&[u8]),
    /// Inputs that real encoders have made, the first of its corpus.
    #[cfg(test)]
    seeds: fn() -> Vec<Vec<u8>>,
}

/// Lists targets: name, function, and function of its seeds.
macro_rules! targets {
    ($($name:literal => $run:path, $seeds:path;)*) => {
        &[$(Target {
            name: $name,
            run: $run,
            #[cfg(test)]
            seeds: $seeds,
        },)*]
    };
}

/// All targets.
pub const TARGETS: &[Target] = targets! {
    "control" => messages::decode, messages::seeds::decode;
    "sessions" => messages::sessions, messages::seeds::sessions;
    "keyrings" => keyrings::run, keyrings::seeds;
    "notices" => notices::run, notices::seeds;
    "files" => files::run, files::seeds;
    "headers" => regions::headers, regions::seeds;
    "states" => states::run, states::seeds;
    "logs" => logs::run, logs::seeds;
    "tables" => tables::run, tables::seeds;
    "schemas" => payloads::schemas, payloads::seeds::schemas;
    "values" => payloads::values, payloads::seeds::values;
    "wires" => wires::run, wires::seeds;
};

/// Runs the target of this name.
///
/// # Panics
///
/// If there is none, and if the target finds an error.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target of this name").run)(bytes);
}
