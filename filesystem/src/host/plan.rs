//! What differs between a snapshot and a workspace, found without changing anything.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::stat::fstat;

use super::attributes::{self, Wanted};
use super::deep_directories::Reach;
use super::manifest::{
    Entry, Folder, Form, GitMode, Kind, Leaf, Node, Permissions, Stat, TreeEntry, join, told,
};
use super::metadata::{Links, Metadata};
use super::objects::{Hasher, ObjectId, ObjectKind, Objects, pump};
use super::sparse::Sparse;
use super::step::{open_file, read_link, stat_at};
use super::times::{Line, Times};
use super::trees::Trees;
use crate::error::{Error, Result, Unrestored};
use crate::sabotage::{self, Breakage};

/// Of a longer file than this the length is compared before its content.
const ASK_LENGTH_BYTES_MIN: u64 = 64 << 10;

/// What is to be done in one folder.
pub(super) struct Plan {
    pub(super) wanted: Wanted,
    /// What the folder is now, where it is there.
    pub(super) present: Option<Arc<Folder>>,
    /// The tree that it is to have, unless something in it stays as it is.
    pub(super) tree: ObjectId,
    /// What is as it should be.
    pub(super) entries: Vec<Entry>,
    pub(super) steps: Vec<(Arc<[u8]>, Step)>,
}

pub(super) enum Step {
    Remove(Kind),
    /// Something is mounted where the snapshot has something else, or nothing. It stays.
    Mounted {
        wanted: bool,
    },
    /// A file or a link is written, in the place of something else or of nothing.
    Write {
        content: Content,
        wanted: Wanted,
        replaces: Option<Kind>,
        /// Which of the files of several names it is.
        link: Option<u32>,
    },
    /// A file or a link is given what it bears beside its content.
    Attributes(Leaf, Wanted),
    Folder {
        plan: Plan,
        replaces: Option<Kind>,
    },
}

impl Step {
    /// Returns the content that the step itself writes.
    fn blob(&self) -> Option<ObjectId> {
        match self {
            Step::Write { content: Content::Sparse(_, _, data), .. } => Some(*data),
            Step::Write { content, .. } => Some(content.blob()),
            Step::Folder { .. } | Step::Remove(_) | Step::Mounted { .. } | Step::Attributes(..) => None,
        }
    }
}

/// What is to be written.
#[derive(Clone)]
pub(super) enum Content {
    File(ObjectId),
    /// A file with holes: its blob, where its data is, and the blob of that.
    Sparse(ObjectId, Arc<Sparse>, ObjectId),
    Link(ObjectId),
}

impl Content {
    /// The blob that the snapshot names.
    pub(super) fn blob(&self) -> ObjectId {
        match self {
            Content::File(blob) | Content::Sparse(blob, ..) | Content::Link(blob) => *blob,
        }
    }

    /// The blob that is written: of a file with holes what is between them.
    pub(super) fn data(&self) -> ObjectId {
        match self {
            Content::Sparse(_, _, data) => *data,
            content => content.blob(),
        }
    }

    pub(super) fn form(&self) -> Form {
        if matches!(self, Content::Sparse(..)) { Form::Sparse } else { Form::Whole }
    }

    fn is_link(&self) -> bool {
        matches!(self, Content::Link(_))
    }
}

/// What became of a comparison.
pub(super) enum Planned {
    Same(Arc<Folder>),
    Differs(Plan),
}

/// All paths of a file that has several.
type Names<'a> = HashMap<&'a [u8], Arc<Vec<&'a [u8]>>>;

/// Both sides of a comparison.
pub(super) struct Planner<'a> {
    objects: &'a Objects,
    trees: &'a mut Trees,
    permissions: &'a Permissions,
    /// `None` where the snapshot was taken before there was any.
    metadata: Option<&'a Metadata>,
    /// Whether all paths bear the same on both sides but for times, so that equal trees are equal in all.
    same: bool,
    /// Whether times are given back.
    times: bool,
    names_then: Names<'a>,
    names_now: Names<'a>,
    links: &'a Links,
    /// What a restore leaves otherwise.
    pub(super) inexact: Vec<Unrestored>,
}

