// The README's examples are tested by the crate `foldlog-agent`, which some of them use.
#![cfg_attr(not(doctest), doc = include_str!("../../README.md"))]
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
#[cfg(feature = "sabotage")]
#[doc(hidden)]
pub mod sabotage;
#[cfg(not(feature = "sabotage"))]
mod sabotage;
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
    AbandonedCall, ConversationFollower, DecisionWait, DecisionsTaken, LogView, RecordNotification,
    RecordedReply, RecoveryReport, RefusedDecision, RollbackReport, Session, Settlement, SliceState,
    Snapshot, SnapshotOptions, State, StoredItem, SubscriberPanic, Subscription, TakenDecision,
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
