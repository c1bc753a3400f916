//! An embedded, event-sourced state engine for AI agents.
//!
//! A host dispatches events to a [`Session`]. Each event becomes a checksummed record in an
//! append-only log, and reducers fold the records into typed slices. Snapshots and rollbacks are
//! positions in that log. A tool call is a transaction: if it fails, or its process dies within it,
//! slices and workspaces are rolled back to its start.
//!
//! | to | use |
//! |---|---|
//! | open a directory of sessions | [`Store`], [`StoreOptions`], [`Durability`] |
//! | declare events, slices and reducers | [`SessionTypes`], [`Event`], [`Slice`], [`Policy`] |
//! | dispatch, read, take snapshots, roll back | [`Session`] |
//! | read LOG slices and records; subscribe; export | [`Session::log`] |
//! | decide about tool calls, or cancel them | [`Session::calls`] |
//! | dispatch and read by name, without Rust types | [`Session::dynamic`] |
//! | run tools as transactions over directories | [`tools`], [`ExecutionState`], [`filesystem`] |
//! | record conversations and resume them | [`Session::conversation`], [`conversation`]; the crate `foldlog-agent` runs them |
//! | read a log without the host's types | [`inspect`] |
//! | replay a host over its log | [`replay`]; the crate `foldlog-replay` has assertions |
//! | store records on other machines | [`replication`]; the crate `foldlog-remote` implements it |
//! | test a host | `testkit` (feature `testkit`) |
//!
//! # Example
//!
//! ```
//! use foldlog::{Event, EventSlice, SessionTypes, SnapshotOptions, Store};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct StepAdded {
//!     title: String,
//! }
//!
//! impl Event for StepAdded {
//!     const NAME: &'static str = "plan.step_added";
//! }
//!
//! # fn main() -> foldlog::Result<()> {
//! # let temporary = tempfile::tempdir().unwrap();
//! # let directory = temporary.path();
//! let session = Store::open(directory)?.create(&SessionTypes::builder().build()?)?;
//! session.dispatch(StepAdded { title: "read the issue".into() })?;
//! let before = session.snapshot(SnapshotOptions::with_tag("before the attempt"))?;
//! session.dispatch(StepAdded { title: "a step that turns out wrong".into() })?;
//! session.rollback(&before)?;
//! assert_eq!(session.view::<EventSlice<StepAdded>>()?.len(), 1);
//! session.close()
//! # }
//! ```
//!
//! # Guarantees and limits
//!
//! `docs/reference` in the repository states durability, what a failed call leaves of a workspace,
//! and the limits; `docs/guide` explains each task with whole programs. The engine runs on Linux,
//! calls no model and starts no async runtime. Library code does not panic on bad input: it returns
//! [`Error`], which names file, byte and record.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod background;
mod clock;
pub mod conversation;
mod divergence;
mod error;
mod fold;
mod generator;
pub mod inspect;
mod items;
pub mod log;
mod names;
#[cfg(feature = "async")]
mod offload;
mod operation;
mod options;
pub mod process;
pub mod replay;
pub mod replication;
mod session;
mod snapshot_json;
pub mod storage;
mod store;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod tools;
mod types;
mod wakeups;

/// Crates whose types appear in public signatures, so that a host need not name their versions.
pub use {schemars, serde_json, uuid};

pub use clock::{Clock, FixedClock, SystemClock};
pub use divergence::{Divergence, DivergenceKind, LaneName, LeaveOut, OtherRecord};
pub use error::{Blocker, Corruption, Error, Holder, Result};
pub use fold::live_path::LivePath;
pub use fold::questions::PendingQuestion;
/// Describes how bytes violate the log's format. [`Value::decode`] and [`Record::to_json`] return
/// it, and [`Error::Format`] wraps it.
pub use foldlog_codec::Error as FormatError;
pub use foldlog_codec::body::{
    CallOrigin, Cause, Decision, ExternalEffects, Idempotency, InnerCall, ObjectId, Outcome, Parent, Policy,
    Replicated, Suspension, SuspensionForm,
};
/// Escapes untrusted text for terminals, error messages and JSON.
pub use foldlog_codec::escape;
pub use foldlog_codec::msgpack::{NotJson, Value};
pub use foldlog_codec::{OperationId, Record, RecordKind, SequenceNumber};
/// Workspaces: the files that an agent's tools work on.
pub use foldlog_filesystem as filesystem;
pub use foldlog_filesystem::UnrestoredPath;
pub use generator::Generator;
pub use log::{Compression, FileExposure};
pub use operation::{NotUndone, OpenOperation, ReplacedContent, SuspendedOperation, UnsettledOperation};
pub use options::{
    BackgroundSync, CompactOptions, Durability, KeptSnapshots, MemoryLimit, SessionOptions, StoreOptions,
    UndeclaredEvents,
};
pub use session::{
    AbandonedCall, ConversationFollower, DecisionWait, DecisionsTaken, DynamicSession, LogView,
    RecordNotification, RecordedReply, RecoveryReport, RefusedDecision, RollbackReport, Session,
    SessionCalls, SessionConversation, SessionInputs, SessionLog, Settlement, SliceState, Snapshot,
    SnapshotOptions, State, StoredItem, SubscriberPanic, Subscription, TakenDecision,
};
/// String type of a call's tool name and call id. Up to 23 bytes are stored inline; longer strings
/// are reference counted.
pub use smol_str::SmolStr;
pub use snapshot_json::{Export, ExportedSlice};
pub use storage::StoreAccess;
pub use store::{
    BackupOptions, BackupReport, CapturesElsewhere, CapturesInUse, CollectOptions, CollectReport,
    CollectedFiles, CompactReport, CompressReport, DamagedCapture, ImportOptions, LeftAlone, LeftDecision,
    LeftFate, MissingObject, PullReport, SalvageReport, SessionSummary, SkippedBytes, Store,
    StoreCompactReport,
};
pub use tools::ExecutionState;
pub use tools::resources::ResourceRegistry;
pub use types::{
    BuiltInReducer, Clear, DynamicEvent, DynamicSlice, Event, EventSlice, Item, ReducerContext, SessionTypes,
    SessionTypesBuilder, Slice, SliceOp, ToolInvocations, ToolInvoked, UpcastError, View, default_policy,
};
