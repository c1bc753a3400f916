//! Replacing a segment by a compacted one.
//!
//! # State after a kill or a power cut
//!
//! | step | state |
//! |---|---|
//! | the segment is written under a temporary name, synced, read again and checked | the log is unchanged; there is a file `*.seg.new`, which a scan ignores and the next compaction or recovery removes |
//! | it takes the name of the segment that it replaces, and the directory is synced | the old segment or the new one; either is followed by the next one |

use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::{BaseSlice, Compacted, Dropped, Resumed, Seal};
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::frame::{self, Context, Frame, HEADER_LEN as FRAME_HEADER_LEN, Header};
use foldlog_codec::segment::{HEADER_LEN, SegmentHeader};
use foldlog_codec::{RecordKind, SequenceNumber};

use super::chain::Segment;
use super::copy::{Spot, check};
use super::dropped_ranges::split_bases;
use super::layout;
use crate::error::{Error, Result};
use crate::generator::Generator;
use crate::storage::{Storage, StorageFile};

/// Number of bytes that are buffered before they are written.
const GATHERED_BYTES: usize = 256 << 10;

pub(crate) struct SegmentRewrite<'a> {
    pub(crate) storage: &'a dyn Storage,
    pub(crate) dir: &'a Path,
    /// Segment to be replaced; its successor is known.
    pub(crate) segment: &'a Segment,
    pub(crate) next: &'a SegmentHeader,
    /// Position through which bodies may be missing.
    pub(crate) through: SequenceNumber,
    /// Contents of the slices at positions in the segment.
    pub(crate) bases: &'a [(SequenceNumber, Vec<BaseSlice>)],
    /// Returns whether the body of a record is dropped.
    pub(crate) drops: &'a dyn Fn(SequenceNumber) -> bool,
}

struct FrameWriter<'a> {
    file: Arc<dyn StorageFile>,
    path: &'a Path,
    context: Context,
    last_crc: u32,
    offset: u64,
    gathered: Vec<u8>,
}

impl FrameWriter<'_> {
    fn frame(&mut self, header: Header, body: &[u8]) -> Result<()> {
        let header = Header { predecessor_crc: self.last_crc, ..header };
        let unwritten = |error: foldlog_codec::Error| Error::Inconsistent {
            sequence: header.sequence,
            reason: format!("its frame cannot be written again: {error}"),
        };
        self.last_crc = frame::encode(self.context, &header, body, &mut self.gathered).map_err(unwritten)?;
        if self.gathered.len() >= GATHERED_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let len = self.gathered.len() as u64;
        let unmade = |error| Error::unmade("write", self.path, len, error);
        self.file.write_at(&self.gathered, self.offset).map_err(unmade)?;
        self.offset += len;
        self.gathered.clear();
        Ok(())
    }
}

