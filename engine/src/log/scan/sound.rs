//! Walking a damaged log up to its first damage.
//!
//! The walk is that of a scan, and ends where a scan ends with an error. Nothing is repaired: a
//! salvage follows the chain further, across bytes that can be recomputed ([`super::salvage`]).

use std::path::Path;

use foldlog_codec::segment::HEADER_LEN as SEGMENT_HEADER_LEN;

use super::{ChainWalk, FrameAt, LogScan, Scanner};
use crate::error::{Error, Result};
use crate::log::chain;
use crate::log::layout;
use crate::storage::Storage;

/// Walks the log in `dir` up to its first damage, and passes each valid frame to `visit` in order.
/// Returns the damage together with the scan of the part before it.
///
/// # Errors
///
/// The damage itself if no record before it is valid, or if the directory or a file belongs to
/// another session; every error of a scan that is not damage; the errors of `visit`.
pub(crate) fn scan_sound(
    storage: &dyn Storage,
    dir: &Path,
    visit: &mut dyn FnMut(FrameAt<'_>) -> Result<()>,
) -> Result<(LogScan, Option<Error>)> {
    let (scanner, mut damage) = match Scanner::new(storage, dir) {
        Ok(scanner) => (scanner, None),
        Err(error) if error.is_damage() => {
            let files = chain::segment_files(storage, dir)?;
            let walk = ChainWalk::new(storage, dir, chain::follow_sound(&files)?);
            (Scanner { walk, start: (0, SEGMENT_HEADER_LEN as u64) }, Some(error))
        }
        Err(error) => return Err(error),
    };
    if scanner.walk.chain.segments.is_empty() {
        return match (scanner.run(visit), damage) {
            (_, Some(damage)) => Err(damage),
            (scanned, None) => scanned.map(|scan| (scan, None)),
        };
    }
    let mut walk = scanner.walk;
    let of_beyond = walk.chain.beyond.iter().filter_map(|file| file.header);
    let mut headers = walk.chain.segments.iter().map(|segment| segment.header).chain(of_beyond);
    // If a segment has the session's id, the segments before it in the chain belong to the session.
    let is_own = layout::session_of(dir).is_some_and(|own| headers.any(|header| header.session == own));
    let mut index = 0;
    while index < walk.chain.segments.len() {
        let before = walk.savepoint();
        match walk.segment(index, SEGMENT_HEADER_LEN as u64, visit) {
            Ok(went) if went.is_break() => break,
            Ok(_) => {}
            Err(error) if error.is_damage() => {
                walk.end_at(index, before, &error);
                damage = Some(damage.unwrap_or(error));
                break;
            }
            Err(error) => return Err(error),
        }
        index += 1;
    }
    let Some(damage) = damage else {
        return match walk.clone().finish() {
            Err(error @ Error::WrongSession { .. }) => Err(error),
            Err(error) if error.is_damage() => {
                walk.shared_alone = is_own;
                walk.finish_before(error)
            }
            finished => finished.map(|scan| (scan, None)),
        };
    };
    walk.shared_alone = is_own;
    walk.finish_before(damage)
}

impl ChainWalk<'_> {
    fn end_at(&mut self, index: usize, before: LogScan, damage: &Error) {
        let Some(segment) = self.chain.segments.get(index).cloned() else { return };
        let nothing_read = match damage {
            // Reading the segment showed that it belongs to another session.
            Error::WrongSession { .. } => true,
            Error::Corrupt(corruption) => corruption.offset == 0 && corruption.segment == segment.path,
            _ => false,
        };
        if nothing_read {
            self.restore(before);
            self.chain.segments.truncate(index);
        } else {
            self.scan.used_bytes += self.scan.end;
            self.chain.segments.truncate(index + 1);
            if let Some(last) = self.chain.segments.last_mut() {
                last.end = Some(self.scan.end);
            }
        }
        // The frame whose body does not decode may have been recorded already.
        self.forget_later_records();
    }

    fn finish_before(mut self, damage: Error) -> Result<(LogScan, Option<Error>)> {
        if self.scan.openings.is_empty() {
            return Err(damage);
        }
        self.chain.beyond.clear();
        (self.scan.torn, self.last_seal, self.last_kind) = (None, None, None);
        Ok((self.finish()?, Some(damage)))
    }
}
