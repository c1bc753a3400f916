//! Drops from a bucket the bodies that a compaction of the session's log has dropped: the last step of a collection.
//!
//! # What is dropped
//!
//! The writer of a session that was compacted records which bodies that dropped
//! ([`DroppedBodies`](foldlog_codec::body::DroppedBodies)), and every later writer has that record in its log: none goes back to a position at which the
//! slices are not known any more. So the newest such record says what may go, whoever collects. It goes from chunks that are collected: of which
//! small volumes of a day or more hold all, behind a mark. A range none of whose records lost a body stays as it is.
//!
//! # Steps, and what a crash leaves
//!
//! | step | left behind |
//! |---|---|
//! | 1. Compacted volumes are put under names of their own, read back, and taken by the rules of [`chain`](crate::chain) from where the range begins; they must lead to where it ends | objects that nobody names. The next compaction of that number removes them |
//! | 2. The object that says where the slices are known is put under its hash | the same |
//! | 3. The [`compaction`](crate::compaction) is put, which names them all, and read back | from here on readers find the compacted volumes, where the others are gone |
//! | 4. Ranges that had bare volumes get their marks; volumes of these ranges, compacted ones of earlier compactions, and those that nobody names, are removed, in any order | some of them. The next collection goes on |
//!
//! A reader that is in the middle has the old objects or the new ones ([`volumes`](crate::volumes)).
//!
//! # Rules
//!
//! 1. A compacted chunk states the hash, the content digest and all other facts of the chunk that it stands for; only a dispatch loses its body.
//!    Of a chunk that the chain ignores every body goes that is longer than what stands in its place.
//! 2. The first record without a body of each range names the object that says where the slices are known. So a log can be made of any
//!    mixture of ranges with and without bodies ([`KnownPositions`](foldlog_codec::body::KnownPositions)).
//! 3. Nothing is dropped while a chunk that is not collected yet names another such object, for a record in the range that the compaction
//!    goes through: what that says of positions may need bodies that were dropped since.
//! 4. Payloads that only dropped bodies name go by a rule of their own ([`withdraw`](crate::withdraw)): a writer may be about to name one
//!    again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::body::{Dropped, DroppedBodies, ObjectId};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use object_store::path::Path;
use object_store::{ObjectMeta, PutPayload};
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::chain::{Chain, TakenChunk};
use crate::chunk::Chunk;
use crate::collect::Collection;
use crate::compaction::{CompactedVolume, Compaction};
use crate::dropped_bodies::DroppedBodiesTracker;
use crate::error::{Error, Result};
use crate::payloads::Payloads;
use crate::volume::{Extent, VOLUME_BYTES_MAX, VolumeEncoder, VolumeForm, encoded_len};
use crate::volumes::{OpenVolume, Shelf, is_marked};

/// Length of the chunks of a compacted volume in bytes at which no further range is added.
const VOLUME_BYTES: usize = 8 << 20;

/// Greatest number of chunks in a compacted volume.
const VOLUME_CHUNKS: u64 = 1 << 16;

const COMPACT: &str = "drop the bodies that a compaction of the session dropped";

/// Names the ranges whose bodies may be dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranges<'a> {
    /// Those whose volumes are old enough.
    pub(crate) collected: &'a [Extent],
    /// Those whose chunks are too long for a volume, and the age of their bare volumes, if they have one.
    pub(crate) long: &'a [(Extent, Option<Duration>)],
}

impl Ranges<'_> {
    /// Returns the first chunks of the ranges that may lose bodies, with those that were compacted before, and of those of which it is to be
    /// found out whether they would.
    async fn firsts(
        &self,
        collection: &Collection<'_>,
        before: Option<&Compaction>,
    ) -> Result<(BTreeSet<u64>, BTreeSet<u64>)> {
        let Collection { bucket, session, min_age, dry_run, .. } = *collection;
        let (mut ranges, mut weighed) = (BTreeSet::new(), BTreeSet::new());
        for extent in self.collected {
            // In a dry run none gets its mark.
            if dry_run || is_marked(bucket, session, *extent).await? {
                ranges.insert(extent.first);
            }
        }
        let small = usize::try_from(bucket.spans()[0]).unwrap_or(usize::MAX);
        for CompactedVolume { extent, .. } in before.iter().flat_map(|before| &before.volumes) {
            ranges.extend((extent.first..=extent.last()).step_by(small));
        }
        for (extent, age) in self.long {
            // A compacted volume takes the place of a bare one that is as old as this.
            let is_ready = age.is_some_and(|age| age >= min_age);
            (if is_ready { &mut ranges } else { &mut weighed }).insert(extent.first);
        }
        Ok((ranges, weighed))
    }
}

/// Writes volumes without the bodies that were dropped, of these ranges and of those that were compacted before. Returns the compaction, if one was
/// put.
///
/// # Errors
///
/// [`Error::Store`], those of reading, and [`Error::NotContent`] if what the writer recorded is none of foldlog's.
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
    let small = bucket.spans()[0];
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

/// Removes the volumes that the compacted ones of the newest compaction stand for, bare ones behind their marks, and compacted ones that count no
/// more.
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
        if bucket.spans().contains(&count) && newest.touches(extent) {
            if count == bucket.spans()[0] {
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
        // What is put for a compaction that is yet to come is left alone.
        if number.is_some_and(|number| number <= newest.number) && !named.contains(&key) {
            keys.push(key);
        }
    }
    if keys.is_empty() { Ok(()) } else { bucket.remove_all(keys, COMPACT).await }
}

