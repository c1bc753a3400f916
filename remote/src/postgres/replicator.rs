//! Replicates the sessions of a store into a database: the engine's [`Replicator`] for PostgreSQL.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use foldlog::replication::{CapturePacks, HeldPart, ReplicaError, ReplicaStatus, Replicator};
use foldlog_codec::body::ObjectId;
use foldlog_codec::{Record, SequenceNumber};
use futures_lite::future;
use tokio::sync::mpsc;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::captures::AppendCaptures;
use super::connection::{DatabaseFailure, Pool};
use super::leases::{self, WorkerLease};
use super::payloads::{Old, Puts, STATEMENT_BYTES_MAX};
use super::reader::{Item, PageSink, RowReader, Stand};
use super::statements::{Statements, UUID, column};
use super::tail::{self, Tail};
use super::writer::RowWriter;
use super::{Database, Tables};
use crate::chunk::NOTE_BYTES_MAX;
use crate::clock::Clock;
use crate::confirmations::{Confirmations, fresh_for};
use crate::error::{Error, Result, replica_error};
use crate::lease::{LEASE_LENGTH, SessionLease};
use crate::place::SessionStanding;
use crate::retries::{Attempts, Retries};
use crate::runtime::Runtime;
use crate::slots::{KEPT_BYTES_MAX, Slots};

const STANDING: &str = "ask the database for a session";
const CONFIRM: &str = "ask the database for the session's claim";
const SESSIONS: &str = "ask the database for its sessions";

/// Number of pages that are read ahead of their consumer.
const AHEAD: usize = 2;

/// Replicates the sessions of one store into a PostgreSQL database.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use foldlog::replication::Replication;
/// use foldlog::{Store, StoreOptions};
/// use foldlog_remote::{Database, PostgresReplicator, Retries};
///
/// let database = Database::from_url("postgres://agents@db.example/agents")?; // PGPASSWORD has the password
/// let replicator = PostgresReplicator::new(database, "worker 7", Retries::default())?;
/// let options = StoreOptions {
///     replication: Some(Replication::new(Arc::new(replicator))),
///     ..StoreOptions::default()
/// };
/// let store = Store::open_with("agents", options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PostgresReplicator {
    tables: Arc<Tables>,
    /// Location of the sessions, in words.
    words: String,
    runtime: Runtime,
    sessions: Slots<Stand, RowWriter>,
    clock: Clock,
    /// For each claim, the last time when it was the newest one.
    confirmations: Confirmations<()>,
    /// Validity of a confirmation.
    fresh_for: Duration,
    puts: Puts,
    /// Receives the sessions with followers to notify.
    news: mpsc::UnboundedSender<Uuid>,
    /// `None` if it keeps no lease.
    lease: Option<WorkerLease>,
}

impl PostgresReplicator {
    /// Replicates sessions into `database`, and starts a thread for its requests. Sends no request
    /// yet. `name` identifies the writer in claims, and must belong to this one directory of
    /// sessions. Another directory with the same name would continue from records that this one has
    /// not brought to the database.
    ///
    /// # Errors
    ///
    /// [`Error::NoRuntime`], and [`Error::TooLarge`] if the name is longer than 1,024 bytes or
    /// contains a NUL, which databases cannot store.
    pub fn new(database: Database, name: &str, retries: Retries) -> Result<PostgresReplicator> {
        if name.len() > NOTE_BYTES_MAX || name.contains('\0') {
            return Err(Error::TooLarge { what: "note", len: name.len() as u64, max: NOTE_BYTES_MAX as u64 });
        }
        let (words, schema) = (database.place(), database.schema.clone());
        let (statements, name) = (Statements::new(&schema), name.to_owned());
        let pool = Pool::new(database, retries.request_timeout);
        let tables = Arc::new(Tables { pool, statements, schema, retries, name });
        let runtime = Runtime::start()?;
        let (news, told) = mpsc::unbounded_channel();
        runtime.spawn(tell(Arc::clone(&tables), told))?;
        let clock = Clock::default();
        PostgresReplicator {
            tables,
            words,
            runtime,
            sessions: Slots::default(),
            clock: clock.clone(),
            confirmations: Confirmations::default(),
            fresh_for: fresh_for(None),
            puts: Puts::new(clock, KEPT_BYTES_MAX),
            news,
            lease: None,
        }
        .with_lease(LEASE_LENGTH)
    }

