//! The same-host provider.
