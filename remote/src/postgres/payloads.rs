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

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use foldlog_codec::body::{OBJECT_BYTES_MAX, ObjectId};
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Tables;
use super::schema;
use super::statements::{TIME, UUID, number};
use crate::clock::Clock;
use crate::error::{Error, RemoteFailure, Result};
use crate::place::CollectReport;
use crate::referenced_payloads::ReferencedPayloads;
use crate::volume::{KNOWN_FOR, MIN_AGE};

const PUT: &str = "put a payload into the database";
const GET: &str = "read a payload from the database";
const REMOVE: &str = "remove unreferenced payloads from the database";

/// Maximum length of a payload that the server accepts in one statement, in bytes.
pub(super) const STATEMENT_BYTES_MAX: u64 = OBJECT_BYTES_MAX - (1 << 20);

/// Number of rows that are read or changed at a time.
const PAGE_ROWS: i64 = 4_096;

/// The payloads of each session that were put but are not named by an acknowledged record yet.
#[derive(Debug)]
pub(super) struct Puts {
    clock: Clock,
    kept_bytes_max: u64,
    sessions: Mutex<BTreeMap<Uuid, KnownPayloads>>,
}

/// The payloads of one session.
#[derive(Debug)]
struct KnownPayloads {
    /// Time at which all of them existed.
    since: Duration,
    /// With the bytes of up to [`KEPT_BYTES_MAX`](crate::slots::KEPT_BYTES_MAX).
    objects: BTreeMap<ObjectId, Option<Arc<Vec<u8>>>>,
    kept_bytes: u64,
}

impl Puts {
    /// Uses this clock, and keeps up to `kept_bytes_max` bytes.
    pub(super) fn new(clock: Clock, kept_bytes_max: u64) -> Puts {
        Puts { clock, kept_bytes_max, sessions: Mutex::default() }
    }

    /// Notes that a payload is about to be put.
    pub(super) fn note(&self, session: Uuid, object: ObjectId, bytes: &Arc<Vec<u8>>) {
        let since = self.clock.now();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || KnownPayloads { since, objects: BTreeMap::new(), kept_bytes: 0 };
        let put = sessions.entry(session).or_insert_with(new);
        let is_kept = put.kept_bytes.saturating_add(object.len) <= self.kept_bytes_max;
        put.kept_bytes += if is_kept { object.len } else { 0 };
        put.objects.insert(object, is_kept.then(|| Arc::clone(bytes)));
    }

    /// Returns the payloads of a session that were put so long ago that they may have been
    /// withdrawn and removed since.
    pub(super) fn old(&self, session: Uuid) -> Option<Old> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, put) = (self.clock.now(), sessions.get(&session)?);
        (now.saturating_sub(put.since) > KNOWN_FOR).then(|| Old { objects: put.objects.clone(), now })
    }

    /// Notes that all of these existed at a moment.
    pub(super) fn note_there(&self, session: Uuid, now: Duration) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(put) = sessions.get_mut(&session) {
            put.since = now;
        }
    }

    /// Forgets the payloads of a session: the records that name them are acknowledged.
    pub(super) fn forget(&self, session: Uuid) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&session);
    }
}

/// Payloads that may have been removed.
pub(super) struct Old {
    pub(super) objects: BTreeMap<ObjectId, Option<Arc<Vec<u8>>>>,
    /// Time of the query.
    pub(super) now: Duration,
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
    pub(super) async fn put_object(&self, session: Uuid, object: ObjectId, bytes: &[u8]) -> Result<()> {
        let hash: &[u8] = &object.hash;
        let parameters = [(&session as _, UUID), (&hash as _, Type::BYTEA), (&bytes as _, Type::BYTEA)];
        let rows = self.ask(PUT, &self.statements.put_object, &parameters).await?;
        if rows.first().and_then(|row| number(row, 0)) == Some(1) {
            return Ok(());
        }
        // The statement checks the tables' version, and found a different one.
        self.has_tables(PUT).await?;
        Err(self.begin().end(PUT, RemoteFailure::Missing))
    }

    /// Returns the bytes of a payload, verified against their hash; `None` if it is missing.
    pub(super) async fn object(&self, session: Uuid, object: ObjectId) -> Result<Option<Vec<u8>>> {
        let (hash, len): (&[u8], _) = (&object.hash, i32::try_from(object.len).unwrap_or(i32::MAX));
        let parameters = [(&session as _, UUID), (&hash as _, Type::BYTEA), (&len as _, Type::INT4)];
        let rows = self.ask(GET, &self.statements.get_object, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let bytes = row.try_get::<_, Option<Vec<u8>>>(1).ok().flatten();
        let bytes = bytes.filter(|bytes| ObjectId::from_content(bytes) == object);
        bytes.map(Some).ok_or(Error::Payload { object: object.file_name() })
    }

    /// Ensures that a payload exists and is not removed. `kept` has its bytes.
    pub(super) async fn keep_object(
        &self,
        session: Uuid,
        object: ObjectId,
        kept: Option<Arc<Vec<u8>>>,
    ) -> Result<()> {
        if let Some(bytes) = kept {
            return self.put_object(session, object, &bytes).await;
        }
        let hash: &[u8] = &object.hash;
        let parameters = [(&session as _, UUID), (&hash as _, Type::BYTEA)];
        let rows = self.ask(PUT, &self.statements.keep_object, &parameters).await?;
        if rows.first().and_then(|row| number(row, 0)) == Some(1) {
            return Ok(());
        }
        self.has_tables(PUT).await?;
        Err(Error::MissingPayload { object: object.file_name() })
    }

    /// Returns the server's time, in microseconds since 1970.
    pub(super) async fn time_us(&self) -> Result<i64> {
        let rows = self.ask(REMOVE, TIME, &[]).await?;
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
            let rows = self.ask(REMOVE, &self.statements.list_objects, &parameters).await?;
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
                schema::prepare(&self.pool, &self.schema, self.retries).await?;
            }
            let parameters =
                [(&session as _, UUID), (&gone as _, Type::BYTEA_ARRAY), (&before_us as _, Type::INT8)];
            self.ask(REMOVE, &self.statements.remove_objects, &parameters).await?;
            let parameters = [(&session as _, UUID), (&new as _, Type::BYTEA_ARRAY)];
            self.ask(REMOVE, &self.statements.withdraw_objects, &parameters).await?;
        }
    }
}
