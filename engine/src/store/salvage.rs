//! Salvage: a new session from the intact part of a damaged one.
//!
//! The intact part of the damaged log ([`crate::log::scan::salvage`]) is copied frame for frame, so
//! that sequence numbers, times and bodies stay the same. The new session continues after it like a
//! fork: its `SessionOpening` record names the session and the record that it continues from. The
//! record after that, `foldlog.salvaged`, states where the records came from, the reason, and the
//! skipped parts. Everything is built in a directory with a temporary name and read back as an
//! audit reads it; only then is the directory renamed. The damaged session is opened for reading
//! only.
//!
//! A record whose object is missing or damaged, or which contradicts those before it, ends the
//! intact part as a bad frame does: no record after it can be folded.
//!
//! An operation that is open at the end of the intact part stays open under its operation id, to be
//! recovered by its host. A host whose names for external effects include the session finds the old
//! session's id in the `SessionOpening` record. Other files in the session's directory are listed
//! in the report and not copied. Images are created again.
//!
//! Only a fork's own records show which records it shares. If its first record is intact, or its
//! first segment follows the shared ones, the parent's records count as its own. Otherwise the
//! intact records in the directory belong to another session.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{ObjectId, Observed, Parent, Payload, Rollback, SessionOpening};
use foldlog_codec::msgpack::Value;
use foldlog_codec::{RecordKind, SequenceNumber};
use serde::Serialize;
use uuid::Uuid;

use super::{SessionOptions, Store};
use crate::error::{Corruption, Error, Result};
use crate::fold::history::History;
use crate::fold::projection::LogSlices;
use crate::log::chain::Segment;
use crate::log::copy::copy_plain;
use crate::log::objects::Objects;
use crate::log::reader::{FrameLocation, RecordLocator};
use crate::log::scan::salvage::{IntactChain, SegmentPatch, UnsoundPart, sound_part};
use crate::log::writer::{AppendBody, AppendContext, LogIdentity, LogWriter};
use crate::log::{layout, lock};
use crate::operation::{OpenOperation, UnsettledOperation};
use crate::options::MemoryLimit;
use crate::session::{cut, lock_to_write};
use crate::storage::Access;

/// Name of the record that states where a salvaged session comes from.
const SALVAGED: &str = "foldlog.salvaged";

/// Reports which parts a salvage took and which it skipped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SalvageReport {
    /// Id of the new session.
    pub session: Uuid,
    /// Directory of the new session.
    pub dir: PathBuf,
    /// Id of the session that was salvaged.
    pub from: Uuid,
    /// Number of taken records: all below this sequence number.
    pub records: u64,
    /// Number of taken objects: all that the taken records name.
    pub objects: u64,
    /// Error with which opening the salvaged session fails. `None` if it opens.
    pub damage: Option<Error>,
    /// File in which the intact part ends, and the offset in it, in bytes.
    pub end: (PathBuf, u64),
    /// Damaged places whose bytes could be reconstructed: file, and offset in bytes.
    pub mended: Vec<(PathBuf, u64)>,
    /// Skipped bytes after the intact part, file by file. Empty if everything was taken.
    pub left: Vec<SkippedBytes>,
    /// Objects that records name and that are missing or damaged. The first record that names one
    /// ends the intact part.
    pub missing_objects: Vec<MissingObject>,
    /// Operations with a start record in the intact part but no end record. The new session's host
    /// has to recover them.
    pub open: Vec<OpenOperation>,
    /// Operations that were interrupted and have neither run again nor been settled since.
    pub unsettled: Vec<UnsettledOperation>,
    /// Names of other files in the session's directory, which were not copied.
    pub beside: Vec<String>,
}

/// Describes the bytes of a file that a salvage skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SkippedBytes {
    /// Path of the file.
    #[serde(serialize_with = "foldlog_codec::escape::serialize_path")]
    pub segment: PathBuf,
    /// Offset of the first skipped byte.
    pub offset: u64,
    /// Number of skipped bytes, up to the last one that is not 0.
    pub bytes: u64,
    /// Number of records in the skipped bytes whose checksums match. It is not proven that they
    /// followed the records that were taken.
    pub records: u64,
    /// Ranges of the sequence numbers of those records, inclusive. Empty if the segment's header,
    /// which contains the first number, is lost.
    pub sequences: Vec<(SequenceNumber, SequenceNumber)>,
    /// Whether there may be more records than were counted: the path is not a regular file, or
    /// contains too many places that look like records.
    pub more: bool,
    /// Reason why the bytes were skipped.
    pub reason: String,
}

