//! `foldlog verify`: checks every frame, body, seal and object of sessions or stores.

use std::path::{Path, PathBuf};

use foldlog::inspect::{self, SoundStretch};
use foldlog_codec::escape;
use foldlog_view::documents::captures::{self, CaptureCounts};
#[cfg(feature = "object-store")]
use foldlog_view::documents::verify::SessionDamage;
use foldlog_view::documents::verify::{TornTailRow, Unreadable, Unsupported, VerifyReport, session};
use foldlog_view::session_dirs::{holds_anything, lost_segments};
use foldlog_view::text::count_text;

use crate::command::{Argument, Command, Group, Target, Urls};
#[cfg(feature = "object-store")]
use crate::failure::DOES_NOT_HOLD;
use crate::failure::{CommandError, HOLDS, Result, UNUSABLE};
use crate::output::Output;
use crate::readers::{open_store, pass_over};
use crate::remote;
use crate::style::{BAD, CAUTION, GOOD, PLAIN};

/// Describes the fields of `verify --json`.
const VERIFY_JSON: &str = "\
With --json one object:
  sessions, passed_over, records, bytes, torn_bytes
  corrupt      damaged places: session, segment, offset, sequence, reason;
               follows: the intact frames up to the next place: segment, offset, records, sequences
               (first and last)
  incomplete   places with missing newer parts, as in a copy that was taken while the session was
               written: the same fields
  torn         session, segment, offset, sequence, bytes
  captures     with --captures: read, collected, elsewhere: numbers of captures; `corrupt` lists
               the files of damaged ones
  unsupported  session, sequence, kind; exposed: session, path, mode; unreadable: path, reason";

/// Check every byte of sessions, and list all damage.
///
/// Checks frames, bodies, seals and objects. Each damaged place is listed once, with what
/// is intact after it. --captures checks the captures of workspaces too.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = VERIFY_JSON)]
pub struct Args {
    /// Directories of sessions or stores, or URLs of sessions, buckets or databases
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Check the captures of workspaces in the sessions' directories too
    #[arg(long)]
    pub captures: bool,
}

impl Command for Args {
    const GROUP: Group = Group::Keep;
    const TARGET: Target = Target::SessionOrStore;
    const URLS: Urls = Urls::Read;
    const ARGUMENT: Argument<Self> = |arguments| match arguments.paths.as_mut_slice() {
        [only] => Some(only),
        _ => None,
    };
    const EXAMPLE: &'static str = "foldlog verify STORE";

    /// Checks sessions and stores, with `captures` also their captures, and prints the result.
    /// Returns the exit code 2 if a session of a store, or one of several paths, cannot be read and
    /// none is damaged.
    ///
    /// # Errors
    ///
    /// - [`Error::DoesNotHold`](foldlog_view::Error::DoesNotHold) if a log is damaged,
    ///   [`CommandError::DamagedCaptures`] if only captures are, and [`CommandError::Incomplete`]
    ///   if data is only missing, each after the result is printed.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if the only path is neither a session nor a
    ///   store, or the session that it names cannot be read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let paths = &self.paths;
        let mut verified =
            VerifyReport { captures: self.captures.then(CaptureCounts::default), ..VerifyReport::default() };
        let (urls, directories): (Vec<&PathBuf>, Vec<&PathBuf>) =
            paths.iter().partition(|path| remote::url(path).is_some());
        let dirs = session_dirs(&directories, paths.len() > 1, &mut verified, output)?;
        let mut progress = output.progress("verifying sessions", dirs.len() as u64);
        for (done, dir) in (1..).zip(&dirs) {
            let found = session(&dir.path, output.memory_bytes, &mut verified);
            match found.and_then(|()| captures::add(&dir.path, &mut verified)) {
                Err(foldlog_view::Error::Engine(error)) if dir.is_one_of_several => {
                    verified.unreadable.push(Unreadable::from_error(&dir.path, &error));
                }
                other => other?,
            }
            progress.at(done);
        }
        drop(progress);
        for url in urls.into_iter().filter_map(|path| remote::url(path)) {
            held_sessions(url, paths.len() > 1, &mut verified, output)?;
        }
        output.print(&verified, |output| print(&verified, output))?;
        let places = |places: usize, what: &str| match places {
            1 => format!("1 place is {what}"),
            places => format!("{places} places are {what}"),
        };
        match (verified.corrupt.len(), verified.incomplete.len(), verified.unreadable.is_empty()) {
            (0, 0, true) => Ok(HOLDS),
            (0, 0, false) => Ok(UNUSABLE),
            (0, older, _) => Err(CommandError::Incomplete(places(older, "incomplete"))),
            (corrupt, ..) => {
                let places = places(corrupt, "corrupt");
                let of_captures = verified.captures.as_ref().map_or(0, |captures| captures.damaged);
                let is_log = verified.corrupt.len() > of_captures;
                Err(if is_log {
                    CommandError::View(foldlog_view::Error::DoesNotHold(places))
                } else {
                    CommandError::DamagedCaptures(places)
                })
            }
        }
    }
}

