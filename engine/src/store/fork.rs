//! Forks: sessions that share the records of another one up to a position.
//!
//! A fork is built in a directory with a temporary name. The parent's segments and objects are
//! linked into it, or copied if the file system cannot link them. Then the fork's own first segment
//! is written, everything is synced, and the directory is renamed. A crash in between leaves
//! nothing that looks like a session.
//!
//! # Invariants
//!
//! 1. Only files whose bytes are known to be durable are linked. If the parent has a writer in this
//!    store, the writer syncs first. Otherwise the segments and objects after the parent's
//!    watermark are copied: a sync that failed in an earlier process may have left them looking
//!    safe, and another sync would not make them so.
//! 2. The fork's first own segment names the offset at which the last linked segment ends for the
//!    fork. So the fork never reads records that the parent appends to that file later.
//! 3. A fork writes only into its own segments.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::{ObjectId, Parent, SessionOpening};
use foldlog_codec::{RecordKind, SequenceNumber};
use uuid::Uuid;

use super::backup::is_unfinished;
use super::{SessionOptions, Store};
use crate::error::{Error, Result};
use crate::fold::live::{FoldSources, LiveState};
use crate::fold::live_path::LivePath;
use crate::fold::projection::DecodedValues;
use crate::fold::record_kinds::{RecordBody, RecordRules};
use crate::log::copy::{copy_bytes, copy_plain};
use crate::log::reader::RecordLocator;
use crate::log::scan::{self, LogScan};
use crate::log::writer::{AppendBody, AppendContext, LogIdentity, LogWriter};
use crate::log::{image_files, layout};
use crate::session::{Images, LoadedSession, OpenAs, Session, SharedPrefix, lock_to_write, open_as_read};
use crate::storage::EntryKind;
use crate::types::SessionTypes;

/// Name of the file in a store of captures with cached facts about the workspace.
const STAT_CACHE: &str = "stat-cache";

impl Store {
    /// Creates a session that shares the records of `parent` through `position` and then continues
    /// independently. Later writes to either never reach the other. The shared records are durable
    /// when this returns. So are the captures that they name, if these are in the parent's
    /// [directory of captures](crate::SessionLog::captures_dir): the fork gets its own links or
    /// copies of them.
    ///
    /// A workspace is not shared. A fork works in its own directory, which this does not fill.
    /// [`ExecutionState::fill`](crate::ExecutionState::fill) fills it with the files that the last
    /// shared call left. A call that runs before that starts with the directory's current contents,
    /// and leaves a notice that the directory differs.
    ///
    /// The cost does not depend on the number of shared records, if the parent is open for writing
    /// in this store with the same `types` and `position` is its last record or one of its latest
    /// 256 snapshots. Otherwise the parent is read as at opening.
    ///
    /// `options.parent` and `options.operation` are ignored.
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
    /// # let session = store.create(&types)?;
    /// use foldlog::SessionOptions;
    ///
    /// let hello = session.dispatch(Said("hello".to_owned()))?;
    /// session.dispatch(Said("bye".to_owned()))?;
    /// let fork = store.fork(session.id(), hello, &types, SessionOptions::default())?;
    /// assert_eq!(fork.view::<Chat>()?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the parent has no record at `position`,
    /// [`Error::InsideTransaction`] if an operation was open there; otherwise the errors of
    /// [`open_session`](Store::open_session) for the parent and of
    /// [`create_with`](Store::create_with) for the fork.
    pub fn fork(
        &self,
        parent: Uuid,
        position: impl Into<SequenceNumber>,
        types: &SessionTypes,
        options: SessionOptions,
    ) -> Result<Session> {
        let position = position.into();
        // A compaction by another process may replace a segment between reading it and linking it.
        scan::retry_if_replaced(|| self.fork_once(parent, position, types, options.clone()))
    }

    fn fork_once(
        &self,
        parent: Uuid,
        position: SequenceNumber,
        types: &SessionTypes,
        options: SessionOptions,
    ) -> Result<Session> {
        let parent_dir = self.find_session_dir(parent)?;
        let writer = self.inner.writers.get(parent);
        let shared_prefix =
            SharedPrefix::new(self.read_ground(), &parent_dir, writer.as_ref(), position, types)?;
        drop(writer);
        if let Some(open) = shared_prefix.projection.operations.open().next() {
            return Err(Error::InsideTransaction { position, operation: open.operation });
        }
        let (id, seed) = self.identity(&options)?;
        let lock = lock_to_write(&self.inner, id)?;
        let chain = Parent::Fork { session: parent, position, chain: shared_prefix.located.crc };
        let opened = SessionOpening { session: id, seed, tags: options.tags, parent: Some(chain) };
        let dir = self.session_dir(id);
        let mut log = self.build_session(id, |building| {
            let places = self.link(&shared_prefix.places, shared_prefix.watermark, &parent_dir, building)?;
            let log = self.write_first(building, &opened, places, &shared_prefix)?;
            let renamed = self.storage().rename(building, &dir);
            renamed.map(|()| log).map_err(|error| Error::unmade("rename", &dir, 0, error))
        })?;
        self.sync_names_above()?;
        // While the new name is not durable, opening the fork has to sync the name. So the fork
        // attests itself only now. The handle still refers to the file under its new name. The
        // attesting frame is synced as well.
        log.attest(log.next_sequence())?;
        log.sync_plan().run(self.storage().as_ref(), &|| ())?;
        let read = self.as_read(&log, &dir, opened, shared_prefix)?;
        drop(log);
        let durability = options.durability.unwrap_or(self.inner.options.durability);
        let open_as = OpenAs { types: Some(types.clone()), durability, lock: Some(lock), read_only: None };
        open_as_read(&self.inner, &dir, open_as, read)
    }

