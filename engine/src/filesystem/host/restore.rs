//! Bringing a workspace back to a snapshot: a plan of what differs, made without changing anything, and its
//! execution, which can be cut short at any step and begun again.

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmod, fchmodat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use super::Restored;
use super::manifest::{Entry, Folder, GitMode, Kind, Leaf, Node, Permissions, Stat, join, told};
use super::objects::{Hasher, ObjectId, ObjectKind, Objects, len, pump};
use super::rules::{Rules, Scope, TEMPORARY};
use super::step::{A_MOUNT, MOUNT, open_at};
use super::trees::Trees;
use super::walk::{OPEN_FOLDER, in_parallel, open_file, read_link, stat_at};
use crate::error::{Error, Result, Unrestored};

/// Contents that were checked are held until they are written, up to so many bytes; more are read twice.
const HELD_BYTES_MAX: u64 = 32 << 20;

/// Of a longer file than this the length is compared before its content.
const ASK_LENGTH_BYTES_MIN: u64 = 64 << 10;

/// A folder that is to go may hold deeper ones than a snapshot can.
const REMOVE_DEPTH_MAX: usize = 512;

/// So many steps in one folder are shared between two threads.
const SHARED_STEPS_MIN: usize = 32;

/// Where the temporary names of a second thread begin.
const OTHERS_TEMPORARIES: u64 = 1 << 31;

const OWNER_ALL: u32 = 0o700;

/// What is to be done in one folder.
pub(super) struct Plan {
    permissions: u32,
    /// What they are now, where the folder is there.
    present: Option<u32>,
    tree: ObjectId,
    /// What is as it should be.
    entries: Vec<Entry>,
    steps: Vec<(Arc<[u8]>, Step)>,
}

enum Step {
    Remove(Kind),
    /// Something is mounted where the snapshot has something else, or nothing. It stays.
    Mounted {
        wanted: bool,
    },
    /// A file or a link is written, in the place of something else or of nothing.
    Write {
        link: bool,
        blob: ObjectId,
        permissions: u32,
        replaces: Option<Kind>,
    },
    Permissions(Leaf, u32),
    Folder {
        plan: Plan,
        replaces: Option<Kind>,
    },
}

/// What became of a comparison.
pub(super) enum Planned {
    Same(Arc<Folder>),
    Differs(Plan),
}

/// The snapshot's side of a comparison.
pub(super) struct Planner<'a> {
    pub(super) objects: &'a Objects,
    pub(super) trees: &'a mut Trees,
    pub(super) permissions: &'a Permissions,
    /// Whether all paths have the same permissions on both sides, so that equal trees are equal in all.
    pub(super) same_permissions: bool,
}

fn failed(op: &'static str, path: &[u8], errno: Errno) -> Error {
    Error::io(op, told(path), errno.into())
}

