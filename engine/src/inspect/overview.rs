//! Overviews of the sessions of a store, at the cost of reading the tails of their logs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::{ObjectId, Parent, Replicated, ResourceSnapshot, SessionOpening, ToolBegin};
use foldlog_codec::image::{EntryKind as ConversationKind, Image};
use foldlog_codec::{OperationId, Record, RecordKind, SequenceNumber, msgpack};
use smol_str::SmolStr;
use uuid::Uuid;

use super::{LogReader, ReadOptions, SoundEnd};
use crate::conversation::ResumePoint;
use crate::error::{Holder, Result};
use crate::fold::conversation_resume::resume_of;
use crate::fold::conversations::Conversations;
use crate::fold::image_conversion;
use crate::fold::live_path::LivePath;
use crate::fold::projection::{LogSlices, Projection};
use crate::fold::suspensions::Standings;
use crate::log::fence::SessionFence;
use crate::log::objects::Objects;
use crate::log::reader::RecordLocator;
use crate::log::scan::{LogScan, Scanner};
use crate::log::{image_files, layout, lock};
use crate::options::MemoryLimit;
use crate::session::{OutlineSource, VisitFrame, read_outline_by, settle};
use crate::storage::{DirectoryEntry, EntryKind, FileStorage, Storage};

/// Describes the current state of a session according to its log.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOverview {
    /// Id of the session.
    pub session: Uuid,
    /// Number of records, including records shared with a parent. For a damaged log, the number of
    /// records before the damage.
    pub records: u64,
    /// Bytes that these records take.
    pub log_bytes: u64,
    /// Time of the session's own first record, in microseconds since 1970-01-01 UTC.
    pub created_at_us: i64,
    /// Time of the last record, in microseconds since 1970-01-01 UTC.
    pub last_at_us: i64,
    /// Tags of the session.
    pub tags: BTreeMap<String, String>,
    /// Session that this one was forked from or created for.
    pub parent: Option<Parent>,
    /// Record which states that the session is replicated, so that other machines may continue it;
    /// `None` if it is not.
    pub replicated: Option<Replicated>,
    /// Whether the last writer closed the session.
    pub closed: bool,
    /// Operations that have begun and not ended: they run, or their process has ended.
    pub open: Vec<StandingOperation>,
    /// Operations that were interrupted and have neither run again nor been settled since.
    pub unsettled: Vec<StandingOperation>,
    /// Operations that wait for an answer.
    pub suspended: Vec<StandingOperation>,
    /// Conversations that stopped before their end, wait for no person, and have to be resumed by a
    /// host.
    pub resumable: Vec<ResumableConversation>,
    /// Where the intact part of the log ends, if the log is damaged.
    pub sound_end: Option<SoundEnd>,
    /// Number of objects in the session's directory.
    pub objects: u64,
    /// Bytes of these objects.
    pub object_bytes: u64,
}

/// Describes an operation that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingOperation {
    /// Operation id.
    pub operation: OperationId,
    /// Name of the tool.
    pub tool: SmolStr,
    /// Time at which its latest run began, in microseconds since 1970-01-01 UTC.
    pub begun_at_us: i64,
    /// Workspaces that it captured when it began, by their names, each with the path of its
    /// directory at that time. The directory may have moved since.
    pub workspaces: BTreeMap<String, String>,
}

/// Describes a conversation that stopped before its end and that a host can continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumableConversation {
    /// Id of the evaluation.
    pub evaluation_id: SmolStr,
    /// Next step: the provider, or calls of the last answer.
    pub point: ResumePoint,
    /// Time of the conversation's last record, in microseconds since 1970-01-01 UTC.
    pub last_at_us: i64,
}

/// Returns which of the `sessions` in the directory `store` are open for writing, each with the
/// note that its process left. Takes no lock.
///
/// # Errors
///
/// [`Error::Io`](crate::Error::Io) if the locks cannot be read.
pub fn running_sessions(store: &Path, sessions: &[Uuid]) -> Result<BTreeMap<Uuid, Holder>> {
    let storage: Arc<dyn Storage> = Arc::new(FileStorage::new());
    lock::find_holders(&storage, store, sessions)
}

/// Returns the fence note of the session in the directory `dir`: its writer was fenced by another
/// one, and its log was not acknowledged from some record on. `None` if there is no such note, or
/// the session has been opened with its replicator since.
pub fn read_fence(dir: &Path) -> Option<SessionFence> {
    crate::log::fence::read(&FileStorage::new(), dir)
}

/// Returns an overview of the session in the directory `dir` at the time `now_us`, in microseconds
/// since 1970-01-01 UTC. It is computed from the newest image and the records after it, or from the
/// whole log if there is no image. Bytes that an image covers are not read, so their damage is not
/// noticed. [`ReadOptions::memory_bytes`] limits the memory in addition to the image.
///
/// # Errors
///
/// The errors of [`LogReader::open_sound`], for an outline.
pub fn overview(dir: &Path, now_us: i64, memory_bytes: Option<u64>) -> Result<SessionOverview> {
    overview_on(&(Arc::new(FileStorage::new()) as Arc<dyn Storage>), dir, now_us, memory_bytes)
}

