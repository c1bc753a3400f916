//! The record format of foldlog: what stands in a segment file, byte for byte.
//!
//! | module | holds |
//! |---|---|
//! | [`frame`] | the 28-byte header and the CRC that every record carries |
//! | [`segment`] | the header of a segment file |
//! | [`id`] | sequence numbers and operation ids |
//! | [`kind`] | the kinds of record, all numbered |
//! | [`msgpack`] | MessagePack: tokens, limits, values, JSON forms |
//! | [`body`] | what the body of each kind holds |
//! | [`image`] | what a log amounted to at one position, kept beside it |
//! | [`record`] | one record in memory, and its JSON form |
//! | [`digest`] | hashes over content, never over frame bytes |
//! | [`escape`] | text from outside, made fit for a terminal |
//!
//! # Invariants
//!
//! 1. This crate does no I/O, reads no clock, draws no randomness and knows no Rust type of a host.
//! 2. No function panics on input, and none allocates what a length field merely claims.
//! 3. The same value is always written as the same bytes: no hash map's order reaches an output.
//! 4. No message of an error holds a control character, whatever it quotes.
//! 5. Integers outside MessagePack are little-endian and of fixed width.

#![deny(clippy::indexing_slicing)]

pub mod body;
pub mod crc;
pub mod digest;
mod error;
pub mod escape;
pub mod frame;
pub mod id;
pub mod image;
pub mod kind;
pub mod msgpack;
pub mod record;
#[doc(hidden)]
pub mod sabotage;
pub mod segment;

pub use error::Error;
pub use id::{OperationId, SequenceNumber};
pub use kind::Kind;
pub use record::Record;

/// The format version that this crate writes into segment headers.
pub const FORMAT_VERSION: u16 = 1;
