//! Leases in a database: a row for each worker, with a time of the server's clock, and a column of
//! the session's row that names the worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Tables;
use super::statements::{self, UUID, column, number};
use crate::error::Result;
use crate::lease::SessionLease;
use crate::lease::renewal::Leases;

/// First version of the tables with leases.
const SINCE: i32 = 2;

const WHAT: &str = "ask the database for a session's lease";

/// Writes the lease of one worker into a database.
#[derive(Debug)]
pub struct TableLeases {
    tables: Arc<Tables>,
    pub(super) worker: Uuid,
    length_ms: i64,
    has_cleared: AtomicBool,
}

impl TableLeases {
    pub(super) fn new(tables: Arc<Tables>, length: Duration) -> TableLeases {
        let length_ms = i64::try_from(length.as_millis()).unwrap_or(i64::MAX);
        TableLeases { tables, worker: Uuid::new_v4(), length_ms, has_cleared: AtomicBool::new(false) }
    }
}

impl Leases for TableLeases {
    async fn renew(&self) {
        let parameters = [(&self.worker as _, UUID), (&self.length_ms as _, Type::INT8)];
        let _ = self.tables.query(statements::RENEW_LEASE, &parameters).await;
        if !self.has_cleared.swap(true, Ordering::SeqCst) {
            let _ = self.tables.query(statements::CLEAR_LEASES, &[]).await;
        }
    }

    /// The claim has already named the worker.
    async fn link(&self, _: Uuid, _: u64) -> bool {
        true
    }

    async fn unlink(&self, session: Uuid, epoch: u64) {
        let epoch = column(epoch);
        let parameters = [(&session as _, UUID), (&epoch as _, Type::INT8), (&self.worker as _, UUID)];
        let _ = self.tables.query(statements::RELEASE_LEASE, &parameters).await;
    }

    async fn end(&self) {
        let _ = self.tables.query(statements::END_LEASE, &[(&self.worker, UUID)]).await;
    }
}

/// Returns the lease under which a session was last claimed, and its remaining time by the server's
/// clock.
pub(super) async fn lease(tables: &Tables, session: Uuid) -> Result<Option<SessionLease>> {
    if tables.version(WHAT).await?.is_none_or(|version| version < SINCE) {
        return Ok(None);
    }
    let rows = tables.ask(WHAT, statements::LEASE, &[(&session, UUID)]).await?;
    Ok(rows.first().and_then(lease_of))
}

fn lease_of(row: &Row) -> Option<SessionLease> {
    let milliseconds = |column| number(row, column).map(Duration::from_millis);
    let renewed_us: i64 = row.try_get(4).ok()?;
    Some(SessionLease {
        epoch: number(row, 0)?,
        name: row.try_get(1).ok()?,
        worker: row.try_get(2).ok()?,
        length: milliseconds(3)?,
        renewal: renewed_us.unsigned_abs(),
        renewed_us: Some(renewed_us),
        left: Some(milliseconds(5)?),
    })
}
