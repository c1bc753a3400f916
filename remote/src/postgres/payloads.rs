//! Puts payloads and packs into the database, reads them, and removes unreferenced ones.
//!
//! A payload is stored in a row of its session under its hash, before any record names it. An
//! unreferenced payload is removed in two steps, since a writer may be about to name it again. A
//! collection notes in the row when it was *withdrawn*. A collection that starts [`MIN_AGE`] later
//! by the server's clock, and finds it still unreferenced, removes the row. Putting it again clears
//! that note, or adds the row, and the row's lock decides which of the two comes first.
//!
//! A writer may be paused between a put and the append that names the payload, for half of
//! `MIN_AGE` or longer. It then puts the payload again, or ensures that the row exists and clears
//! the note, before anything is acknowledged. For that it keeps the bytes of up to 64 MiB of
//! payloads until then. If there are more, a missing payload ends the writer.

use std::sync::Arc;

use foldlog_codec::body::{OBJECT_BYTES_MAX, ObjectId};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Tables;
use super::connection::Parameter;
use super::schema;
use super::statements::{self, UUID, number};
use crate::clock::Clock;
use crate::error::{Error, RemoteFailure, Result, check_len};
use crate::kept_payloads::KeptPayloads;
use crate::place::CollectReport;
use crate::referenced_payloads::ReferencedPayloads;
use crate::replicator::SessionPayloads;
use crate::volume::MIN_AGE;

const PUT: &str = "put a payload into the database";
const GET: &str = "read a payload from the database";
const REMOVE: &str = "remove unreferenced payloads from the database";

/// Maximum length of a payload that the server accepts in one statement, in bytes.
const STATEMENT_BYTES_MAX: usize = OBJECT_BYTES_MAX as usize - (1 << 20);

/// Number of rows that are read or changed at a time.
const PAGE_ROWS: i64 = 4_096;

/// Puts the payloads that a writer's next records name.
#[derive(Debug)]
pub struct RowPayloads {
    pub(super) tables: Arc<Tables>,
    pub(super) clock: Clock,
    pub(super) session: Uuid,
    pub(super) kept: KeptPayloads<(), Arc<Vec<u8>>>,
}

impl SessionPayloads for RowPayloads {
    async fn put(&mut self, object: ObjectId, bytes: Vec<u8>) -> Result<()> {
        check_len("payload", bytes.len(), STATEMENT_BYTES_MAX)?;
        let bytes = Arc::new(bytes);
        self.kept.add(object, (), &bytes, Some(self.clock.now()));
        self.tables.put_object(self.session, object, &bytes).await
    }

    async fn make_sure(&mut self) -> Result<()> {
        let now = self.clock.now();
        if self.kept.is_sure(now) {
            return Ok(());
        }
        for (object, (), bytes) in &self.kept.put {
            match bytes {
                Some(bytes) => self.tables.put_object(self.session, *object, bytes).await?,
                None => self.tables.keep_object(self.session, *object).await?,
            }
        }
        self.kept.since = Some(now);
        Ok(())
    }

    fn forget(&mut self) {
        self.kept.forget();
    }
}

/// The columns of a payload's row that a collection reads.
struct PayloadRow {
    hash: Vec<u8>,
    len: u64,
    /// By the server's clock, in microseconds since 1970.
    withdrawn_us: Option<i64>,
}

impl PayloadRow {
    fn from_row(row: &Row) -> Option<PayloadRow> {
        Some(PayloadRow {
            hash: row.try_get(0).ok()?,
            len: number(row, 1)?,
            withdrawn_us: row.try_get(2).ok()?,
        })
    }
}

impl Tables {
    /// Puts a payload under its hash, unless it exists.
    async fn put_object(&self, session: Uuid, object: ObjectId, bytes: &[u8]) -> Result<()> {
        let hash: &[u8] = &object.hash;
        let parameters = [(&session as _, UUID), (&hash as _, Type::BYTEA), (&bytes as _, Type::BYTEA)];
        match self.writes_one(statements::PUT_OBJECT, &parameters).await? {
            true => Ok(()),
            false => Err(self.begin().end(PUT, RemoteFailure::Missing)),
        }
    }

