//! A place for sessions, as a person writes it: a URL, with the operations of any place.
//!
//! A URL, of which [`open_place`] lists the forms, contains only a place. Keys, regions and
//! endpoints come from the environment or from the machine's provider; `network` lists the
//! variables. No error quotes a URL, since it may still contain a password.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use foldlog::replication::Replicator;
use foldlog_codec::body::ObjectId;
use foldlog_codec::{Record, SequenceNumber};
use serde::Serialize;
use url::Url;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lease::{LEASE_LENGTH, SessionLease};
use crate::retries::Retries;
use crate::volume::MIN_AGE;

/// Variables of an environment, by their names.
pub type PlaceEnvironment = BTreeMap<String, String>;

/// Provides access to the sessions in a place, opened by its URL.
///
/// Each method blocks until it is done or has given up. It must not be called on an async runtime's
/// own threads.
pub trait Place: fmt::Debug + Send + Sync {
    /// Returns the URL of the place, without a key or a password.
    fn url(&self) -> &str;

    /// Returns a replicator for a store, which writes the store's sessions to the place. `name`
    /// identifies the writer in claims. It must belong to exactly one directory of sessions.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] for the name, and the errors of opening the place for writing.
    fn replicator(&self, name: &str) -> Result<Arc<dyn Replicator>> {
        self.replicator_with(name, Some(LEASE_LENGTH))
    }

    /// Returns a [`replicator`](Place::replicator) with a lease of this length, from 100 ms to an
    /// hour; `None` keeps no lease.
    fn replicator_with(&self, name: &str, lease: Option<Duration>) -> Result<Arc<dyn Replicator>>;

    /// Returns the ids of the sessions that the place lists, in ascending order. The list may lack
    /// sessions that were created just now: use it only to find ids.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    fn sessions(&self) -> Result<Vec<Uuid>>;

    /// Returns the lease under which a session was last claimed; `None` if there is none. A lease
    /// shows when it may be time to take the session over
    /// ([`wait_for_lease`](crate::wait_for_lease)), but never whether that is safe.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    fn lease(&self, session: Uuid) -> Result<Option<SessionLease>>;

    /// Returns a reader positioned before a session's first record. Sends no request.
    ///
    /// # Errors
    ///
    /// The errors of opening the place for reading.
    fn reader(&self, session: Uuid) -> Result<Box<dyn PlaceReader>>;

    /// Returns the current state of a session, or `None` if the place does not have it. Reads the
    /// whole session, unless the place has a faster way.
    fn read_standing(&self, session: Uuid) -> Result<Option<SessionStanding>> {
        let mut standing = SessionStanding::default();
        self.reader(session)?.read_on(&mut |met| standing.take(&met))?;
        Ok((standing.epoch > 0).then_some(standing))
    }

    /// Removes redundant data of a session. In a bucket, these are chunks in a volume that is old
    /// enough. In such chunks, bodies that a compaction of the session dropped are also removed,
    /// once the session's writer has recorded that. Unreferenced payloads are removed a day after
    /// an earlier call found them so. Readers and writers may continue during a collection.
    ///
    /// A database has no redundant copies, and drops these bodies at once. Returns `None` if the
    /// place has no collection.
    ///
    /// # Errors
    ///
    /// The errors of [`PlaceReader::read_on`]. Objects that were already removed remain so.
    fn collect(&self, session: Uuid, options: CollectOptions) -> Result<Option<CollectReport>> {
        let _ = (session, options);
        Ok(None)
    }
}

/// Configures a collection of a session's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectOptions {
    /// Minimum age of a volume before its chunks are removed. Values below [`MIN_AGE`] count as
    /// that.
    pub min_age: Duration,
    /// Whether to make no changes: no volume is put, no object removed. An object is still put to
    /// read the store's clock, and removed at once.
    pub dry_run: bool,
}

impl Default for CollectOptions {
    /// Returns [`MIN_AGE`], and no dry run.
    fn default() -> CollectOptions {
        CollectOptions { min_age: MIN_AGE, dry_run: false }
    }
}

