//! Replicates the sessions of a store into a database.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use foldlog::replication::{HeldPart, ReplicaStatus};
use foldlog_codec::SequenceNumber;
use foldlog_codec::body::ObjectId;
use tokio::sync::mpsc;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::connection::Pool;
use super::leases::TableLeases;
use super::payloads::RowPayloads;
use super::reader::{Item, RowReader, Stand, read_here};
use super::statements::{self, UUID, column};
use super::tail::{self, Tail};
use super::writer::RowWriter;
use super::{Database, Tables};
use crate::chunk::{Epoch, NOTE_BYTES_MAX};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::kept_payloads::{KEPT_BYTES_MAX, KeptPayloads};
use crate::lease::renewal::LeaseRenewer;
use crate::place::SessionStanding;
use crate::replicator::{SessionPlace, SessionReplicator};
use crate::retries::Retries;
use crate::runtime::Runtime;

const STANDING: &str = "ask the database for a session";
const CONFIRM: &str = "ask the database for the session's claim";
const SESSIONS: &str = "ask the database for its sessions";

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
pub type PostgresReplicator = SessionReplicator<DatabaseSessions>;

/// The sessions in a database.
#[derive(Debug)]
pub struct DatabaseSessions {
    pub(super) tables: Arc<Tables>,
    clock: Clock,
    /// Maximum number of bytes of payloads that a writer keeps.
    kept_bytes_max: u64,
    /// Receives the sessions with followers to notify.
    news: mpsc::UnboundedSender<Uuid>,
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
        if name.contains('\0') {
            return Err(Error::TooLarge { what: "note", len: name.len() as u64, max: NOTE_BYTES_MAX as u64 });
        }
        let (at, schema, name) = (database.place(), database.schema.clone(), name.to_owned());
        let pool = Pool::new(database, retries.request_timeout);
        let tables = Arc::new(Tables { pool, schema, retries, name });
        let runtime = Runtime::start()?;
        let (news, told) = mpsc::unbounded_channel();
        runtime.spawn(tell(Arc::clone(&tables), told))?;
        let (clock, kept_bytes_max) = (Clock::default(), KEPT_BYTES_MAX);
        let place = DatabaseSessions { tables: Arc::clone(&tables), clock, kept_bytes_max, news };
        SessionReplicator::start(place, runtime, &at, &tables.name)
    }

    /// Replaces the system's clock, which also runs while the machine sleeps, by the caller's
    /// clock, and sets the number of bytes of payloads to keep. For tests, which cannot wait for
    /// days.
    #[doc(hidden)]
    pub fn with_clock(
        mut self,
        read: impl Fn() -> Duration + Send + Sync + 'static,
        kept_bytes_max: u64,
    ) -> PostgresReplicator {
        (self.place.clock, self.place.kept_bytes_max) = (Clock::new(read), kept_bytes_max);
        self
    }

    /// Returns the ids of the sessions in the database.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], [`Error::NewerTables`] and [`Error::NoRuntime`].
    pub fn sessions(&self) -> Result<Vec<Uuid>> {
        self.runtime.run(self.place.tables.sessions())?
    }

    /// Follows a session from the record `from` on: yields the existing records, and then each new
    /// one, from any writer. Claims nothing. Every record is verified against the previous one; the
    /// one before `from` is not verified.
    ///
    /// # Errors
    ///
    /// [`Error::NoRuntime`].
    pub fn tail(&self, session: Uuid, from: SequenceNumber) -> Result<Tail> {
        tail::start(&self.runtime, Arc::clone(&self.place.tables), session, from)
    }
}

impl SessionPlace for DatabaseSessions {
    type Reader = Stand;
    type Writer = RowWriter;
    type Payloads = RowPayloads;
    type Leases = TableLeases;
    type State = ();

    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn leases(&self, _name: &str, length: Duration) -> TableLeases {
        TableLeases::new(Arc::clone(&self.tables), length)
    }

    fn read(
        &self,
        runtime: &Runtime,
        session: Uuid,
        name: &str,
        visit: &mut dyn FnMut(HeldPart<'_>),
    ) -> Result<(Stand, ReplicaStatus)> {
        let mut reader = RowReader::new(Arc::clone(&self.tables), session);
        read_here(runtime, &mut reader, &mut |item| match item {
            Item::Claim { .. } => {}
            Item::Captures(captures) => {
                visit(HeldPart::Captures { next: captures.next, captures: captures.packs() });
            }
            Item::Record(record) => visit(HeldPart::Record(record.record())),
        })?;
        let RowReader { stand, others_end, .. } = reader;
        let (next, epoch) = (stand.next, stand.epoch.get());
        let is_ours = stand.name == name && epoch > 0;
        Ok((stand, ReplicaStatus { next, epoch, is_ours, others_end }))
    }

    fn next_sequence(stand: &Stand) -> SequenceNumber {
        stand.next
    }

    async fn claim(
        &self,
        session: Uuid,
        stand: Stand,
        _name: &str,
        lease: Option<&LeaseRenewer<TableLeases>>,
    ) -> Result<RowWriter> {
        let lease = lease.map(|lease| &lease.leases);
        RowWriter::claim(Arc::clone(&self.tables), session, stand, lease).await
    }

    fn payloads(&self, session: Uuid) -> RowPayloads {
        let (tables, clock) = (Arc::clone(&self.tables), self.clock.clone());
        RowPayloads { tables, clock, session, kept: KeptPayloads::new(self.kept_bytes_max) }
    }

    async fn object(&self, session: Uuid, object: ObjectId) -> Result<Option<Vec<u8>>> {
        self.tables.object(session, object).await
    }

    async fn confirm(&self, session: Uuid, epoch: Epoch, (): (), _ago: Duration) -> Result<()> {
        match self.tables.retry_request(CONFIRM, || self.tables.head(session)).await? {
            Some(head) if head.epoch == epoch => Ok(()),
            Some(head) if head.epoch > epoch => {
                Err(Error::Fenced { epoch: head.epoch, by: head.writer, note: head.name })
            }
            head => {
                let sequence = head.map_or(SequenceNumber::MIN, |head| head.next);
                Err(Error::DatabaseWentBack { session, sequence })
            }
        }
    }

    fn note_appended(&self, session: Uuid) {
        // A follower also polls, so a lost notification loses no records.
        let _ = self.news.send(session);
    }
}

impl Tables {
    /// Returns the ids of the sessions in the database.
    pub(super) async fn sessions(&self) -> Result<Vec<Uuid>> {
        if self.version(SESSIONS).await?.is_none() {
            return Ok(Vec::new());
        }
        let rows = self.ask(SESSIONS, statements::SESSIONS, &[]).await?;
        Ok(rows.iter().filter_map(|row| row.try_get(0).ok()).collect())
    }

    /// Returns the state of a session from its row, which only a reader of the session verifies.
    pub(super) async fn standing(&self, session: Uuid) -> Result<Option<SessionStanding>> {
        let head = self.retry_request(STANDING, || self.head(session)).await?;
        let Some(head) = head else { return Ok(None) };
        let last = column(head.next.get()).saturating_sub(1);
        let parameters = [(&session as _, UUID), (&last as _, Type::INT8)];
        let rows = self.ask(STANDING, statements::TIME, &parameters).await?;
        let last_time_us = rows.first().and_then(|row| row.try_get(0).ok());
        Ok(Some(SessionStanding { next: head.next, epoch: head.epoch.get(), name: head.name, last_time_us }))
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
        let _ = tables.query(tail::NOTIFY, &parameters).await;
    }
}
