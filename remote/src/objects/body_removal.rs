//! Removes from a bucket the bodies that a compaction of the session's log has dropped. This is a
//! step of a collection ([`collect`](super::collect)).
//!
//! # What is dropped
//!
//! The writer of a session that was compacted records the dropped bodies
//! ([`DroppedBodies`](foldlog_codec::body::DroppedBodies)), and every later writer has that record
//! in its log: none returns to a position at which the slices are no longer known. So the newest
//! such record determines the bodies to drop, regardless of the collecting process. Bodies are
//! dropped from chunks that are collected: all of them are in small volumes that are at least a day
//! old, and have a mark. A range is unchanged if none of its records lost a body.
//!
//! # Steps, and the result of a crash
//!
//! | step | a crash leaves |
//! |---|---|
//! | 1. Compacted volumes are put under names of their own, read back, and taken by the rules of [`chain`](crate::chain) from the start of the range; they must lead to its end | objects without a reference. The next compaction of that number removes them |
//! | 2. The object with the known positions of the slices is put under its hash | the same |
//! | 3. The [`compaction`](crate::compaction) is put, which names them all, and read back | from here on readers find the compacted volumes, if the others are missing |
//! | 4. Ranges that had bare volumes get their marks; volumes of these ranges, compacted ones of earlier compactions, and unreferenced ones are removed, in any order | some of them. The next collection continues |
//!
//! A reader that is active at that time finds the old objects or the new ones
//! ([`volume_lookup`](super::volume_lookup)).
//!
//! # Rules
//!
//! 1. A compacted chunk states the hash, the content digest and all other facts of the chunk that
//!    it replaces; only a dispatch loses its body. In a chunk that the chain ignores, every body is
//!    dropped that is longer than its replacement.
//! 2. The first record without a body of each range names the object with the known positions of
//!    the slices. So a log can be built from any mixture of ranges with and without bodies
//!    ([`KnownPositions`](foldlog_codec::body::KnownPositions)).
//! 3. Nothing is dropped while a chunk that is not collected yet names another such object, for a
//!    record in the range of the compaction. Positions in that object may need bodies that were
//!    dropped since.
//! 4. Payloads that are named only by dropped bodies are removed by another rule
//!    ([`payload_removal`](super::payload_removal)), since a writer may be about to name one again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::{Dropped, DroppedBodies, ObjectId};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use object_store::path::Path;
use object_store::{ObjectMeta, PutPayload};
use uuid::Uuid;

use super::bucket::Bucket;
use super::collect::Collection;
use super::payloads::Payloads;
use super::volume_lookup::{OpenVolume, Shelf, is_marked};
use crate::chain::{Chain, TakenChunk};
use crate::chunk::Chunk;
use crate::compaction::{CompactedVolume, Compaction};
use crate::dropped_bodies::DroppedBodiesTracker;
use crate::error::{Error, Result};
use crate::replicator::SessionPayloads;
use crate::volume::{Extent, VOLUME_BYTES_MAX, VolumeEncoder, VolumeForm};

/// Length of the chunks of a compacted volume in bytes at which no further range is added.
const VOLUME_BYTES: usize = 8 << 20;

/// Maximum number of chunks in a compacted volume.
const VOLUME_CHUNKS: u64 = 1 << 16;

const COMPACT: &str = "drop the bodies that a compaction of the session dropped";

/// The ranges in which bodies may be dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranges<'a> {
    /// Ranges with volumes that are old enough.
    pub(crate) collected: &'a [Extent],
    /// Ranges with chunks that are too long for a volume, and the age of each bare volume, if there
    /// is one.
    pub(crate) long: &'a [(Extent, Option<Duration>)],
}

impl Ranges<'_> {
    /// Returns the first chunks of the ranges that may lose bodies, including those that were
    /// compacted before; and of the ranges that are only weighed.
    async fn firsts(
        &self,
        collection: &Collection<'_>,
        before: Option<&Compaction>,
    ) -> Result<(BTreeSet<u64>, BTreeSet<u64>)> {
        let Collection { bucket, session, min_age, dry_run, .. } = *collection;
        let (mut ranges, mut weighed) = (BTreeSet::new(), BTreeSet::new());
        for extent in self.collected {
            // A dry run puts no marks.
            if dry_run || is_marked(bucket, session, *extent).await? {
                ranges.insert(extent.first);
            }
        }
        let small = usize::try_from(bucket.spans[0]).unwrap_or(usize::MAX);
        for CompactedVolume { extent, .. } in before.iter().flat_map(|before| &before.volumes) {
            ranges.extend((extent.first..=extent.last()).step_by(small));
        }
        for (extent, age) in self.long {
            // A compacted volume replaces a bare one of this age.
            let is_ready = age.is_some_and(|age| age >= min_age);
            (if is_ready { &mut ranges } else { &mut weighed }).insert(extent.first);
        }
        Ok((ranges, weighed))
    }
}

