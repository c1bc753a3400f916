//! `foldlog export`: a session's slices or records for other tools.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::TypedValueParser;
use foldlog::{Policy, SequenceNumber, Store};
use foldlog_tasks::{CompressionAlgorithm, ExportReport, StateCompression, WorkspaceStores, export_session};
use foldlog_view::document;
use foldlog_view::documents::timeline::Timeline;
use foldlog_view::positions::{Position, position};
use foldlog_view::session_dirs::store_of;
use foldlog_view::text::count_text;
use foldlog_view::visits::each_record;

use crate::command::{Argument, Command, Group, Urls};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::{code_of, map_write_error, open_session, open_sound, open_sound_outline};
use crate::runs::claude_code;
use crate::value_parsers::words;

/// Write a session for other programs.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
    /// Position to export [default: the last one]
    #[arg(long, value_name = "POSITION")]
    pub at: Option<Position>,
    /// Format of the export
    #[arg(long)]
    pub format: Format,
    /// Directory for the files of format claude-code; existing files are not changed
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Directory in whose `.aca` the changed files of format aca are written
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
    /// Compression of files of format aca that have at least 4 KiB [default: none]
    #[arg(long, value_parser = codec(), value_name = "CODEC")]
    pub compress: Option<CompressionAlgorithm>,
}

impl Command for Args {
    const GROUP: Group = Group::Exchange;
    const URLS: Urls = Urls::Copied;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog export SESSION --format jsonl";

    /// Exports the session at position `at`, or at the last one.
    ///
    /// - `snapshot-json` and `jsonl` are printed. Snapshot JSON contains STATE and LOG slices;
    ///   CACHE slices can be recomputed and are left out. Children are those in the store of the
    ///   session. Of a damaged session, both contain the intact part, up to the last position
    ///   before the damage.
    /// - The files of a transcript are written into the directory `out`, byte for byte. Without a
    ///   directory, the lines of a transcript without sub-agents are printed, escaped.
    /// - A tree is written into the directory's `.aca`, and a summary is printed.
    ///
    /// # Errors
    ///
    /// - [`Error::Usage`](foldlog_view::Error::Usage) if the log has no such position, if the
    ///   options do not fit the format, or if the session contains no transcript that can be
    ///   written.
    /// - [`Error::File`](foldlog_view::Error::File) if a file of a transcript cannot be written, or
    ///   already exists.
    /// - [`Error::Engine`](foldlog_view::Error::Engine) if the session is corrupt or cannot be
    ///   read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let Args { session, at, format, out, to, compress } = self;
        let session = session.as_path();
        if out.is_some() && format != Format::ClaudeCode {
            return Err(CommandError::usage("--out applies only to --format claude-code", "omit --out"));
        }
        if (to.is_some() || compress.is_some()) && format != Format::Aca {
            return Err(CommandError::usage("--to and --compress apply only to --format aca", "omit them"));
        }
        match format {
            Format::ClaudeCode => return transcript(session, at, out.as_deref(), output),
            Format::Aca => return tree(session, at, to.as_deref(), compress, output),
            Format::SnapshotJson | Format::Jsonl => {}
        }
        let reader = match format {
            Format::Jsonl => open_sound_outline(session, output)?,
            _ => open_sound(session, output)?,
        };
        let at = position(&reader, at)?;
        match format {
            Format::Jsonl => {
                let timeline = Timeline::from_reader(&reader);
                each_record(&reader, SequenceNumber::MIN..=at, |record| {
                    output.value(&timeline.value(record))
                })?;
            }
            _ => {
                let policies = BTreeSet::from([Policy::State, Policy::Log]);
                let children = match store_of(session) {
                    Some((store, id)) => Store::open(store)?.children(id)?,
                    None => Vec::new(),
                };
                map_write_error(reader.write_export(at, &policies, children, &mut *output.stdout))?;
                writeln!(output.stdout)?;
            }
        }
        Ok(code_of(&reader, output))
    }
}

/// Names what an export prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Slices as one JSON document, for `foldlog import snapshot-json` and other programs
    SnapshotJson,
    /// Records, one JSON object a line, as `foldlog show --json` prints them
    Jsonl,
    /// Files of an imported Claude Code transcript, byte for byte
    ClaudeCode,
    /// The whole session as JSON files in `.aca/sessions/ID`, for `foldlog import aca`
    Aca,
}

/// Parses what files of a tree are compressed by.
fn codec() -> impl TypedValueParser<Value = CompressionAlgorithm> {
    words([
        ("zstd", "Zstandard", CompressionAlgorithm::Zstd),
        ("gzip", "gzip", CompressionAlgorithm::Gzip),
        ("lz4", "LZ4", CompressionAlgorithm::Lz4),
        ("none", "No compression", CompressionAlgorithm::None),
    ])
}

/// Writes the session's tree into the `.aca` of a directory.
fn tree(
    session: &Path,
    at: Option<Position>,
    to: Option<&Path>,
    compress: Option<CompressionAlgorithm>,
    output: &mut Output<'_>,
) -> Result<u8> {
    let Some(to) = to else {
        let next = "give the directory that is to contain `.aca`: `--to DIR`";
        return Err(CommandError::usage("--format aca writes files, and needs a directory", next));
    };
    let reader = open_session(session, output)?;
    let at = match (at, reader.report().interrupted.iter().find(|open| !open.reads_only)) {
        // A position within a call cannot become a session.
        (None, Some(open)) if open.begin > SequenceNumber::MIN => {
            let (before, operation) = (open.begin.saturating_sub(1), open.operation);
            output.note(format_args!(
                "note: operation {operation} has not ended: the session is exported as of before it"
            ));
            before
        }
        (at, _) => position(&reader, at)?,
    };
    std::fs::create_dir_all(to).map_err(|source| CommandError::file(to, source))?;
    let stores = WorkspaceStores::from_session_dir(session);
    let compression = StateCompression::new(compress.unwrap_or_default());
    let report = export_session(&reader, at, &stores, to, &compression)?;
    if output.json() {
        let ExportReport { dir, files, written, written_bytes, removed, foreign, .. } = report;
        output.value(&document! { dir, position: at, files, written, written_bytes, removed, foreign })?;
        return Ok(HOLDS);
    }
    let (files, written) = (count_text(report.files, "file"), report.written);
    output.line(format_args!("position {at} exported to {}", foldlog::escape::path(&report.dir)))?;
    output.line(format_args!(
        "{files}: {written} written ({} bytes), {} removed",
        report.written_bytes, report.removed
    ))?;
    for path in &report.foreign {
        output.line(format_args!("not part of the export, unchanged: {}", foldlog::escape::text(path)))?;
    }
    Ok(HOLDS)
}

fn transcript(
    session: &Path,
    at: Option<Position>,
    out: Option<&Path>,
    output: &mut Output<'_>,
) -> Result<u8> {
    if at.is_some() {
        let what =
            "--at does not apply to --format claude-code, which writes the files as they were imported";
        return Err(CommandError::usage(what, "omit --at"));
    }
    let reader = open_session(session, output)?;
    let Some(out) = out else {
        claude_code::export_main(&reader, &mut *output.stdout)?;
        return Ok(HOLDS);
    };
    let written = claude_code::export(&reader, out)?;
    output.print(&written, |output| {
        let (files, lines) = (count_text(written.files, "file"), count_text(written.lines, "line"));
        output.line(format_args!("{files}, {lines}"))
    })?;
    Ok(HOLDS)
}
