//! `foldlog stats`: counts the contents of a session's log.
//!
//! `--json` prints one object with the fields of [`Stats`]. Fields named `bytes` or ending in
//! `_bytes` are bytes; every other number is a count. For an intact log:
//!
//! 1. `used_bytes` is the sum of the segments' `used_bytes`, and also the sum of
//!    `segment_header_bytes` and the `bytes` of all `kinds`.
//! 2. `records` is the sum of `live_records` and `abandoned_records`, also the sum of the segments'
//!    `records`, and also the sum of the `frames` of those `kinds` that are not an `envelope`.

use std::fmt::Display;
use std::path::PathBuf;

use foldlog::inspect::SegmentInfo;
use foldlog_codec::escape;
use foldlog_view::documents::stats::{SliceStats, Stats, ToolStats, stats};
use foldlog_view::spend::Spent;
use foldlog_view::text::{count_text, or_dash};

use crate::command::{Argument, Command, Group, Urls};
use crate::failure::Result;
use crate::output::Output;
use crate::readers::{code_of, open_sound};

/// Describes the fields of `stats --json`; [`Stats`] documents each.
const STATS_JSON: &str = "\
`rollbacks` counts records of the kind `rollback`. The end record of a call that was rolled back is
of the kind `tool_end`, and does not count.

With --json one object. `bytes` and fields that end in `_bytes` are bytes, other numbers are counts:
  session, records, live_records, abandoned_records, snapshots, rollbacks,
  used_bytes, allocated_bytes, segment_header_bytes, torn_bytes,
  segments  ordinal, session, first_sequence, records, used_bytes, allocated_bytes, compression,
            sealed
  kinds     kind, envelope, frames, bytes
  events    event, records, payload_bytes
  slices    slice, policy, live_items, live_bytes, ever_items, ever_bytes
  objects   count, bytes (in the directory), named_count, named_bytes (by records)
  images    name, bytes
  models    model (null if no record names it), requests (whose usage the provider reported),
            input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_micros
  tools     tool, calls, failed_calls, argument_bytes, result_bytes, elapsed_us; if requests were
            made within the calls, their tokens and cost, including those of nested calls
  spent     sequence, time, and the total tokens and cost up to there; at most 200 records,
            including the last one
input_tokens does not include tokens of the cache. cost_micros is in millionths of the host's
currency, and left out if no cost was reported. Abandoned records are counted too.";

/// Count records, bytes, calls, tokens and cost.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = STATS_JSON)]
pub struct Args {
    /// Directory of the session, or URL/sessions/ID in a bucket or database
    pub session: PathBuf,
}

impl Command for Args {
    const GROUP: Group = Group::Look;
    const URLS: Urls = Urls::Copied;
    const ARGUMENT: Argument<Self> = |arguments| Some(&mut arguments.session);
    const EXAMPLE: &'static str = "foldlog stats SESSION";

    /// Prints the statistics of a session's log. Of a damaged log, counts the intact part.
    ///
    /// # Errors
    ///
    /// [`Error::Engine`](foldlog_view::Error::Engine) if the session is corrupt or cannot be
    /// read, [`Error::File`](foldlog_view::Error::File) if its directory of objects or
    /// images cannot be read.
    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let reader = open_sound(&self.session, output)?;
        let stats = stats(&reader)?;
        output.print(&stats, |output| print(&stats, output))?;
        Ok(code_of(&reader, output))
    }
}

fn print(stats: &Stats, output: &mut Output<'_>) -> Result<()> {
    let (records, live, abandoned) = (stats.records, stats.live_records, stats.abandoned_records);
    let (snapshots, rollbacks) =
        (count_text(stats.snapshots, "snapshot"), count_text(stats.rollbacks, "rollback"));
    output.line(format_args!("session {}", stats.session))?;
    output.line(format_args!(
        "{}: {live} live, {abandoned} abandoned; {snapshots}, {rollbacks}",
        count_text(records, "record")
    ))?;
    let segments = count_text(stats.segments.len() as u64, "segment");
    let (used, allocated) = (stats.used_bytes, stats.allocated_bytes);
    output.line(format_args!("{segments}: {used} bytes used of {allocated} allocated"))?;

    print_tables(stats, output)
}

