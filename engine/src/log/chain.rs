//! The chain of segments: the files of a directory that form the log, in their order.
//!
//! Each segment's header names the preceding segment and the end of that one. The chain is followed
//! from the highest ordinal back. A recovery may have left segments out; they stay in the directory
//! and do not belong to the chain.
//!
//! | found | meaning |
//! |---|---|
//! | an invalid header | the chain is cut below the segment; the segment and those above it are evidence for judging the cut ([`super::scan`]) |
//! | a named predecessor that is missing | the chain is cut as by an invalid header; if evidence proves damage, the error is [`Error::MissingSegment`] |
//! | a segment whose header and file name have different ordinals | [`Error::Corrupt`] |
//! | a header of a later format version | [`Error::FutureFormat`] |
//! | a compressed segment that this build cannot read | [`Error::CompressionUnavailable`], [`Error::FutureCompression`] |
//! | an entry with a segment's name that is not a regular file | [`Error::NotAFile`], with its kind; the engine does not open it, and never follows links |
//! | a file that is removed before it is opened | the file counts as never listed: a writer removes files that it preallocated and did not need |

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{Compacted, Seal};
use foldlog_codec::frame::{self, Context, HEADER_LEN as FRAME_HEADER_LEN};
use foldlog_codec::segment::{HEADER_LEN, Previous, SegmentHeader};
use foldlog_codec::{Error as CodecError, RecordKind, SequenceNumber};
use uuid::Uuid;

use super::open_files::HeldFile;
use super::window::Window;
use super::{compressed, layout};
use crate::error::{Corruption, Error, Result};
use crate::storage::{EntryKind, Storage, StorageFile};

/// Number of bytes that are read for a seal. The seal's frame is shorter: a log of many segments is
/// opened by reading their seals.
const SEAL_BYTES_MAX: usize = 256;

pub(super) const NO_SEGMENTS: &str = "it contains no segments";

/// Says what is wrong at a place of a segment: the expected and the found checksum, if they are the
/// reason, and a text.
#[derive(Clone, Debug)]
pub(crate) struct Flaw {
    pub(super) expected_crc: Option<u32>,
    pub(super) found_crc: Option<u32>,
    pub(super) reason: String,
}

impl<T: Into<String>> From<T> for Flaw {
    fn from(reason: T) -> Flaw {
        Flaw { expected_crc: None, found_crc: None, reason: reason.into() }
    }
}

pub(crate) fn corrupt(
    session: Option<Uuid>,
    segment: &Path,
    offset: u64,
    sequence: SequenceNumber,
    flaw: impl Into<Flaw>,
) -> Error {
    let (Flaw { expected_crc, found_crc, reason }, segment) = (flaw.into(), segment.to_owned());
    Error::Corrupt(Box::new(Corruption {
        session,
        segment,
        offset,
        sequence,
        expected_crc,
        found_crc,
        reason,
    }))
}

/// A segment with a valid header.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    pub(crate) header: SegmentHeader,
    /// Offset at which the segment's part of the chain ends; `None` if no later segment states it.
    pub(crate) end: Option<u64>,
    /// Data of the segment's `compacted` frame, if it has one.
    pub(crate) compacted: Option<Compacted>,
    /// Checksum that the next segment names as its predecessor's, if it differs from that of the
    /// last frame: the segment that this compacted one replaces ended with it.
    pub(crate) replaced_crc: Option<u32>,
    /// The segment's file, held open by a reader that continues to use this version if another file
    /// takes its name.
    pub(crate) held: Option<HeldFile>,
}

impl Segment {
    /// Returns the identity of the segment's file among all files that ever had its name.
    pub(crate) fn ordinal_and_salt(&self) -> (u32, u64) {
        (self.header.ordinal, self.header.salt)
    }

    /// Returns the context for checking the segment's frames. A walk over the segment creates it
    /// once, not for each frame.
    pub(crate) fn context(&self) -> Context {
        Context::new(self.header.salt, self.header.first_sequence)
    }

