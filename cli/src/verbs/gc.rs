//! `foldlog gc`: removes unneeded files from a store.

use std::path::{Path, PathBuf};

use foldlog::inspect;
use foldlog::{CollectOptions, CollectReport, CollectedFiles, KeptSnapshots, LeftAlone, Store, escape};
use foldlog_view::text::count_text;

use crate::command::{Access, Argument, Command, Group, Target, Urls};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::readers::in_store;
use crate::value_parsers::{days, kept_snapshots};

/// Describes the fields of `gc --json`.
const GC_JSON: &str = "\
With --json one object:
  sessions  by id, the sessions with files that are, or would be, removed: objects (of large
            payloads), captures (objects of captures of workspaces), images, leftovers (of crashes),
            bytes (freed on the disk)
  skipped   by id, the reason why nothing of a session, or none of its captures, is removed
  left      entries that have the name of a file or directory of the store but are something else,
            and are not touched: path, what
  all       sums for the whole store, with the same fields
With --json and a URL one object a line, for each session:
  session
  chunks         small objects with records that are, or would be, removed; bytes: their length
  volumes        larger objects that were missing and are written
  left           chunks that remain; young: how many of them are in a volume that is younger than a
                 day; the others are in no volume yet
  dropped        records whose bodies are removed, since `compact` dropped them from the session's
                 log; dropped_bytes: length of these bodies
  waiting        records whose bodies are removed once their chunks are
  payloads       large values and packs of captures that nothing refers to; payload_bytes: their
                 length
  payloads_left  those that remain until a day after the first `gc --yes` that found them
  undecoded      first record whose references this version cannot read: no payload is removed";

/// List or remove files that nothing needs.
///
/// Without --yes, files are only listed: objects of bodies that `compact` has dropped,
/// captures of workspaces that no rewind needs, old images, and leftovers of crashes.
/// Captures of the latest calls, of open and waiting calls, of the last rewind, and of kept
/// snapshots remain. Sessions that are open or damaged are skipped.
///
/// Of a bucket, small chunks of records are removed once a larger object that is at least a
/// day old contains them. Workers and readers may continue meanwhile.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = GC_JSON)]
pub struct Args {
    /// Directory of a store or session, or URL of a bucket, a database or a session in one
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Snapshots whose captures are kept
    #[arg(long, value_parser = kept_snapshots(), default_value = "tagged")]
    pub keep: KeptSnapshots,
    /// Keep the captures of the latest N calls of each session [default: 100]
    #[arg(long = "keep-calls", value_name = "N")]
    pub calls: Option<u64>,
    /// Keep the captures of the last DAYS days
    #[arg(long = "keep-days", value_name = "DAYS")]
    pub days: Option<u64>,
    /// Remove the files instead of only listing them
    #[arg(long)]
    pub yes: bool,
}

impl Command for Args {
    const GROUP: Group = Group::Keep;
    const ACCESS: Access = Access::ChangesWith("--yes");
    const TARGET: Target = Target::SessionOrStore;
    const URLS: Urls = Urls::Read;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.path);
    const EXAMPLE: &'static str = "foldlog gc STORE --yes";

    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        #[cfg(feature = "object-store")]
        if let Some(url) = crate::remote::url(&self.path) {
            if self.calls.is_some() || self.days.is_some() || self.keep != KeptSnapshots::default() {
                return Err(CommandError::usage(
                    "--keep, --keep-calls and --keep-days apply only to a store: a bucket or database keeps all captures",
                    "omit them",
                ));
            }
            return crate::remote::collect(url, self.yes, output);
        }
        collect(&self, output)
    }
}

/// Collects a store, or one session of a store, and prints the files that were or would be removed.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if `path` is neither a store nor a session in one;
/// [`Error::Engine`](foldlog_view::Error::Engine) if the store is read-only, or a file cannot be
/// removed.
fn collect(asked: &Args, output: &mut Output<'_>) -> Result<u8> {
    let path = asked.path.as_path();
    let (root, session) = match inspect::is_store(path) {
        true => (path.to_owned(), None),
        false => {
            in_store(path).map(|(root, id)| (root, Some(id))).map_err(|failure| no_store(path, failure))?
        }
    };
    let options = CollectOptions {
        session,
        snapshots: asked.keep,
        younger_than: asked.days.map(days),
        dry_run: !asked.yes,
        ..CollectOptions::default()
    };
    let calls = asked.calls.unwrap_or(options.calls);
    let report =
        Store::open_with(root, output.store_options())?.collect(&CollectOptions { calls, ..options })?;
    output.print(&report, |output| print(&report, asked.yes, output))?;
    Ok(HOLDS)
}

fn print(report: &CollectReport, yes: bool, output: &mut Output<'_>) -> Result<()> {
    let CollectReport { sessions, skipped, left, all, .. } = report;
    let verb = if yes { "removed" } else { "would remove" };
    for (id, collected) in sessions {
        output.line(format_args!("session {id}: {verb} {}", describe_collected(collected)))?;
    }
    for (id, reason) in skipped {
        output.line(format_args!("session {id}: skipped: {reason}"))?;
    }
    for LeftAlone { path, what, .. } in left {
        output.line(format_args!("{}: left alone: it is {what}", escape::path(path)))?;
    }
    let rest = if yes { "" } else { "; --yes removes them" };
    match *all == CollectedFiles::default() {
        true => output.line("nothing to remove"),
        false => output.line(format_args!("{verb} {}{rest}", describe_collected(all))),
    }
}

fn no_store(path: &Path, failure: CommandError) -> CommandError {
    match failure {
        CommandError::View(foldlog_view::Error::Usage { .. }) => CommandError::usage(
            format!("{} is neither a store nor a session in one", escape::path(path)),
            "give the directory of a store, or of a session: STORE/sessions/ID",
        ),
        failure => failure,
    }
}

fn describe_collected(collected: &CollectedFiles) -> String {
    let parts = [
        (collected.objects, "object", ""),
        (collected.captures, "object", " of captures"),
        (collected.images, "image", ""),
        (collected.leftovers, "leftover", ""),
    ];
    let parts = parts.into_iter().filter(|(count, ..)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, what, of)| count_text(count, what) + of).collect();
    format!("{}, {} bytes", parts.join(", "), collected.bytes)
}
