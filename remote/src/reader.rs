//! Reads a session's log from a store, chunk by chunk, without a list: by asking for the next number, or for the volume that holds it.

use uuid::Uuid;

use crate::bucket::Bucket;
use crate::chain::{Chain, TakenChunk};
use crate::chunk::Chunk;
use crate::error::{Error, GapEnd, Result};
use crate::log_end;
use crate::volumes::{ChunkBytes, Shelf, has};

/// How many chunks of a volume are handed on at once at most.
const BATCH: usize = 256;

/// Holds a chunk of the chain that was verified, and where the chain stands behind it.
#[derive(Clone, Debug)]
pub(crate) struct VerifiedChunk {
    pub(crate) number: u64,
    pub(crate) bytes: ChunkBytes,
    pub(crate) behind: Chain,
}

/// Reads the chunks of one session in the order of their chain. It can be read on once there are more.
#[derive(Clone, Debug)]
pub struct ChunkReader {
    bucket: Bucket,
    chain: Chain,
    ignored: u64,
    shelf: Shelf,
    /// Number that was found to be the end, with nothing far behind it.
    end: Option<u64>,
}

impl ChunkReader {
    /// Stands in front of the first chunk of a session, and asks the store for nothing.
    pub fn new(bucket: Bucket, session: Uuid) -> ChunkReader {
        ChunkReader::from_chain(bucket, Chain::new(session))
    }

    /// Stands behind a chain that was read before, and asks the store for nothing.
    pub(crate) fn from_chain(bucket: Bucket, chain: Chain) -> ChunkReader {
        ChunkReader { bucket, chain, ignored: 0, shelf: Shelf::new(chain.session()), end: None }
    }

    /// Goes on behind a chain that was read before, once the store still has that chain's last chunk, in a volume or on its own.
    ///
    /// # Errors
    ///
    /// [`Error::RemoteWentBack`] if that chunk is gone or another one, and [`Error::Store`].
    pub async fn resume(bucket: Bucket, chain: Chain) -> Result<ChunkReader> {
        let reader = ChunkReader::from_chain(bucket, chain);
        reader.require_last().await?;
        Ok(reader)
    }

    /// Makes sure that the store still has the chain's last chunk.
    ///
    /// # Errors
    ///
    /// Those of [`ChunkReader::resume`].
    pub(crate) async fn require_last(&self) -> Result<()> {
        let Some((number, hash)) = self.chain.last() else { return Ok(()) };
        match has(&self.bucket, self.chain.session(), number, hash).await? {
            true => Ok(()),
            false => Err(Error::RemoteWentBack { chunk: number }),
        }
    }

    /// Reads the next chunk of the chain and hands it to `each`; returns `false` if there is none yet. Chunks that are
    /// ignored are passed over.
    ///
    /// What does not verify is read once more before it counts as damaged: the bytes may have been damaged on the way.
    ///
    /// # Errors
    ///
    /// Those of [`Chain::take`], [`Error::Store`], [`Error::TooLarge`], and [`Error::Volume`] where the chunk was collected and its
    /// volume cannot be used. The reader stays where it stands.
    pub async fn next(&mut self, each: &mut (dyn FnMut(&Chunk<'_>) + Send)) -> Result<bool> {
        Ok(self.take_next(each).await?.is_some())
    }

    /// Reads the next chunk of the chain; `None` if there is none yet.
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
                // A volume decides nothing: its chunk may still be there as an object.
                Err(_) if self.shelf.refuse(&self.bucket, number) => continue,
                Err(error) => return Err(error),
            };
            self.shelf.note_taken(&self.bucket, number, bytes.len());
            if is_next {
                return Ok(Some(VerifiedChunk { number, bytes, behind: self.chain }));
            }
        }
    }

    /// Reads the next chunk of the chain; `None` at the end, of which it makes sure by [`log_end`]: behind a chunk that was lost stands
    /// another one.
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
            // A writer may have put both meanwhile, and a volume may hold what is lost.
            self.shelf.forget_end();
            missing = Some((chunk, behind));
        }
    }

    /// Reads the next chunks of the chain, which were verified: one, or as many as a volume has on hand. None at the end, which was made
    /// sure of as [`ChunkReader::read_to_end`] does.
    pub(crate) async fn read_some(&mut self) -> Result<Vec<VerifiedChunk>> {
        let mut some: Vec<VerifiedChunk> = self.take_next_or_end(&mut |_| {}).await?.into_iter().collect();
        while (1..BATCH).contains(&some.len()) && self.shelf.on_hand(self.chain.next_number()).is_some() {
            // What does not fit is met again by the next call.
            let Ok(Some(read)) = self.take_next(&mut |_| {}).await else { break };
            some.push(read);
        }
        Ok(some)
    }

    /// Returns what stands behind a number that nothing stands under.
    async fn find_behind(&mut self, number: u64) -> Result<Option<GapEnd>> {
        let session = self.chain.session();
        let mut found = log_end::next(&self.bucket, session, number).await?;
        if found.is_none() && self.end != Some(number) {
            found = log_end::further(&self.bucket, session, number).await?;
            self.end = found.is_none().then_some(number);
        }
        Ok(found)
    }

    /// Reads on to the end, and makes sure that it is one: behind a chunk that was lost stands another one, a volume or a mark. That costs
    /// a request, and up to seven more where the log ends at a number that it did not end at before.
    ///
    /// # Errors
    ///
    /// Those of [`ChunkReader::next`], and [`Error::Missing`] if a chunk is missing in front of what stands behind it.
    pub async fn read_to_end(&mut self, each: &mut (dyn FnMut(&Chunk<'_>) + Send)) -> Result<()> {
        while self.take_next_or_end(each).await?.is_some() {}
        Ok(())
    }

    /// Returns where the reader stands: behind the last chunk that it read.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Returns how many chunks were ignored, each put by a superseded writer.
    pub fn ignored_count(&self) -> u64 {
        self.ignored
    }

    /// Returns where the sessions are.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    pub(crate) fn chain_mut(&mut self) -> &mut Chain {
        &mut self.chain
    }

    /// Returns what is known of the session's volumes, and the place to ask for more.
    pub(crate) fn shelf(&mut self) -> (&mut Shelf, &Bucket) {
        (&mut self.shelf, &self.bucket)
    }
}
