//! Control messages.