    /// Writes the fork's own first record, and syncs it.
    fn write_first(
        &self,
        dir: &Path,
        opened: &SessionOpening,
        places: RecordLocator,
        shared_prefix: &SharedPrefix,
    ) -> Result<LogWriter> {
        let shared = places.next_sequence;
        let mut log = LogWriter::fork(
            &self.inner.log_environment(),
            dir,
            LogIdentity::from_opening(opened),
            places,
            shared_prefix.located,
            shared_prefix.epoch,
        );
        let names = &shared_prefix.projection.names;
        let context = AppendContext { synced: shared, declared: &|| names.all() };
        log.append(
            RecordKind::Opened,
            self.inner.options.clock.now_us(),
            AppendBody::Alone(&opened.encode()),
            &context,
        )?;
        // Before the directory is renamed: segments made ahead would not be found under the new
        // name.
        log.finish()?;
        log.sync_plan().run(self.storage().as_ref(), &|| ())?;
        Ok(log)
    }

    /// Returns the same result as reading the new fork in `dir`. It was closed with its first
    /// record, and its shared records are known.
    fn as_read(
        &self,
        log: &LogWriter,
        dir: &Path,
        opened: SessionOpening,
        shared_prefix: SharedPrefix,
    ) -> Result<LoadedSession> {
        let SharedPrefix { mut openings, rollbacks, projection, .. } = shared_prefix;
        let opened_sequence = log.next_sequence() - 1;
        let path = LivePath::new(rollbacks.iter().map(|(at, rollback)| (*at, rollback.to)));
        let mut folded = LiveState { projection, rollbacks: rollbacks.clone(), path, ..LiveState::default() };
        let sources = FoldSources { objects: &log.objects, types: None };
        folded.apply(opened_sequence, RecordBody::Opened(opened.clone()), DecodedValues::Nothing, sources)?;
        openings.push((opened_sequence, opened.clone()));
        let mut segments = Vec::new();
        let mut used_bytes = 0;
        for segment in log.places.segments.iter() {
            let path = layout::segment_file(dir, segment.header.ordinal);
            let segment = segment.at(path);
            used_bytes += segment.used_bytes(self.storage().as_ref())?;
            segments.push(segment);
        }
        let last = log.last_frame().ok_or_else(|| Error::Inconsistent {
            sequence: opened_sequence,
            reason: "the fork's own segment contains no frame".to_owned(),
        })?;
        let scan = LogScan {
            compaction: log.places.compaction.clone(),
            segments: Arc::new(segments),
            ordinal_max: last.ordinal,
            session: opened.session,
            opened,
            opened_sequence,
            openings,
            next_sequence: log.next_sequence(),
            watermark: log.next_sequence(),
            durable: log.next_sequence(),
            last_crc: last.crc,
            last_offset: Some(last.offset),
            last_time_us: log.last_time_us(),
            end: last.end,
            epoch: log.epoch(),
            rollbacks,
            index: log.places.index.clone(),
            clean: true,
            closed: true,
            used_bytes: used_bytes + last.end,
            same_boot: true,
            boot_id: self.storage().boot_id(),
            ..LogScan::default()
        };
        Ok(LoadedSession { scan, folded, images: Images::default(), fetched: 0 })
    }

