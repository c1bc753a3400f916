//! Puts volumes, behind the appends of a writer and for a collection.
//!
//! A volume is put with create-if-absent and follows from its chunks alone, so it does not matter who puts it, or how often. What matters is
//! that the chunks are those that count: they are the ones that the writer put itself, or were read while no volume held their numbers
//! ([`volumes`](crate::volumes)), so that none of them had been collected and put once more.
//!
//! A writer hands ranges to a task of its own, and waits for nothing: an append whose volume fails is acknowledged nevertheless. It keeps
//! the bytes of the chunks that it puts until their range is complete, as long as these are few; otherwise the task reads them back. What
//! could not be made is made up for by the next writer, which has read the log and knows what is missing, or by a collection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use object_store::PutPayload;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, yield_now};
use tokio::time;
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::chunk::{CHUNK_BYTES_MAX, Chunk};
use crate::error::{Error, Result};
use crate::volume::{Extent, KNOWN_FOR, VOLUME_BYTES_MAX, Volume, VolumeEncoder};

/// How many bytes of chunks a writer keeps for the volume of their range, and how many may wait for its task.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// How many bytes are hashed before others have their turn on the thread.
const STRIDE: usize = 256 << 10;

const PUT: &str = "put a volume of chunks";
const READ: &str = "read chunks for their volume";

/// Says what came of making a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeOutcome {
    /// It was put.
    Put,
    /// It was there already.
    There,
    /// It cannot be made: it would be too long, or not all that it is made of can be read.
    Not,
}

/// Hands volumes that are to be made to a task.
#[derive(Debug)]
pub(crate) struct Makers {
    bucket: Bucket,
    session: Uuid,
    /// Chunks of the range that is being filled, as they were put.
    kept: BTreeMap<u64, PutPayload>,
    kept_bytes: usize,
    queue: Option<mpsc::UnboundedSender<VolumeJob>>,
    task: Option<JoinHandle<()>>,
    /// Number of bytes that wait in the queue.
    waiting: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct VolumeJob {
    extent: Extent,
    /// All of its chunks, or none.
    kept: Vec<PutPayload>,
}

impl Makers {
    pub(crate) fn new(bucket: Bucket, session: Uuid) -> Makers {
        let (kept, waiting) = (BTreeMap::new(), Arc::default());
        Makers { bucket, session, kept, kept_bytes: 0, queue: None, task: None, waiting }
    }

    /// Keeps a chunk that was put until its volume is made.
    pub(crate) fn keep(&mut self, number: u64, payload: PutPayload) {
        let range = Extent::around(number, self.bucket.spans()[0]);
        if number == range.first {
            self.kept.clear();
            self.kept_bytes = 0;
        }
        self.kept_bytes = self.kept_bytes.saturating_add(payload.content_length());
        if self.kept_bytes > KEPT_BYTES_MAX {
            self.kept.clear();
        } else {
            self.kept.insert(number, payload);
        }
    }

    /// Has volumes made some time. Outside of tokio none is.
    pub(crate) fn make(&mut self, missing: Vec<Extent>) {
        for extent in missing {
            let mut kept: Vec<PutPayload> =
                self.kept.range(extent.first..=extent.last()).map(|(_, payload)| payload.clone()).collect();
            let bytes: usize = kept.iter().map(PutPayload::content_length).sum();
            let is_room = self.waiting.load(Ordering::Relaxed).saturating_add(bytes) <= KEPT_BYTES_MAX;
            if kept.len() as u64 != extent.count || !is_room {
                kept.clear();
            } else {
                self.waiting.fetch_add(bytes, Ordering::Relaxed);
            }
            let Some(queue) = self.queue() else { return };
            // The task ends behind this sender alone, or with the runtime.
            let _ = queue.send(VolumeJob { extent, kept });
        }
    }

    /// Waits until the volumes are put whose chunks are on hand, for as long as one request may take. A process that ended before would
    /// leave a temporary file of one where a bucket is in a directory.
    pub(crate) async fn finish(&mut self) {
        self.queue = None;
        if let Some(task) = self.task.take() {
            let _ = time::timeout(self.bucket.retries().timeout_of(KEPT_BYTES_MAX as u64), task).await;
        }
    }

    /// Returns the queue of the task, which is started with the first volume.
    fn queue(&mut self) -> Option<&mpsc::UnboundedSender<VolumeJob>> {
        if self.queue.is_none() {
            let runtime = Handle::try_current().ok()?;
            let (send, receive) = mpsc::unbounded_channel();
            let serve = serve(self.bucket.clone(), self.session, receive, Arc::clone(&self.waiting));
            self.task = Some(runtime.spawn(serve));
            self.queue = Some(send);
        }
        self.queue.as_ref()
    }
}

/// Makes one volume after the other. Once the writer is gone, only those whose chunks are on hand.
async fn serve(
    bucket: Bucket,
    session: Uuid,
    mut queue: mpsc::UnboundedReceiver<VolumeJob>,
    waiting: Arc<AtomicUsize>,
) {
    while let Some(VolumeJob { extent, kept }) = queue.recv().await {
        let bytes: usize = kept.iter().map(PutPayload::content_length).sum();
        let made = if !kept.is_empty() {
            put(&bucket, session, extent, kept.iter().map(whole).collect()).await
        } else if queue.is_closed() {
            continue;
        } else {
            make(&bucket, session, extent).await
        };
        waiting.fetch_sub(bytes, Ordering::Relaxed);
        // Whoever reads the log next notices that it is missing.
        let _ = made;
    }
}

fn whole(payload: &PutPayload) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.content_length());
    payload.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}

