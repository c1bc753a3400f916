//! Reads the contents of a session and verifies them: each record and claim must have the link that
//! follows from the previous ones.
//!
//! Rows are only ever added, and in one transaction with the session's row, which states their end.
//! So a reader that reads that row first needs no transaction to see a complete session.

use std::iter::Peekable;
use std::pin::pin;
use std::sync::Arc;
use std::vec::IntoIter;

use foldlog_codec::body::Dropped;
use foldlog_codec::frame::{BODY_LEN_MAX, TIME_US_MAX, TIME_US_MIN};
use foldlog_codec::{Record, RecordKind, SequenceNumber};
use futures_lite::StreamExt;
use tokio::sync::mpsc;
use tokio::time;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Tables;
use super::captures::{AppendCaptures, COLUMN_BYTES_MAX};
use super::connection::DatabaseFailure;
use super::link::Link;
use super::schema;
use super::statements::{self, ClaimRow, UUID, column, link, number};
use crate::chunk::Epoch;
use crate::error::{Error, RemoteFailure, Result};
use crate::runtime::Runtime;

const READ: &str = "read the session from the database";

/// Number of records at which a page is passed on.
const PAGE_RECORDS: usize = 512;

/// Number of bytes of bodies at which a page is passed on.
const PAGE_BYTES: usize = 1 << 20;

/// Contains a record from a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRecord {
    /// Sequence number of the record.
    pub sequence: SequenceNumber,
    /// Kind of the record.
    pub kind: RecordKind,
    /// Time of the record in microseconds since 1970-01-01 UTC.
    pub time_us: i64,
    /// Bytes of the body.
    pub body: Vec<u8>,
    /// Epoch of the writer that appended it.
    pub epoch: Epoch,
}

impl HeldRecord {
    /// Returns the record itself.
    pub fn record(&self) -> Record<'_> {
        Record { sequence: self.sequence, kind: self.kind, time_us: self.time_us, body: &self.body }
    }
}

/// Items that are passed on together.
#[derive(Default)]
struct Page {
    items: Vec<Item>,
    bytes: usize,
}

impl Page {
    fn is_full(&self) -> bool {
        self.items.len() >= PAGE_RECORDS || self.bytes >= PAGE_BYTES
    }
}

/// Position of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stand {
    pub(super) next: SequenceNumber,
    pub(super) epoch: Epoch,
    pub(super) link: Link,
    /// Name of the last claimant.
    pub(super) name: String,
}

/// Reads one session.
#[derive(Clone, Debug)]
pub(super) struct RowReader {
    pub(super) tables: Arc<Tables>,
    pub(super) session: Uuid,
    pub(super) stand: Stand,
    /// Sequence number after the last record that was appended under another name than this
    /// place's.
    pub(super) others_end: SequenceNumber,
}

/// An item of a session.
#[derive(Debug)]
pub(super) enum Item {
    Claim { epoch: Epoch, name: String },
    Captures(AppendCaptures),
    Record(HeldRecord),
}

impl RowReader {
    /// Returns a reader at the start of a session.
    pub(super) fn new(tables: Arc<Tables>, session: Uuid) -> RowReader {
        let (next, link) = (SequenceNumber::MIN, Link::first(session));
        let stand = Stand { next, epoch: Epoch::default(), link, name: String::new() };
        RowReader { tables, session, stand, others_end: next }
    }

