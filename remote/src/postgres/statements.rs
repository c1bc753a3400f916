//! The statements, whose only variable part is the schema's name, and the decoding of their rows.
//!
//! Each statement that writes is a transaction of its own. The server acknowledges its commit once
//! it is durable: the statement itself turns on `synchronous_commit` for its transaction,
//! regardless of the settings of user, database or pooler. It changes nothing unless the tables
//! have the version that this crate writes.

use foldlog_codec::SequenceNumber;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::link::Link;
use super::schema::VERSION;
use crate::chunk::{Epoch, WriterId};

/// Type of a column for a session, a writer or a nonce.
pub(super) const UUID: Type = Type::UUID;

/// Result of a statement that writes: the number of rows that it wrote, and whether the server
/// makes them durable.
const SAID: &str = "SELECT count(*), current_setting('fsync'), current_setting('synchronous_commit')";

/// `remote_apply` waits for even more than `on`. The writing statements read this row, so it is
/// always evaluated.
const DURABLE: &str = "durable AS MATERIALIZED (SELECT set_config('synchronous_commit', \
     CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true) \
     AS level FROM {schema}.version WHERE version = {version})";

const KNOWN: &str = "(SELECT FROM {schema}.version WHERE version = {version}) AS known";

const CLAIMED: &str = ", history AS (INSERT INTO {schema}.claims (session, epoch, next, writer, name, link) \
     SELECT session, epoch, next, writer, name, link FROM head RETURNING 1) {said} FROM history";

/// Queries the server's time, in microseconds since 1970.
pub(super) const TIME_US: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// Waits until no other transaction holds the lock with this number, and holds it until this one
/// ends.
pub(super) const LOCK: &str = "SELECT pg_advisory_xact_lock($1)";

pub(super) const HEAD: &str =
    "SELECT epoch, next, writer, name, link, nonce FROM {schema}.sessions WHERE session = $1";

pub(super) const CLAIMS: &str = "SELECT epoch, next, writer, name, link FROM {schema}.claims \
     WHERE session = $1 AND epoch > $2 AND epoch <= $3 ORDER BY epoch";

// No length in a row decides how much memory is allocated. Tables of an older version
// have no column `dropped`: the name then refers to the one in `none`.
pub(super) const RECORDS: &str = "SELECT r.* FROM (VALUES (NULL::bytea)) AS none (dropped) CROSS JOIN LATERAL \
     (SELECT sequence, epoch, kind, time_us, CASE WHEN octet_length(body) <= $4 THEN body END AS body, link, \
     CASE WHEN octet_length(captures) <= $5 THEN captures END AS captures, dropped AS dropped \
     FROM {schema}.records WHERE session = $1 AND sequence >= $2 AND sequence < $3) AS r ORDER BY sequence";

pub(super) const TO_DROP: &str = "SELECT sequence, kind, body, link, dropped FROM {schema}.records \
     WHERE session = $1 AND sequence >= $2 AND sequence <= $3 ORDER BY sequence LIMIT $4";

pub(super) const DROP: &str = "UPDATE {schema}.records r SET kind = $2, body = u.body, dropped = u.dropped \
     FROM {known}, ROWS FROM (unnest($3), unnest($4), unnest($5), unnest($6)) AS u (sequence, body, dropped, link) \
     WHERE r.session = $1 AND r.sequence = u.sequence AND r.link = u.link RETURNING 1";

pub(super) const SAID_BEHIND: &str = "SELECT sequence, body FROM {schema}.records \
     WHERE session = $1 AND sequence >= $2 AND kind = $3 ORDER BY sequence";

pub(super) const LINK_BEFORE: &str =
    "SELECT link, epoch FROM {schema}.records WHERE session = $1 AND sequence = $2";

pub(super) const TIME: &str = "SELECT time_us FROM {schema}.records WHERE session = $1 AND sequence = $2";

pub(super) const SESSIONS: &str = "SELECT session FROM {schema}.sessions ORDER BY session";

pub(super) const FIRST_CLAIM: &str = "WITH {durable}, head AS (INSERT INTO {schema}.sessions (session, epoch, next, writer, name, nonce, link, lease) \
     SELECT $1, $2, $3, $4, $5, $6, $7, $8 FROM durable ON CONFLICT DO NOTHING RETURNING *){claimed}";

pub(super) const CLAIM: &str = "WITH {durable}, head AS (UPDATE {schema}.sessions s \
     SET epoch = $2, writer = $4, name = $5, nonce = $6, link = $7, lease = $8 FROM durable \
     WHERE s.session = $1 AND s.epoch = $9 AND s.next = $3 AND s.link = $10 RETURNING s.*){claimed}";

pub(super) const APPEND: &str = "WITH {durable}, head AS (UPDATE {schema}.sessions s SET next = $4, nonce = $6, link = $7 FROM durable \
     WHERE s.session = $1 AND s.epoch = $2 AND s.next = $3 AND s.writer = $5 AND s.link = $8 RETURNING 1), \
     added AS (INSERT INTO {schema}.records (session, sequence, epoch, kind, time_us, body, captures, link) \
     SELECT $1, $3 + place - 1, $2, kind, time_us, body, captures, link FROM head, \
     ROWS FROM (unnest($9), unnest($10), unnest($11), unnest($12), unnest($13)) \
     WITH ORDINALITY AS r (kind, time_us, body, captures, link, place) RETURNING 1) \
     {said} FROM added";

pub(super) const CONFIRM: &str = "WITH {durable}, head AS (UPDATE {schema}.sessions s SET nonce = s.nonce FROM durable \
     WHERE s.session = $1 AND s.epoch = $2 AND s.writer = $3 AND s.nonce = $4 RETURNING 1) \
     {said} FROM head";

