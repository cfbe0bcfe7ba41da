//! The library's reader-writer lock on loom's primitives; the tests are in its folder.

#![cfg(all(test, herdproof_loom))]

#[path = "../../crates/herdproof/src/bravo.rs"]
mod bravo;
