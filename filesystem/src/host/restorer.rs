//! Carries out the plan of a restore, which can be interrupted at any step and run again.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};
use parking_lot::Mutex;

use super::WorkspaceRestoreReport;
use super::attributes::{self, Target, WantedAttributes};
use super::checked_objects::CheckedObjects;
use super::deep_directories::{Reach, is_let_go};
use super::manifest::{
    FileKind, Leaf, ManifestDirectory, ManifestEntry, ManifestNode, Stat, display_path, join,
};
use super::objects::{ObjectId, ObjectKind, len};
use super::parallel::join_thread;
use super::plan::{DirectoryPlan, PlannedContent, PlannedSteps, RestoreStep};
use super::removal::{EntryAt, Removal};
use super::rules::{Rules, Scope, temporary_name};
use super::step::{A_MOUNT, NEW_FILE, bits, describe_errno, discard, open_at, open_file, stat_at, stat_of};
use crate::error::{Error, Result, UnrestoredPath};

/// Smallest number of steps in one directory that are shared between two threads.
const SHARED_STEPS_MIN: usize = 32;

/// First number of the temporary names of a second thread.
const OTHERS_TEMPORARIES: u64 = 1 << 30;

/// First number of the temporary names, in the root, of files with several names.
const LINKS_TEMPORARIES: u64 = 1 << 31;

const OWNER_ALL: u32 = 0o700;

pub(super) struct RestoreContext<'a> {
    root: &'a OwnedFd,
    /// The files with several names that are already written.
    links: Mutex<BTreeSet<u32>>,
    /// Whether the disk was full, and the number of bytes of contents that were not written since.
    is_full: AtomicBool,
    unwritten_bytes: AtomicU64,
}

impl<'a> RestoreContext<'a> {
    pub(super) fn new(root: &'a OwnedFd) -> RestoreContext<'a> {
        let (is_full, unwritten_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        RestoreContext { root, links: Mutex::default(), is_full, unwritten_bytes }
    }

    /// Returns the number of bytes that had no space, if the disk was full.
    pub(super) fn unwritten_bytes(&self) -> Option<u64> {
        let is_full = self.is_full.load(Ordering::Relaxed);
        is_full.then(|| self.unwritten_bytes.load(Ordering::Relaxed))
    }
}

/// The path of a directory, and the lists that apply in it.
#[derive(Clone, Copy)]
struct Within<'a> {
    path: &'a [u8],
    scope: Option<&'a Arc<Scope>>,
}

pub(super) struct Restorer<'a> {
    rules: &'a Rules,
    checked: &'a CheckedObjects<'a>,
    shared: &'a RestoreContext<'a>,
    pub(super) restored: WorkspaceRestoreReport,
    pub(super) failures: Vec<UnrestoredPath>,
    temporaries: u64,
}

