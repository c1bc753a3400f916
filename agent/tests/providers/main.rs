//! Real providers over loopback. Servers that speak the protocols of OpenAI and Anthropic answer
//! like the real ones, misbehave on request, and refuse every history that the real ones refuse.

// The modules below are all tests, or called by nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(all(feature = "openai", feature = "anthropic"))]

mod answers;
mod asking;
mod failures;
mod histories;
mod loops;
#[path = "../rules/mod.rs"]
mod rules;
mod secrets;
mod server;
mod shortening;
#[path = "../story/mod.rs"]
mod story;
mod waiting;
