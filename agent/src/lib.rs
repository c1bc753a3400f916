//! Runs agents on foldlog: prompts, providers, and the loop between a model and its tools.
//!
//! | module | contents |
//! |---|---|
//! | [`prompt`] | prompts: sections, tools, and the type of the output |
//! | [`provider`] | the interface to model providers: requests, answers, failures |
//! | [`pairing`] | the providers' rules for message lists, and the repair of lists that break them |
//! | [`adapter_state`] | the state with which an adapter resumes a session stored by its provider |
//! | [`inner_loop`] | the loop between a provider and the tools |
//! | [`adapter`] | evaluates prompts with a provider, and resumes evaluations |
//! | [`checkpoint`] | files that name the session of a request |
//! | [`main_loop`] | the loop over requests, each with a session, a prompt and a checkpoint |
//! | [`shortening`] | replaces parts of a long conversation for the provider |
//! | [`budget`] | limits on the tokens of an evaluation |
//! | [`deadline`] | limits on the time of an evaluation |
//! | [`events`] | events that describe an evaluation to people |
//! | [`transcript_state`] | the messages as they would be sent |
//! | [`error`] | the errors, each with a remedy |
//!
//! # Invariants
//!
//! 1. The crate uses only the public API of `foldlog`.
//! 2. It starts no async runtime.
//! 3. A request is recorded before it is sent to a provider. An answer is recorded before its tools
//!    run.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod adapter;
pub mod adapter_state;
pub mod budget;
pub mod checkpoint;
pub mod deadline;
pub mod error;
#[doc(hidden)]
pub mod evaluation;
pub mod events;
pub mod inner_loop;
mod json_size;
pub mod main_loop;
mod named;
pub mod pairing;
pub mod prompt;
pub mod provider;
pub mod shortening;
pub mod transcript_state;

pub use adapter::{
    EvaluateOptions, OnDelta, OnTurn, PromptAcceptance, PromptResponse, ProviderAdapter, ResumeFrom,
    UserMessage,
};
pub use budget::{Budget, BudgetLimit, UnknownUsagePolicy};
pub use checkpoint::{Checkpoint, CheckpointHandler, FileCheckpointHandler};
pub use deadline::Deadline;
pub use error::{Error, EvaluationPhase, Result, SuspendedCall};
pub use inner_loop::{InnerLoop, LoopLimits};
pub use main_loop::MainLoop;
pub use prompt::{
    MarkdownSection, Prompt, RenderedPrompt, SectionPath, SectionVisibility, VisibilityOverrides,
};
pub use shortening::{
    KeepLastTurns, ShortenOptions, ShortenReason, ShortenRequest, ShortenedRange, Shortener,
};
pub use transcript_state::TranscriptState;
