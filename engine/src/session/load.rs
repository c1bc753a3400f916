//! Reads the log of a session and folds it, from the newest image that the log confirms.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::Rollback;
use foldlog_codec::image::{Image, SliceImage};

use super::rebuilt_log::Digests;
use crate::error::{Error, Result};
use crate::fold::history::History;
use crate::fold::image_conversion::{self, LoadedImage};
use crate::fold::live::{FoldSources, LiveState};
use crate::fold::live_path::LivePath;
use crate::fold::log_source::LogSource;
use crate::fold::memory::Watch;
use crate::fold::pipeline::{Fold, fold_while_reading};
use crate::fold::positions::Positions;
use crate::fold::projection::{FrozenProjection, LogSlices, Projection};
use crate::log::TornTail;
use crate::log::image_files;
use crate::log::objects::Objects;
use crate::log::reader::RecordLocator;
use crate::log::scan::{self, FrameAt, LogScan, Scanner};
use crate::options::{MemoryLimit, StoreOptions};
use crate::storage::Storage;
use crate::types::SessionTypes;

/// Storage of a session, and the memory limit for reading it.
#[derive(Clone, Copy)]
pub(crate) struct ReadGround<'a> {
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) memory: MemoryLimit,
}

impl<'a> ReadGround<'a> {
    pub(crate) fn from_options(options: &'a StoreOptions) -> ReadGround<'a> {
        ReadGround { storage: &options.storage, memory: options.memory }
    }
}

/// A session that was read: its scan and its fold.
pub(crate) struct LoadedSession {
    pub(crate) scan: LogScan,
    pub(crate) folded: LiveState,
    pub(crate) images: Images,
    /// Number of lost records that the store's replicator returned.
    pub(crate) fetched: u64,
}

/// Reads the session in `dir`, with the host's types or without. A session continues from the
/// newest image that the log confirms; an audit folds every record. Fails if the fold exceeds the
/// memory limit.
pub(crate) fn open_read(
    ground: ReadGround<'_>,
    dir: &FilePath,
    types: Option<&SessionTypes>,
    log_slices: LogSlices,
) -> Result<LoadedSession> {
    scan::retry_if_replaced(|| open_read_once(ground, dir, types, log_slices, &mut None))
}

/// Reads the session once. If `digests` is `Some`, it receives the digests of the segments, and no
/// image is used.
pub(super) fn open_read_once(
    ground: ReadGround<'_>,
    dir: &FilePath,
    types: Option<&SessionTypes>,
    log_slices: LogSlices,
    digests: &mut Option<Digests>,
) -> Result<LoadedSession> {
    let ReadGround { storage, memory } = ground;
    let objects = Arc::new(Objects::new(Arc::clone(storage), dir));
    let mut images = Images::default();
    let scanner = match log_slices {
        LogSlices::InLog if digests.is_none() => images.start_after_image(ground, dir, types, &objects)?,
        _ => Scanner::new(storage.as_ref(), dir)?,
    };
    // Retained, since the fold may have to start again.
    let projection = match images.projection.take() {
        Some(projection) => projection,
        None => Projection::new(log_slices).over(scanner.compaction()?.as_ref()),
    };
    images.watch = images.watch.take().or_else(|| Watch::from_limit(dir, memory));
    let folded = images.live_state(&projection);
    let folding = Fold { folded, sources: FoldSources { objects: &objects, types }, failed: false };
    let is_digested = digests.is_some();
    let ((mut scan, read), folding) = fold_while_reading(folding, scanner.finished_bytes(), |take| {
        let mut digests = is_digested.then(Digests::default);
        // A walk consumes its scanner, and it is not known yet whether a second thread walks.
        let scan = scanner.clone().run(&mut |at| {
            let record = at.record();
            if !record.kind.is_envelope() {
                if let Some(digests) = &mut digests {
                    digests.add(at.segment, &record);
                }
                take(&record);
            }
            Ok(())
        })?;
        Ok((scan, digests))
    })?;
    *digests = read;
    // If a record could not be folded, the second reading reports it.
    let mut folded = folding.finish();
    leave_out_records_without_objects(storage, &mut scan, &objects)?;
    // One reading is enough, unless the log has a rollback to a position whose state was not
    // retained, or its last records are left out. The second reading also starts after the image,
    // unless a rollback goes to a position before it.
    if folded.projection.next_sequence() != scan.next_sequence {
        let places = scan.places();
        let (rollbacks, limit) = (&scan.rollbacks, (dir, memory));
        let history = History { storage, places: &places, objects: &objects, rollbacks, limit };
        let end = scan.next_sequence;
        let behind = images.next_sequence.filter(|next| *next <= end);
        // If a rollback goes to a position before the image, or a record contradicts it, all
        // records are folded.
        let goes_on = behind.and_then(|_| {
            history.fold_behind(images.live_state(&projection), end, types, &mut |_, _| Ok(())).ok()
        });
        folded = match goes_on {
            Some(folded) => folded,
            None => {
                images.next_sequence = None;
                let folded = history.fold(end, types, log_slices, &mut |_, _| Ok(()));
                folded.map_err(|error| scan::begins_anew(error, end, dir))?
            }
        };
    }
    if let Some(compaction) = &scan.compaction {
        compaction.check_end(scan.next_sequence)?;
    }
    Ok(LoadedSession { scan, folded, images, fetched: 0 })
}

/// Reads names, tags, operations and rollbacks of the log in `dir`, without items. Memory does not
/// grow with the slices, and is limited. If a record contradicts earlier ones, the error is
/// returned with the scan: a fold with items may find an earlier one.
pub(crate) fn read_outline(
    storage: &Arc<dyn Storage>,
    dir: &FilePath,
    objects: &Objects,
    limit: MemoryLimit,
) -> Result<(LogScan, Result<Projection>)> {
    let none = Projection::new(LogSlices::Outline);
    let source = OutlineSource { storage, objects, limit };
    scan::retry_if_replaced(|| {
        read_outline_by(source, dir, &none, |visit| Scanner::new(storage.as_ref(), dir)?.run(visit))
    })
}

pub(crate) type VisitFrame<'a> = dyn FnMut(FrameAt<'_>) -> Result<()> + 'a;

