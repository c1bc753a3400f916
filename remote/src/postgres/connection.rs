//! Connects to a server, keeps connections for later requests, and converts a server's errors to a
//! [`RemoteFailure`].
//!
//! # Invariants
//!
//! 1. A connection is never used again after a request on it failed, timed out, or was dropped
//!    before its end.
//! 2. Every request is bounded in time, here and at the server.
//! 3. No name in a statement is looked up in a schema that other users can write.
//! 4. Of a server's error, only the SQLSTATE and the message are kept. The message is escaped and
//!    truncated, and dropped if it quotes the password.
//! 5. Every setting ends with its transaction. After it, a pooler such as pgbouncer may give the
//!    server's session to another client.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldlog_codec::escape;
use futures_lite::future::zip;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time;
use tokio_postgres::error::SqlState as Code;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Row, RowStream};

use super::Database;
use crate::connection;
use crate::error::{Error, FailureDetails, Reason, RemoteFailure, Result, ServerAnswer, SqlState};
use crate::retries::Attempts;

/// Maximum number of characters of a server's message in an error.
const MESSAGE_CHARS_MAX: usize = 200;

/// Maximum number of concurrent connections. Further requests wait.
const CONNECTIONS_MAX: usize = 8;

/// One parameter of a statement, and its type.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Why a request had no result.
#[derive(Clone, Debug)]
pub(super) enum DatabaseFailure {
    /// The request failed.
    Request {
        reason: Reason,
        /// Whether the request certainly made no change.
        is_certain: bool,
    },
    /// The answer shows that a repetition is useless.
    Final(Box<Error>),
}

impl From<Error> for DatabaseFailure {
    fn from(error: Error) -> DatabaseFailure {
        DatabaseFailure::Final(Box::new(error))
    }
}

impl DatabaseFailure {
    pub(super) fn uncertain(failure: RemoteFailure) -> DatabaseFailure {
        DatabaseFailure::Request { reason: failure.into(), is_certain: false }
    }

    /// States that the request certainly made no change.
    pub(super) fn certain(self) -> DatabaseFailure {
        match self {
            DatabaseFailure::Request { reason, .. } => DatabaseFailure::Request { reason, is_certain: true },
            error => error,
        }
    }

    /// Notes a failure of an attempt, if the same request may succeed a little later.
    ///
    /// # Errors
    ///
    /// The error of the request, if not.
    pub(super) fn note(self, attempts: &mut Attempts, what: &'static str) -> Result<()> {
        match self {
            DatabaseFailure::Request { reason, .. } if reason.failure.may_pass() => {
                attempts.note_failure(reason);
                Ok(())
            }
            DatabaseFailure::Request { reason, .. } => Err(attempts.end(what, reason)),
            DatabaseFailure::Final(error) => Err(*error),
        }
    }

    /// Returns whether the server reports that there is no such table or schema.
    pub(super) fn is_no_table(&self) -> bool {
        let DatabaseFailure::Request { reason, .. } = self else { return false };
        matches!(reason.failure, RemoteFailure::Sql(SqlState(code)) if &code == b"42P01" || &code == b"3F000")
    }
}

/// Returns whether the server reports that there is such a row already.
pub(super) fn is_duplicate(reason: &Reason) -> bool {
    reason.failure == RemoteFailure::Sql(SqlState(*b"23505"))
}

/// Keeps connections to one database.
pub(super) struct Pool {
    database: Database,
    /// Name of the database in errors.
    pub(super) place: Arc<str>,
    pub(super) request_timeout: Duration,
    idle: Mutex<Vec<Connection>>,
    room: Arc<Semaphore>,
}

/// A connection, and the task that drives it.
struct Connection {
    client: Client,
    driver: AbortHandle,
    /// Whether the server has sent a warning.
    warned: Arc<AtomicBool>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A connection in use.
pub(super) struct PooledConnection {
    /// `None` once a request failed on it.
    connection: Option<Connection>,
    /// Whether a request or a transaction is in progress, or one was left unfinished.
    is_busy: bool,
    /// Whether a transaction is in progress.
    has_begun: bool,
    pool: Arc<Pool>,
    _room: OwnedSemaphorePermit,
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let connection = self.connection.take().filter(|connection| !connection.client.is_closed());
        if let Some(connection) = connection
            && !self.is_busy
        {
            crate::lock(&self.pool.idle).push(connection);
        }
    }
}

impl Pool {
    /// Returns a pool without connections.
    pub(super) fn new(database: Database, request_timeout: Duration) -> Arc<Pool> {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let place = escape::text(&database.place()).into();
        Arc::new(Pool { database, place, request_timeout, idle: Mutex::default(), room })
    }