    /// Moves before the record `next`, if it or the previous one exists. Earlier items are not
    /// verified.
    pub(super) async fn skip(&mut self, next: SequenceNumber) -> Result<bool> {
        let Some(before) = next.get().checked_sub(1) else { return Ok(true) };
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&self.session, UUID), (&column(before), Type::INT8)];
        let tables = &self.tables;
        let look = || async {
            match tables.query(statements::LINK_BEFORE, &parameters).await {
                Err(refusal) if refusal.is_no_table() => Ok(Vec::new()),
                answer => answer,
            }
        };
        let rows = tables.retry_request(READ, look).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let (Some(link), Some(epoch)) = (link(row, 0), number(row, 1)) else {
            return Err(self.row_error(before.into(), "its link is not valid"));
        };
        self.stand = Stand { next, epoch: Epoch::new(epoch), link, name: String::new() };
        Ok(true)
    }

    /// Reads to the end. Returns `false` if the consumer of `sink` has ended.
    pub(super) async fn read_to_end(&mut self, sink: &mpsc::Sender<Result<Vec<Item>>>) -> Result<bool> {
        let mut attempts = self.tables.begin();
        while attempts.wait_for_next().await {
            let before = self.stand.next;
            match self.try_read(sink).await {
                Ok(wanted) => return Ok(wanted),
                Err(failure) => {
                    if self.stand.next > before {
                        attempts.begin_anew();
                    }
                    failure.note(&mut attempts, READ)?;
                }
            }
        }
        Err(attempts.error(READ))
    }

    async fn try_read(&mut self, sink: &mpsc::Sender<Result<Vec<Item>>>) -> Result<bool, DatabaseFailure> {
        let tables = Arc::clone(&self.tables);
        let Some(head) = tables.head(self.session).await? else {
            return if self.stand.epoch == Epoch::default() { Ok(true) } else { Err(self.went_back()) };
        };
        if head.next < self.stand.next || head.epoch < self.stand.epoch {
            return Err(self.went_back());
        }
        let (from, to) = (column(self.stand.epoch.get()), column(head.epoch.get()));
        let claims = [(&self.session as _, UUID), (&from as _, Type::INT8), (&to as _, Type::INT8)];
        let claims = tables.query(statements::CLAIMS, &claims).await?;
        let claims: Option<Vec<ClaimRow>> = claims.iter().map(ClaimRow::from_row).collect();
        let claims =
            claims.ok_or_else(|| self.row_error(self.stand.next, "a claim after it is not valid"))?;
        let mut claims = claims.into_iter().peekable();
        let mut page = Page::default();
        // The reader is positioned after the verified items, so these are passed on even after an
        // error.
        let read = match self.read_records(&head, &mut claims, &mut page, sink).await {
            Ok(true) => self.end(&head, &mut claims, &mut page).map(|()| true).map_err(Into::into),
            other => other,
        };
        let wants = page.items.is_empty() || sink.send(Ok(page.items)).await.is_ok();
        Ok(read? && wants)
    }

    async fn read_records(
        &mut self,
        head: &ClaimRow,
        claims: &mut Peekable<IntoIter<ClaimRow>>,
        page: &mut Page,
        sink: &mpsc::Sender<Result<Vec<Item>>>,
    ) -> Result<bool, DatabaseFailure> {
        if self.stand.next == head.next {
            return Ok(true);
        }
        let tables = Arc::clone(&self.tables);
        let mut lease = tables.pool.lease().await?;
        let (from, to) = (column(self.stand.next.get()), column(head.next.get()));
        let (most, captures) = (BODY_LEN_MAX as i32, COLUMN_BYTES_MAX as i32);
        let parameters = [
            (&self.session as _, UUID),
            (&from as _, Type::INT8),
            (&to as _, Type::INT8),
            (&most as _, Type::INT4),
            (&captures as _, Type::INT4),
        ];
        let records = tables.sql(statements::RECORDS);
        let mut rows = pin!(lease.rows(&records, &parameters).await?);
        loop {
            let row = time::timeout(tables.pool.request_timeout, rows.next()).await;
            let row = row.map_err(|_| DatabaseFailure::uncertain(RemoteFailure::TimedOut))?.transpose();
            let Some(row) = row.map_err(|error| tables.pool.refusal(&error, false))? else { break };
            self.record(&row, claims, page)?;
            if page.is_full() && sink.send(Ok(std::mem::take(page).items)).await.is_err() {
                return Ok(false);
            }
        }
        lease.end(true).await?;
        Ok(true)
    }

    /// Verifies a row of `records`, and the claims before it, and moves after it.
    fn record(
        &mut self,
        row: &Row,
        claims: &mut Peekable<IntoIter<ClaimRow>>,
        page: &mut Page,
    ) -> Result<()> {
        let sequence = self.stand.next;
        self.take_claims(claims, page)?;
        let damaged = |reason| Err(self.row_error(sequence, reason));
        if number(row, 0) != Some(sequence.get()) {
            return damaged("it is missing");
        }
        if number(row, 1) != Some(self.stand.epoch.get()) {
            return damaged("its epoch is not that of the claim before it");
        }
        let kind = row.try_get::<_, i16>(2).ok().and_then(|kind| u8::try_from(kind).ok());
        let Some(kind) = kind.and_then(RecordKind::from_byte).filter(|kind| !kind.is_envelope()) else {
            return damaged("its kind is not valid");
        };
        let time_us = row.try_get::<_, i64>(3).ok();
        let Some(time_us) = time_us.filter(|time_us| (TIME_US_MIN..=TIME_US_MAX).contains(time_us)) else {
            return damaged("its time is not valid");
        };
        let Some(body) = row.try_get::<_, Option<&[u8]>>(4).ok().flatten() else {
            return damaged("its body is longer than allowed");
        };
        let epoch = self.stand.epoch;
        let record = HeldRecord { sequence, kind, time_us, body: body.to_vec(), epoch };
        let captures = row.try_get::<_, Option<&[u8]>>(6).ok().flatten();
        let link_before = captures.map_or(self.stand.link, |column| self.stand.link.captures(column));
        let behind = match row.try_get::<_, Option<&[u8]>>(7).ok().flatten() {
            None => link_before.record(epoch, &record.record()),
            Some(hash) => {
                let dropped = Dropped::decode(&record.body).ok().filter(|_| kind == RecordKind::Dropped);
                let behind =
                    dropped.map(|it| link_before.stated_record(epoch, &record.record(), it.kind, it.hash));
                let Some(behind) = behind.filter(|behind| behind.of_dropped(&record.body) == hash) else {
                    return damaged("the replacement of its dropped body is not the one that was written");
                };
                behind
            }
        };
        if link(row, 5) != Some(behind) {
            return damaged("its content, or an earlier record, differs from what was appended");
        }
        if let Some(column) = captures {
            let Some(captures) = AppendCaptures::decode(column) else {
                return damaged("its captures are not valid");
            };
            page.bytes += column.len();
            page.items.push(Item::Captures(captures));
        }
        self.stand.link = behind;
        self.stand.next += 1;
        if self.stand.name != self.tables.name {
            self.others_end = self.stand.next;
        }
        page.bytes += record.body.len();
        page.items.push(Item::Record(record));
        Ok(())
    }

    /// Takes the claims before the next record.
    fn take_claims(&mut self, claims: &mut Peekable<IntoIter<ClaimRow>>, page: &mut Page) -> Result<()> {
        while let Some(claim) = claims.next_if(|claim| claim.next <= self.stand.next) {
            let ClaimRow { epoch, next, writer, name, link, .. } = claim;
            let behind = self.stand.link.claim(epoch, writer, next, &name);
            if next != self.stand.next || epoch <= self.stand.epoch || link != behind {
                return Err(
                    self.row_error(self.stand.next, "the claim before it differs from the one that was made")
                );
            }
            page.items.push(Item::Claim { epoch, name: name.clone() });
            self.stand = Stand { next, epoch, link, name };
        }
        Ok(())
    }

    /// Verifies that the session ends where its row states.
    fn end(
        &mut self,
        head: &ClaimRow,
        claims: &mut Peekable<IntoIter<ClaimRow>>,
        page: &mut Page,
    ) -> Result<()> {
        self.take_claims(claims, page)?;
        if self.stand.next != head.next {
            return Err(self.row_error(self.stand.next, "it is missing"));
        }
        if self.stand.epoch != head.epoch || claims.next().is_some() {
            return Err(self.row_error(self.stand.next, "a claim before it is missing"));
        }
        if self.stand.link != head.link {
            return Err(
                self.row_error(self.stand.next, "the records before it are not those of the session's row")
            );
        }
        Ok(())
    }

    fn row_error(&self, sequence: SequenceNumber, reason: &'static str) -> Error {
        Error::Row { session: self.session, sequence, reason }
    }

    fn went_back(&self) -> DatabaseFailure {
        Error::DatabaseWentBack { session: self.session, sequence: self.stand.next }.into()
    }
}

