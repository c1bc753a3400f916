//! Finds the chunk with a number, in a volume or as a separate object, and decides whether that
//! object still counts.
//!
//! # How volumes are found
//!
//! No list is requested. The numbers are divided into ranges of 64, and each has one key for its
//! volume ([`SPANS`](crate::volume::SPANS)). A reader requests that key once when it enters a
//! range: a short session takes two more requests, a long one a request for each 64 chunks. If the
//! volume exists and the number also starts a large range (of 4,096), the large volume is
//! requested. So a million chunks are some 250 large and as many small volumes. The chunks of a
//! volume are taken one by one by the rules of [`chain`](crate::chain), so a volume cannot change
//! the result.
//!
//! # How volumes are created, and the result of a crash
//!
//! The small volume of a range is put once each of its numbers is used, with create-if-absent, and
//! is never removed. So is the large one once its small ones exist. Both are determined by the
//! chunks, so every process puts the same bytes ([`volume_builder`](super::volume_builder)). A
//! crash leaves a range without its volume. Such a range is read by its chunks, and the next writer
//! puts the volume.
//!
//! # Collected chunks
//!
//! [`Remote::collect`](crate::Remote::collect) removes the chunks of a range whose small volume was
//! read back, fits the chain, and is older than [`MIN_AGE`](crate::MIN_AGE). Before the first
//! removal it puts a *mark*. So a number can be created a second time: a writer that was paused, or
//! a put that was in progress for days, finds it unused. The result is a *revived* chunk, and must
//! not count.
//!
//! Rule: an object under a number counts only if two conditions are met. At some moment no volume
//! contained that number (and its range had no mark). And the object was read, or its put was
//! confirmed, less than half of [`MIN_AGE`](crate::MIN_AGE) after that moment by
//! [`clock`](crate::clock). If more time has passed, the volume is requested afterwards: if there
//! is none, nothing was collected before; if there is one, its chunk counts, and no other. The
//! reason: a volume is older than `MIN_AGE` before one of its chunks is removed, by the store's
//! clock, and the two clocks are assumed to differ by no more than half of it.
//!
//! In most cases such a moment is known without an additional request:
//!
//! - for a process that requested a missing volume, it is the time before that request, for that
//!   range;
//! - for a process that found no object under the number after the chain, it is the time before
//!   that request, for every number from there on, since a volume needs all its chunks;
//! - for a writer with a confirmed put, it is the time before that put, for every later number,
//!   since no writer puts a chunk after a missing one.
//!
//! So a writer sends an additional request only if its put is confirmed half of `MIN_AGE` after it
//! put the previous chunk. It then requests that chunk too, and stops if the place has lost it.
//!
//! # Compacted volumes
//!
//! A compaction puts volumes without the dropped bodies, and last an object that names them all
//! ([`compaction`](crate::compaction)). Then the volumes of these ranges are removed, in any order.
//! Only collected ranges have any.
//!
//! So a process that finds a mark but no volume requests compactions: the numbers 1, 2, 4, … after
//! the last one that it knows, until one is missing, and then between the last two. It caches the
//! result, and reads the compacted volumes of that compaction from then on; a missing one is in a
//! newer compaction.
//!
//! A reader without a known compaction, or with an older one, can use the objects that it finds:
//! the chunks' hashes are the same in all of them, and so are sequence numbers, times, kinds and
//! hashes of bodies. A newer compaction is never read before an older one, since the newest known
//! one is requested. The reverse order is correct, as in a local log whose later segments were
//! compacted again.
//!
//! A *bare* volume means that its range is full, and that its chunks are separate objects, since
//! they are too long for a volume. They are read as if the volume could not be used. A collection
//! puts it only if bodies are to be dropped. It removes the chunks once a compacted volume replaces
//! them, after putting a mark, no less than `MIN_AGE` later.
//!
//! A volume that does not decode, or whose chunks do not fit the chain, is skipped as long as its
//! range has no mark: all its chunks still exist. If the range has a mark, or the volume is missing
//! and the mark exists, reading ends with [`Error::Volume`].

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use uuid::Uuid;

use super::bucket::Bucket;
use crate::chain::{Chain, TakenChunk};
use crate::chunk::{CHUNK_BYTES_MAX, Chunk, ChunkHash};
use crate::compaction::{COMPACTION_BYTES_MAX, CompactedVolume, Compaction};
use crate::error::{Error, Result};
use crate::volume::{Extent, KNOWN_FOR, VOLUME_BYTES_MAX, Volume, VolumeForm};