impl Planner<'_> {
    /// Compares a folder of the snapshot with the present one and its descriptor.
    pub(super) fn folder(
        &mut self,
        tree: ObjectId,
        path: &[u8],
        present: Option<(&Arc<Folder>, &OwnedFd)>,
    ) -> Result<Planned> {
        if let Some((folder, _)) = present
            && self.same_permissions
            && folder.tree == tree
        {
            return Ok(Planned::Same(Arc::clone(folder)));
        }
        let lines = self.trees.get(self.objects, tree, path)?;
        let mut rest: HashMap<&[u8], &Entry> = match present {
            Some((folder, _)) => folder.entries.iter().map(|entry| (&*entry.name, entry)).collect(),
            None => HashMap::new(),
        };
        let permissions = self.permissions.get(path, GitMode::Folder);
        let before = present.map(|(folder, _)| folder.permissions);
        let mut plan = Plan { permissions, present: before, tree, entries: Vec::new(), steps: Vec::new() };
        for line in lines.iter() {
            let found = rest.remove(&*line.name).zip(present.map(|(_, opened)| opened));
            let path = join(path, &line.name);
            match line.mode {
                _ if matches!(found, Some((Entry { node: Node::Mount, .. }, _))) => {
                    plan.steps.push((Arc::clone(&line.name), Step::Mounted { wanted: true }));
                }
                GitMode::Folder => self.subfolder(&mut plan, &line.name, line.id, &path, found)?,
                mode => {
                    let permissions = self.permissions.get(&path, mode);
                    let link = mode == GitMode::Link;
                    self.leaf(&mut plan, &line.name, (link, line.id, permissions), &path, found)?;
                }
            }
        }
        for (name, entry) in rest {
            let step = match &entry.node {
                Node::Mount => Step::Mounted { wanted: false },
                node => Step::Remove(kind_of(node)),
            };
            plan.steps.push((Arc::from(name), step));
        }
        if plan.steps.is_empty() && before == Some(permissions) {
            return Ok(Planned::Same(Arc::new(Folder::new(permissions, tree, plan.entries))));
        }
        Ok(Planned::Differs(plan))
    }

    fn subfolder(
        &mut self,
        plan: &mut Plan,
        name: &Arc<[u8]>,
        tree: ObjectId,
        path: &[u8],
        found: Option<(&Entry, &OwnedFd)>,
    ) -> Result<()> {
        let mut replaces = found.map(|(entry, _)| kind_of(&entry.node));
        let planned = match found {
            Some((Entry { node: Node::Folder(folder), .. }, around)) => {
                replaces = None;
                if self.same_permissions && folder.tree == tree {
                    Planned::Same(Arc::clone(folder))
                } else {
                    let opened = open_at(around, name, OPEN_FOLDER, Mode::empty());
                    let opened = opened.map_err(|errno| failed("open", path, errno))?;
                    self.folder(tree, path, Some((folder, &opened)))?
                }
            }
            _ => self.folder(tree, path, None)?,
        };
        match planned {
            Planned::Same(folder) => {
                plan.entries.push(Entry { name: Arc::clone(name), node: Node::Folder(folder) });
            }
            Planned::Differs(child) => {
                plan.steps.push((Arc::clone(name), Step::Folder { plan: child, replaces }));
            }
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        plan: &mut Plan,
        name: &Arc<[u8]>,
        (link, blob, permissions): (bool, ObjectId, u32),
        path: &[u8],
        found: Option<(&Entry, &OwnedFd)>,
    ) -> Result<()> {
        let replaces = found.map(|(entry, _)| kind_of(&entry.node));
        let mut step = Step::Write { link, blob, permissions, replaces };
        if let Some((Entry { node: Node::Leaf(leaf), .. }, folder)) = found
            && (leaf.stat.kind() == Kind::Link) == link
            && self.holds(folder, name, leaf, blob, path)?
        {
            let leaf = Leaf { blob, racy: leaf.racy || leaf.blob != blob, ..*leaf };
            if link || leaf.stat.permissions() == permissions {
                plan.entries.push(Entry { name: Arc::clone(name), node: Node::Leaf(leaf) });
                return Ok(());
            }
            // Another name of the same file may be outside, where nothing is to be changed.
            let links =
                fstatat(folder, &**name, AtFlags::AT_SYMLINK_NOFOLLOW).map_or(1, |stat| stat.st_nlink);
            if links == 1 {
                step = Step::Permissions(leaf, permissions);
            }
        }
        plan.steps.push((Arc::clone(name), step));
        Ok(())
    }

    /// Whether a file or a link has this content. One that cannot be read has not: it is written anew.
    fn holds(&self, folder: &OwnedFd, name: &[u8], leaf: &Leaf, blob: ObjectId, path: &[u8]) -> Result<bool> {
        if leaf.blob != ObjectId::UNKNOWN {
            return Ok(leaf.blob == blob);
        }
        if leaf.stat.kind() == Kind::Link {
            let target = read_link(folder, name).map_err(|errno| failed("read", path, errno))?;
            return Ok(Hasher::of(ObjectKind::Blob, &target).ok() == Some(blob));
        }
        // To read a small file takes less time than to ask the object for its length.
        if leaf.stat.len > ASK_LENGTH_BYTES_MIN
            && leaf.stat.len != self.objects.said_len(blob, ObjectKind::Blob)?
        {
            return Ok(false);
        }
        let Ok(file) = open_file(folder, name) else { return Ok(false) };
        let mut hash = Hasher::new(ObjectKind::Blob, leaf.stat.len);
        let read = pump(&mut std::fs::File::from(file), &mut |bytes| {
            hash.update(bytes);
            Ok(())
        });
        let same = read.is_ok_and(|read| read == leaf.stat.len) && hash.finish().ok() == Some(blob);
        // What changed while it was read is written anew, whatever was read of it.
        Ok(same && stat_at(folder, name) == Ok(leaf.stat))
    }
}

fn kind_of(node: &Node) -> Kind {
    match node {
        Node::Folder(_) => Kind::Folder,
        Node::Leaf(leaf) => leaf.stat.kind(),
        Node::Special | Node::Mount => Kind::Special,
    }
}