/// Like [`overview`], for a directory of `storage`.
pub(crate) fn overview_on(
    storage: &Arc<dyn Storage>,
    dir: &Path,
    now_us: i64,
    memory_bytes: Option<u64>,
) -> Result<SessionOverview> {
    let objects = Objects::new(Arc::clone(storage), dir);
    let source = OutlineSource { storage, objects: &objects, limit: MemoryLimit::of_reader(memory_bytes) };
    let read = match read_behind_image(source, dir) {
        Some(read) => Ok(read),
        None => {
            let none = Projection::new(LogSlices::Outline);
            read(source, dir, &none, |visit| Scanner::new(storage.as_ref(), dir)?.run(visit))
        }
    };
    let told = match read.and_then(|read| read.overview(storage, now_us)) {
        Err(error) if error.is_damage() => {
            let options = ReadOptions { outline: true, memory_bytes };
            of_sound_part(&LogReader::open_sound(Arc::clone(storage), dir, options)?, now_us)
        }
        told => told,
    };
    // If the directory of objects cannot be read, the overview is still useful without their
    // number.
    let (objects, object_bytes) = kept_objects_on(storage.as_ref(), dir).unwrap_or_default();
    Ok(SessionOverview { objects, object_bytes, ..told? })
}

/// Returns the number of objects in the directory of the session in `dir`, and their bytes.
pub fn kept_objects(dir: &Path) -> Result<(u64, u64)> {
    kept_objects_on(&FileStorage::new(), dir)
}

fn kept_objects_on(storage: &dyn Storage, dir: &Path) -> Result<(u64, u64)> {
    let directory = layout::objects_dir(dir);
    let entries = storage.entries_if_any(&directory)?.unwrap_or_default();
    // A file that a crash left half-written has a different form of name.
    let is_object = |entry: &&DirectoryEntry| {
        entry.kind == EntryKind::File && ObjectId::from_file_name(&entry.name, entry.len).is_some()
    };
    let objects = entries.iter().filter(is_object);
    Ok(objects.fold((0, 0), |(count, bytes), entry| (count + 1, u64::saturating_add(bytes, entry.len))))
}

struct OverviewScan {
    scan: LogScan,
    outline: Projection,
    /// Time of the session's own first record, if the record was read.
    created_at_us: Option<i64>,
}