/// Maximum number of missing volumes that are noted.
const MISSING_MAX: usize = 1 << 16;

const BARE: &str = "it contains none of them";
const READ: &str = "read a chunk";
const READ_VOLUME: &str = "read a volume of chunks";
const READ_COMPACTION: &str = "read the list of compacted volumes";

/// The bytes of a chunk, possibly within those of a volume.
#[derive(Clone, Debug)]
pub(crate) struct ChunkBytes {
    whole: Arc<Vec<u8>>,
    place: Range<usize>,
    form: VolumeForm,
}

impl ChunkBytes {
    /// Passes the chunk to a chain.
    pub(crate) fn take_by<'a>(&'a self, chain: &mut Chain) -> Result<TakenChunk<'a>> {
        match self.form {
            VolumeForm::Whole => chain.take(self),
            VolumeForm::Compacted => chain.take_compacted(self),
        }
    }

    fn decode(&self, number: u64) -> Result<Chunk<'_>> {
        match self.form {
            VolumeForm::Whole => Chunk::decode(self, number),
            VolumeForm::Compacted => Chunk::decode_compacted(self, number),
        }
    }
}

impl Deref for ChunkBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.whole.get(self.place.clone()).unwrap_or_default()
    }
}

impl From<Vec<u8>> for ChunkBytes {
    fn from(bytes: Vec<u8>) -> ChunkBytes {
        ChunkBytes { place: 0..bytes.len(), whole: Arc::new(bytes), form: VolumeForm::Whole }
    }
}

/// A volume that was read.
#[derive(Clone, Debug)]
pub(crate) struct OpenVolume {
    extent: Extent,
    whole: Arc<Vec<u8>>,
    places: Vec<Range<usize>>,
    form: VolumeForm,
}

impl OpenVolume {
    fn new(form: VolumeForm, bytes: Vec<u8>, session: Uuid, extent: Extent) -> Result<OpenVolume> {
        let volume = Volume::decode(form, &bytes, session, extent)?;
        if volume.is_bare() {
            return Err(extent.error(BARE));
        }
        let places = volume.places().collect();
        Ok(OpenVolume { extent, whole: Arc::new(bytes), places, form })
    }

    /// Opens a compacted volume, whose bytes must match its compaction.
    pub(crate) fn open_compacted(
        bytes: Vec<u8>,
        session: Uuid,
        named: &CompactedVolume,
    ) -> Result<OpenVolume> {
        if *blake3::hash(&bytes).as_bytes() != named.hash {
            return Err(named
                .extent
                .error("it is damaged: its bytes do not match the hash in its compaction"));
        }
        OpenVolume::new(VolumeForm::Compacted, bytes, session, named.extent)
    }

    /// Passes all of its chunks to a chain.
    pub(crate) fn take_by(&self, chain: &mut Chain) -> Result<()> {
        for number in self.extent.first..=self.extent.last() {
            let missing = || self.extent.error("one of its chunks is missing");
            self.chunk(number).ok_or_else(missing)?.take_by(chain)?;
        }
        Ok(())
    }

    fn chunk(&self, number: u64) -> Option<ChunkBytes> {
        let at = usize::try_from(number.checked_sub(self.extent.first)?).ok()?;
        let place = self.places.get(at)?.clone();
        Some(ChunkBytes { whole: Arc::clone(&self.whole), place, form: self.form })
    }
}

/// Numbers that no volume contained at a known moment.
#[derive(Clone, Copy, Debug)]
struct UncoveredRange {
    from: u64,
    /// The last number.
    last: u64,
    since: Duration,
}

/// A reader's knowledge about a session's volumes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    session: Uuid,
    opened: Option<OpenVolume>,
    uncovered: Option<UncoveredRange>,
    /// Range whose small volume exists but cannot be used, and why.
    unusable: Option<(Extent, Error)>,
    /// Newest known compaction.
    compaction: Option<Arc<Compaction>>,
    /// Compacted volume that exists but cannot be used, and why.
    unfit: Option<(Extent, Error)>,
    /// Whether large volumes are requested.
    pub(crate) large: bool,
    walked: [RangeProgress; 2],
    /// Volumes that were missing when the log was read, or that its writer has completed, in the
    /// order of their numbers.
    pub(crate) missing: Vec<Extent>,
    /// Small volumes whose chunks were all taken from them.
    pub(crate) verified: Vec<Extent>,
    /// Small ranges with chunks that are too long for a volume.
    pub(crate) long: Vec<Extent>,
}

