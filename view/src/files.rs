//! The files of workspaces at every position, as recorded by captures.
//!
//! A workspace's files at a position are those of its last capture on the way there. Captures
//! belong to the start of a call, or to the end of a call whose changes remain. A rollback returns
//! to the capture that was current at its target. Changes by hand become visible with the next
//! capture.
//!
//! The captures of a timeline of agents' calls are those of its steps. They contain ignored files,
//! such as `.env`: no page names one, or shows its content ([`HiddenPaths`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use foldlog::filesystem::{
    FileChange, FileFacts, FileKind, FilesystemSnapshot, IgnoredPaths, SnapshotReader,
};
use foldlog::inspect::{LogReader, captures_dir};
use foldlog::{Outcome, Record, RecordKind, SequenceNumber};
use foldlog_codec::body::{ResourceSnapshot, ToolBegin, ToolEnd};
use foldlog_codec::escape;
use foldlog_codec::msgpack;
use foldlog_timeline::TimelinePlace;
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::Result;
use crate::agent_steps::StepReader;
use crate::blocks::{Blocks, LineBlocks};
use crate::lists::ListHistory;
use crate::walk::{ListPlaces, line};
use crate::{Payloads, RecordRange, document};

/// Maximum number of file versions of one workspace in a page.
const VERSIONS_MAX: usize = 200_000;

/// Maximum size of file contents in a page in bytes, for all workspaces together.
const CONTENTS_BYTES_MAX: u64 = 64 << 20;

/// Name of the workspace with the captures of steps.
pub(crate) const WORKSPACE_OF_STEPS: &str = "workspace";

/// The last capture of each workspace.
pub(crate) type WorkspaceCaptures = Arc<BTreeMap<String, FilesystemSnapshot>>;

/// A version of a file: its first record, its path, and its facts.
type FileVersion = (SequenceNumber, String, FileFacts);

/// Change of a workspace at a position: removed paths and new versions.
type WorkspaceChange = (SequenceNumber, Vec<String>, Vec<(String, FileFacts)>);

/// Returns the last captures at each position at which they changed.
pub(crate) fn captures(
    reader: &LogReader,
    last: SequenceNumber,
) -> Result<BTreeMap<SequenceNumber, WorkspaceCaptures>> {
    let rollbacks: BTreeMap<_, _> = reader.rollbacks().collect();
    let mut history: BTreeMap<SequenceNumber, WorkspaceCaptures> = BTreeMap::new();
    let mut now = WorkspaceCaptures::default();
    let steps = StepReader::new(reader);
    reader.records(SequenceNumber::MIN, last, |record| {
        let before = Arc::clone(&now);
        if let Some(to) = rollbacks.get(&record.sequence) {
            now = history.range(..=*to).next_back().map(|(_, then)| Arc::clone(then)).unwrap_or_default();
        }
        for (workspace, snapshot) in recorded_captures(reader, &steps, record) {
            if now.get(&workspace) != Some(&snapshot) {
                Arc::make_mut(&mut now).insert(workspace, snapshot);
            }
        }
        if !Arc::ptr_eq(&before, &now) {
            history.insert(record.sequence, Arc::clone(&now));
        }
        Ok(())
    })?;
    Ok(history)
}