impl<'a> Restorer<'a> {
    pub(super) fn new(
        rules: &'a Rules,
        checked: &'a CheckedObjects<'a>,
        shared: &'a RestoreContext<'a>,
    ) -> Restorer<'a> {
        Restorer {
            rules,
            checked,
            shared,
            restored: WorkspaceRestoreReport::default(),
            failures: vec![],
            temporaries: 0,
        }
    }

    fn tell(&mut self, path: &[u8], reasons: Vec<String>) {
        if !reasons.is_empty() {
            self.restored.inexact.push(UnrestoredPath::new(display_path(path), reasons.join("; ")));
        }
    }

    pub(super) fn len_of(&self, blob: ObjectId) -> u64 {
        let CheckedObjects { objects, held } = self.checked;
        held.get(&blob)
            .map_or_else(|| objects.said_len(blob, ObjectKind::Blob).unwrap_or(0), |held| len(held))
    }

    /// Returns the reason why an operation failed, and records a lack of space.
    fn describe_failure(&self, errno: Errno) -> String {
        if matches!(errno, Errno::ENOSPC | Errno::EDQUOT) {
            self.shared.is_full.store(true, Ordering::Relaxed);
        }
        describe_errno(errno)
    }

    /// Returns the reason why a content was not written, and records a lack of space.
    fn unwritten(&self, error: &Error) -> String {
        if error.is_full() {
            self.shared.is_full.store(true, Ordering::Relaxed);
        }
        error.to_string()
    }

    pub(super) fn fail(&mut self, path: &[u8], reason: impl ToString) {
        self.failures.push(UnrestoredPath { path: display_path(path), reason: reason.to_string() });
    }

    /// Brings a directory into its wanted state. Records failures, and carries out the remaining
    /// steps.
    pub(super) fn directory(
        &mut self,
        plan: DirectoryPlan,
        mut directory: Arc<OwnedFd>,
        at: Reach,
        path: &[u8],
        around: Option<Arc<Scope>>,
    ) -> Arc<ManifestDirectory> {
        self.open_up(&plan, &directory, path);
        let DirectoryPlan { wanted, present, tree, mut entries, steps } = plan;
        let scope = self.scope(&directory, path, around);
        let within = Within { path, scope: scope.as_ref() };
        // Removals come first, since they free space.
        let (remove, others): (Vec<_>, Vec<_>) =
            steps.into_iter().partition(|(_, step)| matches!(step, RestoreStep::Remove(_)));
        entries.extend(self.steps(remove, &directory, within));
        let mut steps = others;
        if is_let_go(path) {
            match self.deep(steps, directory, &at, within, &mut entries) {
                Ok(opened) => directory = opened,
                Err(errno) => {
                    self.fail(path, errno.desc());
                    return Arc::new(ManifestDirectory::new(Stat::UNKNOWN, None, ObjectId::UNKNOWN, entries));
                }
            }
        } else if steps.len() >= SHARED_STEPS_MIN {
            let half = steps.split_off(steps.len() / 2);
            let (rules, checked, shared) = (self.rules, self.checked, self.shared);
            // Two threads gain most of the possible speed; the file system's own locks limit the
            // rest.
            std::thread::scope(|threads| {
                let other = threads.spawn(|| {
                    let mut other = Restorer::new(rules, checked, shared);
                    // Temporary names differ between the two, since both may write into this
                    // directory.
                    other.temporaries = OTHERS_TEMPORARIES;
                    let entries = other.steps(half, &directory, within);
                    (other, entries)
                });
                entries.extend(self.steps(steps, &directory, within));
                let (other, others) = join_thread(other);
                self.restored.add(other.restored);
                self.failures.extend(other.failures);
                entries.extend(others);
            });
        } else {
            entries.extend(self.steps(steps, &directory, within));
        }
        if path.is_empty() {
            self.drop_links();
        }
        let after = self.finish(&directory, path, &wanted, present.as_deref()).unwrap_or(Stat::UNKNOWN);
        let attributes = wanted.attributes.unwrap_or_default();
        Arc::new(ManifestDirectory::new(after, attributes, tree, entries))
    }

    /// Carries out the steps in a directory that is too deep to be held open during nested steps,
    /// and opens it again.
    fn deep(
        &mut self,
        steps: PlannedSteps,
        directory: Arc<OwnedFd>,
        at: &Reach,
        within: Within<'_>,
        entries: &mut Vec<ManifestEntry>,
    ) -> Result<Arc<OwnedFd>, Errno> {
        let (mut others, mut directories) = (Vec::new(), Vec::new());
        for (name, step) in steps {
            match step {
                RestoreStep::Directory { plan, replaces } => directories.push((name, plan, replaces)),
                step => others.push((name, step)),
            }
        }
        entries.extend(self.steps(others, &directory, within));
        directories.retain(|(name, plan, replaces)| {
            let path = join(within.path, name);
            let entry = EntryAt { directory: &directory, name, path: &path, scope: within.scope };
            self.make_directory(entry, plan, *replaces).map_err(|reason| self.fail(&path, reason)).is_ok()
        });
        drop(directory);
        for (name, plan, _) in directories {
            let (path, at) = (join(within.path, &name), at.to(&name));
            match at.open() {
                Ok(opened) => {
                    let made = self.directory(plan, opened, at, &path, within.scope.cloned());
                    entries.push(ManifestEntry { name, node: ManifestNode::Directory(made) });
                }
                Err(errno) => self.fail(&path, errno.desc()),
            }
        }
        at.open()
    }

    fn make_directory(
        &mut self,
        at: EntryAt<'_>,
        plan: &DirectoryPlan,
        replaces: Option<FileKind>,
    ) -> Result<(), String> {
        self.make_way(at, replaces)?;
        if plan.present.is_none() {
            mkdirat(at.directory, at.name, Mode::S_IRWXU).map_err(|errno| self.describe_failure(errno))?;
            self.restored.written += 1;
        }
        Ok(())
    }

    /// Sets a directory's attributes, once everything in it is done, and returns the resulting
    /// attributes.
    fn finish(
        &mut self,
        directory: &OwnedFd,
        path: &[u8],
        wanted: &WantedAttributes,
        present: Option<&ManifestDirectory>,
    ) -> Option<Stat> {
        let given = stat_of(directory).and_then(|stat| {
            let attributes = match present {
                Some(present) => present.attributes.clone(),
                // The parent directory may pass some on, and its group bit.
                None => attributes::read(directory).unwrap_or_default(),
            };
            if wanted.is_borne_by(&stat, &attributes, false) {
                return Ok((stat, Vec::new(), false));
            }
            let timeless = WantedAttributes { modified_ns: None, ..wanted.clone() };
            let is_more = present
                .is_some_and(|present| !timeless.is_borne_by(&present.stat, &present.attributes, false));
            let told = wanted.give(&Target::Opened(directory.as_fd()), &stat, &attributes)?;
            Ok((stat_of(directory)?, told, is_more))
        });
        match given {
            Ok((stat, told, is_more)) => {
                self.restored.written += u64::from(is_more);
                self.tell(path, told);
                Some(stat)
            }
            Err(errno) => {
                self.fail(path, errno.desc());
                None
            }
        }
    }

    /// Gives the owner all rights in a directory that is to be changed.
    pub(super) fn open_up(&mut self, plan: &DirectoryPlan, directory: &OwnedFd, path: &[u8]) {
        let open = plan.present_permissions().unwrap_or(OWNER_ALL);
        if !plan.steps.is_empty()
            && open & OWNER_ALL != OWNER_ALL
            && let Err(errno) = fchmod(directory, bits(open | OWNER_ALL))
        {
            self.fail(path, errno.desc());
        }
    }

    pub(super) fn scope(
        &self,
        directory: &OwnedFd,
        path: &[u8],
        around: Option<Arc<Scope>>,
    ) -> Option<Arc<Scope>> {
        self.rules.enter(directory, path, around).unwrap_or_default()
    }

    fn steps(
        &mut self,
        steps: PlannedSteps,
        directory: &Arc<OwnedFd>,
        within: Within<'_>,
    ) -> Vec<ManifestEntry> {
        let mut entries = Vec::new();
        for (name, step) in steps {
            let path = join(within.path, &name);
            let at = EntryAt { directory, name: &name, path: &path, scope: within.scope };
            match self.step(step, at) {
                Ok(node) => entries.extend(node.map(|node| ManifestEntry { name, node })),
                Err(reason) => self.fail(&path, reason),
            }
        }
        entries
    }

    fn step(&mut self, step: RestoreStep, at: EntryAt<'_>) -> Result<Option<ManifestNode>, String> {
        let EntryAt { directory, name, path, scope } = at;
        match step {
            RestoreStep::Mounted { wanted: true } => Err(A_MOUNT.to_owned()),
            RestoreStep::Mounted { wanted: false } => {
                self.restored.mounts.push(display_path(path));
                Ok(None)
            }
            RestoreStep::Remove(kind) => self.take_away(at, kind).map(|()| None),
            RestoreStep::Write { content, wanted, replaces, link } => {
                self.make_way(at, replaces.filter(|kind| *kind == FileKind::Directory))?;
                let temporary = self.temporary();
                let written = match link {
                    Some(link) => self.link(link, directory, &temporary, &content, &wanted),
                    None => self.write(directory, &temporary, &content, &wanted),
                };
                // A file system may write a file out at once if it replaces another by a rename. A
                // complete file under a temporary name needs this no more than a new one.
                if written.is_ok() && replaces.is_some() {
                    discard(directory, name);
                }
                let renamed = written.and_then(|told| {
                    let renamed = renameat(directory, temporary.as_str(), directory, name);
                    renamed.map(|()| told).map_err(|errno| self.describe_failure(errno))
                });
                let told = renamed.inspect_err(|_| {
                    discard(directory, &temporary);
                    if self.shared.is_full.load(Ordering::Relaxed) {
                        let bytes = self.len_of(content.data());
                        self.shared.unwritten_bytes.fetch_add(bytes, Ordering::Relaxed);
                    }
                })?;
                self.tell(path, told);
                self.restored.written += 1;
                let stat = stat_at(directory, name).map_err(|errno| self.describe_failure(errno))?;
                let (blob, form) = (content.blob(), content.form());
                Ok(Some(ManifestNode::Leaf(Leaf { blob, form, ..Leaf::unread(stat) })))
            }
            RestoreStep::Attributes(leaf, wanted) => {
                self.give(at, &leaf, &wanted)?;
                let timeless = WantedAttributes { modified_ns: None, ..wanted };
                let is_link = leaf.stat.kind() == FileKind::Link;
                self.restored.written +=
                    u64::from(!timeless.is_borne_by(&leaf.stat, &leaf.attributes, is_link));
                let stat = stat_at(directory, name).map_err(|errno| self.describe_failure(errno))?;
                Ok(Some(ManifestNode::Leaf(Leaf { stat, racy: true, ..leaf })))
            }
            RestoreStep::Directory { plan, replaces } => {
                self.make_directory(at, &plan, replaces)?;
                let reach = Reach::from_directory(Arc::clone(directory)).to(&Arc::from(name));
                let opened = reach.open().map_err(|errno| self.describe_failure(errno))?;
                Ok(Some(ManifestNode::Directory(self.directory(plan, opened, reach, path, scope.cloned()))))
            }
        }
    }

    /// Removes an entry. Entries that are left out of snapshots keep their parent directories, which
    /// are recorded.
    pub(super) fn take_away(&mut self, at: EntryAt<'_>, kind: FileKind) -> Result<(), String> {
        if !self.remove(at, kind)? {
            self.restored.kept.push(display_path(at.path));
        }
        Ok(())
    }

    pub(super) fn make_way(&mut self, at: EntryAt<'_>, replaces: Option<FileKind>) -> Result<(), String> {
        match replaces {
            Some(kind) if !self.remove(at, kind)? => {
                Err("what is left out of snapshots is in its way".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Removes an entry. Returns whether nothing remained that is left out of snapshots.
    fn remove(&mut self, at: EntryAt<'_>, kind: FileKind) -> Result<bool, String> {
        let mut removal = Removal::new(self.rules);
        let removed = removal.remove(at, kind);
        self.restored.removed += removal.removed;
        self.restored.mounts.append(&mut removal.mounts);
        self.failures.append(&mut removal.failures);
        removed
    }

    /// Returns a name for an incomplete entry. The plan has removed names of an earlier restore
    /// that was killed.
    fn temporary(&mut self) -> String {
        self.temporaries += 1;
        temporary_name(self.temporaries)
    }

    /// Writes a file or a link under a temporary name, and returns descriptions of the attributes
    /// that could not be restored.
    fn write(
        &self,
        directory: &OwnedFd,
        temporary: &str,
        content: &PlannedContent,
        wanted: &WantedAttributes,
    ) -> Result<Vec<String>, String> {
        if let PlannedContent::Link(blob) = content {
            let mut target = Vec::new();
            self.checked.copy(*blob, &mut target).map_err(|error| self.unwritten(&error))?;
            symlinkat(&*target, directory, temporary).map_err(|errno| self.describe_failure(errno))?;
            let stat =
                stat_at(directory, temporary.as_bytes()).map_err(|errno| self.describe_failure(errno))?;
            let target = Target::Link(directory.as_fd(), temporary.as_bytes());
            return wanted.give(&target, &stat, &None).map_err(describe_errno);
        }
        let created = open_at(directory, temporary.as_bytes(), NEW_FILE, Mode::S_IRUSR | Mode::S_IWUSR);
        let mut file = File::from(created.map_err(|errno| self.describe_failure(errno))?);
        match content {
            PlannedContent::Sparse(_, sparse, data) => {
                let mut pieces = sparse.writer(&file).map_err(|error| error.to_string())?;
                self.checked.copy(*data, &mut pieces)
            }
            content => self.checked.copy(content.blob(), &mut file),
        }
        .map_err(|error| self.unwritten(&error))?;
        let file = OwnedFd::from(file);
        let stat = stat_of(&file).map_err(|errno| self.describe_failure(errno))?;
        // A directory may pass some on to new entries in it.
        let attributes = attributes::read(&file).unwrap_or_default();
        wanted.give(&Target::Opened(file.as_fd()), &stat, &attributes).map_err(describe_errno)
    }

    /// Creates one more name of a file with several names. The file is written once, in the root,
    /// and linked from there.
    fn link(
        &mut self,
        link: u32,
        directory: &OwnedFd,
        temporary: &str,
        content: &PlannedContent,
        wanted: &WantedAttributes,
    ) -> Result<Vec<String>, String> {
        let mut links = self.shared.links.lock();
        let first = temporary_name(u64::from(link) + LINKS_TEMPORARIES);
        let mut told = Vec::new();
        if links.insert(link) {
            let written = self.write(self.shared.root, &first, content, wanted);
            told = written.inspect_err(|_| {
                links.remove(&link);
                discard(self.shared.root, &first);
            })?;
        }
        drop(links);
        match linkat(self.shared.root, first.as_str(), directory, temporary, AtFlags::empty()) {
            Ok(()) => Ok(told),
            Err(errno) => {
                let mut told = self.write(directory, temporary, content, wanted)?;
                told.push(format!("it is no longer one file with its other names: {}", errno.desc()));
                Ok(told)
            }
        }
    }

    /// Removes the temporary names through which files with several names were linked.
    fn drop_links(&mut self) {
        for link in std::mem::take(&mut *self.shared.links.lock()) {
            let first = temporary_name(u64::from(link) + LINKS_TEMPORARIES);
            if let Err(errno) = unlinkat(self.shared.root, first.as_str(), UnlinkatFlags::NoRemoveDir) {
                self.fail(first.as_bytes(), errno.desc());
            }
        }
    }

    fn give(&mut self, at: EntryAt<'_>, leaf: &Leaf, wanted: &WantedAttributes) -> Result<(), String> {
        let file;
        let target = match leaf.stat.kind() {
            FileKind::Link => Target::Link(at.directory.as_fd(), at.name),
            _ => {
                file = open_file(at.directory, at.name).map_err(describe_errno)?;
                Target::Opened(file.as_fd())
            }
        };
        let told = wanted.give(&target, &leaf.stat, &leaf.attributes).map_err(describe_errno)?;
        self.tell(at.path, told);
        Ok(())
    }
}
