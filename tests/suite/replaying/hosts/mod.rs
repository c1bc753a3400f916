//! Replays of hosts with conversations over their logs.

mod crashed;

/// Returns the number of replayed hosts, which an environment variable can set.
fn seeds(default: u64) -> u64 {
    std::env::var("FOLDLOG_REPLAYS").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}