impl SegmentRewrite<'_> {
    /// Rewrites the segment and gives it the name of the old one. Afterwards both the bytes and the
    /// name are durable.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] if the old segment is damaged, [`Error::Full`] if the disk has no room,
    /// [`Error::Io`]. After an error the old segment is unchanged.
    pub(crate) fn run(&self) -> Result<()> {
        let ordinal = self.segment.header.ordinal;
        replace(self.storage, self.dir, ordinal, |building| self.write(building).map(Some)).map(drop)
    }

    fn write(&self, building: &Path) -> Result<()> {
        let old = self.segment;
        let head = head(self.bases);
        let mut end = HEADER_LEN as u64 + len_of(&head);
        let mut last = self.walk(&mut |_, body| {
            end += (FRAME_HEADER_LEN + body.len()) as u64;
            Ok(())
        })?;
        last.kind = RecordKind::Seal;
        let (replaced_end, replaced_crc) =
            match (old.compacted.filter(|_| old.replaced_crc.is_some()), self.next.previous) {
                (Some(before), _) => (before.replaced_end, before.replaced_crc),
                (None, Some(previous)) => (previous.end, previous.crc),
                (None, None) => (0, 0),
            };
        let compacted = Compacted { through: self.through, end, replaced_end, replaced_crc };
        let salt = Generator::salt(old.header.salt ^ self.through.get(), old.header.ordinal);
        let header = SegmentHeader { salt, ..old.header };
        let seal_len =
            FRAME_HEADER_LEN + Seal { next: u32::MAX, records: u64::MAX, hash: [0; 32] }.encode().len();
        let unmade = |op, error| Error::unmade(op, building, end + seal_len as u64, error);
        let file = self.storage.create(building, end).map_err(|error| unmade("create", error))?;
        let context = Context::new(salt, header.first_sequence);
        let mut writing = FrameWriter {
            file,
            path: building,
            context,
            last_crc: old.first_predecessor_crc(),
            offset: 0,
            gathered: header.encode().to_vec(),
        };
        let first = Header { sequence: header.first_sequence, watermark: header.first_sequence, ..last };
        writing.frame(Header { kind: RecordKind::Compacted, ..first }, &compacted.encode())?;
        for (kind, body) in &head {
            writing.frame(Header { kind: *kind, ..first }, body)?;
        }
        let mut digest = SegmentDigest::new();
        self.walk(&mut |header, body| {
            digest.update(&Frame { header, body }.record());
            writing.frame(header, body)
        })?;
        let seal = Seal { next: self.next.ordinal, records: digest.records(), hash: digest.finish() };
        let last = Header { sequence: self.next.first_sequence, watermark: self.next.first_sequence, ..last };
        writing.frame(last, &seal.encode())?;
        writing.write()?;
        writing.file.sync_data().map_err(|error| unmade("sync", error))?;
        let new = Segment {
            end: Some(end),
            replaced_crc: Some(replaced_crc),
            ..Segment::new(building.to_owned(), header, Some(compacted))
        };
        self.check(&new, &seal)
    }

    /// Reads the new segment again, and checks that it contains the records of the old one.
    fn check(&self, new: &Segment, seal: &Seal) -> Result<()> {
        let read = |segment: &Segment| -> Result<(Spot, [u8; 32])> {
            let mut digest = SegmentDigest::new();
            let end = check(self.storage, segment, Spot::head_of(segment), &mut |frame| {
                digest.update(&frame.record());
                Ok(())
            })?;
            Ok((end, digest.finish()))
        };
        let ((new_end, found), (old_end, was)) = (read(new)?, read(self.segment)?);
        let same = found == was && found == seal.hash && new_end.next_sequence == old_end.next_sequence;
        match same && new_end.last_crc == old_end.last_crc {
            true => Ok(()),
            false => {
                let reason =
                    "the compacted segment does not contain the records of the segment that it replaces";
                Err(new.corrupt(new_end.offset, new_end.next_sequence, reason))
            }
        }
    }

    /// Passes the frames of the new segment after its head, with their new bodies, to `visit`.
    /// Returns the header of the last one.
    fn walk(&self, visit: &mut dyn FnMut(Header, &[u8]) -> Result<()>) -> Result<Header> {
        let mut last = None;
        let mut attests = None;
        check(self.storage, self.segment, Spot::head_of(self.segment), &mut |frame| {
            // Everything that is written here is durable before it has its name.
            let header = Header { watermark: frame.header.sequence, ..frame.header };
            last = Some(header);
            match header.kind {
                RecordKind::Compacted | RecordKind::Base | RecordKind::Seal => Ok(()),
                // A frame with which a recovery attests its own segment belongs to that segment.
                RecordKind::Synced if attests.take_if(|through| *through == header.sequence).is_none() => {
                    Ok(())
                }
                RecordKind::Resumed => {
                    attests = Resumed::decode(frame.body).ok().and_then(|resumed| resumed.recovered);
                    visit(header, frame.body)
                }
                kind if !kind.is_envelope() && (self.drops)(header.sequence) => {
                    let body = Dropped::from_body(kind, frame.body).encode();
                    visit(Header { kind: RecordKind::Dropped, ..header }, &body)
                }
                _ => visit(header, frame.body),
            }
        })?;
        last.ok_or_else(|| Error::Inconsistent {
            sequence: self.segment.header.first_sequence,
            reason: "its segment contains no frame".to_owned(),
        })
    }
}

/// Gives a new file the name of a segment, and makes the name durable. `write` creates a durable
/// file under a temporary name. If it fails or returns `None`, the old file stays.
pub(super) fn replace<T>(
    storage: &dyn Storage,
    dir: &Path,
    ordinal: u32,
    write: impl FnOnce(&Path) -> Result<Option<T>>,
) -> Result<Option<T>> {
    let (path, building) = (layout::segment_file(dir, ordinal), layout::building_segment_file(dir, ordinal));
    // A file with this temporary name was left by an interrupted attempt.
    let _ = storage.remove_file(&building);
    let written = write(&building).and_then(|written| {
        if written.is_some() {
            storage.rename_to(&building, &path)?;
        }
        Ok(written)
    });
    match written {
        Ok(Some(_)) => storage.sync_directory(dir)?,
        _ => drop(storage.remove_file(&building)),
    }
    written
}

/// Returns the base frames, which precede all others.
fn head(bases: &[(SequenceNumber, Vec<BaseSlice>)]) -> Vec<(RecordKind, Vec<u8>)> {
    let bases = bases.iter().map(|(position, slices)| (*position, slices.as_slice()));
    split_bases(bases).iter().map(|base| (RecordKind::Base, base.encode())).collect()
}

fn len_of(head: &[(RecordKind, Vec<u8>)]) -> u64 {
    let bases: usize = head.iter().map(|(_, body)| FRAME_HEADER_LEN + body.len()).sum();
    (FRAME_HEADER_LEN + Compacted::LEN + bases) as u64
}

/// Returns the length in bytes of a segment's compaction data with these bases.
pub(crate) fn head_bytes(bases: &[(SequenceNumber, Vec<BaseSlice>)]) -> u64 {
    len_of(&head(bases))
}
