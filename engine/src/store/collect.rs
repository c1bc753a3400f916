//! Collection: removal of files that a store no longer needs.
//!
//! | file | is collected if |
//! |---|---|
//! | an object of a session | no record of the session's log names it: the bodies that did were [dropped](Store::compact), or a crash came before its record |
//! | a capture of a workspace in a session's [directory of captures](crate::SessionLog::captures_dir) | neither the session's log nor that of a descendant needs it ([`captures`]) |
//! | an object in the store's pool | that is its last name |
//! | an image | its position is not in the log, or there are two newer ones |
//! | an unfinished file | its session is not open, so the process that was writing it was killed |
//! | a session that was being built or deleted | its lock is free, so that process was killed |
//! | a session's directory without a record | it contains only what a crash left before the first record |
//!
//! Segments stay as evidence, even if a recovery left them out. Files from other sources than the
//! engine stay too.
//!
//! # Invariants
//!
//! 1. Files of a session are removed only while its lock is held, and only after its whole log was
//!    read without an error and without a record of a kind that this version does not know.
//!    Otherwise the session is skipped, and the report gives the reason.
//! 2. Captures are removed only while the locks of the session and of all its descendants are held,
//!    and only if each session of the store can be read: a child works on its parent's workspace,
//!    and its log names captures in its parent's directory. A session with a deleted ancestor and
//!    no captures of its own counts as a descendant of every session.
//! 3. No removal relies on anything that a power cut may undo. The names of a session's files are
//!    made durable first, since a killed compaction may have dropped a body in a file whose name is
//!    not durable. Captures are left unchanged while the last records of a log that names some may
//!    not be durable: if they are lost, a call that they end is open again and needs its captures.
//! 4. A file with more than one name, as in a fork, loses only the name in this session.
//! 5. A collection that is killed has removed some of the files. The next one removes the others.
//! 6. If an entry has the name of a file but is not a regular file, or the name of a directory but
//!    is not a directory, it is left alone with everything below it. The report names it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{self, ObjectId};
use foldlog_codec::escape;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Store;
use crate::error::{Error, Result};
use crate::fold::projection::LogSlices;
use crate::inspect::{LogReader, ReadOptions};
use crate::log::layout;
use crate::log::lock::{self, WriterLock};
use crate::options::KeptSnapshots;
use crate::session::{LoadedSession, lock_to_write, open_read};
use crate::storage::{EntryKind, HeldLock, Storage};

mod captures;
mod leftovers;
mod sweep;

pub use captures::CapturesInUse;
use sweep::FileSweeper;
pub(super) use sweep::check_removal;

/// Default number of calls whose captures a collection keeps.
const CALLS_KEPT: u64 = 100;

/// Options of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectOptions {
    /// Only session to collect; `None` collects the whole store.
    pub session: Option<Uuid>,
    /// Snapshots to which a rewind can return. The captures in effect at their positions are kept.
    pub snapshots: KeptSnapshots,
    /// Number of latest calls of each session whose captures are kept.
    pub calls: u64,
    /// Age up to which captures are kept, by the times of their records.
    pub younger_than: Option<Duration>,
    /// Whether to only report removals, without making them.
    pub dry_run: bool,
}

impl Default for CollectOptions {
    fn default() -> CollectOptions {
        CollectOptions {
            session: None,
            snapshots: KeptSnapshots::Tagged,
            calls: CALLS_KEPT,
            younger_than: None,
            dry_run: false,
        }
    }
}

/// Counts files that were or would be collected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CollectedFiles {
    /// Number of objects of sessions.
    pub objects: u64,
    /// Number of objects of captures.
    pub captures: u64,
    /// Number of images.
    pub images: u64,
    /// Number of files and directories left by crashes.
    pub leftovers: u64,
    /// Bytes freed on the disk. Files with further names are not counted.
    pub bytes: u64,
}

impl CollectedFiles {
    fn add(&mut self, other: CollectedFiles) {
        self.objects += other.objects;
        self.captures += other.captures;
        self.images += other.images;
        self.leftovers += other.leftovers;
        self.bytes += other.bytes;
    }
}

/// Names an entry that a collection left alone because the engine does not make such entries there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeftAlone {
    /// Path of the entry. The collection read and removed no files below it.
    #[serde(serialize_with = "escape::serialize_path")]
    pub path: PathBuf,
    /// Kind of the entry in words, such as `a symbolic link`.
    pub what: String,
}

