//! Decodes every event and every item of the logs of a store with a host's types, to prove that the
//! host still reads them.
//!
//! # Invariants
//!
//! 1. Nothing is written, and no lock is taken.
//! 2. Events and slices that the host does not know are counted as unknown and not decoded: no host
//!    code reads their bytes.
//! 3. Memory does not grow with the logs: one record at a time, and one row for each event or slice
//!    and version.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{Action, AddedItems, Dispatch, EventDeclaration, Import, Payload};
use foldlog_codec::{Record, RecordKind, SequenceNumber, escape};
use serde::Serialize;

use super::{LogReader, ReadOptions};
use crate::error::{Error, Result};
use crate::log::layout;
use crate::names::DeclaredNames;
use crate::storage::{EntryKind, FileStorage, Storage};
use crate::types::{Decoder, RecordedBytes, SessionTypes};

/// Reports how a host reads the logs of a store. Displays as a table, one row for each event or
/// slice and version; serializes as one object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VersionsReplayed {
    /// Number of sessions that were read.
    pub sessions: u64,
    /// Number of records that were read. Records that a fork shares with its parent count for both.
    pub records: u64,
    /// Results, in the order of kind, name and version.
    pub rows: Vec<VersionRow>,
    /// Sessions that cannot be read, each with its error's text.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// Reports how a host reads the recordings of one event or of one slice's items, at one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VersionRow {
    /// Whether these are events or the items of a slice.
    pub of: VersionSubject,
    /// Name of the event or of the slice.
    pub name: String,
    /// Version of the recordings.
    pub version: u32,
    /// Version that the host writes; `None` if it does not know the name.
    pub present: Option<u32>,
    /// Number of recordings.
    pub count: u64,
    /// Number of recordings that do not decode.
    pub failed: u64,
    /// Result of decoding them.
    pub outcome: VersionOutcome,
    /// Session, record and error of the first recording that does not decode.
    pub first_failure: Option<String>,
}

/// Describes the recordings that a [`VersionRow`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionSubject {
    /// Events.
    Event,
    /// Items from reducers, seeds and imports. Events that were added to a slice count as events.
    Item,
}

/// Describes the result of decoding recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VersionOutcome {
    /// All decode at their recorded version.
    Decoded,
    /// All decode after an upgrade from an older version.
    Upcast,
    /// The host does not know the name. The bytes are kept.
    Unknown,
    /// Some do not decode.
    Failed,
}

impl VersionOutcome {
    fn name(self) -> &'static str {
        match self {
            VersionOutcome::Decoded => "decoded",
            VersionOutcome::Upcast => "upcast",
            VersionOutcome::Unknown => "unknown",
            VersionOutcome::Failed => "FAILED",
        }
    }
}

impl VersionsReplayed {
    /// Returns whether every session could be read and every recording with a name that the host
    /// knows decodes.
    pub fn holds(&self) -> bool {
        self.unreadable.is_empty() && self.rows.iter().all(|row| row.outcome != VersionOutcome::Failed)
    }
}

/// Decodes every event and every item of the logs in the store at `store` with `types`. Unreadable
/// sessions and recordings that do not decode are reported and do not stop the run.
///
/// # Errors
///
/// [`Error::Io`] if the store's directory cannot be listed.
pub fn replay_versions(store: &Path, types: &SessionTypes) -> Result<VersionsReplayed> {
    let storage: Arc<dyn Storage> = Arc::new(FileStorage::new());
    let sessions = layout::sessions_dir(store);
    let entries = storage.entries(&sessions)?;
    let directories = entries.iter().filter(|entry| entry.kind == EntryKind::Directory);
    let mut dirs: Vec<PathBuf> = directories
        .map(|entry| sessions.join(&entry.name))
        .filter(|dir| layout::session_of(dir).is_some())
        .collect();
    dirs.sort_unstable();
    let mut counting = VersionCounter { types, rows: BTreeMap::new() };
    let mut report = VersionsReplayed::default();
    for dir in dirs {
        match counting.session(&storage, &dir) {
            Ok(records) => {
                (report.sessions, report.records) = (report.sessions + 1, report.records + records);
            }
            Err(error) => report.unreadable.push((dir, error.to_string())),
        }
    }
    report.rows = counting.rows.into_values().collect();
    Ok(report)
}

struct VersionCounter<'a> {
    types: &'a SessionTypes,
    rows: BTreeMap<(VersionSubject, String, u32), VersionRow>,
}

