//! A store: a directory of sessions.
//!
//! A store creates, opens, lists, forks, deletes, exports, imports, copies, salvages and takes over
//! sessions. The name of a session directory is the session's id. Directories that are being built
//! or deleted have other names and are not sessions. At most one process, which holds the session's
//! lock, writes a session. Reading takes no lock.

mod backup;
mod bit_set;
mod building;
mod collect;
mod compaction;
mod conversations;
mod decisions;
mod export;
mod fork;
mod index;
mod listing;
mod retention;
mod salvage;
mod takeover;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{Parent, SessionOpening};
use foldlog_codec::{OperationId, RecordKind, SequenceNumber};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::background::Background;
use crate::error::{Error, Result};
use crate::generator::Generator;
use crate::inspect::{LogReader, ReadOptions};
use crate::log::partial_creation::{self, PartialCreation};
use crate::log::writer::{LogIdentity, LogWriter};
use crate::log::{fence, layout};
use crate::options::{BackgroundSync, Durability, MemoryLimit, SessionOptions, StoreOptions};
use crate::session::open_store::{OpenStore, Writers};
use crate::session::{
    OpenAs, ReadGround, Session, Settlement, begin, lock_or_read_only, lock_to_write, open, open_to_preview,
};
use crate::storage::{EntryKind, Storage};
use crate::types::SessionTypes;

pub use crate::session::open_store::Store;
pub use backup::{BackupOptions, BackupReport, CapturesElsewhere, DamagedCapture};
pub use collect::{CapturesInUse, CollectOptions, CollectReport, CollectedFiles, LeftAlone};
pub use compaction::{CompactReport, CompressReport};
pub use decisions::{LeftDecision, LeftFate};
pub use export::ImportOptions;
pub use retention::StoreCompactReport;
pub use salvage::{MissingObject, SalvageReport, SkippedBytes};
pub use takeover::PullReport;

/// Summarizes a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSummary {
    /// Id of the session.
    pub session: Uuid,
    /// Number of records in the log, including records shared with a parent.
    pub records: u64,
    /// Bytes that the log uses, including records shared with a parent.
    pub log_bytes: u64,
    /// Time of the session's own first record, in microseconds since 1970-01-01 UTC.
    pub created_at_us: i64,
    /// Tags of the session.
    pub tags: BTreeMap<String, String>,
    /// Session that this one was forked from or created for.
    pub parent: Option<Parent>,
}

/// Creates the directories of a store. Each is durable before the next one is created, so that the
/// store cannot be lost together with a directory above it. The name of the last directory becomes
/// durable with the first synced session.
fn make_directories(storage: &dyn Storage, sessions: &Path) -> Result<()> {
    let mut missing = Vec::new();
    let mut at = Some(sessions);
    while let Some(path) = at.filter(|path| !path.as_os_str().is_empty()) {
        if storage.look_up(path)?.is_some() {
            break;
        }
        missing.push(path);
        at = path.parent();
    }
    for path in missing.into_iter().rev() {
        // The directories above may come from a process that was killed before it synced this name.
        sync_name(storage, path.parent())?;
        storage.make_directory(path)?;
    }
    Ok(())
}

/// Makes the name of a directory above a store durable. Skips a parent directory that cannot be
/// synced because it is not readable or not on a real file system: such a directory existed before.
fn sync_name(storage: &dyn Storage, directory: Option<&Path>) -> Result<()> {
    let Some(above) = directory.filter(|directory| !directory.as_os_str().is_empty()).and_then(Path::parent)
    else {
        return Ok(());
    };
    let above = layout::path_through_link(above);
    match storage.sync_dir(&above) {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            Err(Error::io("sync", above, error))
        }
        _ => Ok(()),
    }
}

