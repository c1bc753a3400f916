//! Decides which chunks are a session's log: a pure function of the chunks, in the order of their numbers.
//!
//! The *chain* is the sequence of chunks that count. Chunk numbers are positions that writers race for: whoever creates
//! the object with the next number has it, and no object is ever changed. So every reader sees the same objects, and
//! takes the same chunks for the chain by these rules, which [`Chain::take`] applies to one number after the other:
//!
//! 1. A chunk is verified before anything is made of it ([`Chunk::decode`]), or is one of a compacted volume, which was
//!    verified as a whole and states the hashes of its chunks ([`Chunk::decode_compacted`]). One that is damaged, too long, or of a
//!    newer format ends the reading with an error: it may hold what was acknowledged.
//! 2. A chunk of another session ends the reading: somebody copied it here ([`Error::NotOurs`]).
//! 3. A chunk of a lower epoch than the chain's is *ignored*: a superseded writer put it, knew nothing of the claim, and
//!    cannot have had it acknowledged by this chain. Its number is taken all the same; the chain goes on at the next.
//! 4. A chunk of the chain's epoch or a higher one must name the chain's last chunk as its predecessor, since its
//!    writer knew that one. If it does not, a chunk in front of it was exchanged, and the reading ends with
//!    [`Error::Broken`]: to ignore it would hide records that were acknowledged.
//! 5. Its number must be the one in its key, and its first sequence number the chain's next.
//! 6. A chunk of the chain's epoch must be of the writer that claimed that epoch.
//! 7. A chunk of a higher epoch must be a *claim*: it holds no records. Only claims raise the epoch, so each epoch has one
//!    writer. A chain begins with a claim.
//!
//! # What follows
//!
//! - No fork: of two chunks that name the same predecessor at most one is in the chain.
//! - One order: the records of a chain have the numbers 0, 1, 2, … without a gap, in the order of the chunks.
//! - What a writer put behind a claim that it did not know of has a lower epoch, and is ignored.

use foldlog_codec::SequenceNumber;
use uuid::Uuid;

use crate::chunk::{Chunk, ChunkHash, Epoch, WriterId};
use crate::error::{Error, Result};

/// Stands behind the last chunk of a chain that was taken: all that deciding about the next one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    session: Uuid,
    next_number: u64,
    next_sequence: SequenceNumber,
    epoch: Epoch,
    writer: WriterId,
    /// Number and hash of the last chunk of the chain.
    last: Option<(u64, ChunkHash)>,
}

/// Says what a chunk is to the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakenChunk<'a> {
    /// The chunk is the chain's next.
    Next(Chunk<'a>),
    /// A superseded writer put the chunk, and it holds nothing that counts.
    Ignored(Chunk<'a>),
}

impl Chain {
    /// Stands in front of the first chunk of a session.
    pub fn new(session: Uuid) -> Chain {
        Chain {
            session,
            next_number: 0,
            next_sequence: SequenceNumber::new(0),
            epoch: Epoch::default(),
            writer: WriterId::default(),
            last: None,
        }
    }

    /// Takes the chunk with the number [`Chain::next_number`], by the module's rules.
    ///
    /// # Errors
    ///
    /// Those of [`Chunk::decode`], [`Error::NotOurs`], [`Error::Broken`], and [`Error::Malformed`] for a chunk that
    /// breaks one of the rules 5 to 7. The chain stays where it stands.
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<TakenChunk<'a>> {
        let chunk = Chunk::decode(bytes, self.next_number)?;
        self.take_decoded(chunk)
    }

    /// Takes the chunk with that number of a compacted volume, whose bytes were verified, as [`Chain::take`] does. The chunk's hash
    /// is the one that it states.
    ///
    /// # Errors
    ///
    /// Those of [`Chain::take`] but [`Error::Damaged`].
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
        let next_number = number.checked_add(1).ok_or_else(|| malformed("no number follows its own"))?;
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
            return Err(malformed("its key holds another number than its bytes"));
        }
        if head.first_sequence != self.next_sequence {
            return Err(malformed("its records do not follow those before it"));
        }
        if head.epoch == self.epoch && head.writer != self.writer {
            return Err(malformed("another writer claimed its epoch"));
        }
        if head.epoch > self.epoch && chunk.count != 0 {
            return Err(malformed("it raises the epoch and is no claim"));
        }
        self.advance(head.epoch, head.writer, chunk.next_sequence(), chunk.hash);
        Ok(TakenChunk::Next(chunk))
    }

    /// Goes behind a chunk that is known to be the chain's next, and not to have the last number that there is.
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

    /// Returns the number that the next chunk will have.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Returns the sequence number that the next record will have.
    pub fn next_sequence(&self) -> SequenceNumber {
        self.next_sequence
    }

    /// Returns the epoch of the last claim; 0 where there is none.
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

    /// Returns the hash that the next chunk names as its predecessor's.
    pub(crate) fn last_hash(&self) -> ChunkHash {
        self.last.map(|(_, hash)| hash).unwrap_or_default()
    }
}
