//! Tests of the agent: prompts, the loop, conversations that resume, adapter state, providers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adapter_state;
mod bad_input;
mod children;
mod errors;
#[cfg(feature = "async")]
mod futures;
mod limits;
mod r#loop;
mod main_loop;
mod pairing;
mod prompt;
#[cfg(all(feature = "openai", feature = "anthropic"))]
mod providers;
mod rendering;
mod resuming;
mod rules;
mod scripted;
mod shortening;
mod specification;
mod story;
mod suspending;