/// Writes volumes without the dropped bodies, for these ranges and those that were compacted
/// before. Returns the compaction, if one was put.
///
/// # Errors
///
/// [`Error::Store`], those of reading, and [`Error::NotContent`] if the writer's record is not
/// valid.
pub(crate) async fn compact(
    collection: &mut Collection<'_>,
    dropped_bodies: DroppedBodiesTracker,
    before: Option<Arc<Compaction>>,
    candidates: Ranges<'_>,
) -> Result<Option<Compaction>> {
    let Collection { bucket, session, dry_run, .. } = *collection;
    if let Some(done) = before.as_deref().filter(|_| !dry_run) {
        clean(bucket, session, done).await?;
    }
    let read = async |object| bucket.get_object(session, object).await;
    let Some((said_at, dropped)) = dropped_bodies.read_dropped(read).await? else { return Ok(None) };
    let small = bucket.spans[0];
    let (mut ranges, weighed) = candidates.firsts(collection, before.as_deref()).await?;
    let is_open = |(number, sequence): &(u64, SequenceNumber)| {
        Some(*sequence) <= dropped.through() && !ranges.contains(&Extent::around(*number, small).first)
    };
    if dropped_bodies.known_in.iter().any(is_open) {
        ranges.clear();
    }
    let known_bytes = dropped.known.encode();
    let number = before.as_ref().map_or(1, |before| before.number + 1);
    let mut pass = Pass {
        bucket,
        session,
        number,
        dropped: &dropped,
        known: ObjectId::from_content(&known_bytes),
        ranges,
        weighed,
        worth: Vec::new(),
        is_blocked: false,
        before: before.as_deref(),
        puts: false,
        group: Vec::new(),
        volumes: Vec::new(),
        counts: ChunkCompactionCounts::default(),
    };
    pass.run().await?;
    if pass.is_blocked {
        pass.counts = ChunkCompactionCounts::default();
    }
    let report = &mut collection.report;
    report.dropped = pass.counts.dropped;
    report.dropped_bytes = pass.counts.bytes;
    report.waiting = dropped.count().saturating_sub(pass.counts.dropped + pass.counts.before);
    if dry_run {
        return Ok(None);
    }
    let has_none = |extent: &Extent| candidates.long.iter().any(|(one, age)| one == extent && age.is_none());
    for extent in std::mem::take(&mut pass.worth).into_iter().filter(has_none) {
        let bare = PutPayload::from(VolumeEncoder::bare(session, extent)?);
        bucket.create(&bucket.volume_key(session, extent), bare, COMPACT).await?;
    }
    if pass.counts.dropped == 0 {
        return Ok(None);
    }
    (pass.puts, pass.counts) = (true, ChunkCompactionCounts::default());
    pass.weighed.clear();
    pass.run().await?;
    let (known, said_at) = (pass.known, said_at.get());
    let mut payloads = Payloads::new(bucket.clone(), session);
    payloads.put(known, known_bytes).await?;
    let compaction = Compaction { session, number, said_at, known: known.hash, volumes: pass.volumes };
    bucket.create_alone(&bucket.compaction_key(session, number), compaction.encode()?, COMPACT).await?;
    payloads.make_sure().await?;
    clean(bucket, session, &compaction).await?;
    Ok(Some(compaction))
}

/// Removes the volumes that the newest compaction replaces: bare ones after their marks are put,
/// and compacted ones that no longer count.
async fn clean(bucket: &Bucket, session: Uuid, newest: &Compaction) -> Result<()> {
    let mut keys: Vec<Path> = Vec::new();
    for ObjectMeta { location: key, .. } in bucket.list_objects(session, "volumes", COMPACT).await? {
        let [.., span, first] =
            key.parts().map(|part| part.as_ref().parse::<u64>().ok()).collect::<Vec<_>>()[..]
        else {
            continue;
        };
        let (Some(count), Some(first)) = (span, first) else { continue };
        let extent = Extent { first, count };
        if bucket.spans.contains(&count) && newest.touches(extent) {
            if count == bucket.spans[0] {
                bucket.mark(session, extent, COMPACT).await?;
            }
            keys.push(key);
        }
    }
    let named: BTreeSet<Path> =
        newest.volumes.iter().map(|volume| bucket.compacted_key(session, newest.number, volume)).collect();
    for ObjectMeta { location: key, .. } in bucket.list_objects(session, "compacted", COMPACT).await? {
        let parts: Vec<_> = key.parts().map(|part| part.as_ref().to_owned()).collect();
        let number = parts.iter().rev().nth(2).and_then(|number| number.parse::<u64>().ok());
        // Objects of a compaction that is not put yet are left alone.
        if number.is_some_and(|number| number <= newest.number) && !named.contains(&key) {
            keys.push(key);
        }
    }
    bucket.remove_all(keys, COMPACT).await
}

