//! The differences between a snapshot and a workspace, found without changing anything.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::stat::fstat;

use super::attributes::{self, WantedAttributes};
use super::deep_directories::Reach;
use super::manifest::{
    FileForm, FileKind, GitMode, Leaf, ManifestDirectory, ManifestEntry, ManifestNode, Permissions,
    TreeEntry, display_path, join,
};
use super::metadata::{Links, Metadata};
use super::objects::{Hasher, ObjectId, ObjectKind, Objects};
use super::sparse::Sparse;
use super::step::{open_file, read_link, stat_at};
use super::times::{EntryTime, Times};
use super::trees::Trees;
use crate::error::{Error, Result, UnrestoredPath};

/// For files longer than this, the length is compared before the content.
const ASK_LENGTH_BYTES_MIN: u64 = 64 << 10;

pub(super) struct DirectoryPlan {
    pub(super) wanted: WantedAttributes,
    pub(super) present: Option<Arc<ManifestDirectory>>,
    /// The tree that it is to have, unless an entry in it is left unchanged.
    pub(super) tree: ObjectId,
    /// Entries that already match.
    pub(super) entries: Vec<ManifestEntry>,
    pub(super) steps: PlannedSteps,
}

/// Steps in one directory, by the names of their entries.
pub(super) type PlannedSteps = Vec<(Arc<[u8]>, RestoreStep)>;

pub(super) enum RestoreStep {
    Remove(FileKind),
    /// There is a mount in the place of another entry of the snapshot, or of none. It stays.
    Mounted {
        wanted: bool,
    },
    /// A file or a link is written, with or without an entry to replace.
    Write {
        content: PlannedContent,
        wanted: WantedAttributes,
        replaces: Option<FileKind>,
        /// Number of the file among those with several names.
        link: Option<u32>,
    },
    /// Attributes other than the content are set on a file or a link.
    Attributes(Leaf, WantedAttributes),
    Directory {
        plan: DirectoryPlan,
        replaces: Option<FileKind>,
    },
}

impl RestoreStep {
    fn blob(&self) -> Option<ObjectId> {
        match self {
            RestoreStep::Write { content, .. } => Some(content.data()),
            _ => None,
        }
    }
}

#[derive(Clone)]
pub(super) enum PlannedContent {
    File(ObjectId),
    /// A file with holes: its blob, the ranges of its data, and the blob of the data.
    Sparse(ObjectId, Arc<Sparse>, ObjectId),
    Link(ObjectId),
}

impl PlannedContent {
    pub(super) fn blob(&self) -> ObjectId {
        match self {
            PlannedContent::File(blob) | PlannedContent::Sparse(blob, ..) | PlannedContent::Link(blob) => {
                *blob
            }
        }
    }

    /// Returns the blob to be written: for a file with holes, that of the data between them.
    pub(super) fn data(&self) -> ObjectId {
        match self {
            PlannedContent::Sparse(_, _, data) => *data,
            content => content.blob(),
        }
    }

    pub(super) fn form(&self) -> FileForm {
        if matches!(self, PlannedContent::Sparse(..)) { FileForm::Sparse } else { FileForm::Whole }
    }

    fn is_link(&self) -> bool {
        matches!(self, PlannedContent::Link(_))
    }
}

pub(super) enum DirectoryPlanOutcome {
    Same(Arc<ManifestDirectory>),
    Differs(DirectoryPlan),
}

/// All paths of a file that has several.
type HardLinkPaths<'a> = HashMap<&'a [u8], Arc<Vec<&'a [u8]>>>;

pub(super) struct Planner<'a> {
    objects: &'a Objects,
    trees: &'a mut Trees,
    permissions: &'a Permissions,
    /// `None` if the snapshot was taken by a version without metadata.
    metadata: Option<&'a Metadata>,
    /// Whether all paths have the same attributes on both sides except times, so that equal trees
    /// are equal in everything.
    same: bool,
    /// Whether times are restored.
    times: bool,
    names_then: HardLinkPaths<'a>,
    names_now: HardLinkPaths<'a>,
    links: &'a Links,
    /// Paths that a restore cannot bring back exactly.
    pub(super) inexact: Vec<UnrestoredPath>,
}

#[derive(Clone, Copy)]
pub(super) struct CapturedDirectory {
    pub(super) tree: ObjectId,
    pub(super) times: Option<ObjectId>,
}