#[derive(Clone, Copy, Debug, Default)]
struct ChunkCompactionCounts {
    /// Records that lose their bodies now.
    dropped: u64,
    /// Bytes that the chunks get shorter by that.
    bytes: u64,
    /// Records that have none already, of those that the compaction dropped.
    before: u64,
    /// Whether a record without a body says where the slices are known.
    said: bool,
}

/// Chunks of one range, as they stand in a compacted volume.
#[derive(Debug)]
struct ChunkRange {
    extent: Extent,
    chunks: Vec<Vec<u8>>,
    /// Whether they are too long for a volume: none is kept then.
    is_too_long: bool,
    /// Where the chain stands in front of the first one, and behind the last.
    begin: Chain,
    end: Chain,
}

impl ChunkRange {
    fn bytes(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    /// Takes the next chunk, and none any more once they are too long together.
    fn push(&mut self, chunk: Vec<u8>, bucket: &Bucket) {
        self.chunks.push(chunk);
        if self.is_too_long || !bucket.has_volume_of(self.extent.count, self.bytes() as u64) {
            (self.is_too_long, self.chunks) = (true, Vec::new());
        }
    }
}

/// Reads a session's chunks from the beginning, and writes compacted volumes of ranges.
struct Pass<'a> {
    bucket: &'a Bucket,
    session: Uuid,
    /// Number of the compaction.
    number: u64,
    dropped: &'a DroppedBodies,
    known: ObjectId,
    /// First chunks of the ranges that may lose bodies.
    ranges: BTreeSet<u64>,
    /// First chunks of the ranges of which it is only found out whether they would.
    weighed: BTreeSet<u64>,
    /// Those of them that would.
    worth: Vec<Extent>,
    /// Whether a range that cannot be written anew says where the slices were known once.
    is_blocked: bool,
    before: Option<&'a Compaction>,
    /// Whether volumes are put, or what would become of them is counted alone.
    puts: bool,
    group: Vec<ChunkRange>,
    volumes: Vec<CompactedVolume>,
    counts: ChunkCompactionCounts,
}

impl Pass<'_> {
    async fn run(&mut self) -> Result<()> {
        let Some(last) = self.ranges.last().max(self.weighed.last()).copied() else { return Ok(()) };
        let small = self.bucket.spans()[0];
        let end = Extent::around(last, small).last();
        let (mut shelf, mut chain) = (Shelf::new(self.session), Chain::new(self.session));
        shelf.ask_for_small_alone();
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
                // A later compaction dropped it, and says more of it than is known here.
                RecordKind::DROPPED if !counts || Some(sequence) > self.dropped.through() => {
                    return Ok(None);
                }
                RecordKind::DROPPED => {
                    counted.before += u64::from(is_ours);
                    Dropped::decode(record.body)
                        .map_err(|_| malformed("a dropped record of it does not decode"))?
                }
                _ if !counts => {
                    let body = Dropped::from_body(kind, record.body).encode();
                    let is_shorter = body.len() < record.body.len();
                    return Ok(is_shorter.then_some(body));
                }
                _ if !is_ours => return Ok(None),
                RecordKind::DISPATCH => {
                    counted.dropped += 1;
                    Dropped::from_body(kind, record.body)
                }
                _ => return Err(malformed("a record is said to have lost its body that cannot")),
            };
            // Each range says where the slices are known.
            let body = match std::mem::replace(&mut counted.said, true) {
                false => dropped.encode_held(self.known),
                true => dropped.encode(),
            };
            Ok(Some(body))
        })
    }

    /// Takes a range whose chunks are all there.
    async fn take(&mut self, range: ChunkRange, counted: ChunkCompactionCounts) -> Result<()> {
        let was_compacted = self.before.is_some_and(|before| before.touches(range.extent));
        // Where bodies were dropped before, it may be said where the slices were known then.
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

    /// Puts the volume of the ranges that were gathered, and makes sure that it stands for them.
    async fn flush(&mut self) -> Result<()> {
        let group = std::mem::take(&mut self.group);
        let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
        let extent = Extent { first: first.extent.first, count: last.extent.last() + 1 - first.extent.first };
        let chunks = || group.iter().flat_map(|range| &range.chunks);
        let len = encoded_len(extent.count, chunks().map(|chunk| chunk.len() as u64).sum());
        if len > VOLUME_BYTES_MAX as u64 {
            return Err(Error::TooLarge { what: "compacted volume", len, max: VOLUME_BYTES_MAX as u64 });
        }
        let mut encoder =
            VolumeEncoder::new_as(VolumeForm::Compacted, self.session, extent, chunks().map(Vec::len))?;
        chunks().for_each(|chunk| encoder.push(chunk));
        let bytes = encoder.finish()?;
        let volume =
            CompactedVolume { extent, len: bytes.len() as u64, hash: *blake3::hash(&bytes).as_bytes() };
        let key = self.bucket.compacted_key(self.session, self.number, &volume);
        self.bucket.create(&key, PutPayload::from(bytes), COMPACT).await?;
        let gone = || extent.error("it is gone, and was just put");
        let read = self.bucket.get(&key, VOLUME_BYTES_MAX, COMPACT).await?.ok_or_else(gone)?;
        let mut chain = first.begin;
        OpenVolume::open_compacted(read, self.session, &volume)?.take_by(&mut chain)?;
        if chain != last.end {
            return Err(extent.error("its chunks do not lead to where those lead that it stands for"));
        }
        self.volumes.push(volume);
        Ok(())
    }
}
