//! Hosts with conversations that are run again over their logs.

mod crashed;

/// Returns how many hosts are replayed, which an environment variable can ask for.
fn seeds(default: u64) -> u64 {
    std::env::var("FOLDLOG_REPLAYS").ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}
