//! The tables, and their versions.
//!
//! A database gets its tables with the first claim. Tables of an older version are upgraded by the
//! next claim, or by a collection that has changes to make. Tables of a newer version are refused.
//! Every statement that writes also checks the version, so a writer of an older version appends
//! nothing more once a newer one has changed the tables.

use tokio_postgres::types::Type;

use super::Tables;
use super::connection::{DatabaseFailure, PooledConnection, is_duplicate};
use crate::error::{Error, Result};

/// Version of the tables that this crate writes, and the newest that it reads.
pub(super) const VERSION: i32 = MIGRATIONS.len() as i32;

/// Lock of the database during changes of the tables: "foldlog" in ASCII.
const LOCK: i64 = 0x66_6f_6c_64_6c_6f_67;

/// Statements that upgrade the tables from each version to the next; `{}` is the schema.
const MIGRATIONS: [&str; 4] = [
    "
    -- One row for each session: how far it goes, and who writes it.
    CREATE TABLE {}.sessions (
        session uuid PRIMARY KEY,
        epoch   bigint NOT NULL CHECK (epoch > 0),
        next    bigint NOT NULL CHECK (next >= 0),
        writer  uuid NOT NULL,
        name    text NOT NULL,
        nonce   uuid NOT NULL,
        link    bytea NOT NULL CHECK (octet_length(link) = 32)
    );
    -- Every claim, in front of the record `next`.
    CREATE TABLE {}.claims (
        session uuid NOT NULL,
        epoch   bigint NOT NULL,
        next    bigint NOT NULL,
        writer  uuid NOT NULL,
        name    text NOT NULL,
        link    bytea NOT NULL,
        claimed timestamptz NOT NULL DEFAULT pg_catalog.now(),
        PRIMARY KEY (session, epoch)
    );
    CREATE TABLE {}.records (
        session  uuid NOT NULL,
        sequence bigint NOT NULL,
        epoch    bigint NOT NULL,
        kind     smallint NOT NULL,
        time_us  bigint NOT NULL,
        body     bytea NOT NULL,
        -- What captures of workspaces add that the records of one append name; beside the first of these.
        captures bytea,
        link     bytea NOT NULL,
        PRIMARY KEY (session, sequence)
    );
    -- Bodies are mostly MessagePack, which the server would try to compress in vain; objects often are compressed.
    CREATE TABLE {}.objects (
        session uuid NOT NULL,
        hash    bytea NOT NULL CHECK (octet_length(hash) = 32),
        bytes   bytea NOT NULL,
        PRIMARY KEY (session, hash)
    );
    ALTER TABLE {}.objects ALTER COLUMN bytes SET STORAGE EXTERNAL;
",
    "
    -- One row for each worker that has sessions claimed: it says when to take over, and nothing about what is safe.
    CREATE TABLE {}.leases (
        worker    uuid PRIMARY KEY,
        length_ms bigint NOT NULL CHECK (length_ms > 0),
        renewed   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
    );
    -- Under whose lease the last claim stands; NULL once the session was closed.
    ALTER TABLE {}.sessions ADD COLUMN lease uuid;
",
    "
    -- Beside a record whose body a compaction of the session dropped: the hash of what stands in its place, and of the link.
    ALTER TABLE {}.records ADD COLUMN dropped bytea;
",
    "
    -- Beside a payload that no record named any more: when that was found. Putting it again clears it.
    ALTER TABLE {}.objects ADD COLUMN withdrawn timestamptz;
",
];

/// Returns the version of the tables; `None` if there are none. Refuses a newer version.
pub(super) async fn version(tables: &Tables) -> Result<Option<i32>, DatabaseFailure> {
    version_on(&mut tables.pool.lease().await?, &tables.schema).await
}

async fn version_on(lease: &mut PooledConnection, schema: &str) -> Result<Option<i32>, DatabaseFailure> {
    let found = lease.query(&format!("SELECT version FROM \"{schema}\".version"), &[]).await;
    let found = match found {
        Ok(rows) => rows.first().and_then(|row| row.try_get(0).ok()),
        Err(failure) if failure.is_no_table() => None,
        Err(failure) => return Err(failure),
    };
    match found {
        Some(found) if found > VERSION => Err(Error::NewerTables { found, supported: VERSION }.into()),
        found => Ok(found),
    }
}

/// Checks that the server's acknowledged writes are durable, and upgrades the tables.
pub(super) async fn prepare(tables: &Tables) -> Result<()> {
    const WHAT: &str = "create the tables in the database";
    let mut attempts = tables.begin();
    while attempts.wait_for_next().await {
        match try_prepare(tables).await {
            Ok(()) => return Ok(()),
            // Another process creates them at the same time.
            Err(DatabaseFailure::Request { reason, .. }) if is_duplicate(&reason) => {
                attempts.note_failure(reason);
            }
            Err(failure) => failure.note(&mut attempts, WHAT)?,
        }
    }
    Err(attempts.error(WHAT))
}

async fn try_prepare(tables: &Tables) -> Result<(), DatabaseFailure> {
    let Tables { pool, schema, .. } = tables;
    let settings = tables.query("SELECT current_setting('fsync')", &[]).await?;
    if settings.first().and_then(|row| row.try_get::<_, &str>(0).ok()) != Some("on") {
        return Err(Error::NotDurable { setting: "fsync" }.into());
    }
    if version(tables).await? == Some(VERSION) {
        return Ok(());
    }
    let mut lease = pool.lease().await?;
    lease.begin().await?;
    lease.run(&format!("SELECT pg_advisory_xact_lock({LOCK})")).await?;
    // Queried first: a user who may not create a schema is refused even if it exists.
    let named =
        lease.query("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[(&schema, Type::TEXT)]).await?;
    if named.is_empty() {
        lease.run(&format!("CREATE SCHEMA \"{schema}\"")).await?;
    }
    let version = format!(
        "CREATE TABLE IF NOT EXISTS \"{schema}\".version (
            version  integer NOT NULL,
            the_only boolean PRIMARY KEY DEFAULT true CHECK (the_only)
        );
        INSERT INTO \"{schema}\".version (version) VALUES (0) ON CONFLICT DO NOTHING"
    );
    lease.run(&version).await?;
    let found = version_on(&mut lease, schema).await?.unwrap_or_default();
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or_default()) {
        lease.run(&migration.replace("{}", &format!("\"{schema}\""))).await?;
    }
    lease.run(&format!("UPDATE \"{schema}\".version SET version = {VERSION}")).await?;
    lease.end(true).await
}
