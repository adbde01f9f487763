//! Printing errors with their causes, each once.

use std::error::Error;
use std::fmt;

/// An error and its causes, on one line: `cannot subscribe to shm:q/t: no node listens at shm:q`.
///
/// An error of this library does not include its [source](Error::source) in its own message; wrap it in this to print it alone.
/// [`fabricast::Error`](crate::Error) prints its causes where `main` returns it.
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
#[expect(clippy::exhaustive_structs, reason = "it holds just an error")]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'a));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = self.0.to_string();
        out.write_str(&last)?;
        for cause in std::iter::successors(self.0.source(), |cause| (*cause).source()) {
            let sentence = cause.to_string();
            // The message may already contain the operating system's error.
            if !last.contains(&sentence) {
                write!(out, ": {sentence}")?;
                last = sentence;
            }
        }
        Ok(())
    }
}