#[derive(Clone, Copy, Debug, Default)]
struct ChunkCompactionCounts {
    /// Records that lose their bodies now.
    dropped: u64,
    /// Bytes by which the chunks become shorter.
    bytes: u64,
    /// Records that have already lost their bodies, of those that the compaction dropped.
    before: u64,
    /// Whether a record without a body already names the object with the known positions.
    said: bool,
}

/// Chunks of one range, in their form for a compacted volume.
#[derive(Debug)]
struct ChunkRange {
    extent: Extent,
    chunks: Vec<Vec<u8>>,
    /// Whether they are too long for a volume; if so, none is stored.
    is_too_long: bool,
    /// State of the chain before the first chunk, and after the last.
    begin: Chain,
    end: Chain,
}

impl ChunkRange {
    fn bytes(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    /// Adds the next chunk, unless the chunks have become too long in total.
    fn push(&mut self, chunk: Vec<u8>, bucket: &Bucket) {
        self.chunks.push(chunk);
        if self.is_too_long || !bucket.has_volume_of(self.extent.count, self.bytes() as u64) {
            (self.is_too_long, self.chunks) = (true, Vec::new());
        }
    }
}

/// Reads a session's chunks from the start, and writes compacted volumes of ranges.
struct Pass<'a> {
    bucket: &'a Bucket,
    session: Uuid,
    /// Number of the compaction.
    number: u64,
    dropped: &'a DroppedBodies,
    known: ObjectId,
    /// First chunks of the ranges that may lose bodies.
    ranges: BTreeSet<u64>,
    /// First chunks of the ranges that are only examined for bodies to drop.
    weighed: BTreeSet<u64>,
    /// The examined ranges that have such bodies.
    worth: Vec<Extent>,
    /// Whether a range that cannot be rewritten names an earlier object with known positions.
    is_blocked: bool,
    before: Option<&'a Compaction>,
    /// Whether volumes are put, or the results are only counted.
    puts: bool,
    group: Vec<ChunkRange>,
    volumes: Vec<CompactedVolume>,
    counts: ChunkCompactionCounts,
}