/// Reports the results of a collection of a session's chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CollectReport {
    /// Sequence number after the session's last record.
    #[serde(skip)]
    pub next: SequenceNumber,
    /// Number of chunks that were removed, or would be.
    pub chunks: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// Number of volumes that were put.
    pub volumes: u64,
    /// Number of listed chunks that remain: those without a volume, and those in volumes that are
    /// too young.
    pub left: u64,
    /// Number of these that are in a volume that is too young. The others belong to a range that is
    /// not full yet, or has no volume for another reason.
    pub young: u64,
    /// Number of records that lost their bodies, or would: those that a compaction of the session
    /// dropped, as its writer recorded, in chunks that are collected.
    pub dropped: u64,
    /// Length of these bodies in bytes, less their replacements.
    pub dropped_bytes: u64,
    /// Number of records whose bodies the session's compaction dropped but the place still has, in
    /// chunks that are not collected.
    pub waiting: u64,
    /// Number of payloads, and of packs of captures, that were removed, or would be, since they are
    /// no longer named in the session.
    pub payloads: u64,
    /// Their length in bytes.
    pub payload_bytes: u64,
    /// Number of other unreferenced payloads, which remain for now: a payload is removed at the
    /// earliest [`MIN_AGE`] after the collection that first found it unreferenced.
    pub payloads_left: u64,
    /// First record that does not decode here, if there is one. The payloads that it names are
    /// unknown, so no payload is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undecoded: Option<SequenceNumber>,
}

/// Reads the contents of one session in a place, and can continue once there is more. Claims
/// nothing.
pub trait PlaceReader: fmt::Debug + Send {
    /// Passes the next items to `visit`, in order, up to the current end of the place.
    ///
    /// # Errors
    ///
    /// - [`Error::Store`], and the errors of items that fail verification. Items that were already
    ///   passed on remain valid, and the next call continues after them.
    /// - [`Error::RemoteWentBack`] if the place lacks items that it had.
    fn read_on(&mut self, visit: &mut dyn FnMut(PlaceItem<'_>)) -> Result<()>;

    /// Returns the bytes of a payload that the session's records name, verified against their hash;
    /// `None` if the place does not have it.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], and [`Error::Payload`] if there are other bytes under its name.
    fn object(&self, object: ObjectId) -> Result<Option<Vec<u8>>>;
}

/// Describes an item of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PlaceItem<'a> {
    /// A claim: from here on the session's records are those of another writer.
    Claim {
        /// Epoch of the claim.
        epoch: u64,
        /// Name of the claimant, which chose it; escape it before showing it.
        name: &'a str,
    },
    /// A record.
    Record(Record<'a>),
}

/// Describes the current state of a session in a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionStanding {
    /// Sequence number after the last record.
    pub next: SequenceNumber,
    /// Epoch of the last claim; 0 if the session was never claimed.
    pub epoch: u64,
    /// Name of the claimant.
    pub name: String,
    /// Time of the last record, in microseconds since 1970; `None` if there is none.
    pub last_time_us: Option<i64>,
}

impl SessionStanding {
    /// Updates the state with the next item.
    pub fn take(&mut self, met: &PlaceItem<'_>) {
        match met {
            PlaceItem::Claim { epoch, name } => {
                self.epoch = *epoch;
                (*name).clone_into(&mut self.name);
            }
            PlaceItem::Record(record) => {
                self.next = SequenceNumber::new(record.sequence.get().saturating_add(1));
                self.last_time_us = Some(record.time_us);
            }
        }
    }
}

/// Opens the place at a URL, with keys from the process's environment or from the provider of its
/// machine. Sends no request yet.
///
/// | URL | store | feature |
/// |---|---|---|
/// | `file:///PATH` | an existing local directory | `object-store` |
/// | `s3://BUCKET/PREFIX` | S3 and compatible stores: R2, MinIO, Ceph | `s3` |
/// | `gs://BUCKET/PREFIX` | Google Cloud Storage | `gcs` |
/// | `az://CONTAINER/PREFIX` | Azure Blob Storage | `azure` |
/// | `postgres://USER@HOST/DATABASE`, `postgres:///DATABASE?host=/DIRECTORY` for a socket | PostgreSQL; `Database` lists further parts | `postgres` |
///
/// # Errors
///
/// - [`Error::Url`] if it is no such URL, contains more than a place, or names a missing directory.
/// - [`Error::NotBuiltIn`] if support for the place is not built in.
/// - [`Error::Settings`] if the environment's settings contradict each other.
pub fn open_place(url: &str, retries: Retries) -> Result<Arc<dyn Place>> {
    let readable = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    open_place_with(url, retries, &std::env::vars_os().filter_map(readable).collect())
}

/// Opens a place as [`open_place`] does, with these variables instead of the process's environment.
pub fn open_place_with(url: &str, retries: Retries, variables: &PlaceEnvironment) -> Result<Arc<dyn Place>> {
    // A database's URL may name several hosts, and has parameters.
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return database(url, retries, variables);
    }
    let url = Url::parse(url).map_err(|_| Error::Url { reason: "it is not a URL" })?;
    match url.scheme() {
        "file" | "s3" | "gs" | "az" => bucket(&url, retries, variables),
        _ => Err(Error::Url { reason: "places begin with file://, s3://, gs://, az:// or postgres://" }),
    }
}

