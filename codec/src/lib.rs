//! Defines the record format of foldlog: the bytes of a segment file.
//!
//! A log is a chain of segment files. Each starts with a [segment header](segment), followed by
//! [frames](frame). A frame is a fixed header and a [body], which is one MessagePack map. A
//! [`Record`] is the content of a frame in memory.
//!
//! | module | contents |
//! |---|---|
//! | [`frame`] | the 28-byte header and the CRC of every record |
//! | [`segment`] | the header of a segment file |
//! | [`id`] | sequence numbers and operation ids |
//! | [`kind`] | the numbered kinds of record |
//! | [`msgpack`] | MessagePack: tokens, limits, values, JSON forms |
//! | [`body`] | the body of each kind: its fields, payloads and JSON form |
//! | [`image`] | a cache next to the log: the slices and operations at one position |
//! | [`record`] | one record in memory, and its JSON form |
//! | [`digest`] | hashes over content, never over frame bytes |
//! | [`crc`] | CRC-32 of concatenated byte ranges |
//! | [`escape`] | escaping of untrusted text for terminals and JSON |
//!
//! # Invariants
//!
//! 1. This crate does no I/O, reads no clock, uses no randomness and depends on no Rust type of a
//!    host.
//! 2. No function panics on any input. None allocates memory for a length before that many bytes
//!    are available.
//! 3. Equal values encode to equal bytes: the order of a hash map never reaches an output.
//! 4. No error message contains a control character, not even in quoted text.
//! 5. Integers outside MessagePack are little-endian and of fixed width.
//!
//! # Example
//!
//! Encode an event as a frame, then decode it as a reader of the segment does:
//!
//! ```
//! use foldlog_codec::body::{Action, Dispatch, Payload};
//! use foldlog_codec::frame::{self, Context, Header};
//! use foldlog_codec::{RecordKind, msgpack};
//!
//! let data = msgpack::to_vec("ship it")?;
//! let action = Action::Event { event: 0, data: Payload::new(&data) };
//! let body = Dispatch { action, effects: None }.encode();
//!
//! let segment = Context::new(0x5eed, 100.into());
//! let header = Header {
//!     crc: 0,
//!     predecessor_crc: 0,
//!     body_len: 0,
//!     sequence: 105.into(),
//!     watermark: 103.into(),
//!     kind: RecordKind::Dispatch,
//!     time_us: 1_767_323_045_678_901,
//! };
//! let mut bytes = Vec::new();
//! frame::encode(segment, &header, &body, &mut bytes)?;
//!
//! let frame = frame::decode(segment, &bytes)?;
//! let Action::Event { data, .. } = Dispatch::decode(frame.body)?.action else { unreachable!() };
//! assert_eq!(msgpack::from_slice::<String>(data.bytes())?, "ship it");
//! # Ok::<(), foldlog_codec::Error>(())
//! ```

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
pub mod segment;

pub use error::Error;
pub use id::{OperationId, SequenceNumber};
pub use kind::RecordKind;
pub use record::Record;

/// Format version that this crate writes into segment headers, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;
