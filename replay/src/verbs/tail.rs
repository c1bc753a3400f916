//! `foldlog tail`: the last records, and those that come.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use foldlog::audit::{Followed, Follower, Progress};
use foldlog::{Error, Kind, LivePath, SequenceNumber};
use foldlog_codec::body::Rollback;

use super::show::{Timeline, line, value};
use crate::failure::{Failure, HOLDS, Result};
use crate::output::Output;
use crate::reading::{note_torn, position_of, stopped};

/// How long to wait for the next record while they keep coming.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// How long to wait while nothing comes.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// After how many records a verb that still has more to print asks whether it is to end.
const RECORDS_BETWEEN_ASKING: u64 = 1024;

/// Where a listing begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// So many records before the end.
    Last(u64),
    /// At this record.
    From(SequenceNumber),
}

/// Shows the records from `start` on, as `show` does, and with `follow` those that come until the process is
/// asked to end. What is said of a record's path is so when it is printed: a rollback that comes later names
/// the position that it goes back to.
///
/// # Errors
///
/// Where the session cannot be read, is damaged from there on, or is deleted; without `follow` also where the
/// first record is not there.
pub fn run(session: &Path, start: Start, follow: bool, output: &mut Output<'_>) -> Result<u8> {
    if follow {
        // Takes the signals over, before there is anything that a reader could take for a beginning.
        pause(Duration::ZERO, output)?;
    }
    let mut follower = match start {
        Start::Last(count) => Follower::open_last(session, count)?,
        Start::From(from) => Follower::open(session, from)?,
    };
    print(&mut follower, start, follow, output).map_err(|failure| match failure {
        // Whatever call it was that failed, this is why.
        Failure::Engine(_) if !session.exists() => Failure::Deleted { path: session.to_owned() },
        failure => failure,
    })
}

fn print(follower: &mut Follower, start: Start, follow: bool, output: &mut Output<'_>) -> Result<u8> {
    let known = Known::of(follower)?;
    if !follow {
        let Some(last) = known.next.checked_sub(1) else {
            return Err(Failure::usage("there is no record yet", "give --follow to wait for the first"));
        };
        if let Start::From(from) = start {
            position_of(last, Some(from))?;
        }
    }
    if !output.json() {
        output.line(Timeline::HEADINGS)?;
    }
    let mut wait = WAIT_MIN;
    loop {
        let Some(progress) = poll(follower, &known, follow, output)? else { return Ok(HOLDS) };
        output.stdout.flush()?;
        if !follow {
            note_torn(progress.torn.as_ref(), output);
            return Ok(HOLDS);
        }
        wait = if progress.records > 0 { WAIT_MIN } else { (wait * 2).min(WAIT_MAX) };
        if !pause(wait, output)? {
            return Ok(HOLDS);
        }
    }
}

fn pause(wait: Duration, output: &Output<'_>) -> Result<bool> {
    (output.pause)(wait).map_err(Failure::Wait)
}

/// What is known of the log before the first record is printed.
struct Known {
    next: SequenceNumber,
    live: Vec<RangeInclusive<SequenceNumber>>,
}

impl Known {
    /// Looks ahead to the present end, so that what a later rollback abandoned is printed as such.
    fn of(follower: &Follower) -> Result<Known> {
        let mut path = LivePath::default();
        let mut ahead = follower.clone();
        ahead.poll(|met| {
            if let Followed::Record { record, .. } = met
                && record.kind == Kind::ROLLBACK
            {
                let body = |error: foldlog_codec::Error| Error::Inconsistent {
                    sequence: record.sequence,
                    reason: error.to_string(),
                };
                path.add(record.sequence, Rollback::decode(record.body).map_err(body)?.to);
            }
            Ok(())
        })?;
        let next = SequenceNumber::new(ahead.records_len());
        Ok(Known { next, live: next.checked_sub(1).map(|last| path.live_at(last)).unwrap_or_default() })
    }

    fn is_live(&self, sequence: SequenceNumber) -> bool {
        sequence >= self.next || self.live.iter().any(|range| range.contains(&sequence))
    }
}

/// Prints what has come; nothing is returned where the process was asked to end meanwhile.
fn poll(
    follower: &mut Follower,
    known: &Known,
    follow: bool,
    output: &mut Output<'_>,
) -> Result<Option<Progress>> {
    let session = follower.session();
    let (mut printed, mut failure) = (0_u64, None);
    let mut one = |met: Followed<'_>| -> Result<bool> {
        match met {
            Followed::Record { record, names } => {
                let live = known.is_live(record.sequence);
                if output.json() {
                    output.value(&value(&record, names, live))?;
                } else {
                    output.line(line(&record, names, live))?;
                }
            }
            Followed::Replaced { from, through } => {
                output.stdout.flush()?;
                output.note(format_args!(
                    "note: session {session} was recovered, and records {from} to {through} as printed are no \
                     longer part of it: what took their place follows"
                ));
            }
            _ => {}
        }
        printed += 1;
        Ok(!follow || !printed.is_multiple_of(RECORDS_BETWEEN_ASKING) || pause(Duration::ZERO, output)?)
    };
    let polled = follower.poll(|met| match one(met) {
        Ok(true) => Ok(()),
        other => {
            failure = other.err();
            Err(stopped(Path::new("")))
        }
    });
    match (polled, failure) {
        (_, Some(failure)) => Err(failure),
        (Ok(progress), None) => Ok(Some(progress)),
        (Err(Error::Io { source, .. }), None) if source.kind() == std::io::ErrorKind::Interrupted => Ok(None),
        (Err(error), None) => Err(error.into()),
    }
}
