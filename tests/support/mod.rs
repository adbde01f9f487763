//! Shared by the tests that check nodes from outside: processes that play a role, waiting, values that verify
//! themselves, and control messages written by hand.

#![allow(dead_code, reason = "each of the test programs uses a part of this")]

#[path = "../../src/testkit/attempts.rs"]
pub(crate) mod attempts;
pub(crate) mod cgroup;
pub(crate) mod feed;
pub(crate) mod files;
pub(crate) mod follower;
#[path = "../../src/testkit/long.rs"]
pub(crate) mod long;
pub(crate) mod pattern;
pub(crate) mod peer;
#[path = "../../src/testkit/random.rs"]
pub(crate) mod random;
pub(crate) mod raw;
pub(crate) mod rdma;
pub(crate) mod role;
#[path = "../../src/testkit/skip.rs"]
pub(crate) mod skip;
pub(crate) mod slow;
pub(crate) mod time;
pub(crate) mod warm;