/// The present entry of a name, and its directory.
type PresentEntry<'a> = Option<(&'a ManifestEntry, &'a OwnedFd)>;

fn io_error(op: &'static str, path: &[u8], errno: Errno) -> Error {
    Error::io(op, display_path(path), errno)
}

/// The data of a snapshot in addition to contents, and the result of a walk.
pub(super) struct Sides<'a> {
    pub(super) permissions: &'a Permissions,
    pub(super) metadata: Option<&'a Metadata>,
    pub(super) now: &'a Metadata,
    pub(super) links: &'a Links,
    pub(super) same_permissions: bool,
    pub(super) leaves_out: bool,
}

impl<'a> Planner<'a> {
    pub(super) fn new(objects: &'a Objects, trees: &'a mut Trees, sides: &Sides<'a>) -> Planner<'a> {
        let Sides { permissions, metadata, now, links, same_permissions, leaves_out } = *sides;
        Planner {
            objects,
            trees,
            permissions,
            metadata,
            same: same_permissions && metadata.is_none_or(|then| then.is_same_but_for_times(now)),
            times: metadata.is_some_and(|then| then.times.is_some()) && !leaves_out,
            names_then: metadata.map(Metadata::links).unwrap_or_default(),
            names_now: now.links(),
            links,
            inexact: Vec::new(),
        }
    }

    fn is_same(&self, directory: &ManifestDirectory, then: CapturedDirectory) -> bool {
        let times = then.times.filter(|_| self.times);
        self.same && directory.tree == then.tree && times.is_none_or(|times| times == directory.times)
    }

    fn wanted_attributes(&self, path: &[u8], mode: GitMode, modified_ns: Option<i64>) -> WantedAttributes {
        let attributes = |metadata: &Metadata| {
            metadata.get(path).map(|other| other.attributes.clone()).unwrap_or_default()
        };
        WantedAttributes {
            permissions: self.permissions.get(path, mode),
            owner: self.metadata.map(|metadata| metadata.owner(path)),
            attributes: self.metadata.map(attributes),
            modified_ns: modified_ns.filter(|_| self.times),
        }
    }

    fn form(&self, path: &[u8]) -> FileForm {
        self.metadata.and_then(|metadata| metadata.get(path)).map_or(FileForm::Whole, |other| other.form)
    }

    /// Compares a directory of the snapshot with the present one and its descriptor.
    pub(super) fn directory(
        &mut self,
        then: CapturedDirectory,
        path: &[u8],
        present: Option<(&Arc<ManifestDirectory>, Reach)>,
    ) -> Result<DirectoryPlanOutcome> {
        if let Some((directory, _)) = present.as_ref().filter(|(directory, _)| self.is_same(directory, then))
        {
            return Ok(DirectoryPlanOutcome::Same(Arc::clone(directory)));
        }
        let lines = self.trees.get(self.objects, then.tree, path)?;
        let times = then.times.map(|times| Times::read(self.objects, times, &lines)).transpose()?;
        let opened = present.as_ref().map(|(_, at)| at.open());
        let opened = opened.transpose().map_err(|errno| io_error("open", path, errno))?;
        let entries = present.iter().flat_map(|(directory, _)| &directory.entries);
        let mut rest: HashMap<&[u8], &ManifestEntry> = entries.map(|entry| (&*entry.name, entry)).collect();
        let wanted =
            self.wanted_attributes(path, GitMode::Directory, times.as_ref().map(|times| times.own_ns));
        let before = present.as_ref().map(|(directory, _)| Arc::clone(directory));
        let mut plan = DirectoryPlan {
            wanted,
            present: before,
            tree: then.tree,
            entries: Vec::new(),
            steps: Vec::new(),
        };
        let mut directories = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let found = rest.remove(&*line.name);
            let time = times.as_ref().and_then(|times| times.lines.get(at)).copied();
            if line.mode == GitMode::Directory
                && !matches!(found, Some(ManifestEntry { node: ManifestNode::Mount, .. }))
            {
                directories.push((line, time, found));
                continue;
            }
            self.line(&mut plan, line, time, &join(path, &line.name), found.zip(opened.as_deref()))?;
        }
        let at = present.zip(opened).map(|((_, at), opened)| at.advance_to(&opened, path));
        for (line, time, found) in directories {
            let then = CapturedDirectory { tree: line.id, times: time.and_then(EntryTime::directory) };
            self.subdirectory(&mut plan, &line.name, then, &join(path, &line.name), found.zip(at.as_ref()))?;
        }
        for (name, entry) in rest {
            let step = match &entry.node {
                ManifestNode::Mount => RestoreStep::Mounted { wanted: false },
                node => RestoreStep::Remove(kind_of(node)),
            };
            plan.steps.push((Arc::from(name), step));
        }
        match &plan.present {
            Some(present)
                if plan.steps.is_empty()
                    && plan.wanted.is_borne_by(&present.stat, &present.attributes, false) =>
            {
                let mut directory =
                    ManifestDirectory::new(present.stat, present.attributes.clone(), plan.tree, plan.entries);
                directory.times = then.times.filter(|_| self.times).unwrap_or_default();
                Ok(DirectoryPlanOutcome::Same(Arc::new(directory)))
            }
            _ => Ok(DirectoryPlanOutcome::Differs(plan)),
        }
    }

