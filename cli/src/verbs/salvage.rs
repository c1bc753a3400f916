//! `foldlog salvage`: copies the intact part of a damaged session into a new session. The damaged
//! one is only read.

use std::fs;
use std::path::{Component, Path, PathBuf};

use foldlog::{
    Error, MissingObject, OperationId, SalvageReport, SequenceNumber, SessionOptions, SmolStr, Store,
};
use foldlog_view::document;
use foldlog_view::documents::PathField;
use foldlog_view::text::count_text;
use serde::Serialize;

use foldlog_codec::escape;

use crate::command::{Access, Argument, Command, Group};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::note_interrupted;

/// Describes the fields of `salvage --json`.
const SALVAGE_JSON: &str = "\
With --json one object:
  session, dir     id and directory of the new session
  from             id of the damaged session
  records          number of copied records, which are those below this sequence number
  objects          number of copied objects
  damage           error with which the damaged session does not open; null if it opens
  segment, offset  end of its intact part
  mended           damaged places whose contents the bytes after them prove: segment, offset
  left             parts that were not copied: segment, offset, bytes, records, sequences, more,
                   reason
  missing_objects  objects that are missing or damaged: sequence, path, reason
  open, unsettled  calls to recover, and calls to settle: operation, tool
  beside           other files in the session's directory, which were not copied";

/// Copy the intact part of a damaged session.
///
/// Copies the records before the first damage into a new session. The damaged session is
/// only read. Damage in a segment's header, or in a frame without a record, is repaired if
/// the following bytes prove its content. Records after a damaged record, a missing segment
/// or a missing object are counted, not copied.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = SALVAGE_JSON)]
pub struct Args {
    /// Directory of the damaged session
    pub session: PathBuf,
    /// Directory of the store for the new session, created if it does not exist
    #[arg(long, value_name = "STORE")]
    pub to: PathBuf,
}

impl Command for Args {
    const GROUP: Group = Group::Decide;
    const ACCESS: Access = Access::Creates;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog salvage SESSION --to STORE";

    /// Copies the intact part of the session at `session`, before its first damage, into a new
    /// session in the store `to`, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if `to` is a link, is inside the session's
    ///   directory, or contains anything but a store.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if no part of the session is intact, it
    ///   cannot be read, or a process has it open for writing.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let to = self.to.as_path();
        let session = match self.session.canonicalize() {
            Ok(session) if session.is_dir() => session,
            Ok(path) => {
                return Err(Error::NotASession { path, reason: "it is not a directory".to_owned() }.into());
            }
            Err(_) => {
                let (path, reason) = (self.session, "there is no such directory".to_owned());
                return Err(Error::NotASession { path, reason }.into());
            }
        };
        let is_new = check_target(&session, to)?;
        let store = Store::open_with(to, output.store_options())?;
        let salvaged = match store.salvage(&session, SessionOptions::default()) {
            Ok(salvaged) => salvaged,
            Err(error) => {
                if is_new {
                    // Only empty directories are removed.
                    let _ = fs::remove_dir(to.join("sessions"));
                    let _ = fs::remove_dir(to);
                }
                return Err(error.into());
            }
        };
        output.print(&document(&salvaged), |output| print(&salvaged, output))?;
        note_interrupted(&salvaged.open, &salvaged.unsettled, output);
        Ok(HOLDS)
    }
}

/// Returns the counts of copied and omitted data as a document.
fn document(salvaged: &SalvageReport) -> impl Serialize {
    let mended = salvaged.mended.iter();
    let mended = mended.map(|(segment, offset)| document! { segment: PathField(segment), offset });
    let row = |operation: OperationId, tool: &SmolStr| document! { operation, tool: tool.to_string() };
    let open = salvaged.open.iter().map(|open| row(open.operation, &open.tool));
    let unsettled = salvaged.unsettled.iter().map(|one| row(one.operation, &one.tool));
    document! {
        session: salvaged.session,
        dir: PathField(&salvaged.dir),
        from: salvaged.from,
        records: salvaged.records,
        objects: salvaged.objects,
        damage: salvaged.damage.as_ref().map(ToString::to_string),
        segment: PathField(&salvaged.end.0),
        offset: salvaged.end.1,
        mended: mended.collect::<Vec<_>>(),
        left: &salvaged.left,
        missing_objects: &salvaged.missing_objects,
        open: open.collect::<Vec<_>>(),
        unsettled: unsettled.collect::<Vec<_>>(),
        beside: &salvaged.beside,
    }
}

