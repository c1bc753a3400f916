//! Conversations with a model: messages, what a log says of them, and where one that was cut short is resumed.
//!
//! | module | holds |
//! |---|---|
//! | `model` | messages, calls, turns, and the state of a conversation |
//! | `records` | what a host hands over to be recorded |
//! | `entries` | the records of one conversation, and what follows from them |
//! | `messages` | messages, made of records one after the other |
//! | `bodies` | how texts and blocks stand in the bodies of records |
//! | `export` | the slices of conversations and of adapters' states in an export |
//! | `resume` | where a conversation goes on |

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
