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

use foldlog_codec::frame::{BODY_LEN_MAX, TIME_US_MAX, TIME_US_MIN};
use foldlog_codec::{Record, SequenceNumber};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Tables;
use super::captures::AppendCaptures;
use super::connection::DatabaseFailure;
use super::leases::WorkerLease;
use super::link::Link;
use super::reader::Stand;
use super::statements::{SessionTableRow, UUID, column, losing_setting, number, writer};
use crate::chunk::{Epoch, WriterId};
use crate::error::{Error, RemoteFailure, Result};

const CLAIM: &str = "claim the session in the database";
const APPEND: &str = "append to the database";

/// Number of records at which one statement is full.
const APPEND_RECORDS: usize = 4_096;

/// Number of bytes of bodies at which one statement is full.
const APPEND_BYTES: usize = 8 << 20;

/// Appends to one session, as the writer of one epoch.
#[derive(Debug)]
pub(super) struct RowWriter {
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

impl RowWriter {
    /// Claims a session that was read to `stand`, with one attempt: if anything was added after
    /// that, nothing is claimed. `lease` is renewed before the claim names it.
    pub(super) async fn claim(
        tables: Arc<Tables>,
        session: Uuid,
        stand: Stand,
        lease: Option<&WorkerLease>,
    ) -> Result<RowWriter> {
        super::schema::prepare(&tables.pool, &tables.schema, tables.retries).await?;
        if let Some(lease) = lease {
            lease.keeper.renew().await;
        }
        let next = stand.next;
        let epoch = stand.epoch.next().ok_or(Error::Row {
            session,
            sequence: next,
            reason: "its epoch is the highest possible",
        })?;
        let id = WriterId::random();
        let link = stand.link.claim(epoch, id, next, &tables.name);
        let mut claiming = RowWriter { tables, session, id, epoch, next, link, pending: None, stopped: None };
        claiming.put_claim(&stand, lease.map(|lease| lease.worker)).await?;
        Ok(claiming)
    }

    async fn put_claim(&mut self, stand: &Stand, lease: Option<Uuid>) -> Result<()> {
        let tables = Arc::clone(&self.tables);
        let (next, epoch) = (column(self.next.get()), column(self.epoch.get()));
        let (before, id, nonce) = (column(stand.epoch.get()), writer(self.id), Uuid::new_v4());
        let (link, link_before) = (self.link, stand.link);
        let (link, link_before) = (link.column(), link_before.column());
        let mut parameters = vec![
            (&self.session as _, UUID),
            (&epoch as _, Type::INT8),
            (&next as _, Type::INT8),
            (&id as _, UUID),
            (&tables.name as _, Type::TEXT),
            (&nonce as _, UUID),
            (&link as _, Type::BYTEA),
            (&lease as _, UUID),
        ];
        let statement = if stand.epoch == Epoch::default() {
            &tables.statements.first_claim
        } else {
            parameters.extend([(&before as _, Type::INT8), (&link_before as _, Type::BYTEA)]);
            &tables.statements.claim
        };
        let (mut attempts, mut in_doubt) = (tables.begin(), false);
        while attempts.wait_for_next().await {
            match tables.commit(statement, &parameters, 1).await {
                Ok(written) => {
                    if written? {
                        return Ok(());
                    }
                    attempts.note_failure(RemoteFailure::Conflict);
                }
                Err(refusal) => {
                    in_doubt |= !refusal.is_certain;
                    if !in_doubt && !refusal.may_pass() {
                        return Err(attempts.end(CLAIM, refusal.reason));
                    }
                    attempts.note_failure(refusal.reason);
                }
            }
            match tables.head(self.session).await {
                Ok(head) => match self.claim_fate(head?, stand)? {
                    StatementFate::Committed if self.confirm(nonce).await => return Ok(()),
                    StatementFate::Committed | StatementFate::Overtaken(_) => in_doubt = true,
                    StatementFate::Open => {}
                },
                Err(refusal) => attempts.note_failure(refusal.reason),
            }
        }
        Err(if in_doubt { attempts.last().unknown(self.next) } else { attempts.error(CLAIM) })
    }

