//! Drives an agent on foldlog: prompts, providers, and the loop between a model and its tools.
//!
//! | module | holds |
//! |---|---|
//! | [`prompt`] | what a model is told, which tools it may call, and which output it has to give |
//! | [`provider`] | what a provider of a model is to the loop: requests, answers, failures |
//! | [`pairing`] | the rules that providers have for messages, and how a list that breaks them is repaired |
//! | [`adapter_state`] | what an adapter needs to resume a session that its provider keeps |
//! | [`inner_loop`] | the loop between a provider and the tools |
//! | [`adapter`] | evaluates prompts with a provider, and resumes evaluations |
//! | [`checkpoint`] | where the work on a request stands, in a file |
//! | [`main_loop`] | requests, each with a session, a prompt and a checkpoint |
//! | [`shortening`] | what a provider is sent in place of a part of a long conversation |
//! | [`budget`] | how many tokens an evaluation may use |
//! | [`deadline`] | until when an evaluation goes on |
//! | [`events`] | what of an evaluation is recorded for people |
//! | [`transcript_state`] | the messages as they would be sent |
//! | [`error`] | what goes wrong, and what to do then |
//!
//! # Invariants
//!
//! 1. The crate uses the public API of `foldlog` alone; of `foldlog-codec` it takes how breakages are listed, for its tests.
//! 2. It starts no async runtime.
//! 3. Nothing is sent to a provider before the log says so, and no tool of an answer runs before the answer is recorded.

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
pub mod pairing;
pub mod prompt;
pub mod provider;
#[doc(hidden)]
pub mod sabotage;
pub mod shortening;
pub mod transcript_state;

#[cfg(feature = "async")]
pub use adapter::{AsyncEvaluateOptions, AsyncOnDelta, AsyncOnTurn};
pub use adapter::{
    EvaluateOptions, PromptAcceptance, PromptResponse, ProviderAdapter, ResumeFrom, UserMessage,
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
