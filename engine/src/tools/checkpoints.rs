//! Snapshots before and after each of the latest tool calls, so that a host can roll back to a call
//! or fork at it.

use std::collections::VecDeque;
use std::sync::Arc;

use foldlog_codec::OperationId;
use parking_lot::Mutex;
use smol_str::SmolStr;

use super::composite::CompositeSnapshot;
use crate::error::{Error, Result};

/// Default number of checkpoints in a store.
pub const CHECKPOINTS_MAX: usize = 100;

/// Describes a tool call, with the snapshots before and after it.
#[derive(Clone, Debug)]
pub struct ToolCheckpoint {
    /// Operation id: the sequence number of the operation's first `tool_begin`.
    pub operation: OperationId,
    /// Id that the provider assigned to the call.
    pub tool_call_id: Option<SmolStr>,
    /// Name of the tool.
    pub tool_name: SmolStr,
    /// Session and resources before the call.
    pub pre: CompositeSnapshot,
    /// Session and resources after the call; `None` unless the call committed.
    pub post: Option<CompositeSnapshot>,
    /// Text of the result for the model.
    pub result_summary: Option<String>,
    /// Whether the call committed.
    pub success: bool,
    /// Duration of the call in microseconds.
    pub elapsed_us: u64,
    /// Time of the checkpoint, in microseconds since 1970-01-01 UTC.
    pub recorded_at_us: i64,
}

/// Contains the checkpoints of the latest tool calls, only in memory. Clones are cheap and share
/// the same store.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    /// Checkpoints in the order of recording.
    checkpoints: Arc<Mutex<VecDeque<ToolCheckpoint>>>,
    max: usize,
}

impl Default for CheckpointStore {
    fn default() -> Self {
        CheckpointStore::with_max_calls(CHECKPOINTS_MAX)
    }
}

impl CheckpointStore {
    /// Creates a store that keeps the checkpoints of the latest [`CHECKPOINTS_MAX`] calls.
    pub fn new() -> CheckpointStore {
        CheckpointStore::default()
    }

    /// Creates a store that keeps the checkpoints of the latest `max` calls, of one call if `max`
    /// is 0.
    pub fn with_max_calls(max: usize) -> CheckpointStore {
        CheckpointStore { checkpoints: Arc::default(), max: max.max(1) }
    }

    /// Adds a checkpoint. It replaces an earlier one of the same operation; if the store is full,
    /// the oldest checkpoint is dropped.
    pub fn record(&self, checkpoint: ToolCheckpoint) {
        let mut kept = self.checkpoints.lock();
        kept.retain(|other| other.operation != checkpoint.operation);
        kept.push_back(checkpoint);
        while kept.len() > self.max {
            kept.pop_front();
        }
    }

    /// Returns all checkpoints in the order in which they were recorded.
    pub fn list(&self) -> Vec<ToolCheckpoint> {
        self.checkpoints.lock().iter().cloned().collect()
    }

    /// Returns the checkpoint of an operation; `None` if the store has none.
    pub fn of_operation(&self, operation: impl Into<OperationId>) -> Option<ToolCheckpoint> {
        let operation = operation.into();
        self.checkpoints.lock().iter().find(|kept| kept.operation == operation).cloned()
    }

    /// Returns the checkpoint of the call with this provider's id; `None` if the store has none.
    ///
    /// # Errors
    ///
    /// [`Error::AmbiguousCall`] if several operations have this id; use
    /// [`of_operation`](CheckpointStore::of_operation) with the operation id instead.
    pub fn get(&self, call_id: &str) -> Result<Option<ToolCheckpoint>> {
        let kept = self.checkpoints.lock();
        let mut named = kept.iter().filter(|kept| kept.tool_call_id.as_deref() == Some(call_id));
        let (first, second) = (named.next(), named.next());
        match (first, second) {
            (Some(first), Some(second)) => {
                let operations = [first, second].into_iter().chain(named);
                let operations = operations.map(|kept| kept.operation).collect();
                Err(Error::AmbiguousCall { call_id: call_id.to_owned(), operations })
            }
            (first, _) => Ok(first.cloned()),
        }
    }
}