/// Describes an object that could not be copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MissingObject {
    /// Sequence number of the first record that names the object.
    pub sequence: SequenceNumber,
    /// Path of the object's file.
    #[serde(serialize_with = "foldlog_codec::escape::serialize_path")]
    pub path: PathBuf,
    /// Description of the damage.
    pub reason: String,
}

/// Intact part of a session, copied into the directory in which the new session is built.
struct SalvagedCopy {
    places: RecordLocator,
    objects: u64,
}

/// Describes the first record that cannot be taken although its frame is intact.
struct Unsound {
    sequence: SequenceNumber,
    error: Error,
}

impl Store {
    /// Creates a session from the intact part of the session in the directory `dir`. `dir` may be
    /// in this store, in another one or in none, and the session need not be damaged. The directory
    /// is only read. The taken records are durable when this returns.
    ///
    /// `options.parent`, `options.operation` and `options.durability` are ignored.
    ///
    /// # Errors
    ///
    /// The error of opening the session, if no part of it is intact; [`Error::Locked`] if it is
    /// open for writing; [`Error::WrongSession`] if the intact records in the directory belong to
    /// another session; [`Error::WithinSession`] if this store is inside `dir`;
    /// [`Error::NotASession`] or [`Error::NotAFile`] if `dir` contains no segment;
    /// [`Error::FutureFormat`] if a later version wrote the log; otherwise the errors of
    /// [`create_with`](Store::create_with). On errors no session remains.
    pub fn salvage(&self, dir: impl AsRef<Path>, options: SessionOptions) -> Result<SalvageReport> {
        let dir = dir.as_ref();
        if self.inner.root.starts_with(dir) {
            return Err(self.within_session(dir));
        }
        let _away = lock::keep_writers_away(self.storage(), dir)?;
        let damage = match self.read_log_in(dir) {
            Ok(_) => None,
            Err(error) if error.is_damage() => Some(error),
            // A log without any valid header may still be readable by its frames.
            Err(error @ (Error::NotASession { .. } | Error::NotAFile { .. })) => Some(error),
            Err(error) => return Err(error),
        };
        let part = sound_part(self.storage().as_ref(), dir)?;
        if part.places.next_sequence == 0 {
            return Err(damage.unwrap_or_else(|| nothing_sound(dir)));
        }
        let (id, seed) = self.identity(&options)?;
        let _lock = lock_to_write(&self.inner, id)?;
        self.build_session(id, |building| {
            SalvageRun { store: self, dir, building, part, damage }.run(id, seed, options)
        })
    }
}

/// A salvage in progress, from `dir` into the temporary directory `building`.
struct SalvageRun<'a> {
    store: &'a Store,
    dir: &'a Path,
    building: &'a Path,
    part: IntactChain,
    damage: Option<Error>,
}