/// A folder of the snapshot.
#[derive(Clone, Copy)]
pub(super) struct Then {
    pub(super) tree: ObjectId,
    pub(super) times: Option<ObjectId>,
}

/// What is there now under a name, and the folder that holds it.
type Found<'a> = Option<(&'a Entry, &'a OwnedFd)>;

fn failed(op: &'static str, path: &[u8], errno: Errno) -> Error {
    Error::io(op, told(path), errno.into())
}

/// What a snapshot says beside contents, and what a walk found of it.
pub(super) struct Sides<'a> {
    pub(super) permissions: &'a Permissions,
    pub(super) metadata: Option<&'a Metadata>,
    pub(super) now: &'a Metadata,
    pub(super) links: &'a Links,
    pub(super) same_permissions: bool,
    /// Whether something of the workspace is left out.
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
            times: metadata.is_some_and(|then| then.times.is_some())
                && (!leaves_out || sabotage::is(Breakage::TimesBesideLeftOut)),
            names_then: metadata.map(Metadata::links).unwrap_or_default(),
            names_now: now.links(),
            links,
            inexact: Vec::new(),
        }
    }

    fn is_same(&self, folder: &Folder, then: Then) -> bool {
        let times = then.times.filter(|_| self.times);
        self.same && folder.tree == then.tree && times.is_none_or(|times| times == folder.times)
    }

    /// What a path is to bear.
    fn wanted(&self, path: &[u8], mode: GitMode, modified_ns: Option<i64>) -> Wanted {
        let attributes = |metadata: &Metadata| {
            metadata.get(path).map(|other| other.attributes.clone()).unwrap_or_default()
        };
        Wanted {
            permissions: self.permissions.get(path, mode),
            owner: self.metadata.map(|metadata| metadata.owner(path)),
            attributes: self.metadata.map(attributes),
            modified_ns: modified_ns.filter(|_| self.times),
        }
    }

    fn form(&self, path: &[u8]) -> Form {
        self.metadata.and_then(|metadata| metadata.get(path)).map_or(Form::Whole, |other| other.form)
    }

    /// Compares a folder of the snapshot with the present one and its descriptor.
    pub(super) fn folder(
        &mut self,
        then: Then,
        path: &[u8],
        present: Option<(&Arc<Folder>, Reach)>,
    ) -> Result<Planned> {
        if let Some((folder, _)) = present.as_ref().filter(|(folder, _)| self.is_same(folder, then)) {
            return Ok(Planned::Same(Arc::clone(folder)));
        }
        let lines = self.trees.get(self.objects, then.tree, path)?;
        let times = then.times.map(|times| Times::read(self.objects, times, &lines)).transpose()?;
        let opened = match &present {
            Some((_, at)) => Some(at.open().map_err(|errno| failed("open", path, errno))?),
            None => None,
        };
        let mut rest: HashMap<&[u8], &Entry> = match &present {
            Some((folder, _)) => folder.entries.iter().map(|entry| (&*entry.name, entry)).collect(),
            None => HashMap::new(),
        };
        let wanted = self.wanted(path, GitMode::Folder, times.as_ref().map(|times| times.own_ns));
        let before = present.as_ref().map(|(folder, _)| Arc::clone(folder));
        let mut plan =
            Plan { wanted, present: before, tree: then.tree, entries: Vec::new(), steps: Vec::new() };
        let mut folders = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let found = rest.remove(&*line.name);
            let time = times.as_ref().and_then(|times| times.lines.get(at)).copied();
            if line.mode == GitMode::Folder && !matches!(found, Some(Entry { node: Node::Mount, .. })) {
                folders.push((line, time, found));
                continue;
            }
            self.line(&mut plan, line, time, &join(path, &line.name), found.zip(opened.as_deref()))?;
        }
        let at = present.zip(opened).map(|((_, at), opened)| at.opened(&opened, path));
        for (line, time, found) in folders {
            let times = match time {
                Some(Line::Folder(times)) => Some(times),
                _ => None,
            };
            let then = Then { tree: line.id, times };
            self.subfolder(&mut plan, &line.name, then, &join(path, &line.name), found.zip(at.as_ref()))?;
        }
        for (name, entry) in rest {
            let step = match &entry.node {
                Node::Mount => Step::Mounted { wanted: false },
                node => Step::Remove(kind_of(node)),
            };
            plan.steps.push((Arc::from(name), step));
        }
        match &plan.present {
            Some(present)
                if plan.steps.is_empty()
                    && plan.wanted.is_borne_by(&present.stat, &present.attributes, false) =>
            {
                let mut folder =
                    Folder::new(present.stat, present.attributes.clone(), plan.tree, plan.entries);
                folder.times = then.times.filter(|_| self.times).unwrap_or_default();
                Ok(Planned::Same(Arc::new(folder)))
            }
            _ => Ok(Planned::Differs(plan)),
        }
    }

    fn line(
        &mut self,
        plan: &mut Plan,
        line: &TreeEntry,
        time: Option<Line>,
        path: &[u8],
        found: Found<'_>,
    ) -> Result<()> {
        let time = match time {
            Some(Line::Leaf(ns)) => Some(ns),
            _ => None,
        };
        if matches!(found, Some((Entry { node: Node::Mount, .. }, _))) {
            plan.steps.push((Arc::clone(&line.name), Step::Mounted { wanted: true }));
            return Ok(());
        }
        let content = match (line.mode, self.form(path)) {
            (_, Form::Prefix) if !sabotage::is(Breakage::PrefixRestored) => {
                self.leave(plan, path, found);
                return Ok(());
            }
            (GitMode::Link, _) => Content::Link(line.id),
            (_, Form::Sparse) => {
                let (sparse, data) = Sparse::read(self.objects, line.id)?;
                Content::Sparse(line.id, Arc::new(sparse), data)
            }
            _ => Content::File(line.id),
        };
        let wanted = self.wanted(path, line.mode, time);
        self.leaf(plan, &line.name, (content, wanted), path, found)
    }

    /// Leaves what stands at a path as it is, whatever that is.
    fn leave(&mut self, plan: &mut Plan, path: &[u8], found: Found<'_>) {
        // The folder is not what its tree says.
        plan.tree = ObjectId::UNKNOWN;
        if let Some((entry, _)) = found {
            let mut entry = entry.clone();
            if let Node::Leaf(leaf) = &mut entry.node {
                *leaf = Leaf::unread(leaf.stat);
            }
            plan.entries.push(entry);
        }
        let reason = "others appended to it when it was captured, so it is left as it is".to_owned();
        self.inexact.push(Unrestored { path: told(path), reason });
    }

    fn subfolder(
        &mut self,
        plan: &mut Plan,
        name: &Arc<[u8]>,
        then: Then,
        path: &[u8],
        found: Option<(&Entry, &Reach)>,
    ) -> Result<()> {
        let mut replaces = found.map(|(entry, _)| kind_of(&entry.node));
        let planned = match found {
            Some((Entry { node: Node::Folder(folder), .. }, around)) => {
                replaces = None;
                if self.is_same(folder, then) {
                    Planned::Same(Arc::clone(folder))
                } else {
                    self.folder(then, path, Some((folder, around.to(name))))?
                }
            }
            _ => self.folder(then, path, None)?,
        };
        match planned {
            Planned::Same(folder) => {
                if folder.tree == ObjectId::UNKNOWN {
                    plan.tree = ObjectId::UNKNOWN;
                }
                plan.entries.push(Entry { name: Arc::clone(name), node: Node::Folder(folder) });
            }
            Planned::Differs(child) => {
                if child.tree == ObjectId::UNKNOWN {
                    plan.tree = ObjectId::UNKNOWN;
                }
                plan.steps.push((Arc::clone(name), Step::Folder { plan: child, replaces }));
            }
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        plan: &mut Plan,
        name: &Arc<[u8]>,
        (content, wanted): (Content, Wanted),
        path: &[u8],
        found: Found<'_>,
    ) -> Result<()> {
        let replaces = found.map(|(entry, _)| kind_of(&entry.node));
        if let Some((Entry { node: Node::Leaf(leaf), .. }, folder)) = found
            && (leaf.stat.kind() == Kind::Link) == content.is_link()
        {
            let within = self.links.names_within((leaf.stat.device, leaf.stat.inode));
            let is_outside = leaf.stat.kind() == Kind::File && leaf.stat.names > within;
            if let Some(leaf) = self.held(folder, name, leaf, &content, path)?
                && self.has_its_names(path)
            {
                if wanted.is_borne_by(&leaf.stat, &leaf.attributes, content.is_link()) {
                    plan.entries.push(Entry { name: Arc::clone(name), node: Node::Leaf(leaf) });
                    return Ok(());
                }
                // Another name of the same file may be outside, where nothing is to be changed.
                if !is_outside {
                    plan.steps.push((Arc::clone(name), Step::Attributes(leaf, wanted)));
                    return Ok(());
                }
            }
            if is_outside {
                let reason = "what was changed of it shows under its names outside of the workspace, too";
                self.inexact.push(Unrestored { path: told(path), reason: reason.to_owned() });
            }
        }
        let link = self.metadata.and_then(|metadata| metadata.get(path)).and_then(|other| other.link);
        let link = link.filter(|_| !sabotage::is(Breakage::LinksApart));
        plan.steps.push((Arc::clone(name), Step::Write { content, wanted, replaces, link }));
        Ok(())
    }

    /// Whether a path's file has the names that it had.
    fn has_its_names(&self, path: &[u8]) -> bool {
        self.metadata.is_none() || self.names_then.get(path) == self.names_now.get(path)
    }

    /// What is known of a file or a link that has this content; `None` of one that has not. One that cannot be read has
    /// not: it is written anew.
    fn held(
        &self,
        folder: &OwnedFd,
        name: &[u8],
        leaf: &Leaf,
        content: &Content,
        path: &[u8],
    ) -> Result<Option<Leaf>> {
        let (blob, form) = (content.blob(), content.form());
        if leaf.blob != ObjectId::UNKNOWN {
            return Ok((leaf.blob == blob && leaf.form == form).then(|| leaf.clone()));
        }
        let read = |attributes| Leaf { stat: leaf.stat, attributes, form, blob, racy: true };
        let (expected, length) = match content {
            Content::Link(_) => {
                let target = read_link(folder, name).map_err(|errno| failed("read", path, errno))?;
                return Ok((Hasher::of(ObjectKind::Blob, &target).ok() == Some(blob)).then(|| read(None)));
            }
            Content::Sparse(_, sparse, data) => (*data, Some(sparse.length)),
            // To read a small file takes less time than to ask the object for its length.
            Content::File(_) if leaf.stat.len <= ASK_LENGTH_BYTES_MIN => (blob, None),
            Content::File(_) => (blob, Some(self.objects.said_len(blob, ObjectKind::Blob)?)),
        };
        if length.is_some_and(|length| length != leaf.stat.len) {
            return Ok(None);
        }
        let Ok(file) = open_file(folder, name) else { return Ok(None) };
        let Ok(attributes) = attributes::read(&file) else { return Ok(None) };
        let file = File::from(file);
        let blocks = fstat(&file).map_or(0, |stat| stat.st_blocks);
        let Ok(sparse) = Sparse::of(&file, leaf.stat.len, blocks) else { return Ok(None) };
        let mut source: Box<dyn std::io::Read> = match (content, &sparse) {
            (Content::Sparse(_, wanted, _), Some(found)) if **wanted == *found => Box::new(found.data(&file)),
            (Content::File(_), None) => Box::new(&file),
            _ => return Ok(None),
        };
        let length = sparse.as_ref().map_or(leaf.stat.len, Sparse::data_len);
        let mut hash = Hasher::new(ObjectKind::Blob, length);
        let count = pump(&mut source, &mut |bytes| {
            hash.update(bytes);
            Ok(())
        });
        let same = count.is_ok_and(|count| count == length) && hash.finish().ok() == Some(expected);
        // What changed while it was read is written anew, whatever was read of it.
        Ok((same && stat_at(folder, name) == Ok(leaf.stat)).then(|| read(attributes)))
    }
}

