#![doc = include_str!("../../README.md")]

pub mod audit;
mod background;
mod clock;
mod error;
pub mod filesystem;
mod fold;
mod generator;
pub mod log;
mod session;
mod store;
#[cfg(feature = "testkit")]
pub mod testkit;
mod types;

pub use clock::{Clock, FixedClock, SystemClock};
pub use error::{Corruption, Error, Holder, Result, Unrestored};
pub use fold::path::Path as LivePath;
pub use foldlog_codec::body::{Parent, Policy};
pub use foldlog_codec::msgpack::Value;
pub use foldlog_codec::{Kind, Record};
pub use generator::Generator;
pub use session::{
    LogView, Notice, RecoveryReport, RolledBack, Session, SliceState, Snapshot, SnapshotOptions, State,
    StoredItem, Subscription, Warning,
};
pub use store::{
    BackgroundSync, Export, ExportedSlice, ImportOptions, Level, SessionOptions, SessionSummary, Store,
    StoreOptions,
};
pub use types::{
    Clear, Event, Item, Of, ReducerContext, SessionTypes, SessionTypesBuilder, Slice, SliceOp, UpcastError,
    View, default_policy,
};
