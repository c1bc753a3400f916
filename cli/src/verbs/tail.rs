//! `foldlog tail`: the last records of a session, and new ones as another process writes them.

#[cfg(feature = "object-store")]
mod remote;

use std::path::{Path, PathBuf};
use std::time::Duration;

use foldlog::inspect::{Follower, LogUpdate, Progress};
use foldlog::{Error, LivePath, Record, SequenceNumber};
use foldlog_codec::record::RecordNames;
use foldlog_view::documents::timeline::{LIVE, RecordStanding, Timeline, line, value};
use foldlog_view::positions::{Position, position, position_at, position_of};
use foldlog_view::visits::{each_record, stop_error};

use crate::command::{Argument, Command, Group, Urls};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::{code_of, note_torn, open_sound_outline};

/// List the last records, and follow new ones.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
    /// Number of records before the end
    #[arg(short = 'n', long, default_value_t = 10, conflicts_with = "from")]
    pub lines: u64,
    /// First record to list: its number, or a snapshot's tag
    ///
    /// With --follow, it can be the number of a record that is not written yet.
    #[arg(long, value_name = "POSITION")]
    pub from: Option<Position>,
    /// Continue with new records as another process writes them, until interrupted
    #[arg(short, long)]
    pub follow: bool,
    /// Time between two reads of a bucket or database, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000, requires = "follow")]
    pub every: u64,
}

impl Command for Args {
    const GROUP: Group = Group::Look;
    const URLS: Urls = Urls::Read;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog tail SESSION --follow";

    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        #[cfg(feature = "object-store")]
        if let Some(url) = crate::remote::url(&self.session) {
            return self.tail_remote(url, output);
        }
        let start = match self.from {
            None => TailStart::Last(self.lines),
            Some(Position::At(from)) => TailStart::From(from),
            Some(tagged) => {
                let reader = open_sound_outline(&self.session, output)?;
                TailStart::From(position(&reader, Some(tagged))?)
            }
        };
        run(&self.session, start, self.follow, output)
    }
}

#[cfg(feature = "object-store")]
impl Args {
    fn tail_remote(&self, url: &str, output: &mut Output<'_>) -> Result<u8> {
        let start = match &self.from {
            None => TailStart::Last(self.lines),
            Some(Position::At(from)) => TailStart::From(*from),
            Some(Position::Tagged(_)) => {
                return Err(CommandError::usage(
                    "--from does not accept a tag with a URL",
                    "give the number of a record; `foldlog show SESSION` lists them",
                ));
            }
        };
        let session = crate::remote::HeldSession::parse(url).ok_or_else(|| crate::remote::no_session(url))?;
        remote::tail(&session, start, self.follow.then(|| Duration::from_millis(self.every)), output)
    }
}

/// Minimum delay between two checks of the log, used after one that found records.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// Maximum delay between two checks: each check without news doubles the delay up to this.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// Number of records that are printed between two checks for a signal to end.
const RECORDS_BETWEEN_ASKING: u64 = 1024;

/// Start of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailStart {
    /// This many records before the end.
    Last(u64),
    /// The record with this sequence number.
    From(SequenceNumber),
}

/// Lists the records from `start` on, in the form of `show`. With `follow`, continues with new ones
/// until a signal ends the process. A record is listed as live or abandoned as of the time of
/// printing; a rollback that is printed later names its target position. Of a damaged session,
/// lists the last records before the damage, and does not wait.
///
/// # Errors
///
/// - [`Error::Usage`](foldlog_view::Error::Usage) if, without `follow`, the session has no record
///   `start` yet.
/// - [`Error::Deleted`](foldlog_view::Error::Deleted) if the session is deleted meanwhile.
/// - [`Error::Engine`](foldlog_view::Error::Engine) if the session cannot be read, if no record
///   before its damage is intact, or if damage appears meanwhile.
pub fn run(session: &Path, start: TailStart, follow: bool, output: &mut Output<'_>) -> Result<u8> {
    if follow {
        // Signals are handled before the first line is printed, so that a reader of that line can
        // already end this process.
        pause(Duration::ZERO, output)?;
    }
    // A session that was never there has not been deleted.
    let existed = session.exists();
    let opened = match start {
        TailStart::Last(count) => Follower::open_last(session, count),
        TailStart::From(from) => Follower::open(session, from),
    };
    let opened = opened.and_then(|follower| Ok((TailBaseline::read_ahead(&follower)?, follower)));
    let (known, mut follower) = match opened {
        // No record can be written after damage, so there is nothing to follow.
        Err(error) if error.is_damage() && session.exists() => return sound(session, start, output),
        Err(error) if !existed => return Err(error.into()),
        opened => opened.map_err(|error| map_deleted(session, error.into()))?,
    };
    match print(&mut follower, &known, start, follow, output) {
        Err(CommandError::View(foldlog_view::Error::Engine(error)))
            if error.is_damage() && session.exists() =>
        {
            // All records before the damage were printed. A reader determines the intact part.
            Ok(code_of(&open_sound_outline(session, output)?, output))
        }
        printed => printed.map_err(|failure| map_deleted(session, failure)),
    }
}

