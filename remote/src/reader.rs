//! Reads a session's log from a store, chunk by chunk, without a list: by asking for the next number.

use uuid::Uuid;

use crate::bucket::Bucket;
use crate::chain::{Chain, Taken};
use crate::chunk::{CHUNK_BYTES_MAX, Chunk};
use crate::error::{Error, Result};

const READ: &str = "read a chunk";

/// Reads the chunks of one session in the order of their chain. It can be read on once there are more.
#[derive(Clone, Debug)]
pub struct Reader {
    bucket: Bucket,
    chain: Chain,
    ignored: u64,
}

impl Reader {
    /// Stands in front of the first chunk of a session, and asks the store for nothing.
    pub fn new(bucket: Bucket, session: Uuid) -> Reader {
        Reader::behind(bucket, Chain::new(session))
    }

    /// Stands behind a chain that was read before, and asks the store for nothing.
    pub(crate) fn behind(bucket: Bucket, chain: Chain) -> Reader {
        Reader { bucket, chain, ignored: 0 }
    }

    /// Goes on behind a chain that was read before, once the store still has that chain's last chunk.
    ///
    /// # Errors
    ///
    /// [`Error::RemoteWentBack`] if that chunk is gone or another one, and [`Error::Store`].
    pub async fn resume(bucket: Bucket, chain: Chain) -> Result<Reader> {
        let reader = Reader::behind(bucket, chain);
        if let Some((number, hash)) = chain.last() {
            let key = reader.bucket.chunk_key(chain.session(), number);
            let found = reader.bucket.get(&key, CHUNK_BYTES_MAX, READ).await?;
            let found = found.as_deref().and_then(|bytes| Chunk::decode(bytes, number).ok());
            if found.is_none_or(|chunk| chunk.hash != hash) {
                return Err(Error::RemoteWentBack { chunk: number });
            }
        }
        Ok(reader)
    }

    /// Reads the next chunk of the chain and hands it to `each`; returns `false` if there is none yet. Chunks that are
    /// ignored are passed over.
    ///
    /// What does not verify is read once more before it counts as damaged: the bytes may have been damaged on the way.
    ///
    /// # Errors
    ///
    /// Those of [`Chain::take`], [`Error::Store`], and [`Error::TooLarge`]. The reader stays where it stands.
    pub async fn next(&mut self, each: &mut (dyn FnMut(&Chunk<'_>) + Send)) -> Result<bool> {
        Ok(self.take_next(each).await?.is_some())
    }

    /// Reads the next chunk of the chain, and returns its number and bytes; `None` if there is none yet.
    async fn take_next(
        &mut self,
        each: &mut (dyn FnMut(&Chunk<'_>) + Send),
    ) -> Result<Option<(u64, Vec<u8>)>> {
        loop {
            let number = self.chain.next_number();
            let Some(bytes) = self.bytes().await? else { return Ok(None) };
            match self.chain.take(&bytes)? {
                Taken::Next(chunk) => {
                    each(&chunk);
                    return Ok(Some((number, bytes)));
                }
                Taken::Ignored(_) => self.ignored += 1,
            }
        }
    }

    /// Reads the next chunk of the chain, and returns its number and bytes; `None` at the end, of which it makes sure: behind a chunk
    /// that was removed stands another one.
    async fn take_next_or_end(
        &mut self,
        each: &mut (dyn FnMut(&Chunk<'_>) + Send),
    ) -> Result<Option<(u64, Vec<u8>)>> {
        let mut missing = None;
        loop {
            if let Some(read) = self.take_next(each).await? {
                return Ok(Some(read));
            }
            let chunk = self.chain.next_number();
            if missing == Some(chunk) {
                return Err(Error::RemoteWentBack { chunk });
            }
            if !self.is_another_behind().await? {
                return Ok(None);
            }
            // A writer may have put both meanwhile.
            missing = Some(chunk);
        }
    }

    /// Reads the next chunk of the chain and returns its number and bytes, which were verified. `None` at the end, which was
    /// made sure of as [`Reader::read_to_end`] does.
    pub(crate) async fn read_next_bytes(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        self.take_next_or_end(&mut |_| {}).await
    }

    /// Returns whether there is an object behind the one that would be the next.
    async fn is_another_behind(&self) -> Result<bool> {
        let Some(behind) = self.chain.next_number().checked_add(1) else { return Ok(false) };
        let key = self.bucket.chunk_key(self.chain.session(), behind);
        Ok(self.bucket.get(&key, CHUNK_BYTES_MAX, READ).await?.is_some())
    }

    /// Reads the bytes of the chunk with the chain's next number, a second time if they do not verify.
    async fn bytes(&self) -> Result<Option<Vec<u8>>> {
        let number = self.chain.next_number();
        let key = self.bucket.chunk_key(self.chain.session(), number);
        let bytes = self.bucket.get(&key, CHUNK_BYTES_MAX, READ).await?;
        match &bytes {
            Some(read) if Chunk::decode(read, number).is_err() => {
                self.bucket.get(&key, CHUNK_BYTES_MAX, READ).await
            }
            _ => Ok(bytes),
        }
    }

    /// Reads on to the end, and makes sure that it is one: behind a chunk that was removed stands another one.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::next`], and [`Error::RemoteWentBack`] if a chunk is missing in front of another one.
    pub async fn read_to_end(&mut self, each: &mut (dyn FnMut(&Chunk<'_>) + Send)) -> Result<()> {
        while self.take_next_or_end(each).await?.is_some() {}
        Ok(())
    }

    /// Returns where the reader stands: behind the last chunk that it read.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Returns how many chunks were ignored, each put by a superseded writer.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Returns where the sessions are.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    pub(crate) fn chain_mut(&mut self) -> &mut Chain {
        &mut self.chain
    }
}
