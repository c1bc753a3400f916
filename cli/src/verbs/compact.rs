//! `foldlog compact`: drops the bodies of STATE that are no longer needed, and compresses finished
//! segments, of a session or of all sessions of a store.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::builder::TypedValueParser;
use foldlog::inspect;
use foldlog::{
    CompactOptions, CompactReport, CompressReport, Compression, KeptSnapshots, SequenceNumber, Store,
    StoreCompactReport,
};
use foldlog_view::document;
use foldlog_view::positions::{Position, record_at};
use foldlog_view::text::count_text;
use uuid::Uuid;

use crate::command::{Access, Argument, Command, Group, Target};
use crate::failure::{CommandError, HOLDS, Result, worse};
use crate::output::Output;
use crate::readers::{WriteArgs, in_store, open_session};
use crate::value_parsers::{days, kept_snapshots, words};

/// Describes the fields of `compact --json`.
const COMPACT_JSON: &str = "\
With --json one object:
  session       id of the session
  through       position up to which bodies were dropped; null if there was nothing to drop
  kept          positions up to there at which the slices can still be read
  dropped       number of records whose bodies were dropped
  segments      number of segments that were rewritten
  bytes         number of bytes by which these segments became smaller
  object_bytes  bytes of the objects that the dropped bodies refer to; `gc` removes these objects
                unless other records refer to them
  compressed    with --compress: compression, segments (files rewritten), finished (segments),
                bytes_before, bytes_after (of their files); otherwise null
With --json of a store one object:
  compacted  the changed sessions, each as above
  unchanged  number of sessions with nothing to drop
  open       ids of the sessions that are open for writing, and were skipped
  failed     sessions that could not be compacted: session, reason";

/// Drop or compress parts of logs that nothing needs.
///
/// Drops the bodies of STATE records that no slice needs any more. The session must not be
/// open for writing. Current slices, LOG slices, calls, conversations, times and the hashes
/// of dropped bodies remain. A rewind to a position that was not kept is refused
/// afterwards. Forks that were made before keep their own files.
///
/// With --compress, finished segments are compressed, or decompressed by --compress none.
/// With --compress and --keep all, nothing is dropped.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = COMPACT_JSON)]
pub struct Args {
    /// Directory of a session, or of a store: sessions that are open are skipped
    #[arg(value_name = "SESSION|STORE")]
    pub path: PathBuf,
    /// Snapshots whose positions are kept
    #[arg(long, value_parser = kept_snapshots(), default_value = "tagged")]
    pub keep: KeptSnapshots,
    /// Keep this position too, a number or a snapshot's tag; may be repeated
    #[arg(long = "keep-position", value_name = "POSITION")]
    pub positions: Vec<Position>,
    /// Keep the bodies of the last DAYS days
    #[arg(long = "keep-days", value_name = "DAYS")]
    pub days: Option<u64>,
    /// Compression of the files of finished segments [default: unchanged]
    #[arg(long, value_parser = codec(), value_name = "CODEC")]
    pub compress: Option<Compression>,
    /// Compress only segments of at least BYTES [default: 65536]
    #[arg(long = "compress-from", value_name = "BYTES", requires = "compress")]
    pub compress_from: Option<u64>,
    /// Print what would be dropped and compressed, without changing anything
    #[arg(long)]
    pub dry_run: bool,
    /// Whether replicated sessions are written: a compaction may finish a last segment with a
    /// record.
    #[command(flatten)]
    pub writing: WriteArgs,
}

impl Command for Args {
    const GROUP: Group = Group::Keep;
    const ACCESS: Access = Access::ChangesUnless("--dry-run");
    const TARGET: Target = Target::SessionOrStore;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.path);
    const EXAMPLE: &'static str = "foldlog compact STORE --keep tagged --dry-run";

    /// Compacts a session, or all sessions of a store that are not open, and prints a summary.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`](foldlog_view::Error::Usage) if `path` is neither a store nor a session in
    /// one, or positions are named for a whole store;
    /// [`Error::Engine`](foldlog_view::Error::Engine) if the session is open for writing, was
    /// interrupted or is damaged, or the disk is full.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let path = self.path.as_path();
        let is_store = inspect::is_store(path);
        if is_store && !self.positions.is_empty() {
            let what = "--keep-position applies to one session, not to a store".to_owned();
            return Err(CommandError::usage(what, "give the directory of a session: STORE/sessions/ID"));
        }
        let positions = positions(path, &self.positions, output)?;
        let options = CompactOptions {
            snapshots: self.keep,
            positions,
            younger_than: self.days.map(days),
            compression: self.compress,
            compress_bytes_min: self.compress_from,
            keep_bodies: self.compress.is_some() && self.keep == KeptSnapshots::All,
            dry_run: self.dry_run,
        };
        if is_store {
            return all(&self.writing.open(path, output)?, &options, output);
        }
        let (root, id) = in_store(path)?;
        let report = self.writing.open(&root, output)?.compact(id, &options)?;
        output.print(&report, |output| print(&report, &options, output))?;
        Ok(HOLDS)
    }
}

