//! `foldlog report`: a session as one file for a browser.

use std::path::{Path, PathBuf};

use foldlog::inspect::{self, LogReader};
use foldlog_codec::escape;
use foldlog_view::documents::PathField;
use foldlog_view::positions::{Position, position, position_at, record_at};
use foldlog_view::report::{self, ReportSelection};
use foldlog_view::text::count_text;
use foldlog_view::{Payloads, RecordRange, document};

use crate::command::{Argument, Command, Group, Urls};
use crate::failure::{CommandError, Result};
use crate::output::Output;
use crate::output_file::{StagedFile, check_replaced};
use crate::readers::{code_of, open_sound};

/// Maximum number of records that one report lists.
const RECORDS_MAX: u64 = 100_000;

/// Default for the maximum length of an included value, in bytes.
const PAYLOAD_BYTES: u64 = 1 << 20;

/// Describes the fields of `report --json`.
const REPORT_JSON: &str = "\
With --json one object:
  file, bytes    path of the file, and its length
  session        id of the session; from, last: first and last listed record; at: position at
                 which the report opens
  payload_bytes  maximum length of an included value; null without --payloads";

/// Write a session as one HTML file.
///
/// The file contains the timeline, the slices and files at each step, conversations and
/// calls. It needs no network.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = REPORT_JSON)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
    /// File to write
    #[arg(long, value_name = "FILE")]
    pub html: PathBuf,
    /// Position at which the report opens: a number or a snapshot's tag [default: the last one]
    #[arg(long, value_name = "POSITION")]
    pub at: Option<Position>,
    /// First record that is listed: its number, or a snapshot's tag [default: 0]
    #[arg(long, value_name = "POSITION")]
    pub from: Option<Position>,
    /// Last record that is listed: its number, or a snapshot's tag [default: the last one]
    #[arg(long, value_name = "POSITION")]
    pub to: Option<Position>,
    /// Include payloads: values and texts of hosts, tools and models
    #[arg(long)]
    pub payloads: bool,
    /// Maximum length of an included value, such as 64K; longer ones are cut [default: 1M]
    #[arg(long, value_name = "BYTES", requires = "payloads", value_parser = crate::value_parsers::parse_bytes)]
    pub limit: Option<u64>,
    /// Replace FILE if it already exists
    #[arg(long)]
    pub force: bool,
}

impl Command for Args {
    const GROUP: Group = Group::Look;
    const URLS: Urls = Urls::Copied;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog report SESSION --html report.html";

    /// Writes a session as one HTML file, which makes no request and needs no other file. The file
    /// receives its name once it is complete. Of a damaged session, the report shows the intact
    /// part and its end.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if there is no such position, or the range
    ///   exceeds the maximum number of records.
    /// - [`Error::File`](foldlog_view::Error::File) if the file already exists, or cannot be
    ///   written.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if no part of the session is intact, or it
    ///   cannot be read or exceeds the memory limit.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let path = &self.html;
        check_replaced(path, self.force)?;
        let reader = open_sound(&self.session, output)?;
        check_outside(path, &self.session)?;
        let range = range(&reader, &self)?;
        let at = match &self.at {
            None => range.last,
            Some(at) => position(&reader, Some(at.clone()))?,
        };
        if !(range.from..=range.last).contains(&at) {
            let what =
                format!("the report lists records {} to {}, but not position {at}", range.from, range.last);
            return Err(CommandError::usage(
                what,
                "give one of these by --at, or list other records by --from and --to",
            ));
        }
        let limit = self.payloads.then(|| self.limit.unwrap_or(PAYLOAD_BYTES));
        let asked = ReportSelection { range, at, payloads: Payloads::up_to(limit) };
        let bytes = write(&reader, &asked, path, self.force, output.memory_bytes)?;
        let written = document! {
            file: PathField(path), bytes, session: reader.opening_record().session,
            from: range.from, last: range.last, at, payload_bytes: limit,
        };
        output.print(&written, |output| {
            let records = count_text(range.len(), "record");
            output.line(format_args!("{}: {records}, {bytes} bytes", escape::path(path)))?;
            match limit {
                None => output.line("payloads are not included; --payloads includes them"),
                Some(_) => Ok(()),
            }
        })?;
        Ok(code_of(&reader, output))
    }
}

/// Checks that a report is not written into a session, nor among the sessions of its store.
fn check_outside(path: &Path, session: &Path) -> Result<()> {
    let directory =
        path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (Ok(directory), Ok(session)) = (directory.canonicalize(), session.canonicalize()) else {
        return Ok(());
    };
    let store = inspect::store_around(&session);
    let is_within = directory.starts_with(&session)
        || store.is_some_and(|store| inspect::is_within_store(&directory, &store) && directory != store);
    if !is_within {
        return Ok(());
    }
    let what = format!("{} is inside a session, or among the sessions of its store", escape::path(path));
    Err(CommandError::usage(what, "give a file outside of the store"))
}

fn range(reader: &LogReader, arguments: &Args) -> Result<RecordRange> {
    let from = record_at(reader, arguments.from.as_ref())?.unwrap_or_default();
    let from = position_at(reader, Some(from))?;
    let last = position(reader, arguments.to.clone())?;
    let range = RecordRange { from, last };
    if range.is_empty() {
        let what = format!("record {from} is after record {last}");
        return Err(CommandError::usage(what, "give --from a number that is not greater than that of --to"));
    }
    if range.last.get() > u64::from(u32::MAX) {
        let what = format!("a report lists records up to {}", u32::MAX);
        return Err(CommandError::usage(what, "give an earlier last record by --to"));
    }
    if range.len() > RECORDS_MAX {
        let what =
            format!("a report lists at most {RECORDS_MAX} records, and this range has {}", range.len());
        return Err(CommandError::usage(what, "give a smaller range by --from and --to"));
    }
    Ok(range)
}

/// Writes the file without a name, and names it once it is complete, so no partial file remains if
/// the process ends. Returns its length in bytes.
fn write(
    reader: &LogReader,
    asked: &ReportSelection,
    path: &Path,
    force: bool,
    memory_bytes: Option<u64>,
) -> Result<u64> {
    let failed = |source| CommandError::file(path, source);
    let mut unplaced = StagedFile::create_for(path).map_err(failed)?;
    report::write(reader, asked, memory_bytes, unplaced.file(), path)?;
    let bytes = unplaced.file().metadata().map_err(failed)?.len();
    unplaced.place(path, force).map_err(failed)?;
    Ok(bytes)
}