fn read(
    source: OutlineSource<'_>,
    dir: &Path,
    begun: &Projection,
    walk: impl FnOnce(&mut VisitFrame<'_>) -> Result<LogScan>,
) -> Result<OverviewScan> {
    let mut created_at_us = None;
    let (scan, outline) = read_outline_by(source, dir, begun, |visit| {
        walk(&mut |at| {
            let Record { kind, time_us, .. } = at.record();
            if kind == RecordKind::Opened {
                created_at_us = Some(time_us);
            }
            visit(at)
        })
    })?;
    Ok(OverviewScan { scan, outline: outline?, created_at_us })
}

/// Reads the records after the newest image that the log confirms. `None` if there is none, or if
/// the log cannot be read from there: then all records are read, which also finds the cause.
fn read_behind_image(source: OutlineSource<'_>, dir: &Path) -> Option<OverviewScan> {
    let storage = source.storage;
    for (_, path) in image_files::list(storage.as_ref(), dir) {
        let bytes = image_files::read(storage.as_ref(), &path).unwrap_or_default();
        let Ok(image) = Image::decode(&bytes) else { continue };
        let mut scanner = Scanner::new(storage.as_ref(), dir).ok()?;
        let (Ok(Some(_)), Ok(begun)) = (scanner.go_on_from(&image), image_conversion::outline(&image)) else {
            continue;
        };
        return read(source, dir, &begun, |visit| scanner.run(visit)).ok();
    }
    None
}

impl OverviewScan {
    fn overview(self, storage: &Arc<dyn Storage>, now_us: i64) -> Result<SessionOverview> {
        let OverviewScan { scan, outline, created_at_us } = self;
        let places = scan.places();
        let path = LivePath::new(scan.rollbacks.iter().map(|(at, rollback)| (*at, rollback.to)));
        let standings = Standings {
            operations: &outline.operations,
            path: &path,
            position: scan.next_sequence.saturating_sub(1),
            opened: scan.opened_sequence,
            now_us,
        };
        let created_at_us =
            created_at_us.map_or_else(|| places.time_of(storage, scan.opened_sequence), Ok)?;
        Ok(SessionOverview {
            created_at_us,
            log_bytes: scan.used_bytes,
            last_at_us: scan.last_time_us,
            closed: scan.closed,
            ..overview_at(&standings, &outline, &scan.opened, &places, storage)?
        })
    }
}

/// Returns the overview of a damaged session at the end of its intact part.
fn of_sound_part(reader: &LogReader, now_us: i64) -> Result<SessionOverview> {
    let (places, storage) = (&reader.places, &reader.storage);
    Ok(SessionOverview {
        created_at_us: places.time_of(storage, reader.opened_sequence)?,
        log_bytes: reader.log_bytes,
        last_at_us: places.time_of(storage, reader.last_position())?,
        sound_end: reader.sound_end().cloned(),
        ..overview_at(&reader.standings(now_us), &reader.outline, &reader.opened, places, storage)?
    })
}

/// Returns the part of an overview that the outline of a log determines.
fn overview_at(
    standings: &Standings<'_>,
    outline: &Projection,
    opened: &SessionOpening,
    places: &RecordLocator,
    storage: &Arc<dyn Storage>,
) -> Result<SessionOverview> {
    let operations = standings.operations;
    let waiting = standings.waiting_operations();
    let open = operations.open().map(|one| (one.operation, &one.tool, one.begin));
    let unsettled = operations.unsettled().map(|one| (one.operation, &one.tool, one.begin));
    let suspended = waiting.iter().map(|one| (one.operation, &one.tool, one.begin));
    let time_of = |sequence| places.time_of(storage, sequence);
    Ok(SessionOverview {
        session: opened.session,
        records: places.next_sequence.get(),
        tags: outline.tags.as_ref().clone(),
        parent: opened.parent,
        replicated: outline.replicated.as_deref().cloned(),
        open: standing_operations(open, places, storage)?,
        unsettled: standing_operations(unsettled, places, storage)?,
        suspended: standing_operations(suspended, places, storage)?,
        resumable: resumable(&outline.conversations, standings, &time_of)?,
        ..SessionOverview::default()
    })
}

fn standing_operations<'a>(
    operations: impl Iterator<Item = (OperationId, &'a SmolStr, SequenceNumber)>,
    places: &RecordLocator,
    storage: &Arc<dyn Storage>,
) -> Result<Vec<StandingOperation>> {
    let named = operations.map(|(operation, tool, begin)| {
        let (mut begun_at_us, mut workspaces) = (0, BTreeMap::new());
        places.read(storage, begin, begin, &mut |record| {
            begun_at_us = record.time_us;
            // A start record that does not decode is damage, which other parts report.
            if let (RecordKind::ToolBegin, Ok(begin)) = (record.kind, ToolBegin::decode(record.body)) {
                workspaces = begin.resources.iter().filter_map(workspace).collect();
            }
            Ok(())
        })?;
        Ok(StandingOperation { operation, tool: tool.clone(), begun_at_us, workspaces })
    });
    named.collect()
}

/// Returns the name of a workspace and the path that its directory had when it was captured. `None`
/// for other resources.
fn workspace(captured: &ResourceSnapshot<'_>) -> Option<(String, String)> {
    #[derive(serde::Deserialize)]
    struct CapturedWorkspace {
        path: String,
        // Distinguishes a workspace from a host's own resource.
        #[serde(rename = "commit")]
        _commit: serde::de::IgnoredAny,
    }
    let CapturedWorkspace { path, .. } = msgpack::from_slice(captured.snapshot.as_ref()?.bytes()).ok()?;
    Some((captured.resource.clone().into_owned(), path))
}

/// Returns the conversations that a host has to resume. If the id of a conversation starts with the
/// id of an outer one and a slash, it works for the outer one, and is resumed with it. An imported
/// conversation for which no provider was ever called here is not resumed.
fn resumable(
    conversations: &Conversations,
    standings: &Standings<'_>,
    time_of: &dyn Fn(SequenceNumber) -> Result<i64>,
) -> Result<Vec<ResumableConversation>> {
    let evaluations = conversations.evaluations_at(standings.position);
    let live = conversations.live_at(standings.position);
    let works_for_another = |id: &SmolStr| {
        id.match_indices('/').any(|(at, _)| evaluations.iter().any(|other| *other == id[..at]))
    };
    let mut found = Vec::new();
    for evaluation_id in evaluations.iter().filter(|id| !works_for_another(id)) {
        let Some(place) = conversations.place(evaluation_id) else { continue };
        let waits_for = |operation| settle::waits_for(standings, operation);
        let (answer, point) = resume_of(conversations, &live, place, waits_for);
        if !matches!(point, ResumePoint::AwaitProvider | ResumePoint::RunTools(_)) {
            continue;
        }
        let is_request = |kind| matches!(kind, ConversationKind::Request | ConversationKind::RequestFailed);
        let was_asked = answer.is_none() || live.back(place).any(|(_, entry)| is_request(entry.kind));
        let last = live.back(place).next().filter(|_| was_asked);
        if let Some((last, _)) = last {
            let (evaluation_id, last_at_us) = (evaluation_id.clone(), time_of(last)?);
            found.push(ResumableConversation { evaluation_id, point, last_at_us });
        }
    }
    Ok(found)
}