impl SalvageRun<'_> {
    fn run(self, id: Uuid, seed: u64, options: SessionOptions) -> Result<SalvageReport> {
        let storage = self.store.storage();
        let mut places = self.part.places.clone();
        let mut missing_objects = Vec::new();
        let mut damage = self.damage.clone();
        // If a record turns out to be damaged or inconsistent, the intact part ends before it, and
        // everything is copied again.
        let laid = loop {
            if places.next_sequence == 0 {
                return Err(damage.unwrap_or_else(|| nothing_sound(self.dir)));
            }
            let laid = self.lay(&places)?;
            let Some(unsound) = laid.1 else { break laid.0 };
            self.name_missing(&laid.0.places, unsound.sequence, &mut missing_objects)?;
            damage.get_or_insert(unsound.error);
            places = match unsound.sequence.checked_sub(1) {
                Some(last) => self.cut_source(&places, &laid.0.places, last)?,
                None => RecordLocator::default(),
            };
        };
        let behind = self.part.find_unsound_parts(storage.as_ref(), &places)?;
        let from = self.source(&places, &behind)?;
        let last = places.segments.last();
        let end = last.map(|last| (last.path.clone(), last.end.unwrap_or(0))).unwrap_or_default();
        let left = self.skipped_bytes(&places, &behind, from, damage.as_ref());
        let mut salvaged = SalvageReport {
            session: id,
            dir: self.store.session_dir(id),
            from,
            records: places.next_sequence.get(),
            objects: laid.objects,
            damage,
            end,
            mended: self.part.mends(&places).map(|mend| (mend.path.clone(), mend.offset)).collect(),
            left,
            missing_objects,
            open: Vec::new(),
            unsettled: Vec::new(),
            beside: self.list_other_files()?,
        };
        self.begin(id, seed, options, laid, &mut salvaged)?;
        Ok(salvaged)
    }

    /// Copies the intact part with its repairs and the objects that it names into a new directory,
    /// and folds it.
    fn lay(&self, places: &RecordLocator) -> Result<(SalvagedCopy, Option<Unsound>)> {
        let storage = self.store.storage();
        let building = self.building;
        self.store.make_building(building)?;
        let mut segments = Vec::new();
        for (index, segment) in places.segments.iter().enumerate() {
            let is_last = index + 1 == places.segments.len();
            let mends = self.part.mends(places).filter(|mend| mend.ordinal == segment.header.ordinal);
            segments.push(self.lay_segment(segment, &mends.collect::<Vec<_>>(), is_last)?);
        }
        let laid = RecordLocator { segments: Arc::new(segments), ..places.clone() };
        let (objects, unsound) = self.lay_objects(&laid)?;
        let below = unsound.as_ref().map_or(laid.next_sequence, |unsound| unsound.sequence);
        let unsound = self.fold(&laid, below)?.or(unsound);
        storage.sync_directory(building)?;
        Ok((SalvagedCopy { places: laid, objects }, unsound))
    }

    fn lay_segment(&self, segment: &Segment, mends: &[&SegmentPatch], is_last: bool) -> Result<Segment> {
        let storage = self.store.storage();
        let path = layout::segment_file(self.building, segment.header.ordinal);
        let end = segment.end.unwrap_or(0);
        // The last segment gets another successor than its seal names.
        let seal = if is_last { 0 } else { segment.seal_len(storage.as_ref())? };
        copy_plain(storage.as_ref(), segment, &path, end + seal)?;
        if !mends.is_empty() {
            let io = |op, error| Error::io(op, &path, error);
            let file = storage.open(&path, Access::Write).map_err(|error| io("open", error))?;
            for mend in mends {
                file.write_at(&mend.bytes, mend.offset).map_err(|error| io("write", error))?;
            }
            file.sync_data().map_err(|error| io("sync", error))?;
        }
        Ok(Segment { end: Some(end), ..segment.at(path) })
    }

    /// Copies the objects that the records name, up to the first record with a missing or damaged
    /// one.
    fn lay_objects(&self, laid: &RecordLocator) -> Result<(u64, Option<Unsound>)> {
        let storage = self.store.storage();
        let (from, to) =
            (Objects::new(Arc::clone(storage), self.dir), Objects::new(Arc::clone(storage), self.building));
        let mut carried = BTreeSet::new();
        let mut unsound = None;
        laid.read(storage, SequenceNumber::MIN, SequenceNumber::MAX, &mut |record| {
            for object in record.objects() {
                if unsound.is_some() || carried.contains(&object) {
                    continue;
                }
                match from.get(&object) {
                    Ok(bytes) => {
                        to.put(&bytes)?;
                        carried.insert(object);
                    }
                    Err(error @ Error::Object { .. }) => {
                        unsound = Some(Unsound { sequence: record.sequence, error });
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })?;
        let unsynced = to.take_unsynced();
        for (path, file) in unsynced.files {
            file.sync_data().map_err(|error| Error::io("sync", path, error))?;
        }
        for path in unsynced.dirs {
            storage.sync_directory(&path)?;
        }
        Ok((carried.len() as u64, unsound))
    }

    /// Folds the records below `below`, and returns the first one that cannot be folded.
    fn fold(&self, laid: &RecordLocator, below: SequenceNumber) -> Result<Option<Unsound>> {
        let storage = self.store.storage();
        // Within a compacted range the contents of the slices are unknown.
        if let (Some(compaction), Some(position)) = (&laid.compaction, below.checked_sub(1)) {
            let sequence = compaction.known_end(below);
            if sequence < below {
                return Ok(Some(Unsound { sequence, error: compaction.unknown(position) }));
            }
        }
        let objects = Objects::new(Arc::clone(storage), self.building);
        let rollbacks = self.rollbacks(below);
        let history =
            History { storage, places: laid, objects: &objects, rollbacks: &rollbacks, limit: self.limit() };
        let mut sequence = SequenceNumber::MIN;
        let folded = history.fold(below, None, LogSlices::Unread, &mut |record, _| {
            sequence = record.sequence + 1;
            Ok(())
        });
        match folded {
            Ok(_) => Ok(None),
            Err(error) if error.is_damage() => Ok(Some(Unsound { sequence, error })),
            Err(error) => Err(error),
        }
    }

    /// Returns the directory of the new log, and the memory limit of folds.
    fn limit(&self) -> (&Path, MemoryLimit) {
        (self.building, self.store.inner.options.memory)
    }

    fn rollbacks(&self, below: SequenceNumber) -> BTreeMap<SequenceNumber, Rollback> {
        self.part.rollbacks.range(..below).map(|(at, rollback)| (*at, *rollback)).collect()
    }

    /// Returns the places in the damaged log up to the record `last`. The record is located in the
    /// copy, where the chain is repaired.
    fn cut_source(
        &self,
        places: &RecordLocator,
        laid: &RecordLocator,
        last: SequenceNumber,
    ) -> Result<RecordLocator> {
        let (cut, FrameLocation { end, .. }) = cut(self.store.storage(), laid.clone(), last)?;
        let mut segments: Vec<Segment> = places.segments.iter().take(cut.segments.len()).cloned().collect();
        if let Some(last) = segments.last_mut() {
            last.end = Some(end);
        }
        Ok(RecordLocator { segments: Arc::new(segments), ..cut })
    }

    /// Collects every missing object that the records from `from` on name.
    fn name_missing(
        &self,
        laid: &RecordLocator,
        from: SequenceNumber,
        missing: &mut Vec<MissingObject>,
    ) -> Result<()> {
        let storage = self.store.storage();
        let objects = Objects::new(Arc::clone(storage), self.dir);
        let mut seen: BTreeSet<ObjectId> = BTreeSet::new();
        missing.clear();
        laid.read(storage, from, SequenceNumber::MAX, &mut |record| {
            for object in record.objects() {
                if !seen.insert(object) {
                    continue;
                }
                match objects.check_object(&object) {
                    Ok(()) => {}
                    Err(Error::Object { path, reason }) => {
                        missing.push(MissingObject { sequence: record.sequence, path, reason });
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    /// Returns the session that is salvaged. The intact records in its directory may belong to the
    /// session that it was forked from, or to an unrelated one.
    fn source(&self, places: &RecordLocator, behind: &[UnsoundPart]) -> Result<Uuid> {
        let Some((_, opened)) = self.opened_below(places.next_sequence) else {
            return Err(nothing_sound(self.dir));
        };
        let found = opened.session;
        let Some(expected) = layout::session_of(self.dir) else { return Ok(found) };
        let openings: Vec<&SessionOpening> = self
            .part
            .openings
            .iter()
            .map(|(_, opened)| opened)
            .chain(behind.iter().flat_map(|b| &b.openings))
            .collect();
        if self.part.followed_by == Some(expected) {
            return Ok(expected);
        }
        let mut session = expected;
        for _ in 0..=openings.len() {
            if session == found {
                return Ok(expected);
            }
            let parent =
                openings.iter().find(|opened| opened.session == session).and_then(|opened| opened.parent);
            let Some(Parent::Fork { session: parent, .. }) = parent else { break };
            session = parent;
        }
        Err(Error::WrongSession { path: self.dir.to_owned(), expected, found })
    }

    /// Returns the session that wrote the last of the records below `next_sequence`.
    fn opened_below(&self, next_sequence: SequenceNumber) -> Option<&(SequenceNumber, SessionOpening)> {
        self.part.openings.iter().rfind(|(sequence, _)| *sequence < next_sequence)
    }

    fn skipped_bytes(
        &self,
        places: &RecordLocator,
        behind: &[UnsoundPart],
        from: Uuid,
        damage: Option<&Error>,
    ) -> Vec<SkippedBytes> {
        let last = places.segments.last().map(|last| last.path.as_path());
        let reason = |behind: &UnsoundPart| match (behind.session, damage) {
            _ if behind.more && behind.bytes == 0 => "it is not a regular file".to_owned(),
            (_, Some(Error::Corrupt(corruption))) if last == Some(&behind.path) => corruption.reason.clone(),
            (_, Some(damage)) if last == Some(&behind.path) => damage.to_string(),
            (_, None) if last == Some(&behind.path) => "it was never reported as durable".to_owned(),
            (Some(session), _) if session != from && !self.is_ancestor(session) => {
                format!("it belongs to session {session}")
            }
            (None, _) => "its header is lost, and it does not continue the salvaged records".to_owned(),
            _ => "it does not continue the salvaged records".to_owned(),
        };
        let left = behind.iter().map(|behind| SkippedBytes {
            segment: behind.path.clone(),
            offset: behind.offset,
            bytes: behind.bytes,
            records: behind.records,
            sequences: behind.ranges.clone(),
            more: behind.more,
            reason: reason(behind),
        });
        left.collect()
    }

    fn is_ancestor(&self, session: Uuid) -> bool {
        self.part.openings.iter().any(|(_, opened)| {
            opened.session == session || opened.parent.is_some_and(|parent| parent.session() == session)
        })
    }

    /// Returns the names of the files in the session's directory that are not part of its log.
    fn list_other_files(&self) -> Result<Vec<String>> {
        let entries = self.store.storage().entries(self.dir)?;
        let own = |name: &str| {
            let path = self.dir.join(name);
            path == layout::objects_dir(self.dir)
                || path == layout::snapshots_dir(self.dir)
                || layout::segment_ordinal(name).is_some()
                || layout::building_ordinal(name).is_some()
        };
        Ok(entries.into_iter().map(|entry| entry.name).filter(|name| !own(name)).collect())
    }

    /// Starts the new session after the copied part, reads all of it back, and renames the
    /// directory.
    fn begin(
        &self,
        id: Uuid,
        seed: u64,
        options: SessionOptions,
        laid: SalvagedCopy,
        salvaged: &mut SalvageReport,
    ) -> Result<()> {
        let (store, storage) = (self.store, self.store.storage());
        let shared = laid.places.next_sequence;
        let position = shared.saturating_sub(1);
        let places = laid.places;
        let located = places.locate(storage, position)?;
        let parent = self.opened_below(shared).map(|(_, opened)| opened.session).unwrap_or_default();
        let parent = Some(Parent::Fork { session: parent, position, chain: located.crc });
        let opened = SessionOpening { session: id, seed, tags: options.tags, parent };
        let objects = Objects::new(Arc::clone(storage), self.building);
        let rollbacks = self.rollbacks(shared);
        let limit = self.limit();
        let history = History { storage, places: &places, objects: &objects, rollbacks: &rollbacks, limit };
        let names = history.fold(shared, None, LogSlices::Outline, &mut |_, _| Ok(()))?.projection.names;
        let ground = store.inner.log_environment();
        let epoch = self.part.epoch;
        let identity = LogIdentity { session: id, seed };
        let mut log = LogWriter::fork(&ground, self.building, identity, places.clone(), located, epoch);
        let context = AppendContext { synced: shared, declared: &|| names.all() };
        let now_us = store.inner.options.clock.now_us();
        log.append(RecordKind::Opened, now_us, AppendBody::Alone(&opened.encode()), &context)?;
        let data = account(salvaged).encode();
        let observed = Observed { name: SALVAGED.to_owned(), data: Payload::new(&data) }.encode();
        log.append(RecordKind::Observed, now_us, AppendBody::Alone(&observed), &context)?;
        log.finish()?;
        log.sync_plan().run(storage.as_ref(), &|| ())?;
        let reader = store.read_log_in(self.building)?;
        reader.check_seals()?;
        salvaged.open.clone_from(&reader.report().interrupted);
        salvaged.unsettled.clone_from(&reader.report().unsettled);
        drop(reader);
        store.name_building(self.building, &salvaged.dir, &mut log)
    }
}

fn nothing_sound(dir: &Path) -> Error {
    Error::not_a_session(dir, "it contains no intact record")
}

/// Returns the content of the new session's `foldlog.salvaged` record.
fn account(salvaged: &SalvageReport) -> Value {
    let file = |path: &Path| Value::Str(file_name(path).display().to_string());
    let map = |pairs: Vec<(&str, Value)>| {
        Value::Map(pairs.into_iter().map(|(name, value)| (Value::from(name), value)).collect())
    };
    let reason = salvaged.damage.as_ref().map(|damage| match damage {
        Error::Corrupt(corruption) => {
            Corruption { segment: file_name(&corruption.segment), ..(**corruption).clone() }.to_string()
        }
        damage => damage.to_string(),
    });
    let left = salvaged.left.iter().map(|left| {
        map(vec![
            ("segment", file(&left.segment)),
            ("offset", Value::from(left.offset)),
            ("bytes", Value::from(left.bytes)),
            ("records", Value::from(left.records)),
        ])
    });
    map(vec![
        ("session", Value::Str(salvaged.from.to_string())),
        ("records", Value::from(salvaged.records)),
        ("segment", file(&salvaged.end.0)),
        ("offset", Value::from(salvaged.end.1)),
        ("reason", reason.map_or(Value::Nil, Value::Str)),
        ("mended", Value::from(salvaged.mended.len() as u64)),
        ("left", Value::Array(left.collect())),
    ])
}

fn file_name(path: &Path) -> PathBuf {
    path.file_name().map(PathBuf::from).unwrap_or_default()
}
