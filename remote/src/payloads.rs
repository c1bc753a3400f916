//! Puts payloads and packs under names made of their hashes, and reads them.
//!
//! # Names
//!
//! A payload stands under its hash before any chunk names it, and whoever names it again finds it there and puts nothing. So one that nothing
//! names can be removed only once it is certain that no writer is about to name it. What makes it certain is that a name is *withdrawn* at
//! least [`MIN_AGE`](crate::MIN_AGE) before it is removed ([`withdrawal`](crate::withdrawal)): a writer knows which names are, from not long
//! ago, and puts such a payload again, under the next name.
//!
//! # Rules
//!
//! 1. Whoever puts a payload that a chunk is to name has asked for withdrawals, and gives no name that was withdrawn by then. It asks for the
//!    numbers behind the last one that it knows, until one is not there.
//! 2. If the chunk is put, or its put confirmed, more than half of `MIN_AGE` after it asked last ([`clock`](crate::clock)), it asks again. What was
//!    withdrawn in between it puts once more, under the next name, before anything is acknowledged: [`Payloads::make_sure`]. For that it keeps
//!    the bytes of up to 64 MiB of payloads until then.
//! 3. A name is withdrawn, and is removed `MIN_AGE` later by the store's clock, only while no chunk that was read in between names the payload
//!    ([`withdraw`](crate::withdraw)). By 1 and 2 no chunk can that was put since.
//! 4. A name that was withdrawn is never given again, so that a removal that arrives late removes nothing that anybody needs.
//! 5. A reader asks for the first name, and only where nothing stands under it for withdrawals, and then for the other names.
//!
//! As with chunks, a machine that is stopped from outside for longer than `MIN_AGE`, so that its clock stands still, is a limit: between the put
//! of a payload and that of its chunk. Of payloads longer than 64 MiB together a machine that sleeps so long is one too: a chunk may
//! come to name one that is gone, and its writer then ends with an error.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foldlog_codec::body::{OBJECT_BYTES_MAX, ObjectId};
use object_store::PutPayload;
use uuid::Uuid;

use crate::bucket::Bucket;
use crate::error::{Error, RemoteFailure, Result};
use crate::slots::KEPT_BYTES_MAX;
use crate::volume::KNOWN_FOR;
use crate::withdrawal::{Name, WITHDRAWAL_BYTES_MAX, Withdrawal};

const PUT: &str = "put a payload";
const READ: &str = "read a payload";
const ASK: &str = "ask which names of payloads were withdrawn";

/// Knows which names of a session's payloads are withdrawn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Withdrawn {
    /// Names that are, and the number of the withdrawal.
    pub(crate) names: BTreeMap<Name, u64>,
    /// Number of the last withdrawal that is known.
    pub(crate) last: u64,
    /// Moment before which no further one was there.
    asked: Option<Duration>,
}

impl Withdrawn {
    /// Asks for the withdrawals behind the last one that is known.
    pub(crate) async fn ask(&mut self, bucket: &Bucket, session: Uuid) -> Result<()> {
        loop {
            let (number, asked) = (self.last + 1, bucket.now());
            let (key, decode) = (bucket.withdrawal_key(session, number), |bytes: &[u8]| {
                Withdrawal::decode(bytes, session, number)
            });
            let found = bucket.get_decoded(&key, WITHDRAWAL_BYTES_MAX, ASK, decode).await?;
            let Some(withdrawal) = found else {
                self.asked = Some(asked);
                return Ok(());
            };
            self.names.extend(withdrawal.names.into_iter().map(|name| (name, number)));
            self.last = number;
        }
    }

    /// Returns the name that a payload gets.
    fn name(&self, hash: [u8; 32]) -> Name {
        self.names(hash).next_back().unwrap_or(Name { hash, before: 0 })
    }

    /// Returns the names that a payload may have behind its first one.
    fn names(&self, hash: [u8; 32]) -> impl DoubleEndedIterator<Item = Name> {
        let (first, last) = (Name { hash, before: 0 }, Name { hash, before: u32::MAX });
        let withdrawn = self.names.range(first..=last);
        withdrawn.map(move |(name, _)| Name { hash, before: name.before.saturating_add(1) })
    }
}

/// Puts the payloads that a writer's next chunks name.
#[derive(Debug)]
pub struct Payloads {
    bucket: Bucket,
    session: Uuid,
    withdrawn: Withdrawn,
    /// Those that were put and that nothing acknowledged names yet, under these names. The bytes of up to [`KEPT_BYTES_MAX`] are kept.
    put: Vec<(ObjectId, Name, Option<PutPayload>)>,
    kept_bytes: u64,
    kept_bytes_max: u64,
    /// Moment up to which the names of all of these are known not to be withdrawn.
    since: Option<Duration>,
}

impl Payloads {
    /// Knows nothing of a session yet, and asks for nothing.
    pub fn new(bucket: Bucket, session: Uuid) -> Payloads {
        let (withdrawn, put) = (Withdrawn::default(), Vec::new());
        Payloads {
            bucket,
            session,
            withdrawn,
            put,
            kept_bytes: 0,
            kept_bytes_max: KEPT_BYTES_MAX,
            since: None,
        }
    }

