//! Collection: a store gives up files that nothing needs any more.
//!
//! | what | is collected if |
//! |---|---|
//! | an object of a session | no record of the session's log names it: the bodies that did were [dropped](Store::compact), or a crash came before its record |
//! | a capture of a workspace in a session's [directory of captures](crate::Session::captures_dir) | neither the session's log nor that of a descendant needs it ([`captures`]) |
//! | an object in the store's pool | that is its last name |
//! | an image | it is of a position that the log has not, or older than the two newest |
//! | a file that was being made | its session is not open, so whoever made it was killed |
//! | a session in the making, or being deleted | its lock is free, so whoever did that was killed |
//! | a session's directory without a record | nothing but what a crash left before the first record is in it |
//!
//! Segments stay, those that a recovery has left out among them: they are evidence. So does what the engine has not made.
//!
//! # Invariants
//!
//! 1. Nothing of a session is removed unless its lock is held and its whole log was read without an error and without a record
//!    of a kind that this version does not know. Otherwise the session is skipped, and the report says why.
//! 2. Captures are removed only while the locks of the session and of all its descendants are held, and only if each session of
//!    the store can be read: a child works on its parent's workspace, and its log names captures in its parent's directory. A session
//!    with an ancestor that was deleted, and no captures of its own, counts as a descendant of each.
//! 3. Nothing is removed for what a power cut may take back. The names of a session's files are made durable first: a compaction
//!    that was killed may have dropped a body in a file whose name is not. Captures stay as they are while the end of a log that
//!    names some may not be durable, which may end a call that is open without it.
//! 4. A file that has a further name, as in a fork, loses only the name in this session.
//! 5. A collection that is killed has removed some of the files. The next one removes the others.
//! 6. What stands in the place of a file and is no regular file, or of a directory and is no directory, is left alone, with all that it
//!    leads to. The report names it.

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
use crate::sabotage::{self, Breakage};
use crate::session::{LoadedSession, lock_to_write, open_read};
use crate::storage::{EntryKind, HeldLock, Storage};

mod captures;
mod leftovers;
mod sweep;

pub use captures::CapturesInUse;
use sweep::FileSweeper;
pub(super) use sweep::check_removal;

/// Number of calls whose captures a collection keeps if nothing else is said.
const CALLS_KEPT: u64 = 100;

/// Holds the options of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectOptions {
    /// Session that is looked at alone; `None` looks at the whole store.
    pub session: Option<Uuid>,
    /// Snapshots whose positions a rewind can go back to: the captures that hold there are kept.
    pub snapshots: KeptSnapshots,
    /// Number of latest calls of each session whose captures are kept.
    pub calls: u64,
    /// Age up to which captures are kept, by the times of their records.
    pub younger_than: Option<Duration>,
    /// Whether nothing is removed, and the report says what a collection would remove.
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

/// Counts files that were collected, or would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CollectedFiles {
    /// Number of objects of sessions.
    pub objects: u64,
    /// Number of objects of captures.
    pub captures: u64,
    /// Number of images.
    pub images: u64,
    /// Number of files and directories that a crash has left.
    pub leftovers: u64,
    /// Bytes that the disk gets back: those of files that have no further name.
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

/// Names what a collection left alone, since it is none of what the engine makes there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeftAlone {
    /// Its path. Nothing was looked at or removed beneath it.
    #[serde(serialize_with = "escape::serialize_path")]
    pub path: PathBuf,
    /// What stands there, in words, such as `a symbolic link`.
    pub what: String,
}

/// Reports what a collection removed, or would remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CollectReport {
    /// What was collected of each session of which anything was.
    pub sessions: BTreeMap<Uuid, CollectedFiles>,
    /// Sessions of which nothing, or of whose captures nothing, was collected, and why.
    pub skipped: BTreeMap<Uuid, String>,
    /// What bears the name of a file that a collection looks at, such as an object, and is no regular file; or of a directory with such
    /// files, and is no directory.
    #[serde(default)]
    pub left: Vec<LeftAlone>,
    /// What was collected of the whole store, that of the sessions included.
    pub all: CollectedFiles,
}

/// Keeps writers away from a session while it is looked at.
enum WriterGuard {
    Locked { _lock: WriterLock },
    Watched { _held: Option<Box<dyn HeldLock>> },
}

