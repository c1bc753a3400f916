//! Claims a session and appends to it: one statement at a time, each provided that nothing changed
//! since the last one.
//!
//! # How the outcome of a statement is determined
//!
//! The records are put into one statement with a nonce, whose condition is that the session's row
//! is unchanged since this writer's last statement. It is sent until its outcome is known:
//!
//! 1. The server reports that the rows were added: the records are acknowledged.
//! 2. After any other answer, or none, the session's row is read. If the row has our epoch, writer,
//!    nonce and link, an earlier attempt was committed, and the answer was lost. The row is then
//!    written again, unchanged. The server's acknowledgement of this write follows our commit, also
//!    at a standby. (Otherwise only the lost answer would have shown that a standby has the
//!    records.)
//! 3. If the row has a higher epoch, this writer is *fenced*. If our last record exists
//!    nevertheless, it was added before the claim.
//! 4. If the row is as we left it, nothing was committed, and the statement is sent again. If an
//!    earlier attempt is carried out after all, one of the two finds the row changed, and does
//!    nothing.
//! 5. If the row is older than we left it, or missing, the database was reset to an older state.
//! 6. If the server refuses the statement before it commits anything, and no earlier attempt is in
//!    doubt, none of the records is in the database.
//! 7. If the attempts of [`Retries`](crate::Retries) are used up, the outcome is
//!    [`Error::Unknown`]. The writer keeps the records, and the next call starts with them.

use std::sync::Arc;

use foldlog::replication::CapturePacks;
use foldlog_codec::{Record, SequenceNumber};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Tables;
use super::captures::AppendCaptures;
use super::connection::{DatabaseFailure, Parameter, is_duplicate};
use super::leases::TableLeases;
use super::link::Link;
use super::reader::Stand;
use super::statements::{self, ClaimRow, UUID, column, losing_setting, number};
use crate::chunk::{Epoch, WriterId, check_record};
use crate::error::{Error, RemoteFailure, Result};
use crate::lease::renewal::Leases;
use crate::replicator::SessionWriter;

const CLAIM: &str = "claim the session in the database";
const APPEND: &str = "append to the database";

/// Number of records at which one statement is full.
const APPEND_RECORDS: usize = 4_096;

/// Number of bytes of bodies at which one statement is full.
const APPEND_BYTES: usize = 8 << 20;

/// Appends to one session, as the writer of one epoch.
#[derive(Debug)]
pub struct RowWriter {
    tables: Arc<Tables>,
    session: Uuid,
    id: WriterId,
    epoch: Epoch,
    next: SequenceNumber,
    link: Link,
    pending: Option<RowBatch>,
    /// Why this writer must not append anything any more.
    stopped: Option<Error>,
}

/// The records of one statement, in the form of its parameters.
#[derive(Debug)]
struct RowBatch {
    next: SequenceNumber,
    link: Link,
    nonce: Uuid,
    kinds: Vec<i16>,
    times: Vec<i64>,
    bodies: Vec<Vec<u8>>,
    captures: Vec<Option<Vec<u8>>>,
    links: Vec<Vec<u8>>,
}

/// The outcome of a statement, by the session's row.
enum StatementFate {
    /// It was committed.
    Committed,
    /// It was committed, and afterwards the claim in this error, which fences the writer.
    Overtaken(Error),
    /// It was not committed, and still may be.
    Open,
}

/// A statement that writes, whose outcome has to be known.
struct Write<'a> {
    what: &'static str,
    statement: &'a str,
    parameters: &'a [Parameter<'a>],
    /// Number of rows that it writes.
    rows: u64,
    nonce: Uuid,
    /// Sequence number after the last record that is in doubt until then.
    next: SequenceNumber,
}

