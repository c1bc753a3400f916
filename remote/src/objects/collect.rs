//! Removes chunks that volumes contain. A host or a person requests this; a writer never does it by
//! itself.
//!
//! 1. The session is read to its end by its chunks and small volumes. A volume *fits* if every
//!    chunk of its range was read from it by the rules of [`chain`](crate::chain). Missing volumes
//!    are created.
//! 2. A volume's age is the time from its last modification to that of an object that is put now.
//!    The store's clock determines both; no other clock is used.
//! 3. The range of each volume that fits and is older than [`MIN_AGE`] gets its mark. Then the
//!    listed chunks of that range are removed, the oldest range first.
//!
//! 4. If the session's writer recorded that a compaction has dropped bodies, volumes of ranges that
//!    have their marks are rewritten without them ([`body_removal`](super::body_removal)).
//!
//! 5. Leftovers of earlier killed processes are removed: objects that were put to read the store's
//!    time.
//!
//! 6. Payloads and packs that no chunk of the chain names any more are withdrawn, and removed by a
//!    later collection ([`payload_removal`](super::payload_removal)).
//!
//! If a list lacks a chunk, the chunk remains until the next collection. A listed chunk is removed
//! only if rules 1 to 3 permit it. A crash leaves a mark and some of the chunks, and the next
//! collection continues.
//!
//! A version of foldlog without volumes treats a collected session as an empty one, and a version
//! without withdrawals names payloads that are about to be removed. So collect only once every
//! worker and reader of a place has a version with both.

use std::collections::BTreeMap;
use std::mem::take;
use std::time::Duration;

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use uuid::Uuid;

use super::body_removal::{self, Ranges};
use super::bucket::{Bucket, age_at};
use super::payload_removal::PayloadListing;
use super::reader::ChunkReader;
use super::remote::Remote;
use super::volume_builder;
use crate::chunk::Chunk;
use crate::dropped_bodies::DroppedBodiesTracker;
use crate::error::Result;
use crate::place::{CollectOptions, CollectReport};
use crate::referenced_payloads::ReferencedPayloads;
use crate::volume::{Extent, MIN_AGE};

const COLLECT: &str = "remove collected chunks";

impl Remote {
    /// Removes the chunks of a session that its volumes contain, once those are old enough; bodies
    /// that a compaction of the session dropped; and payloads that are no longer named. Readers and
    /// writers may continue during a collection.
    ///
    /// # Errors
    ///
    /// The errors of [`ChunkReader::read_to_end`], and [`Error::Store`](crate::Error::Store).
    /// Objects that were already removed remain so.
    pub fn collect(&self, session: Uuid, options: CollectOptions) -> Result<CollectReport> {
        self.runtime.run(collect(&self.bucket, session, options))?
    }
}

/// Collects the chunks of a session as [`Remote::collect`] does, for callers that have a runtime.
pub async fn collect(bucket: &Bucket, session: Uuid, options: CollectOptions) -> Result<CollectReport> {
    let time = bucket.store_time(session).await?;
    let payloads = PayloadListing::read(bucket, session, time).await?;
    let mut reader = ChunkReader::new(bucket.clone(), session);
    reader.shelf.large = false;
    let (mut dropped_bodies, mut needed) = (DroppedBodiesTracker::default(), ReferencedPayloads::default());
    let see = &mut |chunk: &Chunk<'_>| {
        for record in chunk.records() {
            dropped_bodies.see(chunk.head.number, &record);
            needed.see(&record);
        }
        let packs = chunk.captures.iter().flat_map(|captures| captures.packs());
        needed.extend(packs.map(|pack| pack.hash));
    };
    reader.read_to_end(see).await?;
    let report = CollectReport { next: reader.chain().next_sequence(), ..CollectReport::default() };
    let (min_age, dry_run) = (options.min_age.max(MIN_AGE), options.dry_run);
    let listed = BTreeMap::new();
    let mut collection = Collection { bucket, session, time, min_age, dry_run, listed, report };
    let shelf = &mut reader.shelf;
    let made = collection.make(take(&mut shelf.missing)).await?;
    let compaction = shelf.learn(bucket).await?;
    collection.list(&made).await?;
    let is_compacted = |extent: &Extent| compaction.as_ref().is_some_and(|it| it.touches(*extent));
    let compacted = collection.ranges().filter(is_compacted).collect::<Vec<_>>();
    let is_asked =
        |extent: &Extent| collection.listed.contains_key(&extent.first) || dropped_bodies.is_anything();
    let fit = take(&mut shelf.verified).into_iter();
    let asked = fit.filter(|extent| is_asked(extent) && !is_compacted(extent)).collect();
    let old = collection.old_of(asked).await?;
    // Chunks of a compacted volume were removed before, or still have to be.
    for extent in compacted.iter().chain(&old) {
        collection.remove(*extent).await?;
    }
    let mut long = Vec::new();
    for extent in take(&mut shelf.long).into_iter().filter(|_| dropped_bodies.is_anything()) {
        long.push((extent, collection.age(extent).await?));
    }
    needed.extend(compaction.iter().map(|compaction| compaction.known));
    let ranges = Ranges { collected: &old, long: &long };
    let compacted = body_removal::compact(&mut collection, dropped_bodies, compaction, ranges).await?;
    if let Some(compaction) = &compacted {
        for (extent, _) in long.iter().filter(|(extent, _)| compaction.touches(*extent)) {
            collection.remove(*extent).await?;
        }
    }
    needed.extend(compacted.map(|compaction| compaction.known));
    if !dry_run {
        remove_probes(bucket, session, time).await?;
    }
    collection.report.undecoded = needed.unknown();
    if let Some(payloads) = payloads {
        payloads.collect(&mut collection, &needed).await?;
    }
    Ok(collection.report)
}