    /// Returns the checksum that the segment's first frame names as its predecessor's.
    pub(crate) fn first_predecessor_crc(&self) -> u32 {
        self.header.previous.map_or(0, |previous| previous.crc)
    }

    /// Returns the segment in a file. Its end is unknown, since no later segment states it.
    pub(crate) fn new(path: PathBuf, header: SegmentHeader, compacted: Option<Compacted>) -> Segment {
        Segment { path, header, end: None, compacted, replaced_crc: None, held: None }
    }

    /// Sets the end of the segment's part of the chain to that in the next segment's header. If the
    /// header names the end of a segment that this one replaces, this one ends where its
    /// `compacted` frame says. A fork may end within the compacted segment.
    pub(crate) fn end_at(&mut self, previous: Previous) {
        let replaces = self.replaces(previous);
        self.end = Some(self.end_named_by(previous));
        self.replaced_crc = replaces.map(|compacted| compacted.replaced_crc);
    }

    /// Returns the end of the segment's part of the chain, if `previous` is in the next segment's
    /// header.
    pub(crate) fn end_named_by(&self, previous: Previous) -> u64 {
        self.replaces(previous).map_or(previous.end, |compacted| compacted.end)
    }

    /// Returns the data of the `compacted` frame, if `previous` names the end of the segment that
    /// this one replaces.
    fn replaces(&self, previous: Previous) -> Option<Compacted> {
        let (end, crc) = (previous.end, previous.crc);
        self.compacted.filter(|compacted| (end, crc) == (compacted.replaced_end, compacted.replaced_crc))
    }

    /// Returns the segment with the end that the next segment's header states.
    pub(crate) fn ended_at(mut self, previous: Option<Previous>) -> Segment {
        if let Some(previous) = previous {
            self.end_at(previous);
        }
        self
    }

    /// Returns the checksum that the next segment names as its predecessor's. `last_crc` is the
    /// checksum of this segment's last frame.
    pub(crate) fn exit_crc(&self, last_crc: u32) -> u32 {
        self.replaced_crc.unwrap_or(last_crc)
    }

    /// Returns the seal after the segment's end, if there is a valid one. The seal is outside the
    /// chain, so a walk along the chain does not reach it.
    pub(crate) fn seal(&self, storage: &dyn Storage) -> Result<Option<SealFrame>> {
        let Some(end) = self.end else { return Ok(None) };
        let io = |error| Error::io("read", &self.path, error);
        let mut bytes = [0; SEAL_BYTES_MAX];
        let read = self.open(storage)?.read_at(&mut bytes, end).map_err(io)?;
        let decoded = frame::decode(self.context(), bytes.get(..read).unwrap_or_default());
        let frame = decoded.ok().filter(|frame| frame.header.kind == RecordKind::Seal);
        Ok(frame.and_then(|frame| {
            let (predecessor_crc, len) = (frame.header.predecessor_crc, frame.len() as u64);
            Some(SealFrame { predecessor_crc, seal: Seal::decode(frame.body).ok()?, len })
        }))
    }

    /// Returns the length of the seal in bytes, 0 if there is none.
    pub(crate) fn seal_len(&self, storage: &dyn Storage) -> Result<u64> {
        Ok(self.seal(storage)?.map_or(0, |seal| seal.len))
    }

    /// Returns the number of bytes up to the segment's end, and of its seal.
    pub(crate) fn used_bytes(&self, storage: &dyn Storage) -> Result<u64> {
        Ok(self.end.unwrap_or(0) + self.seal_len(storage)?)
    }

    /// Fails with [`Error::CompactedMeanwhile`] if a compaction has replaced the segment's file
    /// since its header was read.
    pub(crate) fn check_not_replaced(&self, storage: &dyn Storage) -> Result<()> {
        let found = SegmentFile::read(storage, self.path.clone(), self.header.ordinal)?;
        match found.is_some_and(|found| self.is_replaced_by(&found)) {
            true => Err(Error::CompactedMeanwhile { path: self.path.clone() }),
            false => Ok(()),
        }
    }

