//! Conversations with a model: messages, their records in a log, and the point at which an
//! interrupted conversation resumes.
//!
//! | module | contents |
//! |---|---|
//! | `model` | messages, calls, turns, and the state of a conversation |
//! | `records` | data that a host passes to be recorded |
//! | `entries` | the records of one conversation, and the messages and state derived from them |
//! | `messages` | messages, derived from records in order |
//! | `bodies` | encoding of texts and blocks in the bodies of records |
//! | `export` | the slices of conversations and of adapter states in an export |
//! | `resume` | the point at which a conversation continues |

mod bodies;
mod entries;
mod export;
mod messages;
mod model;
mod records;
mod resume;

pub use entries::{Conversation, ConversationRecord, EXPANDED_TEXT, EntryContent, SKIPPED_TEXT, SentMessage};
pub use foldlog_codec::body::{Role, TokenUsage};
pub use model::{
    AdapterStateSnapshot, ContentBlocks, ConversationMessage, ConversationState, ConversationTurn,
    OriginalMessage, PromptIdentity, ToolCallRecord,
};
pub use records::{NewAdapterState, NewAnswer, NewInput, NewRequest, NewRequestFailure};
pub use resume::{Resume, ResumePoint};

pub(crate) use bodies::{blocks_of, text_payload};
pub(crate) use entries::{message_id, settled_text};
pub(crate) use export::{ADAPTER_STATES, CONVERSATION, exported_slices};
pub(crate) use messages::RecordedMessages;
