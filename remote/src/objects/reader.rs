//! Reads a session's log from a store, chunk by chunk, without a list: requests the next number, or
//! the volume that contains it.

use uuid::Uuid;

use super::bucket::Bucket;
use super::log_end;
use super::volume_lookup::{ChunkBytes, Shelf, has};
use crate::chain::{Chain, TakenChunk};
use crate::chunk::Chunk;
use crate::error::{Error, GapEnd, Result};

/// Maximum number of chunks of a volume that are passed on at once.
const BATCH: usize = 256;

/// A verified chunk of the chain.
#[derive(Clone, Debug)]
pub(crate) struct VerifiedChunk {
    pub(crate) number: u64,
    pub(crate) bytes: ChunkBytes,
}

/// Reads the chunks of one session in the order of their chain. It can continue once there are
/// more.
#[derive(Clone, Debug)]
pub struct ChunkReader {
    pub(crate) bucket: Bucket,
    pub(crate) chain: Chain,
    ignored: u64,
    /// Knowledge about the session's volumes.
    pub(crate) shelf: Shelf,
    /// Number that was verified to be the end, without later objects.
    end: Option<u64>,
}

impl ChunkReader {
    /// Returns a reader before the first chunk of a session. Sends no request.
    pub fn new(bucket: Bucket, session: Uuid) -> ChunkReader {
        ChunkReader::from_chain(bucket, Chain::new(session))
    }

    /// Returns a reader at the end of a chain that was read before. Sends no request.
    pub(crate) fn from_chain(bucket: Bucket, chain: Chain) -> ChunkReader {
        ChunkReader { bucket, chain, ignored: 0, shelf: Shelf::new(chain.session()), end: None }
    }

    /// Continues after a chain that was read before, after checking that the store still has that
    /// chain's last chunk, in a volume or as an object.
    ///
    /// # Errors
    ///
    /// [`Error::RemoteWentBack`] if that chunk is missing or differs, and [`Error::Store`].
    pub async fn resume(bucket: Bucket, chain: Chain) -> Result<ChunkReader> {
        let reader = ChunkReader::from_chain(bucket, chain);
        reader.require_last().await?;
        Ok(reader)
    }

    /// Checks that the store still has the chain's last chunk.
    pub(crate) async fn require_last(&self) -> Result<()> {
        let Some((number, hash)) = self.chain.last() else { return Ok(()) };
        match has(&self.bucket, self.chain.session(), number, hash).await? {
            true => Ok(()),
            false => Err(Error::RemoteWentBack { chunk: number }),
        }
    }

    /// Reads the next chunk of the chain and passes it to `each`; returns `false` if there is none
    /// yet. Ignored chunks are skipped.
    ///
    /// A chunk that fails verification is read a second time before it counts as damaged, since the
    /// bytes may have been damaged in transit.
    ///
    /// # Errors
    ///
    /// The errors of [`Chain::take`], [`Error::Store`], [`Error::TooLarge`], and [`Error::Volume`]
    /// if the chunk was collected and its volume cannot be used. The reader does not move then.
    pub async fn next(&mut self, each: &mut (dyn FnMut(&Chunk<'_>) + Send)) -> Result<bool> {
        Ok(self.take_next(each).await?.is_some())
    }

    /// Reads the next chunk of the chain; returns `None` if there is none yet.
    async fn take_next(
        &mut self,
        each: &mut (dyn FnMut(&Chunk<'_>) + Send),
    ) -> Result<Option<VerifiedChunk>> {
        loop {
            let number = self.chain.next_number();
            let Some(bytes) = self.shelf.find(&self.bucket, number).await? else { return Ok(None) };
            let is_next = match bytes.take_by(&mut self.chain) {
                Ok(TakenChunk::Next(chunk)) => {
                    each(&chunk);
                    true
                }
                Ok(TakenChunk::Ignored(_)) => {
                    self.ignored += 1;
                    false
                }
                // The volume's chunk is not required: it may still exist as an object.
                Err(_) if self.shelf.refuse(&self.bucket, number) => continue,
                Err(error) => return Err(error),
            };
            self.shelf.note_taken(&self.bucket, number, bytes.len());
            if is_next {
                return Ok(Some(VerifiedChunk { number, bytes }));
            }
        }
    }

    /// Reads the next chunk of the chain; returns `None` at the end. Verifies the end by
    /// [`log_end`]: after a lost chunk, there is a later one.
    async fn take_next_or_end(
        &mut self,
        each: &mut (dyn FnMut(&Chunk<'_>) + Send),
    ) -> Result<Option<VerifiedChunk>> {
        let mut missing = None;
        loop {
            if let Some(read) = self.take_next(each).await? {
                return Ok(Some(read));
            }
            let chunk = self.chain.next_number();
            if let Some((_, behind)) = missing.filter(|(missing, _)| *missing == chunk) {
                return Err(Error::Missing { chunk, behind });
            }
            let Some(behind) = self.find_behind(chunk).await? else { return Ok(None) };
            // A writer may have put both in the meantime, and a volume may contain the lost chunk.
            self.shelf.forget_end();
            missing = Some((chunk, behind));
        }
    }

    /// Reads the next chunks of the chain and verifies them: one, or as many as an open volume has.
    /// Returns none at the end, which is verified as [`ChunkReader::read_to_end`] does.
    pub(crate) async fn read_some(&mut self) -> Result<Vec<VerifiedChunk>> {
        let mut some: Vec<VerifiedChunk> = self.take_next_or_end(&mut |_| {}).await?.into_iter().collect();
        while (1..BATCH).contains(&some.len()) && self.shelf.on_hand(self.chain.next_number()).is_some() {
            // The next call reads a chunk that fails here again, and returns its error.
            let Ok(Some(read)) = self.take_next(&mut |_| {}).await else { break };
            some.push(read);
        }
        Ok(some)
    }

    /// Returns the object after a number without an object.
    async fn find_behind(&mut self, number: u64) -> Result<Option<GapEnd>> {
        let session = self.chain.session();
        let mut found = log_end::next(&self.bucket, session, number).await?;
        if found.is_none() && self.end != Some(number) {
            found = log_end::further(&self.bucket, session, number).await?;
            self.end = found.is_none().then_some(number);
        }
        Ok(found)
    }

    /// Reads to the end, and verifies that it is the end: after a lost chunk there is a later one,
    /// a volume or a mark. That takes one request, and up to seven more if the log did not end at
    /// this number before.
    ///
    /// # Errors
    ///
    /// The errors of [`ChunkReader::next`], and [`Error::Missing`] if a chunk is missing but later
    /// objects exist.
    pub async fn read_to_end(&mut self, each: &mut (dyn FnMut(&Chunk<'_>) + Send)) -> Result<()> {
        while self.take_next_or_end(each).await?.is_some() {}
        Ok(())
    }

    /// Returns the chain up to the last chunk that was read.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Returns the number of ignored chunks, which superseded writers put.
    pub fn ignored_count(&self) -> u64 {
        self.ignored
    }
}