/// A session's directory, and whether other sessions are still checked if it cannot be read: those
/// of its store, or those that were named with it.
struct SessionDir {
    path: PathBuf,
    is_one_of_several: bool,
}

fn session_dirs(
    paths: &[&PathBuf],
    is_one_of_several: bool,
    verified: &mut VerifyReport,
    output: &mut Output<'_>,
) -> Result<Vec<SessionDir>> {
    let mut dirs = Vec::new();
    for path in paths {
        if !inspect::is_store(path) {
            dirs.push(SessionDir { path: (*path).clone(), is_one_of_several });
            continue;
        }
        let listed = open_store(path, output).and_then(|store| Ok((store.session_ids()?, store)));
        let (ids, store) = match listed {
            Err(CommandError::View(foldlog_view::Error::Engine(error))) if is_one_of_several => {
                verified.unreadable.push(Unreadable::from_error(path, &error));
                continue;
            }
            listed => listed?,
        };
        for id in ids {
            let path = store.session_dir(id);
            if holds_anything(&path) || lost_segments(&path).is_some() {
                dirs.push(SessionDir { path, is_one_of_several: true });
            } else {
                verified.passed_over += 1;
                pass_over(&path, output);
            }
        }
    }
    Ok(dirs)
}

/// Checks the sessions of a place, or the one that the URL names, each in a temporary copy.
#[cfg(feature = "object-store")]
fn held_sessions(
    url: &str,
    is_one_of_several: bool,
    verified: &mut VerifyReport,
    output: &mut Output<'_>,
) -> Result<()> {
    let is_only = !is_one_of_several && remote::HeldSession::parse(url).is_some();
    let memory_bytes = output.memory_bytes;
    remote::with_each_copy(url, output, &mut |held, copy| {
        let (before, path) = (verified.corrupt.len(), PathBuf::from(held.to_string()));
        let found = copy.and_then(|copy| {
            session(&copy.dir, memory_bytes, verified)?;
            Ok(captures::add(&copy.dir, verified)?)
        });
        // The damage is in the place; the copy is already removed.
        verified.corrupt.iter_mut().skip(before).for_each(|damage| damage.segment.clone_from(&path));
        match found {
            Err(failure) if is_only => return Err(failure),
            Err(failure) if failure.exit_code() == DOES_NOT_HOLD => {
                verified.corrupt.push(SessionDamage {
                    session: Some(held.session),
                    segment: path,
                    reason: failure.to_string(),
                    ..SessionDamage::default()
                });
            }
            Err(failure) => verified.unreadable.push(Unreadable { path, reason: failure.to_string() }),
            Ok(()) => {}
        }
        Ok(())
    })
}

#[cfg(not(feature = "object-store"))]
fn held_sessions(_: &str, _: bool, _: &mut VerifyReport, _: &mut Output<'_>) -> Result<()> {
    Err(remote::not_built())
}