/// The state of a collection of a session's chunks.
pub(crate) struct Collection<'a> {
    pub(crate) bucket: &'a Bucket,
    pub(crate) session: Uuid,
    /// The store's time before all reads.
    time: DateTime<Utc>,
    pub(crate) min_age: Duration,
    pub(crate) dry_run: bool,
    /// Chunks that the store lists, by the first number of their range: number and length in bytes.
    listed: BTreeMap<u64, BTreeMap<u64, u64>>,
    pub(crate) report: CollectReport,
}

impl Collection<'_> {
    /// Creates missing volumes, and returns those that were put.
    async fn make(&mut self, missing: Vec<Extent>) -> Result<Vec<Extent>> {
        let mut made = Vec::new();
        for extent in missing.into_iter().filter(|_| !self.dry_run) {
            if volume_builder::make(self.bucket, self.session, extent).await? {
                made.push(extent);
            }
        }
        self.report.volumes = made.len() as u64;
        Ok(made)
    }

    /// Lists the chunks; those in volumes that were put just now count as too young.
    async fn list(&mut self, made: &[Extent]) -> Result<()> {
        let small = self.bucket.spans[0];
        let listed = self.bucket.list_objects(self.session, "log", "list the chunks").await?;
        for ObjectMeta { location, size, .. } in listed {
            let Some(number) = location.filename().and_then(|name| name.parse().ok()) else { continue };
            let range = Extent::around(number, small);
            self.listed.entry(range.first).or_default().insert(number, size);
        }
        let count = |chunks: &BTreeMap<u64, u64>| chunks.len() as u64;
        self.report.left = self.listed.values().map(count).sum();
        let young = made.iter().filter(|extent| extent.count == small);
        self.report.young = young.filter_map(|extent| self.listed.get(&extent.first)).map(count).sum();
        Ok(())
    }

    /// Returns the ranges of the listed chunks.
    fn ranges(&self) -> impl Iterator<Item = Extent> {
        let small = self.bucket.spans[0];
        self.listed.keys().map(move |first| Extent::around(*first, small))
    }

    /// Returns the age of a range's volume; `None` if there is none.
    async fn age(&self, extent: Extent) -> Result<Option<Duration>> {
        let found = self.bucket.head(&self.bucket.volume_key(self.session, extent), COLLECT).await?;
        Ok(found.map(|found| age_at(self.time, found.last_modified)))
    }

    /// Returns the ranges with volumes that are old enough.
    async fn old_of(&mut self, asked: Vec<Extent>) -> Result<Vec<Extent>> {
        let mut old = Vec::new();
        for extent in asked {
            if self.age(extent).await?.is_some_and(|age| age >= self.min_age) {
                old.push(extent);
            } else {
                self.report.young += self.listed.get(&extent.first).map_or(0, |chunks| chunks.len() as u64);
            }
        }
        Ok(old)
    }

    /// Puts the mark of a range and then removes its chunks; in a dry run only counts them.
    async fn remove(&mut self, extent: Extent) -> Result<()> {
        let Some(chunks) = self.listed.remove(&extent.first) else { return Ok(()) };
        if !self.dry_run {
            self.bucket.mark(self.session, extent, COLLECT).await?;
            let keys = chunks.keys().map(|number| self.bucket.chunk_key(self.session, *number)).collect();
            self.bucket.remove_all(keys, COLLECT).await?;
        }
        self.report.chunks += chunks.len() as u64;
        self.report.left -= chunks.len() as u64;
        self.report.bytes += chunks.values().sum::<u64>();
        Ok(())
    }
}

/// Removes the probe objects of openings and collections that were killed.
async fn remove_probes(bucket: &Bucket, session: Uuid, time: DateTime<Utc>) -> Result<()> {
    let left = bucket.list_objects(session, "probe", COLLECT).await?;
    // No process needs its probe for so long.
    let is_old = |found: &ObjectMeta| age_at(time, found.last_modified) >= 7 * MIN_AGE;
    let keys: Vec<_> = left.into_iter().filter(is_old).map(|found| found.location).collect();
    bucket.remove_all(keys, COLLECT).await
}