impl Plan {
    /// The contents that will be written.
    fn blobs(&self, blobs: &mut Vec<ObjectId>) {
        for (_, step) in &self.steps {
            match step {
                Step::Write { blob, .. } => blobs.push(*blob),
                Step::Folder { plan, .. } => plan.blobs(blobs),
                Step::Remove(_) | Step::Mounted { .. } | Step::Permissions(..) => {}
            }
        }
    }
}

/// Contents that were checked.
pub(super) struct Checked<'a> {
    objects: &'a Objects,
    held: HashMap<ObjectId, Vec<u8>>,
}

impl<'a> Checked<'a> {
    /// Reads every object that a plan needs, before anything is changed.
    pub(super) fn new(objects: &'a Objects, plan: &Plan) -> Result<Checked<'a>> {
        let mut blobs = Vec::new();
        plan.blobs(&mut blobs);
        Checked::of(objects, blobs)
    }

    pub(super) fn of(objects: &'a Objects, mut blobs: Vec<ObjectId>) -> Result<Checked<'a>> {
        blobs.sort();
        blobs.dedup();
        let held_bytes = AtomicU64::new(0);
        let checked = in_parallel(&blobs, &|blob| {
            let room = HELD_BYTES_MAX.saturating_sub(held_bytes.load(Ordering::Relaxed));
            let bytes = objects.check(*blob, ObjectKind::Blob, room)?;
            held_bytes.fetch_add(bytes.as_deref().map_or(0, len), Ordering::Relaxed);
            Ok(bytes)
        })?;
        let held = blobs.into_iter().zip(checked).filter_map(|(blob, bytes)| Some((blob, bytes?))).collect();
        Ok(Checked { objects, held })
    }

    fn copy(&self, blob: ObjectId, into: &mut dyn Write) -> Result<()> {
        match self.held.get(&blob) {
            Some(bytes) => into.write_all(bytes).map_err(|error| Error::io("write", "the workspace", error)),
            None => self.objects.copy(blob, ObjectKind::Blob, into).map(drop),
        }
    }
}

/// Carries a plan out.
pub(super) struct Restorer<'a> {
    rules: &'a Rules,
    checked: &'a Checked<'a>,
    restored: Restored,
    failures: Vec<Unrestored>,
    temporaries: u64,
}

impl<'a> Restorer<'a> {
    pub(super) fn new(rules: &'a Rules, checked: &'a Checked<'a>) -> Restorer<'a> {
        Restorer { rules, checked, restored: Restored::default(), failures: vec![], temporaries: 0 }
    }

    fn fail(&mut self, path: &[u8], reason: impl ToString) {
        self.failures.push(Unrestored { path: told(path), reason: reason.to_string() });
    }

    /// Makes a folder what it should be. Whatever fails is noted, and the rest done.
    pub(super) fn folder(
        &mut self,
        plan: Plan,
        folder: &OwnedFd,
        path: &[u8],
        around: Option<Arc<Scope>>,
    ) -> Arc<Folder> {
        let Plan { permissions, present, tree, mut entries, steps } = plan;
        let is_new = present.is_none();
        let mut present = present.unwrap_or(OWNER_ALL);
        if !steps.is_empty() && present & OWNER_ALL != OWNER_ALL {
            match fchmod(folder, bits(present | OWNER_ALL)) {
                Ok(()) => present |= OWNER_ALL,
                Err(errno) => self.fail(path, errno.desc()),
            }
        }
        let scope = self.rules.enter(folder, path, around).unwrap_or_default();
        // What is to go makes room first.
        let (remove, others): (Vec<_>, Vec<_>) =
            steps.into_iter().partition(|(_, step)| matches!(step, Step::Remove(_)));
        self.steps(remove, folder, path, scope.as_ref(), &mut entries);
        let mut steps = others;
        if steps.len() >= SHARED_STEPS_MIN {
            let half = steps.split_off(steps.len() / 2);
            let (rules, checked) = (self.rules, self.checked);
            // Two threads get most of what there is to get: the file system's own locks leave no more.
            let other = std::thread::scope(|threads| {
                let other = threads.spawn(|| {
                    let mut other = Restorer::new(rules, checked);
                    // Temporary names differ between the two, since both may write into this folder.
                    other.temporaries = OTHERS_TEMPORARIES;
                    let mut entries = Vec::new();
                    other.steps(half, folder, path, scope.as_ref(), &mut entries);
                    (other.done(), entries)
                });
                self.steps(steps, folder, path, scope.as_ref(), &mut entries);
                match other.join() {
                    Ok(other) => other,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            });
            let ((restored, failures), others) = other;
            self.restored.add(restored);
            self.failures.extend(failures);
            entries.extend(others);
        } else {
            self.steps(steps, folder, path, scope.as_ref(), &mut entries);
        }
        // A new one takes its group's bit from the folder that it is made in, whatever it was asked to have.
        if is_new || present != permissions {
            match fchmod(folder, bits(permissions)) {
                Ok(()) => self.restored.written += u64::from(!is_new),
                Err(errno) => self.fail(path, errno.desc()),
            }
        }
        Arc::new(Folder::new(permissions, tree, entries))
    }

    /// What was done, and what could not be.
    pub(super) fn done(self) -> (Restored, Vec<Unrestored>) {
        (self.restored, self.failures)
    }

    fn mounted(&mut self, path: &[u8]) {
        self.restored.mounts.push(told(path));
    }

    fn steps(
        &mut self,
        steps: Vec<(Arc<[u8]>, Step)>,
        folder: &OwnedFd,
        path: &[u8],
        scope: Option<&Arc<Scope>>,
        entries: &mut Vec<Entry>,
    ) {
        for (name, step) in steps {
            let path = join(path, &name);
            match self.step(step, folder, &name, &path, scope) {
                Ok(Some(node)) => entries.push(Entry { name, node }),
                Ok(None) => {}
                Err(reason) => self.fail(&path, reason),
            }
        }
    }

    fn step(
        &mut self,
        step: Step,
        folder: &OwnedFd,
        name: &[u8],
        path: &[u8],
        scope: Option<&Arc<Scope>>,
    ) -> Result<Option<Node>, String> {
        let described = |errno: Errno| errno.desc().to_owned();
        match step {
            Step::Mounted { wanted: true } => Err(A_MOUNT.to_owned()),
            Step::Mounted { wanted: false } => {
                self.mounted(path);
                Ok(None)
            }
            Step::Remove(kind) => {
                if !self.remove(folder, name, kind, path, scope, 0)? {
                    self.restored.kept.push(told(path));
                }
                Ok(None)
            }
            Step::Write { link, blob, permissions, replaces } => {
                self.make_way(folder, name, replaces.filter(|kind| *kind == Kind::Folder), path, scope)?;
                let temporary = self.temporary();
                let written = match link {
                    true => self.write_link(folder, &temporary, blob),
                    false => self.write_file(folder, &temporary, blob, permissions),
                };
                // A file system may write out at once what replaces a file by a rename. What is whole under its
                // temporary name needs that no more than what is new.
                if written.is_ok() && replaces.is_some() {
                    let _ = unlinkat(folder, name, UnlinkatFlags::NoRemoveDir);
                }
                let renamed = written
                    .and_then(|()| renameat(folder, temporary.as_str(), folder, name).map_err(described));
                if let Err(reason) = renamed {
                    let _ = unlinkat(folder, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
                    return Err(reason);
                }
                self.restored.written += 1;
                let stat = stat_at(folder, name).map_err(described)?;
                Ok(Some(Node::Leaf(Leaf { stat, blob, racy: true })))
            }
            Step::Permissions(leaf, permissions) => {
                set_permissions(folder, name, permissions).map_err(described)?;
                self.restored.written += 1;
                let stat = stat_at(folder, name).map_err(described)?;
                Ok(Some(Node::Leaf(Leaf { stat, racy: true, ..leaf })))
            }
            Step::Folder { plan, replaces } => {
                self.make_way(folder, name, replaces, path, scope)?;
                if plan.present.is_none() {
                    mkdirat(folder, name, Mode::S_IRWXU).map_err(described)?;
                    self.restored.written += 1;
                }
                let opened = open_at(folder, name, OPEN_FOLDER, Mode::empty()).map_err(described)?;
                Ok(Some(Node::Folder(self.folder(plan, &opened, path, scope.cloned()))))
            }
        }
    }

    fn make_way(
        &mut self,
        folder: &OwnedFd,
        name: &[u8],
        replaces: Option<Kind>,
        path: &[u8],
        scope: Option<&Arc<Scope>>,
    ) -> Result<(), String> {
        match replaces {
            Some(kind) if !self.remove(folder, name, kind, path, scope, 0)? => {
                Err("what is left out of snapshots is in its way".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Removes what stands under a name; whether nothing remained that is left out of snapshots.
    fn remove(
        &mut self,
        folder: &OwnedFd,
        name: &[u8],
        kind: Kind,
        path: &[u8],
        scope: Option<&Arc<Scope>>,
        depth: usize,
    ) -> Result<bool, String> {
        let described = |errno: Errno| errno.desc().to_owned();
        if kind != Kind::Folder {
            return match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) => {
                    self.restored.removed += 1;
                    Ok(true)
                }
                Err(Errno::ENOENT) => Ok(true),
                // A file on which another one is mounted.
                Err(Errno::EBUSY) => {
                    self.mounted(path);
                    Ok(false)
                }
                Err(errno) => Err(described(errno)),
            };
        }
        if depth > REMOVE_DEPTH_MAX {
            return Err("too many folders in one another".to_owned());
        }
        let opened = match open_at(folder, name, OPEN_FOLDER, Mode::empty()) {
            Err(Errno::EACCES) => {
                set_permissions(folder, name, OWNER_ALL).map_err(described)?;
                open_at(folder, name, OPEN_FOLDER, Mode::empty())
            }
            Err(MOUNT) => {
                self.mounted(path);
                return Ok(false);
            }
            opened => opened,
        };
        let opened = opened.map_err(described)?;
        let mut all = true;
        let mut writable = false;
        for (child, stat) in list(&opened).map_err(described)? {
            let child_path = join(path, &child);
            let kind = stat.kind();
            if self.rules.leave_out(path, &child, kind == Kind::Folder, scope.map(|scope| &**scope)) {
                all = false;
                continue;
            }
            if !writable {
                let permissions = nix::sys::stat::fstat(&opened).map(|stat| Stat::from(&stat).permissions());
                if let Ok(present) = permissions
                    && present & OWNER_ALL != OWNER_ALL
                {
                    // Where this fails, so does what comes next, with the better reason.
                    let _ = fchmod(&opened, bits(present | OWNER_ALL));
                }
                writable = true;
            }
            match self.remove(&opened, &child, kind, &child_path, scope, depth + 1) {
                Ok(gone) => all &= gone,
                // The innermost path that stayed is the one that is named.
                Err(reason) => {
                    self.fail(&child_path, reason);
                    all = false;
                }
            }
        }
        if all {
            unlinkat(folder, name, UnlinkatFlags::RemoveDir).map_err(described)?;
            self.restored.removed += 1;
        }
        Ok(all)
    }

    /// The name of what is not whole yet. One of an earlier restore that was killed was removed by the plan.
    fn temporary(&mut self) -> String {
        self.temporaries += 1;
        format!("{TEMPORARY}{:08x}{:08x}", std::process::id(), self.temporaries)
    }

    fn write_file(
        &self,
        folder: &OwnedFd,
        temporary: &str,
        blob: ObjectId,
        permissions: u32,
    ) -> Result<(), String> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let created = open_at(folder, temporary.as_bytes(), flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let mut file = std::fs::File::from(created.map_err(|errno| errno.desc().to_owned())?);
        self.checked.copy(blob, &mut file).map_err(|error| error.to_string())?;
        fchmod(&file, bits(permissions)).map_err(|errno| errno.desc().to_owned())
    }

    fn write_link(&self, folder: &OwnedFd, temporary: &str, blob: ObjectId) -> Result<(), String> {
        let mut target = Vec::new();
        self.checked.copy(blob, &mut target).map_err(|error| error.to_string())?;
        symlinkat(&*target, folder, temporary).map_err(|errno| errno.desc().to_owned())
    }
}

fn bits(permissions: u32) -> Mode {
    Mode::from_bits_truncate(permissions)
}

/// Sets the permissions of what stands under a name, unless that is a link or a mount.
pub(super) fn set_permissions(folder: impl AsFd, name: &[u8], permissions: u32) -> Result<(), Errno> {
    open_at(&folder, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    fchmodat(folder, name, bits(permissions), FchmodatFlags::NoFollowSymlink)
}

/// What is in a folder, `.` and `..` apart.
pub(super) fn list(folder: &OwnedFd) -> Result<Vec<(Vec<u8>, Stat)>, Errno> {
    let mut listed = Dir::from_fd(openat(folder, c".", OPEN_FOLDER, Mode::empty())?)?;
    let mut entries = Vec::new();
    for entry in listed.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match stat_at(folder, name) {
            Ok(stat) => entries.push((name.to_vec(), stat)),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(entries)
}