    /// Returns whether a file contains the compacted segment that replaces this one.
    pub(crate) fn is_replaced_by(&self, found: &SegmentFile) -> bool {
        let is_another = |header: SegmentHeader| {
            header != self.header && SegmentHeader { salt: self.header.salt, ..header } == self.header
        };
        found.compacted.is_some() && found.header.is_some_and(is_another)
    }

    /// Opens the segment's file for reading by plain offsets.
    pub(crate) fn open(&self, storage: &dyn Storage) -> Result<Arc<dyn StorageFile>> {
        match &self.held {
            Some(held) => compressed::plain(&self.path, held.file()),
            None => compressed::open(storage, &self.path),
        }
    }

    /// Opens a window over the bytes below the segment's end.
    pub(crate) fn window(&self, storage: &dyn Storage) -> Result<Window<'_>> {
        Window::new(&self.path, self.open(storage)?, self.end)
    }

    /// Holds the segment's file open, so that [`open`](Segment::open) continues to read it after a
    /// compaction has replaced it. A file that cannot be opened is not held, nor is one for which
    /// there is [no room](super::open_files).
    ///
    /// # Errors
    ///
    /// [`Error::CompactedMeanwhile`] if it was already replaced.
    pub(crate) fn hold_open(&mut self, storage: &dyn Storage) -> Result<()> {
        self.held = HeldFile::hold(|| compressed::as_it_stands(storage, &self.path).ok());
        if self.held.is_some() { self.check_not_replaced(storage) } else { Ok(()) }
    }

    /// Returns the segment with another path, at which it is or will be stored.
    pub(crate) fn at(&self, path: PathBuf) -> Segment {
        Segment { path, held: None, ..self.clone() }
    }

    /// Creates the error for a frame of this segment that was valid and no longer is; `sequence` is
    /// the record that was searched.
    pub(crate) fn changed_error(
        &self,
        storage: &dyn Storage,
        offset: u64,
        sequence: SequenceNumber,
        error: &CodecError,
    ) -> Error {
        let reason = format!("a frame that was intact when the log was opened is damaged now: {error}");
        self.corrupt(offset, sequence, compressed::explained(storage, &self.path, offset, reason))
    }

    pub(crate) fn corrupt(&self, offset: u64, sequence: SequenceNumber, flaw: impl Into<Flaw>) -> Error {
        corrupt(Some(self.header.session), &self.path, offset, sequence, flaw)
    }
}

/// The seal of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SealFrame {
    /// Checksum of the frame that preceded the seal when it was written.
    pub(super) predecessor_crc: u32,
    pub(super) seal: Seal,
    /// Length of the frame in bytes.
    pub(crate) len: u64,
}

/// Describes a segment file by its header. After the chain's end, such a file is evidence of lost
/// data.
#[derive(Clone, Debug)]
pub(crate) struct SegmentFile {
    pub(crate) path: PathBuf,
    pub(crate) named: u32,
    /// Header of the segment; `None` if it is not valid.
    pub(crate) header: Option<SegmentHeader>,
    /// Possible salts of a broken header.
    pub(crate) salts: Vec<u64>,
    pub(crate) compacted: Option<Compacted>,
}

/// The chain and the files after it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain {
    pub(crate) segments: Vec<Segment>,
    pub(crate) beyond: Vec<SegmentFile>,
    /// Ordinal of the missing segment that separates the chain from the files beyond.
    pub(crate) missing: Option<u32>,
    /// Highest ordinal of any file, including half-built ones.
    pub(crate) ordinal_max: u32,
    pub(crate) half_built: Vec<PathBuf>,
}

/// Finds the chain of the session in `dir`.
pub(crate) fn discover(storage: &dyn Storage, dir: &Path) -> Result<Chain> {
    discover_above(storage, dir, None)
}