    /// Returns an idle connection, or a new one.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<PooledConnection, DatabaseFailure> {
        let room = time::timeout(self.request_timeout, Arc::clone(&self.room).acquire_owned()).await;
        let Ok(Ok(room)) = room else { return Err(DatabaseFailure::uncertain(RemoteFailure::TimedOut)) };
        let idle = {
            let mut idle = crate::lock(&self.idle);
            idle.retain(|connection| !connection.client.is_closed());
            idle.pop()
        };
        let connection = match idle {
            Some(connection) => connection,
            None => self.connect(Arc::default()).await?,
        };
        connection.warned.store(false, Ordering::SeqCst);
        Ok(PooledConnection {
            connection: Some(connection),
            is_busy: false,
            has_begun: false,
            pool: Arc::clone(self),
            _room: room,
        })
    }

    /// Returns a connection that is used only for notifications, and wakes `woken` when the server
    /// sends one.
    pub(super) async fn listener(self: &Arc<Self>, woken: Arc<Notify>) -> Result<Listener, DatabaseFailure> {
        Ok(Listener { connection: self.connect(woken).await?, pool: Arc::clone(self) })
    }

    async fn connect(&self, woken: Arc<Notify>) -> Result<Connection, DatabaseFailure> {
        let mut config = self.database.config.clone();
        config.tcp_user_timeout(self.request_timeout).connect_timeout(self.request_timeout);
        let connect = config.connect(self.database.tls.clone());
        let connected = time::timeout(self.request_timeout, connect).await;
        let connected = connected.map_err(|_| DatabaseFailure::uncertain(RemoteFailure::TimedOut))?;
        // No request was sent yet.
        let refused = |error| self.refusal(&error, true).certain();
        let (client, mut wire) = connected.map_err(refused)?;
        let warned = Arc::new(AtomicBool::new(false));
        let warns = Arc::clone(&warned);
        let drive = async move {
            // Notices of the server are not logged, since they may quote anything.
            while let Some(Ok(message)) = poll_fn(|context| wire.poll_message(context)).await {
                match message {
                    AsyncMessage::Notification(_) => woken.notify_one(),
                    _ => warns.store(true, Ordering::SeqCst),
                }
            }
            // Wakes the waiting task, so that it detects the closed connection.
            woken.notify_one();
        };
        let driver = tokio::spawn(drive).abort_handle();
        Ok(Connection { client, driver, warned })
    }

    /// Returns the statements that begin a transaction.
    fn begin(&self) -> String {
        format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL client_min_messages = warning; \
             SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL statement_timeout = {}",
            self.request_timeout.as_millis().max(1)
        )
    }

    /// Converts an error, with the server's answer. The server knows the password, so it may quote
    /// it.
    pub(super) fn refusal(&self, error: &tokio_postgres::Error, is_connecting: bool) -> DatabaseFailure {
        let (failure, is_certain) = refusal(error, is_connecting);
        let answer = error.as_db_error().map(|error| {
            let password = self.database.config.get_password().map(String::from_utf8_lossy);
            let is_quoted = password.is_some_and(|password| error.message().contains(&*password));
            let cut = || error.message().chars().take(MESSAGE_CHARS_MAX).collect::<String>();
            let message = (!is_quoted).then(|| escape::text(&cut()).into_owned());
            ServerAnswer::Sql { state: state_of(error.code().code().as_bytes()), message }
        });
        let details = FailureDetails { answer, ..FailureDetails::default() };
        DatabaseFailure::Request { reason: Reason { failure, details }, is_certain }
    }

    async fn with_timeout<T>(
        &self,
        request: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, DatabaseFailure> {
        match time::timeout(self.request_timeout, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if matches!(refusal(&error, false).0, RemoteFailure::Unavailable | RemoteFailure::Busy) {
                    // The cause of this failure has also broken the idle connections.
                    crate::lock(&self.idle).clear();
                }
                Err(self.refusal(&error, false))
            }
            Err(_) => Err(DatabaseFailure::uncertain(RemoteFailure::TimedOut)),
        }
    }
}