/// Reports the removals of a collection, or of a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CollectReport {
    /// Counts for each session from which files were collected.
    pub sessions: BTreeMap<Uuid, CollectedFiles>,
    /// Sessions that were skipped, completely or only their captures, each with the reason.
    pub skipped: BTreeMap<Uuid, String>,
    /// Entries with the name of a file that a collection looks at, such as an object, that are not
    /// regular files; and entries with the name of a directory of such files that are not
    /// directories.
    #[serde(default)]
    pub left: Vec<LeftAlone>,
    /// Counts for the whole store, including the sessions.
    pub all: CollectedFiles,
}

/// Keeps writers away from a session while it is examined.
enum WriterGuard {
    Locked { _lock: WriterLock },
    Watched { _held: Option<Box<dyn HeldLock>> },
}

impl Store {
    /// Removes files that the store's sessions no longer need: objects, captures of workspaces,
    /// images, and leftovers of crashes. Skips sessions that are open for writing, and damaged
    /// ones. While a session is examined, opening it for writing fails with [`Error::Locked`].
    ///
    /// ```
    /// # use foldlog::{CollectOptions, CompactOptions, Event, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Drafted(String);
    /// # impl Event for Drafted {
    /// #     const NAME: &'static str = "text.drafted";
    /// # }
    /// # struct Text;
    /// # impl Slice for Text {
    /// #     const NAME: &'static str = "text";
    /// #     type Item = Drafted;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// let types = SessionTypes::builder().slice::<Text>().replace_latest::<Text>().build()?;
    /// let store = Store::open(directory.path())?;
    /// let session = store.create(&types)?;
    /// for draft in 0..3 {
    ///     session.dispatch(Drafted(draft.to_string().repeat(1 << 20)))?; // so large that each is an object
    /// }
    /// let id = session.id();
    /// session.close()?;
    /// store.compact(id, &CompactOptions::default())?;
    /// let report = store.collect(&CollectOptions::default())?;
    /// assert_eq!(report.all.objects, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSession`] if the store lacks the requested session, [`Error::ReadOnly`] if
    /// the store is read-only, [`Error::Io`] if a directory cannot be listed or a file cannot be
    /// removed, [`Error::OverBudget`] if the log of the requested session exceeds the store's
    /// memory [limit](crate::MemoryLimit).
    pub fn collect(&self, options: &CollectOptions) -> Result<CollectReport> {
        let mut report = CollectReport::default();
        let ids = match options.session {
            Some(only) => self.find_session_dir(only).map(|_| vec![only])?,
            None => self.session_ids()?,
        };
        let (mut families, mut recordless) = (SessionLineage::default(), BTreeSet::new());
        for id in ids {
            match self.collect_session(id, options, &mut families, &mut report) {
                Ok(collected) if collected == CollectedFiles::default() => {}
                Ok(collected) => drop(report.sessions.insert(id, collected)),
                // A directory without a record is a leftover, or a session in creation that has
                // nothing to collect yet.
                Err(Error::NotASession { .. }) => drop(recordless.insert(id)),
                // Files removed before the error stay removed. They were not needed.
                Err(error @ (Error::ReadOnly { .. } | Error::Io { .. })) => return Err(error),
                Err(error @ Error::OverBudget { .. }) if options.session.is_some() => return Err(error),
                Err(error) => drop(report.skipped.insert(id, error.to_string())),
            }
        }
        if options.session.is_none() {
            self.collect_unfinished(options, &recordless, &mut report)?;
        }
        // After everything that had names for the files in the pool.
        let mut pool = FileSweeper::new(self, options.dry_run);
        pool.pool()?;
        pool.end(&mut report);
        Ok(report)
    }

    /// Removes from the pool the files that only the session to be deleted has. The next collection
    /// retries failures.
    pub(super) fn unpool(&self, dir: &Path) {
        let directory = layout::objects_dir(dir);
        for entry in self.storage().list(&directory).unwrap_or_default() {
            if let Some(pooled) = self.pooled_for(&directory.join(&entry.name)) {
                let _ = self.storage().remove_file(&pooled);
            }
        }
        captures::unpool(&layout::captures_dir(dir), &layout::captures_pool(&self.inner.root));
    }

    /// Returns the name in the pool of an object in a session's directory, if the pool has its only
    /// other name.
    fn pooled_for(&self, object: &Path) -> Option<PathBuf> {
        let pooled = self.own_pool()?.join(object.file_name()?);
        let is_file = |path: &Path| self.kind_of(path) == Some(EntryKind::File);
        let has_two_names = |path: &Path| self.storage().links(path).is_ok_and(|links| links == 2);
        (has_two_names(object) && is_file(&pooled) && has_two_names(&pooled)).then_some(pooled)
    }