/// Makes the volume of a range all of whose numbers are taken.
///
/// # Errors
///
/// [`Error::Store`].
pub(crate) async fn make(bucket: &Bucket, session: Uuid, extent: Extent) -> Result<VolumeOutcome> {
    if bucket.size(&bucket.volume_key(session, extent), READ).await?.is_some() {
        return Ok(VolumeOutcome::There);
    }
    let chunks = match extent.count == bucket.spans()[0] {
        true => chunks_of(bucket, session, extent).await?,
        false => chunks_of_small(bucket, session, extent).await?,
    };
    match chunks {
        Some(chunks) => put(bucket, session, extent, chunks).await,
        None => Ok(VolumeOutcome::Not),
    }
}

/// Reads the chunks of a range that has no volume; `None` where one is missing or damaged, or may not be the first under its number.
async fn chunks_of(bucket: &Bucket, session: Uuid, extent: Extent) -> Result<Option<Vec<Vec<u8>>>> {
    let since = bucket.now();
    if bucket.size(&bucket.volume_key(session, extent), READ).await?.is_some() {
        return Ok(None);
    }
    let (mut chunks, mut bytes) = (Vec::new(), 0_u64);
    for number in extent.first..=extent.last() {
        let key = bucket.chunk_key(session, number);
        let Some(chunk) = bucket.get(&key, CHUNK_BYTES_MAX, READ).await? else { return Ok(None) };
        let is_it = |chunk: Chunk<'_>| chunk.head.session == session && chunk.head.number == number;
        bytes = bytes.saturating_add(chunk.len() as u64);
        let is_too_long = !bucket.has_volume_of(extent.count, bytes);
        if is_too_long || !Chunk::decode(&chunk, number).is_ok_and(is_it) {
            return Ok(None);
        }
        chunks.push(chunk);
    }
    let is_known = bucket.now().saturating_sub(since) <= KNOWN_FOR;
    Ok(is_known.then_some(chunks))
}

/// Reads the small volumes of a large range, and returns their chunks; `None` where one is missing or damaged.
async fn chunks_of_small(bucket: &Bucket, session: Uuid, extent: Extent) -> Result<Option<Vec<Vec<u8>>>> {
    let small = bucket.spans()[0];
    let (mut chunks, mut bytes) = (Vec::new(), 0_u64);
    for first in (extent.first..=extent.last()).step_by(usize::try_from(small).unwrap_or(usize::MAX)) {
        let part = Extent { first, count: small };
        let key = bucket.volume_key(session, part);
        let Some(read) = bucket.get(&key, VOLUME_BYTES_MAX, READ).await? else { return Ok(None) };
        bytes = bytes.saturating_add(read.len() as u64);
        let Ok(volume) = Volume::decode(&read, session, part) else { return Ok(None) };
        if volume.is_bare() || bytes > 2 * VOLUME_BYTES_MAX as u64 {
            return Ok(None);
        }
        chunks.extend(volume.chunks().map(<[u8]>::to_vec));
        yield_now().await;
    }
    Ok(Some(chunks))
}

/// Puts the volume of these chunks, unless it is there.
async fn put(bucket: &Bucket, session: Uuid, extent: Extent, chunks: Vec<Vec<u8>>) -> Result<VolumeOutcome> {
    if !bucket.has_volume_of(extent.count, chunks.iter().map(|chunk| chunk.len() as u64).sum()) {
        return Ok(VolumeOutcome::Not);
    }
    let mut encoder = match VolumeEncoder::new(session, extent, chunks.iter().map(Vec::len)) {
        Ok(encoder) => encoder,
        Err(Error::TooLarge { .. }) => return Ok(VolumeOutcome::Not),
        Err(error) => return Err(error),
    };
    let mut hashed = 0;
    for chunk in chunks {
        for piece in chunk.chunks(STRIDE) {
            encoder.push(piece);
            hashed += piece.len();
            if hashed >= STRIDE {
                hashed = 0;
                yield_now().await;
            }
        }
    }
    let payload = PutPayload::from(encoder.finish()?);
    let key = bucket.volume_key(session, extent);
    // Whoever put it put the same.
    Ok(if bucket.create(&key, payload, PUT).await? { VolumeOutcome::Put } else { VolumeOutcome::There })
}
