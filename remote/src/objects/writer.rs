//! Claims a session and appends to it: one put at a time, each of an object that must not exist
//! yet.
//!
//! # How a chunk is put
//!
//! The chunk is encoded once, with a nonce. Those bytes are put under the chain's next number until
//! the outcome is known:
//!
//! 1. The store reports that it created the object, and the number was not collected before
//!    ([`volume_lookup`](super::volume_lookup) describes how that is known; mostly it takes no
//!    request). The chunk is in the chain, and its records are acknowledged. If more than half of
//!    [`MIN_AGE`](crate::MIN_AGE) has passed since the previous chunk was put, that one is read
//!    back too.
//! 2. For any other answer, the object with that number is read. If its bytes are ours, with hash
//!    and nonce, an earlier attempt or a second delivery of this one created it, and the answer was
//!    lost. The records are acknowledged.
//! 3. If the object is another chunk that belongs to the chain, its writer was faster. If that
//!    chunk is another claim, this writer is *fenced*: it never puts a chunk again.
//! 4. If the object is a chunk that the chain ignores, the number is used, and the records are put
//!    under the next one.
//! 5. If there is no such object, the answer "exists" meant that another put was in progress, or
//!    the put was not delivered. It is put again after a wait.
//! 6. If the attempts of [`Retries`](crate::Retries) are used up, the outcome is
//!    [`Error::Unknown`]. The writer keeps the bytes, and the next call puts the same ones again.
//!    No other bytes are put under that number before its outcome is known, since the put may be
//!    delivered at any time.
//!
//! So a superseded writer gets no append acknowledged that started after the claim: the claim has
//! the next number of every writer that does not know it, and that number is used.
//!
//! If a volume contains a number, rules 2 to 4 apply to the volume's chunk, and not to an object
//! under that number.
//!
//! Volumes are put by a separate task ([`volume_builder`](super::volume_builder)), for which no
//! append waits.
//!
//! Dropping a future of this module leaves the writer in the same state as [`Error::Unknown`].

use std::time::Duration;

use foldlog::replication::CapturePacks;
use foldlog_codec::{Record, SequenceNumber};
use object_store::PutPayload;
use uuid::Uuid;

use super::bucket::{PutOutcome, RequestFailure};
use super::reader::ChunkReader;
use super::volume_builder::Makers;
use super::volume_lookup::ChunkBytes;
use crate::chain::{Chain, TakenChunk};
use crate::chunk::{CHUNK_BYTES_MAX, Chunk, ChunkEncoder, ChunkHash, ChunkHead, Epoch, WriterId};
use crate::error::{Error, Reason, RemoteFailure, Result};
use crate::replicator::SessionWriter;

/// Maximum number of puts of a claim before it counts as contended.
const CLAIM_ROUNDS_MAX: u32 = 100;

/// Appends to one session, as the writer of one epoch.
#[derive(Debug)]
pub struct ChunkWriter {
    /// Positioned after the last chunk with a known outcome.
    reader: ChunkReader,
    id: WriterId,
    epoch: Epoch,
    pending: Option<PendingChunk>,
    makers: Makers,
    /// Why this writer must not put anything any more.
    stopped: Option<Error>,
}

/// A chunk with an unknown outcome.
#[derive(Debug)]
struct PendingChunk {
    encoder: ChunkEncoder,
    payload: PutPayload,
    hash: ChunkHash,
    /// Time of its first put.
    since: Option<Duration>,
}

impl PendingChunk {
    /// Encodes the records under the encoder's head, with its place in the chain set.
    fn new(encoder: ChunkEncoder, chain: &Chain) -> PendingChunk {
        let head = ChunkHead {
            number: chain.next_number(),
            previous: chain.last_hash(),
            nonce: *Uuid::new_v4().as_bytes(),
            ..encoder.head.clone()
        };
        let encoded = encoder.finish_as(&head);
        PendingChunk { encoder, payload: PutPayload::from(encoded.bytes), hash: encoded.hash, since: None }
    }
}