    /// Replaces the system's clock, which also runs while the machine sleeps, by the caller's
    /// clock, and sets the number of bytes of payloads to keep. For tests, which cannot wait for
    /// days.
    #[doc(hidden)]
    pub fn with_clock(
        self,
        read: impl Fn() -> Duration + Send + Sync + 'static,
        kept_bytes_max: u64,
    ) -> PostgresReplicator {
        let clock = Clock::new(read);
        PostgresReplicator { puts: Puts::new(clock.clone(), kept_bytes_max), clock, ..self }
    }

    /// Sets the length of its lease, from 100 ms to an hour; the default is [`LEASE_LENGTH`]. It
    /// writes a row three times in that time, while it has sessions claimed. Call this before
    /// anything is claimed.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLength`].
    pub fn with_lease(self, length: Duration) -> Result<PostgresReplicator> {
        let lease = Some(WorkerLease::new(&self.tables, length)?);
        Ok(PostgresReplicator { lease, fresh_for: fresh_for(Some(length)), ..self })
    }

    /// Keeps no lease, so that its sessions can be taken over without waiting.
    #[must_use]
    pub fn without_lease(self) -> PostgresReplicator {
        PostgresReplicator { lease: None, fresh_for: fresh_for(None), ..self }
    }

    /// Forgets a claim that was replaced by a later one.
    fn lose(&self, session: Uuid, epoch: u64) {
        self.confirmations.forget(session, epoch);
        if let Some(lease) = &self.lease {
            lease.keeper.lose(session, epoch);
        }
    }

    /// Returns the lease under which a session was last claimed.
    pub(super) fn lease(&self, session: Uuid) -> Result<Option<SessionLease>> {
        let tables = Arc::clone(&self.tables);
        self.runtime.run(async move { leases::lease(&tables, session).await })?
    }

    /// Returns the ids of the sessions in the database.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], [`Error::NewerTables`] and [`Error::NoRuntime`].
    pub fn sessions(&self) -> Result<Vec<Uuid>> {
        let tables = Arc::clone(&self.tables);
        self.runtime.run(async move {
            if !tables.has_tables(SESSIONS).await? {
                return Ok(Vec::new());
            }
            let rows = tables.ask(SESSIONS, &tables.statements.sessions, &[]).await?;
            Ok(rows.iter().filter_map(|row| row.try_get(0).ok()).collect())
        })?
    }

    /// Follows a session from the record `from` on: yields the existing records, and then each new
    /// one, from any writer. Claims nothing. Every record is verified against the previous one; the
    /// one before `from` is not verified.
    ///
    /// # Errors
    ///
    /// [`Error::NoRuntime`].
    pub fn tail(&self, session: Uuid, from: SequenceNumber) -> Result<Tail> {
        tail::start(&self.runtime, Arc::clone(&self.tables), session, from)
    }

    /// Returns the bytes of a payload, verified against their hash; `None` if it is missing.
    pub(super) fn object(&self, session: Uuid, object: ObjectId) -> Result<Option<Vec<u8>>> {
        let tables = Arc::clone(&self.tables);
        self.runtime.run(async move { tables.object(session, object).await })?
    }

    /// Returns the access to the database.
    pub(super) fn tables(&self) -> Arc<Tables> {
        Arc::clone(&self.tables)
    }

