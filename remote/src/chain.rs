//! Decides which chunks are a session's log: a pure function of the chunks, in the order of their
//! numbers.
//!
//! The *chain* is the sequence of chunks that count. Chunk numbers are positions for which writers
//! race: the writer that creates the object with the next number owns it, and no object ever
//! changes. So every reader sees the same objects, and derives the same chain from them by these
//! rules, which [`Chain::take`] applies to one number after the other:
//!
//! 1. A chunk is verified before it is used ([`Chunk::decode`]). A chunk of a compacted volume is
//!    verified with the whole volume, which states the hashes of its chunks
//!    ([`Chunk::decode_compacted`]). One that is damaged, too long, or of a newer format ends the
//!    reading with an error, since it may contain acknowledged records.
//! 2. A chunk of another session ends the reading: it was copied here ([`Error::NotOurs`]).
//! 3. A chunk with a lower epoch than the chain's is *ignored*: a superseded writer put it, did not
//!    know the claim, and cannot have had it acknowledged by this chain. Its number is used up; the
//!    chain continues at the next.
//! 4. A chunk with the chain's epoch or a higher one must name the chain's last chunk as its
//!    predecessor, since its writer knew that one. If it does not, an earlier chunk was exchanged,
//!    and the reading ends with [`Error::Broken`]. Ignoring the chunk would hide acknowledged
//!    records.
//! 5. Its number must be the one in its key, and its first sequence number the chain's next.
//! 6. A chunk with the chain's epoch must be from the writer that claimed that epoch.
//! 7. A chunk with a higher epoch must be a *claim*: it contains no records. Only claims raise the
//!    epoch, so each epoch has one writer. A chain starts with a claim.
//!
//! # Consequences
//!
//! - No fork: of two chunks that name the same predecessor at most one is in the chain.
//! - One order: the records of a chain have the numbers 0, 1, 2, … without a gap, in the order of
//!   the chunks.
//! - Chunks that a writer puts after a claim unknown to it have a lower epoch, and are ignored.

use foldlog_codec::SequenceNumber;
use uuid::Uuid;

use crate::chunk::{Chunk, ChunkHash, Epoch, WriterId};
use crate::error::{Error, Result};

/// Describes the end of a chain so far, with all state that is needed to decide about the next
/// chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    session: Uuid,
    next_number: u64,
    next_sequence: SequenceNumber,
    epoch: Epoch,
    writer: WriterId,
    /// Number and hash of the last chunk of the chain.
    last: Option<(u64, ChunkHash)>,
}

/// Describes the role of a chunk in the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakenChunk<'a> {
    /// The chunk is the chain's next.
    Next(Chunk<'a>),
    /// A superseded writer put the chunk, and none of its contents count.
    Ignored(Chunk<'a>),
}

impl Chain {
    /// Returns an empty chain, before the first chunk of a session.
    pub fn new(session: Uuid) -> Chain {
        Chain { session, ..Chain::default() }
    }

    /// Takes the chunk with the number [`Chain::next_number`], by the module's rules.
    ///
    /// # Errors
    ///
    /// The errors of [`Chunk::decode`], [`Error::NotOurs`], [`Error::Broken`], and
    /// [`Error::Malformed`] for a chunk that violates one of the rules 5 to 7. The chain is
    /// unchanged then.
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<TakenChunk<'a>> {
        let chunk = Chunk::decode(bytes, self.next_number)?;
        self.take_decoded(chunk)
    }

    /// Takes the next chunk from a compacted volume whose bytes were verified, as [`Chain::take`]
    /// does. The chunk's hash is the one that it states.
    ///
    /// # Errors
    ///
    /// The errors of [`Chain::take`] except [`Error::Damaged`].
    pub fn take_compacted<'a>(&mut self, bytes: &'a [u8]) -> Result<TakenChunk<'a>> {
        let chunk = Chunk::decode_compacted(bytes, self.next_number)?;
        self.take_decoded(chunk)
    }

    fn take_decoded<'a>(&mut self, chunk: Chunk<'a>) -> Result<TakenChunk<'a>> {
        let number = self.next_number;
        let malformed = |reason| Error::Malformed { chunk: number, reason };
        let head = &chunk.head;
        if head.session != self.session {
            return Err(Error::NotOurs { chunk: number, session: self.session, found: head.session });
        }
        let next_number =
            number.checked_add(1).ok_or_else(|| malformed("its number is the highest possible"))?;
        if head.epoch < self.epoch {
            self.next_number = next_number;
            return Ok(TakenChunk::Ignored(chunk));
        }
        if head.epoch == Epoch::default() {
            return Err(malformed("it has no epoch"));
        }
        if head.previous != self.last_hash() {
            return Err(Error::Broken { chunk: number, expected: self.last_hash(), found: head.previous });
        }
        if head.number != number {
            return Err(malformed("its key and its bytes name different numbers"));
        }
        if head.first_sequence != self.next_sequence {
            return Err(malformed("its records do not follow the previous ones"));
        }
        if head.epoch == self.epoch && head.writer != self.writer {
            return Err(malformed("another writer claimed its epoch"));
        }
        if head.epoch > self.epoch && chunk.count != 0 {
            return Err(malformed("it raises the epoch, but is not a claim"));
        }
        self.advance(head.epoch, head.writer, chunk.next_sequence(), chunk.hash);
        Ok(TakenChunk::Next(chunk))
    }

    /// Advances past a chunk that is known to be the chain's next, and whose number is not the last
    /// possible one.
    pub(crate) fn advance(&mut self, epoch: Epoch, writer: WriterId, next: SequenceNumber, hash: ChunkHash) {
        self.last = Some((self.next_number, hash));
        self.next_number = self.next_number.saturating_add(1);
        self.next_sequence = next;
        self.epoch = epoch;
        self.writer = writer;
    }

    /// Returns the session.
    pub fn session(&self) -> Uuid {
        self.session
    }

    /// Returns the number of the next chunk.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Returns the sequence number of the next record.
    pub fn next_sequence(&self) -> SequenceNumber {
        self.next_sequence
    }

    /// Returns the epoch of the last claim; 0 if there is none.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the writer of the last claim.
    pub fn writer(&self) -> WriterId {
        self.writer
    }

    /// Returns number and hash of the chain's last chunk; `None` if it has none.
    pub fn last(&self) -> Option<(u64, ChunkHash)> {
        self.last
    }

    /// Returns the hash that the next chunk must name as its predecessor's.
    pub(crate) fn last_hash(&self) -> ChunkHash {
        self.last.map(|(_, hash)| hash).unwrap_or_default()
    }
}