/// Sources of an outline, and the memory limit for reading it.
#[derive(Clone, Copy)]
pub(crate) struct OutlineSource<'a> {
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) objects: &'a Objects,
    pub(crate) limit: MemoryLimit,
}

/// Reads an outline as [`read_outline`] does, by a given walk over the log. The walk passes the
/// records after the outline `begun`.
pub(crate) fn read_outline_by(
    source: OutlineSource<'_>,
    dir: &FilePath,
    begun: &Projection,
    walk: impl FnOnce(&mut VisitFrame<'_>) -> Result<LogScan>,
) -> Result<(LogScan, Result<Projection>)> {
    let OutlineSource { storage, objects, limit } = source;
    let watch = || Watch::from_limit(dir, limit);
    let outline =
        || LiveState { watch: watch(), projection: begun.clone(), ..LiveState::new(LogSlices::Outline) };
    let sources = FoldSources { objects, types: None };
    let (mut folded, mut failed) = (outline(), None);
    let mut scan = walk(&mut |at| {
        let record = at.record();
        if failed.is_none() && !record.kind.is_envelope() {
            match folded.apply_record(&record, sources) {
                Err(error @ Error::OverBudget { .. }) => return Err(error),
                applied => failed = applied.err(),
            }
        }
        Ok(())
    })?;
    leave_out_records_without_objects(storage, &mut scan, objects)?;
    // The record that could not be applied may be among the excluded ones.
    if folded.projection.next_sequence() != scan.next_sequence {
        folded = outline();
        let last = scan.next_sequence.saturating_sub(1);
        let first = begun.next_sequence();
        let read =
            scan.places().read(storage, first, last, &mut |record| folded.apply_record(&record, sources));
        if let Err(error) = read {
            return Ok((scan, Err(error)));
        }
    }
    Ok((scan, Ok(folded.projection)))
}

/// Result of searching a session's images.
#[derive(Default)]
pub(crate) struct Images {
    /// Number of records that need no fold because of the image in use.
    pub(super) next_sequence: Option<SequenceNumber>,
    projection: Option<Projection>,
    /// STATE at the starts of operations that were open at the image's position.
    begun: Vec<(SequenceNumber, Arc<FrozenProjection>)>,
    rollbacks: BTreeMap<SequenceNumber, Rollback>,
    /// Length of the image in bytes.
    pub(crate) bytes: u64,
    /// Bytes of the log that the image covers.
    pub(crate) log_bytes: u64,
    /// Counts the memory of the fold after the image.
    watch: Option<Watch>,
    pub(super) dropped: Vec<PathBuf>,
}

impl Images {
    /// Returns the fold after the image with this projection.
    fn live_state(&self, projection: &Projection) -> LiveState {
        let mut positions = Positions::default();
        for (begin, frozen) in &self.begun {
            positions.begin(*begin, Some(Arc::clone(frozen)));
        }
        let (projection, rollbacks) = (projection.clone(), self.rollbacks.clone());
        let path = LivePath::new(rollbacks.iter().map(|(at, rollback)| (*at, rollback.to)));
        LiveState { projection, positions, rollbacks, path, watch: self.watch.clone() }
    }

    /// Finds the newest image that the log confirms, and starts the walk after it.
    fn start_after_image<'a>(
        &mut self,
        ReadGround { storage, memory }: ReadGround<'a>,
        dir: &'a FilePath,
        types: Option<&SessionTypes>,
        objects: &Arc<Objects>,
    ) -> Result<Scanner<'a>> {
        let mut scanner = Scanner::new(storage.as_ref(), dir)?;
        for (_, path) in image_files::list(storage.as_ref(), dir) {
            if !may_decode(storage.as_ref(), &path, memory) {
                continue;
            }
            let bytes = image_files::read(storage.as_ref(), &path).unwrap_or_default();
            let image = Image::decode(&bytes);
            if let Ok(image) = &image
                && let Some(places) = scanner.go_on_from(image)?
            {
                let mut watch = Watch::from_limit(dir, memory);
                let (next, read_bytes) = (image.next_sequence, scanner.passed_bytes());
                let charge = |watch: &mut Watch| {
                    let (items, contents) = held_by(image);
                    watch.behind_image(next, read_bytes, items, contents)
                };
                // Folding all records needs as much, or reports that the limit is exceeded.
                if let Some(Err(_)) = watch.as_mut().map(charge) {
                    scanner = Scanner::new(storage.as_ref(), dir)?;
                    continue;
                }
                let ground = LogSource {
                    storage: Arc::clone(storage),
                    places,
                    objects: Arc::clone(objects),
                    names: Arc::default(),
                };
                if let Ok(LoadedImage { projection, begun }) =
                    image_conversion::projection(image, types, ground)
                {
                    self.next_sequence = Some(image.next_sequence);
                    (self.projection, self.begun) = (Some(projection), begun);
                    self.rollbacks = image.rollbacks.iter().copied().collect();
                    (self.bytes, self.log_bytes) = (bytes.len() as u64, scanner.passed_bytes());
                    self.watch = watch;
                    return Ok(scanner);
                }
                // The log is read from its beginning, which also reports damage in it.
                scanner = Scanner::new(storage.as_ref(), dir)?;
            }
            self.dropped.push(path);
        }
        Ok(scanner)
    }
}