pub(super) const PUT_OBJECT: &str = "WITH {durable}, put AS (INSERT INTO {schema}.objects AS o (session, hash, bytes) \
     SELECT $1, $2, $3 FROM durable \
     ON CONFLICT (session, hash) DO UPDATE SET withdrawn = NULL WHERE o.withdrawn IS NOT NULL RETURNING 1) \
     {said} FROM durable";

pub(super) const GET_OBJECT: &str = "SELECT octet_length(bytes), CASE WHEN octet_length(bytes) = $3 THEN bytes END \
     FROM {schema}.objects WHERE session = $1 AND hash = $2";

pub(super) const KEEP_OBJECT: &str = "WITH {durable}, kept AS (UPDATE {schema}.objects o SET withdrawn = NULL FROM durable \
     WHERE o.session = $1 AND o.hash = $2 RETURNING 1) \
     {said} FROM kept";

// Tables of an older version have no column `withdrawn`: the name then refers to the
// one in `none`.
pub(super) const LIST_OBJECTS: &str = "SELECT o.* FROM (VALUES (NULL::timestamptz)) AS none (withdrawn) CROSS JOIN LATERAL \
     (SELECT hash, octet_length(bytes)::bigint, (extract(epoch FROM withdrawn) * 1000000)::bigint \
     FROM {schema}.objects WHERE session = $1 AND hash > $2 ORDER BY hash LIMIT $3) AS o";

pub(super) const WITHDRAW_OBJECTS: &str = "UPDATE {schema}.objects o SET withdrawn = clock_timestamp() FROM {known} \
     WHERE o.session = $1 AND o.hash = ANY($2) AND o.withdrawn IS NULL";

pub(super) const REMOVE_OBJECTS: &str = "DELETE FROM {schema}.objects o USING {known} WHERE o.session = $1 AND o.hash = ANY($2) \
     AND (extract(epoch FROM o.withdrawn) * 1000000)::bigint <= $3";

// If the server's clock was set back, the remaining time is still at most the lease's
// length.
pub(super) const LEASE: &str = "SELECT s.epoch, s.name, l.worker, l.length_ms, (extract(epoch FROM l.renewed) * 1000000)::bigint, \
     greatest(0, least(l.length_ms, l.length_ms \
     - (extract(epoch FROM clock_timestamp() - l.renewed) * 1000)::bigint)) \
     FROM {schema}.sessions s JOIN {schema}.leases l ON l.worker = s.lease WHERE s.session = $1";

pub(super) const RENEW_LEASE: &str = "INSERT INTO {schema}.leases (worker, length_ms) SELECT $1, $2 FROM {known} \
     ON CONFLICT (worker) DO UPDATE SET renewed = clock_timestamp(), length_ms = excluded.length_ms";

pub(super) const RELEASE_LEASE: &str = "UPDATE {schema}.sessions s SET lease = NULL FROM {known} \
     WHERE s.session = $1 AND s.epoch = $2 AND s.lease = $3";

pub(super) const END_LEASE: &str = "DELETE FROM {schema}.leases l USING {known} WHERE l.worker = $1";

// No lease lasts that long.
pub(super) const CLEAR_LEASES: &str =
    "DELETE FROM {schema}.leases l USING {known} WHERE l.renewed < clock_timestamp() - interval '1 day'";

/// Returns a statement for a schema.
pub(super) fn sql(statement: &str, schema: &str) -> String {
    let (version, schema) = (VERSION.to_string(), format!("\"{schema}\""));
    [
        ("{claimed}", CLAIMED),
        ("{durable}", DURABLE),
        ("{known}", KNOWN),
        ("{said}", SAID),
        ("{version}", &version),
        ("{schema}", &schema),
    ]
    .iter()
    .fold(statement.to_owned(), |sql, (name, text)| sql.replace(name, text))
}

/// Returns the setting that makes the server lose writes of a statement, if there is one.
pub(super) fn losing_setting(row: &Row) -> Option<&'static str> {
    let setting = |column| row.try_get::<_, &str>(column).unwrap_or_default();
    match (setting(1), setting(2)) {
        ("on", "on" | "remote_apply") => None,
        ("on", _) => Some("synchronous_commit"),
        _ => Some("fsync"),
    }
}

/// A row of `sessions`, with the end of the session and its writer; or of `claims`.
#[derive(Clone, Debug)]
pub(super) struct ClaimRow {
    pub(super) epoch: Epoch,
    pub(super) next: SequenceNumber,
    pub(super) writer: WriterId,
    pub(super) name: String,
    pub(super) link: Link,
    /// `None` for a row of `claims`.
    pub(super) nonce: Option<Uuid>,
}

impl ClaimRow {
    /// Returns `None` if the columns contain invalid values.
    pub(super) fn from_row(row: &Row) -> Option<ClaimRow> {
        Some(ClaimRow {
            epoch: Epoch::new(number(row, 0)?),
            next: number(row, 1)?.into(),
            writer: WriterId(row.try_get(2).ok()?),
            name: row.try_get(3).ok()?,
            link: link(row, 4)?,
            nonce: row.try_get(5).ok(),
        })
    }
}

/// Returns a column with a number that is never negative.
pub(super) fn number(row: &Row, column: usize) -> Option<u64> {
    row.try_get::<_, i64>(column).ok().and_then(|number| number.try_into().ok())
}

/// Returns a column with a link.
pub(super) fn link(row: &Row, column: usize) -> Option<Link> {
    row.try_get::<_, &[u8]>(column).ok().and_then(Link::from_column)
}

/// Converts a number for a column. No number of a session gets near the maximum.
pub(super) fn column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
