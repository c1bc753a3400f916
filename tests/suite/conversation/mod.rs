//! Conversations: their histories, and how a killed one continues.

mod histories;
mod killed;