/// Finds the part of the chain above the ordinal `floor`, and reads no header below. The first
/// segment of that part may name any segment at or below `floor` as its predecessor. The part may
/// be empty.
pub(super) fn discover_above(storage: &dyn Storage, dir: &Path, floor: Option<u32>) -> Result<Chain> {
    let mut found = BTreeMap::new();
    let mut half_built = Vec::new();
    let mut ordinal_max = floor;
    let entries = storage.list(dir).map_err(|error| not_a_session_or_io(dir, error))?;
    for entry in entries {
        let path = dir.join(&entry.name);
        if let Some(ordinal) = layout::building_ordinal(&entry.name) {
            ordinal_max = ordinal_max.max(Some(ordinal));
            half_built.push(path);
        } else if let Some(ordinal) = layout::segment_ordinal(&entry.name) {
            if entry.kind != EntryKind::File {
                return Err(Error::NotAFile { path, found: entry.kind });
            }
            ordinal_max = ordinal_max.max(Some(ordinal));
            if floor.is_none_or(|floor| ordinal > floor)
                && let Some(file) = read_header(storage, path, ordinal)?
            {
                found.insert(ordinal, file);
            }
        }
    }
    let ordinal_max = ordinal_max.ok_or_else(|| Error::not_a_session(dir, NO_SEGMENTS))?;
    Ok(Chain { ordinal_max, half_built, ..follow(found, floor)? })
}

/// Returns the highest ordinal of a segment file in `dir`. Returns `None` if there is none, or the
/// directory cannot be read.
pub(crate) fn last_ordinal(storage: &dyn Storage, dir: &Path) -> Option<u32> {
    storage.list(dir).ok()?.iter().filter_map(|entry| layout::segment_ordinal(&entry.name)).max()
}

fn not_a_session_or_io(dir: &Path, error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::not_a_session(dir, "there is no such directory"),
        ErrorKind::NotADirectory => Error::not_a_session(dir, "it is not a directory"),
        _ => Error::io("list", dir, error),
    }
}

/// Reads the header of the segment at a path. Returns `None` if the file no longer exists.
pub(super) fn read_header(storage: &dyn Storage, path: PathBuf, named: u32) -> Result<Option<SegmentFile>> {
    let Some(file) = SegmentFile::read(storage, path, named)? else { return Ok(None) };
    match file.header {
        Some(header) if header.ordinal != named => {
            let found = header.ordinal;
            let reason = format!("its header says segment {found}, but its file name says segment {named}");
            Err(corrupt(Some(header.session), &file.path, 0, header.first_sequence, reason))
        }
        _ => Ok(Some(file)),
    }
}

impl SegmentFile {
    /// Returns the contexts with which the file's frames may pass. Without a valid header the
    /// segment's first record is taken to be `first`.
    pub(super) fn contexts(&self, first: SequenceNumber) -> Vec<Context> {
        match self.header {
            Some(header) => vec![Context::new(header.salt, header.first_sequence)],
            None => self.salts.iter().map(|salt| Context::new(*salt, first)).collect(),
        }
    }

    fn read(storage: &dyn Storage, path: PathBuf, named: u32) -> Result<Option<SegmentFile>> {
        let file = match compressed::open(storage, &path) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = vec![0; HEADER_LEN + FRAME_HEADER_LEN + Compacted::LEN];
        let read = file.read_at(&mut bytes, 0).map_err(|error| Error::io("read", &path, error))?;
        bytes.truncate(read);
        let (header, salts) = match SegmentHeader::decode(&bytes) {
            Ok(header) => (Some(header), vec![header.salt]),
            Err(CodecError::Version { found, supported }) => {
                return Err(Error::FutureFormat { path, found, supported });
            }
            Err(_) => (None, SegmentHeader::salvage_salts(&bytes)),
        };
        let compacted = header.and_then(|header| {
            let context = Context::new(header.salt, header.first_sequence);
            let frame = frame::decode(context, bytes.get(HEADER_LEN..)?).ok()?;
            (frame.header.kind == RecordKind::Compacted).then(|| Compacted::decode(frame.body).ok()).flatten()
        });
        Ok(Some(SegmentFile { path, named, header, salts, compacted }))
    }
}