    /// Links the parent's segments and objects into the new directory and syncs it. Segments with
    /// records from `watermark` on are copied.
    fn link(
        &self,
        places: &RecordLocator,
        watermark: SequenceNumber,
        parent: &Path,
        dir: &Path,
    ) -> Result<RecordLocator> {
        let storage = self.storage();
        let mut linked = Vec::new();
        let (mut behind, mut captures_behind) = (BTreeSet::new(), false);
        places.read(storage, watermark, SequenceNumber::MAX, &mut |record| {
            behind.extend(record.objects().iter().map(ObjectId::file_name));
            captures_behind |=
                record.kind == RecordKind::Observed || RecordRules::of(record.kind).captures.is_some();
            Ok(())
        })?;
        // A segment with a successor may end with frames that are not records, such as the
        // `Resumed` of the process that started the next one. They are durable if a record after
        // them is. The last segment ends with a record.
        let followers =
            places.segments.iter().skip(1).map(|next| next.header.first_sequence.saturating_add(1));
        let attested_from = followers.chain([places.next_sequence]);
        for (segment, attested_from) in places.segments.iter().zip(attested_from) {
            let path = layout::segment_file(dir, segment.header.ordinal);
            let links = attested_from <= watermark;
            match segment.end.filter(|_| !links) {
                Some(len) => drop(copy_plain(storage.as_ref(), segment, &path, len)?),
                None => self.link_file(&segment.path, &path)?,
            }
            let segment = segment.at(path);
            segment.check_not_replaced(storage.as_ref())?;
            linked.push(segment);
        }
        let objects = layout::objects_dir(parent);
        if storage.look_up(&objects)?.is_some() {
            let to = layout::objects_dir(dir);
            storage.make_directory(&to)?;
            for entry in storage.entries(&objects)? {
                if entry.kind == EntryKind::File && !entry.name.ends_with(".new") {
                    let (from, to) = (objects.join(&entry.name), to.join(&entry.name));
                    match behind.contains(&entry.name) {
                        true => self.copy_file(&from, &to, entry.len)?,
                        false => self.link_object(&from, &to, places)?,
                    }
                }
            }
            storage.sync_directory(&to)?;
        }
        self.link_captures(parent, dir, captures_behind)?;
        self.link_images(places.next_sequence, parent, dir);
        storage.sync_directory(dir)?;
        let compaction = places.compaction.as_ref().and_then(|all| all.part_below(places.next_sequence));
        Ok(RecordLocator { segments: Arc::new(linked), compaction, ..places.clone() })
    }

    /// Links the images of the shared records, so that opening the fork need not fold all of them.
    /// Skips images that cannot be linked.
    fn link_images(&self, next_sequence: SequenceNumber, parent: &Path, dir: &Path) {
        let storage = self.storage();
        let images = image_files::list(storage.as_ref(), parent);
        let shared: Vec<SequenceNumber> =
            images.into_iter().map(|(next, _)| next).filter(|next| *next <= next_sequence).collect();
        if shared.is_empty() || storage.create_dir_all(&layout::snapshots_dir(dir)).is_err() {
            return;
        }
        for next in shared {
            let _ = storage.hard_link(&layout::image_file(parent, next), &layout::image_file(dir, next));
        }
    }

    /// Links an object. If a collection has removed it since the directory was listed, a compaction
    /// had dropped the records that named it. If that compaction also ran in the meantime, the fork
    /// starts again.
    fn link_object(&self, from: &Path, to: &Path, places: &RecordLocator) -> Result<()> {
        match self.link_file(from, to) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                let storage = self.storage().as_ref();
                places.segments.iter().try_for_each(|segment| segment.check_not_replaced(storage))
            }
            linked => linked,
        }
    }

    /// Links the captures in the parent's directory, whose files never change once they have their
    /// names, and copies the files that describe their store. The cache about the parent's
    /// workspace is left out. With `copies`, copies everything: records name captures that are not
    /// known to be durable.
    fn link_captures(&self, parent: &Path, dir: &Path, copies: bool) -> Result<()> {
        let storage = self.storage();
        let (store, own) = (layout::captures_dir(parent), layout::captures_dir(dir));
        let entry = storage.look_up(&store)?;
        if entry.is_none_or(|entry| entry.kind != EntryKind::Directory) {
            return Ok(());
        }
        let mut directories = vec![(store, own, false)];
        while let Some((from, to, is_objects)) = directories.pop() {
            storage.make_directory(&to)?;
            for entry in storage.entries(&from)? {
                let (from, to) = (from.join(&entry.name), to.join(&entry.name));
                match entry.kind {
                    EntryKind::Directory => {
                        directories.push((from, to, is_objects || entry.name == "objects"));
                    }
                    EntryKind::File if is_unfinished(&entry.name) || entry.name == STAT_CACHE => {}
                    EntryKind::File if is_objects && !copies => self.link_file(&from, &to)?,
                    EntryKind::File => self.copy_file(&from, &to, entry.len)?,
                    _ => {}
                }
            }
            storage.sync_directory(&to)?;
        }
        Ok(())
    }

    /// Links a file whose bytes are known to be durable.
    fn link_file(&self, from: &Path, to: &Path) -> Result<()> {
        let storage = self.storage();
        match storage.hard_link(from, to) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                let entry = storage.look_up(from)?;
                self.copy_file(from, to, entry.map_or(0, |entry| entry.len))
            }
            Err(error) => Err(Error::unmade("link", to, 0, error)),
        }
    }

    fn copy_file(&self, from: &Path, to: &Path, len: u64) -> Result<()> {
        copy_bytes(self.storage().as_ref(), from, to, len, &mut |_| {}).map(drop)
    }
}
