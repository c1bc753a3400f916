//! The costs of a session.

use foldlog::conversation::TokenUsage;
use serde::{Deserialize, Serialize};

/// Counts the costs of a session so far, including abandoned records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceUsageState {
    /// Tokens of all requests.
    pub tokens: TokenUsage,
    /// Cost in millionths of the host's currency, as far as providers reported it.
    pub cost_micros: u64,
    /// Number of requests that were sent.
    pub requests: u64,
    /// Number of requests that failed.
    pub failed_requests: u64,
    /// Number of tool runs that ended.
    pub tool_runs: u64,
    /// Number of those that did not succeed.
    pub failed_tool_runs: u64,
    /// Run time of tools, in microseconds.
    pub tool_time_us: u64,
    /// Time between the first record and the last, in microseconds.
    pub elapsed_us: u64,
    /// Number of records.
    pub records: u64,
    /// Length of the records' contents, in bytes, without the objects that they name.
    pub log_bytes: u64,
}
