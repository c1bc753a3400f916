//! Following a log while another process writes it.
//!
//! # The present end of the log
//!
//! An invalid frame may be one that is being written at the moment, in a file with preallocated
//! space. The log therefore ends, for now, at the first place without a valid frame, and each step
//! looks at that place again. These findings tell whether more will follow:
//!
//! | found | meaning |
//! |---|---|
//! | a valid frame that follows the preceding one | there are new records |
//! | a segment that names this one as its predecessor, with an end after this place | everything up to that end is there; then the walk continues in the segment |
//! | a segment that names an end before this place | a new process has recovered the log and rewritten the records that no frame had attested: the walk goes back to that end |
//! | evidence by which [`super::scan`] calls a bad frame corrupt | damage |
//! | anything else | not yet |
//!
//! # Invariants
//!
//! 1. A follower writes nothing and takes no lock.
//! 2. A step reads the new data and at most one window more; at the end, it also reads the names in
//!    the directory and the headers of the segments after the present one. It reads the rest of a
//!    segment only if there are bytes after an invalid frame, and not at every step.
//! 3. A frame is called corrupt only if it is still invalid when read again after the evidence
//!    against it: a writer writes in order, so by then the frame is complete.
//! 4. Memory: one window or one frame, and a header for each segment that is known and not yet
//!    walked.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog_codec::body::{Resumed, Seal};
use foldlog_codec::{RecordKind, SequenceNumber};
use uuid::Uuid;

use super::chain::{self, Chain, Flaw, Segment, SegmentFile};
use super::copy::Spot;
use super::layout;
use super::scan::{self, BadSpot, FrameAt, TornTail};
use super::window::Window;
use crate::error::{Error, Result};
use crate::storage::{Storage, StorageFile};

/// Number of bytes after the end that are searched for a byte other than 0.
const NEAR_BYTES: u64 = 64 << 10;

/// Number of steps at one place, without any change, after which evidence is searched again.
const STEPS_BETWEEN_VERDICTS: u32 = 16;

/// A place in a log, from which a walk continues.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    session: Uuid,
    segment: Segment,
    file: Arc<dyn StorageFile>,
    at: Spot,
    /// Boot under which the end was written, if the log states it. The outer `None` means that this
    /// is not known yet, since the frame with the boot id is before the place at which the walk
    /// began.
    boot_id: Option<Option<Uuid>>,
    /// Segments of the chain after the present one, as far as they are known.
    ahead: VecDeque<Segment>,
    verdict: Option<TailVerdict>,
}

#[derive(Clone, Debug)]
struct TailVerdict {
    ordinal: u32,
    offset: u64,
    near: [u8; 32],
    /// Number of segments after the place, and number of files there without a valid header.
    behind: (usize, usize),
    torn: Option<TornTail>,
    age: u32,
}

enum Stop {
    /// The segment's part of the chain ends here.
    End,
    /// The segment is sealed here, but no later segment is known.
    Sealed { seal: Seal, behind: u64 },
    /// There is no valid frame here.
    Bad(Flaw),
}

enum Around {
    /// The walk continues, here or elsewhere.
    Changed,
    /// There is no new data.
    Settled(Option<TornTail>),
}

impl Cursor {
    /// Returns a cursor at the start of the last segment that contains the record `from`. If the
    /// bytes before that record are not attested, an earlier segment is used: from an attested
    /// place on, each frame proves the next.
    ///
    /// # Errors
    ///
    /// The errors of a scan of headers: [`Error::NotASession`], [`Error::Corrupt`],
    /// [`Error::MissingSegment`], [`Error::WrongSession`], [`Error::FutureFormat`], [`Error::Io`].
    pub(crate) fn open(storage: &Arc<dyn Storage>, dir: &Path, from: SequenceNumber) -> Result<Cursor> {
        scan::retry_if_replaced(|| {
            let cursor = Cursor::open_once(storage, dir, from)?;
            cursor.segment.check_not_replaced(storage.as_ref())?;
            Ok(cursor)
        })
    }

