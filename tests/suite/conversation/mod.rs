//! Conversations: what is recorded, what counts after rollbacks and failures, and where a killed one goes on.

mod following;
mod histories;
mod killed;
mod resuming;