/// Findings about a range that is read from its start.
#[derive(Clone, Copy, Debug, Default)]
struct RangeProgress {
    extent: Option<Extent>,
    bytes: u64,
    /// Number of chunks that were in the range's own volume.
    held: u64,
}

impl Shelf {
    pub(crate) fn new(session: Uuid) -> Shelf {
        Shelf { session, large: true, ..Shelf::default() }
    }

    /// Returns the bytes that count under a number; the caller has to verify them. Returns `None`
    /// if there are none.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], [`Error::TooLarge`], and [`Error::Volume`] if the chunk was collected and
    /// its volume cannot be used.
    pub(crate) async fn find(&mut self, bucket: &Bucket, number: u64) -> Result<Option<ChunkBytes>> {
        if let Some(chunk) = self.on_hand(number) {
            return Ok(Some(chunk));
        }
        self.opened = None;
        let begins = Extent::around(number, bucket.spans[0]).first == number;
        let is_end = self.uncovered.is_some_and(|known| known.from == number);
        // After the known end, a whole range may have been put since.
        if (!self.is_fresh(bucket, number) || begins && !is_end) && self.unusable_at(number).is_none() {
            self.look(bucket, number).await?;
            if let Some(chunk) = self.on_hand(number) {
                return Ok(Some(chunk));
            }
        }
        let asked = bucket.now();
        let found = object(bucket, self.session, number).await?;
        if let Some(chunk) = self.instead(bucket, number).await? {
            return Ok(Some(chunk));
        }
        if found.is_none() && self.unusable_at(number).is_none() {
            self.note_end(number, asked);
        }
        Ok(found.map(ChunkBytes::from))
    }

    /// Returns the volume's chunk that counts instead of the object that was just read under a
    /// number, or whose put was just confirmed. Returns `None` if that object counts, or its
    /// absence.
    pub(crate) async fn instead(&mut self, bucket: &Bucket, number: u64) -> Result<Option<ChunkBytes>> {
        if self.unusable_at(number).is_none() {
            if self.is_fresh(bucket, number) {
                return Ok(None);
            }
            self.look(bucket, number).await?;
            if self.opened.is_none() && self.unusable.is_none() {
                return Ok(None);
            }
        }
        match self.unusable_at(number) {
            None => Ok(self.on_hand(number)),
            Some((extent, error)) => {
                // When the object was read, nothing of the range was collected.
                if !is_marked(bucket, self.session, extent).await? {
                    return Ok(None);
                }
                // A compacted volume may replace it by now.
                if matches!(error, Error::Volume { reason: BARE, .. }) {
                    self.look(bucket, number).await?;
                }
                self.on_hand(number).map(Some).ok_or(error)
            }
        }
    }

    /// Returns whether it is known that no chunk with this number was collected up to now.
    pub(crate) fn is_fresh(&self, bucket: &Bucket, number: u64) -> bool {
        self.uncovered.is_some_and(|known| {
            (known.from..=known.last).contains(&number)
                && bucket.now().saturating_sub(known.since) <= KNOWN_FOR
        })
    }

    /// Notes that before `since`, nothing was ever put under this number, or a later one.
    pub(crate) fn note_end(&mut self, number: u64, since: Duration) {
        self.uncovered = Some(UncoveredRange { from: number, last: u64::MAX, since });
    }

    /// Forgets the end of the log, so that the volume is requested again.
    pub(crate) fn forget_end(&mut self) {
        self.uncovered = None;
    }

    /// Notes that a volume's chunk with this number does not fit the chain. Returns whether there
    /// is another object to try.
    pub(crate) fn refuse(&mut self, bucket: &Bucket, number: u64) -> bool {
        let Some(opened) = self.opened.take_if(|opened| opened.extent.holds(number)) else { return false };
        self.uncovered = None;
        let small = Extent::around(number, bucket.spans[0]);
        if opened.form == VolumeForm::Compacted {
            self.unfit =
                Some((opened.extent, opened.extent.error("one of its chunks does not match the log")));
        } else if opened.extent.count > small.count {
            self.large = false;
        } else {
            self.unusable = Some((small, small.error("one of its chunks does not match the log")));
        }
        true
    }

    /// Returns the chunk from the volume that was read last.
    pub(crate) fn on_hand(&self, number: u64) -> Option<ChunkBytes> {
        self.opened.as_ref()?.chunk(number)
    }

    fn unusable_at(&self, number: u64) -> Option<(Extent, Error)> {
        self.unusable.clone().filter(|(extent, _)| extent.holds(number))
    }