impl RowWriter {
    /// Claims a session that was read to `stand`, with one attempt: if anything was added after
    /// that, nothing is claimed. `lease` is renewed before the claim names it.
    pub(super) async fn claim(
        tables: Arc<Tables>,
        session: Uuid,
        stand: Stand,
        lease: Option<&TableLeases>,
    ) -> Result<RowWriter> {
        super::schema::prepare(&tables).await?;
        if let Some(lease) = lease {
            lease.renew().await;
        }
        let next = stand.next;
        let epoch = stand.epoch.next().ok_or(Error::Row {
            session,
            sequence: next,
            reason: "its epoch is the highest possible",
        })?;
        let id = WriterId::random();
        let link = stand.link.claim(epoch, id, next, &tables.name);
        let claiming = RowWriter { tables, session, id, epoch, next, link, pending: None, stopped: None };
        claiming.put_claim(&stand, lease.map(|lease| lease.worker)).await?;
        Ok(claiming)
    }

    async fn put_claim(&self, stand: &Stand, lease: Option<Uuid>) -> Result<Option<Error>> {
        let (next, epoch) = (column(self.next.get()), column(self.epoch.get()));
        let (before, nonce) = (column(stand.epoch.get()), Uuid::new_v4());
        let (link, link_before) = (self.link.column(), stand.link.column());
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&self.session, UUID),
            (&epoch, Type::INT8),
            (&next, Type::INT8),
            (&self.id.0, UUID),
            (&self.tables.name, Type::TEXT),
            (&nonce, UUID),
            (&link, Type::BYTEA),
            (&lease, UUID),
        ];
        let statement = if stand.epoch == Epoch::default() {
            statements::FIRST_CLAIM
        } else {
            parameters.extend([(&before as _, Type::INT8), (&link_before as _, Type::BYTEA)]);
            statements::CLAIM
        };
        let write =
            Write { what: CLAIM, statement, parameters: &parameters, rows: 1, nonce, next: self.next };
        self.carry_out(write, async || self.claim_fate(stand).await).await
    }

    /// Determines the outcome of a claim by the session's row.
    async fn claim_fate(&self, stand: &Stand) -> Result<StatementFate, DatabaseFailure> {
        let Some(ClaimRow { epoch, next, link, writer: by, name: note, .. }) =
            self.tables.head(self.session).await?
        else {
            return if stand.epoch == Epoch::default() {
                Ok(StatementFate::Open)
            } else {
                Err(self.went_back())
            };
        };
        if by == self.id && epoch == self.epoch {
            return Ok(StatementFate::Committed);
        }
        if (epoch, next, link) == (stand.epoch, stand.next, stand.link) {
            return Ok(StatementFate::Open);
        }
        if epoch < stand.epoch || next < stand.next {
            return Err(self.went_back());
        }
        Err(Error::Fenced { epoch, by, note }.into())
    }

    /// Appends a batch. Returns the error for the next append, if another writer's claim was found
    /// after the batch.
    async fn put(&self, batch: &RowBatch) -> Result<Option<Error>> {
        let (epoch, next, behind) =
            (column(self.epoch.get()), column(self.next.get()), column(batch.next.get()));
        let (link, link_before) = (batch.link.column(), self.link.column());
        let parameters: [Parameter<'_>; 13] = [
            (&self.session, UUID),
            (&epoch, Type::INT8),
            (&next, Type::INT8),
            (&behind, Type::INT8),
            (&self.id.0, UUID),
            (&batch.nonce, UUID),
            (&link, Type::BYTEA),
            (&link_before, Type::BYTEA),
            (&batch.kinds, Type::INT2_ARRAY),
            (&batch.times, Type::INT8_ARRAY),
            (&batch.bodies, Type::BYTEA_ARRAY),
            (&batch.captures, Type::BYTEA_ARRAY),
            (&batch.links, Type::BYTEA_ARRAY),
        ];
        let write = Write {
            what: APPEND,
            statement: statements::APPEND,
            parameters: &parameters,
            rows: batch.bodies.len() as u64,
            nonce: batch.nonce,
            next: batch.next,
        };
        self.carry_out(write, async || self.fate(batch).await).await
    }

    /// Determines the outcome of an append by the session's row.
    async fn fate(&self, batch: &RowBatch) -> Result<StatementFate, DatabaseFailure> {
        let head = self.tables.head(self.session).await?.ok_or_else(|| self.went_back())?;
        if head.epoch < self.epoch || head.next < self.next {
            return Err(self.went_back());
        }
        if head.epoch == self.epoch && head.writer == self.id {
            if (head.next, head.nonce, head.link) == (batch.next, Some(batch.nonce), batch.link) {
                return Ok(StatementFate::Committed);
            }
            if (head.next, head.link) == (self.next, self.link) {
                return Ok(StatementFate::Open);
            }
            return Err(self.row_error("another copy of this writer appended it").into());
        }
        let fenced = Error::Fenced { epoch: head.epoch, by: head.writer, note: head.name };
        if self.is_held(batch).await? {
            // The claim was committed after it, and the claimant has read it.
            return Ok(StatementFate::Overtaken(fenced));
        }
        Err(fenced.into())
    }

    /// Sends a statement until its outcome is known, by the module's rules. Returns the error for
    /// the next append, if another writer's claim was found after its commit.
    async fn carry_out(
        &self,
        write: Write<'_>,
        fate: impl AsyncFn() -> Result<StatementFate, DatabaseFailure>,
    ) -> Result<Option<Error>> {
        let Write { what, statement, parameters, rows, nonce, next } = write;
        let (mut attempts, mut in_doubt) = (self.tables.begin(), false);
        while attempts.wait_for_next().await {
            match self.tables.commit(statement, parameters, rows).await {
                Ok(true) => return Ok(None),
                Ok(false) => attempts.note_failure(RemoteFailure::Conflict),
                Err(DatabaseFailure::Request { reason, .. }) if what == APPEND && is_duplicate(&reason) => {
                    return Err(self.row_error("a record already exists after the session's end"));
                }
                Err(DatabaseFailure::Request { reason, is_certain }) => {
                    in_doubt |= !is_certain;
                    if !in_doubt && !reason.failure.may_pass() {
                        return Err(attempts.end(what, reason));
                    }
                    attempts.note_failure(reason);
                }
                Err(DatabaseFailure::Final(error)) => return Err(*error),
            }
            match fate().await {
                Ok(StatementFate::Open) => {}
                Ok(StatementFate::Committed) if self.confirm(nonce).await => return Ok(None),
                Ok(StatementFate::Overtaken(by)) if self.confirm(nonce).await => return Ok(Some(by)),
                Ok(StatementFate::Committed | StatementFate::Overtaken(_)) => in_doubt = true,
                Err(DatabaseFailure::Request { reason, .. }) => attempts.note_failure(reason),
                Err(DatabaseFailure::Final(error)) => return Err(*error),
            }
        }
        Err(if in_doubt { attempts.last().unknown(next) } else { attempts.error(what) })
    }

    /// Returns whether the last of these records is in the database, before another writer's claim.
    async fn is_held(&self, batch: &RowBatch) -> Result<bool, DatabaseFailure> {
        let last = column(batch.next.get().saturating_sub(1));
        let parameters = [(&self.session as _, UUID), (&last as _, Type::INT8)];
        let rows = self.tables.query(statements::LINK_BEFORE, &parameters).await?;
        let found = rows.first();
        Ok(found.is_some_and(|row| {
            statements::link(row, 0) == Some(batch.link) && number(row, 1) == Some(self.epoch.get())
        }))
    }

    /// Makes the server acknowledge a commit after the one that was found. Another writer's claim
    /// after it is such a commit.
    async fn confirm(&self, nonce: Uuid) -> bool {
        let epoch = column(self.epoch.get());
        let parameters = [
            (&self.session as _, UUID),
            (&epoch as _, Type::INT8),
            (&self.id.0 as _, UUID),
            (&nonce as _, UUID),
        ];
        if matches!(self.tables.commit(statements::CONFIRM, &parameters, 1).await, Ok(true)) {
            return true;
        }
        let head = self.tables.head(self.session).await;
        matches!(head, Ok(Some(head)) if head.epoch > self.epoch)
    }

    fn row_error(&self, reason: &'static str) -> Error {
        Error::Row { session: self.session, sequence: self.next, reason }
    }

    fn went_back(&self) -> DatabaseFailure {
        Error::DatabaseWentBack { session: self.session, sequence: self.next }.into()
    }

    fn check(&self) -> Result<()> {
        self.stopped.clone().map_or(Ok(()), Err)
    }
}

