//! Keeps sessions in a PostgreSQL database: rows in place of chunks, and one statement in place of a put.
//!
//! # Terms
//!
//! | term | means |
//! |---|---|
//! | *session's row* | the row of `sessions` that says how far the session goes (`next`), who writes it (`epoch`, `writer`, `name`), and the link there |
//! | *link* | hash over all records and claims up to one of them (`link`), which stands beside each |
//! | *claim* | a statement that raises the epoch in the session's row; whoever's it is writes from there on |
//! | *fenced* | what a writer is whose statement finds a higher epoch in the session's row |
//! | *acknowledged* | the server has said of a commit that holds the record, or stands behind it, that it is durable |
//!
//! # Rooms
//!
//! | module | holds |
//! |---|---|
//! | `database`, `password`, `tls` | where the database is, and who speaks to it |
//! | `connection` | connections, bounds in time, and what a server's refusal means |
//! | `schema`, `statements` | the tables and their versions; all statements |
//! | `link` | the hashes that chain what is held |
//! | `captures` | what captures of workspaces add, beside the records that name them |
//! | `reader`, `writer` | reading and verifying; claiming, appending, and what is made of a lost answer |
//! | `payloads` | payloads and packs: putting, reading, and removing those that nothing names any more |
//! | `compact` | dropping bodies that a compaction of the session dropped |
//! | `leases` | when it is time to take a session over, by the server's clock |
//! | `tail` | following a session that somebody else writes |
//! | `replicator`, `place` | what the engine feeds: [`PostgresReplicator`]; what a URL opens |
//!
//! # Invariants
//!
//! 1. One statement adds records and moves `next`, on condition that epoch, writer, `next` and link are those that the writer left. So no
//!    record is added twice, none without the one before it, and none by a writer that another one's claim stands in front of.
//! 2. A record is acknowledged only by the answer to a commit that `synchronous_commit` made wait, at a server with `fsync`, which
//!    warned of nothing.
//! 3. Rows of records and claims are added, and never changed, but for bodies that a compaction of the session dropped: kind, hash and
//!    length of such a body stand in its place, and its link stays. Rows of payloads that nothing names any more are removed.
//! 4. What a server says in words of its own is dropped; its error codes are shown. Passwords are in no URL, text or log.
//! 5. No length that a row has decides how much memory is taken.

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

pub use database::Database;
pub use reader::HeldRecord;
pub use replicator::PostgresReplicator;
pub use tail::Tail;

use crate::retries::Retries;

/// Holds what everybody needs who speaks to one database.
struct Tables {
    pool: connection::Pool,
    statements: statements::Statements,
    schema: String,
    retries: Retries,
    /// Name that claims are made in.
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
