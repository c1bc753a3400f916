//! Operations that are not done with: begun and not ended, or interrupted and not settled.
//!
//! | record | what becomes of an operation |
//! |---|---|
//! | `tool_begin` | it is open; one that runs an interrupted operation again settles that |
//! | `tool_end`, committed or failed | it is over; one that undid an interrupted operation says so of that |
//! | `tool_end`, interrupted | it is unsettled, unless it ran within another, whose fate it shares |
//! | `settle` | it is over, or to be run again |
//!
//! None of this goes back with STATE.

use std::collections::BTreeMap;

use foldlog_codec::body::{Decision, Idempotency, Outcome, Settle, ToolBegin, ToolEnd};

use crate::error::{Error, Result};

/// An operation that has begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOperation {
    /// The operation's name: the sequence number of its first begin.
    pub operation: u64,
    /// The sequence number of its latest begin.
    pub begin: u64,
    /// The operation within which it runs.
    pub parent: Option<u64>,
    /// The tool.
    pub tool: String,
    /// The provider's name for the call.
    pub call_id: Option<String>,
    /// What may be done with it should it be interrupted.
    pub idempotency: Idempotency,
    /// Whether it changes nothing.
    pub reads_only: bool,
    /// The operation that it undoes.
    pub undoes: Option<u64>,
}

/// An operation that was interrupted and neither run again nor settled since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsettledOperation {
    /// The operation's name: the sequence number of its first begin.
    pub operation: u64,
    /// The sequence number of its latest begin, which holds its arguments.
    pub begin: u64,
    /// The tool.
    pub tool: String,
    /// The provider's name for the call.
    pub call_id: Option<String>,
    /// What may be done with it.
    pub idempotency: Idempotency,
    /// Whether what it did is undone.
    pub undone: bool,
    /// Whether somebody decided that it is to be run again.
    pub run_again: bool,
}

/// The operations of a log that are not done with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations {
    /// By their begins.
    open: BTreeMap<u64, OpenOperation>,
    /// By their names.
    unsettled: BTreeMap<u64, UnsettledOperation>,
}

impl Operations {
    /// The operations that are open, in the order in which they began.
    pub(crate) fn open(&self) -> impl DoubleEndedIterator<Item = &OpenOperation> {
        self.open.values()
    }

    /// The operations that wait to be run again or settled, in the order of their names.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = &UnsettledOperation> {
        self.unsettled.values()
    }

    pub(crate) fn unsettled_one(&self, operation: u64) -> Option<&UnsettledOperation> {
        self.unsettled.get(&operation)
    }

    /// Whether all are done with.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.unsettled.is_empty()
    }

    /// The first open operation that may change STATE: until it ends, STATE is not final.
    pub(crate) fn changing(&self) -> Option<&OpenOperation> {
        self.open.values().find(|open| !open.reads_only)
    }

    pub(super) fn begin(&mut self, sequence: u64, begin: &ToolBegin<'_>) -> Result<()> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        if let Some(parent) = begin.parent
            && !self.open.values().any(|open| open.operation == parent)
        {
            return Err(bad(format!("it runs within operation {parent}, which is not open")));
        }
        if let Some(operation) = begin.again.or(begin.undoes)
            && !self.unsettled.contains_key(&operation)
        {
            return Err(bad(format!("operation {operation} is not one to be run again or undone")));
        }
        if let Some(operation) = begin.again {
            self.unsettled.remove(&operation);
        }
        let open = OpenOperation {
            operation: begin.again.unwrap_or(sequence),
            begin: sequence,
            parent: begin.parent,
            tool: begin.tool.clone(),
            call_id: begin.call_id.clone(),
            idempotency: begin.idempotency,
            reads_only: begin.reads_only,
            undoes: begin.undoes,
        };
        self.open.insert(sequence, open);
        Ok(())
    }

    /// Checks that an end follows what is known; nothing has changed yet.
    pub(super) fn check_end(&self, sequence: u64, end: &ToolEnd<'_>) -> Result<()> {
        let bad = |reason: String| Err(Error::Inconsistent { sequence, reason });
        let Some(open) = self.open.get(&end.begin) else {
            return bad(format!("no operation was begun at {} that is still open", end.begin));
        };
        if let Some(inner) = self.open.values().find(|inner| inner.parent == Some(open.operation)) {
            return bad(format!("operation {} runs within it and has not ended", inner.operation));
        }
        Ok(())
    }

    pub(super) fn end(&mut self, end: &ToolEnd<'_>) {
        let Some(open) = self.open.remove(&end.begin) else { return };
        let committed = end.outcome == Outcome::Committed;
        if let Some(undone) = open.undoes {
            if let Some(unsettled) = self.unsettled.get_mut(&undone).filter(|_| committed) {
                unsettled.undone = true;
            }
            return;
        }
        if end.outcome == Outcome::Interrupted && open.parent.is_none() {
            let OpenOperation { operation, begin, tool, call_id, idempotency, .. } = open;
            let (undone, run_again) = (false, false);
            let unsettled =
                UnsettledOperation { operation, begin, tool, call_id, idempotency, undone, run_again };
            self.unsettled.insert(operation, unsettled);
        }
    }

    pub(super) fn settle(&mut self, sequence: u64, settle: &Settle<'_>) -> Result<()> {
        let operation = settle.operation;
        let Some(unsettled) = self.unsettled.get_mut(&operation) else {
            let reason = format!("operation {operation} is not one to be settled");
            return Err(Error::Inconsistent { sequence, reason });
        };
        match settle.decision {
            Decision::RunAgain => unsettled.run_again = true,
            Decision::Committed | Decision::Failed => {
                self.unsettled.remove(&operation);
            }
        }
        Ok(())
    }
}
