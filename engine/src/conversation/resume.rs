//! The point at which an interrupted conversation continues.

use foldlog_codec::{OperationId, SequenceNumber};

/// Describes where a conversation continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Id of the evaluation; `None` if the session has no conversation.
    pub evaluation_id: Option<String>,
    /// Last live answer.
    pub answer: Option<SequenceNumber>,
    /// Next step of the conversation.
    pub point: ResumePoint,
}

/// Describes the next step of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResumePoint {
    /// Request an answer from the provider: there is no answer yet, all calls of the last one are
    /// closed, or messages were added since. A request without an answer is to be sent again; its
    /// cost is unknown.
    AwaitProvider,
    /// Run these calls of the last answer, by ordinal. They have not been closed.
    RunTools(Vec<u32>),
    /// Decide about these interrupted or suspended calls first, by a person or the host. They are
    /// calls of the last answer, or within them. All other calls are closed.
    NeedsSettle(Vec<OperationId>),
    /// Nothing: a turn is marked as the last one, or the last answer has no calls and no message
    /// was added since.
    Complete,
    /// The session has recorded no conversation of this evaluation.
    NotRecorded,
}
