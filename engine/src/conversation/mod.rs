//! Conversations with a model: messages, what a log says of them, and where one that was cut short is resumed.
//!
//! | module | holds |
//! |---|---|
//! | `model` | messages, calls, turns, and the state of a conversation |

mod model;

pub use foldlog_codec::body::{Role, Usage as TokenUsage};
pub use model::{
    ContentBlocks, ConversationMessage, ConversationState, ConversationTurn, Dialect, PromptIdentity,
    ToolCallRecord,
};
