//! Removes chunks whose volumes hold them: what a host or a person asks for, never what a writer does by itself.
//!
//! 1. The session is read to its end by its chunks and small volumes. A volume *fits* if every chunk of its range was taken from it by the
//!    rules of [`chain`](crate::chain). Missing volumes are made.
//! 2. A volume's age is the time from its last modification to that of an object that is put now: both are told by the store's clock, and no
//!    other one is asked.
//! 3. The range of each volume that fits and is older than [`MIN_AGE`] gets its mark, and then the chunks that the store lists of it are
//!    removed, the oldest range first.
//!
//! 4. If the session's writer recorded that a compaction has dropped bodies, volumes of ranges that have their marks are written anew without
//!    them ([`compacting`](crate::compacting)).
//!
//! 5. Payloads and packs that no chunk of the chain names any more are withdrawn, and removed by a later collection
//!    ([`withdrawing`](crate::withdrawing)).
//!
//! A list that lacks a chunk leaves it for the next time; what it shows is removed only where 1 to 3 allow it. A crash leaves a mark and some
//! of the chunks, and the next collection goes on.
//!
//! A version of foldlog that knows no volumes takes a collected session for an empty one. So nothing is to be collected before every worker
//! and reader of a place has one that does.

use std::collections::BTreeMap;

use object_store::PutPayload;
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::chunk::Chunk;
use crate::compacting;
use crate::error::Result;
use crate::maker::{self, Made};
use crate::needed::Needed;
use crate::place::{CollectOptions, CollectReport};
use crate::reader::Reader;
use crate::remote::Remote;
use crate::said::Said;
use crate::volume::{Extent, MIN_AGE};
use crate::withdrawing::Listed;

const COLLECT: &str = "remove collected chunks";

const MARK: &[u8] = b"foldlog: chunks of this range are removed, and stand in its volume\n";

impl Remote {
    /// Removes the chunks of a session that its volumes hold, once those are old enough. Readers and writers may go on meanwhile.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::read_to_end`], and [`Error::Store`](crate::Error::Store). What was removed by then stays so.
    pub fn collect(&self, session: Uuid, options: CollectOptions) -> Result<CollectReport> {
        let bucket = self.bucket().clone();
        self.runtime().run(async move { collect(&bucket, session, options).await })?
    }
}

/// Collects the chunks of a session as [`Remote::collect`] does, for callers that have a runtime.
///
/// # Errors
///
/// Those of [`Remote::collect`].
pub async fn collect(bucket: &Bucket, session: Uuid, options: CollectOptions) -> Result<CollectReport> {
    let payloads = Listed::of(bucket, session).await?;
    let mut reader = Reader::new(bucket.clone(), session);
    reader.shelf().0.ask_for_small_alone();
    let mut report = CollectReport::default();
    let (mut said, mut needed) = (Said::default(), Needed::default());
    let see = &mut |chunk: &Chunk<'_>| {
        for record in chunk.records() {
            said.see(chunk.head.number, &record);
            needed.see(&record);
        }
        let packs = chunk.captures.iter().flat_map(|captures| captures.packs());
        needed.extend(packs.map(|pack| pack.hash));
    };
    reader.read_to_end(see).await?;
    report.next = reader.chain().next_sequence();
    let fit = reader.shelf().0.take_verified();
    let mut made = Vec::new();
    if !options.dry_run {
        for extent in reader.shelf().0.take_missing() {
            if maker::make(bucket, session, extent).await? == Made::Put {
                made.push(extent);
            }
        }
    }
    report.volumes = made.len() as u64;
    let compaction = reader.shelf().0.learn(bucket).await?;
    let mut listed: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
    for (number, len) in bucket.chunks(session).await? {
        let range = Extent::around(number, bucket.spans()[0]);
        listed.entry(range.first).or_default().insert(number, len);
    }
    report.left = listed.values().map(|chunks| chunks.len() as u64).sum();
    let small = made.into_iter().filter(|extent| extent.count == bucket.spans()[0]);
    report.young =
        small.filter_map(|extent| listed.get(&extent.first)).map(|chunks| chunks.len() as u64).sum();
    let is_compacted = |extent: &Extent| compaction.as_ref().is_some_and(|it| it.touches(*extent));
    let compacted = listed.keys().map(|first| Extent::around(*first, bucket.spans()[0])).filter(is_compacted);
    // Their chunks were collected before they were compacted.
    let revived: Vec<Extent> = compacted.collect();
    let is_asked = |extent: &Extent| listed.contains_key(&extent.first) || said.is_anything();
    let asked: Vec<Extent> =
        fit.into_iter().filter(|extent| is_asked(extent) && !is_compacted(extent)).collect();
    let min_age = options.min_age.max(MIN_AGE);
    let mut old = Vec::new();
    if !asked.is_empty() {
        let time = bucket.store_time(session).await?;
        for extent in asked {
            match bucket.age(&bucket.volume_key(session, extent), time).await? >= min_age {
                true => old.push(extent),
                false => report.young += listed.get(&extent.first).map_or(0, |chunks| chunks.len() as u64),
            }
        }
    }
    for extent in revived.iter().chain(&old) {
        let Some(chunks) = listed.get(&extent.first) else { continue };
        if !options.dry_run {
            bucket.create(&bucket.mark_key(session, *extent), PutPayload::from_static(MARK), COLLECT).await?;
            bucket.remove_chunks(session, chunks.keys().copied(), COLLECT).await?;
        }
        report.chunks += chunks.len() as u64;
        report.left -= chunks.len() as u64;
        report.bytes += chunks.values().sum::<u64>();
    }
    needed.extend(compaction.iter().map(|compaction| compaction.known));
    let known =
        compacting::compact((bucket, session), (said, compaction), &old, options.dry_run, &mut report)
            .await?;
    needed.extend(known.map(|known| known.hash));
    if let Some(payloads) = payloads {
        payloads.collect((bucket, session), &needed, (min_age, options.dry_run), &mut report).await?;
    }
    Ok(report)
}