impl SessionWriter for RowWriter {
    type State = ();

    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn state(&self) -> Option<()> {
        self.stopped.is_none().then_some(())
    }

    /// The data of captures is stored with the first record.
    fn queue(&mut self, captures: Option<CapturePacks<'_>>, records: &[Record<'_>]) -> Result<usize> {
        self.check()?;
        if let Some(pending) = &self.pending {
            return Err(self.tables.begin().in_doubt(pending.next));
        }
        let (next, link, nonce) = (self.next, self.link, Uuid::new_v4());
        let (kinds, times, bodies, links) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut batch = RowBatch { next, link, nonce, kinds, times, bodies, captures: Vec::new(), links };
        let records = records.get(..count_fitting(records)).unwrap_or_default();
        let end = next + records.len() as u64;
        let mut beside = captures.map(|captures| AppendCaptures::encode(end, captures)).transpose()?;
        for record in records {
            check_record(record, batch.next)?;
            let column = beside.take();
            let link_before = column.as_deref().map_or(batch.link, |column| batch.link.captures(column));
            batch.captures.push(column);
            batch.link = link_before.record(self.epoch, record);
            batch.next += 1;
            batch.kinds.push(i16::from(record.kind.byte()));
            batch.times.push(record.time_us);
            batch.bodies.push(record.body.to_vec());
            batch.links.push(batch.link.column().to_vec());
        }
        let taken = batch.bodies.len();
        self.pending = Some(batch).filter(|_| taken > 0);
        Ok(taken)
    }

    async fn settle(&mut self) -> Result<SequenceNumber> {
        self.check()?;
        let Some(batch) = self.pending.take() else { return Ok(self.next) };
        match self.put(&batch).await {
            Ok(overtaken) => {
                (self.next, self.link) = (batch.next, batch.link);
                self.stopped = overtaken;
                Ok(self.next)
            }
            Err(error @ Error::Unknown { .. }) => {
                self.pending = Some(batch);
                Err(error)
            }
            // None of the records is in the database or ever will be: the caller may append them
            // again.
            Err(error @ Error::Store { .. }) => Err(error),
            Err(error) => {
                self.stopped = Some(error.clone());
                Err(error)
            }
        }
    }

    async fn finish(self) {}
}

/// Returns how many records fit into one statement: at least one.
fn count_fitting(records: &[Record<'_>]) -> usize {
    let mut bytes = 0;
    let fits = records.iter().take(APPEND_RECORDS).take_while(|record| {
        bytes += record.body.len();
        bytes <= APPEND_BYTES
    });
    fits.count().max(1).min(records.len())
}

impl Tables {
    /// Runs a statement that writes, and returns whether it wrote that many rows. A server that
    /// warned may have stopped waiting for its standby, so its answer is ignored.
    async fn commit(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
        rows: u64,
    ) -> Result<bool, DatabaseFailure> {
        let mut lease = self.pool.lease().await.map_err(DatabaseFailure::certain)?;
        let answer = lease.query(&self.sql(statement), parameters).await?;
        let Some(row) = answer.first().filter(|_| !lease.is_warned()) else {
            return Err(DatabaseFailure::uncertain(RemoteFailure::Unavailable));
        };
        let written = number(row, 0) == Some(rows);
        match losing_setting(row).filter(|_| written) {
            Some(setting) => Err(Error::NotDurable { setting }.into()),
            None => Ok(written),
        }
    }
}