impl Pass<'_> {
    async fn run(&mut self) -> Result<()> {
        let Some(last) = self.ranges.last().max(self.weighed.last()).copied() else { return Ok(()) };
        let small = self.bucket.spans[0];
        let end = Extent::around(last, small).last();
        let (mut shelf, mut chain) = (Shelf::new(self.session), Chain::new(self.session));
        shelf.large = false;
        shelf.learn(self.bucket).await?;
        let mut range: Option<(ChunkRange, ChunkCompactionCounts)> = None;
        while chain.next_number() <= end {
            let number = chain.next_number();
            let missing = || Extent::around(number, small).error("one of its chunks is missing");
            let bytes = shelf.find(self.bucket, number).await?.ok_or_else(missing)?;
            let extent = Extent::around(number, small);
            if number == extent.first {
                let chunks = Vec::new();
                let counts = ChunkCompactionCounts::default();
                let new = ChunkRange { extent, chunks, is_too_long: false, begin: chain, end: chain };
                let is_asked = self.ranges.contains(&number) || self.weighed.contains(&number);
                range = is_asked.then_some((new, counts));
            }
            let (chunk, counts) = match bytes.take_by(&mut chain) {
                Ok(TakenChunk::Next(chunk)) => (chunk, true),
                Ok(TakenChunk::Ignored(chunk)) => (chunk, false),
                Err(_) if shelf.refuse(self.bucket, number) => continue,
                Err(error) => return Err(error),
            };
            let Some((current, counted)) = &mut range else { continue };
            let compacted = self.chunk(&chunk, counts, counted)?;
            counted.bytes += bytes.len().saturating_sub(compacted.len()) as u64;
            current.push(compacted, self.bucket);
            current.end = chain;
            if number == extent.last()
                && let Some((current, counted)) = range.take()
            {
                self.take(current, counted).await?;
            }
        }
        self.flush().await
    }

    /// Returns the bytes of a compacted chunk.
    fn chunk(&self, chunk: &Chunk<'_>, counts: bool, counted: &mut ChunkCompactionCounts) -> Result<Vec<u8>> {
        let number = chunk.head.number;
        let malformed = |reason| Error::Malformed { chunk: number, reason };
        chunk.encode_compacted(counts, &mut |record: &Record<'_>| {
            let (kind, sequence) = (record.kind, record.sequence);
            let is_ours = counts && self.dropped.holds(sequence);
            let dropped = match kind {
                // A later compaction dropped it, with details that are unknown here.
                RecordKind::Dropped if !counts || Some(sequence) > self.dropped.through() => {
                    return Ok(None);
                }
                RecordKind::Dropped => {
                    counted.before += u64::from(is_ours);
                    Dropped::decode(record.body)
                        .map_err(|_| malformed("one of its dropped records cannot be decoded"))?
                }
                _ if !counts => {
                    let body = Dropped::from_body(kind, record.body).encode();
                    let is_shorter = body.len() < record.body.len();
                    return Ok(is_shorter.then_some(body));
                }
                _ if !is_ours => return Ok(None),
                RecordKind::Dispatch => {
                    counted.dropped += 1;
                    Dropped::from_body(kind, record.body)
                }
                _ => {
                    return Err(malformed(
                        "it lists a dropped body of a record whose body cannot be dropped",
                    ));
                }
            };
            // Each range names the object with the known positions.
            let body = match std::mem::replace(&mut counted.said, true) {
                false => dropped.encode_held(self.known),
                true => dropped.encode(),
            };
            Ok(Some(body))
        })
    }

    /// Takes a range whose chunks are complete.
    async fn take(&mut self, range: ChunkRange, counted: ChunkCompactionCounts) -> Result<()> {
        let was_compacted = self.before.is_some_and(|before| before.touches(range.extent));
        // Bodies that were dropped before may name an earlier object with known positions.
        let changes = counted.dropped + counted.before > 0;
        if self.weighed.contains(&range.extent.first) {
            self.worth.extend((changes && !range.is_too_long).then_some(range.extent));
            self.counts.before += counted.before;
            return self.flush().await;
        }
        if range.is_too_long || !changes && !was_compacted {
            self.is_blocked |= counted.before > 0 || was_compacted;
            self.counts.before += counted.before;
            return self.flush().await;
        }
        self.counts.dropped += counted.dropped;
        self.counts.before += counted.before;
        self.counts.bytes += counted.bytes;
        if !self.puts {
            return Ok(());
        }
        let held: usize = self.group.iter().map(ChunkRange::bytes).sum();
        let follows = self.group.last().is_none_or(|last| last.extent.last() + 1 == range.extent.first);
        let count: u64 = self.group.iter().map(|range| range.extent.count).sum();
        let is_full = held + range.bytes() > VOLUME_BYTES || count + range.extent.count > VOLUME_CHUNKS;
        if !follows || is_full {
            self.flush().await?;
        }
        self.group.push(range);
        Ok(())
    }

    /// Puts the volume of the gathered ranges, and verifies that it replaces them.
    async fn flush(&mut self) -> Result<()> {
        let group = std::mem::take(&mut self.group);
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
        let extent = Extent { first: first.extent.first, count: last.extent.last() + 1 - first.extent.first };
        let chunks = || group.iter().flat_map(|range| &range.chunks);
        let mut encoder =
            VolumeEncoder::new(VolumeForm::Compacted, self.session, extent, chunks().map(Vec::len))?;
        chunks().for_each(|chunk| encoder.push(chunk));
        let bytes = encoder.finish()?;
        let volume =
            CompactedVolume { extent, len: bytes.len() as u64, hash: *blake3::hash(&bytes).as_bytes() };
        let key = self.bucket.compacted_key(self.session, self.number, &volume);
        self.bucket.create(&key, PutPayload::from(bytes), COMPACT).await?;
        let gone = || extent.error("it is missing although it was just written");
        let read = self.bucket.get(&key, VOLUME_BYTES_MAX, COMPACT).await?.ok_or_else(gone)?;
        let mut chain = first.begin;
        OpenVolume::open_compacted(read, self.session, &volume)?.take_by(&mut chain)?;
        if chain != last.end {
            return Err(extent.error("its chunks do not end where the chunks end that they replace"));
        }
        self.volumes.push(volume);
        Ok(())
    }
}
