//! What a rewind would do, and what it did.

use std::ops::RangeInclusive;

use foldlog_codec::body::{Idempotency, Policy};
use foldlog_codec::{OperationId, SequenceNumber};
use foldlog_filesystem::{FileRewound, FileUnknown, KeptFile};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::inspect::Difference;
use crate::operation::NotUndone;
use crate::session::RollbackReport;

/// Says how a session is rewound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewindOptions {
    /// Whether files that were changed by hand since the last capture go back too. `false` keeps them as they are.
    pub overwrite: bool,
    /// Operation whose rollback an undo takes back; `None` takes back the last rewind or rollback. Of no meaning for a rewind.
    pub of: Option<OperationId>,
    /// Who rewinds the session, for those who read the log.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

/// Tells what a rewind would do, as things stand now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewindPreview {
    /// Position at which the preview was made: that of the last record.
    pub from: SequenceNumber,
    /// Position that session and resources would go back to.
    pub to: SequenceNumber,
    /// Rewind that would be undone, if it is an undo, or call whose rollback would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<OperationId>,
    /// Calls that a process left open, in the order of their begins. [`recover`](crate::tools::ToolRunner::recover) comes first, which
    /// undoes what they changed; before, the rewind fails with [`Error::Interrupted`](crate::Error::Interrupted). The resources are taken
    /// for what the recovery leaves. Empty if nothing is in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recover_first: Vec<OperationId>,
    /// Resources that would go back, in ascending order of their names.
    pub resources: Vec<ResourcePreview>,
    /// Resources that would stay as they are.
    pub left: Vec<SkippedResource>,
    /// Slices that would change, in ascending order of their names. LOG slices stay.
    pub slices: Vec<SliceRewound>,
    /// Conversations that would change.
    pub conversations: Vec<ConversationRewound>,
    /// What would change of STATE slices, to the path of the value, and which messages would go or come back. CACHE slices are
    /// emptied.
    #[serde(default)]
    pub differences: Vec<Difference>,
    /// Tags of snapshots whose records would be abandoned. A rewind may go to them all the same; the session's own tags stay.
    pub tags: Vec<TagAbandoned>,
    /// Ranges of records that would be abandoned. They stay in the log.
    pub abandoned: Vec<RangeInclusive<SequenceNumber>>,
    /// Committed calls among them that may have effects outside of the session and its resources, which no rewind undoes. What failed
    /// and interrupted calls may have done, the ledger says.
    pub outside: Vec<OutsideCall>,
}

/// Names the record whose capture a rewind goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureTaken {
    /// Sequence number of the record.
    pub record: SequenceNumber,
    /// Which record that is.
    pub of: CaptureMoment,
}

/// Says when a capture was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureMoment {
    /// At the end of a call that was over at the position.
    CallEnded,
    /// At the begin of a call that was over at the position and whose changes were rolled back.
    CallBegan,
    /// At the begin of the first call behind the position, since no call before had captured the resource.
    CallBeganLater,
    /// At the begin of the rewind that is undone.
    RewindBegan,
    /// At the end of a call, before what it had changed was rolled back. The rollback is undone.
    RollbackBegan,
}

/// Tells what would become of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourcePreview {
    /// Name of the resource.
    pub name: String,
    /// Capture that it would go back to.
    pub capture: CaptureTaken,
    /// Files that would be created, modified or removed, with diffs.
    pub files: Vec<FileRewound>,
    /// Files that would be kept, since they were changed by hand.
    pub kept: Vec<KeptFile>,
    /// Files that would be kept, since no call has worked in the directory: nobody knows whether they were changed by hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<FileUnknown>,
    /// Number of files that one of the captures holds and the other leaves out. They stay as they are.
    pub left_out: u64,
}

/// Tells what became of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceRewound {
    /// Name of the resource.
    pub name: String,
    /// Capture that it went back to.
    pub capture: CaptureTaken,
    /// Number of files that were created.
    pub created: u64,
    /// Number of files that were modified.
    pub modified: u64,
    /// Number of files that were removed.
    pub removed: u64,
    /// Files that were kept, since they were changed by hand: the first 1,000.
    pub kept: Vec<KeptFile>,
    /// Number of files that were kept beside these.
    pub kept_more: u64,
    /// Files that were kept, since no call had worked in the directory: the first 1,000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<FileUnknown>,
    /// Number of files that were kept beside these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown_more: u64,
    /// Number of files that one of the captures holds and the other leaves out. They stayed as they are.
    pub left_out: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Names a resource that stays as it is, and says why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedResource {
    /// Name of the resource.
    pub name: String,
    /// Why it stays.
    pub reason: String,
}

/// Counts what would change of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRewound {
    /// Name of the slice.
    pub name: String,
    /// Policy of the slice: STATE goes back, and CACHE is emptied.
    pub policy: Policy,
    /// Number of items before the rewind.
    pub items_before: u64,
    /// Number of items after it.
    pub items_after: u64,
    /// Number of items that go.
    pub removed: u64,
    /// Number of items that come back.
    pub added: u64,
}

/// Counts what would change of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConversationRewound {
    /// Id of the evaluation.
    pub evaluation_id: String,
    /// Number of messages before the rewind.
    pub messages_before: u64,
    /// Number of messages after it.
    pub messages_after: u64,
    /// Number of turns that are over, before the rewind.
    pub turns_before: u64,
    /// Number of them after it.
    pub turns_after: u64,
    /// Records of the turns that go.
    #[serde(default)]
    pub turns_removed: Vec<SequenceNumber>,
}

/// Names a snapshot's tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagAbandoned {
    /// The tag.
    pub tag: String,
    /// Position of the snapshot.
    pub position: SequenceNumber,
}

/// Describes a call that may have had effects which no rewind undoes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideCall {
    /// Operation id of the call.
    pub operation: OperationId,
    /// Name of the tool.
    pub tool: SmolStr,
    /// Id that the model's provider gave the call.
    pub call_id: Option<SmolStr>,
    /// How often the tool may run.
    pub idempotency: Idempotency,
}

/// Reports what a rewind did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RewindReport {
    /// Operation of the rewind, by which it is undone.
    pub operation: OperationId,
    /// Rewind that was undone, if it was an undo, or call whose rollback was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<OperationId>,
    /// What was rolled back of the session, and the calls that may have had effects outside.
    pub rolled_back: RollbackReport,
    /// Resources that went back, in ascending order of their names.
    pub resources: Vec<ResourceRewound>,
    /// Resources that stayed as they are.
    pub left: Vec<SkippedResource>,
    /// What was restored otherwise than it was captured.
    pub not_undone: Vec<NotUndone>,
}
