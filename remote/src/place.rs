//! A place of sessions as a person writes it: a URL, and what can be asked of any place, whatever keeps it.
//!
//! A URL, of which [`open_place`] lists the forms, is a place and nothing else. Keys, regions and endpoints come from the environment or
//! from what the provider gives to its
//! machines; `network` says which variables count. No error quotes a URL, which may hold a password all the same.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use foldlog::replication::Replicator;
use foldlog_codec::body::ObjectId;
use foldlog_codec::{Record, SequenceNumber};
use url::Url;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::lease::{LEASE_LENGTH, SessionLease};
use crate::retries::Retries;
use crate::volume::MIN_AGE;

/// Variables of an environment, by their names.
pub type PlaceEnvironment = BTreeMap<String, String>;

/// Holds sessions somewhere: what the URL of a place opens.
///
/// Each method blocks until it is done or has given up, and must not be called on an async runtime's own threads.
pub trait Place: fmt::Debug + Send + Sync {
    /// Returns where the place is, as a URL without a key or a password.
    fn url(&self) -> &str;

    /// Returns what a store is given so that the place holds its sessions. `name` says in claims who writes, and must be that of one
    /// directory of sessions alone.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`] for the name, and what keeps the place from being opened for writing.
    fn replicator(&self, name: &str) -> Result<Arc<dyn Replicator>> {
        self.replicator_with(name, Some(LEASE_LENGTH))
    }

    /// Returns what [`replicator`](Place::replicator) does, whose lease lasts so long, of 100 ms to an hour; `None` keeps none.
    ///
    /// # Errors
    ///
    /// Those of [`Place::replicator`], and [`Error::LeaseLength`].
    fn replicator_with(&self, name: &str, lease: Option<Duration>) -> Result<Arc<dyn Replicator>>;

    /// Returns the ids of the sessions that the place lists, in ascending order. A list may lack what was put just now: it finds ids,
    /// and decides nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    fn sessions(&self) -> Result<Vec<Uuid>>;

    /// Returns the lease under which a session was claimed last; `None` if nobody keeps one. It says when it may be time to take the
    /// session over ([`wait_for_lease`](crate::wait_for_lease)), and never whether that is safe.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    fn lease(&self, session: Uuid) -> Result<Option<SessionLease>>;

    /// Returns a reader that stands in front of a session's first record, and asks the place for nothing.
    ///
    /// # Errors
    ///
    /// What keeps the place from being opened for reading.
    fn reader(&self, session: Uuid) -> Result<Box<dyn PlaceReader>>;

    /// Returns how a session stands, or `None` if the place holds nothing of it. Reads all of it, unless the place knows better.
    ///
    /// # Errors
    ///
    /// Those of [`PlaceReader::read_on`].
    fn read_standing(&self, session: Uuid) -> Result<Option<SessionStanding>> {
        let mut standing = SessionStanding::default();
        self.reader(session)?.read_on(&mut |met| standing.take(&met))?;
        Ok((standing.epoch > 0).then_some(standing))
    }

    /// Removes what the place keeps twice of a session: in a bucket, chunks that a volume holds which is old enough. Of these it removes the
    /// bodies too that a compaction of the session dropped, once the session's writer has recorded that, and payloads that nothing names any
    /// more, a day after an earlier call found them so. Readers and writers may go on meanwhile. A database keeps nothing twice, and drops these
    /// bodies at once. Returns `None` if the place removes nothing.
    ///
    /// # Errors
    ///
    /// Those of [`PlaceReader::read_on`]. What was removed by then stays so.
    fn collect(&self, session: Uuid, options: CollectOptions) -> Result<Option<CollectReport>> {
        let _ = (session, options);
        Ok(None)
    }
}

/// Says what a collection of a session's chunks may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectOptions {
    /// How old a volume is at least before chunks that it holds are removed. Less than [`MIN_AGE`] counts as that.
    pub min_age: Duration,
    /// Whether no volume is put and nothing removed. What the store's clock shows is asked for with an object all the same, which is removed at
    /// once.
    pub dry_run: bool,
}

impl Default for CollectOptions {
    /// Returns [`MIN_AGE`], and that chunks are removed.
    fn default() -> CollectOptions {
        CollectOptions { min_age: MIN_AGE, dry_run: false }
    }
}

/// Says what a collection of a session's chunks came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CollectReport {
    /// Sequence number behind the session's last record.
    pub next: SequenceNumber,
    /// Number of volumes that were put.
    pub volumes: u64,
    /// Number of chunks that were removed, or would be.
    pub chunks: u64,
    /// Length of these in bytes.
    pub bytes: u64,
    /// Number of chunks that the store lists and that stay: those without a volume, and those of volumes that are too young.
    pub left: u64,
    /// How many of these a volume holds that is too young. The others are of a range that is not full yet, or has no volume for another reason.
    pub young: u64,
    /// Number of records that lost their bodies, or would: those that a compaction of the session dropped, as its writer recorded, in chunks that
    /// are collected.
    pub dropped: u64,
    /// Length of these bodies in bytes, what stands in their place taken off.
    pub dropped_bytes: u64,
    /// Number of records whose bodies the session's compaction dropped and the place keeps yet, in chunks that are not collected.
    pub waiting: u64,
    /// Number of payloads, and of packs of captures, that were removed, or would be: those that nothing in the session names any more.
    pub payloads: u64,
    /// Length of these in bytes.
    pub payload_bytes: u64,
    /// Number of those that nothing names either, and that stay for now: a payload goes at the earliest [`MIN_AGE`] after the collection that
    /// first found it so.
    pub payloads_left: u64,
    /// First record that does not decode here, if there is one: nobody can say which payloads it names, and so none is removed.
    pub undecoded: Option<SequenceNumber>,
}

