//! Merges changes by hand into an earlier snapshot, for a rewind to that snapshot that preserves
//! such changes.
//!
//! A merge compares three snapshots: the *target* of the rewind, the *last* one that a tool call
//! left, and the *present*. A file or link was changed by hand if the last and the present one
//! differ in content, kind or permissions.
//!
//! [`HostFilesystem::merge_for_rewind`] lists the results.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::changes::{FileChange, FileFacts, SnapshotReader};
use super::file_merge::FileVersion;
use super::manifest::{
    FileForm, GitMode, TreeEntry, encode_lines, escape_path, join, sort_lines, unescape_path,
};
use super::objects::{ObjectKind, Objects};
use super::plan::CapturedDirectory;
use super::repositories::Repositories;
use super::snapshot::RestoreSide;
use super::times::{self, EntryTime, Times};
use super::trees::{Trees, encode_commit};
use super::{FilesystemSnapshot, HostFilesystem};
use crate::FileKind;
use crate::error::{Error, Result};
use crate::rewound::{ChangeKind, ContentDiff, FileBrief, FileRewound, FileUnknown, KeptFile};
use crate::unified_diff::unified_diff;

const TEXT_BYTES_MAX: u64 = 256 << 10;

/// Greatest number of bytes of all diffs of one rewind; the files after that have none.
const DIFFS_BYTES_MAX: usize = 1 << 20;

/// Contains the snapshots between which a rewind goes.
#[derive(Debug, Clone, Copy)]
pub struct RewindMergeInputs<'a> {
    /// Snapshot that the rewind goes back to.
    pub target: &'a FilesystemSnapshot,
    /// Last snapshot that a tool call left: differences from it are changes by hand.
    pub last: &'a FilesystemSnapshot,
    /// Snapshot of the workspace's present state.
    pub present: &'a FilesystemSnapshot,
    /// Whether changes by hand are also reverted.
    pub overwrite: bool,
    /// Whether a restore to the target was started since `last`, and not finished. If so, only
    /// files whose content differs from both count as changed by hand. Missing files, files that
    /// equal the target, and repositories may be the restore's work.
    pub after_restore: bool,
}

impl FilesystemSnapshot {
    /// Returns whether this snapshot was taken of the same directory as another one, or of a copy
    /// with the same token. Earlier versions did not record the directory: their snapshots match
    /// any.
    pub fn is_of_directory_of(&self, other: &FilesystemSnapshot) -> bool {
        let directories = self.directory.as_ref().zip(other.directory.as_ref());
        directories.is_none_or(|(own, other)| {
            own == other || own.is_borne_by(other) || (own.token.is_some() && own.token == other.token)
        })
    }
}

/// Contains the result of a merge: the snapshot that a rewind of a workspace restores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewindMerge {
    /// Snapshot to be restored: the target, with the kept parts of the present. It is in the store,
    /// but not durable.
    pub snapshot: FilesystemSnapshot,
    /// Files and links that are kept because they were changed by hand, in ascending order of their
    /// paths.
    pub kept: Vec<KeptFile>,
    /// Files and links that are kept because the last snapshot is of a different directory, so that
    /// changes by hand in this one are unknown; in ascending order of their paths.
    pub unknown: Vec<FileUnknown>,
    /// Number of files and links that one of the two snapshots contains and the other leaves out.
    /// They are unchanged.
    pub left_out: u64,
}

#[derive(Clone)]
enum Edit {
    /// An entry is placed there, with the present one's metadata, except for the time of its last
    /// change and, if they are given, its permissions.
    Place { line: TreeEntry, modified_ns: Option<i64>, permissions: Option<u32> },
    /// There is no file or link there.
    Remove,
    /// The snapshot makes no statement about the path.
    LeaveAlone,
}