/// The segment files of a directory in any state, for a salvage.
#[derive(Clone, Debug, Default)]
pub(super) struct SegmentFiles {
    /// Files with a valid header, by the ordinals in their headers: a file may have another
    /// segment's name.
    pub(super) sound: BTreeMap<u32, SegmentFile>,
    /// Files without a valid header, and files with an ordinal that another file also has.
    pub(super) others: Vec<SegmentFile>,
    /// Entries with a segment's name that are not regular files. The engine never opens them.
    pub(super) irregular: Vec<PathBuf>,
}

/// Finds the segment files in `dir`. If no entry with a segment's name is a regular file, the error
/// names one of them.
pub(super) fn segment_files(storage: &dyn Storage, dir: &Path) -> Result<SegmentFiles> {
    let mut files = SegmentFiles::default();
    let mut irregular = None;
    for entry in storage.list(dir).map_err(|error| not_a_session_or_io(dir, error))? {
        let Some(named) = layout::segment_ordinal(&entry.name) else { continue };
        let path = dir.join(&entry.name);
        if entry.kind != EntryKind::File {
            irregular.get_or_insert_with(|| Error::NotAFile { path: path.clone(), found: entry.kind });
            files.irregular.push(path);
            continue;
        }
        let Some(mut file) = SegmentFile::read(storage, path, named)? else { continue };
        // A header that names its own segment or a later one as the predecessor would form a cycle.
        // After the maximum ordinal there is no room for another segment.
        file.header = file.header.filter(|header| {
            header.ordinal < u32::MAX
                && header.previous.is_none_or(|previous| previous.ordinal < header.ordinal)
        });
        match file.header {
            // Of two files with the same ordinal, the one with the matching name takes precedence.
            Some(SegmentHeader { ordinal, .. })
                if ordinal == named || !files.sound.contains_key(&ordinal) =>
            {
                files.others.extend(files.sound.insert(ordinal, file));
            }
            _ => files.others.push(file),
        }
    }
    if files.sound.is_empty() && files.others.is_empty() {
        return Err(irregular.unwrap_or_else(|| Error::not_a_session(dir, NO_SEGMENTS)));
    }
    Ok(files)
}

/// Returns the chain of the files with a valid header, as far as it can be followed without the
/// others.
pub(super) fn follow_sound(files: &SegmentFiles) -> Result<Chain> {
    Ok(Chain { segments: follow(files.sound.clone(), None)?.segments, ..Chain::default() })
}

/// Follows the headers from the highest ordinal back, down to `floor`. If a header is broken or
/// missing, starts again below it.
fn follow(found: BTreeMap<u32, SegmentFile>, floor: Option<u32>) -> Result<Chain> {
    let mut start = found.keys().next_back().copied();
    let mut missing = None;
    'starts: while let Some(top) = start {
        let mut segments = Vec::new();
        let mut at = Some((top, None));
        while let Some((ordinal, previous)) = at {
            let file = found.get(&ordinal);
            let Some((file, header)) = file.and_then(|file| file.header.map(|header| (file, header))) else {
                missing = file.is_none().then_some(ordinal);
                start = found.range(..ordinal).next_back().map(|(below, _)| *below);
                continue 'starts;
            };
            let segment = Segment::new(file.path.clone(), header, file.compacted);
            segments.push(segment.ended_at(previous));
            at = match header.previous {
                // An ordinal that does not decrease would form a cycle.
                Some(previous) if previous.ordinal >= ordinal => {
                    let reason = format!("it names segment {} as its predecessor", previous.ordinal);
                    let session = Some(header.session);
                    return Err(corrupt(session, &file.path, 0, header.first_sequence, reason));
                }
                Some(previous) if floor.is_some_and(|floor| previous.ordinal <= floor) => None,
                Some(previous) => Some((previous.ordinal, Some(previous))),
                None => None,
            };
        }
        segments.reverse();
        let beyond = found.into_iter().filter(|(ordinal, _)| *ordinal > top).map(|(_, file)| file).collect();
        return Ok(Chain { segments, beyond, missing, ..Chain::default() });
    }
    Ok(Chain { beyond: found.into_values().collect(), missing, ..Chain::default() })
}
