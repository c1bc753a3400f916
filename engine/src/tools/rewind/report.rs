//! Previews and reports of rewinds.

use std::ops::RangeInclusive;

use foldlog_codec::body::{Idempotency, Policy};
use foldlog_codec::{OperationId, SequenceNumber};
use foldlog_filesystem::{FileRewound, FileUnknown, KeptFile};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::inspect::Difference;
use crate::operation::NotUndone;
use crate::session::RollbackReport;

/// Contains the options of a rewind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewindOptions {
    /// Whether files that were changed by hand since the last capture are overwritten. `false`
    /// keeps them.
    pub overwrite: bool,
    /// Operation whose rollback is undone; `None` undoes the last rewind or rollback. Ignored by
    /// rewinds.
    pub of: Option<OperationId>,
    /// Name of the person who rewinds the session, for the log.
    pub by: Option<String>,
    /// Reason of the rewind.
    pub reason: Option<String>,
}

/// Describes the effect that a rewind would have at present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewindPreview {
    /// Position of the preview: that of the last record.
    pub from: SequenceNumber,
    /// Position to which session and resources would return.
    pub to: SequenceNumber,
    /// For an undo, the rewind that would be undone, or the call whose rollback would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<OperationId>,
    /// Calls that a process left open, in the order of their start records.
    /// [`recover`](crate::tools::ToolRunner::recover) has to undo their changes first; until then,
    /// the rewind fails with [`Error::Interrupted`](crate::Error::Interrupted). The preview assumes
    /// the resources after the recovery. Empty if no recovery is needed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recover_first: Vec<OperationId>,
    /// Resources that would be restored, in ascending order of their names.
    pub resources: Vec<ResourcePreview>,
    /// Resources that would be unchanged.
    pub left: Vec<SkippedResource>,
    /// Slices that would change, in ascending order of their names. LOG slices are unchanged.
    pub slices: Vec<SliceRewound>,
    /// Conversations that would change.
    pub conversations: Vec<ConversationRewound>,
    /// Changes of STATE slices, down to the path of the value, and messages that would be removed
    /// or restored. CACHE slices are emptied.
    #[serde(default)]
    pub differences: Vec<Difference>,
    /// Tags of snapshots whose records would be abandoned. A rewind can still return to them; the
    /// session's own tags are unchanged.
    pub tags: Vec<TagAbandoned>,
    /// Ranges of records that would be abandoned. They remain in the log.
    pub abandoned: Vec<RangeInclusive<SequenceNumber>>,
    /// Committed calls in these ranges that may have effects outside of the session and its
    /// resources, which no rewind undoes. The ledger lists the possible effects of failed and
    /// interrupted calls.
    pub outside: Vec<OutsideCall>,
}

/// Identifies the record whose capture a rewind restores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureTaken {
    /// Sequence number of the record.
    pub record: SequenceNumber,
    /// Moment of the capture.
    pub of: CaptureMoment,
}

/// Names the moment of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureMoment {
    /// At the end of a call that was over at the position.
    CallEnded,
    /// At the start of a call that was over at the position and whose changes were rolled back.
    CallBegan,
    /// At the start of the first call after the position, because no earlier call had captured the
    /// resource.
    CallBeganLater,
    /// At the start of the rewind that is undone.
    RewindBegan,
    /// At the end of a call, before its changes were rolled back. The rollback is undone.
    RollbackBegan,
}

/// Describes the effect on a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourcePreview {
    /// Name of the resource.
    pub name: String,
    /// Capture that would be restored.
    pub capture: CaptureTaken,
    /// Files that would be created, modified or removed, with diffs.
    pub files: Vec<FileRewound>,
    /// Files that would be kept because they were changed by hand.
    pub kept: Vec<KeptFile>,
    /// Files that would be kept because no call has worked in the directory: it is unknown whether
    /// they were changed by hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<FileUnknown>,
    /// Number of files that one of the captures contains and the other leaves out. They would be
    /// unchanged.
    pub left_out: u64,
}

/// Describes the changes of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceRewound {
    /// Name of the resource.
    pub name: String,
    /// Capture that was restored.
    pub capture: CaptureTaken,
    /// Number of files that were created.
    pub created: u64,
    /// Number of files that were modified.
    pub modified: u64,
    /// Number of files that were removed.
    pub removed: u64,
    /// Files that were kept because they were changed by hand: the first 1,000.
    pub kept: Vec<KeptFile>,
    /// Number of further files that were kept.
    pub kept_more: u64,
    /// Files that were kept because no call had worked in the directory: the first 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<FileUnknown>,
    /// Number of further files that were kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown_more: u64,
    /// Number of files that one of the captures contains and the other leaves out. They are
    /// unchanged.
    pub left_out: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Describes a resource that is unchanged, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedResource {
    /// Name of the resource.
    pub name: String,
    /// Reason why it is unchanged.
    pub reason: String,
}

/// Contains the numbers of items of a slice before and after a rewind, and of those that change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRewound {
    /// Name of the slice.
    pub name: String,
    /// Policy of the slice: STATE is restored, and CACHE is emptied.
    pub policy: Policy,
    /// Number of items before the rewind.
    pub items_before: u64,
    /// Number of items after it.
    pub items_after: u64,
    /// Number of items that are removed.
    pub removed: u64,
    /// Number of items that are restored.
    pub added: u64,
}

/// Contains the numbers of messages and turns of a conversation before and after a rewind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationRewound {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Number of messages before the rewind.
    pub messages_before: u64,
    /// Number of messages after it.
    pub messages_after: u64,
    /// Number of completed turns before the rewind.
    pub turns_before: u64,
    /// Number of completed turns after it.
    pub turns_after: u64,
    /// Records of the turns that are removed.
    #[serde(default)]
    pub turns_removed: Vec<SequenceNumber>,
}

/// Describes a snapshot's tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagAbandoned {
    /// The tag.
    pub tag: String,
    /// Position of the snapshot.
    pub position: SequenceNumber,
}

/// Describes a call with possible effects that no rewind undoes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideCall {
    /// Operation id of the call.
    pub operation: OperationId,
    /// Name of the tool.
    pub tool: SmolStr,
    /// Id that the model's provider assigned to the call.
    pub call_id: Option<SmolStr>,
    /// Declared idempotency of the tool.
    pub idempotency: Idempotency,
}

/// Describes the effects of a rewind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindReport {
    /// Operation of the rewind, by which it can be undone.
    pub operation: OperationId,
    /// For an undo, the rewind that was undone, or the call whose rollback was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<OperationId>,
    /// Rollback of the session, and the calls that may have had effects outside.
    pub rolled_back: RollbackReport,
    /// Resources that were restored, in ascending order of their names.
    pub resources: Vec<ResourceRewound>,
    /// Resources that are unchanged.
    pub left: Vec<SkippedResource>,
    /// Parts that differ from the capture after the restore.
    pub not_undone: Vec<NotUndone>,
}
