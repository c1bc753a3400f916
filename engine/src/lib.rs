// The README's hosts are tested where there is all that they use.
#![cfg_attr(any(not(doctest), feature = "host-filesystem"), doc = include_str!("../../README.md"))]

pub mod audit;
mod background;
mod clock;
mod error;
pub mod execution;
mod fold;
mod generator;
pub mod log;
pub mod resources;
#[cfg(feature = "sabotage")]
#[doc(hidden)]
pub mod sabotage;
#[cfg(not(feature = "sabotage"))]
mod sabotage;
mod session;
mod store;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod tools;
mod types;

pub use clock::{Clock, FixedClock, SystemClock};
pub use error::{Corruption, Error, Holder, Result};
pub use execution::ExecutionState;
pub use fold::operations::{OpenOperation, UnsettledOperation};
pub use fold::path::Path as LivePath;
pub use foldlog_codec::body::{
    CallOrigin, Cause, Decision, ExternalEffects, Idempotency, Outcome, Parent, Policy,
};
pub use foldlog_codec::msgpack::Value;
pub use foldlog_codec::{Kind, OperationId, Record, SequenceNumber};
/// Workspaces: the files that an agent's tools work on.
pub use foldlog_filesystem as filesystem;
pub use foldlog_filesystem::Unrestored;
pub use generator::Generator;
pub use log::{Exposed, StoreAccess};
pub use resources::{NotUndone, ResourceRegistry};
pub use session::{
    AbandonedCall, LogView, RecordNotification, RecoveryReport, RollbackReport, Session, Settlement,
    SliceState, Snapshot, SnapshotOptions, State, StoredItem, SubscriberPanic, Subscription,
};
/// The text that a call's tool and id are: short ones cost no memory of their own, long ones are shared.
pub use smol_str::SmolStr;
pub use store::{
    BackgroundSync, Durability, Export, ExportedSlice, ImportOptions, MissingObject, SalvageReport,
    SessionOptions, SessionSummary, SkippedBytes, Store, StoreOptions,
};
pub use types::{
    Clear, Event, EventSlice, Item, ReducerContext, SessionTypes, SessionTypesBuilder, Slice, SliceOp,
    ToolInvocations, ToolInvoked, UpcastError, View, default_policy,
};
