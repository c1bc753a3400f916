//! `foldlog gc`: removes unneeded files from a store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use foldlog::inspect;
use foldlog::{CollectOptions, CollectReport, CollectedFiles, LeftAlone, Store, escape};
use foldlog_view::text::count_text;

use super::compact::{DAY_SECONDS, SnapshotRetention};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::in_store;
use crate::remote;

/// Describes the fields of `gc --json`.
const GC_JSON: &str = "\
With --json one object:
  sessions  by their ids, those of which anything was removed: objects, captures, images, leftovers, bytes;
            objects: of large payloads; captures: objects of captures of workspaces; leftovers: what crashes have left;
            bytes: what the disk gets back
  skipped   by their ids, why nothing was removed of a session, or nothing of its captures
  left      what is in the place of a file or directory of the store's and is none, and was left alone: path, what
  all       what was removed of the whole store, with the same fields
With --json of a place one object a line, for each session: session, chunks, bytes, volumes, left, young, dropped, dropped_bytes,
            waiting, payloads, payload_bytes, payloads_left, undecoded;
            chunks: those that are removed, or would be, and bytes: their length; volumes: larger objects that were missing and
            were put; left: chunks that stay, and young: how many of these stand in a volume that is younger than a day, the others
            are in none yet; dropped: records that lose the bodies that `compact` dropped from the session's log,
            and dropped_bytes: by how much the place gets shorter; waiting: records that lose theirs once their chunks are collected;
            payloads: large values and packs of captures that nothing names any more, and payload_bytes: their length;
            payloads_left: those that go at the earliest a day after the `gc --yes` that first found them so; undecoded: first record
            of which this version cannot say what it names, so that no payload goes";

/// Holds what the command line asks of `foldlog gc`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = GC_JSON)]
pub struct Args {
    /// The directory of a store, or of a session of one; or the URL of a bucket that holds sessions, or of one of them.
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Which snapshots keep their captures.
    #[arg(long, value_enum, default_value_t)]
    pub keep: SnapshotRetention,
    /// Keep the captures of the latest N calls of each session [default: 100].
    #[arg(long = "keep-calls", value_name = "N")]
    pub calls: Option<u64>,
    /// Keep the captures of the last DAYS days.
    #[arg(long = "keep-days", value_name = "DAYS")]
    pub days: Option<u64>,
    /// Remove the files.
    #[arg(long)]
    pub yes: bool,
}

impl Args {
    /// Runs the verb, and returns the exit code.
    ///
    /// # Errors
    ///
    /// Those of [`run`].
    pub fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let Args { path, keep, calls, days, yes } = self;
        if let Some(url) = remote::url(&path) {
            if calls.is_some() || days.is_some() || keep != SnapshotRetention::default() {
                return Err(CommandError::usage(
                    "--keep, --keep-calls and --keep-days are for a store: a place keeps all captures",
                    "leave them out",
                ));
            }
            #[cfg(feature = "object-store")]
            return remote::collect(url, yes, output);
            #[cfg(not(feature = "object-store"))]
            {
                let _ = url;
                return Err(remote::not_built());
            }
        }
        run(&path, &GcCommand { keep, calls, days, yes }, output)
    }
}

/// Options of a garbage collection.
#[derive(Debug)]
pub struct GcCommand {
    /// Snapshots whose captures are retained.
    pub keep: SnapshotRetention,
    /// Number of latest calls of each session whose captures are retained.
    pub calls: Option<u64>,
    /// Age in days up to which captures are retained.
    pub days: Option<u64>,
    /// Whether files are removed; if not, only reports them.
    pub yes: bool,
}

/// Collects a store, or one session of a store, and prints the files that were or would be removed.
///
/// # Errors
///
/// [`CommandError::Usage`] if `path` is neither a store nor a session in one;
/// [`CommandError::Engine`] if the store is read-only, or a file cannot be removed.
pub fn run(path: &Path, asked: &GcCommand, output: &mut Output<'_>) -> Result<u8> {
    let (root, session) = match inspect::is_store(path) {
        true => (path.to_owned(), None),
        false => {
            in_store(path).map(|(root, id)| (root, Some(id))).map_err(|failure| no_store(path, failure))?
        }
    };
    let options = CollectOptions {
        session,
        snapshots: asked.keep.into(),
        younger_than: asked.days.map(|days| Duration::from_secs(days.saturating_mul(DAY_SECONDS))),
        dry_run: !asked.yes,
        ..CollectOptions::default()
    };
    let calls = asked.calls.unwrap_or(options.calls);
    let report =
        Store::open_with(root, output.store_options())?.collect(&CollectOptions { calls, ..options })?;
    if output.json() {
        output.value(&report)?;
        return Ok(HOLDS);
    }
    let CollectReport { sessions, skipped, left, all, .. } = &report;
    let verb = if asked.yes { "removed" } else { "would remove" };
    for (id, collected) in sessions {
        output.line(format_args!("session {id}: {verb} {}", describe_collected(collected)))?;
    }
    for (id, reason) in skipped {
        output.line(format_args!("session {id}: skipped: {reason}"))?;
    }
    for LeftAlone { path, what, .. } in left {
        output.line(format_args!("{}: left alone: it is {what}", escape::path(path)))?;
    }
    match (*all == CollectedFiles::default(), asked.yes) {
        (true, _) => output.line(format_args!("nothing to remove"))?,
        (false, true) => output.line(format_args!("removed {}", describe_collected(all)))?,
        (false, false) => {
            output.line(format_args!("would remove {}; --yes removes them", describe_collected(all)))?;
        }
    }
    Ok(HOLDS)
}

fn no_store(path: &Path, failure: CommandError) -> CommandError {
    match failure {
        CommandError::Usage { .. } => CommandError::usage(
            format!("{} is no store and no session of one", escape::path(path)),
            "give the directory of a store, or of a session: STORE/sessions/ID",
        ),
        failure => failure,
    }
}

fn describe_collected(collected: &CollectedFiles) -> String {
    let parts = [
        (collected.objects, "object"),
        (collected.captures, "object of captures"),
        (collected.images, "image"),
        (collected.leftovers, "leftover"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| match *what {
            "object of captures" => format!("{} of captures", count_text(*count, "object")),
            what => count_text(*count, what),
        })
        .collect();
    format!("{}, {} bytes", parts.join(", "), collected.bytes)
}
