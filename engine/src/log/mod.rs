//! The log: segment files, and the only place that opens them.

pub mod storage;