    fn line(
        &mut self,
        plan: &mut DirectoryPlan,
        line: &TreeEntry,
        time: Option<EntryTime>,
        path: &[u8],
        found: PresentEntry<'_>,
    ) -> Result<()> {
        if matches!(found, Some((ManifestEntry { node: ManifestNode::Mount, .. }, _))) {
            plan.steps.push((Arc::clone(&line.name), RestoreStep::Mounted { wanted: true }));
            return Ok(());
        }
        let content = match (line.mode, self.form(path)) {
            (_, FileForm::Prefix) => {
                self.leave(plan, path, found);
                return Ok(());
            }
            (GitMode::Link, _) => PlannedContent::Link(line.id),
            (_, FileForm::Sparse) => {
                let (sparse, data) = Sparse::read(self.objects, line.id)?;
                PlannedContent::Sparse(line.id, Arc::new(sparse), data)
            }
            (_, FileForm::Shared) => {
                return Err(self.objects.damaged(line.id, "only a partial snapshot contains such a file"));
            }
            _ => PlannedContent::File(line.id),
        };
        let wanted = self.wanted_attributes(path, line.mode, time.and_then(EntryTime::leaf_ns));
        self.leaf(plan, &line.name, content, wanted, path, found)
    }

    fn leave(&mut self, plan: &mut DirectoryPlan, path: &[u8], found: PresentEntry<'_>) {
        // The directory no longer matches its tree.
        plan.tree = ObjectId::UNKNOWN;
        if let Some((entry, _)) = found {
            let mut entry = entry.clone();
            if let ManifestNode::Leaf(leaf) = &mut entry.node {
                *leaf = Leaf::unread(leaf.stat);
            }
            plan.entries.push(entry);
        }
        let reason = "others appended to it when it was captured, so it is left as it is".to_owned();
        self.inexact.push(UnrestoredPath { path: display_path(path), reason });
    }