    /// Ensures that a payload exists and is not removed.
    async fn keep_object(&self, session: Uuid, object: ObjectId) -> Result<()> {
        let hash: &[u8] = &object.hash;
        let parameters = [(&session as _, UUID), (&hash as _, Type::BYTEA)];
        match self.writes_one(statements::KEEP_OBJECT, &parameters).await? {
            true => Ok(()),
            false => Err(Error::MissingPayload { object: object.file_name() }),
        }
    }

    /// Runs a statement about a payload, and returns whether it wrote one row.
    async fn writes_one(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<bool> {
        let rows = self.ask(PUT, statement, parameters).await?;
        if rows.first().and_then(|row| number(row, 0)) == Some(1) {
            return Ok(true);
        }
        // The statement checks the tables' version, and may have found a different one.
        self.version(PUT).await.map(|_| false)
    }

    /// Returns the bytes of a payload, verified against their hash; `None` if it is missing.
    pub(super) async fn object(&self, session: Uuid, object: ObjectId) -> Result<Option<Vec<u8>>> {
        let (hash, len): (&[u8], _) = (&object.hash, i32::try_from(object.len).unwrap_or(i32::MAX));
        let parameters = [(&session as _, UUID), (&hash as _, Type::BYTEA), (&len as _, Type::INT4)];
        let rows = self.ask(GET, statements::GET_OBJECT, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let bytes = row.try_get::<_, Option<Vec<u8>>>(1).ok().flatten();
        let bytes = bytes.filter(|bytes| ObjectId::from_content(bytes) == object);
        bytes.map(Some).ok_or(Error::Payload { object: object.file_name() })
    }

    /// Returns the server's time, in microseconds since 1970.
    pub(super) async fn time_us(&self) -> Result<i64> {
        let rows = self.ask(REMOVE, statements::TIME_US, &[]).await?;
        let time = rows.first().and_then(|row| row.try_get(0).ok());
        time.ok_or_else(|| self.begin().error(REMOVE))
    }

    /// Removes the unneeded payloads of a session that were withdrawn long enough before `time_us`,
    /// and withdraws the other unneeded ones. `time_us` must have been read before the records.
    pub(super) async fn collect_objects(
        &self,
        session: Uuid,
        needed: &ReferencedPayloads,
        time_us: i64,
        dry_run: bool,
        report: &mut CollectReport,
    ) -> Result<()> {
        report.undecoded = needed.unknown();
        let Some(version) = self.version(REMOVE).await? else { return Ok(()) };
        let before_us = time_us.saturating_sub(i64::try_from(MIN_AGE.as_micros()).unwrap_or(i64::MAX));
        let mut from: Vec<u8> = Vec::new();
        loop {
            let parameters =
                [(&session as _, UUID), (&from as _, Type::BYTEA), (&PAGE_ROWS as _, Type::INT8)];
            let rows = self.ask(REMOVE, statements::LIST_OBJECTS, &parameters).await?;
            let page: Vec<PayloadRow> = rows.iter().filter_map(PayloadRow::from_row).collect();
            let Some(last) = page.last() else { return Ok(()) };
            from.clone_from(&last.hash);
            let is_needed = |listed: &PayloadRow| {
                <&[u8; 32]>::try_from(listed.hash.as_slice()).is_ok_and(|hash| needed.holds(hash))
            };
            let (mut gone, mut new) = (Vec::new(), Vec::new());
            for PayloadRow { hash, len, withdrawn_us } in page.into_iter().filter(|listed| !is_needed(listed))
            {
                match withdrawn_us {
                    Some(at) if at <= before_us => {
                        report.payloads += 1;
                        report.payload_bytes += len;
                        gone.push(hash);
                        continue;
                    }
                    Some(_) => {}
                    None => new.push(hash),
                }
                report.payloads_left += 1;
            }
            if dry_run || gone.is_empty() && new.is_empty() {
                continue;
            }
            if version < schema::VERSION {
                schema::prepare(self).await?;
            }
            let parameters =
                [(&session as _, UUID), (&gone as _, Type::BYTEA_ARRAY), (&before_us as _, Type::INT8)];
            self.ask(REMOVE, statements::REMOVE_OBJECTS, &parameters).await?;
            let parameters = [(&session as _, UUID), (&new as _, Type::BYTEA_ARRAY)];
            self.ask(REMOVE, statements::WITHDRAW_OBJECTS, &parameters).await?;
        }
    }
}
