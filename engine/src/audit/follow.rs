//! Records as they come.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use foldlog_codec::body::Declare;
use foldlog_codec::digest::SegmentDigest;
use foldlog_codec::record::Names;
use foldlog_codec::{Kind, Record, SequenceNumber};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::log::TornTail;
use crate::log::follow::Cursor;
use crate::log::scan::FrameAt;
use crate::storage::{FileStorage, Storage};

/// Of how many records a digest is kept, so that what a recovery rewrites is told from what it changes. Only
/// records that nobody has attested count, and the engine syncs long before there are so many.
const DIGESTS_MAX: usize = 1 << 17;

/// Follows a log that another process may be writing: [`poll`](Follower::poll) hands over the records that have
/// come since, and never waits.
///
/// It disturbs nobody: it opens files for reading only and takes no lock. A frame that does not check at the
/// end of what is written is not yet there; it is damage once something behind it attests it, by the rules by
/// which opening judges. What stands before the place at which the follower begins is not checked.
///
/// A poll reads what is new and, where that is nothing, the names in the folder. Memory does not grow with the
/// log: a window of 64 KiB or the largest record, the names that the log declared, 16 bytes for each of the
/// latest records that no sync has covered, at most 2 MiB, and a header for each segment that still is ahead.
#[derive(Clone, Debug)]
pub struct Follower {
    cursor: Cursor,
    handed: Handed,
}

/// What a [`Follower`] meets.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Followed<'a> {
    /// A record has come.
    Record {
        /// The record.
        record: Record<'a>,
        /// What the names in it stand for.
        names: &'a Names,
    },
    /// The log was recovered, and records that were handed over are no longer what they were, or no longer
    /// there. Those that took their place follow.
    Replaced {
        /// The first of them.
        from: SequenceNumber,
        /// The last.
        through: SequenceNumber,
    },
}

/// What a poll came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// How many records were handed over.
    pub records: u64,
    /// Bytes behind the end of what was read that do not check and are not known to be damage: a frame that is
    /// just being written, or a torn tail.
    pub torn: Option<TornTail>,
}

/// What was handed over.
#[derive(Clone, Debug)]
struct Handed {
    from: SequenceNumber,
    /// The next record that was never handed over, or was and has been replaced.
    next: SequenceNumber,
    names: Names,
    /// Digests of the records before `next`.
    digests: VecDeque<[u8; 16]>,
}

impl Follower {
    /// Follows the log in the folder `dir` from record `from` on, which need not be there yet.
    ///
    /// # Errors
    ///
    /// [`Error::NotASession`], [`Error::NotAFile`], [`Error::Corrupt`], [`Error::OlderThanSuccessor`],
    /// [`Error::MissingSegment`], [`Error::WrongSession`],
    /// [`Error::FutureFormat`], [`Error::Io`].
    pub fn open(dir: impl AsRef<Path>, from: impl Into<SequenceNumber>) -> Result<Follower> {
        let from = from.into();
        Follower::open_on(Arc::new(FileStorage::new()), dir, from)
    }

    /// As [`open`](Follower::open), on a storage of the caller's own.
    ///
    /// # Errors
    ///
    /// As [`open`](Follower::open).
    pub fn open_on(
        storage: Arc<dyn Storage>,
        dir: impl AsRef<Path>,
        from: impl Into<SequenceNumber>,
    ) -> Result<Follower> {
        let from = from.into();
        let cursor = Cursor::open(&storage, dir.as_ref(), from)?;
        let handed = Handed { from, next: from, names: Names::default(), digests: VecDeque::new() };
        Ok(Follower { cursor, handed })
    }

    /// As [`open`](Follower::open), from the `count`-th record before the present end on.
    ///
    /// # Errors
    ///
    /// As [`open`](Follower::open), and as [`poll`](Follower::poll).
    pub fn open_last(dir: impl AsRef<Path>, count: u64) -> Result<Follower> {
        let mut scout = Follower::open(&dir, SequenceNumber::MAX)?;
        scout.poll(|_| Ok(()))?;
        Follower::open(dir, scout.cursor.next_sequence().saturating_sub(count))
    }

    /// The session.
    pub fn session(&self) -> Uuid {
        self.cursor.session()
    }

