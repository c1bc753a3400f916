//! Conversations that are run again over a log: neither a provider nor a tool is asked again.

mod hosts;
mod tau_bench;
