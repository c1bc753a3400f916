//! Stores sessions in a PostgreSQL database: rows instead of chunks, and one statement instead of a
//! put.
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | *session's row* | the row of `sessions` with the end of the session (`next`), its writer (`epoch`, `writer`, `name`), and the link there |
//! | *link* | hash over all records and claims up to one of them (`link`), which is stored with each |
//! | *claim* | a statement that raises the epoch in the session's row; its worker is the writer from there on |
//! | *fenced* | of a writer: its statement found a higher epoch in the session's row |
//! | *acknowledged* | of a record: the server has reported as durable a commit that contains the record, or follows it |
//!
//! # Modules
//!
//! | module | contains |
//! |---|---|
//! | `database`, `password`, `tls` | the location of the database, and its user |
//! | `connection` | connections, bounds in time, and the meaning of a server's errors |
//! | `schema`, `statements` | the tables and their versions; all statements |
//! | `link` | the hashes that chain the contents |
//! | `captures` | the data that captures of workspaces add, stored with the records that name them |
//! | `reader`, `writer` | reading and verifying; claiming, appending, and resolving a lost answer |
//! | `payloads` | payloads and packs: putting, reading, and removing unreferenced ones |
//! | `compact` | dropping bodies that a compaction of the session dropped |
//! | `leases` | when it is time to take a session over, by the server's clock |
//! | `tail` | following a session that another worker writes |
//! | `replicator`, `place` | the replicator that the engine feeds: [`PostgresReplicator`]; the place at a URL |
//!
//! # Invariants
//!
//! 1. One statement adds records and advances `next`, provided that epoch, writer, `next` and link
//!    are unchanged since the writer's last statement. So no record is added twice, none without
//!    the previous one, and none by a writer after another writer's claim.
//! 2. A record is acknowledged only by the answer to a commit that waited because of
//!    `synchronous_commit`, at a server with `fsync`, without a warning.
//! 3. Rows of records and claims are added and never changed, with one exception. A body that a
//!    compaction of the session dropped is replaced by its kind, hash and length; the record's link
//!    is unchanged. Rows of unreferenced payloads are removed.
//! 4. Of a server's error, the SQLSTATE is shown, and the start of its message, escaped. Passwords
//!    are in no URL, text or log.
//! 5. No length in a row decides how much memory is allocated.

mod captures;
mod compact;
mod connection;
mod database;
mod leases;
mod link;
mod password;
mod payloads;
pub(crate) mod place;
mod reader;
mod replicator;
mod schema;
mod statements;
mod tail;
mod tls;
mod writer;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio_postgres::Row;

pub use database::Database;
pub use reader::HeldRecord;
pub use replicator::PostgresReplicator;
pub use tail::Tail;

use crate::error::Result;
use crate::retries::{Attempts, Retries};
use connection::{DatabaseFailure, Parameter, Pool};

/// State shared by all that access one database.
pub(crate) struct Tables {
    pool: Arc<Pool>,
    schema: String,
    retries: Retries,
    /// Name of this worker in claims.
    name: String,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tables")
            .field("schema", &self.schema)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Tables {
    /// Starts to count the attempts of one request.
    fn begin(&self) -> Attempts {
        self.retries.begin(Some(&self.pool.place))
    }

    /// Runs one statement, once.
    async fn query(
        &self,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, DatabaseFailure> {
        self.pool.lease().await?.query(&self.sql(statement), parameters).await
    }

    /// Returns a statement for the schema.
    fn sql(&self, statement: &str) -> String {
        statements::sql(statement, &self.schema)
    }

    /// Runs an idempotent statement until it is answered.
    async fn ask(
        &self,
        what: &'static str,
        statement: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>> {
        self.retry_request(what, || self.query(statement, parameters)).await
    }

    /// Sends an idempotent request until it is answered.
    async fn retry_request<T, F>(&self, what: &'static str, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, DatabaseFailure>>,
    {
        let mut attempts = self.begin();
        while attempts.wait_for_next().await {
            match request().await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure.note(&mut attempts, what)?,
            }
        }
        Err(attempts.error(what))
    }

    /// Returns the version of the tables, `None` if there are none, and refuses unknown versions.
    async fn version(&self, what: &'static str) -> Result<Option<i32>> {
        self.retry_request(what, || schema::version(self)).await
    }
}
