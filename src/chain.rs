//! How errors are printed: with their causes, each once.

use std::error::Error;
use std::fmt;

/// An error and its causes, on one line: `cannot subscribe to shm:q/t: no node listens at shm:q`.
///
/// An error of this library does not repeat its [source](Error::source) in its own sentence, so that a program that prints one by
/// itself prints it in this. [`fabricast::Error`](crate::Error) prints itself so where `main` returns it.
///
/// ```
/// use fabricast::{ErrorChain, Node};
/// # fn main() -> Result<(), fabricast::Error> {
/// # let dir = tempfile::tempdir().expect("a directory");
/// let node = Node::builder().runtime_dir(dir.path()).open()?;
/// let error = node.state_subscriber::<u64>("shm:nobody/t").open().unwrap_err();
/// assert_eq!(error.to_string(), "cannot subscribe to shm:nobody/t");
/// assert!(ErrorChain(&error).to_string().starts_with("cannot subscribe to shm:nobody/t: no node listens at shm:nobody"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "it is made of an error and nothing else")]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'a));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        out.write_str(&last)?;
        for cause in std::iter::successors(self.0.source(), |cause| (*cause).source()) {
            let sentence = cause.to_string();
            // An error of the operating system is part of the sentence that says what to do about it.
            if !last.contains(&sentence) {
                write!(out, ": {sentence}")?;
                last = sentence;
            }
        }
        Ok(())
    }
}