    /// Returns the thread for requests to the database.
    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the state of a session from its row, which only a reader of the session verifies.
    pub(super) fn read_standing(&self, session: Uuid) -> Result<Option<SessionStanding>> {
        let tables = Arc::clone(&self.tables);
        self.runtime.run(async move {
            if !tables.has_tables(STANDING).await? {
                return Ok(None);
            }
            let rows = tables.ask(STANDING, &tables.statements.head, &[(&session, UUID)]).await?;
            let Some(head) = rows.first().map(|row| tables.head_of(session, row)).transpose()? else {
                return Ok(None);
            };
            let last = column(head.next.get()).saturating_sub(1);
            let parameters = [(&session as _, UUID), (&last as _, Type::INT8)];
            let rows = tables.ask(STANDING, &tables.statements.time, &parameters).await?;
            let last_time_us = rows.first().and_then(|row| row.try_get(0).ok());
            Ok(Some(SessionStanding {
                next: head.next,
                epoch: head.epoch.get(),
                name: head.name,
                last_time_us,
            }))
        })?
    }

    /// Returns a reader of a session, which claims nothing.
    pub(super) fn reader(&self, session: Uuid) -> RowReader {
        RowReader::new(Arc::clone(&self.tables), session)
    }

    /// Reads to the end, and passes items to `visit` on the calling thread. Returns the reader,
    /// positioned after the items that were passed on.
    pub(super) fn read_here(
        &self,
        mut reader: RowReader,
        visit: &mut dyn FnMut(Item),
    ) -> (RowReader, Result<()>) {
        let (send, mut pages) = mpsc::channel(AHEAD);
        let lost = reader.clone();
        let read = async move {
            let read = reader.read_to_end(&mut Pages(send.clone())).await.map(drop);
            // If this fails, the caller no longer waits.
            let _ = send.send(ReadStep::End(Box::new((reader, read)))).await;
        };
        if let Err(error) = self.runtime.spawn(read) {
            return (lost, Err(error));
        }
        loop {
            match future::block_on(pages.recv()) {
                Some(ReadStep::Page(items)) => items.into_iter().for_each(&mut *visit),
                Some(ReadStep::End(end)) => return *end,
                None => return (lost, Err(Error::NoRuntime)),
            }
        }
    }

    /// Ensures that the payloads of records that are about to be appended, or were just appended,
    /// still exist.
    fn make_sure_of_payloads(&self, session: Uuid) -> Result<()> {
        let Some(Old { objects, now }) = self.puts.old(session) else { return Ok(()) };
        let tables = Arc::clone(&self.tables);
        self.runtime.run(async move {
            for (object, kept) in objects {
                tables.keep_object(session, object, kept).await?;
            }
            Ok::<(), Error>(())
        })??;
        self.puts.note_there(session, now);
        Ok(())
    }

    /// Appends with a writer that was taken from its slot, and returns it.
    fn write(
        &self,
        mut writer: Box<RowWriter>,
        mut captures: Option<AppendCaptures>,
        records: &[Record<'_>],
    ) -> (Option<Box<RowWriter>>, Result<()>) {
        let mut left = records;
        loop {
            let settled = self.runtime.run(async move {
                let settled = writer.settle().await;
                (writer, settled)
            });
            let settled = match settled {
                Ok((back, settled)) => {
                    writer = back;
                    settled
                }
                // The thread has ended, and the writer with it.
                Err(error) => return (None, Err(error)),
            };
            if settled.is_err() || left.is_empty() {
                return (Some(writer), settled);
            }
            match writer.queue(captures.as_ref(), left) {
                Ok(taken) => {
                    left = left.get(taken..).unwrap_or_default();
                    // The first statement contains the captures of all.
                    captures = captures.map(|_| AppendCaptures::none());
                }
                Err(error) => return (Some(writer), Err(error)),
            }
        }
    }
}

/// A step of a read.
enum ReadStep {
    Page(Vec<Item>),
    End(Box<(RowReader, Result<()>)>),
}

/// Passes pages to a thread that blocks for them.
struct Pages(mpsc::Sender<ReadStep>);

impl PageSink for Pages {
    async fn take(&mut self, page: Vec<Item>) -> bool {
        self.0.send(ReadStep::Page(page)).await.is_ok()
    }
}

impl Replicator for PostgresReplicator {
    fn place(&self) -> String {
        self.words.clone()
    }

