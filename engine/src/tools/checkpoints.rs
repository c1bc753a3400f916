use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::OperationId;
use parking_lot::Mutex;
use smol_str::SmolStr;

use super::captures::CompositeSnapshot;
use crate::error::{Error, Result};

/// How many checkpoints are kept where nothing is said.
pub const CHECKPOINTS_MAX: usize = 100;

/// A tool call, and what there was before and after it.
#[derive(Clone, Debug)]
pub struct ToolCheckpoint {
    /// The operation's name.
    pub operation: OperationId,
    /// The provider's name for the call.
    pub tool_call_id: Option<SmolStr>,
    /// The tool.
    pub tool_name: SmolStr,
    /// Before the call.
    pub pre: CompositeSnapshot,
    /// After it, where it was committed.
    pub post: Option<CompositeSnapshot>,
    /// What the model saw of the result.
    pub result_summary: Option<String>,
    /// Whether it was committed.
    pub success: bool,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
    /// When this was recorded, in microseconds since 1970-01-01 UTC.
    pub recorded_at_us: i64,
}

/// The checkpoints of the latest tool calls. Cheap to clone; every clone is the same store.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    inner: Arc<Mutex<Kept>>,
    max: usize,
}

#[derive(Debug, Default)]
struct Kept {
    /// By the order in which they were recorded.
    checkpoints: BTreeMap<u64, ToolCheckpoint>,
    next: u64,
}

impl Default for CheckpointStore {
    fn default() -> Self {
        CheckpointStore::keeping(CHECKPOINTS_MAX)
    }
}

impl CheckpointStore {
    /// A store of the latest 100 calls.
    pub fn new() -> CheckpointStore {
        CheckpointStore::default()
    }

    /// A store of the latest `max` calls, of at least one.
    pub fn keeping(max: usize) -> CheckpointStore {
        CheckpointStore { inner: Arc::default(), max: max.max(1) }
    }

    /// Keeps a checkpoint, in place of an earlier one of the same operation, and lets go of the oldest where there are
    /// too many.
    pub fn record(&self, checkpoint: ToolCheckpoint) {
        let mut kept = self.inner.lock();
        kept.checkpoints.retain(|_, other| other.operation != checkpoint.operation);
        let at = kept.next;
        kept.next += 1;
        kept.checkpoints.insert(at, checkpoint);
        while kept.checkpoints.len() > self.max {
            kept.checkpoints.pop_first();
        }
    }

    /// All that are kept, in the order in which they were recorded.
    pub fn list(&self) -> Vec<ToolCheckpoint> {
        self.inner.lock().checkpoints.values().cloned().collect()
    }

    /// The checkpoint of an operation.
    pub fn of_operation(&self, operation: impl Into<OperationId>) -> Option<ToolCheckpoint> {
        let operation = operation.into();
        self.inner.lock().checkpoints.values().find(|kept| kept.operation == operation).cloned()
    }

    /// The checkpoint of a call by the provider's name for it.
    ///
    /// # Errors
    ///
    /// [`Error::AmbiguousCall`] where that name stands for several operations: name the operation.
    pub fn get(&self, call_id: &str) -> Result<Option<ToolCheckpoint>> {
        let kept = self.inner.lock();
        let mut named =
            kept.checkpoints.values().filter(|kept| kept.tool_call_id.as_deref() == Some(call_id));
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

    /// What there was before a call.
    ///
    /// # Errors
    ///
    /// As [`get`](CheckpointStore::get).
    pub fn get_pre(&self, call_id: &str) -> Result<Option<CompositeSnapshot>> {
        Ok(self.get(call_id)?.map(|checkpoint| checkpoint.pre))
    }

    /// What there was after a call, where it was committed.
    ///
    /// # Errors
    ///
    /// As [`get`](CheckpointStore::get).
    pub fn get_post(&self, call_id: &str) -> Result<Option<CompositeSnapshot>> {
        Ok(self.get(call_id)?.and_then(|checkpoint| checkpoint.post))
    }
}