/// Reads what a place holds of one session, and goes on where it stood once there is more. Claims nothing.
pub trait PlaceReader: fmt::Debug + Send {
    /// Hands what follows to `visit`, in order, up to the end that the place has now.
    ///
    /// # Errors
    ///
    /// - [`Error::Store`], and what does not verify. What was handed on until then stays so, and the next call goes on behind it.
    /// - [`Error::RemoteWentBack`] if the place lacks what it had.
    fn read_on(&mut self, visit: &mut dyn FnMut(PlaceItem<'_>)) -> Result<()>;

    /// Returns the bytes of a payload that the session's records name, compared with their hash; `None` if the place has none.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], and [`Error::Payload`] if other bytes stand under its name.
    fn object(&self, object: ObjectId) -> Result<Option<Vec<u8>>>;
}

/// What a reader meets of a session.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PlaceItem<'a> {
    /// A claim: from here on the session's records are those of another writer.
    Claim {
        /// Epoch of the claim.
        epoch: u64,
        /// Name under which it was claimed. Its claimant chose it, so it is escaped where it is shown.
        name: &'a str,
    },
    /// A record.
    Record(Record<'a>),
}

/// Says how a session stands in a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionStanding {
    /// Sequence number behind the last record.
    pub next: SequenceNumber,
    /// Epoch of the last claim; 0 if nobody has claimed the session.
    pub epoch: u64,
    /// Name under which it was claimed.
    pub name: String,
    /// Time of the last record, in microseconds since 1970; `None` if there is none.
    pub last_time_us: Option<i64>,
}

impl SessionStanding {
    /// Goes on to behind what was met.
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

/// Opens the place that a URL names, with keys from the process's environment or from the provider of its machine. Asks the place
/// for nothing yet.
///
/// | URL | what keeps the sessions | feature |
/// |---|---|---|
/// | `file:///PATH` | a local directory, which exists | `object-store` |
/// | `s3://BUCKET/PREFIX` | S3, and what speaks as S3 does: R2, MinIO, Ceph | `s3` |
/// | `gs://BUCKET/PREFIX` | Google Cloud Storage | `gcs` |
/// | `az://CONTAINER/PREFIX` | Azure Blob Storage | `azure` |
/// | `postgres://USER@HOST/DATABASE`, `postgres:///DATABASE?host=/DIRECTORY` for a socket | PostgreSQL; `Database` says what more may stand there | `postgres` |
///
/// # Errors
///
/// - [`Error::Url`] if it is no such URL, holds more than a place, or names a directory that is not there.
/// - [`Error::NotBuiltIn`] if what keeps the place is not built in.
/// - [`Error::Settings`] if the environment's settings do not fit together.
pub fn open_place(url: &str, retries: Retries) -> Result<Arc<dyn Place>> {
    let readable = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    open_place_with(url, retries, &std::env::vars_os().filter_map(readable).collect())
}

/// Opens a place as [`open_place`] does, with these variables in place of the process's environment.
///
/// # Errors
///
/// Those of [`open_place`].
pub fn open_place_with(url: &str, retries: Retries, variables: &PlaceEnvironment) -> Result<Arc<dyn Place>> {
    // A database's may name several hosts, and has parameters.
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return database(url, retries, variables);
    }
    let url = Url::parse(url).map_err(|_| Error::Url { reason: "it is no URL" })?;
    match url.scheme() {
        "file" | "s3" | "gs" | "az" => bucket(&url, retries, variables),
        _ => Err(Error::Url { reason: "places begin with file://, s3://, gs://, az:// or postgres://" }),
    }
}

#[cfg(feature = "object-store")]
fn bucket(url: &Url, retries: Retries, variables: &PlaceEnvironment) -> Result<Arc<dyn Place>> {
    crate::buckets::open(url, retries, variables)
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
        assert_eq!(reason("bucket"), "it is no URL");
        assert_eq!(reason("ftp://bucket/x"), "places begin with file://, s3://, gs://, az:// or postgres://");
        assert_eq!(reason("file:///nowhere/at/all"), "there is no such folder: make it first");
        for url in ["file://", "file:///", "file:///.."] {
            assert_eq!(reason(url), "it names the root of all folders");
        }
        for url in [
            "s3://key:secret@bucket/x",
            "s3://secret@bucket/x",
            "s3://bucket:9000/x?key=secret",
            "az://secret@container/x",
            "file:///tmp?key=secret",
            "s3://bucket/x#secret",
        ] {
            assert_eq!(reason(url), "it holds more than a place");
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