/// Returns the captures of workspaces that are current from a record on.
fn recorded_captures(
    reader: &LogReader,
    steps: &StepReader<'_>,
    record: &Record<'_>,
) -> Vec<(String, FilesystemSnapshot)> {
    if let Some(capture) = steps.read(record).and_then(|changed| changed.moment?.capture) {
        return vec![(WORKSPACE_OF_STEPS.to_owned(), capture)];
    }
    let resources: Vec<ResourceSnapshot<'_>> = match record.kind {
        RecordKind::ToolBegin => {
            ToolBegin::decode(record.body).map(|begin| begin.resources).unwrap_or_default()
        }
        RecordKind::ToolEnd => match ToolEnd::decode(record.body) {
            Ok(end) if matches!(end.outcome, Outcome::Committed | Outcome::Suspended) && !end.rolls_back => {
                end.resources
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    // Captures of other kinds of resources have other forms.
    let snapshot = |resource: ResourceSnapshot<'_>| {
        let bytes = reader.payload(resource.snapshot?).ok()?;
        Some((resource.resource.into_owned(), msgpack::from_slice(&bytes).ok()?))
    };
    resources.into_iter().filter_map(snapshot).collect()
}

/// The paths of workspaces that no page shows: the paths that any [partial](FilesystemSnapshot::partial)
/// capture of the workspace ignores.
#[derive(Debug, Default)]
pub(crate) struct HiddenPaths {
    ignored: HashMap<String, IgnoredPaths>,
    /// Partial captures that were read, by their workspaces and commits. The ignored paths of
    /// unreadable captures are unknown, so no file of such a capture is shown.
    read: HashMap<(String, String), Option<foldlog::filesystem::Error>>,
}

impl HiddenPaths {
    /// Reads the captures of a history.
    pub(crate) fn read(session: &Path, history: &BTreeMap<SequenceNumber, WorkspaceCaptures>) -> HiddenPaths {
        let mut hidden = HiddenPaths::default();
        let mut stores = HashMap::new();
        for (workspace, capture) in history.values().flat_map(|captured| captured.iter()) {
            let store = || SnapshotReader::open(store_of(session, workspace));
            hidden.add(workspace, capture, stores.entry(workspace.clone()).or_insert_with(store));
        }
        hidden
    }

    /// Adds the paths that a capture ignores.
    pub(crate) fn add(&mut self, workspace: &str, capture: &FilesystemSnapshot, store: &mut SnapshotReader) {
        let key = (workspace.to_owned(), capture.commit.clone());
        if capture.partial && !self.read.contains_key(&key) {
            let ignored = self.ignored.entry(workspace.to_owned()).or_default();
            self.read.insert(key, store.add_ignored(capture, ignored).err());
        }
    }

    /// Returns whether a path of a workspace is hidden.
    pub(crate) fn contains(&self, workspace: &str, path: &str) -> bool {
        self.ignored.get(workspace).is_some_and(|ignored| ignored.contains(path))
    }

    /// Returns the changes between two captures, without those of hidden paths.
    ///
    /// # Errors
    ///
    /// The error of a capture that cannot be read.
    pub(crate) fn changes(
        &self,
        workspace: &str,
        store: &mut SnapshotReader,
        before: Option<&FilesystemSnapshot>,
        now: &FilesystemSnapshot,
    ) -> foldlog::filesystem::Result<Vec<FileChange>> {
        for capture in before.into_iter().chain([now]) {
            let key = (workspace.to_owned(), capture.commit.clone());
            if let Some(Some(error)) = self.read.get(&key) {
                return Err(error.clone());
            }
        }
        let mut changes = store.changes(before, now)?;
        changes.retain(|change| !self.contains(workspace, &change.path));
        Ok(changes)
    }
}

/// Collects the changes of one workspace's files.
#[derive(Default)]
struct ChangeCollector {
    before: Option<FilesystemSnapshot>,
    paths: BTreeSet<String>,
    changes: Vec<WorkspaceChange>,
    versions: usize,
    gaps: Vec<(SequenceNumber, String)>,
}

impl ChangeCollector {
    /// Notes the last capture at a position. `changes` returns the changes between two captures.
    fn at(
        &mut self,
        position: SequenceNumber,
        now: Option<&FilesystemSnapshot>,
        changes: impl FnOnce(
            Option<&FilesystemSnapshot>,
            &FilesystemSnapshot,
        ) -> foldlog::filesystem::Result<Vec<FileChange>>,
    ) {
        if self.before.as_ref() == now {
            return;
        }
        if let (Some(before), Some(now)) = (&self.before, now)
            && before.commit == now.commit
        {
            self.before = Some(now.clone());
            return;
        }
        let (mut removed, mut added, mut failed) = (Vec::new(), Vec::new(), None);
        match now {
            None => removed.extend(std::mem::take(&mut self.paths)),
            Some(now) => match changes(self.before.as_ref(), now) {
                Ok(_) if self.versions > VERSIONS_MAX => {
                    failed = Some("too many files have changed".to_owned());
                }
                Ok(changes) => {
                    for change in changes {
                        if change.before.is_some() {
                            self.paths.remove(&change.path);
                            removed.push(change.path.clone());
                        }
                        if let Some(after) = change.after {
                            self.paths.insert(change.path.clone());
                            added.push((change.path, after));
                        }
                    }
                }
                Err(error) => failed = Some(error.to_string()),
            },
        }
        self.versions += added.len();
        self.before = now.filter(|_| failed.is_none()).cloned();
        if let Some(reason) = failed {
            removed.extend(std::mem::take(&mut self.paths));
            self.gaps.push((position, reason));
        }
        self.changes.push((position, removed, added));
    }
}

/// Writes the files of all workspaces, and returns their places. A capture that cannot be read becomes a gap.
///
/// # Errors
///
/// The engine's error if the log cannot be read, or that of the writer.
pub(crate) fn files<W: Write>(
    reader: &LogReader,
    range: &RecordRange,
    payloads: Payloads,
    blocks: &mut Blocks<W>,
) -> Result<impl Serialize + use<W>> {
    let history = captures(reader, range.last)?;
    let mut workspaces = Vec::new();
    let mut contents =
        Contents { payloads, lines: LineBlocks::default(), known: HashMap::new(), bytes: 0, count: 0 };
    let hidden = HiddenPaths::read(reader.dir(), &history);
    let names: BTreeSet<&String> = history.values().flat_map(|captured| captured.keys()).collect();
    for name in names {
        let mut store = SnapshotReader::open(store_of(reader.dir(), name));
        let mut changes = ChangeCollector::default();
        for (position, captured) in &history {
            changes.at(*position, captured.get(name), |before, now| {
                hidden.changes(name, &mut store, before, now)
            });
        }
        let ChangeCollector { changes, gaps, .. } = changes;
        let list = workspace(changes, &mut store, &mut contents, blocks)?;
        workspaces.push(document! { name: name.clone(), list, gaps });
    }
    // Number of the first content of each block, and the block.
    let contents = contents.lines.finish(blocks)?;
    Ok(document! { workspaces, contents })
}

/// Returns the directory with the captures of a workspace. In a session's directory, it is the
/// directory for all workspaces, or one with the workspace's name. Those of a timeline are next to
/// its store.
pub(crate) fn store_of(session: &Path, workspace: &str) -> PathBuf {
    if workspace == WORKSPACE_OF_STEPS
        && let Some(place) = TimelinePlace::of_session(session)
    {
        return place.captures();
    }
    let is_store = |dir: &Path| {
        let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir());
        is_directory(dir) && is_directory(&dir.join("objects"))
    };
    let of_all = captures_dir(session);
    let mut parts = Path::new(workspace).components();
    match (parts.next(), parts.next()) {
        // The name comes from the log, so it must not lead out of the directory.
        (Some(Component::Normal(name)), None) if !is_store(&of_all) && is_store(&session.join(name)) => {
            session.join(name)
        }
        _ => of_all,
    }
}

