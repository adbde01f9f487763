//! The provider for RDMA verbs: regions are registered with a device, and a peer's device reads or writes them
//! without this host's processors.
//!
//! [`sys`] is all there is of C: the only module that names the bindings, or holds unsafe code.

#![allow(dead_code, unused_imports, reason = "the provider that stands on this module is not there yet")]

mod sys;