impl VersionCounter<'_> {
    /// Reads one session, and returns the number of its records.
    fn session(&mut self, storage: &Arc<dyn Storage>, dir: &Path) -> Result<u64> {
        let options = ReadOptions { outline: true, ..ReadOptions::default() };
        let reader = LogReader::open_with(Arc::clone(storage), dir, options)?;
        let names = Arc::clone(&reader.outline.names);
        if let Some(last) = reader.places.next_sequence.checked_sub(1) {
            reader.records(SequenceNumber::MIN, last, |record| self.record(&reader, &names, record))?;
        }
        Ok(reader.records_len())
    }

    fn record(&mut self, reader: &LogReader, names: &DeclaredNames, record: &Record<'_>) -> Result<()> {
        let unread = Error::unread(record.sequence);
        match record.kind {
            RecordKind::Dispatch => {
                let dispatch = Dispatch::decode(record.body).map_err(unread)?;
                if let Action::Event { event, data } = dispatch.action
                    && let Some(EventDeclaration { name, version, .. }) = names.event(event)
                {
                    let known = self.types.event(name).map(|known| (known.version, &known.decoder));
                    let recorded = (VersionSubject::Event, name.clone(), *version);
                    self.count(reader, record, recorded, data, known);
                }
                for effect in dispatch.effects.iter().flatten() {
                    if let AddedItems::Items { items, version } = &effect.added {
                        let items = items.iter().map(|item| (*item, *version));
                        self.items(reader, names, record, effect.slice, items);
                    }
                }
            }
            RecordKind::Import => {
                for slice in Import::decode(record.body).map_err(unread)?.slices {
                    self.items(reader, names, record, slice.slice, slice.items.into_iter());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn items<'a>(
        &mut self,
        reader: &LogReader,
        names: &DeclaredNames,
        record: &Record<'_>,
        slice: u32,
        items: impl Iterator<Item = (Payload<'a>, u32)>,
    ) {
        let name = names.slice_name(slice);
        let known = self.types.slice(&name).map(|known| (known.item_version, &known.decoder));
        for (item, version) in items {
            let recorded = (VersionSubject::Item, name.clone(), version);
            self.count(reader, record, recorded, item, known);
        }
    }

    fn count(
        &mut self,
        reader: &LogReader,
        record: &Record<'_>,
        recorded: (VersionSubject, String, u32),
        payload: Payload<'_>,
        known: Option<(u32, &Decoder)>,
    ) {
        let (of, name, version) = recorded.clone();
        let row = self.rows.entry(recorded).or_insert_with(|| VersionRow {
            of,
            name,
            version,
            present: known.map(|(present, _)| present),
            count: 0,
            failed: 0,
            outcome: match known {
                None => VersionOutcome::Unknown,
                Some((present, _)) if present == version => VersionOutcome::Decoded,
                Some(_) => VersionOutcome::Upcast,
            },
            first_failure: None,
        });
        row.count += 1;
        let Some((_, decoder)) = known else { return };
        let decoded = reader.objects.resolve(payload).and_then(|bytes| {
            Ok(decoder.alone(version, record.sequence, RecordedBytes::Elsewhere(&bytes))?)
        });
        if let Err(error) = decoded {
            (row.failed, row.outcome) = (row.failed + 1, VersionOutcome::Failed);
            let session = reader.opened.session;
            let failure = || format!("session {session}, record {}: {error}", record.sequence);
            row.first_failure.get_or_insert_with(failure);
        }
    }
}

impl fmt::Display for VersionsReplayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |row: &VersionRow| {
            let of = if row.of == VersionSubject::Event { "event" } else { "items of" };
            format!("{of} `{}`", escape::text(&row.name))
        };
        let width = self.rows.iter().map(|row| name(row).chars().count()).max().unwrap_or_default().max(9);
        write!(f, "{} sessions, {} records", self.sessions, self.records)?;
        write!(f, "\n{:width$}  recorded  present     count  outcome", "recording")?;
        for row in &self.rows {
            let present = row.present.map_or_else(|| "-".to_owned(), |present| present.to_string());
            let (version, count, outcome) = (row.version, row.count, row.outcome.name());
            write!(f, "\n{:width$}  {version:>8}  {present:>7}  {count:>8}  {outcome}", name(row))?;
            if let Some(failure) = &row.first_failure {
                write!(f, ": {} of them; first {}", row.failed, escape::text(failure))?;
            }
        }
        for (dir, error) in &self.unreadable {
            write!(f, "\n{} cannot be read: {}", escape::path(dir), escape::text(error))?;
        }
        Ok(())
    }
}