/// Describes the outcome of a chunk.
#[derive(Debug)]
enum ChunkFate {
    /// The chunk is in the chain.
    Acknowledged,
    /// Another chunk took the chunk's place in the chain: head of that one.
    Overtaken(ChunkHead),
}

impl ChunkWriter {
    /// Reads to the end of the log, passes each chunk to `each`, and claims the session with the
    /// next epoch. From then on every earlier writer is fenced. `note` names the claimant, for
    /// later readers of the log.
    ///
    /// # Errors
    ///
    /// - [`Error::Fenced`] if another writer claimed the session in the meantime: the two have to
    ///   decide which one continues.
    /// - [`Error::Contended`] if the current writer appended faster than this one could claim.
    /// - [`Error::Unknown`] if the store does not report whether the claim was put. It may be in
    ///   the log, now or later. The current writer is then fenced by a claim without a writer, and
    ///   the next claimant continues.
    /// - The errors of [`ChunkReader::read_to_end`], and [`Error::TooLarge`] for the note.
    pub async fn claim(
        mut reader: ChunkReader,
        note: &str,
        each: &mut (dyn FnMut(&Chunk<'_>) + Send),
    ) -> Result<ChunkWriter> {
        let id = WriterId::random();
        reader.read_to_end(each).await?;
        let seen = reader.chain().epoch();
        for _ in 0..CLAIM_ROUNDS_MAX {
            let chain = *reader.chain();
            if chain.epoch() != seen {
                return Err(Error::Fenced { epoch: chain.epoch(), by: chain.writer(), note: String::new() });
            }
            let mut writer = ChunkWriter::with_claim(reader, id, note)?;
            match writer.put_pending(each).await? {
                ChunkFate::Acknowledged => return Ok(writer),
                ChunkFate::Overtaken(other) if other.epoch != seen => return Err(fenced_error(&other)),
                ChunkFate::Overtaken(_) => {}
            }
            reader = writer.reader;
            reader.read_to_end(each).await?;
        }
        Err(Error::Contended { rounds: CLAIM_ROUNDS_MAX })
    }

    /// Claims a session whose log was read to its end, with one attempt: if anything was put after
    /// that end, nothing is claimed.
    ///
    /// # Errors
    ///
    /// [`Error::Fenced`] if there is another chunk, of any writer, or the errors of
    /// [`ChunkWriter::claim`].
    pub async fn claim_behind(reader: ChunkReader, note: &str) -> Result<ChunkWriter> {
        let mut writer = ChunkWriter::with_claim(reader, WriterId::random(), note)?;
        match writer.put_pending(&mut |_| {}).await? {
            ChunkFate::Acknowledged => Ok(writer),
            ChunkFate::Overtaken(other) => Err(fenced_error(&other)),
        }
    }

    /// Returns a writer with a pending claim after the reader's position.
    fn with_claim(reader: ChunkReader, id: WriterId, note: &str) -> Result<ChunkWriter> {
        let chain = *reader.chain();
        let epoch = chain.epoch().next().ok_or(Error::Malformed {
            chunk: chain.next_number().saturating_sub(1),
            reason: "its epoch is the highest possible",
        })?;
        let encoder = ChunkEncoder::new(head(&chain, id, epoch, note))?;
        let pending = Some(PendingChunk::new(encoder, &chain));
        let makers = Makers::new(reader.bucket.clone(), chain.session());
        Ok(ChunkWriter { reader, id, epoch, pending, makers, stopped: None })
    }

    /// Appends records. Returns the sequence number after the last one, once the log contains them
    /// all. Records that are still in doubt are settled first. If the records do not fit into one
    /// chunk, several are put.
    pub async fn append<'a>(
        &mut self,
        records: impl IntoIterator<Item = Record<'a>>,
    ) -> Result<SequenceNumber> {
        self.append_with(None, &records.into_iter().collect::<Vec<_>>()).await
    }

    /// Puts the pending chunk until its outcome is known, by the module's rules. A chunk that
    /// overtook it is passed to `each`.
    async fn put_pending(&mut self, each: &mut (dyn FnMut(&Chunk<'_>) + Send)) -> Result<ChunkFate> {
        let mut attempts = self.reader.bucket.begin();
        while attempts.wait_for_next().await {
            let bucket = self.reader.bucket.clone();
            let Some(pending) = &mut self.pending else { return Ok(ChunkFate::Acknowledged) };
            pending.since.get_or_insert_with(|| bucket.now());
            let payload = pending.payload.clone();
            let chain = *self.reader.chain();
            let key = bucket.chunk_key(chain.session(), chain.next_number());
            let put = bucket.put_once(&key, &payload).await;
            let found = match put {
                PutOutcome::Created => None,
                _ => match bucket.get_once(&key, CHUNK_BYTES_MAX).await {
                    Ok(Some(found)) => Some(ChunkBytes::from(found)),
                    Ok(None) => {
                        attempts.note_failure(match put {
                            PutOutcome::Failed(reason) => reason,
                            _ => RemoteFailure::Conflict.into(),
                        });
                        continue;
                    }
                    Err(RequestFailure::Final(error)) => return Err(*error),
                    Err(RequestFailure::Failed(reason)) => {
                        attempts.note_failure(reason);
                        continue;
                    }
                },
            };
            let found = match self.find_collected().await {
                Ok(instead) => instead.or(found),
                Err(Error::Store { failure, details, .. }) => {
                    attempts.note_failure(Reason { failure, details: *details });
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(found) = found else {
                self.acknowledge();
                return Ok(ChunkFate::Acknowledged);
            };
            match self.decide_fate(&found, each) {
                Ok(Some(fate)) => return Ok(fate),
                // The number is used by a chunk that does not count: start again with the next one.
                Ok(None) => attempts.begin_anew(),
                // The bytes may have been damaged in transit.
                Err(Error::Damaged { .. }) if !attempts.is_over() => {}
                Err(error) => return Err(error),
            }
        }
        Err(attempts.last().unknown(self.next_sequence()))
    }

    /// Returns the volume's chunk with the pending chunk's number, if that was collected before it
    /// was put or just read.
    async fn find_collected(&mut self) -> Result<Option<ChunkBytes>> {
        let number = self.reader.chain().next_number();
        let ChunkReader { shelf, bucket, .. } = &mut self.reader;
        if shelf.is_fresh(bucket, number) {
            return Ok(None);
        }
        let instead = shelf.instead(bucket, number).await?;
        if instead.is_none() {
            self.reader.require_last().await?;
        }
        Ok(instead)
    }

    /// Decides the outcome from the object under the pending chunk's number. Returns `None` if the
    /// chain ignores the object: the pending chunk has moved to the next number.
    fn decide_fate(
        &mut self,
        found: &ChunkBytes,
        each: &mut (dyn FnMut(&Chunk<'_>) + Send),
    ) -> Result<Option<ChunkFate>> {
        let ours = self.pending.as_ref().map(|pending| pending.hash);
        let chain = &mut self.reader.chain;
        let number = chain.next_number();
        let fate = match found.take_by(chain)? {
            TakenChunk::Next(chunk) if Some(chunk.hash) == ours => {
                self.acknowledge_behind();
                return Ok(Some(ChunkFate::Acknowledged));
            }
            TakenChunk::Next(chunk) => {
                each(&chunk);
                self.pending = None;
                Some(ChunkFate::Overtaken(chunk.head))
            }
            TakenChunk::Ignored(_) => {
                let chain = *chain;
                self.pending = self.pending.take().map(|pending| PendingChunk::new(pending.encoder, &chain));
                None
            }
        };
        self.note_taken(number, found.len());
        Ok(fate)
    }

    /// Adds the pending chunk, which the store has created, to the chain.
    fn acknowledge(&mut self) {
        if let Some(pending) = &self.pending {
            let (next, hash) = (pending.encoder.next_sequence(), pending.hash);
            self.reader.chain.advance(self.epoch, self.id, next, hash);
            self.acknowledge_behind();
        }
    }

    /// Forgets the pending chunk, which is now the chain's last one.
    fn acknowledge_behind(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let next = self.reader.chain().next_number();
        if let Some(since) = pending.since {
            // No writer put a chunk after it before it was put.
            self.reader.shelf.note_end(next, since);
        }
        let number = next.saturating_sub(1);
        let len = pending.payload.content_length();
        self.makers.keep(number, pending.payload);
        self.note_taken(number, len);
    }

    /// Notes that the chain has passed a number, and queues the volumes that this completes.
    fn note_taken(&mut self, number: u64, len: usize) {
        let ChunkReader { shelf, bucket, .. } = &mut self.reader;
        shelf.note_taken(bucket, number, len);
        let missing = std::mem::take(&mut shelf.missing);
        if self.stopped.is_none() {
            self.makers.make(missing);
        }
    }

    /// Returns the sequence number up to which the log contains all records, as far as this writer
    /// knows.
    pub fn acknowledged_sequence(&self) -> SequenceNumber {
        self.reader.chain().next_sequence()
    }

    /// Returns the sequence number of the next record to append, after those that are in doubt.
    pub fn next_sequence(&self) -> SequenceNumber {
        match &self.pending {
            Some(pending) => pending.encoder.next_sequence(),
            None => self.acknowledged_sequence(),
        }
    }

    /// Returns whether records are in doubt.
    pub fn is_in_doubt(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns this writer's id.
    pub fn id(&self) -> WriterId {
        self.id
    }

    /// Returns the end of the log, as far as this writer knows.
    pub fn chain(&self) -> &Chain {
        self.reader.chain()
    }

    fn check(&self) -> Result<()> {
        self.stopped.clone().map_or(Ok(()), Err)
    }

    /// Stops the writer: its pending chunk is never put again.
    fn stop(&mut self, error: Error) -> Error {
        self.pending = None;
        self.stopped = Some(error.clone());
        error
    }
}

impl SessionWriter for ChunkWriter {
    type State = Chain;

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn state(&self) -> Option<Chain> {
        self.stopped.is_none().then(|| *self.chain())
    }

    fn queue(&mut self, captures: Option<CapturePacks<'_>>, records: &[Record<'_>]) -> Result<usize> {
        self.check()?;
        if self.pending.is_some() {
            return Err(self.reader.bucket.begin().in_doubt(self.next_sequence()));
        }
        let chain = self.reader.chain();
        let mut encoder = ChunkEncoder::new(head(chain, self.id, self.epoch, ""))?;
        if let Some(CapturePacks { packs, inlined }) = captures {
            encoder.set_captures(packs, inlined)?;
        }
        let mut taken = 0;
        for record in records {
            if taken > 0 && !encoder.has_room(record.body.len()) {
                break;
            }
            encoder.push(*record)?;
            taken += 1;
        }
        if taken > 0 {
            self.pending = Some(PendingChunk::new(encoder, chain));
        }
        Ok(taken)
    }

    async fn settle(&mut self) -> Result<SequenceNumber> {
        self.check()?;
        if self.pending.is_some() {
            match self.put_pending(&mut |_| {}).await {
                Ok(ChunkFate::Acknowledged) => {}
                Ok(ChunkFate::Overtaken(other)) => return Err(self.stop(fenced_error(&other))),
                Err(error @ (Error::Unknown { .. } | Error::Store { .. })) => return Err(error),
                Err(error) => return Err(self.stop(error)),
            }
        }
        Ok(self.acknowledged_sequence())
    }

    /// Waits until the volumes whose chunks are in memory are put, at most for the time limit of
    /// one request.
    async fn finish(mut self) {
        self.makers.finish().await;
    }
}

/// Returns the head of a writer's next chunk. [`PendingChunk::new`] sets its place in the chain.
fn head(chain: &Chain, writer: WriterId, epoch: Epoch, note: &str) -> ChunkHead {
    ChunkHead {
        session: chain.session(),
        number: 0,
        epoch,
        writer,
        nonce: [0; 16],
        previous: ChunkHash::default(),
        first_sequence: chain.next_sequence(),
        note: note.to_owned(),
    }
}

/// Returns the error for another writer's chunk in place of ours.
fn fenced_error(other: &ChunkHead) -> Error {
    Error::Fenced { epoch: other.epoch, by: other.writer, note: other.note.clone() }
}
