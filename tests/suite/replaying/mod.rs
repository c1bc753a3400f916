//! Replays of conversations over a log: neither a provider nor a tool is called again.

mod hosts;
mod tau_bench;