    fn name(&self) -> String {
        self.tables.name.clone()
    }

    fn read(
        &self,
        session: Uuid,
        visit: &mut dyn FnMut(HeldPart<'_>),
    ) -> Result<ReplicaStatus, ReplicaError> {
        let mut each = |item| match item {
            Item::Claim { .. } => {}
            Item::Captures(captures) => {
                visit(HeldPart::Captures { next: captures.next, captures: captures.packs() });
            }
            Item::Record(record) => visit(HeldPart::Record(record.record())),
        };
        let (reader, read) = self.read_here(self.reader(session), &mut each);
        read.map_err(replica_error)?;
        let Stand { next, epoch, name, .. } = &reader.stand;
        let is_ours = *name == self.tables.name && epoch.get() > 0;
        let held = ReplicaStatus { next: *next, epoch: epoch.get(), is_ours, others_end: reader.others_end };
        self.sessions.note_read(session, reader.stand);
        Ok(held)
    }

    fn claim(&self, session: Uuid, expected: SequenceNumber) -> Result<u64, ReplicaError> {
        let stand = self.sessions.take_read(session, |stand| stand.next == expected)?;
        let (tables, lease) = (Arc::clone(&self.tables), self.lease.clone());
        let asked = self.clock.now();
        let claim = async move {
            let writer = RowWriter::claim(tables, session, stand, lease.as_ref()).await?;
            if let Some(lease) = lease {
                lease.keeper.hold(session, writer.epoch().get()).await;
            }
            Ok(writer)
        };
        let writer = self.runtime.run(claim).and_then(|claimed| claimed).map_err(replica_error)?;
        let epoch = writer.epoch().get();
        self.confirmations.note(session, epoch, asked, ());
        self.sessions.note_claimed(session, Box::new(writer));
        Ok(epoch)
    }

    fn put_object(&self, session: Uuid, object: ObjectId, bytes: &[u8]) -> Result<(), ReplicaError> {
        let len = bytes.len() as u64;
        if len > STATEMENT_BYTES_MAX {
            let error = Error::TooLarge { what: "payload", len, max: STATEMENT_BYTES_MAX };
            return Err(replica_error(error));
        }
        let (tables, bytes) = (Arc::clone(&self.tables), Arc::new(bytes.to_vec()));
        self.puts.note(session, object, &bytes);
        let put = async move { tables.put_object(session, object, &bytes).await };
        self.runtime.run(put).and_then(|put| put).map_err(replica_error)
    }

    fn get_object(&self, session: Uuid, object: ObjectId) -> Result<Vec<u8>, ReplicaError> {
        let found = self.object(session, object).map_err(replica_error)?;
        found.ok_or_else(|| ReplicaError::Failed {
            reason: format!("the payload {} is missing", object.file_name()),
        })
    }

    fn holds_captures(&self) -> bool {
        true
    }

    fn append(
        &self,
        session: Uuid,
        epoch: u64,
        captures: Option<CapturePacks<'_>>,
        records: &[Record<'_>],
    ) -> Result<(), ReplicaError> {
        let captures = captures.map(AppendCaptures::new).transpose().map_err(replica_error)?;
        self.make_sure_of_payloads(session).map_err(replica_error)?;
        let writer = self.sessions.take_claimed(session, |writer| writer.epoch().get() == epoch)?;
        let asked = self.clock.now();
        let (writer, appended) = self.write(writer, captures, records);
        // Without the thread there is no writer, and nothing more is appended under its epoch.
        if let Some(writer) = writer {
            if appended.is_ok() && !writer.is_stopped() {
                self.confirmations.note(session, epoch, asked, ());
            }
            self.sessions.note_claimed(session, writer);
        }
        if matches!(appended, Err(Error::Fenced { .. })) {
            self.lose(session, epoch);
        }
        appended.map_err(replica_error)?;
        self.make_sure_of_payloads(session).map_err(replica_error)?;
        self.puts.forget(session);
        // A follower also polls, so a lost notification loses no records.
        let _ = self.news.send(session);
        Ok(())
    }

    fn is_confirmed(&self, session: Uuid, epoch: u64) -> bool {
        self.confirmations.is_fresh(session, epoch, self.clock.now(), self.fresh_for)
    }

    fn confirm(&self, session: Uuid, epoch: u64) -> Result<(), ReplicaError> {
        self.confirmations.last(session, epoch)?;
        let (tables, asked) = (Arc::clone(&self.tables), self.clock.now());
        let ask = async move { tables.retry_request(CONFIRM, || tables.head(session)).await? };
        let head = self.runtime.run(ask).and_then(|head| head).map_err(replica_error)?;
        let error = match head {
            Some(head) if head.epoch.get() == epoch => {
                self.confirmations.note(session, epoch, asked, ());
                return Ok(());
            }
            Some(head) if head.epoch.get() > epoch => {
                self.lose(session, epoch);
                Error::Fenced { epoch: head.epoch, by: head.writer, note: head.name }
            }
            head => {
                let sequence = head.map_or(SequenceNumber::MIN, |head| head.next);
                Error::DatabaseWentBack { session, sequence }
            }
        };
        Err(replica_error(error))
    }

    fn release(&self, session: Uuid, epoch: u64) {
        self.confirmations.forget(session, epoch);
        // Another handle may have claimed the session since.
        if self.sessions.take_claimed(session, |writer| writer.epoch().get() == epoch).is_ok() {
            self.puts.forget(session);
        }
        if let Some(WorkerLease { keeper, .. }) = self.lease.clone() {
            // If this fails, a takeover waits until the lease has run out.
            let _ = self.runtime.run(async move { keeper.release(session, epoch).await });
        }
    }
}

impl Tables {
    /// Starts to count the attempts of one request.
    pub(super) fn begin(&self) -> Attempts {
        self.pool.attempts(self.retries)
    }

    /// Runs an idempotent statement until it is answered.
    pub(super) async fn ask(
        &self,
        what: &'static str,
        statement: &str,
        parameters: &[super::connection::Parameter<'_>],
    ) -> Result<Vec<tokio_postgres::Row>> {
        self.retry_request(what, || self.pool.query(statement, parameters)).await
    }

    /// Sends an idempotent request until it is answered.
    pub(super) async fn retry_request<T, F>(&self, what: &'static str, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, DatabaseFailure>>,
    {
        let mut attempts = self.begin();
        while attempts.wait_for_next().await {
            match request().await {
                Ok(answer) => return Ok(answer),
                Err(refusal) if refusal.may_pass() => attempts.note_failure(refusal.reason),
                Err(DatabaseFailure { reason, .. }) => return Err(attempts.end(what, reason)),
            }
        }
        Err(attempts.error(what))
    }

    /// Returns whether there are tables, and refuses unknown versions.
    pub(super) async fn has_tables(&self, what: &'static str) -> Result<bool> {
        self.version(what).await.map(|version| version.is_some())
    }

    /// Returns the version of the tables, `None` if there are none, and refuses unknown versions.
    pub(super) async fn version(&self, what: &'static str) -> Result<Option<i32>> {
        let version = self.retry_request(what, || super::schema::version(&self.pool, &self.schema)).await?;
        version.map(|version| super::schema::check(version).map(|()| version)).transpose()
    }
}

/// Notifies the followers of sessions of new records, in transactions for which no caller waits:
/// notifications serialize commits in the whole server.
async fn tell(tables: Arc<Tables>, mut told: mpsc::UnboundedReceiver<Uuid>) {
    while let Some(session) = told.recv().await {
        let mut sessions = BTreeSet::from([session]);
        while let Ok(session) = told.try_recv() {
            sessions.insert(session);
        }
        let channels: Vec<String> = sessions.into_iter().map(tail::channel).collect();
        let parameters = [(&channels as _, Type::TEXT_ARRAY)];
        let _ = tables.pool.query(tail::NOTIFY, &parameters).await;
    }
}