impl HostFilesystem {
    /// Merges changes by hand into the target snapshot of a rewind, and returns the snapshot to be
    /// restored. Changes nothing in the workspace; writes new trees into the store.
    ///
    /// | in the workspace | the rewind |
    /// |---|---|
    /// | a file that was changed by tools, and then by hand, in different lines of a text, or one in its content and the other in its permissions | removes the changes of the tools, as [`SnapshotReader::remove_change`] does |
    /// | another file that was changed by hand, or one with several names or with holes | keeps it whole, as it is now |
    /// | a file removed by hand | leaves it removed |
    /// | a file changed by hand to the state in the target | does not report it |
    /// | a kept file where the target has a directory, or in a directory where the target has a file | keeps it; the target's entry, a directory with all of its contents, does not come back |
    /// | a kept file whose directory is not in the target | keeps the directory, without its other contents |
    /// | a directory, if it and all of its files were removed by hand | does not bring it back |
    /// | other directories; owners, extended attributes and times of files that are not kept | brings them back, regardless of who changed them |
    /// | anything, if the last snapshot is of a different directory | leaves it unchanged: changes by hand are unknown |
    /// | paths that the target or the present snapshot leaves out | leaves them unchanged, even with `overwrite`: they could not be brought back |
    /// | names of one file of which some are kept | makes the kept names one file, the remaining names a second one |
    /// | a git repository that was changed by hand | leaves it unchanged, with its `HEAD`, refs and index. Refs that preserve lost commits, and times that `git status` noted in the index, do not count |
    /// | a git repository that is not in the target | leaves it unchanged, even with `overwrite` |
    /// | after an unfinished restore to the target: missing files, differences in permissions alone, a git repository | brings the target's state back |
    ///
    /// # Errors
    ///
    /// - [`Error::Object`] if an object is missing or damaged.
    /// - [`Error::Io`] or [`Error::Full`] if one cannot be written.
    /// - [`Error::Path`] if a file is to be kept and the target is of a version that captured no
    ///   owners.
    pub fn merge_for_rewind(&self, inputs: &RewindMergeInputs<'_>) -> Result<RewindMerge> {
        self.or_doubt(self.merge(inputs))
    }

    fn merge(&self, inputs: &RewindMergeInputs<'_>) -> Result<RewindMerge> {
        let mut reader = SnapshotReader::open(self.store());
        let (mut state, objects) = (self.state.lock(), &self.objects);
        let trees = &mut state.trees;
        let then = RestoreSide::read(objects, trees, inputs.target, None)?;
        let now = RestoreSide::read(objects, trees, inputs.present, None)?;
        let otherwise = by_path(reader.changes(Some(inputs.present), inputs.target)?);
        if !inputs.overwrite && !inputs.last.is_of_directory_of(inputs.present) {
            let unknown = otherwise.into_values();
            let unknown = unknown.map(|FileChange { path, kind, .. }| FileUnknown { path, otherwise: kind });
            let mut unknown: Vec<FileUnknown> = unknown.collect();
            unknown.sort_by(|one, other| one.path.cmp(&other.path));
            let snapshot = inputs.present.clone();
            return Ok(RewindMerge { snapshot, kept: Vec::new(), unknown, left_out: 0 });
        }
        let (edits, kept, made) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let mut merger = Merger { objects, trees, reader, inputs, then, now, edits, kept, made };
        let left_out = merger.left_out(&otherwise)?;
        if !inputs.overwrite {
            merger.keep(&otherwise)?;
        }
        let snapshot = merger.write()?;
        let gitignore = inputs.present.gitignore;
        let snapshot = FilesystemSnapshot {
            repositories: merger.repositories()?,
            leave_out: inputs.present.leave_out.clone(),
            mounts: inputs.present.mounts.clone(),
            gitignore,
            left_out_by: gitignore.then(|| inputs.present.commit.clone()),
            ..snapshot
        };
        let mut kept: Vec<KeptFile> = merger.kept.into_values().collect();
        kept.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(RewindMerge { snapshot, kept, unknown: Vec::new(), left_out })
    }

    /// Lists the files and links that differ between two snapshots of the workspace, with diffs of
    /// their contents, in ascending order of their paths.
    ///
    /// # Errors
    ///
    /// [`Error::Object`] if an object is missing or damaged.
    pub fn rewound(
        &self,
        before: &FilesystemSnapshot,
        after: &FilesystemSnapshot,
    ) -> Result<Vec<FileRewound>> {
        let mut reader = SnapshotReader::open(self.store());
        let mut left = DIFFS_BYTES_MAX;
        let changes = reader.changes(Some(before), after)?.into_iter();
        let rewound = changes.map(|FileChange { path, kind, before, after }| {
            let diff = diff_of(&mut reader, before.as_ref(), after.as_ref(), &mut left)?;
            let brief = |facts: FileFacts| FileBrief { len: facts.len, permissions: facts.permissions };
            Ok(FileRewound { path, change: kind, before: before.map(brief), after: after.map(brief), diff })
        });
        rewound.collect()
    }
}

