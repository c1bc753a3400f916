//! Puts volumes, after a writer's appends and for a collection.
//!
//! A volume is put with create-if-absent and is determined by its chunks alone, so any process may
//! put it, any number of times. But the chunks must be those that count. They are: the writer put
//! them itself, or they were read while no volume contained their numbers
//! ([`volume_lookup`](super::volume_lookup)), so none of them had been collected and put again.
//!
//! A writer passes ranges to a separate task, and never waits for it: an append whose volume fails
//! is acknowledged nevertheless. The writer keeps the bytes of the chunks that it puts until their
//! range is complete, as long as these are few; otherwise the task reads them back. Missing volumes
//! are put by the next writer, which detects them when it reads the log, or by a collection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use object_store::PutPayload;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, yield_now};
use tokio::time;
use uuid::Uuid;

use super::bucket::Bucket;
use crate::chunk::{CHUNK_BYTES_MAX, Chunk};
use crate::error::Result;
use crate::volume::{Extent, KNOWN_FOR, VOLUME_BYTES_MAX, Volume, VolumeEncoder, VolumeForm};

/// Maximum number of bytes of chunks that a writer keeps for the volume of their range, and that
/// may wait for its task.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Number of bytes that are hashed before the thread yields to other tasks.
const STRIDE: usize = 256 << 10;

const PUT: &str = "put a volume of chunks";
const READ: &str = "read chunks for their volume";

/// Passes volumes to be built to a task.
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

    /// Keeps a chunk that was put until its volume is built.
    pub(crate) fn keep(&mut self, number: u64, payload: PutPayload) {
        let range = Extent::around(number, self.bucket.spans[0]);
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

    /// Queues volumes to be built. Outside of tokio none is built.
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
            // The task ends only after this sender, or with the runtime.
            let _ = queue.send(VolumeJob { extent, kept });
        }
    }

    /// Waits until the volumes whose chunks are in memory are put, at most for the time limit of
    /// one request. If the process ended earlier, a bucket in a directory could keep a temporary
    /// file.
    pub(crate) async fn finish(&mut self) {
        self.queue = None;
        if let Some(task) = self.task.take() {
            let _ = time::timeout(self.bucket.retries.timeout_of(KEPT_BYTES_MAX as u64), task).await;
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

/// Builds one volume after the other. After the writer is dropped, only those whose chunks are in
/// memory.
async fn serve(
    bucket: Bucket,
    session: Uuid,
    mut queue: mpsc::UnboundedReceiver<VolumeJob>,
    waiting: Arc<AtomicUsize>,
) {
    while let Some(VolumeJob { extent, kept }) = queue.recv().await {
        let bytes: usize = kept.iter().map(PutPayload::content_length).sum();
        let made = if !kept.is_empty() {
            put(&bucket, session, extent, kept.iter().map(payload_bytes).collect()).await
        } else if queue.is_closed() {
            continue;
        } else {
            make(&bucket, session, extent).await
        };
        waiting.fetch_sub(bytes, Ordering::Relaxed);
        // The next reader of the log notices that it is missing.
        let _ = made;
    }
}

fn payload_bytes(payload: &PutPayload) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.content_length());
    payload.iter().for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}

/// Puts the volume of a range whose numbers are all used. Returns `false` if it exists, would be too
/// long, or not all of its chunks can be read.
///
/// # Errors
///
/// [`Error::Store`].
pub(crate) async fn make(bucket: &Bucket, session: Uuid, extent: Extent) -> Result<bool> {
    if bucket.size(&bucket.volume_key(session, extent), READ).await?.is_some() {
        return Ok(false);
    }
    let chunks = match extent.count == bucket.spans[0] {
        true => chunks_of(bucket, session, extent).await?,
        false => chunks_of_small(bucket, session, extent).await?,
    };
    match chunks {
        Some(chunks) => put(bucket, session, extent, chunks).await,
        None => Ok(false),
    }
}

/// Reads the chunks of a range that has no volume. Returns `None` if one is missing or damaged, or
/// may not be the first under its number.
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

/// Reads the small volumes of a large range, and returns their chunks. Returns `None` if one is
/// missing or damaged.
async fn chunks_of_small(bucket: &Bucket, session: Uuid, extent: Extent) -> Result<Option<Vec<Vec<u8>>>> {
    let small = bucket.spans[0];
    let (mut chunks, mut bytes) = (Vec::new(), 0_u64);
    for first in (extent.first..=extent.last()).step_by(usize::try_from(small).unwrap_or(usize::MAX)) {
        let part = Extent { first, count: small };
        let key = bucket.volume_key(session, part);
        let Some(read) = bucket.get(&key, VOLUME_BYTES_MAX, READ).await? else { return Ok(None) };
        bytes = bytes.saturating_add(read.len() as u64);
        let Ok(volume) = Volume::decode(VolumeForm::Whole, &read, session, part) else { return Ok(None) };
        if volume.is_bare() || bytes > 2 * VOLUME_BYTES_MAX as u64 {
            return Ok(None);
        }
        chunks.extend(volume.chunks().map(<[u8]>::to_vec));
        yield_now().await;
    }
    Ok(Some(chunks))
}

/// Puts the volume of these chunks. Returns `false` if it exists, or would be too long.
async fn put(bucket: &Bucket, session: Uuid, extent: Extent, chunks: Vec<Vec<u8>>) -> Result<bool> {
    if !bucket.has_volume_of(extent.count, chunks.iter().map(|chunk| chunk.len() as u64).sum()) {
        return Ok(false);
    }
    let mut encoder = VolumeEncoder::new(VolumeForm::Whole, session, extent, chunks.iter().map(Vec::len))?;
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
    // An existing one has the same bytes.
    bucket.create(&key, payload, PUT).await
}