/// Reads on to the end of a session, and passes items to `visit` on the calling thread. Even after
/// an error, the reader is positioned after the items that were passed on.
pub(super) fn read_here(
    runtime: &Runtime,
    reader: &mut RowReader,
    visit: &mut dyn FnMut(Item),
) -> Result<()> {
    let mut reads = reader.clone();
    let read = |sink: mpsc::Sender<Result<Vec<Item>>>| async move {
        let read = reads.read_to_end(&sink).await.map(drop);
        (reads, read)
    };
    let (end, read) = runtime.read_ahead(read, |page| page.into_iter().flatten().for_each(&mut *visit))?;
    *reader = end;
    read
}

impl Tables {
    /// Reads a session's row, and refuses unknown versions of the tables. Returns `None` if there
    /// is no row.
    pub(super) async fn head(&self, session: Uuid) -> Result<Option<ClaimRow>, DatabaseFailure> {
        if schema::version(self).await?.is_none() {
            return Ok(None);
        }
        let rows = self.query(statements::HEAD, &[(&session, UUID)]).await?;
        let reason = "the session's row is not valid";
        let invalid = || Error::Row { session, sequence: 0.into(), reason };
        Ok(rows.first().map(|row| ClaimRow::from_row(row).ok_or_else(invalid)).transpose()?)
    }
}