fn print_tables(stats: &Stats, output: &mut Output<'_>) -> Result<()> {
    heading(output, "segment", &["first", "records", "used_bytes", "allocated", "codec", "sealed"])?;
    for segment in &stats.segments {
        let SegmentInfo { first_sequence, records, used_bytes, allocated_bytes, compression, .. } = segment;
        let sealed = if segment.seal_bytes > 0 { "yes" } else { "no" };
        row(
            output,
            segment.ordinal,
            &[first_sequence, records, used_bytes, allocated_bytes, compression, &sealed],
        )?;
    }
    heading(output, "kind", &["frames", "bytes"])?;
    for kind in &stats.kinds {
        row(output, &kind.kind, &[&kind.frames, &kind.bytes])?;
    }
    row(output, "(segment headers)", &[&stats.segments.len(), &stats.segment_header_bytes])?;
    heading(output, "event", &["records", "payload"])?;
    for event in &stats.events {
        row(output, &event.event, &[&event.records, &event.payload_bytes])?;
    }
    heading(output, "slice", &["items", "bytes", "items_ever", "bytes_ever"])?;
    for slice in &stats.slices {
        let SliceStats { live_items, live_bytes, ever_items, ever_bytes, .. } = slice;
        let name = format!("{} ({})", slice.slice, slice.policy);
        row(output, name, &[live_items, live_bytes, ever_items, ever_bytes])?;
    }
    let objects = stats.objects;
    heading(output, "object", &["count", "bytes"])?;
    row(output, "in the directory", &[&objects.count, &objects.bytes])?;
    row(output, "named by records", &[&objects.named_count, &objects.named_bytes])?;
    heading(output, "image", &["bytes"])?;
    if stats.images.is_empty() {
        output.line("(none)")?;
    }
    stats.images.iter().try_for_each(|image| row(output, &image.name, &[&image.bytes]))?;
    print_spending(stats, output)
}

/// Number of records for which a person is shown the sums spent so far.
const SPENT_ROWS_MAX: usize = 10;

/// Prints the spending of models and tools, as far as the log reports it.
fn print_spending(stats: &Stats, output: &mut Output<'_>) -> Result<()> {
    let all = stats.spent.last().map(|last| last.spent).unwrap_or_default();
    let columns = |names: &[&'static str]| -> Vec<&'static str> {
        let tokens: &[&str] = if all.has_tokens() { &["sent", "answered"] } else { &[] };
        let cost = all.cost_micros.map(|_| "cost");
        names.iter().chain(tokens).copied().chain(cost).collect()
    };
    let spent_row = |output: &mut Output<'_>, name: &dyn Display, numbers: &[u64], spent: Option<Spent>| {
        let mut cells: Vec<String> = numbers.iter().map(u64::to_string).collect();
        // An unreported value is not zero.
        if all.has_tokens() {
            let tokens = spent.filter(Spent::has_tokens);
            cells.push(or_dash(tokens.map(|spent| spent.sent_tokens())));
            cells.push(or_dash(tokens.map(|spent| spent.output_tokens)));
        }
        if all.cost_micros.is_some() {
            cells.push(or_dash(spent.and_then(|spent| spent.cost_micros).map(money)));
        }
        let cells: Vec<&dyn Display> = cells.iter().map(|cell| cell as &dyn Display).collect();
        row(output, name, &cells)
    };
    if !stats.models.is_empty() {
        heading(output, "model", &columns(&["requests"]))?;
        for model in &stats.models {
            let name = model.model.as_deref().unwrap_or("(not named)");
            spent_row(output, &name, &[model.requests], Some(model.spent))?;
        }
    }
    if !stats.tools.is_empty() {
        heading(output, "tool", &columns(&["calls", "failed", "arguments", "results", "elapsed_us"]))?;
        for tool in &stats.tools {
            let ToolStats { calls, failed_calls, argument_bytes, result_bytes, elapsed_us, .. } = tool;
            let numbers = [*calls, *failed_calls, *argument_bytes, *result_bytes, *elapsed_us];
            spent_row(output, &tool.tool, &numbers, tool.spent)?;
        }
    }
    if !stats.spent.is_empty() {
        heading(output, "spent through record", &columns(&[]))?;
        let every = stats.spent.len().div_ceil(SPENT_ROWS_MAX);
        for at in stats.spent.iter().rev().step_by(every).rev() {
            let second = at.time.get(..TIME_CHARS).unwrap_or(&at.time);
            spent_row(output, &format_args!("{:<8}{second}", at.sequence), &[], Some(at.spent))?;
        }
    }
    Ok(())
}

/// Number of characters of a time up to its seconds.
const TIME_CHARS: usize = 19;

/// Formats an amount in the host's currency.
fn money(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

/// Writes the headings of a table, after an empty line.
fn heading(output: &mut Output<'_>, name: &str, columns: &[&str]) -> Result<()> {
    let columns: Vec<&dyn Display> = columns.iter().map(|column| column as &dyn Display).collect();
    output.line("")?;
    row(output, name, &columns)
}

/// Writes a line of a table: its name and its numbers.
fn row(output: &mut Output<'_>, name: impl Display, cells: &[&dyn Display]) -> Result<()> {
    let cells: String = cells.iter().map(|cell| format!("  {:>10}", cell.to_string())).collect();
    output.line(format_args!("{:<28}{cells}", escape::display(name).to_string()))
}
