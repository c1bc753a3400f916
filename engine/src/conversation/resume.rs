//! Where a conversation that was cut short continues.

use foldlog_codec::{OperationId, SequenceNumber};

/// Says where a conversation goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Id of the evaluation; `None` if the session has no conversation.
    pub evaluation_id: Option<String>,
    /// Last answer that counts.
    pub answer: Option<SequenceNumber>,
    /// What comes next.
    pub point: ResumePoint,
}

/// Names what comes next in a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResumePoint {
    /// The provider is to be asked: there is no answer yet, all calls of the last one are closed, or something was said
    /// since. A request without an answer is to be sent again; what it cost is not known.
    AwaitProvider,
    /// These calls of the last answer, by ordinal, have not been closed and are to run.
    RunTools(Vec<u32>),
    /// These calls were interrupted or are suspended, and a person or the host has to decide about them first: calls of the
    /// last answer, or ones within them. All others are closed.
    NeedsSettle(Vec<OperationId>),
    /// Nothing: the last answer has no calls and nothing was said since, or a turn says that it was the last one.
    Complete,
    /// The session has recorded no conversation of this evaluation.
    NotRecorded,
}
