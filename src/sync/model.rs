//! Models: a protocol's threads, run by loom in every order, and with every value that their loads may return.
//!
//! loom knows the memory model of C11, with these gaps. It takes an access that is `SeqCst` for `AcqRel`; this crate has such fences
//! only, which it models. No load returns a value that is stored later in its thread's order of execution (load buffering). It keeps
//! the last seven stores to a word. Memory is words, all of one size, and a copy goes from the first to the last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable that has models run with their long bounds.
const LONG: &str = "FABRICAST_TEST_LONG";

/// How often loom may interrupt a thread that could go on, in one execution: in a run of a minute, and in a long one. `None` is as
/// often as it can.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Preemptions {
    pub(crate) quick: Option<usize>,
    pub(crate) long: Option<usize>,
}

/// Runs each execution of this model within the bound. What it does before `loom::explore` runs in one order.
pub(crate) fn check(preemptions: Preemptions, model: impl Fn() + Send + Sync + 'static) {
    let mut checker = loom::model::Builder::new();
    let is_long = std::env::var(LONG).is_ok_and(|value| value == "1");
    let bound = if is_long { preemptions.long } else { preemptions.quick };
    checker.preemption_bound = checker.preemption_bound.or(bound);
    checker.max_branches = 100_000;
    checker.expect_explicit_explore = true;
    // Not part of the model.
    let executions = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&executions);
    checker.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("{executions} executions with {:?} preemptions", checker.preemption_bound);
    assert!(executions > 1, "a model of one execution models nothing");
}