impl SnapshotReader {
    /// Returns the difference of the contents before and after a change, as a unified diff if both
    /// are texts of at most 256 KiB.
    ///
    /// # Errors
    ///
    /// [`Error::Object`] if an object is missing or damaged.
    pub fn content_diff(&mut self, change: &FileChange) -> Result<ContentDiff> {
        let mut left = DIFFS_BYTES_MAX;
        diff_of(self, change.before.as_ref(), change.after.as_ref(), &mut left)
    }
}

/// Writes a merged text into the store. Returns `None` for a missing file.
fn write_version(objects: &Objects, version: FileVersion) -> Result<Option<FileFacts>> {
    Ok(match version {
        FileVersion::Missing => None,
        FileVersion::Captured(facts) => Some(facts),
        FileVersion::Merged { bytes, permissions } => Some(FileFacts {
            kind: FileKind::File,
            permissions: Some(permissions),
            digest: objects.write(ObjectKind::Blob, &bytes)?.to_string(),
            len: bytes.len() as u64,
            form: FileForm::Whole,
        }),
    })
}

fn present_ns() -> Option<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_nanos()).ok()
}

fn by_path(changes: Vec<FileChange>) -> BTreeMap<Vec<u8>, FileChange> {
    changes.into_iter().filter_map(|change| Some((unescape_path(&change.path)?, change))).collect()
}

/// Compares two contents; a missing file has none. `left` is the number of bytes that diffs may
/// still take.
fn diff_of(
    reader: &mut SnapshotReader,
    before: Option<&FileFacts>,
    after: Option<&FileFacts>,
    left: &mut usize,
) -> Result<ContentDiff> {
    let is_same = |(was, is): (&FileFacts, &FileFacts)| (was.kind, &was.digest) == (is.kind, &is.digest);
    if before.zip(after).is_some_and(is_same) {
        return Ok(ContentDiff::Equal);
    }
    if [before, after].into_iter().flatten().any(|facts| facts.len > TEXT_BYTES_MAX) {
        return Ok(ContentDiff::TooLong);
    }
    let mut text = |facts: Option<&FileFacts>| {
        let bytes = facts.map_or(Ok(Vec::new()), |facts| reader.content(facts, TEXT_BYTES_MAX))?;
        Ok(String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')))
    };
    let Some((before, after)) = text(before)?.zip(text(after)?) else { return Ok(ContentDiff::Binary) };
    let unified = unified_diff(&before, &after);
    match left.checked_sub(unified.len()) {
        Some(rest) => {
            *left = rest;
            Ok(ContentDiff::Text { unified })
        }
        None => Ok(ContentDiff::TooLong),
    }
}

struct Merger<'a> {
    objects: &'a Objects,
    trees: &'a mut Trees,
    reader: SnapshotReader,
    inputs: &'a RewindMergeInputs<'a>,
    then: RestoreSide,
    now: RestoreSide,
    edits: BTreeMap<Vec<u8>, Edit>,
    kept: BTreeMap<Vec<u8>, KeptFile>,
    /// Paths of entries that are as in the present.
    made: BTreeSet<Vec<u8>>,
}

#[derive(Default)]
struct OfName<'a> {
    /// Edit of the entry itself.
    own: Option<&'a Edit>,
    /// Edits below the entry, by whole paths.
    below: Vec<(&'a [u8], &'a Edit)>,
}

type TimedTreeEntries = BTreeMap<Arc<[u8]>, (TreeEntry, Option<EntryTime>)>;

