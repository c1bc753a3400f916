//! Removes from a database the bodies that a compaction of the session's log has dropped.
//!
//! The session's writer records the dropped bodies ([`DroppedBodies`]), and every later writer has
//! that record, so none returns to a position that needs them. These rows then get the same
//! replacement of a body as a local log (kind, length and hash), all in one transaction. Their
//! links are unchanged, since they are computed from kind and hash ([`link`](super::link)); an
//! additional hash covers the replacement. A row is changed only if its link is the one that was
//! verified. A kill leaves the rows unchanged. A concurrent reader may see some old and some new
//! rows: the first new row of each page names the object with the known positions of the slices, so
//! a log can be built from any mixture.
//!
//! Nothing is dropped if a row that was appended without its body itself names an object with known
//! positions. Its link covers that name, and the positions in that object may need bodies that were
//! dropped since. If the server keeps old versions of rows, dropped bodies exist until it clears
//! them (`VACUUM`).

use std::sync::Arc;

use foldlog_codec::body::{Dropped, DroppedBodies, ObjectId};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Tables;
use super::connection::{DatabaseFailure, PooledConnection};
use super::reader::{Item, RowReader, read_here};
use super::schema;
use super::statements::{self, UUID, column, link, number};
use crate::dropped_bodies::DroppedBodiesTracker;
use crate::error::{Error, Result};
use crate::place::CollectReport;
use crate::referenced_payloads::ReferencedPayloads;
use crate::runtime::Runtime;

const DROP: &str = "drop bodies from the database";

/// Number of rows that are read and changed at a time.
const PAGE_ROWS: i64 = 1_024;

/// Rows to change.
#[derive(Default)]
struct CompactedRows {
    sequences: Vec<i64>,
    bodies: Vec<Vec<u8>>,
    hashes: Vec<Vec<u8>>,
    links: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Default)]
struct TableCompactionCounts {
    dropped: u64,
    bytes: u64,
    before: u64,
}

/// Drops the bodies that a compaction of the session dropped, by its records, and the payloads that
/// no record names; or only counts them.
pub(super) fn collect(
    tables: &Arc<Tables>,
    runtime: &Runtime,
    session: Uuid,
    dry_run: bool,
) -> Result<CollectReport> {
    let (mut said, mut needed) = (DroppedBodiesTracker::default(), ReferencedPayloads::default());
    let time_us = runtime.run(tables.time_us())??;
    let mut reader = RowReader::new(Arc::clone(tables), session);
    read_here(runtime, &mut reader, &mut |item| match item {
        Item::Claim { .. } => {}
        Item::Captures(captures) => needed.extend(captures.packs.iter().map(|pack| pack.hash)),
        Item::Record(held) => {
            said.see(held.sequence.get(), &held.record());
            needed.see(&held.record());
        }
    })?;
    runtime.run(async {
        let mut report = CollectReport { next: reader.stand.next, ..CollectReport::default() };
        if said.is_anything() {
            report = drop_bodies(tables, &reader, said, dry_run, &mut needed, report).await?;
        }
        tables.collect_objects(session, &needed, time_us, dry_run, &mut report).await?;
        Ok(report)
    })?
}

async fn drop_bodies(
    tables: &Tables,
    reader: &RowReader,
    said: DroppedBodiesTracker,
    dry_run: bool,
    needed: &mut ReferencedPayloads,
    mut report: CollectReport,
) -> Result<CollectReport> {
    let session = reader.session;
    let read = async |object| tables.object(session, object).await;
    let Some((_, dropped)) = said.read_dropped(read).await? else { return Ok(report) };
    let Some(through) = dropped.through() else { return Ok(report) };
    report.waiting = dropped.count();
    if !dry_run {
        schema::prepare(tables).await?;
    } else if tables.version(DROP).await?.is_none_or(|version| version < schema::VERSION) {
        // Nothing was dropped there yet, and a dry run changes nothing.
        return Ok(report);
    }
    let known_bytes = dropped.known.encode();
    let known = ObjectId::from_content(&known_bytes);
    // Rows that lose their bodies now name it.
    needed.extend([known.hash]);
    let known_in: Vec<SequenceNumber> = said.known_in.iter().map(|(_, sequence)| *sequence).collect();
    let (next, known) = (reader.stand.next, (known, known_bytes.as_slice()));
    let dropping =
        TableCompaction { tables, session, next, dropped: &dropped, through, known, known_in: &known_in };
    let counts = tables.retry_request(DROP, || dropping.run(dry_run)).await?;
    if let Some(counts) = counts {
        report.dropped = counts.dropped;
        report.dropped_bytes = counts.bytes;
        report.waiting = dropped.count().saturating_sub(counts.dropped + counts.before);
    }
    Ok(report)
}

struct TableCompaction<'a> {
    tables: &'a Tables,
    session: Uuid,
    dropped: &'a DroppedBodies,
    through: SequenceNumber,
    /// Sequence number after the last record that was read.
    next: SequenceNumber,
    /// Object with the known positions of the slices, and its bytes.
    known: (ObjectId, &'a [u8]),
    /// Records that name an object with known positions.
    known_in: &'a [SequenceNumber],
}