    /// Returns the store's pool. `None` if it does not exist or is not a directory, but for example
    /// a link to a directory elsewhere.
    fn own_pool(&self) -> Option<PathBuf> {
        let pool = layout::pool_dir(&self.inner.root);
        (self.kind_of(&pool) == Some(EntryKind::Directory)).then_some(pool)
    }

    fn kind_of(&self, path: &Path) -> Option<EntryKind> {
        self.storage().entry(path).ok().flatten().map(|entry| entry.kind)
    }

    /// Returns the captures of workspaces that the log of a session needs, as a
    /// [collection](Store::collect) with these options keeps them, and the unneeded ones that it
    /// names. For hosts that store captures outside of
    /// [`captures_dir`](crate::SessionLog::captures_dir): they pass the result to
    /// [`collect_snapshots`](crate::filesystem::collect_snapshots) while the session is not open.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSession`] if the store has no such session, [`Error::Object`] if an object
    /// with a capture is missing, [`Error::UnsupportedKind`] if the log has a record of a kind that
    /// this version does not know; the errors of [`LogReader::open`] if the session is damaged.
    pub fn captures_in_use(&self, session: Uuid, options: &CollectOptions) -> Result<CapturesInUse> {
        let dir = self.find_session_dir(session)?;
        let read = self.read_whole(&dir)?;
        captures::in_use(self, &dir, &read, options)
    }

    /// Adds the parents of sessions that were created since the last call.
    fn look_for_families(&self, families: &mut SessionLineage) -> Result<()> {
        for id in self.session_ids()? {
            if families.parents.contains_key(&id) {
                continue;
            }
            let options = ReadOptions { outline: true, memory_bytes: None };
            match LogReader::open_with(Arc::clone(self.storage()), self.session_dir(id), options) {
                Ok(reader) => {
                    let parent = reader.opening_record().parent.map(|parent| parent.session());
                    families.parents.insert(id, parent);
                }
                Err(Error::NotASession { .. } | Error::NoSuchSession { .. }) => {}
                Err(_) => families.unread = families.unread.or(Some(id)),
            }
        }
        Ok(())
    }

    /// Updates `families`, and returns the sessions whose logs may name captures in the directory
    /// of `id`: its descendants, and sessions with a deleted ancestor and no captures of their own.
    /// `Err` names a session that cannot be read, so that the captures named by its log are
    /// unknown.
    fn may_name_captures_of(
        &self,
        id: Uuid,
        families: &mut SessionLineage,
    ) -> Result<Result<BTreeSet<Uuid>, String>> {
        self.look_for_families(families)?;
        if let Some(unread) = families.unread {
            return Ok(Err(format!("session {unread} cannot be read, and its log may name some of them")));
        }
        let has_own = |of: Uuid| {
            let own = self.storage().entry(&layout::captures_dir(&self.session_dir(of)));
            own.is_ok_and(|own| own.is_some())
        };
        let is_one = |of: Uuid| match families.ancestry(of, id) {
            Ancestry::Descends => true,
            Ancestry::Unknown => !has_own(of),
            Ancestry::None => false,
        };
        Ok(Ok(families.parents.keys().copied().filter(|of| *of != id && is_one(*of)).collect()))
    }

    fn keep(&self, session: Uuid, dry_run: bool) -> Result<WriterGuard> {
        if dry_run {
            let held = lock::keep_writers_away(self.storage(), &self.session_dir(session))?;
            return Ok(WriterGuard::Watched { _held: held });
        }
        Ok(WriterGuard::Locked { _lock: lock_to_write(&self.inner, session)? })
    }

    fn read_whole(&self, dir: &Path) -> Result<LoadedSession> {
        let read = open_read(self.read_ground(), dir, None, LogSlices::Unread)?;
        match read.folded.projection.unsupported {
            Some((sequence, kind)) => Err(Error::UnsupportedKind { sequence, kind }),
            None => Ok(read),
        }
    }

