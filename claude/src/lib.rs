//! Runs the Claude Code program as a child process. This is an unofficial client: the user installs
//! the program, and this crate contains no part of it.
//!
//! A [`Client`] starts the program, sends prompts to the model ([`query`](Client::query)), and
//! receives the program's messages ([`next_message`](Client::next_message)) up to the result of the
//! turn. The program calls the model and its own tools. [`Callbacks`] answer the requests that it
//! makes of its host in between.
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
//! Both sides write one JSON object per line ([`read_stream`] describes which lines are skipped or
//! refused). A *control request* goes to the other side, which answers with a *control response* of
//! the same `request_id`.
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
//! 1. A callback never stops the client from reading. While tools run, messages, interrupts and
//!    other callbacks continue.
//! 2. Each request of the program is answered once, or not at all if it was cancelled.
//! 3. A callback starts only after the host has taken all messages that arrived before it and has
//!    called for the next one. A host can therefore record an answer before a tool of it runs. While
//!    a host takes no messages, callbacks wait.
//! 4. The program outlives neither its client nor the process of its host, however that process
//!    ends. It runs in a [process group](foldlog::process) whose leader then kills it. Processes
//!    that it starts in groups of their own may survive.
//! 5. Of the host's environment variables, the program gets only those that the options name. It
//!    reads no settings and contacts no servers beyond those that the options name.
//! 6. The program's output is stored unchanged ([`ClaudeMessage::line`]), and never displayed raw.
//!
//! # Limits
//!
//! The client writes no log, does not protect a session from a second process that resumes it, and
//! does not check the arguments of tools.

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
    CallObserver, ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig, ClaudeAgentSDKModelConfig,
    DEFAULT_MODEL, OnLeftover, OutputBy, ProgramExit, ProgramHome, ProgramRecovery, ProgramRuns,
    RUN_VARIABLE, RunOptions, SandboxSettings, TurnFailure, end_programs, is_unclear,
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