    fn open_once(storage: &Arc<dyn Storage>, dir: &Path, from: SequenceNumber) -> Result<Cursor> {
        let chain = chain::discover(storage.as_ref(), dir)?;
        if chain.missing.is_some() {
            // A scan distinguishes a segment lost in a power cut from one that was removed.
            scan::scan(storage.as_ref(), dir, &mut |_| Ok(()))?;
        }
        let Some(last) = chain.segments.last().map(|segment| segment.header) else {
            // A scan returns the right error for a session without a valid header.
            scan::scan(storage.as_ref(), dir, &mut |_| Ok(()))?;
            return Err(Error::not_a_session(dir, "no segment in it has an intact header"));
        };
        if let Some(expected) = layout::session_of(dir).filter(|expected| *expected != last.session) {
            return Err(Error::WrongSession { path: dir.to_owned(), expected, found: last.session });
        }
        let sure = from.min(last.watermark);
        let mut ahead: VecDeque<Segment> = chain.segments.into();
        while ahead.get(1).is_some_and(|next| next.header.first_sequence <= sure) {
            ahead.pop_front();
        }
        let segment = ahead.pop_front().ok_or_else(|| Error::not_a_session(dir, chain::NO_SEGMENTS))?;
        if segment.header.first_sequence > sure {
            // A log begins with its first record; a scan returns the right error for one that does
            // not.
            scan::scan(storage.as_ref(), dir, &mut |_| Ok(()))?;
        }
        let file = segment.open(storage.as_ref())?;
        Ok(Cursor {
            storage: Arc::clone(storage),
            dir: dir.to_owned(),
            session: last.session,
            file,
            at: Spot::head_of(&segment),
            boot_id: None,
            segment,
            ahead,
            verdict: None,
        })
    }

    pub(crate) fn next_sequence(&self) -> SequenceNumber {
        self.at.next_sequence
    }

    pub(crate) fn session(&self) -> Uuid {
        self.session
    }