    /// How many records the log was seen to have, those before the first that was asked for included. A poll
    /// brings it up to date.
    pub fn records_len(&self) -> u64 {
        self.cursor.next_sequence().get()
    }

    /// Hands what has come to `visit`, in order. Where `visit` fails, the next poll hands over the same again.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`], [`Error::MissingSegment`], [`Error::WrongSession`], [`Error::Inconsistent`] where
    /// the log is damaged, after all records before the damage; [`Error::NotASession`] where the session was
    /// deleted meanwhile; [`Error::Io`]; what `visit` says.
    pub fn poll(&mut self, mut visit: impl FnMut(Followed<'_>) -> Result<()>) -> Result<Progress> {
        let mut records = 0;
        let handed = &mut self.handed;
        let torn = self.cursor.step(&mut |at| {
            records += u64::from(handed.take(at, &mut visit)?);
            Ok(())
        })?;
        // A recovery whose log is shorter has replaced the rest by nothing, for now.
        let end = self.cursor.next_sequence().max(handed.from);
        if end < handed.next {
            visit(Followed::Replaced { from: end, through: handed.next - 1 })?;
            handed.go_back(end);
        }
        Ok(Progress { records, torn })
    }
}

impl Handed {
    /// Takes a frame; whether its record was handed over.
    fn take(&mut self, at: &FrameAt<'_>, visit: &mut dyn FnMut(Followed<'_>) -> Result<()>) -> Result<bool> {
        let header = at.frame.header;
        let (sequence, kind, time_us) = (header.sequence, header.kind, header.time_us);
        let record = Record { sequence, kind, time_us, body: at.frame.body };
        self.learn(&record)?;
        self.forget_below(header.watermark.min(sequence));
        if kind.is_envelope() || sequence < self.from {
            return Ok(false);
        }
        let digest = digest(&record);
        if sequence < self.next {
            // Without a digest it was durable when it was handed over, and no recovery rewrites that.
            if self.digest_of(sequence).is_none_or(|known| *known == digest) {
                return Ok(false);
            }
            visit(Followed::Replaced { from: sequence, through: self.next - 1 })?;
            self.go_back(sequence);
        }
        visit(Followed::Record { record, names: &self.names })?;
        self.next = sequence + 1;
        self.digests.push_back(digest);
        if self.digests.len() > DIGESTS_MAX {
            self.digests.pop_front();
        }
        Ok(true)
    }

    /// Learns the names that a record declares, or that a segment's head repeats.
    fn learn(&mut self, record: &Record<'_>) -> Result<()> {
        if !matches!(record.kind, Kind::DECLARE | Kind::DECLARED) {
            return Ok(());
        }
        match Declare::decode(record.body) {
            Ok(declare) => self.names.learn(&declare),
            // What a segment's head repeats is no content, and no fold reads it.
            Err(_) if record.kind == Kind::DECLARED => {}
            Err(error) => return Err(Error::unread(record.sequence)(error)),
        }
        Ok(())
    }

    fn digest_of(&self, sequence: SequenceNumber) -> Option<&[u8; 16]> {
        let back = usize::try_from(self.next.checked_since(sequence)?).ok()?;
        self.digests.get(self.digests.len().checked_sub(back)?)
    }

    /// No recovery rewrites what is durable.
    fn forget_below(&mut self, watermark: SequenceNumber) {
        let first = self.next.saturating_sub(self.digests.len() as u64);
        let durable = usize::try_from(watermark.since(first)).unwrap_or(usize::MAX);
        self.digests.drain(..durable.min(self.digests.len()));
    }

    fn go_back(&mut self, sequence: SequenceNumber) {
        let gone = usize::try_from(self.next.since(sequence)).unwrap_or(usize::MAX);
        self.digests.truncate(self.digests.len().saturating_sub(gone));
        self.next = sequence;
    }
}

fn digest(record: &Record<'_>) -> [u8; 16] {
    let mut digest = SegmentDigest::new();
    digest.update(record.sequence, record.kind, record.time_us, record.body);
    let mut short = [0; 16];
    short.iter_mut().zip(digest.finish()).for_each(|(slot, byte)| *slot = byte);
    short
}
