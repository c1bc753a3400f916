//! The records of the demo's sessions, as the demo prints them.

use std::path::PathBuf;

use foldlog::inspect::LogReader;
use foldlog_view::documents::timeline::Timeline;
use foldlog_view::record_names::record_name;
use foldlog_view::visits::each_record;

use super::{heading, say};
use crate::failure::Result;
use crate::output::Output;

/// Number of consecutive records of one name that are printed before the rest is only counted.
const ALIKE_MAX: usize = 3;

/// Prints the records of the session and of its fork. Of many consecutive records of one name,
/// prints the first and counts the others.
pub(super) fn print(dirs: &[PathBuf], output: &mut Output<'_>) -> Result<()> {
    if output.json() {
        return Ok(());
    }
    for (dir, whose) in dirs.iter().zip(["7. The session's records:", "   The fork's own records:"]) {
        heading(output, whose)?;
        let reader = LogReader::open(dir)?;
        let (timeline, names) = (Timeline::from_reader(&reader), reader.names());
        say(output, Timeline::HEADINGS)?;
        let (mut alike, mut before) = (0, (String::new(), true));
        each_record(&reader, reader.opened_sequence()..=reader.last_position(), |record| {
            let now = (
                format!("{} {}", record.kind, record_name(record, &names)),
                timeline.is_live(record.sequence),
            );
            if now != before {
                left_out(alike, output)?;
                (alike, before) = (0, now);
            }
            alike += 1;
            if alike <= ALIKE_MAX { output.line(timeline.text(record)) } else { Ok(()) }
        })?;
        left_out(alike, output)?;
    }
    Ok(())
}

fn left_out(alike: usize, output: &mut Output<'_>) -> Result<()> {
    match alike.checked_sub(ALIKE_MAX) {
        None | Some(0) => Ok(()),
        Some(more) => output.line(format_args!("     ...  {more} more of the same")),
    }
}