    fn collect_session(
        &self,
        id: Uuid,
        options: &CollectOptions,
        families: &mut SessionLineage,
        report: &mut CollectReport,
    ) -> Result<CollectedFiles> {
        let dir = self.session_dir(id);
        let _kept = self.keep(id, options.dry_run)?;
        let read = self.read_whole(&dir)?;
        let mut sweeping = FileSweeper::new(self, options.dry_run);
        let named = named_objects(self.storage(), &read)?;
        if !options.dry_run {
            self.storage().sync_directory(&dir)?;
        }
        sweeping.objects(&dir, &named)?;
        sweeping.images(&dir, read.scan.next_sequence)?;
        sweeping.leftovers_of(&dir, &read)?;
        if sweeping.is_directory(&layout::captures_dir(&dir))? {
            let left = match self.collect_captures(id, &dir, &read, families, options, &mut sweeping) {
                Ok(left) => left,
                Err(error @ (Error::ReadOnly { .. } | Error::Io { .. })) => return Err(error),
                Err(error) => Some(error.to_string()),
            };
            if let Some(reason) = left {
                report.skipped.insert(id, format!("its captures: {reason}"));
            }
        }
        Ok(sweeping.end(report))
    }

    /// Collects the captures in a session's directory, with the locks of all sessions whose logs
    /// may name some of them. Returns the reason if they are left alone because the needed ones
    /// cannot be determined.
    fn collect_captures(
        &self,
        id: Uuid,
        dir: &Path,
        read: &LoadedSession,
        families: &mut SessionLineage,
        options: &CollectOptions,
        sweeping: &mut FileSweeper<'_>,
    ) -> Result<Option<String>> {
        let may_name = match self.may_name_captures_of(id, families)? {
            Ok(may_name) => may_name,
            Err(unread) => return Ok(Some(unread)),
        };
        if let Some(left) = undurable(id, read) {
            return Ok(Some(left));
        }
        let mut in_use = captures::in_use(self, dir, read, options)?;
        let mut locks = Vec::new();
        for descendant in &may_name {
            locks.push(self.keep(*descendant, options.dry_run)?);
            let dir = self.session_dir(*descendant);
            let read = self.read_whole(&dir)?;
            if let Some(left) = undurable(*descendant, &read) {
                return Ok(Some(left));
            }
            in_use.add(captures::in_use(self, &dir, &read, options)?);
        }
        // Checked again with the locks: a child of one of them may have been created before.
        match self.may_name_captures_of(id, families)? {
            Ok(now) if now == may_name => {}
            Ok(_) => {
                return Ok(Some(
                    "a session whose log may name some of them was created during the collection".to_owned(),
                ));
            }
            Err(unread) => return Ok(Some(unread)),
        }
        sweeping.captures(&layout::captures_dir(dir), &in_use)?;
        Ok(None)
    }
}

enum Ancestry {
    Descends,
    None,
    /// An ancestor was deleted, and its parent is unknown.
    Unknown,
}

/// Parents of sessions, by fork or by creation.
#[derive(Default)]
struct SessionLineage {
    parents: BTreeMap<Uuid, Option<Uuid>>,
    unread: Option<Uuid>,
}

impl SessionLineage {
    fn ancestry(&self, of: Uuid, ancestor: Uuid) -> Ancestry {
        let (mut at, mut seen) = (of, BTreeSet::new());
        while seen.insert(at) {
            match self.parents.get(&at) {
                Some(Some(parent)) if *parent == ancestor => return Ancestry::Descends,
                Some(Some(parent)) => at = *parent,
                Some(None) => return Ancestry::None,
                None => return Ancestry::Unknown,
            }
        }
        Ancestry::None
    }
}

/// Returns why the captures that a log names cannot be collected yet, if its last records may not
/// be durable.
fn undurable(session: Uuid, read: &LoadedSession) -> Option<String> {
    let records = read.scan.next_sequence.checked_since(read.scan.durable).filter(|records| *records > 0)?;
    Some(format!(
        "the last {records} records of session {session} may not be durable, because its process was killed: open and sync it first"
    ))
}

/// Returns the file names of the objects that the records of a log name.
///
/// # Errors
///
/// [`Error::Inconsistent`] if the body of a record does not decode, so that the objects it names
/// are unknown.
fn named_objects(storage: &Arc<dyn Storage>, read: &LoadedSession) -> Result<BTreeSet<String>> {
    let mut named = BTreeSet::new();
    read.places().read(storage, SequenceNumber::MIN, SequenceNumber::MAX, &mut |record| {
        body::check(record.kind, record.body).map_err(Error::unread(record.sequence))?;
        named.extend(record.objects().iter().map(ObjectId::file_name));
        Ok(())
    })?;
    Ok(named)
}
