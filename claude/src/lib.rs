//! Drives the Claude Code program as a child process. It is an unofficial client: the program is installed by its user,
//! and no part of it is in here.
//!
//! A [`Client`] starts the program, says something to the model ([`query`](Client::query)), and takes the program's
//! messages ([`next_message`](Client::next_message)) up to the result of the turn. The program drives the model and its
//! own tools; what it asks of its host meanwhile is answered by [`Callbacks`].
//!
//! ```no_run
//! use std::sync::Arc;
//! use foldlog_claude::{ClaudeMessageBody, Client, ClientOptions, ClientError, NoCallbacks};
//!
//! # fn main() -> Result<(), ClientError> {
//! let client = Client::start(&ClientOptions::new("claude", "/tmp/work"), Arc::new(NoCallbacks))?;
//! client.query("What is 6 times 7?")?;
//! while let Some(message) = client.next_message(None)? {
//!     if let ClaudeMessageBody::Result(result) = &message.body {
//!         println!("{:?} {:?}", result.failure(), result.result);
//!         client.close()?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Wire
//!
//! One JSON object a line, both ways ([`read_stream`] says what else is skipped or refused). A *control request* asks the
//! other side, which answers with a *control response* of the same `request_id`.
//!
//! | from | frame | answer |
//! |---|---|---|
//! | host | `user`: a prompt | messages, up to a `result` |
//! | host | `control_request`: `initialize`, `interrupt`, `set_model`, `set_permission_mode` and others | `control_response` |
//! | program | `control_request`, `mcp_message`: JSON-RPC for a bridged server | the JSON-RPC answer; [`Callbacks::call_tool`] for `tools/call` |
//! | program | `control_request`, `hook_callback` | [`Callbacks::hook`] |
//! | program | `control_request`, `can_use_tool` | [`Callbacks::can_use_tool`] |
//! | program | `control_request` of another subtype | an error |
//! | program | `control_cancel_request` | none, and none to the request that it names |
//! | program | anything else | none: it is a [`ClaudeMessage`] |
//!
//! # Invariants
//!
//! 1. A callback never keeps the client from reading: while tools run, messages, interrupts and other callbacks go on.
//! 2. Each request of the program is answered once, or not at all if it was cancelled.
//! 3. A callback begins after the host has asked for the message after all those that came before the callback, unless
//!    the options say otherwise. So a host records an answer before a tool of it runs. A host that no longer asks for
//!    messages therefore keeps callbacks waiting.
//! 4. The program does not outlive its client, nor the process of its host, however that ends: it is in a
//!    [process group](foldlog::process) whose leader kills it then. What it starts in groups of their own may.
//! 5. The program gets no variable of the host that the options do not name, reads no settings and reaches no servers
//!    that they do not name.
//! 6. What the program writes is kept whole ([`ClaudeMessage::line`]), and never displayed raw.
//!
//! # What it does not do
//!
//! It keeps no log, guards no session against a second process that resumes it, and checks no arguments of tools.

mod adapter;
mod arguments;
mod bridge;
mod callbacks;
mod channel;
mod client;
mod error;
mod message;
mod options;
mod process;
mod result;
mod server;
mod stream;
mod version;

pub use adapter::{
    ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig, ClaudeAgentSDKModelConfig, DEFAULT_MODEL, OnLeftover,
    OutputBy, ProgramExit, ProgramHome, ProgramRecovery, ProgramRuns, RunOptions, SandboxSettings,
    TurnFailure, end_programs, is_unclear,
};
pub use arguments::ARGUMENT_MAX;
pub use callbacks::{
    BridgedTool, Callbacks, HookCall, HookPermission, HookReply, MAX_RESULT_CHARS, NoCallbacks,
    PermissionReply, PermissionRequest, ToolCall, ToolReply,
};
pub use client::{Client, UserInput};
pub use error::{ClientError, ErrorKind, Stage};
pub use foldlog::process::ProcessIdentity;
pub use message::{
    ApiRetry, Assistant, ClaudeBlock, ClaudeMessage, ClaudeMessageBody, ClaudeUsage, Init, TaskStarted,
    TranscriptMirror, User,
};
pub use options::{
    ClientOptions, EnvironmentVariables, HookMatcher, PASSED_VARIABLES, PermissionMode, SettingSource,
    SystemPrompt,
};
pub use result::{FailureKind, TurnResult};
pub use stream::{ClaudeMessages, read_stream};
pub use version::ClaudeVersion;