impl Store {
    /// Removes from the store's sessions what nothing needs any more: objects, captures of workspaces, images, and what crashes
    /// have left. Sessions that are open for writing are skipped, as are damaged ones. Who opens a session at the moment in which it
    /// is looked at finds it locked.
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
    /// [`Error::NoSuchSession`] if the store lacks the one session that is asked for, [`Error::ReadOnly`] if the store takes no writes,
    /// [`Error::Io`] if a directory cannot be listed or a file cannot be removed, [`Error::OverBudget`] if the log of the one session
    /// takes more memory than the store's [limit](crate::MemoryLimit).
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
                // A directory without a record is a leftover, or about to be a session that has nothing to collect yet.
                Err(Error::NotASession { .. }) => drop(recordless.insert(id)),
                // What was removed before the error stays removed, and nobody needed it.
                Err(error @ (Error::ReadOnly { .. } | Error::Io { .. })) => return Err(error),
                Err(error @ Error::OverBudget { .. }) if options.session.is_some() => return Err(error),
                Err(error) => drop(report.skipped.insert(id, error.to_string())),
            }
        }
        if options.session.is_none() {
            self.collect_unfinished(options, &recordless, &mut report)?;
        }
        // Behind all that had names for what is in it.
        let mut pool = FileSweeper::new(self, options.dry_run);
        pool.pool()?;
        pool.end(&mut report);
        Ok(report)
    }

    /// Takes out of the pool what a session has that is about to be deleted, and no other session. What cannot be taken out now, the
    /// next collection takes.
    pub(super) fn unpool(&self, dir: &Path) {
        let directory = layout::objects_dir(dir);
        for entry in self.storage().list(&directory).unwrap_or_default() {
            if let Some(pooled) = self.pooled_for(&directory.join(&entry.name)) {
                let _ = self.storage().remove_file(&pooled);
            }
        }
        captures::unpool(&layout::captures_dir(dir), &layout::captures_pool(&self.inner.root));
    }

    /// Returns the name in the pool of an object in a session's directory, if nobody but the pool has the object too.
    fn pooled_for(&self, object: &Path) -> Option<PathBuf> {
        let pooled = self.own_pool()?.join(object.file_name()?);
        let is_file = |path: &Path| self.kind_of(path) == Some(EntryKind::File);
        let has_two_names = |path: &Path| self.storage().links(path).is_ok_and(|links| links == 2);
        (has_two_names(object) && is_file(&pooled) && has_two_names(&pooled)).then_some(pooled)
    }

    /// Returns the store's pool; `None` if there is none, or what stands there is no directory but, say, a link to somebody else's.
    fn own_pool(&self) -> Option<PathBuf> {
        let pool = layout::pool_dir(&self.inner.root);
        (self.kind_of(&pool) == Some(EntryKind::Directory)).then_some(pool)
    }

    fn kind_of(&self, path: &Path) -> Option<EntryKind> {
        self.storage().entry(path).ok().flatten().map(|entry| entry.kind)
    }

    /// Returns which captures of workspaces the log of a session needs, as a [collection](Store::collect) with these options
    /// keeps them, and which it names and does not need. For a host that keeps them elsewhere than in
    /// [`captures_dir`](crate::Session::captures_dir), who hands them to
    /// [`collect_snapshots`](crate::filesystem::collect_snapshots) while the session is not open.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSession`] if the store has no such session, [`Error::Object`] if an object that holds a capture is missing,
    /// [`Error::UnsupportedKind`] if the log has a record of a kind that this version does not know; those of
    /// [`LogReader::open`] if the session is damaged.
    pub fn captures_in_use(&self, session: Uuid, options: &CollectOptions) -> Result<CapturesInUse> {
        let dir = self.find_session_dir(session)?;
        let read = self.read_whole(&dir)?;
        captures::in_use(self, &dir, &read, options)
    }

    /// Takes in the parents of sessions that were created since the last look.
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

    /// Looks at the sessions that were created since the last look, and returns those whose logs may name captures in the directory of
    /// another one: its descendants, and those that have an ancestor which is gone, and no captures of their own. `Err` says which
    /// session cannot be read, so that nobody knows whether its log names some.
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

    /// Reads all records of a session.
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
        if !options.dry_run && !sabotage::is(Breakage::CollectedBeforeDurable) {
            self.storage().sync_dir(&dir).map_err(|error| Error::io("sync", &dir, error))?;
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

    /// Collects the captures in a session's directory, with the locks of all whose logs may name some of them. Returns why they are left
    /// alone if nobody knows which are needed.
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
            if !sabotage::is(Breakage::ChildCapturesForgotten) {
                let dir = self.session_dir(*descendant);
                let read = self.read_whole(&dir)?;
                if let Some(left) = undurable(*descendant, &read) {
                    return Ok(Some(left));
                }
                in_use.add(captures::in_use(self, &dir, &read, options)?);
            }
        }
        // Once more, with the locks: somebody may have created a child of one of them before.
        match self.may_name_captures_of(id, families)? {
            Ok(now) if now == may_name => {}
            Ok(_) => {
                return Ok(Some(
                    "a session was created meanwhile whose log may name some of them".to_owned(),
                ));
            }
            Err(unread) => return Ok(Some(unread)),
        }
        sweeping.captures(&layout::captures_dir(dir), &in_use)?;
        Ok(None)
    }
}

/// Says whether a session descends from another one.
enum Ancestry {
    Descends,
    None,
    /// An ancestor is gone, and nobody knows whose child that was.
    Unknown,
}

/// Holds which sessions were forked from which, or created for which.
#[derive(Default)]
struct SessionLineage {
    parents: BTreeMap<Uuid, Option<Uuid>>,
    /// A session that cannot be read.
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

/// Returns what is to be done before the captures that a log names can be collected: its last records may not be durable.
fn undurable(session: Uuid, read: &LoadedSession) -> Option<String> {
    let records = read.scan.next_sequence.checked_since(read.scan.durable).filter(|records| *records > 0)?;
    if sabotage::is(Breakage::CollectedBeforeDurable) {
        return None;
    }
    Some(format!(
        "the last {records} records of session {session} may not be durable, since its process was killed: open and sync it first"
    ))
}

/// Returns the file names of the objects that the records of a log name.
///
/// # Errors
///
/// [`Error::Inconsistent`] if the body of a record does not decode: nobody can say what it names.
fn named_objects(storage: &Arc<dyn Storage>, read: &LoadedSession) -> Result<BTreeSet<String>> {
    let mut named = BTreeSet::new();
    read.places().read(storage, SequenceNumber::MIN, SequenceNumber::MAX, &mut |record| {
        body::check(record.kind, record.body).map_err(Error::unread(record.sequence))?;
        named.extend(record.objects().iter().map(ObjectId::file_name));
        Ok(())
    })?;
    Ok(named)
}
