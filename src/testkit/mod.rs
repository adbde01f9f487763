//! Support for tests: a virtual clock, a fabric in memory with every order and delay from a seed, scripted faults, conformance
//! suites for every fabric, and repeated attempts at time bounds.
//!
//! Nothing here starts a thread or reads the host's clock. A failing test prints its seed, and `FABRICAST_SEED=n cargo test NAME`
//! repeats it.

#[cfg(feature = "verbs")]
pub(crate) mod attempts;
pub(crate) mod clock;
pub(crate) mod conformance;
pub(crate) mod fabric;
pub(crate) mod fault;
pub(crate) mod long;
pub(crate) mod random;
pub(crate) mod skip;