fn workspace<W: Write>(
    changes: Vec<WorkspaceChange>,
    store: &mut SnapshotReader,
    contents: &mut Contents,
    blocks: &mut Blocks<W>,
) -> Result<ListPlaces> {
    let paths: BTreeSet<&String> =
        changes.iter().flat_map(|(_, _, added)| added.iter().map(|(path, _)| path)).collect();
    let places: HashMap<String, u32> = paths.into_iter().cloned().zip(0..).collect();
    let place = |path: &String| places.get(path).copied();
    let mut history = ListHistory::<u32>::default();
    let mut versions: Vec<FileVersion> = Vec::new();
    for (position, removed, added) in changes {
        let mut went: Vec<u32> = removed.iter().filter_map(place).collect();
        went.sort_unstable();
        let mut came: Vec<(u32, u32)> = Vec::new();
        for (path, facts) in added {
            came.extend(place(&path).map(|place| (place, versions.len() as u32)));
            versions.push((position, path, facts));
        }
        came.sort_unstable();
        history.change(position, &went, &came);
    }
    let mut lines = LineBlocks::default();
    for (_, path, facts) in &versions {
        let mut file = describe_file(path, facts);
        file["content"] = json!(contents.add_content(facts, store, blocks)?);
        lines.push(&line(b'=', &file)?, blocks)?;
    }
    let names = versions.iter().map(|(sequence, ..)| (*sequence, 0, 0));
    ListPlaces::write(history, names, lines, blocks)
}

/// Returns a page's description of a file, without its content.
pub(crate) fn describe_file(path: &str, facts: &FileFacts) -> Json {
    json!({
        "path": path,
        "kind": if facts.kind == FileKind::Link { "link" } else { "file" },
        "permissions": facts.permissions.map(|bits| format!("{bits:04o}")),
        "bytes": facts.len,
        "digest": facts.digest,
    })
}

/// Writes the contents of files, each once.
struct Contents {
    payloads: Payloads,
    lines: LineBlocks,
    /// Line of each content, by its digest and form; `None` if it was left out.
    known: HashMap<(String, u8), Option<u64>>,
    bytes: u64,
    count: u64,
}

impl Contents {
    /// Returns the number of the line with a file's content; `None` if it is left out.
    fn add_content<W: Write>(
        &mut self,
        facts: &FileFacts,
        store: &mut SnapshotReader,
        blocks: &mut Blocks<W>,
    ) -> Result<Option<u64>> {
        let key = (facts.digest.clone(), facts.form as u8);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let fits = self.payloads.are_asked_for()
            && facts.len <= self.payloads.bytes_max()
            && self.bytes.saturating_add(facts.len) <= CONTENTS_BYTES_MAX;
        let read = fits.then(|| store.content(facts, self.payloads.bytes_max()));
        let number = match read {
            None => None,
            Some(read) => {
                let content = content(read);
                self.lines.push(&line(b'=', &content)?, blocks)?;
                self.bytes += facts.len;
                self.count += 1;
                Some(self.count - 1)
            }
        };
        self.known.insert(key, number);
        Ok(number)
    }
}

/// Returns a page's form of a content: its text, or its bytes if it is not text, or the reason why
/// it cannot be read.
pub(crate) fn content(read: foldlog::filesystem::Result<Vec<u8>>) -> Json {
    match read.map(String::from_utf8) {
        Ok(Ok(text)) => json!({ "text": text }),
        Ok(Err(bytes)) => {
            use base64::Engine;
            json!({ "base64": base64::engine::general_purpose::STANDARD.encode(bytes.as_bytes()) })
        }
        Err(error) => json!({ "error": escape::text(&error.to_string()) }),
    }
}