/// Checks that `to` is a store or can become one, and returns whether it is still empty.
fn check_target(session: &Path, to: &Path) -> Result<bool> {
    let next = "give the directory of a store, or one that is new or empty";
    let wrong = |what: &str| Err(CommandError::usage(format!("{} {what}", escape::path(to)), next));
    let failed = |source| CommandError::file(to, source);
    let resolved = resolve(to).map_err(failed)?;
    let Some(resolved) = resolved else { return wrong("has `..` after a directory that does not exist") };
    if resolved.starts_with(session) {
        return wrong("is inside the damaged session");
    }
    match fs::symlink_metadata(to) {
        Err(_) => return Ok(true),
        Ok(found) if found.is_symlink() => return wrong("is a symbolic link"),
        Ok(found) if !found.is_dir() => return wrong("is not a directory"),
        Ok(_) => {}
    }
    match fs::symlink_metadata(to.join("sessions")) {
        Ok(found) if found.is_dir() => Ok(false),
        Ok(_) => wrong("is not a store: its `sessions` is not a directory"),
        Err(_) if fs::read_dir(to).map_err(failed)?.next().is_none() => Ok(false),
        Err(_) => wrong("is not a store, and not empty"),
    }
}

/// Resolves a path whose last components may not exist yet. Returns `None` if these contain `..`.
fn resolve(path: &Path) -> std::io::Result<Option<PathBuf>> {
    let path = std::path::absolute(path)?;
    let mut missing = Vec::new();
    for above in path.ancestors() {
        match above.canonicalize() {
            Ok(found) => return Ok(Some(missing.iter().rev().fold(found, |path, name| path.join(name)))),
            Err(_) => match above.components().next_back() {
                Some(Component::Normal(name)) => missing.push(name.to_owned()),
                _ => return Ok(None),
            },
        }
    }
    Ok(None)
}

fn print(salvaged: &SalvageReport, output: &mut Output<'_>) -> Result<()> {
    output.line(format_args!("salvaged {} as {}", salvaged.from, escape::path(&salvaged.dir)))?;
    let (records, objects) = (count_text(salvaged.records, "record"), count_text(salvaged.objects, "object"));
    let (segment, offset) = &salvaged.end;
    output.line(format_args!(
        "copied   {records} and {objects}, up to byte {offset} of {}",
        escape::path(segment)
    ))?;
    for (segment, offset) in &salvaged.mended {
        output.line(format_args!(
            "mended   {} at byte {offset}: damaged, but the bytes after it prove its contents",
            escape::path(segment)
        ))?;
    }
    if let Some(damage) = &salvaged.damage {
        output.line(format_args!("damage   {damage}"))?;
    }
    for left in &salvaged.left {
        let sound = match (left.records, ranges(&left.sequences)) {
            (0, _) => "no intact record".to_owned(),
            (records, Some(ranges)) => format!("{} ({ranges})", count_text(records, "intact record")),
            (records, None) => count_text(records, "intact record"),
        };
        let more = if left.more { ", or more" } else { "" };
        output.line(format_args!(
            "left     {} from byte {}: {}, {sound}{more}",
            escape::path(&left.segment),
            left.offset,
            count_text(left.bytes, "byte"),
        ))?;
        output.line(format_args!("         {}", left.reason))?;
    }
    for missing in &salvaged.missing_objects {
        let MissingObject { sequence, path, reason, .. } = missing;
        output.line(format_args!("missing  {} of record {sequence}: {reason}", escape::path(path)))?;
    }
    for name in &salvaged.beside {
        let name = escape::text(name);
        output.line(format_args!("beside   {name}: not part of the log, and not copied"))?;
    }
    if !salvaged.beside.is_empty() {
        output.line(
            "         to recover or rewind the new session, copy captures of workspaces into its directory: cp -a",
        )?;
    }
    if salvaged.left.is_empty() && salvaged.missing_objects.is_empty() {
        output.line("every record was copied")?;
    }
    Ok(())
}

fn ranges(sequences: &[(SequenceNumber, SequenceNumber)]) -> Option<String> {
    let range = |(first, last): &(SequenceNumber, SequenceNumber)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    (!sequences.is_empty()).then(|| sequences.iter().map(range).collect::<Vec<_>>().join(", "))
}