#[cfg(feature = "object-store")]
fn bucket(url: &Url, retries: Retries, variables: &PlaceEnvironment) -> Result<Arc<dyn Place>> {
    crate::objects::buckets::open(url, retries, variables)
}

#[cfg(not(feature = "object-store"))]
fn bucket(_: &Url, _: Retries, _: &PlaceEnvironment) -> Result<Arc<dyn Place>> {
    Err(Error::NotBuiltIn { what: "buckets" })
}

#[cfg(feature = "postgres")]
fn database(url: &str, retries: Retries, variables: &PlaceEnvironment) -> Result<Arc<dyn Place>> {
    crate::postgres::place::open(url, retries, variables)
}

#[cfg(not(feature = "postgres"))]
fn database(_: &str, _: Retries, _: &PlaceEnvironment) -> Result<Arc<dyn Place>> {
    Err(Error::NotBuiltIn { what: "PostgreSQL" })
}

#[cfg(all(test, feature = "object-store"))]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn reason(url: &str) -> &'static str {
        match open_place_with(url, Retries::default(), &PlaceEnvironment::new()) {
            Err(Error::Url { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_place_is_refused_and_no_error_quotes_it() {
        assert_eq!(reason("bucket"), "it is not a URL");
        assert_eq!(reason("ftp://bucket/x"), "places begin with file://, s3://, gs://, az:// or postgres://");
        assert_eq!(reason("file:///nowhere/at/all"), "the directory does not exist: create it first");
        for url in ["file://", "file:///", "file:///.."] {
            assert_eq!(reason(url), "it names the root directory");
        }
        for url in [
            "s3://key:secret@bucket/x",
            "s3://secret@bucket/x",
            "s3://bucket:9000/x?key=secret",
            "az://secret@container/x",
            "file:///tmp?key=secret",
            "s3://bucket/x#secret",
        ] {
            assert_eq!(reason(url), "it contains more than a place, such as a user, a port or parameters");
            let opened = open_place_with(url, Retries::default(), &PlaceEnvironment::new());
            let text = opened.unwrap_err().to_string();
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn a_directory_is_a_place() {
        let directory = tempfile::tempdir().unwrap();
        let url = Url::from_directory_path(directory.path()).unwrap();
        let place = open_place(url.as_str(), Retries::default()).unwrap();
        assert_eq!(place.url(), url.as_str().trim_end_matches('/'));
        assert!(place.sessions().unwrap().is_empty());
        let nobody = Uuid::from_u128(7);
        assert_eq!(place.read_standing(nobody).unwrap(), None);
        assert_eq!(place.lease(nobody).unwrap(), None);
        assert!(place.replicator("worker 7").unwrap().place().starts_with("file:///"));
    }
}