/// Describes the intact frames after damage in the file `segment`.
fn follows_text(follows: &SoundStretch, segment: &Path) -> String {
    let file = if follows.segment == segment {
        String::new()
    } else {
        format!(" of {}", escape::path(&follows.segment))
    };
    let what = match (follows.records, follows.sequences) {
        (0, _) => "intact frames without records follow".to_owned(),
        (1, Some((first, _))) => format!("intact record {first} follows"),
        (_, Some((first, last))) => format!("intact records {first} to {last} follow"),
        (records, None) => format!("{} without their numbers follow", count_text(records, "intact record")),
    };
    format!("{what} from byte {}{file}", follows.offset)
}

fn print(verified: &VerifyReport, output: &mut Output<'_>) -> Result<()> {
    let sessions = count_text(verified.sessions, "session");
    let records = count_text(verified.records, "record");
    output.line(format_args!("{sessions}, {records}, {} bytes", verified.bytes))?;
    for TornTailRow { tail, .. } in &verified.torn {
        output.pieces(&[
            (CAUTION, &"torn"),
            (
                PLAIN,
                &format_args!(
                    "     {} at byte {}, record {}: {} bytes that were never acknowledged as durable",
                    escape::path(&tail.segment),
                    tail.offset,
                    tail.sequence,
                    tail.bytes
                ),
            ),
        ])?;
    }
    let corrupt = verified.corrupt.iter().map(|damage| (BAD, "corrupt", damage));
    let incomplete = verified.incomplete.iter().map(|damage| (CAUTION, "incomplete", damage));
    for (style, label, damage) in corrupt.chain(incomplete) {
        let offset = damage.offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default();
        let record = damage.sequence.map(|sequence| format!(", record {sequence}")).unwrap_or_default();
        let place = format!("  {}{offset}{record}", escape::path(&damage.segment));
        output.pieces(&[(style, &label), (PLAIN, &place)])?;
        output.line(format_args!("         {}", damage.reason))?;
        match &damage.follows {
            Some(follows) => {
                output.line(format_args!("         {}", follows_text(follows, &damage.segment)))?;
            }
            None if damage.searched => output.line("         nothing intact follows")?,
            None => {}
        }
    }
    for unsupported in &verified.unsupported {
        let Unsupported { session, sequence, kind } = unsupported;
        let kind = format!("  {session}, record {sequence}: this version cannot fold kind {kind}");
        output.pieces(&[(CAUTION, &"unknown"), (PLAIN, &kind)])?;
    }
    for open in &verified.exposed {
        let path = format!("  {} is {}: other users may read it", escape::path(&open.path), open.mode);
        output.pieces(&[(CAUTION, &"exposed"), (PLAIN, &path)])?;
    }
    for unreadable in &verified.unreadable {
        let path = format!("   {}: {}", escape::path(&unreadable.path), unreadable.reason);
        output.pieces(&[(BAD, &"unread"), (PLAIN, &path)])?;
    }
    if let Some(captures) = &verified.captures {
        print_captures(captures, output)?;
    }
    if verified.corrupt.is_empty() && verified.incomplete.is_empty() && verified.unreadable.is_empty() {
        let (style, text) = match (verified.sessions, verified.passed_over) {
            (0, 1..) => (CAUTION, "nothing was checked: no directory of a session contains records"),
            (_, 0) => (GOOD, "every frame, body, seal and object is intact"),
            (_, 1..) => (GOOD, "every frame, body, seal and object of these sessions is intact"),
        };
        output.styled_line(style, text)?;
    }
    Ok(())
}

fn print_captures(captures: &CaptureCounts, output: &mut Output<'_>) -> Result<()> {
    let CaptureCounts { read, collected, elsewhere, damaged_more, .. } = captures;
    let captures = count_text(*read, "capture");
    output.line(format_args!(
        "{captures} of workspaces read, {collected} were collected, {elsewhere} are not in the sessions' directories"
    ))?;
    match damaged_more {
        0 => Ok(()),
        more => output.line(format_args!("and {more} more damaged files of captures")),
    }
}
