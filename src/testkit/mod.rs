//! Support for tests: a virtual clock, a fabric in memory whose every order and delay follows from a seed, faults
//! by script, suites that say once what every fabric must do, and attempts at bounds in time.
//!
//! Nothing here starts a thread or looks at the host's clock. A failing test prints its seed, and
//! `FABRICAST_SEED=n cargo test NAME` runs that one seed again.

#[cfg(feature = "verbs")]
pub(crate) mod attempts;
pub(crate) mod clock;
pub(crate) mod conformance;
pub(crate) mod fabric;
pub(crate) mod fault;
pub(crate) mod long;
pub(crate) mod random;
pub(crate) mod skip;
