//! Damaged logs: all damaged places, the intact part before the first one, and the intact records
//! after it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::ObjectId;

use super::{FrameInfo, LogReader, ReadOptions};
use crate::error::{Error, Result};
use crate::fold::projection::{LogSlices, Projection};
use crate::log::objects::Objects;
use crate::log::scan::sound::scan_sound;
use crate::log::scan::survey::{self, DamagedPlace};
use crate::log::scan::{self, LogScan};
use crate::options::MemoryLimit;
use crate::session::{OutlineSource, cut, read_outline_by};
use crate::storage::{FileStorage, Storage};

/// Describes where and why the intact part of a damaged log ends.
#[derive(Clone, Debug)]
pub struct SoundEnd {
    /// Path of the segment in which the intact part ends.
    pub segment: PathBuf,
    /// Offset in that segment at which the intact part ends, in bytes.
    pub offset: u64,
    /// Sequence number of the first record after it.
    pub sequence: SequenceNumber,
    /// Damage that ends it.
    pub damage: Error,
}

/// Finds every damaged place in the segments of the log in `dir`, each once, in the order of the
/// segments. Passes every intact frame to `visit`, including those after damaged places.
///
/// A log that [`walk`](super::walk) walks without an error has no damaged frame and need not be
/// searched: a torn tail is not damage. The search takes time proportional to the bytes of the log.
/// Objects, seals and the meaning of records are not checked.
///
/// # Errors
///
/// [`Error::NotASession`] if `dir` contains no segments, [`Error::NotAFile`] if none of them is a
/// regular file, [`Error::FutureFormat`] if a later version wrote them, [`Error::Io`] if a file
/// cannot be read; the error of `visit`.
pub fn damaged_places(
    dir: &Path,
    visit: &mut dyn FnMut(&FrameInfo<'_>) -> Result<()>,
) -> Result<Vec<DamagedPlace>> {
    damaged_places_on(&FileStorage::new(), dir, visit)
}

/// Finds every damaged place of the log in the directory `dir` of `storage`, as [`damaged_places`]
/// does.
pub fn damaged_places_on(
    storage: &dyn Storage,
    dir: &Path,
    visit: &mut dyn FnMut(&FrameInfo<'_>) -> Result<()>,
) -> Result<Vec<DamagedPlace>> {
    survey::survey(storage, dir, &mut |found| visit(&FrameInfo::new(found.path, found.offset, found.frame)))
}

/// Checks that an object of the session in the directory `dir` exists and matches its name.
///
/// # Errors
///
/// [`Error::Object`] if it is missing or damaged, [`Error::Io`] if it cannot be read.
pub fn check_object(dir: &Path, object: &ObjectId) -> Result<()> {
    Objects::new(Arc::new(FileStorage::new()), dir).check_object(object)
}

impl LogReader {
    /// Opens the intact part of the log in the directory `dir` of `storage`: all of it, or the
    /// records before the first damage. [`sound_end`](LogReader::sound_end) distinguishes the two.
    /// The reader returns the same records and folds as for the undamaged log up to its first
    /// damaged record.
    ///
    /// ```
    /// # use foldlog::{Event, SessionTypes, Store};
    /// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let store = Store::open(directory.path())?;
    /// # let session = store.create(&SessionTypes::builder().build()?)?;
    /// # session.dispatch(Said("hello".to_owned()))?;
    /// # let dir = session.dir().to_owned();
    /// # session.close()?;
    /// use foldlog::inspect::{LogReader, ReadOptions};
    /// use foldlog::storage::FileStorage;
    ///
    /// let reader = LogReader::open_sound(std::sync::Arc::new(FileStorage::new()), &dir, ReadOptions::default())?;
    /// if let Some(end) = reader.sound_end() {
    ///     eprintln!("sound up to record {}: {}", end.sequence, end.damage);
    /// }
    /// assert!(reader.sound_end().is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`open_with`](LogReader::open_with). Errors that describe damage are returned
    /// only if no record before the damage is intact, or with [`Error::WrongSession`] if the
    /// directory has another session's name.
    pub fn open_sound(
        storage: Arc<dyn Storage>,
        dir: impl AsRef<Path>,
        options: ReadOptions,
    ) -> Result<LogReader> {
        let dir = dir.as_ref();
        let mut contradiction: Option<(SequenceNumber, Error)> = None;
        loop {
            let below = contradiction.as_ref().map(|(sequence, _)| *sequence);
            let IntactPrefix { mut reader, damage, failed } =
                scan::retry_if_replaced(|| LogReader::read_below(&storage, dir, options, below))?;
            let Some(failed) = failed else {
                let damage = contradiction.map(|(_, error)| error).or(damage);
                reader.sound_end = damage.map(|damage| reader.ends_for(damage));
                return Ok(reader);
            };
            // A record that cannot be folded ends the intact part too.
            let (sequence, error) = failed;
            if !error.is_damage() || sequence == 0 || below.is_some_and(|below| sequence >= below) {
                return Err(error);
            }
            contradiction = Some((sequence, error));
        }
    }

    /// Reads the records below `below` of the intact part of a log.
    fn read_below(
        storage: &Arc<dyn Storage>,
        dir: &Path,
        options: ReadOptions,
        below: Option<SequenceNumber>,
    ) -> Result<IntactPrefix> {
        let objects = Arc::new(Objects::new(Arc::clone(storage), dir));
        let limit = MemoryLimit::of_reader(options.memory_bytes);
        let source = OutlineSource { storage, objects: &objects, limit };
        let mut damage = None;
        let none = Projection::new(LogSlices::Outline);
        let read = read_outline_by(source, dir, &none, |visit| {
            let (mut scan, found) = scan_sound(storage.as_ref(), dir, visit)?;
            damage = found;
            if let Some(below) = below {
                cut_scan(storage, &mut scan, below)?;
            }
            // Within a compacted range the contents of the slices are unknown.
            if let Some(compaction) = scan.compaction.clone().filter(|_| !options.outline) {
                let (next, known) = (scan.next_sequence, compaction.known_end(scan.next_sequence));
                match known.checked_sub(1) {
                    Some(_) if known < next => cut_scan(storage, &mut scan, known)?,
                    Some(_) => {}
                    None => {
                        let unknown = || compaction.unknown(next.saturating_sub(1));
                        return Err(damage.take().unwrap_or_else(unknown));
                    }
                }
            }
            Ok(scan)
        })?;
        let (scan, outline) = read;
        let (outline, mut failed) = match outline {
            Ok(outline) => (outline, None),
            Err(error @ Error::CompactedMeanwhile { .. }) => return Err(error),
            Err(error) => {
                let sequence = match &error {
                    Error::Inconsistent { sequence, .. } => *sequence,
                    _ => SequenceNumber::MIN,
                };
                (Default::default(), Some((sequence, error)))
            }
        };
        let mut reader =
            LogReader::of_scan(Arc::clone(storage), dir.to_owned(), objects, options, scan, outline);
        reader.hold_open()?;
        if !options.outline && failed.is_none() {
            let (mut next, end) = (SequenceNumber::MIN, reader.places.next_sequence);
            let folded = reader.fold_below(end, &mut |record, _| {
                next = record.sequence + 1;
                Ok(())
            });
            match folded.map_err(|error| scan::begins_anew(error, end, dir)) {
                Ok(folded) => reader.set_folded(folded),
                Err(error @ Error::CompactedMeanwhile { .. }) => return Err(error),
                Err(error) => failed = Some((next, error)),
            }
        }
        Ok(IntactPrefix { reader, damage, failed })
    }

    fn ends_for(&self, damage: Error) -> SoundEnd {
        let last = self.places.segments.last();
        SoundEnd {
            segment: last.map(|last| last.path.clone()).unwrap_or_default(),
            offset: last.and_then(|last| last.end).unwrap_or(0),
            sequence: self.places.next_sequence,
            damage,
        }
    }

    /// Returns where the intact part of the log ends. `None` if the whole log is intact, or the
    /// reader was not opened by [`open_sound`](LogReader::open_sound).
    pub fn sound_end(&self) -> Option<&SoundEnd> {
        self.sound_end.as_ref()
    }

    /// Passes the intact records after the intact part to `visit`, in the order of the segments.
    /// Each is intact by itself, but its predecessors are not proven: it may be live or abandoned,
    /// and the names in it may have been declared by a lost record.
    pub fn beyond_damage(&self, mut visit: impl FnMut(&FrameInfo<'_>) -> Result<()>) -> Result<()> {
        let next = self.places.next_sequence;
        survey::survey(self.storage.as_ref(), &self.dir, &mut |found| {
            let info = FrameInfo::new(found.path, found.offset, found.frame);
            let is_behind = info.record.sequence >= next && !info.record.kind.is_envelope();
            if is_behind { visit(&info) } else { Ok(()) }
        })
        .map(drop)
    }
}

/// Intact part of a log, as far as its frames show.
struct IntactPrefix {
    reader: LogReader,
    /// Damage that ends it.
    damage: Option<Error>,
    /// First record that cannot be folded, with the error.
    failed: Option<(SequenceNumber, Error)>,
}

/// Cuts a scan before the record `below`.
fn cut_scan(storage: &Arc<dyn Storage>, scan: &mut LogScan, below: SequenceNumber) -> Result<()> {
    let (places, located) = cut(storage, scan.places(), below.saturating_sub(1))?;
    (scan.segments, scan.index, scan.next_sequence) = (places.segments, places.index, places.next_sequence);
    scan.compaction = places.compaction;
    scan.rollbacks.split_off(&below);
    scan.openings.retain(|(sequence, _)| *sequence < below);
    if let Some((sequence, opened)) = scan.openings.last() {
        (scan.opened_sequence, scan.opened) = (*sequence, opened.clone());
    }
    (scan.end, scan.last_crc, scan.last_time_us) = (located.end, located.crc, located.time_us);
    (scan.torn, scan.clean, scan.closed) = (None, false, false);
    scan.watermark = scan.watermark.min(below);
    Ok(())
}
