//! A database as a place with a URL.

use std::sync::Arc;
use std::time::Duration;

use foldlog::replication::Replicator;
use foldlog_codec::body::ObjectId;
use uuid::Uuid;

use super::reader::{Item, RowReader, read_here};
use super::{Database, PostgresReplicator, compact, leases};
use crate::error::Result;
use crate::lease::SessionLease;
use crate::place::{
    CollectOptions, CollectReport, Place, PlaceEnvironment, PlaceItem, PlaceReader, SessionStanding,
};
use crate::retries::Retries;
use crate::runtime::Runtime;

/// A place for sessions in a database.
#[derive(Debug)]
struct DatabasePlace {
    database: Database,
    url: String,
    retries: Retries,
    /// For reading only.
    reads: PostgresReplicator,
}

/// Opens the place at a URL, with the password from these variables.
pub(crate) fn open(url: &str, retries: Retries, variables: &PlaceEnvironment) -> Result<Arc<dyn Place>> {
    let database = Database::from_url_in(url, &|name| variables.get(name).map(Into::into))?;
    let reads = PostgresReplicator::new(database.clone(), "", retries)?;
    Ok(Arc::new(DatabasePlace { database, url: url.to_owned(), retries, reads }))
}

impl Place for DatabasePlace {
    fn url(&self) -> &str {
        &self.url
    }

    fn replicator_with(&self, name: &str, lease: Option<Duration>) -> Result<Arc<dyn Replicator>> {
        let replicator = PostgresReplicator::new(self.database.clone(), name, self.retries)?;
        Ok(match lease {
            Some(length) => Arc::new(replicator.with_lease(length)?),
            None => Arc::new(replicator.without_lease()),
        })
    }

    fn lease(&self, session: Uuid) -> Result<Option<SessionLease>> {
        self.reads.runtime.run(leases::lease(&self.reads.place.tables, session))?
    }

    fn sessions(&self) -> Result<Vec<Uuid>> {
        self.reads.sessions()
    }

    fn reader(&self, session: Uuid) -> Result<Box<dyn PlaceReader>> {
        let reader = RowReader::new(Arc::clone(&self.reads.place.tables), session);
        Ok(Box::new(DatabaseReader { runtime: self.reads.runtime.clone(), reader }))
    }

    fn collect(&self, session: Uuid, options: CollectOptions) -> Result<Option<CollectReport>> {
        let PostgresReplicator { place, runtime, .. } = &self.reads;
        compact::collect(&place.tables, runtime, session, options.dry_run).map(Some)
    }

    fn read_standing(&self, session: Uuid) -> Result<Option<SessionStanding>> {
        self.reads.runtime.run(self.reads.place.tables.standing(session))?
    }
}

#[derive(Debug)]
struct DatabaseReader {
    runtime: Runtime,
    /// Positioned after the last item that was passed on.
    reader: RowReader,
}

impl PlaceReader for DatabaseReader {
    fn read_on(&mut self, visit: &mut dyn FnMut(PlaceItem<'_>)) -> Result<()> {
        read_here(&self.runtime, &mut self.reader, &mut |item| match item {
            Item::Claim { epoch, name } => visit(PlaceItem::Claim { epoch: epoch.get(), name: &name }),
            Item::Captures(_) => {}
            Item::Record(held) => visit(PlaceItem::Record(held.record())),
        })
    }

    fn object(&self, object: ObjectId) -> Result<Option<Vec<u8>>> {
        self.runtime.run(self.reader.tables.object(self.reader.session, object))?
    }
}
