//! Places in object storage: a directory, or a bucket in a network.

use std::sync::Arc;
use std::time::Duration;

use foldlog::replication::Replicator;
use foldlog_codec::body::ObjectId;
use object_store::ObjectStore;
use url::Url;
use uuid::Uuid;

use super::bucket::Bucket;
use super::leases;
use super::reader::ChunkReader;
use super::remote::Remote;
use super::replicator::{ObjectReplicator, read_here};
use crate::error::{Error, Result};
use crate::lease::SessionLease;
use crate::place::{CollectOptions, CollectReport, Place, PlaceEnvironment, PlaceItem, PlaceReader};
use crate::retries::Retries;
use crate::runtime::Runtime;

/// A place for sessions in object storage.
#[derive(Debug)]
struct BucketPlace {
    remote: Remote,
    url: String,
}

/// Opens the place at the URL of a directory or a bucket.
///
/// # Errors
///
/// [`Error::Url`], [`Error::Settings`], [`Error::Prefix`] and [`Error::NoRuntime`].
pub(crate) fn open(url: &Url, retries: Retries, variables: &PlaceEnvironment) -> Result<Arc<dyn Place>> {
    let remote = remote(url, retries, variables)?;
    Ok(Arc::new(BucketPlace { remote, url: url.as_str().trim_end_matches('/').to_owned() }))
}

/// Opens the directory or bucket at a URL, for callers that use the protocol directly.
///
/// # Errors
///
/// The errors of [`open_place_with`](crate::open_place_with), also for places of other kinds.
pub fn open_remote(url: &str, retries: Retries, variables: &PlaceEnvironment) -> Result<Remote> {
    remote(&Url::parse(url).map_err(|_| Error::Url { reason: "it is not a URL" })?, retries, variables)
}

fn remote(url: &Url, retries: Retries, variables: &PlaceEnvironment) -> Result<Remote> {
    let names_more = url.password().is_some() || !url.username().is_empty() || url.port().is_some();
    if names_more || url.query().is_some() || url.fragment().is_some() {
        return Err(Error::Url {
            reason: "it contains more than a place, such as a user, a port or parameters",
        });
    }
    let bucket = match url.scheme() {
        "file" => directory(url, retries)?,
        "s3" | "gs" | "az" => {
            let (store, prefix) = network_store(url, variables)?;
            Bucket::new(store, &prefix, retries)?
        }
        _ => return Err(Error::Url { reason: "it names no bucket" }),
    };
    let bucket = bucket.at(url.as_str().trim_end_matches('/'));
    Ok(Remote { bucket, runtime: Runtime::start()? })
}

fn directory(url: &Url, retries: Retries) -> Result<Bucket> {
    let refused = |reason| Error::Url { reason };
    let path = url.to_file_path().map_err(|()| refused("it does not name a local directory"))?;
    if path.parent().is_none() {
        return Err(refused("it names the root directory"));
    }
    Bucket::in_directory(path, retries)
        .map_err(|_| refused("the directory does not exist: create it first"))?
}

#[cfg(feature = "network")]
fn network_store(url: &Url, variables: &PlaceEnvironment) -> Result<(Arc<dyn ObjectStore>, String)> {
    super::network::open(url, variables)
}

#[cfg(not(feature = "network"))]
fn network_store(_: &Url, _: &PlaceEnvironment) -> Result<(Arc<dyn ObjectStore>, String)> {
    Err(Error::NotBuiltIn { what: "this kind of bucket" })
}

impl Place for BucketPlace {
    fn url(&self) -> &str {
        &self.url
    }

    fn replicator_with(&self, name: &str, lease: Option<Duration>) -> Result<Arc<dyn Replicator>> {
        let replicator = ObjectReplicator::over(self.remote.clone(), &self.url, name)?;
        Ok(match lease {
            Some(length) => Arc::new(replicator.with_lease(length)?),
            None => Arc::new(replicator.without_lease()),
        })
    }

    fn sessions(&self) -> Result<Vec<Uuid>> {
        self.remote.runtime.run(self.remote.bucket.sessions())?
    }

    fn lease(&self, session: Uuid) -> Result<Option<SessionLease>> {
        self.remote.runtime.run(leases::lease(&self.remote.bucket, session))?
    }

    fn reader(&self, session: Uuid) -> Result<Box<dyn PlaceReader>> {
        let reader = ChunkReader::new(self.remote.bucket.clone(), session);
        Ok(Box::new(BucketReader { runtime: self.remote.runtime.clone(), reader }))
    }

    fn collect(&self, session: Uuid, options: CollectOptions) -> Result<Option<CollectReport>> {
        self.remote.collect(session, options).map(Some)
    }
}

#[derive(Debug)]
struct BucketReader {
    runtime: Runtime,
    /// Positioned after the last record that was passed on.
    reader: ChunkReader,
}

impl PlaceReader for BucketReader {
    fn read_on(&mut self, visit: &mut dyn FnMut(PlaceItem<'_>)) -> Result<()> {
        read_here(&self.runtime, &mut self.reader, &mut |chunk| {
            if chunk.count == 0 {
                visit(PlaceItem::Claim { epoch: chunk.head.epoch.get(), name: &chunk.head.note });
            }
            chunk.records().for_each(|record| visit(PlaceItem::Record(record)));
        })
    }

    fn object(&self, object: ObjectId) -> Result<Option<Vec<u8>>> {
        let session = self.reader.chain().session();
        self.runtime.run(self.reader.bucket.get_object(session, object))?
    }
}