impl Store {
    /// Opens the store at `path` with the default options, and creates it if it does not exist.
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let store = Store::open(directory.path())?;
    /// let session = store.create(&types)?;
    /// assert_eq!(store.sessions()?.len(), 1);
    /// session.close()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be created or read.
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        Store::open_with(path, StoreOptions::default())
    }

    /// Opens the store at `path` with the given options, and creates it if it does not exist. An
    /// existing store can be opened on a read-only disk.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory cannot be created or read.
    pub fn open_with(path: impl AsRef<Path>, mut options: StoreOptions) -> Result<Store> {
        if let Some(storage) = options.storage.for_users(options.access) {
            options.storage = storage;
        }
        let root = path.as_ref().to_owned();
        let sessions = layout::sessions_dir(&root);
        let there = |error| Error::io("open", &sessions, error);
        match options.storage.entry(&sessions).map_err(there)? {
            Some(entry) if entry.kind == EntryKind::Directory => {}
            _ => make_directories(options.storage.as_ref(), &sessions)?,
        }
        let generator = match options.seed {
            Some(seed) => Generator::from_seed(seed),
            None => Generator::from_entropy(),
        };
        let background = match options.background {
            BackgroundSync::Thread => Background::thread(),
            BackgroundSync::Inline => Background::Inline,
        };
        let (writers, generator) = (Writers::default(), Mutex::new(generator));
        Ok(Store { inner: Arc::new(OpenStore { root, options, background, writers, generator }) })
    }

    /// Returns the store environment for replayed sessions of a log: that of the store with the
    /// session in `dir`. Creates no files.
    pub(crate) fn standing_at(dir: &Path, options: StoreOptions) -> Arc<OpenStore> {
        let root = dir.parent().and_then(Path::parent).unwrap_or(dir).to_owned();
        let (writers, generator) = (Writers::default(), Mutex::new(Generator::from_seed(0)));
        Arc::new(OpenStore { root, options, background: Background::Inline, writers, generator })
    }

    /// Returns the directory of the store.
    pub fn path(&self) -> &Path {
        &self.inner.root
    }

    fn storage(&self) -> &Arc<dyn Storage> {
        &self.inner.options.storage
    }

    fn read_ground(&self) -> ReadGround<'_> {
        ReadGround::from_options(&self.inner.options)
    }

    /// Opens the log in one of the store's directories, within the memory limit of the store.
    fn read_log_in(&self, dir: &Path) -> Result<LogReader> {
        let memory_bytes = match self.inner.options.memory {
            MemoryLimit::Bytes(bytes) => Some(bytes),
            MemoryLimit::OfLog | MemoryLimit::Unlimited => None,
        };
        let options = ReadOptions { outline: false, memory_bytes };
        LogReader::open_with(Arc::clone(self.storage()), dir, options)
    }

    /// Returns the directory of a session. It need not exist.
    pub fn session_dir(&self, session: Uuid) -> PathBuf {
        layout::session_dir(&self.inner.root, session)
    }

    /// Creates a session with the default options.
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let store = Store::open(directory.path())?;
    /// let session = store.create(&types)?;
    /// session.dispatch(Said("hello".to_owned()))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(&self, types: &SessionTypes) -> Result<Session> {
        self.create_with(types, SessionOptions::default())
    }

    /// Creates a session. Its first record is written when this returns. The record is durable at
    /// once with [`Durability::Every`], otherwise after the next sync.
    ///
    /// If a crash ended an earlier creation with the same id before its first record was written,
    /// the session is created again: the earlier creation was never acknowledged. The files that
    /// the crash left stay in the directory and belong to no log.
    ///
    /// # Errors
    ///
    /// [`Error::SessionExists`] if the directory contains anything else, [`Error::Locked`] if
    /// another process is creating the same session, [`Error::ReadOnly`] if the disk is read-only,
    /// [`Error::Full`] if it has no space, [`Error::Io`] if a file cannot be created.
    pub fn create_with(&self, types: &SessionTypes, options: SessionOptions) -> Result<Session> {
        let operation = options.operation;
        let parent = options.parent.map(|session| Parent::Child { session, operation });
        self.begin(types, options, parent, Vec::new(), &[])
    }

    /// Creates a session with the records `rest` after the first one, which name the objects
    /// `large`.
    fn begin(
        &self,
        types: &SessionTypes,
        options: SessionOptions,
        parent: Option<Parent>,
        rest: Vec<(RecordKind, Vec<u8>)>,
        large: &[Vec<u8>],
    ) -> Result<Session> {
        let (id, seed) = match options.id {
            Some(id) => {
                // Checked before locking: whether a session exists does not depend on its writer.
                self.partial_creation(id)?;
                (id, options.seed.unwrap_or_else(|| self.inner.generator.lock().next_u64()))
            }
            None => self.identity(&options)?,
        };
        let dir = self.session_dir(id);
        let lock = lock_to_write(&self.inner, id)?;
        // Checked again under the lock: another process may have created the session in the
        // meantime.
        let partial_creation = self.partial_creation(id)?;
        self.storage().make_directory(&dir)?;
        let parents = layout::directories_above_session(&self.inner.root).into();
        let identity = LogIdentity { session: id, seed };
        let log = LogWriter::create(&self.inner.log_environment(), &dir, identity, partial_creation, parents);
        let kept: Result<()> = large.iter().try_for_each(|bytes| log.objects.put(bytes).map(drop));
        let opened = SessionOpening { session: id, seed, tags: options.tags, parent };
        let durability = options.durability.unwrap_or(self.inner.options.durability);
        let open_as = OpenAs { types: Some(types.clone()), durability, lock: Some(lock), read_only: None };
        let begun = kept.and_then(|()| begin(&self.inner, &dir, opened, open_as, log, rest));
        if begun.is_err() {
            // The session was never acknowledged, so none of its files may stay. Files that cannot
            // be removed are leftovers.
            let _ = partial_creation::remove_all_but(self.storage().as_ref(), &dir, partial_creation);
        }
        begun
    }

    /// Finds the files of an earlier creation in the directory of a session that is to be created.
    /// Empty if the directory does not exist.
    fn partial_creation(&self, session: Uuid) -> Result<PartialCreation> {
        let dir = self.session_dir(session);
        let found = match self.storage().look_up(&dir)? {
            None => Some(PartialCreation::default()),
            Some(entry) if entry.kind == EntryKind::Directory => {
                partial_creation::find(self.storage().as_ref(), &dir, session)?
            }
            Some(_) => None,
        };
        found.ok_or(Error::SessionExists { session })
    }

    /// Returns the id and the seed of a new session.
    fn identity(&self, options: &SessionOptions) -> Result<(Uuid, u64)> {
        let mut generator = self.inner.generator.lock();
        let taken = |id: Uuid| -> Result<bool> {
            let dir = self.session_dir(id);
            let entry = self.storage().look_up(&dir)?;
            Ok(entry.is_some())
        };
        let id = match options.id {
            Some(id) if taken(id)? => return Err(Error::SessionExists { session: id }),
            Some(id) => id,
            None => loop {
                // A store with a given seed draws the same ids each time it is opened.
                let id = generator.uuid();
                if !taken(id)? {
                    break id;
                }
            },
        };
        Ok((id, options.seed.unwrap_or_else(|| generator.next_u64())))
    }

    /// Opens a session for reading and writing. Opening does not write: recovery writes its changes
    /// with the first append. On a read-only disk the session can only be read.
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let store = Store::open(directory.path())?;
    /// let session = store.create(&types)?;
    /// let id = session.id();
    /// session.dispatch(Said("hello".to_owned()))?;
    /// session.close()?;
    /// let again = store.open_session(id, &types)?; // as after a kill of the process
    /// assert_eq!(again.view::<Chat>()?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSession`] if the store has no such session; [`Error::Locked`] if it is open
    /// for writing in another process, or in this one, where [`handle`](Store::handle) returns it;
    /// [`Error::Corrupt`], [`Error::OlderThanSuccessor`], [`Error::MissingSegment`],
    /// [`Error::WrongSession`], [`Error::NotAFile`] or [`Error::Inconsistent`] if the log is
    /// damaged; [`Error::FutureFormat`] if a later version wrote it; [`Error::Object`] if an object
    /// is missing or damaged; [`Error::NotRegistered`] if the log binds an event to reducers that
    /// `types` lacks; [`Error::PolicyMismatch`] if `types` declares another policy for a slice;
    /// [`Error::NewerVersion`] or [`Error::Decode`] if a recorded item does not fit its type in
    /// `types`; [`Error::Io`] if a file cannot be read.
    pub fn open_session(&self, session: Uuid, types: &SessionTypes) -> Result<Session> {
        self.open_session_at(session, types, self.inner.options.durability)
    }

    /// Opens a session for reading and writing, with a durability that replaces the store's
    /// default.
    pub fn open_session_at(
        &self,
        session: Uuid,
        types: &SessionTypes,
        durability: Durability,
    ) -> Result<Session> {
        let dir = self.find_session_dir(session)?;
        let (lock, read_only) = lock_or_read_only(&self.inner, session)?;
        let types = Some(types.clone());
        open(&self.inner, &dir, OpenAs { types, durability, lock, read_only })
    }

    /// Returns a further handle of a session that is open for writing in this store; `None` if it
    /// is not. The session closes when its last handle is dropped. While it closes, this returns
    /// `None`, and opening it fails with [`Error::Locked`].
    ///
    /// ```
    /// # use foldlog::{SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().build()?;
    /// # let store = Store::open(directory.path())?;
    /// # let id = store.create(&types)?.id();
    /// let session = match store.handle(id) {
    ///     Some(session) => session,
    ///     None => store.open_session(id, &types)?,
    /// };
    /// # Ok(())
    /// # }
    /// ```
    pub fn handle(&self, session: Uuid) -> Option<Session> {
        self.inner.writers.handle(session)
    }

    /// Opens a session for reading, with the host's types. The session may be open for writing
    /// elsewhere. Records that are written later are not visible.
    ///
    /// # Errors
    ///
    /// The errors of [`open_session`](Store::open_session), except [`Error::Locked`].
    pub fn open_read_only(&self, session: Uuid, types: &SessionTypes) -> Result<Session> {
        let dir = self.find_session_dir(session)?;
        let read_only = Some("it was opened for reading".to_owned());
        let (types, durability) = (Some(types.clone()), self.inner.options.durability);
        open(&self.inner, &dir, OpenAs { types, durability, lock: None, read_only })
    }

    /// Opens a session for reading, without types. It can be read, exported and forked, but rejects
    /// dispatches.
    ///
    /// # Errors
    ///
    /// The errors of [`open_read_only`](Store::open_read_only) that do not concern types.
    pub fn open_untyped(&self, session: Uuid) -> Result<Session> {
        let dir = self.find_session_dir(session)?;
        let read_only = Some("it was opened without types".to_owned());
        let durability = self.inner.options.durability;
        open(&self.inner, &dir, OpenAs { types: None, durability, lock: None, read_only })
    }

    /// Opens a session without types, to [recover](crate::tools::ToolRunner::recover) it and to
    /// settle its operations. It rejects dispatches. Close it afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if the session is open for writing elsewhere; otherwise the errors of
    /// [`open_untyped`](Store::open_untyped).
    pub fn open_to_recover(&self, session: Uuid) -> Result<Session> {
        let dir = self.find_session_dir(session)?;
        let (lock, read_only) = lock_or_read_only(&self.inner, session)?;
        open(&self.inner, &dir, OpenAs { types: None, durability: Durability::Boundary, lock, read_only })
    }

    /// Opens a session without types, to [preview](crate::tools::ExecutionState::preview_rewind)
    /// rewinds of it. The session is read-only. STATE stays in the log and cannot be viewed: only
    /// the names of its items are in memory. A preview takes memory proportional to the changes of
    /// the rewind. Close the session afterwards.
    pub fn open_to_preview(&self, session: Uuid) -> Result<Session> {
        let dir = self.find_session_dir(session)?;
        let (lock, read_only) = lock_or_read_only(&self.inner, session)?;
        let read_only = read_only.or_else(|| Some("it was opened for previews".to_owned()));
        let durability = self.inner.options.durability;
        open_to_preview(&self.inner, &dir, OpenAs { types: None, durability, lock, read_only })
    }

    /// Decides about an interrupted operation of a session that is not open for writing; see
    /// [`SessionCalls::settle`](crate::SessionCalls::settle). Needs no types. Returns the sequence
    /// number of the decision's record. The record is durable when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if the session is open for writing; otherwise the errors of
    /// [`SessionCalls::settle`](crate::SessionCalls::settle).
    pub fn settle(
        &self,
        session: Uuid,
        operation: impl Into<OperationId>,
        settlement: &Settlement,
        by: &str,
        reason: &str,
    ) -> Result<SequenceNumber> {
        let operation = operation.into();
        let session = self.open_to_recover(session)?;
        let settled = session.calls().settle(operation, settlement, by, reason);
        let closed = session.close();
        settled.and_then(|sequence| closed.map(|()| sequence))
    }

    fn find_session_dir(&self, session: Uuid) -> Result<PathBuf> {
        let dir = self.session_dir(session);
        match self.storage().look_up(&dir)? {
            Some(entry) if entry.kind == EntryKind::Directory => Ok(dir),
            Some(_) => Err(Error::not_a_session(&dir, "it is not a directory")),
            None => Err(Error::NoSuchSession { session, path: self.inner.root.clone() }),
        }
    }

    /// Returns the ids of all sessions, in ascending order, without reading their logs.
    pub fn session_ids(&self) -> Result<Vec<Uuid>> {
        let dir = layout::sessions_dir(&self.inner.root);
        let entries = self.storage().entries(&dir)?;
        let directories = entries.iter().filter(|entry| entry.kind == EntryKind::Directory);
        Ok(directories.filter_map(|entry| layout::session_of(Path::new(&entry.name))).collect())
    }

    /// Summarizes a session from its log, without types.
    ///
    /// # Errors
    ///
    /// The errors of [`open_untyped`](Store::open_untyped) that do not concern items, and
    /// [`Error::OverBudget`] if that exceeds 64 MiB plus three times the bytes of the log.
    pub fn summary(&self, session: Uuid) -> Result<SessionSummary> {
        self.summary_within(session, None)
    }

    /// Summarizes a session from its log, without types. `memory_bytes` limits the memory like
    /// [`ReadOptions::memory_bytes`].
    ///
    /// # Errors
    ///
    /// The errors of [`open_untyped`](Store::open_untyped) that do not concern items, and
    /// [`Error::OverBudget`] if that takes more memory.
    pub fn summary_within(&self, session: Uuid, memory_bytes: Option<u64>) -> Result<SessionSummary> {
        let dir = self.find_session_dir(session)?;
        let options = ReadOptions { outline: true, memory_bytes };
        let reader = LogReader::open_with(Arc::clone(self.storage()), dir, options)?;
        Ok(SessionSummary {
            session,
            records: reader.records_len(),
            log_bytes: reader.log_bytes(),
            created_at_us: reader.places.time_of(&reader.storage, reader.opened_sequence())?,
            tags: reader.tags().clone(),
            parent: reader.opening_record().parent,
        })
    }

    /// Opens the log of a session for reading, in the store's storage. Takes no lock.
    ///
    /// ```
    /// # use foldlog::{SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let store = Store::open(directory.path())?;
    /// let session = store.create(&SessionTypes::builder().build()?)?;
    /// assert_eq!(store.read_log(session.id())?.records_len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSession`] if the store has no such session; otherwise the errors of
    /// [`LogReader::open`].
    pub fn read_log(&self, session: Uuid) -> Result<LogReader> {
        self.read_log_in(&self.find_session_dir(session)?)
    }

    /// Returns the summaries of all sessions, in ascending order of their ids. If a log cannot be
    /// read, the error takes the place of the summary. A creation that a crash ended before its
    /// first record gives [`Error::NotASession`].
    pub fn sessions(&self) -> Result<Vec<(Uuid, Result<SessionSummary>)>> {
        Ok(self.session_ids()?.into_iter().map(|id| (id, self.summary(id))).collect())
    }

    /// Returns the sessions that were forked from `session` or created for it, in ascending order
    /// of their ids. Sessions with unreadable logs are left out.
    pub fn children(&self, session: Uuid) -> Result<Vec<Uuid>> {
        // One at a time, and not the session itself: summaries contain all tags.
        let others = self.session_ids()?.into_iter().filter(|id| *id != session);
        let parent = |id| self.summary(id).ok()?.parent.map(|parent| parent.session());
        Ok(others.filter(|id| parent(*id) == Some(session)).collect())
    }

    /// Returns a session and all its descendants, each after its own descendants. This is the order
    /// in which a tree of sessions can be folded up, exported or deleted.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSession`] if the store has no such session, [`Error::Io`] if the directory
    /// cannot be read.
    pub fn iter_sessions_bottom_up(
        &self,
        root: Uuid,
    ) -> Result<impl Iterator<Item = SessionSummary> + use<>> {
        self.find_session_dir(root)?;
        let mut by_parent: BTreeMap<Option<Uuid>, Vec<SessionSummary>> = BTreeMap::new();
        for summary in self.sessions()?.into_iter().filter_map(|(_, summary)| summary.ok()) {
            let parent = summary.parent.map(|parent| parent.session()).filter(|_| summary.session != root);
            let place = if summary.session == root { None } else { parent.or(Some(Uuid::nil())) };
            by_parent.entry(place).or_default().push(summary);
        }
        // Top down first, each parent before its children; reversed, that is bottom up. Removing a
        // parent's list from the map breaks any cycle that damaged logs might claim.
        let mut order = by_parent.remove(&None).unwrap_or_default();
        let mut next = 0;
        while let Some(parent) = order.get(next).map(|summary| summary.session) {
            order.extend(by_parent.remove(&Some(parent)).unwrap_or_default());
            next += 1;
        }
        order.reverse();
        Ok(order.into_iter())
    }

    /// Deletes a session with all its records. Its forks are complete without it and stay.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSession`] if the store has no such session, [`Error::Locked`] if it is open
    /// for writing, [`Error::Io`] if its files cannot be removed.
    pub fn delete(&self, session: Uuid) -> Result<()> {
        let dir = self.find_session_dir(session)?;
        let lock = lock_to_write(&self.inner, session)?;
        // Renamed first, so that a crash during the removal never leaves a partial session.
        let dying = layout::dying_session_dir(&self.inner.root, session);
        let sessions = layout::sessions_dir(&self.inner.root);
        let io = |op| move |error| Error::io(op, &dir, error);
        if self.storage().entry(&dying).is_ok_and(|entry| entry.is_some()) {
            self.storage().remove_dir_all(&dying).map_err(|error| Error::io("delete", &dying, error))?;
        }
        self.storage().rename(&self.session_dir(session), &dying).map_err(io("delete"))?;
        self.storage().sync_directory(&sessions)?;
        fence::forget(self.storage().as_ref(), &self.inner.root, session);
        drop(lock);
        self.unpool(&dying);
        // A concurrent collection may have removed it as a leftover of a killed process.
        collect::check_removal("delete", &dying, self.storage().remove_dir_all(&dying))
    }
}