    /// Keeps the bytes of so many payloads. For tests, which have none that are so long.
    #[doc(hidden)]
    pub fn with_kept_bytes(self, kept_bytes_max: u64) -> Payloads {
        Payloads { kept_bytes_max, ..self }
    }

    /// Puts a payload under its hash, unless it is there.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], and [`Error::Withdrawal`] if what was withdrawn cannot be read.
    pub async fn put(&mut self, object: ObjectId, bytes: Vec<u8>) -> Result<()> {
        let now = self.bucket.now();
        if self.withdrawn.asked.is_none_or(|asked| now.saturating_sub(asked) > KNOWN_FOR) {
            self.withdrawn.ask(&self.bucket, self.session).await?;
        }
        let (name, payload) = (self.withdrawn.name(object.hash), PutPayload::from(bytes));
        self.since = self.since.or(self.withdrawn.asked);
        let is_kept = self.kept_bytes.saturating_add(object.len) <= self.kept_bytes_max;
        self.kept_bytes += if is_kept { object.len } else { 0 };
        self.put.push((object, name, is_kept.then(|| payload.clone())));
        put_as(&self.bucket, self.session, name, object, payload).await
    }

    /// Returns whether nothing that was put can have been withdrawn and removed.
    pub(crate) fn is_sure(&self) -> bool {
        self.since.is_none_or(|since| self.bucket.now().saturating_sub(since) <= KNOWN_FOR)
    }

    /// Makes sure that what was put stays where the next chunks name it, unless that is sure. Once the store holds such a chunk, its records are
    /// acknowledged only behind that.
    ///
    /// # Errors
    ///
    /// Those of [`Payloads::put`], and [`Error::MissingPayload`]: no chunk may name it, and on one that does nobody may rely.
    pub async fn make_sure(&mut self) -> Result<()> {
        if self.is_sure() {
            return Ok(());
        }
        self.withdrawn.ask(&self.bucket, self.session).await?;
        for (object, name, kept) in &mut self.put {
            if !self.withdrawn.names.contains_key(name) {
                continue;
            }
            let next = self.withdrawn.name(object.hash);
            let payload = match kept {
                Some(payload) => payload.clone(),
                None => {
                    let gone = || Error::MissingPayload { object: object.file_name() };
                    let found = self.bucket.get_object(self.session, *object).await?;
                    PutPayload::from(found.ok_or_else(gone)?)
                }
            };
            put_as(&self.bucket, self.session, next, *object, payload).await?;
            *name = next;
        }
        self.since = self.withdrawn.asked;
        Ok(())
    }

    /// Forgets what was put: the chunks that name it are acknowledged.
    pub fn forget(&mut self) {
        (self.put, self.kept_bytes, self.since) = (Vec::new(), 0, None);
    }
}

/// Puts a payload under a name. That is the content's, so it does not matter who put it, once it is there whole.
async fn put_as(
    bucket: &Bucket,
    session: Uuid,
    name: Name,
    object: ObjectId,
    payload: PutPayload,
) -> Result<()> {
    let key = bucket.payload_key(session, name);
    if bucket.create(&key, payload, PUT).await? || bucket.size(&key, PUT).await? == Some(object.len) {
        return Ok(());
    }
    Err(bucket.begin().end(PUT, RemoteFailure::Conflict))
}

impl Bucket {
    /// Reads a payload, whose bytes are compared with its hash; `None` if it is not there.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], [`Error::Payload`] if other bytes stand under its name, and [`Error::Withdrawal`] if nothing stands under its first
    /// name, and what was withdrawn cannot be read.
    pub async fn get_object(&self, session: Uuid, object: ObjectId) -> Result<Option<Vec<u8>>> {
        let first = Name { hash: object.hash, before: 0 };
        if let Some(bytes) = self.get_as(session, first, object).await? {
            return Ok(Some(bytes));
        }
        // What is known of the names is kept: a reader comes here for each payload that was put again.
        let known = self.known_withdrawn(session);
        let found = self.get_as_any(session, known.names(object.hash).rev(), object).await?;
        if found.is_some() {
            return Ok(found);
        }
        let mut withdrawn = Withdrawn::clone(&known);
        withdrawn.ask(self, session).await?;
        let tried: BTreeSet<Name> = known.names(object.hash).collect();
        let names = withdrawn.names(object.hash).rev().filter(|name| !tried.contains(name));
        let found = self.get_as_any(session, names, object).await?;
        self.note_withdrawn(session, withdrawn);
        Ok(found)
    }

    /// Reads a payload under the first of these names that it stands under.
    async fn get_as_any(
        &self,
        session: Uuid,
        names: impl Iterator<Item = Name>,
        object: ObjectId,
    ) -> Result<Option<Vec<u8>>> {
        for name in names {
            if let Some(bytes) = self.get_as(session, name, object).await? {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    async fn get_as(&self, session: Uuid, name: Name, object: ObjectId) -> Result<Option<Vec<u8>>> {
        let max = usize::try_from(object.len.min(OBJECT_BYTES_MAX)).unwrap_or(usize::MAX);
        match self.get(&self.payload_key(session, name), max, READ).await? {
            Some(bytes) if ObjectId::from_content(&bytes) != object => {
                Err(Error::Payload { object: object.file_name() })
            }
            found => Ok(found),
        }
    }
}
