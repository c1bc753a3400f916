//! Conversations: their histories, and where a killed one goes on.

mod histories;
mod killed;
