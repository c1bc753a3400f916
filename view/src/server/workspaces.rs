//! The files of workspaces at any position: those of the last capture on the way there, read from
//! the capture store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use foldlog::SequenceNumber;
use foldlog::filesystem::{FileFacts, FilesystemSnapshot, SnapshotReader};
use foldlog::inspect::LogReader;
use foldlog_codec::escape;
use serde_json::{Value as Json, json};

use crate::Result;
use crate::files::{self, HiddenPaths, WorkspaceCaptures};

/// Maximum number of files that an answer lists.
const FILES_MAX: usize = 20_000;

/// Files of one capture by their paths, or the reason why they cannot be read.
type CaptureListing = std::result::Result<BTreeMap<String, FileFacts>, String>;

/// The last captures of each workspace at each position, and the files that were listed last.
#[derive(Debug)]
pub(crate) struct CaptureHistory {
    session: PathBuf,
    history: BTreeMap<SequenceNumber, WorkspaceCaptures>,
    hidden: HiddenPaths,
    /// The workspace and the capture whose files were listed last.
    listed: Option<(String, String, CaptureListing)>,
}

impl CaptureHistory {
    /// Reads the captures that a log names.
    pub(crate) fn read(reader: &LogReader) -> Result<CaptureHistory> {
        let history = files::captures(reader, reader.last_position())?;
        let hidden = HiddenPaths::read(reader.dir(), &history);
        Ok(CaptureHistory { session: reader.dir().to_owned(), history, hidden, listed: None })
    }

    /// Returns the last captures at a position, and the record from which on they are current.
    fn at(&self, position: SequenceNumber) -> Option<(SequenceNumber, WorkspaceCaptures)> {
        let (since, captured) = self.history.range(..=position).next_back()?;
        Some((*since, WorkspaceCaptures::clone(captured)))
    }

    fn snapshot(
        &self,
        position: SequenceNumber,
        workspace: &str,
    ) -> Option<(SequenceNumber, FilesystemSnapshot)> {
        let (_, captured) = self.at(position)?;
        let snapshot = captured.get(workspace)?.clone();
        // The capture is current since the first of the consecutive positions that have it.
        let same = self.history.range(..=position).rev();
        let same = same.take_while(|(_, captured)| captured.get(workspace) == Some(&snapshot));
        Some((same.last().map(|(since, _)| *since)?, snapshot))
    }

    fn list(&mut self, workspace: &str, snapshot: &FilesystemSnapshot) -> &CaptureListing {
        let is_listed = |(listed, commit, _): &(String, String, CaptureListing)| {
            listed == workspace && *commit == snapshot.commit
        };
        let listed = match self.listed.take().filter(is_listed) {
            Some(listed) => listed,
            None => {
                let read = self.hidden.changes(workspace, &mut self.reader(workspace), None, snapshot);
                let files = read.map_err(|error| error.to_string()).map(|changes| {
                    changes.into_iter().filter_map(|change| Some((change.path, change.after?))).collect()
                });
                (workspace.to_owned(), snapshot.commit.clone(), files)
            }
        };
        let (_, _, files) = self.listed.insert(listed);
        files
    }

    fn reader(&self, workspace: &str) -> SnapshotReader {
        SnapshotReader::open(files::store_of(&self.session, workspace))
    }

    pub(crate) fn workspaces(&mut self, position: SequenceNumber) -> Vec<Json> {
        let Some((_, captured)) = self.at(position) else { return Vec::new() };
        let described = captured.iter().map(|(name, snapshot)| match self.list(name, snapshot) {
            Ok(files) => {
                let (total, all) = (files.len(), usize::try_from(snapshot.files).unwrap_or(usize::MAX));
                json!({ "name": name, "total": total, "ignored": all.saturating_sub(total), "gap": null })
            }
            Err(reason) => json!({ "name": name, "total": 0, "ignored": 0, "gap": escape::text(reason) }),
        });
        described.collect()
    }

    /// Describes the files of a workspace at a position, in the order of their paths.
    pub(crate) fn files(&mut self, position: SequenceNumber, workspace: &str) -> Vec<Json> {
        let Some((since, snapshot)) = self.snapshot(position, workspace) else { return Vec::new() };
        let Ok(files) = self.list(workspace, &snapshot) else { return Vec::new() };
        files.iter().take(FILES_MAX).map(|(path, facts)| describe_version(path, facts, since)).collect()
    }

    /// Returns the content of a file in the form of a report. Returns null if it is longer than
    /// `bytes_max`, or if there is no such file.
    pub(crate) fn content(
        &mut self,
        position: SequenceNumber,
        workspace: &str,
        path: &str,
        bytes_max: u64,
    ) -> Json {
        let Some((_, snapshot)) = self.snapshot(position, workspace) else { return Json::Null };
        let Ok(files) = self.list(workspace, &snapshot) else { return Json::Null };
        let Some(facts) = files.get(path).filter(|facts| facts.len <= bytes_max).cloned() else {
            return Json::Null;
        };
        files::content(self.reader(workspace).content(&facts, bytes_max))
    }