impl TableCompaction<'_> {
    /// Changes the rows in one transaction. Returns `None` if nothing may be dropped.
    async fn run(&self, dry_run: bool) -> Result<Option<TableCompactionCounts>, DatabaseFailure> {
        let mut lease = self.tables.pool.lease().await?;
        lease.begin().await?;
        let done = self.change(&mut lease, dry_run).await?;
        lease.end(done.is_some() && !dry_run).await?;
        Ok(done)
    }

    async fn change(
        &self,
        lease: &mut PooledConnection,
        dry_run: bool,
    ) -> Result<Option<TableCompactionCounts>, DatabaseFailure> {
        // Collections of a session run one after the other, and none continues after one with newer
        // knowledge.
        let lock = i64::from_le_bytes(*self.session.as_bytes().first_chunk().unwrap_or(&[0; 8]));
        lease.query(statements::LOCK, &[(&lock as _, Type::INT8)]).await?;
        if self.is_behind(lease).await? {
            return Ok(None);
        }
        if !dry_run {
            // Within the transaction, so that it cannot be removed in between.
            let (object, bytes) = self.known;
            let hash: &[u8] = &object.hash;
            let parameters =
                [(&self.session as _, UUID), (&hash as _, Type::BYTEA), (&bytes as _, Type::BYTEA)];
            lease.query(&self.tables.sql(statements::PUT_OBJECT), &parameters).await?;
        }
        let (mut counts, mut from) = (TableCompactionCounts::default(), 0);
        let to = column(self.through.get());
        loop {
            let parameters = [
                (&self.session as _, UUID),
                (&from as _, Type::INT8),
                (&to as _, Type::INT8),
                (&PAGE_ROWS as _, Type::INT8),
            ];
            let rows = lease.query(&self.tables.sql(statements::TO_DROP), &parameters).await?;
            let Some(last) = rows.last().and_then(|row| number(row, 0)) else { return Ok(Some(counts)) };
            let mut changes = CompactedRows::default();
            for row in &rows {
                if !self.row(row, &mut changes, &mut counts)? {
                    return Ok(None);
                }
            }
            if !dry_run && !changes.sequences.is_empty() {
                let kind = i16::from(RecordKind::Dropped.byte());
                let parameters = [
                    (&self.session as _, UUID),
                    (&kind as _, Type::INT2),
                    (&changes.sequences as _, Type::INT8_ARRAY),
                    (&changes.bodies as _, Type::BYTEA_ARRAY),
                    (&changes.hashes as _, Type::BYTEA_ARRAY),
                    (&changes.links as _, Type::BYTEA_ARRAY),
                ];
                let changed = lease.query(&self.tables.sql(statements::DROP), &parameters).await?;
                if changed.len() != changes.sequences.len() {
                    return Err(self.row_error(last.into(), "it changed after it was read").into());
                }
            }
            from = column(last.saturating_add(1));
        }
    }

    /// Returns whether a record after those that were read lists further dropped bodies: another
    /// collection may have removed them already.
    async fn is_behind(&self, lease: &mut PooledConnection) -> Result<bool, DatabaseFailure> {
        let (next, kind) = (column(self.next.get()), i16::from(RecordKind::Observed.byte()));
        let parameters = [(&self.session as _, UUID), (&next as _, Type::INT8), (&kind as _, Type::INT2)];
        let rows = lease.query(&self.tables.sql(statements::SAID_BEHIND), &parameters).await?;
        let says = |row: &Row| {
            let (sequence, body) = (number(row, 0)?, row.try_get::<_, &[u8]>(1).ok()?);
            let record = Record { sequence: sequence.into(), kind: RecordKind::Observed, time_us: 0, body };
            DroppedBodies::observed_in(&record)?;
            Some(())
        };
        Ok(rows.iter().any(|row| says(row).is_some()))
    }

    /// Processes a row. Returns `false` if nothing may be dropped.
    fn row(
        &self,
        row: &Row,
        changes: &mut CompactedRows,
        counts: &mut TableCompactionCounts,
    ) -> Result<bool> {
        let sequence = SequenceNumber::new(number(row, 0).unwrap_or_default());
        let damaged = |reason| self.row_error(sequence, reason);
        let kind = row.try_get::<_, i16>(1).ok().and_then(|kind| u8::try_from(kind).ok());
        let kind = kind.and_then(RecordKind::from_byte).ok_or_else(|| damaged("its kind is not valid"))?;
        let body = row.try_get::<_, &[u8]>(2).map_err(|_| damaged("its body is not valid"))?;
        let link = link(row, 3).ok_or_else(|| damaged("its link is not valid"))?;
        let was_dropped = row.try_get::<_, Option<&[u8]>>(4).ok().flatten().is_some();
        let holds = self.dropped.holds(sequence);
        let dropped = match kind {
            RecordKind::Dropped if was_dropped => {
                counts.before += u64::from(holds);
                Dropped::decode(body).map_err(|_| damaged("the replacement of its body is not valid"))?
            }
            RecordKind::Dropped => {
                counts.before += u64::from(holds);
                // It names an object with known positions, and its link covers that.
                return Ok(self.known_in.binary_search(&sequence).is_err());
            }
            RecordKind::Dispatch if holds => Dropped::from_body(kind, body),
            _ if holds => return Err(damaged("it is listed as dropped, but its body cannot be dropped")),
            _ => return Ok(true),
        };
        let new = match changes.sequences.is_empty() {
            true => dropped.encode_held(self.known.0),
            false => dropped.encode(),
        };
        if !was_dropped {
            counts.dropped += 1;
            counts.bytes += body.len().saturating_sub(new.len()) as u64;
        }
        changes.sequences.push(column(sequence.get()));
        changes.hashes.push(link.of_dropped(&new).to_vec());
        changes.links.push(link.column().to_vec());
        changes.bodies.push(new);
        Ok(true)
    }

    fn row_error(&self, sequence: SequenceNumber, reason: &'static str) -> Error {
        Error::Row { session: self.session, sequence, reason }
    }
}