    /// Passes each new frame to `visit`, in order, including envelope frames. Returns a description
    /// of the bytes after the end, if there are any. If `visit` fails, the next step passes the
    /// same frame again.
    ///
    /// After a recovery the walk goes back: then a sequence number is lower than an earlier one.
    ///
    /// # Errors
    ///
    /// Damage, by the rules of a scan; [`Error::Io`]; the errors of `visit`.
    pub(crate) fn step(
        &mut self,
        visit: &mut dyn FnMut(&FrameAt<'_>) -> Result<()>,
    ) -> Result<Option<TornTail>> {
        let mut read_again = 0;
        let mut at = (self.segment.header.ordinal, self.at.offset);
        loop {
            let stop = self.walk(visit)?;
            let now = (self.segment.header.ordinal, self.at.offset);
            if now != at {
                (at, read_again) = (now, 0);
            }
            if matches!(stop, Stop::End) {
                self.roll_over()?;
                continue;
            }
            match self.look_around(stop) {
                Ok(Around::Changed) => {}
                Ok(Around::Settled(torn)) => return Ok(torn),
                Err(error) if read_again < scan::READ_AGAIN_MAX && error.is_damage() => {
                    read_again += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn walk(&mut self, visit: &mut dyn FnMut(&FrameAt<'_>) -> Result<()>) -> Result<Stop> {
        let mut window = Window::new(&self.segment.path, Arc::clone(&self.file), self.segment.end)?;
        // Offset at which the window was read last: after it, the window may contain bytes from
        // before the writer got there.
        let mut read_at = self.at.offset;
        loop {
            if self.segment.end.is_some_and(|end| self.at.offset >= end) {
                return Ok(Stop::End);
            }
            let frame = match window.frame(self.segment.context(), self.at.offset)? {
                Ok(frame) => frame,
                Err(_) if read_at != self.at.offset => {
                    window.forget();
                    read_at = self.at.offset;
                    continue;
                }
                Err(error) => return Ok(Stop::Bad(scan::describe(&error))),
            };
            let header = frame.header;
            if let Some(flaw) = scan::out_of_chain(&header, self.at.last_crc, self.at.next_sequence) {
                return Ok(Stop::Bad(flaw));
            }
            let body = |error: foldlog_codec::Error| {
                let reason = format!("the frame's body does not decode: {error}");
                self.corrupt(&self.segment.path, self.at.offset, reason)
            };
            let mut boot_id = self.boot_id;
            match header.kind {
                // A seal is outside the chain, after the end that a later segment names.
                RecordKind::Seal if self.segment.end.is_none() => {
                    let seal = Seal::decode(frame.body).map_err(body)?;
                    return Ok(Stop::Sealed { seal, behind: self.at.offset + frame.len() as u64 });
                }
                RecordKind::Resumed => boot_id = Some(Resumed::decode(frame.body).map_err(body)?.boot_id),
                _ => {}
            }
            visit(&FrameAt { frame, segment: &self.segment, offset: self.at.offset })?;
            self.boot_id = boot_id;
            self.at = Spot::behind(self.at.offset, &frame);
        }
    }

    /// Continues with the next segment, which must follow the end of this one.
    fn roll_over(&mut self) -> Result<()> {
        let Some(next) = self.ahead.pop_front() else {
            self.segment.end = None;
            return Ok(());
        };
        let end = Spot { last_crc: self.segment.exit_crc(self.at.last_crc), ..self.at };
        match end.followed_by(&next) {
            Ok(_) => self.go_to(next),
            Err(flaw) => Err(self.corrupt(&next.path, 0, flaw)),
        }
    }

    fn go_to(&mut self, mut segment: Segment) -> Result<()> {
        self.file = segment.open(self.storage.as_ref())?;
        if let Err(error) = segment.check_not_replaced(self.storage.as_ref()) {
            let before = segment.header.ordinal.checked_sub(1);
            let found = chain::discover_above(self.storage.as_ref(), &self.dir, before)?.segments;
            let again = found.iter().position(|found| found.header.ordinal == segment.header.ordinal);
            let Some(again) = again else { return Err(error) };
            segment = found.get(again).cloned().ok_or(error)?;
            self.file = segment.open(self.storage.as_ref())?;
            self.ahead = found.into_iter().skip(again + 1).collect();
        }
        self.at = Spot::head_of(&segment);
        self.segment = segment;
        Ok(())
    }

    /// Examines the surroundings of a place at which the walk stops.
    fn look_around(&mut self, stop: Stop) -> Result<Around> {
        let ordinal = self.segment.header.ordinal;
        let chain = chain::discover_above(self.storage.as_ref(), &self.dir, Some(ordinal))?;
        self.check_present()?;
        if chain.missing.is_some() {
            scan::scan(self.storage.as_ref(), &self.dir, &mut |_| Ok(()))?;
        }
        let Chain { segments, beyond, .. } = chain;
        if self.take_in(segments)? {
            return Ok(Around::Changed);
        }
        let spot = |offset, flaw| BadSpot { segment: 0, offset, flaw };
        match stop {
            Stop::End => Ok(Around::Changed),
            Stop::Sealed { seal, behind } => {
                // A successor exists before a segment is sealed.
                let path = layout::segment_file(&self.dir, seal.next);
                if self.storage.look_up(&path)?.is_none() {
                    return Err(Error::MissingSegment { session: self.session, ordinal: seal.next, path });
                }
                let reason = "the segment is sealed, but the next one has no intact header";
                self.judge(beyond, spot(behind, reason.into()))
            }
            // This precedes any search for evidence: mostly the frame that was being written is
            // complete by now.
            Stop::Bad(_) if self.is_sound_by_now()? => Ok(Around::Changed),
            Stop::Bad(flaw) => self.judge(beyond, spot(self.at.offset, flaw)),
        }
    }

    /// Returns whether the next frame is valid now, although it was not when it was last read.
    fn is_sound_by_now(&self) -> Result<bool> {
        let mut window = Window::new(&self.segment.path, Arc::clone(&self.file), self.segment.end)?;
        let frame = window.frame(self.segment.context(), self.at.offset)?;
        Ok(frame.is_ok_and(|frame| {
            scan::out_of_chain(&frame.header, self.at.last_crc, self.at.next_sequence).is_none()
        }))
    }

    /// Checks that the present segment still exists and is the one that was opened.
    fn check_present(&self) -> Result<()> {
        let (path, ordinal) = (&self.segment.path, self.segment.header.ordinal);
        let Some(found) = chain::read_header(self.storage.as_ref(), path.clone(), ordinal)? else {
            return Err(Error::MissingSegment { session: self.session, ordinal, path: path.clone() });
        };
        // If a compaction has replaced it, the open file is the previous version, which is equally
        // valid.
        if found.header == Some(self.segment.header) || self.segment.is_replaced_by(&found) {
            return Ok(());
        }
        Err(self.corrupt(path, 0, "the segment's header has changed since the log was opened"))
    }

    /// Updates the chain after this segment from the directory. Returns whether the walk can
    /// continue with it.
    fn take_in(&mut self, segments: Vec<Segment>) -> Result<bool> {
        if let Some(last) = segments.last().filter(|last| last.header.session != self.session) {
            let (path, found) = (last.path.clone(), last.header.session);
            return Err(Error::WrongSession { path, expected: self.session, found });
        }
        let Some(first) = segments.first() else {
            // A later header was valid and no longer is; `judge` decides about that.
            self.segment.end = None;
            self.ahead.clear();
            return Ok(false);
        };
        let here = self.segment.header.ordinal;
        match first.header.previous.filter(|previous| previous.ordinal == here) {
            Some(previous) if self.segment.end_named_by(previous) >= self.at.offset => {
                let before = self.segment.end;
                self.segment.end_at(previous);
                self.ahead = segments.into();
                Ok(before != self.segment.end || self.segment.end == Some(self.at.offset))
            }
            _ if first.header.first_sequence > self.at.next_sequence => {
                let (begins, next) = (first.header.first_sequence, self.at.next_sequence);
                let reason = format!("the segment starts at record {begins}, but record {next} is expected");
                Err(self.corrupt(&first.path, 0, reason))
            }
            // The place was cut off: the records that a recovery preserved are in the recovery's
            // own segment.
            _ => {
                self.ahead = segments.into();
                let first = self.ahead.pop_front();
                first.map_or(Ok(()), |first| self.go_to(first))?;
                Ok(true)
            }
        }
    }

    /// Distinguishes a place that is not yet written from damage.
    fn judge(&mut self, beyond: Vec<SegmentFile>, spot: BadSpot) -> Result<Around> {
        let near = self.digest_near(spot.offset)?;
        let behind = (self.ahead.len(), beyond.len());
        if near.is_none() && behind == (0, 0) {
            // Everything that is written here from now on is written under the present boot.
            self.boot_id = Some(self.storage.boot_id());
            self.verdict = None;
            return Ok(Around::Settled(None));
        }
        let near = near.unwrap_or_default();
        let ordinal = self.segment.header.ordinal;
        if let Some(verdict) = self.verdict.as_mut().filter(|verdict| {
            (verdict.ordinal, verdict.offset, verdict.near) == (ordinal, spot.offset, near)
                && verdict.behind == behind
                && verdict.age < STEPS_BETWEEN_VERDICTS
        }) {
            verdict.age += 1;
            return Ok(Around::Settled(verdict.torn.clone()));
        }
        let segments = std::iter::once(&self.segment).chain(&self.ahead).cloned().collect();
        let chain = Chain { segments, beyond, ordinal_max: ordinal, ..Chain::default() };
        let (next, boot_id) = (self.at.next_sequence, self.boot_at_end()?);
        let torn = scan::judge(self.storage.as_ref(), &self.dir, chain, next, boot_id, &spot)?;
        let verdict = TailVerdict { ordinal, offset: spot.offset, near, behind, torn: torn.clone(), age: 0 };
        self.verdict = Some(verdict);
        Ok(Around::Settled(torn))
    }

    /// Returns the boot under which the end was written. If the walk began after the frame with the
    /// boot id, this scans the whole log once; a verdict of that scan applies too.
    fn boot_at_end(&mut self) -> Result<Option<Uuid>> {
        if let Some(boot_id) = self.boot_id {
            return Ok(boot_id);
        }
        let mut found = None;
        scan::scan(self.storage.as_ref(), &self.dir, &mut |at| {
            let header = at.frame.header;
            if header.kind == RecordKind::Resumed && header.sequence <= self.at.next_sequence {
                found = Resumed::decode(at.frame.body).ok().and_then(|resumed| resumed.boot_id);
            }
            Ok(())
        })?;
        self.boot_id = Some(found);
        Ok(found)
    }

    /// Returns a digest of the bytes directly after a place. Returns `None` if all of them are 0.
    fn digest_near(&self, offset: u64) -> Result<Option<[u8; 32]>> {
        let mut window = Window::new(&self.segment.path, Arc::clone(&self.file), None)?;
        let bytes = window.bytes(offset, NEAR_BYTES)?;
        let used = bytes.iter().any(|byte| *byte != 0);
        Ok(used.then(|| *blake3::hash(bytes).as_bytes()))
    }

    fn corrupt(&self, segment: &Path, offset: u64, flaw: impl Into<Flaw>) -> Error {
        chain::corrupt(Some(self.session), segment, offset, self.at.next_sequence, flaw)
    }
}