    fn claim_fate(&self, head: Option<SessionTableRow>, stand: &Stand) -> Result<StatementFate> {
        let went_back = Error::DatabaseWentBack { session: self.session, sequence: self.next };
        let Some(head) = head else {
            return if stand.epoch == Epoch::default() { Ok(StatementFate::Open) } else { Err(went_back) };
        };
        if head.writer == self.id && head.epoch == self.epoch {
            return Ok(StatementFate::Committed);
        }
        let SessionTableRow { epoch, next, link, writer: by, name: note, .. } = head;
        if (epoch, next, link) == (stand.epoch, stand.next, stand.link) {
            return Ok(StatementFate::Open);
        }
        if epoch < stand.epoch || next < stand.next {
            return Err(went_back);
        }
        Err(Error::Fenced { epoch, by, note })
    }

    /// Takes as many records as fit into one statement, in memory only, and returns their number.
    /// The data of captures is stored with the first one.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if earlier records are in doubt, [`Error::OutOfOrder`],
    /// [`Error::NotContent`] and [`Error::TooLarge`].
    pub(super) fn queue(
        &mut self,
        captures: Option<&AppendCaptures>,
        records: &[Record<'_>],
    ) -> Result<usize> {
        self.check()?;
        if let Some(pending) = &self.pending {
            let mut attempts = self.tables.begin();
            attempts.note_failure(RemoteFailure::TimedOut);
            return Err(attempts.last().unknown(pending.next));
        }
        let (next, link, nonce) = (self.next, self.link, Uuid::new_v4());
        let (kinds, times, bodies, links) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut batch = RowBatch { next, link, nonce, kinds, times, bodies, captures: Vec::new(), links };
        let records = records.get(..count_fitting(records)).unwrap_or_default();
        let mut beside = captures.map(|captures| {
            let next = next + records.len() as u64;
            AppendCaptures { next, ..captures.clone() }.encode()
        });
        for record in records {
            let Record { sequence, kind, time_us, body } = *record;
            if sequence != batch.next {
                return Err(Error::OutOfOrder { expected: batch.next, found: sequence });
            }
            if kind.is_envelope() || !(TIME_US_MIN..=TIME_US_MAX).contains(&time_us) {
                return Err(Error::NotContent { sequence });
            }
            if body.len() > BODY_LEN_MAX {
                let (len, max) = (body.len() as u64, BODY_LEN_MAX as u64);
                return Err(Error::TooLarge { what: "record", len, max });
            }
            let column = beside.take();
            let link_before = column.as_deref().map_or(batch.link, |column| batch.link.captures(column));
            batch.captures.push(column);
            batch.link = link_before.record(self.epoch, record);
            batch.next += 1;
            batch.kinds.push(i16::from(kind.byte()));
            batch.times.push(time_us);
            batch.bodies.push(body.to_vec());
            batch.links.push(batch.link.column().to_vec());
        }
        let taken = batch.bodies.len();
        self.pending = Some(batch).filter(|_| taken > 0);
        Ok(taken)
    }

    /// Appends records that are still in doubt, if there are any.
    pub(super) async fn settle(&mut self) -> Result<()> {
        self.check()?;
        let Some(batch) = self.pending.take() else { return Ok(()) };
        match self.put(&batch).await {
            Ok(overtaken) => {
                (self.next, self.link) = (batch.next, batch.link);
                self.stopped = overtaken;
                Ok(())
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

    /// Appends a batch. Returns the error for the next append, if another writer's claim was found
    /// after the batch.
    async fn put(&self, batch: &RowBatch) -> Result<Option<Error>> {
        let tables = &self.tables;
        let (epoch, next, behind) =
            (column(self.epoch.get()), column(self.next.get()), column(batch.next.get()));
        let (id, link, link_before) = (writer(self.id), batch.link.column(), self.link.column());
        let parameters = [
            (&self.session as _, UUID),
            (&epoch as _, Type::INT8),
            (&next as _, Type::INT8),
            (&behind as _, Type::INT8),
            (&id as _, UUID),
            (&batch.nonce as _, UUID),
            (&link as _, Type::BYTEA),
            (&link_before as _, Type::BYTEA),
            (&batch.kinds as _, Type::INT2_ARRAY),
            (&batch.times as _, Type::INT8_ARRAY),
            (&batch.bodies as _, Type::BYTEA_ARRAY),
            (&batch.captures as _, Type::BYTEA_ARRAY),
            (&batch.links as _, Type::BYTEA_ARRAY),
        ];
        let (mut attempts, mut in_doubt) = (tables.begin(), false);
        while attempts.wait_for_next().await {
            match tables.commit(&tables.statements.append, &parameters, batch.bodies.len() as u64).await {
                Ok(written) => {
                    if written? {
                        return Ok(None);
                    }
                    attempts.note_failure(RemoteFailure::Conflict);
                }
                Err(refusal) if refusal.is_duplicate() => {
                    let reason = "a record already exists after the session's end";
                    return Err(Error::Row { session: self.session, sequence: self.next, reason });
                }
                Err(refusal) => {
                    in_doubt |= !refusal.is_certain;
                    if !in_doubt && !refusal.may_pass() {
                        return Err(attempts.end(APPEND, refusal.reason));
                    }
                    attempts.note_failure(refusal.reason);
                }
            }
            match self.fate(batch).await {
                Ok(fate) => match fate? {
                    StatementFate::Committed if self.confirm(batch.nonce).await => return Ok(None),
                    StatementFate::Overtaken(by) if self.confirm(batch.nonce).await => return Ok(Some(by)),
                    StatementFate::Committed | StatementFate::Overtaken(_) => in_doubt = true,
                    StatementFate::Open => {}
                },
                Err(refusal) => attempts.note_failure(refusal.reason),
            }
        }
        Err(if in_doubt { attempts.last().unknown(batch.next) } else { attempts.error(APPEND) })
    }

    /// Determines the outcome of the statement by the session's row.
    async fn fate(&self, batch: &RowBatch) -> Result<Result<StatementFate>, DatabaseFailure> {
        let went_back = Error::DatabaseWentBack { session: self.session, sequence: self.next };
        let head = match self.tables.head(self.session).await? {
            Ok(head) => head,
            Err(error) => return Ok(Err(error)),
        };
        let Some(head) = head else { return Ok(Err(went_back)) };
        if head.epoch < self.epoch || head.next < self.next {
            return Ok(Err(went_back));
        }
        if head.epoch == self.epoch && head.writer == self.id {
            if (head.next, head.nonce, head.link) == (batch.next, batch.nonce, batch.link) {
                return Ok(Ok(StatementFate::Committed));
            }
            if (head.next, head.link) == (self.next, self.link) {
                return Ok(Ok(StatementFate::Open));
            }
            let reason = "another copy of this writer appended it";
            return Ok(Err(Error::Row { session: self.session, sequence: self.next, reason }));
        }
        let fenced = Error::Fenced { epoch: head.epoch, by: head.writer, note: head.name };
        if self.is_held(batch).await? {
            // The claim was committed after it, and the claimant has read it.
            return Ok(Ok(StatementFate::Overtaken(fenced)));
        }
        Ok(Err(fenced))
    }

    /// Returns whether the last of these records is in the database, before another writer's claim.
    async fn is_held(&self, batch: &RowBatch) -> Result<bool, DatabaseFailure> {
        let last = column(batch.next.get().saturating_sub(1));
        let parameters = [(&self.session as _, UUID), (&last as _, Type::INT8)];
        let rows = self.tables.pool.query(&self.tables.statements.link_before, &parameters).await?;
        let found = rows.first();
        Ok(found.is_some_and(|row| {
            super::statements::link(row, 0) == Some(batch.link) && number(row, 1) == Some(self.epoch.get())
        }))
    }

    /// Makes the server acknowledge a commit after the one that was found. Another writer's claim
    /// after it is such a commit.
    async fn confirm(&self, nonce: Uuid) -> bool {
        let (epoch, id) = (column(self.epoch.get()), writer(self.id));
        let parameters =
            [(&self.session as _, UUID), (&epoch as _, Type::INT8), (&id as _, UUID), (&nonce as _, UUID)];
        if matches!(self.tables.commit(&self.tables.statements.confirm, &parameters, 1).await, Ok(Ok(true))) {
            return true;
        }
        let head = self.tables.head(self.session).await;
        matches!(head, Ok(Ok(Some(head))) if head.epoch > self.epoch)
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns whether the writer has stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    fn check(&self) -> Result<()> {
        self.stopped.clone().map_or(Ok(()), Err)
    }
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
        parameters: &[super::connection::Parameter<'_>],
        rows: u64,
    ) -> Result<Result<bool>, DatabaseFailure> {
        let mut lease =
            self.pool.lease().await.map_err(|refusal| DatabaseFailure { is_certain: true, ..refusal })?;
        let answer = lease.query(statement, parameters).await?;
        let Some(row) = answer.first().filter(|_| !lease.is_warned()) else {
            return Err(DatabaseFailure::uncertain(RemoteFailure::Unavailable));
        };
        let written = number(row, 0) == Some(rows);
        match losing_setting(row).filter(|_| written) {
            Some(setting) => Ok(Err(Error::NotDurable { setting })),
            None => Ok(Ok(written)),
        }
    }
}
