//! Conversations with a model: messages, what a log says of them, and where one that was cut short is resumed.
//!
//! | module | holds |
//! |---|---|
//! | `model` | messages, calls, turns, and the state of a conversation |
//! | [`pairing`] | the rules that providers have for messages, and how a list that breaks them is repaired |

mod model;
pub mod pairing;

pub use foldlog_codec::body::{Role, Usage as TokenUsage};
pub use model::{
    ContentBlocks, ConversationMessage, ConversationState, ConversationTurn, Dialect, PromptIdentity,
    ToolCallRecord,
};
pub use pairing::{PairingRule, PairingViolation, Repair, RepairChange, repair, validate};
