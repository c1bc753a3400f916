//! Checks every frame, body, seal and object of a session, and describes the damage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::inspect::{self, DamagedPlace, FrameInfo, LogReader, ReadOptions, SoundStretch};
use foldlog::log::TornTail;
use foldlog::storage::FileStorage;
use foldlog::{Corruption, Error, Record, RecoveryReport, SequenceNumber};
use foldlog_codec::body::ObjectId;
use foldlog_codec::escape;
use serde::Serialize;
use uuid::Uuid;

use super::captures::CaptureCounts;
use crate::Result;
use crate::session_dirs::{holds_anything, lost_segments, segments};

/// Result of a verification. The fields are those of `verify --json`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// Number of sessions that were checked.
    pub sessions: u64,
    /// Number of directories in stores that were skipped because they contain no records.
    #[serde(skip_serializing_if = "is_zero")]
    pub passed_over: u64,
    /// Number of intact records in the sessions.
    pub records: u64,
    /// Bytes of the sessions' logs. A damaged log counts up to its damage.
    pub bytes: u64,
    /// Bytes of torn tails, which were never acknowledged as durable.
    pub torn_bytes: u64,
    /// Damage.
    pub corrupt: Vec<SessionDamage>,
    /// Places that lack data and are otherwise intact, as in a copy that was taken while the
    /// session was written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<SessionDamage>,
    /// Torn tails.
    pub torn: Vec<TornTailRow>,
    /// Captures of workspaces, if the caller enabled their verification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captures: Option<CaptureCounts>,
    /// First record of each session that this version shows but cannot fold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unsupported: Vec<Unsupported>,
    /// First file of each session that users other than its owner may read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exposed: Vec<ExposedPath>,
    /// Sessions that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
}

/// Describes damage in a session, with its place as far as it is known.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SessionDamage {
    /// Id of the session; `None` if unknown.
    pub session: Option<Uuid>,
    /// The damaged or missing file.
    #[serde(serialize_with = "escape::serialize_path")]
    pub segment: PathBuf,
    /// Offset in the file in bytes, if known.
    pub offset: Option<u64>,
    /// Sequence number of the damaged record, or of the record expected at that place.
    pub sequence: Option<SequenceNumber>,
    /// Reason why this is damage.
    pub reason: String,
    /// Intact frames after a damaged place in a segment, up to the next damage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follows: Option<SoundStretch>,
    /// Whether the frames after it were searched for.
    #[serde(skip)]
    pub searched: bool,
    /// Whether the only problem is that the file is older than the files that follow or name it.
    #[serde(skip)]
    pub is_older: bool,
}

/// Describes a torn tail.
#[derive(Clone, Debug, Serialize)]
pub struct TornTailRow {
    /// Id of the session.
    pub session: Uuid,
    /// Place and length of the tail.
    #[serde(flatten)]
    pub tail: TornTail,
}

/// Names the first record of a session that this version cannot fold.
#[derive(Clone, Debug, Serialize)]
pub struct Unsupported {
    /// Id of the session.
    pub session: Uuid,
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// Kind of the record.
    pub kind: String,
}

/// Names a file that users other than its owner may read.
#[derive(Clone, Debug, Serialize)]
pub struct ExposedPath {
    /// Id of the session.
    pub session: Uuid,
    /// The file or directory.
    #[serde(serialize_with = "escape::serialize_path")]
    pub path: PathBuf,
    /// Permission bits of the file, in octal digits.
    pub mode: String,
}