    /// Looks up the volume that contains a number. Afterwards it is `opened` or `unusable`, unless
    /// there is none.
    async fn look(&mut self, bucket: &Bucket, number: u64) -> Result<()> {
        let [small, large] = bucket.spans.map(|span| Extent::around(number, span));
        let since = bucket.now();
        (self.opened, self.unusable) = (None, None);
        if let Some(Ok(opened)) = self.read_compacted(bucket, number).await? {
            self.opened = Some(opened);
            return Ok(());
        }
        let read = match self.read_volume(bucket, small).await? {
            None if !is_marked(bucket, self.session, small).await? => {
                self.uncovered = Some(UncoveredRange { from: small.first, last: small.last(), since });
                return Ok(());
            }
            // Both may have been put in between.
            None => self.read_volume(bucket, small).await?,
            read => read,
        };
        if let Some(Ok(opened)) = read {
            self.opened = Some(opened);
        } else {
            // A compacted one may already replace it.
            self.learn(bucket).await?;
            match (read, self.read_compacted(bucket, number).await?) {
                (Some(_), Some(Ok(opened))) => self.opened = Some(opened),
                (Some(read), _) => self.unusable = read.err().map(|error| (small, error)),
                (None, compacted) => {
                    self.opened = Some(compacted.unwrap_or_else(|| Err(small.error("it is missing")))?);
                    return Ok(());
                }
            }
        }
        // It needs all small ones, and is useful only if it is read from its start.
        if self.large
            && large.first == number
            && let Some(Ok(opened)) = self.read_volume(bucket, large).await?
        {
            (self.opened, self.unusable) = (Some(opened), None);
        }
        Ok(())
    }

    /// Finds the newest compaction, unless it is known, and returns it.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], and [`Error::Compaction`] if it cannot be used.
    pub(crate) async fn learn(&mut self, bucket: &Bucket) -> Result<Option<Arc<Compaction>>> {
        let known = self.compaction.as_ref().map_or(0, |compaction| compaction.number);
        let is_there = async |number| {
            Ok::<_, Error>(
                bucket.size(&bucket.compaction_key(self.session, number), READ_COMPACTION).await?.is_some(),
            )
        };
        // Each is put after the previous one, and none is removed.
        let (mut newest, mut step) = (known, 1);
        while is_there(newest + step).await? {
            newest += step;
            step *= 2;
        }
        let mut absent = newest + step;
        while newest + 1 < absent {
            let between = newest + (absent - newest) / 2;
            match is_there(between).await? {
                true => newest = between,
                false => absent = between,
            }
        }
        if newest > known {
            self.compaction = Some(Arc::new(read_compaction(bucket, self.session, newest).await?));
        }
        Ok(self.compaction.clone())
    }

    /// Reads the compacted volume that contains a number by the newest known compaction, or by a
    /// newer one if that volume is missing. Returns `None` if no known compaction has one; the
    /// inner error describes why it cannot be used.
    async fn read_compacted(&mut self, bucket: &Bucket, number: u64) -> Result<Option<Result<OpenVolume>>> {
        if let Some((_, error)) = self.unfit.clone().filter(|(extent, _)| extent.holds(number)) {
            return Ok(Some(Err(error)));
        }
        loop {
            let Some(compaction) = self.compaction.clone() else { return Ok(None) };
            let Some(named) = compaction.around(number) else { return Ok(None) };
            let key = bucket.compacted_key(self.session, compaction.number, named);
            let open = |bytes| OpenVolume::open_compacted(bytes, self.session, named);
            let read = read_twice(bucket, &key, named.extent, open).await?;
            if read.is_some() {
                return Ok(read);
            }
            let newer = self.learn(bucket).await?;
            if newer.is_none_or(|newer| newer.number == compaction.number) {
                return Ok(Some(Err(named.extent.error("it is missing"))));
            }
        }
    }

    /// Reads a volume that is not compacted.
    async fn read_volume(&self, bucket: &Bucket, extent: Extent) -> Result<Option<Result<OpenVolume>>> {
        let open = |bytes| OpenVolume::new(VolumeForm::Whole, bytes, self.session, extent);
        read_twice(bucket, &bucket.volume_key(self.session, extent), extent, open).await
    }