/// Lists the records of the intact part of a damaged session.
fn sound(session: &Path, start: TailStart, output: &mut Output<'_>) -> Result<u8> {
    let reader = open_sound_outline(session, output)?;
    let last = reader.last_position();
    let from = match start {
        TailStart::Last(count) => (last + 1).saturating_sub(count),
        TailStart::From(from) => position_at(&reader, Some(from))?,
    };
    let timeline = Timeline::from_reader(&reader);
    if !output.json() {
        output.line(Timeline::HEADINGS)?;
    }
    each_record(&reader, from..=last, |record| {
        print_record(record, &timeline.names, timeline.standing.path_of(record), output)
    })?;
    Ok(code_of(&reader, output))
}

fn map_deleted(session: &Path, failure: CommandError) -> CommandError {
    match failure {
        // Any error of a deleted session has the same cause.
        CommandError::View(foldlog_view::Error::Engine(_)) if !session.exists() => {
            CommandError::View(foldlog_view::Error::Deleted { path: session.to_owned() })
        }
        failure => failure,
    }
}

fn print(
    follower: &mut Follower,
    known: &TailBaseline,
    start: TailStart,
    follow: bool,
    output: &mut Output<'_>,
) -> Result<u8> {
    if !follow {
        let Some(last) = known.next.checked_sub(1) else {
            return Err(CommandError::usage(
                "the session has no record yet",
                "add --follow to wait for the first one",
            ));
        };
        if let TailStart::From(from) = start {
            position_of(last, Some(from))?;
        }
    }
    if !output.json() {
        output.line(Timeline::HEADINGS)?;
    }
    let mut wait = WAIT_MIN;
    loop {
        let Some(progress) = poll(follower, known, follow, output)? else { return Ok(HOLDS) };
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
    (output.pause)(wait).map_err(CommandError::Wait)
}

/// Facts about the log before the first record is printed: its length, and the path words of its
/// records.
#[derive(Debug)]
struct TailBaseline {
    next: SequenceNumber,
    standing: RecordStanding,
}

impl TailBaseline {
    /// Reads ahead to the current end, so that records that a later rollback abandoned are printed
    /// as abandoned.
    fn read_ahead(follower: &Follower) -> Result<TailBaseline, Error> {
        let mut path = LivePath::default();
        let mut ahead = follower.clone();
        ahead.poll(|met| {
            let LogUpdate::Record { record, .. } = met else { return Ok(()) };
            let sequence = record.sequence;
            let rollback = record.rollback();
            let rollback =
                rollback.map_err(|error| Error::Inconsistent { sequence, reason: error.to_string() })?;
            if let Some(rollback) = rollback {
                path.add(sequence, rollback.to);
            }
            Ok(())
        })?;
        let next = SequenceNumber::new(ahead.records_len());
        let live = next.checked_sub(1).map(|last| path.live_at(last)).unwrap_or_default();
        Ok(TailBaseline { next, standing: RecordStanding::new(live, &ahead.declarations()) })
    }

    /// Returns the path word of a record. Records written from now on are live when they are
    /// printed.
    fn path_of(&self, record: &Record<'_>) -> &'static str {
        if record.sequence >= self.next { LIVE } else { self.standing.path_of(record) }
    }
}

/// Prints one record. `path` is its path word.
fn print_record(record: &Record<'_>, names: &RecordNames, path: &str, output: &mut Output<'_>) -> Result<()> {
    match output.json() {
        true => output.value(&value(record, names, path)),
        false => output.line(line(record, names, path)),
    }
}

/// Prints the records written since the last check. Returns `None` if the process should end.
fn poll(
    follower: &mut Follower,
    known: &TailBaseline,
    follow: bool,
    output: &mut Output<'_>,
) -> Result<Option<Progress>> {
    let session = follower.session();
    let (mut printed, mut failure) = (0_u64, None);
    let mut one = |met: LogUpdate<'_>| -> Result<bool> {
        match met {
            LogUpdate::Record { record, names } => {
                print_record(&record, names, known.path_of(&record), output)?;
            }
            LogUpdate::Replaced { from, through } => {
                output.stdout.flush()?;
                output.note(format_args!(
                    "note: session {session} was recovered: records {from} to {through}, as printed above, are no longer \
                     part of it; the records that replace them follow"
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
            Err(stop_error())
        }
    });
    match (polled, failure) {
        (_, Some(failure)) => Err(failure),
        (Ok(progress), None) => Ok(Some(progress)),
        (Err(Error::Io { source, .. }), None) if source.kind() == std::io::ErrorKind::Interrupted => Ok(None),
        (Err(error), None) => Err(error.into()),
    }
}
