//! Shows damage in its place: the damage that ends the intact part of a log, and the intact records
//! after it.
//!
//! The predecessor of a record after damage cannot be proven, so the record belongs to no state.
//! Such records are listed after the damage as *unattached*, as in `show --beyond-damage`, and
//! their documents are the output of that command.

use std::io::Write;

use foldlog::inspect::{FrameInfo, LogReader, SoundEnd, record_title};
use foldlog::{Error, SequenceNumber, Value};
use foldlog_codec::escape;
use serde::Serialize;

use crate::blocks::{Blocks, LineBlocks};
use crate::documents::timeline::{Timeline, UNATTACHED, value};
use crate::visits::each_beyond;
use crate::walk::{document_line, line};
use crate::{Payloads, Result, document};

/// Maximum number of records after damage that a page lists.
const LISTED_MAX: u64 = 20_000;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct AfterDamageRow {
    sequence: SequenceNumber,
    kind: String,
    name: String,
    time: i64,
    bytes: u64,
    segment: String,
    offset: u64,
}

/// The intact records after damage, as far as a page lists them.
#[derive(Debug, Default)]
pub(crate) struct RecordsAfterDamage {
    pub(crate) rows: Vec<AfterDamageRow>,
    total: u64,
}

impl RecordsAfterDamage {
    /// Reads the records after the damage of a log. Returns none if the log has no damage.
    pub(crate) fn read(reader: &LogReader, timeline: &Timeline) -> Result<RecordsAfterDamage> {
        let mut beyond = RecordsAfterDamage::default();
        if reader.sound_end().is_none() {
            return Ok(beyond);
        }
        each_beyond(reader, |frame| {
            beyond.total += 1;
            if beyond.total <= LISTED_MAX {
                beyond.rows.push(row(frame, timeline));
            }
            Ok::<_, Error>(())
        })?;
        Ok(beyond)
    }

    /// Describes the damage before the records, which ends the intact part of the log; `None` if the
    /// log has none.
    pub(crate) fn damage(&self, reader: &LogReader) -> Option<impl Serialize> {
        let SoundEnd { segment, offset, sequence, damage, .. } = reader.sound_end()?;
        let (mut segment, mut offset, mut expected, mut found) = (segment, *offset, None, None);
        match damage {
            Error::Corrupt(corruption) => {
                let checksum = |crc: u32| format!("checksum {crc:#010x}");
                (segment, offset) = (&corruption.segment, corruption.offset);
                expected = corruption.expected_crc.map(checksum);
                found = corruption.found_crc.map(checksum);
            }
            Error::OlderThanSuccessor { segment: file, offset: at, end, .. } => {
                (segment, offset) = (file, *at);
                expected = Some(format!("frames up to byte {end}"));
                found = Some(format!("the end of the file at byte {at}"));
            }
            Error::MissingSegment { ordinal, path, .. } => {
                (segment, offset) = (path, 0);
                (expected, found) = (Some(format!("segment {ordinal}")), Some("no file".to_owned()));
            }
            _ => {}
        }
        Some(document! {
            // First record that is not intact.
            sequence,
            segment: escape::path(segment),
            offset,
            // Contents that were expected and found, if known.
            expected,
            found,
            reason: damage.to_string(),
            // Number of intact records after the damage, and of those that the page lists.
            behind: self.total,
            listed: self.rows.len(),
        })
    }

    /// Writes the rows and their documents into a report. Returns their places.
    ///
    /// # Errors
    ///
    /// The engine's error if the files cannot be read, or that of the writer.
    pub(crate) fn write<W: Write>(
        &self,
        reader: &LogReader,
        timeline: &Timeline,
        payloads: Payloads,
        blocks: &mut Blocks<W>,
    ) -> Result<impl Serialize + use<W>> {
        let (mut rows, mut documents) = (LineBlocks::default(), LineBlocks::default());
        for row in &self.rows {
            rows.push(&line(b'=', row)?, blocks)?;
        }
        let rows = rows.finish(blocks)?;
        each_listed(reader, |_, frame| {
            documents.push(&document(frame, timeline, payloads)?, blocks)?;
            Ok(true)
        })?;
        Ok(document! { rows, documents: documents.finish(blocks)? })
    }
}

/// Returns the document of the listed record with this number; `None` if fewer records are listed.
#[cfg(feature = "server")]
pub(crate) fn document_of(
    reader: &LogReader,
    timeline: &Timeline,
    number: u64,
    payloads: Payloads,
) -> Result<Option<Vec<u8>>> {
    let mut found = None;
    if reader.sound_end().is_some() {
        each_listed(reader, |at, frame| {
            if at == number {
                found = Some(document(frame, timeline, payloads)?);
            }
            Ok(found.is_none())
        })?;
    }
    Ok(found)
}

/// Passes each listed record after damage, with its number, to `visit` until that returns false.
fn each_listed(reader: &LogReader, mut visit: impl FnMut(u64, &FrameInfo<'_>) -> Result<bool>) -> Result<()> {
    if reader.sound_end().is_none() {
        return Ok(());
    }
    let (mut next, mut is_over) = (0, false);
    let read = each_beyond(reader, |frame| {
        if next >= LISTED_MAX || !visit(next, frame)? {
            is_over = true;
            return Err(crate::Error::DoesNotHold(String::new()));
        }
        next += 1;
        Ok(())
    });
    if is_over { Ok(()) } else { read }
}

fn row(frame: &FrameInfo<'_>, timeline: &Timeline) -> AfterDamageRow {
    let record = &frame.record;
    AfterDamageRow {
        sequence: record.sequence,
        kind: record.kind.to_string(),
        name: record_title(record, &timeline.names),
        time: record.time_us,
        bytes: record.body.len() as u64,
        segment: escape::path(frame.segment),
        offset: frame.offset,
    }
}

fn document(frame: &FrameInfo<'_>, timeline: &Timeline, payloads: Payloads) -> Result<Vec<u8>> {
    let mut document = value(&frame.record, &timeline.names, UNATTACHED);
    document.set("segment", Value::from(escape::path(frame.segment)));
    document.set("offset", Value::from(frame.offset));
    document_line(document, frame.record.body.len() as u64, payloads)
}