/// Returns whether an image is small enough to be decoded. Decoding needs twice its bytes, in
/// addition to the bytes themselves.
fn may_decode(storage: &dyn Storage, path: &FilePath, memory: MemoryLimit) -> bool {
    let MemoryLimit::Bytes(budget) = memory else { return true };
    let len = storage.entry(path).ok().flatten().map_or(0, |entry| entry.len);
    len.saturating_mul(3) <= budget
}

/// Returns the number of items in an image, and the bytes of their contents.
fn held_by(image: &Image<'_>) -> (u64, u64) {
    let of_slices = image.slices.iter().flat_map(|slice| match slice {
        SliceImage::Held { items, .. } => items.as_slice(),
        SliceImage::InLog { .. } => &[],
    });
    let of_begun = image.begun.iter().flat_map(|begun| &begun.slices).flat_map(|slice| &slice.items);
    let items = of_slices.chain(of_begun);
    items.fold((0, 0), |(count, bytes): (u64, u64), item| (count + 1, bytes + item.bytes.len() as u64))
}

impl LoadedSession {
    /// Reads and folds the new records of the log in `dir`, which may have been renamed. Returns
    /// `None` if the log does not continue from the known end, or the new records cannot be folded:
    /// then read the log from its beginning.
    pub(super) fn read_new_records(
        self,
        storage: &Arc<dyn Storage>,
        dir: &FilePath,
        types: Option<&SessionTypes>,
    ) -> Result<Option<LoadedSession>> {
        let Some(passed) = self.scan.passed_image() else { return Ok(None) };
        let mut scanner = Scanner::new(storage.as_ref(), dir)?;
        if scanner.go_on_from(&passed)?.is_none() {
            return Ok(None);
        }
        let objects = Objects::new(Arc::clone(storage), dir);
        let mut folding =
            Fold { folded: self.folded, sources: FoldSources { objects: &objects, types }, failed: false };
        let scan = scanner.run(&mut |at| {
            let record = at.record();
            if !record.kind.is_envelope() {
                folding.fold(&record);
            }
            Ok(())
        })?;
        let Fold { folded, failed, .. } = folding;
        Ok((!failed).then_some(LoadedSession { scan, folded, ..self }))
    }

    pub(crate) fn places(&self) -> RecordLocator {
        self.scan.places()
    }
}

/// Cuts the log before the first record with a missing object that is not known to be durable. Such
/// a record may have reached the disk before its object, and is then a torn tail, like a
/// half-written record.
fn leave_out_records_without_objects(
    storage: &Arc<dyn Storage>,
    scan: &mut LogScan,
    objects: &Objects,
) -> Result<()> {
    if scan.same_boot {
        return Ok(());
    }
    let mut first_bad = None;
    scan.places().read(storage, scan.watermark, SequenceNumber::MAX, &mut |record| {
        let missing = record
            .objects()
            .iter()
            .any(|object| matches!(objects.check_object(object), Err(Error::Object { .. })));
        if missing && first_bad.is_none() {
            first_bad = Some(record.sequence);
        }
        Ok(())
    })?;
    if let Some(sequence) = first_bad {
        let located = scan.places().locate(storage, sequence)?;
        let segment = scan.segments.get(located.segment).map(|segment| segment.path.clone());
        let bytes = scan.torn.as_ref().map_or(0, |torn| torn.bytes) + scan.end.saturating_sub(located.offset);
        let segment = segment.unwrap_or_default();
        scan.torn = Some(TornTail { segment, offset: located.offset, sequence, bytes });
        scan.next_sequence = sequence;
        scan.rollbacks.split_off(&sequence);
        scan.index.cut_at(sequence);
        (scan.clean, scan.closed) = (false, false);
    }
    Ok(())
}