    /// Describes the files that differ between two positions.
    pub(crate) fn changes(&mut self, before: SequenceNumber, after: SequenceNumber) -> Vec<Json> {
        let names: BTreeSet<String> = [before, after]
            .into_iter()
            .filter_map(|position| self.at(position))
            .flat_map(|(_, captured)| captured.keys().cloned().collect::<Vec<_>>())
            .collect();
        let mut found = Vec::new();
        for name in names {
            let (old, now) = (self.snapshot(before, &name), self.snapshot(after, &name));
            let since = now.as_ref().or(old.as_ref()).map_or(SequenceNumber::MIN, |(since, _)| *since);
            let mut store = self.reader(&name);
            let changes = match (&old, &now) {
                (_, Some((_, now))) => {
                    self.hidden.changes(&name, &mut store, old.as_ref().map(|(_, old)| old), now)
                }
                (Some((_, old)), None) => self.hidden.changes(&name, &mut store, None, old).map(|changes| {
                    let gone = changes.into_iter().map(|mut change| {
                        std::mem::swap(&mut change.before, &mut change.after);
                        change
                    });
                    gone.collect()
                }),
                (None, None) => Ok(Vec::new()),
            };
            // Unreadable captures are reported where their files are listed.
            for change in changes.unwrap_or_default().into_iter().take(FILES_MAX) {
                let of = |facts: &Option<FileFacts>| {
                    facts.as_ref().map(|facts| describe_version(&change.path, facts, since))
                };
                found.push(json!({
                    "workspace": name, "path": change.path, "before": of(&change.before), "after": of(&change.after),
                }));
            }
        }
        found
    }
}

/// Maximum size of contents in a comparison of two sessions' files, in bytes: of all, and of one
/// file.
const BESIDE_BYTES_MAX: (u64, u64) = (4 << 20, 256 << 10);

/// Maximum number of files in a comparison of two sessions.
const BESIDE_FILES_MAX: usize = 300;

/// Describes the files that differ between a position of one session and one of another. Includes
/// short contents, the number of files that are left out, and the workspaces whose files are
/// unknown.
pub(crate) fn compare_files(
    here: &mut CaptureHistory,
    at: SequenceNumber,
    there: &mut CaptureHistory,
    other_at: SequenceNumber,
) -> Json {
    let named =
        |captures: &CaptureHistory, at| captures.at(at).map(|(_, captured)| captured).unwrap_or_default();
    let names = [named(here, at), named(there, other_at)];
    let names: BTreeSet<&String> = names.iter().flat_map(|captured| captured.keys()).collect();
    let (mut found, mut left_out, mut unknown, mut bytes) = (Vec::new(), 0_u64, Vec::new(), 0);
    for name in names {
        let mut files_of = |captures: &mut CaptureHistory, at| match captures.snapshot(at, name) {
            Some((_, snapshot)) => captures.list(name, &snapshot).clone().unwrap_or_else(|reason| {
                unknown.push(json!({ "workspace": name, "reason": escape::text(&reason) }));
                BTreeMap::new()
            }),
            None => BTreeMap::new(),
        };
        let (old, now) = (files_of(here, at), files_of(there, other_at));
        let paths: BTreeSet<&String> = old.keys().chain(now.keys()).collect();
        for path in paths.into_iter().filter(|path| old.get(*path) != now.get(*path)) {
            if found.len() >= BESIDE_FILES_MAX {
                left_out += 1;
                continue;
            }
            let mut content = |captures: &CaptureHistory, facts: Option<&FileFacts>| {
                let (all, longest) = BESIDE_BYTES_MAX;
                let facts = facts.filter(|facts| facts.len <= longest && bytes + facts.len <= all)?;
                bytes += facts.len;
                Some(files::content(captures.reader(name).content(facts, longest)))
            };
            let contents = [content(here, old.get(path)), content(there, now.get(path))];
            let of = |facts: Option<&FileFacts>| facts.map(|facts| files::describe_file(path, facts));
            found.push(json!({
                "workspace": name, "path": path, "before": of(old.get(path)), "after": of(now.get(path)),
                "contents": contents,
            }));
        }
    }
    json!({ "changes": found, "left_out": left_out, "unknown": unknown })
}

/// Describes a version of a file. The page identifies the version by its digest, and its content by
/// the path.
fn describe_version(path: &str, facts: &FileFacts, since: SequenceNumber) -> Json {
    let mut file = files::describe_file(path, facts);
    file["number"] = json!(facts.digest);
    file["sequence"] = json!(since);
    file["content"] = json!(0);
    file
}