    /// Notes that the chunk with this number was taken, to determine the missing volumes and those
    /// that fit.
    pub(crate) fn note_taken(&mut self, bucket: &Bucket, number: u64, len: usize) {
        if self
            .opened
            .as_ref()
            .is_some_and(|opened| opened.form == VolumeForm::Compacted && opened.extent.holds(number))
        {
            // A new volume must not repeat the chunks of a compacted one.
            self.walked.iter_mut().for_each(|walked| walked.extent = None);
            return;
        }
        for (walked, span) in self.walked.iter_mut().zip(bucket.spans) {
            let extent = Extent::around(number, span);
            if number == extent.first {
                *walked = RangeProgress { extent: Some(extent), ..RangeProgress::default() };
            }
            if walked.extent != Some(extent) {
                continue;
            }
            walked.bytes = walked.bytes.saturating_add(len as u64);
            walked.held += u64::from(self.opened.as_ref().is_some_and(|opened| opened.extent == extent));
            if number != extent.last() {
                continue;
            }
            walked.extent = None;
            let fits = bucket.has_volume_of(extent.count, walked.bytes);
            let is_within_large =
                self.opened.as_ref().is_some_and(|opened| opened.extent.count > extent.count);
            if walked.held == extent.count && span == bucket.spans[0] && !self.large {
                self.verified.push(extent);
            } else if walked.held == 0 && fits && !is_within_large && self.missing.len() < MISSING_MAX {
                self.missing.push(extent);
            } else if walked.held == 0 && !fits && span == bucket.spans[0] && !self.large {
                self.long.push(extent);
            }
        }
    }
}

/// Reads the object of a chunk, a second time if it fails verification, since the bytes may have
/// been damaged in transit.
async fn object(bucket: &Bucket, session: Uuid, number: u64) -> Result<Option<Vec<u8>>> {
    let key = bucket.chunk_key(session, number);
    let bytes = bucket.get(&key, CHUNK_BYTES_MAX, READ).await?;
    match &bytes {
        Some(read) if Chunk::decode(read, number).is_err() => bucket.get(&key, CHUNK_BYTES_MAX, READ).await,
        _ => Ok(bytes),
    }
}

async fn read_compaction(bucket: &Bucket, session: Uuid, number: u64) -> Result<Compaction> {
    let key = bucket.compaction_key(session, number);
    let decode = |bytes: &[u8]| Compaction::decode(bytes, session, number);
    let found = bucket.get_decoded(&key, COMPACTION_BYTES_MAX, READ_COMPACTION, decode).await?;
    found.ok_or(Error::Compaction { number, reason: "it is missing" })
}

/// Reads a volume, a second time if it fails verification. Returns `None` if it is missing; the
/// inner error describes why it cannot be used.
async fn read_twice(
    bucket: &Bucket,
    key: &Path,
    extent: Extent,
    open: impl Fn(Vec<u8>) -> Result<OpenVolume>,
) -> Result<Option<Result<OpenVolume>>> {
    let mut unusable = None;
    for _ in 0..2 {
        match bucket.get(key, VOLUME_BYTES_MAX, READ_VOLUME).await {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => match open(bytes) {
                Err(error) if !matches!(error, Error::Volume { reason: BARE, .. }) => unusable = Some(error),
                read => return Ok(Some(read)),
            },
            Err(Error::TooLarge { .. }) => {
                return Ok(Some(Err(extent.error("it is longer than allowed"))));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(unusable.map(Err))
}

/// Returns whether chunks of a range are collected, or may be at any moment.
pub(crate) async fn is_marked(bucket: &Bucket, session: Uuid, extent: Extent) -> Result<bool> {
    let key = bucket.mark_key(session, extent);
    Ok(bucket.get(&key, MARK_BYTES_MAX, READ_VOLUME).await?.is_some())
}

/// Maximum length of a mark in bytes.
pub(crate) const MARK_BYTES_MAX: usize = 1024;

/// Returns whether a place still has a chunk, as an object or in a volume.
pub(crate) async fn has(bucket: &Bucket, session: Uuid, number: u64, hash: ChunkHash) -> Result<bool> {
    let is_it = |bytes: &[u8]| Chunk::decode(bytes, number).is_ok_and(|chunk| chunk.hash == hash);
    if object(bucket, session, number).await?.is_some_and(|bytes| is_it(&bytes)) {
        return Ok(true);
    }
    // Collected, and perhaps revived.
    let mut shelf = Shelf::new(session);
    shelf.large = false;
    match shelf.look(bucket, number).await {
        Ok(_) => Ok(shelf
            .on_hand(number)
            .is_some_and(|bytes| bytes.decode(number).is_ok_and(|chunk| chunk.hash == hash))),
        Err(Error::Volume { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