/// Names a session that could not be read.
#[derive(Clone, Debug, Serialize)]
pub struct Unreadable {
    /// Directory of the session.
    #[serde(serialize_with = "escape::serialize_path")]
    pub path: PathBuf,
    /// Reason why the session could not be read.
    pub reason: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
pub(super) fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Checks one session in at most `memory_bytes` of memory, and adds the results to `verified`.
///
/// # Errors
///
/// [`crate::Error::Engine`] if the directory contains no session, the session cannot be read, or
/// the memory limit is exceeded.
pub fn session(dir: &Path, memory_bytes: Option<u64>, verified: &mut VerifyReport) -> Result<()> {
    let (mut records, mut bytes, mut damage) = (0, 0, Vec::new());
    let walked = inspect::walk(dir, &mut |frame| {
        if !frame.record.kind.is_envelope() {
            records += 1;
        }
        bytes += frame.bytes;
        if let Err(error) = foldlog_codec::body::check(frame.record.kind, frame.record.body) {
            damage.push(SessionDamage::at(frame, error.to_string()));
        }
        Ok(())
    });
    let mut id = walked.as_ref().ok().map(|walked| walked.session).or_else(|| session_id_of(dir));
    let report = match walked {
        Err(error) => {
            let first = damage_of(dir, error)?;
            damage = places(dir, first, damage)?;
            None
        }
        Ok(walked) => {
            bytes = walked.log_bytes;
            if damage.is_empty() {
                Some(fold_log(dir, memory_bytes, &mut damage)?.unwrap_or(walked.report))
            } else {
                damage.extend(damaged_objects(dir, named_objects(dir)));
                Some(walked.report)
            }
        }
    };
    match inspect::damaged_seals(dir) {
        Ok(seals) => {
            for error in seals {
                damage.push(damage_of(dir, error)?);
            }
        }
        // The walk has already found the damage of the headers.
        Err(error)
            if error.is_damage() || matches!(error, Error::NotASession { .. } | Error::NotAFile { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    for damage in &mut damage {
        id = id.or(damage.session);
        damage.session = damage.session.or(id);
    }
    verified.sessions += 1;
    verified.records += report.as_ref().map_or(records, |report| report.records);
    verified.bytes += bytes;
    let (mut older, mut corrupt) = damage.into_iter().partition(|damage| damage.is_older);
    verified.incomplete.append(&mut older);
    verified.corrupt.append(&mut corrupt);
    if let Some(report) = report {
        add_report(verified, id.unwrap_or_default(), report);
    }
    Ok(())
}

fn add_report(verified: &mut VerifyReport, session: Uuid, report: RecoveryReport) {
    if let Some((sequence, kind)) = report.unsupported {
        verified.unsupported.push(Unsupported { session, sequence, kind: kind.to_string() });
    }
    if let Some(exposed) = report.exposed {
        let mode = format!("{:04o}", exposed.mode);
        verified.exposed.push(ExposedPath { session, path: exposed.path, mode });
    }
    if let Some(tail) = report.torn {
        verified.torn_bytes += tail.bytes;
        verified.torn.push(TornTailRow { session, tail });
    }
}

/// Folds the log, which reads every object that the log names. Adds damage to `damage`. Returns
/// `None` if the log cannot be folded.
fn fold_log(
    dir: &Path,
    memory_bytes: Option<u64>,
    damage: &mut Vec<SessionDamage>,
) -> Result<Option<RecoveryReport>, Error> {
    let options = ReadOptions { memory_bytes, ..ReadOptions::default() };
    match LogReader::open_with(Arc::new(FileStorage::new()), dir, options) {
        Ok(reader) => Ok(Some(reader.report().clone())),
        Err(error) => {
            // The fold ends at the first damaged object, and there may be more.
            let is_object = matches!(error, Error::Object { .. });
            let first = damage_of(dir, error)?;
            let mut objects = damaged_objects(dir, named_objects(dir));
            if !is_object || objects.is_empty() {
                damage.push(first);
            }
            damage.append(&mut objects);
            Ok(None)
        }
    }
}

/// Returns all damaged places of a log whose walk ended with `first`, and the missing objects of
/// its intact records. `bodies` are the places that the walk found before.
fn places(dir: &Path, first: SessionDamage, bodies: Vec<SessionDamage>) -> Result<Vec<SessionDamage>, Error> {
    let mut objects = BTreeMap::new();
    let found = match inspect::damaged_places(dir, &mut |frame| {
        note_objects(frame, &mut objects);
        Ok(())
    }) {
        Ok(found) => found,
        // No file in the directory is a segment.
        Err(Error::NotASession { .. } | Error::NotAFile { .. }) => {
            return Ok(bodies.into_iter().chain([first]).collect());
        }
        Err(error) => return Err(error),
    };
    let mut all: Vec<SessionDamage> = found.into_iter().map(SessionDamage::from_place).collect();
    let is_first = |place: &&mut SessionDamage| {
        place.segment == first.segment && (first.offset.is_none() || place.offset == first.offset)
    };
    match all.iter_mut().find(is_first) {
        // The walk has more details about the place: the checksums, and the proof of damage.
        Some(place) => {
            let (follows, searched) = (place.follows.take(), true);
            let (offset, sequence) = (first.offset.or(place.offset), first.sequence.or(place.sequence));
            *place = SessionDamage { follows, searched, offset, sequence, ..first };
        }
        None => all.insert(0, first),
    }
    all.extend(damaged_objects(dir, objects));
    Ok(all)
}

/// Objects with the first record that names each: its segment, its offset there, and its sequence
/// number.
type NamedObjects = BTreeMap<ObjectId, (PathBuf, u64, SequenceNumber)>;

fn note_objects(frame: &FrameInfo<'_>, objects: &mut NamedObjects) {
    if frame.record.kind.is_envelope() {
        return;
    }
    for object in frame.record.objects() {
        let place = || (frame.segment.to_owned(), frame.offset, frame.record.sequence);
        objects.entry(object).or_insert_with(place);
    }
}

fn named_objects(dir: &Path) -> NamedObjects {
    let mut objects = NamedObjects::new();
    // Records before damage are read in spite of it.
    let _ = inspect::walk(dir, &mut |frame| {
        note_objects(frame, &mut objects);
        Ok(())
    });
    objects
}

/// Returns a place for each missing or damaged object, in the order of the records that first name
/// them. If all objects after some record are missing, they are younger than the directory
/// `objects` of a copy.
fn damaged_objects(dir: &Path, objects: NamedObjects) -> Vec<SessionDamage> {
    let mut objects: Vec<_> = objects.into_iter().collect();
    objects.sort_by_key(|(_, (_, _, sequence))| *sequence);
    let mut is_older = true;
    let mut damaged = Vec::new();
    for (object, (segment, offset, sequence)) in objects.into_iter().rev() {
        let checked = inspect::check_object(dir, &object);
        is_older &= matches!(&checked, Err(Error::Object { path, .. }) if !path.exists());
        if let Err(error @ Error::Object { .. }) = checked {
            let (offset, sequence, reason) = (Some(offset), Some(sequence), error.to_string());
            damaged.push(SessionDamage {
                segment,
                offset,
                sequence,
                reason,
                is_older,
                ..SessionDamage::default()
            });
        }
    }
    damaged.reverse();
    damaged
}

impl Unreadable {
    /// Describes a session whose reading failed with this error.
    pub fn from_error(path: &Path, error: &Error) -> Unreadable {
        Unreadable { path: path.to_owned(), reason: error.to_string() }
    }
}

impl SessionDamage {
    fn at(frame: &FrameInfo<'_>, reason: String) -> SessionDamage {
        SessionDamage {
            segment: frame.segment.to_owned(),
            offset: Some(frame.offset),
            sequence: Some(frame.record.sequence),
            reason,
            ..SessionDamage::default()
        }
    }

    fn from_place(place: DamagedPlace) -> SessionDamage {
        let DamagedPlace { segment, offset, sequence, reason, is_older, follows } = place;
        SessionDamage { session: None, segment, offset, sequence, reason, follows, searched: true, is_older }
    }
}

pub(super) fn session_id_of(dir: &Path) -> Option<Uuid> {
    Uuid::try_parse(dir.canonicalize().ok()?.file_name()?.to_str()?).ok()
}

/// Converts an error into the damage that it describes. Returns any other error unchanged.
fn damage_of(dir: &Path, error: Error) -> Result<SessionDamage, Error> {
    let reason = error.to_string();
    let at = |session, segment, place: Option<(u64, SequenceNumber)>| SessionDamage {
        session,
        segment,
        offset: place.map(|(offset, _)| offset),
        sequence: place.map(|(_, sequence)| sequence),
        reason: reason.clone(),
        ..SessionDamage::default()
    };
    Ok(match error {
        Error::Corrupt(corruption) => {
            let Corruption { session, segment, offset, sequence, .. } = *corruption;
            at(session, segment, Some((offset, sequence)))
        }
        Error::OlderThanSuccessor { session, segment, offset, sequence, .. } => {
            SessionDamage { is_older: true, ..at(Some(session), segment, Some((offset, sequence))) }
        }
        Error::MissingSegment { session, path, .. } => at(Some(session), path, None),
        Error::WrongSession { expected, path, .. } => at(Some(expected), path, None),
        Error::Object { ref path, .. } => {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let place =
                first_place(dir, |record| record.objects().iter().any(|object| object.file_name() == name));
            match place {
                Some((segment, offset, sequence)) => at(None, segment, Some((offset, sequence))),
                None => at(None, path.clone(), None),
            }
        }
        Error::Inconsistent { sequence, .. } => {
            match first_place(dir, |record| record.sequence == sequence) {
                Some((segment, offset, sequence)) => at(None, segment, Some((offset, sequence))),
                None => SessionDamage { sequence: Some(sequence), ..at(None, dir.to_owned(), None) },
            }
        }
        Error::NotASession { .. } if lost_segments(dir).is_some() => {
            let reason = lost_segments(dir).unwrap_or_default();
            SessionDamage { reason, ..at(None, dir.to_owned(), None) }
        }
        // The file has bytes after its invalid header, so this was a session.
        Error::NotASession { .. } if session_id_of(dir).is_some() && holds_anything(dir) => {
            let segment = segments(dir).unwrap_or_default().into_iter().next();
            at(None, segment.unwrap_or_else(|| dir.to_owned()), Some((0, SequenceNumber::MIN)))
        }
        other => return Err(other),
    })
}

/// Finds the first record that matches `wanted`: its segment, its offset there in bytes, and its
/// sequence number.
fn first_place(
    dir: &Path,
    mut wanted: impl FnMut(&Record<'_>) -> bool,
) -> Option<(PathBuf, u64, SequenceNumber)> {
    let mut place = None;
    // Records before damage are read in spite of it.
    let _ = inspect::walk(dir, &mut |frame| {
        let record = &frame.record;
        if place.is_none() && !record.kind.is_envelope() && wanted(record) {
            place = Some((frame.segment.to_owned(), frame.offset, record.sequence));
        }
        Ok(())
    });
    place
}