    fn subdirectory(
        &mut self,
        plan: &mut DirectoryPlan,
        name: &Arc<[u8]>,
        then: CapturedDirectory,
        path: &[u8],
        found: Option<(&ManifestEntry, &Reach)>,
    ) -> Result<()> {
        let mut replaces = found.map(|(entry, _)| kind_of(&entry.node));
        let planned = match found {
            Some((ManifestEntry { node: ManifestNode::Directory(directory), .. }, around)) => {
                replaces = None;
                if self.is_same(directory, then) {
                    DirectoryPlanOutcome::Same(Arc::clone(directory))
                } else {
                    self.directory(then, path, Some((directory, around.to(name))))?
                }
            }
            _ => self.directory(then, path, None)?,
        };
        match planned {
            DirectoryPlanOutcome::Same(directory) => {
                if directory.tree == ObjectId::UNKNOWN {
                    plan.tree = ObjectId::UNKNOWN;
                }
                plan.entries
                    .push(ManifestEntry { name: Arc::clone(name), node: ManifestNode::Directory(directory) });
            }
            DirectoryPlanOutcome::Differs(child) => {
                if child.tree == ObjectId::UNKNOWN {
                    plan.tree = ObjectId::UNKNOWN;
                }
                plan.steps.push((Arc::clone(name), RestoreStep::Directory { plan: child, replaces }));
            }
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        plan: &mut DirectoryPlan,
        name: &Arc<[u8]>,
        content: PlannedContent,
        wanted: WantedAttributes,
        path: &[u8],
        found: PresentEntry<'_>,
    ) -> Result<()> {
        let replaces = found.map(|(entry, _)| kind_of(&entry.node));
        if let Some((ManifestEntry { node: ManifestNode::Leaf(leaf), .. }, directory)) = found
            && (leaf.stat.kind() == FileKind::Link) == content.is_link()
        {
            let within = self.links.names_within(leaf.stat.device, leaf.stat.inode);
            let is_outside = leaf.stat.kind() == FileKind::File && leaf.stat.names > within;
            if let Some(leaf) = self.match_leaf(directory, name, leaf, &content, path)?
                && self.has_its_names(path)
            {
                if wanted.is_borne_by(&leaf.stat, &leaf.attributes, content.is_link()) {
                    plan.entries
                        .push(ManifestEntry { name: Arc::clone(name), node: ManifestNode::Leaf(leaf) });
                    return Ok(());
                }
                // Another name of the same file may be outside, where nothing may be changed.
                if !is_outside {
                    plan.steps.push((Arc::clone(name), RestoreStep::Attributes(leaf, wanted)));
                    return Ok(());
                }
            }
            if is_outside {
                let reason = "what was changed of it shows under its names outside of the workspace, too";
                self.inexact.push(UnrestoredPath { path: display_path(path), reason: reason.to_owned() });
            }
        }
        let link = self.metadata.and_then(|metadata| metadata.get(path)).and_then(|other| other.link);
        plan.steps.push((Arc::clone(name), RestoreStep::Write { content, wanted, replaces, link }));
        Ok(())
    }

    fn has_its_names(&self, path: &[u8]) -> bool {
        self.metadata.is_none() || self.names_then.get(path) == self.names_now.get(path)
    }

    /// Returns the state of a file or link if it has this content, otherwise `None`. One that
    /// cannot be read counts as different: it is written again.
    fn match_leaf(
        &self,
        directory: &OwnedFd,
        name: &[u8],
        leaf: &Leaf,
        content: &PlannedContent,
        path: &[u8],
    ) -> Result<Option<Leaf>> {
        let (blob, form) = (content.blob(), content.form());
        if leaf.blob != ObjectId::UNKNOWN {
            return Ok((leaf.blob == blob && leaf.form == form).then(|| leaf.clone()));
        }
        let read = |attributes| Leaf { stat: leaf.stat, attributes, form, blob, racy: true };
        let (expected, length) = match content {
            PlannedContent::Link(_) => {
                let target = read_link(directory, name).map_err(|errno| io_error("read", path, errno))?;
                return Ok(
                    (Hasher::hash_bytes(ObjectKind::Blob, &target).ok() == Some(blob)).then(|| read(None))
                );
            }
            PlannedContent::Sparse(_, sparse, data) => (*data, Some(sparse.length)),
            // Reading a small file is faster than reading the object's length.
            PlannedContent::File(_) if leaf.stat.len <= ASK_LENGTH_BYTES_MIN => (blob, None),
            PlannedContent::File(_) => (blob, Some(self.objects.said_len(blob, ObjectKind::Blob)?)),
        };
        if length.is_some_and(|length| length != leaf.stat.len) {
            return Ok(None);
        }
        let Ok(file) = open_file(directory, name) else { return Ok(None) };
        let Ok(attributes) = attributes::read(&file) else { return Ok(None) };
        let file = File::from(file);
        let blocks = fstat(&file).map_or(0, |stat| stat.st_blocks);
        let Ok(sparse) = Sparse::detect(&file, leaf.stat.len, blocks) else { return Ok(None) };
        let mut source: Box<dyn std::io::Read> = match (content, &sparse) {
            (PlannedContent::Sparse(_, wanted, _), Some(found)) if **wanted == *found => {
                Box::new(found.data(&file))
            }
            (PlannedContent::File(_), None) => Box::new(&file),
            _ => return Ok(None),
        };
        let length = sparse.as_ref().map_or(leaf.stat.len, Sparse::data_len);
        let same = Hasher::hash_blob(&mut source, length).is_ok_and(|found| found == Some(expected));
        // A file that changed while it was read is written again, regardless of its content.
        Ok((same && stat_at(directory, name) == Ok(leaf.stat)).then(|| read(attributes)))
    }
}

pub(super) fn kind_of(node: &ManifestNode) -> FileKind {
    match node {
        ManifestNode::Directory(_) => FileKind::Directory,
        ManifestNode::Leaf(leaf) => leaf.stat.kind(),
        ManifestNode::Special | ManifestNode::Mount => FileKind::Special,
    }
}

/// Paths of files, links and special entries that a restore replaces or removes.
#[derive(Default)]
pub(super) struct TouchedPaths {
    pub(super) changed: Vec<String>,
    pub(super) removed: Vec<String>,
    /// Paths of those files and links whose content does not survive the restore.
    pub(super) contents: Vec<Vec<u8>>,
}

impl TouchedPaths {
    /// Adds a node that is removed with everything in it. A directory is listed only if it is
    /// empty.
    fn remove(&mut self, path: &[u8], node: Option<&ManifestNode>) {
        match node {
            Some(ManifestNode::Directory(directory)) if !directory.entries.is_empty() => {
                for entry in &directory.entries {
                    self.remove(&join(path, &entry.name), Some(&entry.node));
                }
            }
            Some(ManifestNode::Directory(_)) => self.removed.push(format!("{}/", display_path(path))),
            Some(ManifestNode::Mount) => {}
            _ => {
                self.removed.push(display_path(path));
                self.contents.push(path.to_vec());
            }
        }
    }
}

impl DirectoryPlan {
    /// Lists the paths that the plan replaces or removes. Does not list new entries that replace
    /// nothing, nor changes of times.
    pub(super) fn collect_touched(&self, path: &[u8], touched: &mut TouchedPaths) {
        let mut present: Option<HashMap<&[u8], &ManifestNode>> = None;
        for (name, step) in &self.steps {
            let path = join(path, name);
            let mut remove = |touched: &mut TouchedPaths, kind: FileKind| {
                let node = match kind {
                    FileKind::Directory => {
                        let entries = || self.present.iter().flat_map(|directory| &directory.entries);
                        let of_name = || entries().map(|entry| (&*entry.name, &entry.node)).collect();
                        present.get_or_insert_with(of_name).get(&**name).copied()
                    }
                    _ => None,
                };
                touched.remove(&path, node);
            };
            match step {
                RestoreStep::Remove(kind) => remove(touched, *kind),
                RestoreStep::Write { replaces: Some(FileKind::Directory), .. } => {
                    remove(touched, FileKind::Directory);
                }
                RestoreStep::Write { replaces: Some(_), .. } => {
                    touched.changed.push(display_path(&path));
                    touched.contents.push(path);
                }
                RestoreStep::Write { replaces: None, .. } | RestoreStep::Mounted { .. } => {}
                RestoreStep::Attributes(leaf, wanted) => {
                    let timeless = WantedAttributes { modified_ns: None, ..wanted.clone() };
                    if !timeless.is_borne_by(&leaf.stat, &leaf.attributes, leaf.stat.kind() == FileKind::Link)
                    {
                        touched.changed.push(display_path(&path));
                    }
                }
                RestoreStep::Directory { plan, replaces } => {
                    if let Some(kind) = replaces {
                        remove(touched, *kind);
                    }
                    plan.collect_touched(&path, touched);
                }
            }
        }
    }

    pub(super) fn blobs(&self, blobs: &mut Vec<ObjectId>) {
        for (_, step) in &self.steps {
            match step {
                RestoreStep::Directory { plan, .. } => plan.blobs(blobs),
                step => blobs.extend(step.blob()),
            }
        }
    }

    /// Returns the path, below the plan's directory, of an entry to which such a content will be
    /// written.
    pub(super) fn path_of(&self, is_wanted: &dyn Fn(ObjectId) -> bool) -> Option<Vec<u8>> {
        self.steps.iter().find_map(|(name, step)| match step {
            RestoreStep::Directory { plan, .. } => plan.path_of(is_wanted).map(|below| join(name, &below)),
            step => step.blob().filter(|blob| is_wanted(*blob)).map(|_| name.to_vec()),
        })
    }

    pub(super) fn present_permissions(&self) -> Option<u32> {
        self.present.as_deref().map(|directory| directory.stat.permissions())
    }
}