impl Merger<'_> {
    /// Finds the paths that one of the two snapshots contains and the other leaves out, and counts
    /// their files.
    fn left_out(&mut self, otherwise: &BTreeMap<Vec<u8>, FileChange>) -> Result<u64> {
        let (target, present) = (self.inputs.target, self.inputs.present);
        let is_same = target.leave_out == present.leave_out && target.mounts == present.mounts;
        if !target.gitignore && !present.gitignore && is_same {
            return Ok(0);
        }
        let mut left_out = 0;
        self.trees.visit(self.objects, self.then.root.tree, None, &mut |line, path| {
            let is_directory = line.mode == GitMode::Directory;
            if self.now.rules.leave_out_path(path, is_directory) {
                left_out += u64::from(!is_directory);
                self.edits.insert(path.to_vec(), Edit::LeaveAlone);
            }
            Ok(())
        })?;
        for (path, change) in otherwise {
            if change.kind == ChangeKind::Removed && self.then.rules.leave_out_path(path, false) {
                left_out += 1;
                let kept = self.kept_line(path)?;
                self.edits.insert(path.clone(), kept);
            }
        }
        Ok(left_out)
    }

    /// Finds the files that are kept because they were changed by hand.
    fn keep(&mut self, otherwise: &BTreeMap<Vec<u8>, FileChange>) -> Result<()> {
        let is_other = |change: &FileChange| {
            let content =
                |facts: &Option<FileFacts>| facts.as_ref().map(|facts| (facts.kind, facts.digest.clone()));
            content(&change.before) != content(&change.after)
        };
        let by_hand = by_path(self.reader.changes(Some(self.inputs.last), self.inputs.present)?);
        for (path, change) in by_hand {
            let Some(otherwise) = otherwise.get(&path) else { continue };
            let is_by_hand = !self.inputs.after_restore
                || change.kind != ChangeKind::Removed && is_other(&change) && is_other(otherwise);
            if self.edits.contains_key(&path) || !is_by_hand {
                continue;
            }
            if let Some((edit, merged)) = self.edit_of(&path, &change, otherwise)? {
                self.edits.insert(path.clone(), edit);
                self.report(path, (change.kind, otherwise.kind), merged);
            }
        }
        Ok(())
    }

    fn report(&mut self, path: Vec<u8>, (by_hand, otherwise): (ChangeKind, ChangeKind), merged: bool) {
        let shown = escape_path(&path);
        let kept = KeptFile { path: shown, by_hand, otherwise, in_place_of: None, merged };
        self.kept.insert(path, kept);
    }

    fn kept_line(&mut self, path: &[u8]) -> Result<Edit> {
        let now = self.now.root;
        let missing =
            || self.objects.damaged(now.tree, format!("it does not contain `{}`", escape_path(path)));
        let (line, time) = self.trees.find(self.objects, now, path)?.ok_or_else(missing)?;
        Ok(Edit::Place { line, modified_ns: time.and_then(EntryTime::leaf_ns), permissions: None })
    }

    /// Returns the edit for a file that was changed by hand, and whether it removes changes of tools
    /// from the file; `None` if the file gets the target's state.
    fn edit_of(
        &mut self,
        path: &[u8],
        by_hand: &FileChange,
        otherwise: &FileChange,
    ) -> Result<Option<(Edit, bool)>> {
        if by_hand.kind == ChangeKind::Removed {
            return Ok(Some((Edit::Remove, false)));
        }
        let kept = self.kept_line(path)?;
        let versions = [&otherwise.after, &by_hand.before, &by_hand.after].map(|facts| {
            let is_plain = |facts: &&FileFacts| facts.kind == FileKind::File && facts.form == FileForm::Whole;
            facts.as_ref().filter(is_plain)
        });
        let has_several_names = self.now.metadata.as_ref().is_some_and(|all| all.has_several_names(path));
        let ([Some(target), Some(last), Some(present)], Edit::Place { line, modified_ns, .. }, false) =
            (versions, &kept, has_several_names)
        else {
            return Ok(Some((kept, false)));
        };
        let mut remove = |before: &FileFacts, after: &FileFacts, present: &FileFacts| {
            let [before, after, present] =
                [before, after, present].map(|facts| FileVersion::Captured(facts.clone()));
            let version = self.reader.remove_change(&before, &after, &present)?.ok();
            version.map(|version| write_version(self.objects, version)).transpose().map(Option::flatten)
        };
        let Some(merged) = remove(target, last, present)? else { return Ok(Some((kept, false))) };
        if merged == *target {
            return Ok(None);
        }
        // An undo of the rewind merges, too, and so does an undo of that: both must be exact.
        let is_undone = remove(present, target, &merged)?.as_ref() == Some(present);
        if merged == *present || !is_undone || remove(&merged, last, present)?.as_ref() != Some(&merged) {
            return Ok(Some((kept, false)));
        }
        // A build has to notice new content.
        let modified_ns = if merged.digest == present.digest { *modified_ns } else { present_ns() };
        let id = self.objects.named(&merged.digest)?;
        let mode = GitMode::of_file(merged.permissions.unwrap_or_default());
        let line = TreeEntry { mode, id, ..line.clone() };
        Ok(Some((Edit::Place { line, modified_ns, permissions: merged.permissions }, true)))
    }

    /// Merges repositories that were changed by hand into the target's state of repositories, and
    /// returns its id.
    fn repositories(&mut self) -> Result<Option<String>> {
        let RewindMergeInputs { target, last, present, overwrite, after_restore } = *self.inputs;
        let read = |snapshot: &FilesystemSnapshot| snapshot.read_repositories(self.objects);
        let (then, now) = (read(target)?, read(present)?);
        let (merged, by_hand) =
            Repositories::merge(&then, &read(last)?, &now, overwrite || after_restore, self.objects);
        for path in by_hand {
            self.report(path, (ChangeKind::Modified, ChangeKind::Modified), false);
        }
        let id = (!merged.is_empty()).then(|| merged.write(self.objects)).transpose()?;
        Ok(id.map(|id| id.to_string()))
    }

    /// Writes the target with the edits into the store.
    fn write(&mut self) -> Result<FilesystemSnapshot> {
        let edits = std::mem::take(&mut self.edits);
        if edits.is_empty() {
            return Ok(self.inputs.target.clone());
        }
        let Some((was, is)) = self.then.metadata.take().zip(self.now.metadata.take()) else {
            return Err(Error::path(
                ".",
                "the snapshot records no owners, because an earlier version of foldlog took it: changes made by hand cannot be kept",
            ));
        };
        let with_times = was.times.is_some() && is.times.is_some();
        let root = CapturedDirectory { times: was.times.filter(|_| with_times), ..self.then.root };
        self.now.root.times = is.times.filter(|_| with_times);
        let by_path: Vec<(&[u8], &Edit)> = edits.iter().map(|(path, edit)| (path.as_slice(), edit)).collect();
        let (tree, times) = match self.directory(b"", Some(root), &by_path)? {
            Some(CapturedDirectory { tree, times }) => (tree, times),
            None => (self.objects.write(ObjectKind::Tree, b"")?, None),
        };
        let mut paths = vec![(Vec::new(), GitMode::Directory, false)];
        let mut files = 0;
        self.trees.visit(self.objects, tree, None, &mut |line, path| {
            files += u64::from(line.mode != GitMode::Directory);
            paths.push((path.to_vec(), line.mode, self.made.contains(path)));
            Ok(())
        })?;
        paths.sort_by(|(left, ..), (right, ..)| left.cmp(right));
        let permissions = paths.iter().filter(|(_, mode, _)| *mode != GitMode::Link);
        let permissions = permissions.map(|(path, mode, is_now)| {
            let side = if *is_now { &self.now.commit } else { &self.then.commit };
            let merged = match edits.get(path) {
                Some(Edit::Place { permissions, .. }) => *permissions,
                _ => None,
            };
            (path.clone(), *mode, merged.unwrap_or_else(|| side.permissions.get(path, *mode)))
        });
        let permissions = self.then.commit.permissions.with_others(permissions);
        let metadata =
            was.merge_with(&is, times, paths.iter().map(|(path, _, is_now)| (path.clone(), *is_now)));
        let metadata = metadata.write(self.objects)?;
        let text = encode_commit(tree, &permissions, None);
        let commit = self.objects.write(ObjectKind::Commit, text.as_bytes())?;
        let (commit, metadata) = (commit.to_string(), Some(metadata.to_string()));
        Ok(FilesystemSnapshot { commit, metadata, files, ..self.inputs.target.clone() })
    }

    /// Writes the tree of a directory, which may be missing in the target. Returns `None` if there
    /// is to be no directory.
    fn directory(
        &mut self,
        path: &[u8],
        then: Option<CapturedDirectory>,
        edits: &[(&[u8], &Edit)],
    ) -> Result<Option<CapturedDirectory>> {
        let (mut lines, own_ns) = self.lines(path, then)?;
        let had_any = !lines.is_empty();
        let prefix = if path.is_empty() { 0 } else { path.len() + 1 };
        let mut of_names: BTreeMap<&[u8], OfName<'_>> = BTreeMap::new();
        for (edited, edit) in edits {
            let rest = edited.get(prefix..).unwrap_or_default();
            match rest.iter().position(|byte| *byte == b'/') {
                Some(end) => {
                    let name = rest.get(..end).unwrap_or_default();
                    of_names.entry(name).or_default().below.push((edited, edit));
                }
                None => of_names.entry(rest).or_default().own = Some(edit),
            }
        }
        for (name, edits) in of_names {
            self.name(&mut lines, name, &join(path, name), edits)?;
        }
        if lines.is_empty() && !path.is_empty() {
            let is_directory = |(line, _): (TreeEntry, Option<EntryTime>)| line.mode == GitMode::Directory;
            let now = self.trees.find(self.objects, self.now.root, path)?;
            if then.is_none() || (had_any && !now.is_some_and(is_directory)) {
                return Ok(None);
            }
        }
        if then.is_none() {
            self.made.insert(path.to_vec());
        }
        let mut lines: Vec<(TreeEntry, Option<EntryTime>)> = lines.into_values().collect();
        sort_lines(&mut lines);
        let times: Option<Vec<EntryTime>> = lines.iter().map(|(_, time)| *time).collect();
        let times = own_ns.zip(times).map(|(own_ns, times)| times::encode_lines(own_ns, times));
        let times = times.map(|bytes| self.objects.write(ObjectKind::Blob, &bytes)).transpose()?;
        let bytes = encode_lines(lines.iter().map(|(line, _)| line));
        Ok(Some(CapturedDirectory { tree: self.objects.write(ObjectKind::Tree, &bytes)?, times }))
    }

    /// Returns the target's entries of a directory, and the time of its last change: the target's
    /// or, if the target has no such directory, the present's.
    fn lines(
        &mut self,
        path: &[u8],
        then: Option<CapturedDirectory>,
    ) -> Result<(TimedTreeEntries, Option<i64>)> {
        let Some(CapturedDirectory { tree, times }) = then else {
            let now = self.trees.find(self.objects, self.now.root, path)?;
            let Some((line, Some(EntryTime::Directory(times)))) = now else {
                return Ok((TimedTreeEntries::new(), None));
            };
            let lines = self.trees.get(self.objects, line.id, path)?;
            let own_ns = Times::read(self.objects, times, &lines)?.own_ns;
            return Ok((TimedTreeEntries::new(), Some(own_ns)));
        };
        let lines = self.trees.get(self.objects, tree, path)?;
        let times = times.map(|times| Times::read(self.objects, times, &lines)).transpose()?;
        let time = |at: usize| times.as_ref().and_then(|times| times.lines.get(at)).copied();
        let of_names =
            lines.iter().enumerate().map(|(at, line)| (Arc::clone(&line.name), (line.clone(), time(at))));
        Ok((of_names.collect(), times.as_ref().map(|times| times.own_ns)))
    }

    /// Edits the entry with a name in a directory, and the entries below it.
    fn name(
        &mut self,
        lines: &mut TimedTreeEntries,
        name: &[u8],
        path: &[u8],
        edits: OfName<'_>,
    ) -> Result<()> {
        let OfName { own, below } = edits;
        let is_directory =
            |lines: &TimedTreeEntries| lines.get(name).map(|(line, _)| line.mode == GitMode::Directory);
        match own {
            Some(Edit::Place { line, modified_ns, .. }) => {
                if is_directory(lines) == Some(true) {
                    self.tell(path, format!("{}/", escape_path(path)));
                }
                lines.insert(line.name.clone(), (line.clone(), modified_ns.map(EntryTime::Leaf)));
                self.made.insert(path.to_vec());
                return Ok(());
            }
            Some(Edit::LeaveAlone) => {
                lines.remove(name);
                return Ok(());
            }
            Some(Edit::Remove) if is_directory(lines) == Some(false) => drop(lines.remove(name)),
            Some(Edit::Remove) | None => {}
        }
        let kept = || below.iter().filter(|(_, edit)| matches!(edit, Edit::Place { .. }));
        let then = match lines.get(name) {
            Some((line, time)) if line.mode == GitMode::Directory => {
                Some(CapturedDirectory { tree: line.id, times: time.and_then(EntryTime::directory) })
            }
            // If nothing below is kept, the target's file stays.
            Some(_) if kept().next().is_none() => return Ok(()),
            Some(_) => {
                kept().for_each(|(below, _)| self.tell(below, escape_path(path)));
                None
            }
            None => None,
        };
        match self.directory(path, then, &below)? {
            Some(CapturedDirectory { tree, times }) => {
                let name: Arc<[u8]> = Arc::from(name);
                let line = TreeEntry { mode: GitMode::Directory, name: name.clone(), id: tree };
                lines.insert(name, (line, times.map(EntryTime::Directory)));
            }
            None => drop(lines.remove(name)),
        }
        Ok(())
    }

    /// Records for a kept file that an entry of the target does not come back in its place.
    fn tell(&mut self, path: &[u8], in_place_of: String) {
        if let Some(kept) = self.kept.get_mut(path) {
            kept.in_place_of = Some(in_place_of);
        }
    }
}