pub(super) fn kind_of(node: &Node) -> Kind {
    match node {
        Node::Folder(_) => Kind::Folder,
        Node::Leaf(leaf) => leaf.stat.kind(),
        Node::Special | Node::Mount => Kind::Special,
    }
}

/// Paths of files, links and other things that a restore replaces or removes.
#[derive(Default)]
pub(super) struct Touched {
    pub(super) changed: Vec<String>,
    pub(super) removed: Vec<String>,
    /// Paths of files and links among them of which the restore leaves no content.
    pub(super) contents: Vec<Vec<u8>>,
}

impl Touched {
    /// Adds a node that is removed with everything in it. A folder is named only if it is empty.
    fn remove(&mut self, path: &[u8], node: Option<&Node>) {
        match node {
            Some(Node::Folder(folder)) if !folder.entries.is_empty() => {
                for entry in &folder.entries {
                    self.remove(&join(path, &entry.name), Some(&entry.node));
                }
            }
            Some(Node::Folder(_)) => self.removed.push(format!("{}/", told(path))),
            Some(Node::Mount) => {}
            _ => {
                self.removed.push(told(path));
                self.contents.push(path.to_vec());
            }
        }
    }
}

impl Plan {
    /// Names what the plan replaces or removes. What it creates in the place of nothing is not named, and neither are times.
    pub(super) fn touched(&self, path: &[u8], touched: &mut Touched) {
        let mut present: Option<HashMap<&[u8], &Node>> = None;
        for (name, step) in &self.steps {
            let path = join(path, name);
            let mut remove = |touched: &mut Touched, kind: Kind| {
                let node = match kind {
                    Kind::Folder => {
                        let entries = || self.present.iter().flat_map(|folder| &folder.entries);
                        let of_name = || entries().map(|entry| (&*entry.name, &entry.node)).collect();
                        present.get_or_insert_with(of_name).get(&**name).copied()
                    }
                    _ => None,
                };
                touched.remove(&path, node);
            };
            match step {
                Step::Remove(kind) => remove(touched, *kind),
                Step::Write { replaces: Some(Kind::Folder), .. } => remove(touched, Kind::Folder),
                Step::Write { replaces: Some(_), .. } => {
                    touched.changed.push(told(&path));
                    touched.contents.push(path);
                }
                Step::Write { replaces: None, .. } | Step::Mounted { .. } => {}
                Step::Attributes(leaf, wanted) => {
                    let timeless = Wanted { modified_ns: None, ..wanted.clone() };
                    if !timeless.is_borne_by(&leaf.stat, &leaf.attributes, leaf.stat.kind() == Kind::Link) {
                        touched.changed.push(told(&path));
                    }
                }
                Step::Folder { plan, replaces } => {
                    if let Some(kind) = replaces {
                        remove(touched, *kind);
                    }
                    plan.touched(&path, touched);
                }
            }
        }
    }

    /// The contents that will be written.
    pub(super) fn blobs(&self, blobs: &mut Vec<ObjectId>) {
        for (_, step) in &self.steps {
            match step {
                Step::Folder { plan, .. } => plan.blobs(blobs),
                step => blobs.extend(step.blob()),
            }
        }
    }

    /// Returns the path below the plan's folder of something to which such a content will be written.
    pub(super) fn path_of(&self, is_wanted: &dyn Fn(ObjectId) -> bool) -> Option<Vec<u8>> {
        self.steps.iter().find_map(|(name, step)| match step {
            Step::Folder { plan, .. } => plan.path_of(is_wanted).map(|below| join(name, &below)),
            step => step.blob().filter(|blob| is_wanted(*blob)).map(|_| name.to_vec()),
        })
    }

    pub(super) fn present_permissions(&self) -> Option<u32> {
        self.present.as_deref().map(|folder| folder.stat.permissions())
    }
}

/// What something that was just made bears.
pub(super) fn stat_of(file: &OwnedFd) -> std::result::Result<Stat, Errno> {
    fstat(file).map(|stat| Stat::from(&stat))
}