/// Parses how the files of finished segments are kept.
fn codec() -> impl TypedValueParser<Value = Compression> {
    words([
        ("zstd", "Zstandard, for smaller files", Compression::Zstd),
        ("lz4", "LZ4, which is faster", Compression::Lz4),
        ("none", "No compression", Compression::None),
    ])
}

fn positions(dir: &Path, asked: &[Position], output: &mut Output<'_>) -> Result<BTreeSet<SequenceNumber>> {
    let number = |one: &Position| match one {
        Position::At(at) => Some(*at),
        Position::Tagged(_) => None,
    };
    let numbers: BTreeSet<SequenceNumber> = asked.iter().filter_map(number).collect();
    if asked.iter().all(|one| number(one).is_some()) {
        return Ok(numbers);
    }
    let log = open_session(dir, output)?;
    asked.iter().map(|one| Ok(record_at(&log, Some(one))?.unwrap_or_default())).collect()
}

fn all(store: &Store, options: &CompactOptions, output: &mut Output<'_>) -> Result<u8> {
    let StoreCompactReport { compacted, unchanged, open, failed, .. } = store.compact_all(options)?;
    let failures = failed.iter().map(|(session, error)| document! { session, reason: error.to_string() });
    let document =
        document! { compacted: &compacted, unchanged, open: &open, failed: failures.collect::<Vec<_>>() };
    output.print(&document, |output| {
        for report in &compacted {
            print(report, options, output)?;
        }
        for session in &open {
            output.line(format_args!("session {session}: open for writing, skipped"))?;
        }
        for (session, error) in &failed {
            output.line(format_args!("session {session}: not compacted: {error}"))?;
        }
        output.line(format_args!("{} with nothing to drop", count_text(unchanged, "session")))
    })?;
    let codes = failed.into_iter().map(|(_, error)| CommandError::from(error).exit_code());
    Ok(codes.fold(HOLDS, worse))
}

fn print(report: &CompactReport, options: &CompactOptions, output: &mut Output<'_>) -> Result<()> {
    let CompactReport { session, through, kept, dropped, segments, bytes, object_bytes, compressed, .. } =
        report;
    match through {
        Some(through) => {
            let (verb, written) = match options.dry_run {
                true => ("would drop", String::new()),
                false => ("dropped", format!("; {} rewritten", count_text(*segments, "segment"))),
            };
            output.line(format_args!(
                "session {session}: {verb} the bodies of {} up to position {through}, {bytes} bytes{written}",
                count_text(*dropped, "record")
            ))?;
            if *object_bytes > 0 {
                output.line(format_args!(
                    "  they refer to objects of {object_bytes} bytes; `foldlog gc` removes those that no other record needs"
                ))?;
            }
            let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
            output
                .line(format_args!("  positions up to there that can still be read: {}", kept.join(", ")))?;
        }
        None if options.keep_bodies => {}
        None => output.line(format_args!("session {session}: nothing to drop"))?,
    }
    let told = compressed.as_ref().map(|compressed| tell(*session, compressed, options.dry_run, output));
    told.unwrap_or(Ok(()))
}

/// Prints the result for the files of finished segments.
fn tell(id: Uuid, compressed: &CompressReport, dry_run: bool, output: &mut Output<'_>) -> Result<()> {
    let CompressReport { compression, segments, finished, bytes_before, bytes_after, .. } = compressed;
    let verb = match (compression, dry_run) {
        (Compression::None, false) => "decompressed",
        (Compression::None, true) => "would be decompressed",
        (_, false) => "compressed",
        (_, true) => "would be compressed",
    };
    output.line(format_args!(
        "session {id}: {segments} of {} {verb}, {bytes_before} bytes before, {bytes_after} after",
        count_text(*finished, "finished segment")
    ))
}