impl PooledConnection {
    /// Runs one statement, in a transaction of its own if none is in progress.
    pub(super) async fn query(
        &mut self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, DatabaseFailure> {
        let pool = Arc::clone(&self.pool);
        self.is_busy = true;
        let client = self.client()?;
        let query = client.query_typed(statement, parameters);
        let answer = match self.has_begun {
            true => pool.with_timeout(query).await,
            false => {
                let begin = pool.begin();
                // All are sent at once. If one fails, the server refuses the later ones and rolls
                // back.
                let all = zip(client.batch_execute(&begin), zip(query, client.batch_execute("COMMIT")));
                let done = async {
                    let (begun, (rows, ended)) = all.await;
                    begun.and(rows).and_then(|rows| ended.map(|()| rows))
                };
                pool.with_timeout(done).await
            }
        };
        self.settle(answer)
    }

    /// Begins a transaction, which is durable once [`end`](PooledConnection::end) has committed it.
    pub(super) async fn begin(&mut self) -> Result<(), DatabaseFailure> {
        self.has_begun = true;
        let begin = format!("{}; SET LOCAL synchronous_commit = on", self.pool.begin());
        self.run(&begin).await
    }

    pub(super) async fn end(&mut self, commits: bool) -> Result<(), DatabaseFailure> {
        self.run(if commits { "COMMIT" } else { "ROLLBACK" }).await?;
        (self.has_begun, self.is_busy) = (false, false);
        Ok(())
    }

    /// Runs several statements that return nothing, within a transaction.
    pub(super) async fn run(&mut self, statements: &str) -> Result<(), DatabaseFailure> {
        let pool = Arc::clone(&self.pool);
        self.is_busy = true;
        let answer = pool.with_timeout(self.client()?.batch_execute(statements)).await;
        self.settle(answer)
    }

    /// Runs a statement whose rows are read one after the other, in a transaction.
    /// [`end`](PooledConnection::end) ends it after all rows were read. The connection is not
    /// available for other requests until then.
    pub(super) async fn rows(
        &mut self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<RowStream, DatabaseFailure> {
        let pool = Arc::clone(&self.pool);
        self.is_busy = true;
        self.has_begun = true;
        let (client, begin) = (self.client()?, pool.begin());
        let parameters = parameters.iter().map(|(value, kind)| (*value, kind.clone()));
        let rows = zip(client.batch_execute(&begin), client.query_typed_raw(statement, parameters));
        let rows = async {
            let (begun, rows) = rows.await;
            begun.and(rows)
        };
        pool.with_timeout(rows).await
    }

    /// Returns whether the server has sent a warning since this connection was taken. It may have
    /// stopped waiting for a standby, but still reports success.
    pub(super) fn is_warned(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.warned.load(Ordering::SeqCst))
    }

    fn client(&self) -> Result<&Client, DatabaseFailure> {
        let connection =
            self.connection.as_ref().ok_or(DatabaseFailure::uncertain(RemoteFailure::Unavailable))?;
        Ok(&connection.client)
    }

    fn settle<T>(&mut self, answer: Result<T, DatabaseFailure>) -> Result<T, DatabaseFailure> {
        match &answer {
            Ok(_) => self.is_busy = self.has_begun,
            Err(_) => self.connection = None,
        }
        answer
    }
}

/// A connection that receives notifications.
pub(super) struct Listener {
    connection: Connection,
    pool: Arc<Pool>,
}

impl Listener {
    /// Subscribes to a channel, whose name must need no escaping within quotes.
    pub(super) async fn listen(&self, channel: &str) -> Result<(), DatabaseFailure> {
        let statement = format!("LISTEN \"{channel}\"");
        self.pool.with_timeout(self.connection.client.batch_execute(&statement)).await
    }

    /// Returns whether no notification can arrive any more.
    pub(super) fn is_closed(&self) -> bool {
        self.connection.client.is_closed()
    }
}

/// Returns the cause of an error, while connecting or later, and whether the request certainly made
/// no change.
fn refusal(error: &tokio_postgres::Error, is_connecting: bool) -> (RemoteFailure, bool) {
    let Some(code) = error.code() else {
        // The crate distinguishes these only by their texts, which are fixed.
        let text = error.to_string();
        let failure = match text.as_str() {
            _ if !is_connecting => RemoteFailure::Unavailable,
            _ if text.starts_with("error performing TLS handshake") => {
                connection::failure_of(error).unwrap_or(RemoteFailure::NoTls)
            }
            _ if text.starts_with("invalid configuration") || text.starts_with("authentication error") => {
                RemoteFailure::Password
            }
            _ => connection::failure_of(error).unwrap_or(RemoteFailure::Unavailable),
        };
        return (failure, false);
    };
    let failure = match code {
        code if *code == Code::INVALID_PASSWORD || *code == Code::INVALID_AUTHORIZATION_SPECIFICATION => {
            RemoteFailure::Password
        }
        code if *code == Code::INVALID_CATALOG_NAME => RemoteFailure::NoDatabase,
        code if *code == Code::INSUFFICIENT_PRIVILEGE => RemoteFailure::NoRight,
        code if *code == Code::READ_ONLY_SQL_TRANSACTION => RemoteFailure::ReadOnly,
        code if *code == Code::DISK_FULL => RemoteFailure::Full,
        code if *code == Code::QUERY_CANCELED => RemoteFailure::TimedOut,
        code if *code == Code::T_R_SERIALIZATION_FAILURE || *code == Code::T_R_DEADLOCK_DETECTED => {
            RemoteFailure::Conflict
        }
        code => match code.code().as_bytes() {
            // The connection broke.
            [b'0', b'8', ..] => RemoteFailure::Unavailable,
            // The server is starting, stopping, or has too many clients.
            [b'5', b'7', b'P', ..] | b"53300" => RemoteFailure::Busy,
            code => RemoteFailure::Sql(state_of(code)),
        },
    };
    // Most errors end a statement before a commit. An error that ends a connection may come after
    // the commit.
    let is_certain = !matches!(
        code.code().as_bytes(),
        [b'0', b'8', ..] | [b'5', b'7' | b'8', ..] | [b'X', b'X', ..] | b"40003"
    );
    (failure, is_certain)
}

fn state_of(code: &[u8]) -> SqlState {
    SqlState(<[u8; 5]>::try_from(code).unwrap_or(*b"?????"))
}
