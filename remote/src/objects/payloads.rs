//! Puts payloads and packs under names derived from their hashes, and reads them.
//!
//! # Names
//!
//! A payload is stored under its hash before any chunk names it. A later writer that names it again
//! finds it, and puts nothing. So an unreferenced payload can be removed only once no writer can be
//! about to name it. To ensure that, its name is *withdrawn* at least [`MIN_AGE`](crate::MIN_AGE)
//! before its removal ([`withdrawal`](crate::withdrawal)). A writer has recently read the withdrawn
//! names, and puts such a payload again, under the next name.
//!
//! # Rules
//!
//! 1. Before a writer puts a payload that a chunk is to name, it reads the withdrawals, and uses no
//!    name that is already withdrawn. It requests the numbers after the last one that it knows,
//!    until one is missing.
//! 2. If the chunk is put, or its put confirmed, more than half of `MIN_AGE` after the last such
//!    request ([`clock`](crate::clock)), the writer requests them again. It puts payloads that were
//!    withdrawn in between again, under the next name, before anything is acknowledged:
//!    [`SessionPayloads::make_sure`]. For that it keeps the bytes of up to 64 MiB of payloads until
//!    then.
//! 3. A name is withdrawn, and is removed `MIN_AGE` later by the store's clock, only while no chunk
//!    that was read in between names the payload ([`payload_removal`](super::payload_removal)). By
//!    rules 1 and 2, no later chunk can name it.
//! 4. A name that was withdrawn is never used again, so a late removal removes only unneeded
//!    objects.
//! 5. A reader requests the first name. Only if it is missing, the reader requests withdrawals, and
//!    then the other names.
//!
//! As with chunks, a stop of the whole machine for longer than `MIN_AGE` between the put of a
//! payload and that of its chunk is a limit, since the clock stops too. If payloads are longer than
//! 64 MiB in total, so is a sleep of that length: a chunk may then name a removed payload, and its
//! writer ends with an error.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foldlog_codec::body::{OBJECT_BYTES_MAX, ObjectId};
use object_store::PutPayload;
use uuid::Uuid;

use super::bucket::Bucket;
use crate::error::{Error, RemoteFailure, Result};
use crate::kept_payloads::{KEPT_BYTES_MAX, KeptPayloads};
use crate::replicator::SessionPayloads;
use crate::volume::KNOWN_FOR;
use crate::withdrawal::{Name, WITHDRAWAL_BYTES_MAX, Withdrawal};

const PUT: &str = "put a payload";
const READ: &str = "read a payload";
const ASK: &str = "read the withdrawn names of payloads";

/// The withdrawn names of a session's payloads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Withdrawn {
    /// The names, each with the number of its withdrawal.
    pub(crate) names: BTreeMap<Name, u64>,
    /// Number of the last known withdrawal.
    pub(crate) last: u64,
    /// Time before which no further withdrawal existed.
    asked: Option<Duration>,
}

impl Withdrawn {
    /// Requests the withdrawals after the last known one.
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

    /// Returns the name under which a payload is put.
    fn name(&self, hash: [u8; 32]) -> Name {
        self.names(hash).next_back().unwrap_or(Name { hash, before: 0 })
    }

    /// Returns the possible names of a payload after its first one.
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
    kept: KeptPayloads<Name, PutPayload>,
}

impl Payloads {
    /// Returns an instance for a session, without sending a request.
    pub fn new(bucket: Bucket, session: Uuid) -> Payloads {
        let kept = KeptPayloads::new(KEPT_BYTES_MAX);
        Payloads { bucket, session, withdrawn: Withdrawn::default(), kept }
    }

    /// Sets the number of bytes of payloads to keep. For tests, which have no payloads of that
    /// size.
    #[doc(hidden)]
    pub fn with_kept_bytes(self, kept_bytes_max: u64) -> Payloads {
        Payloads { kept: KeptPayloads::new(kept_bytes_max), ..self }
    }
}

impl SessionPayloads for Payloads {
    async fn put(&mut self, object: ObjectId, bytes: Vec<u8>) -> Result<()> {
        let now = self.bucket.now();
        if self.withdrawn.asked.is_none_or(|asked| now.saturating_sub(asked) > KNOWN_FOR) {
            self.withdrawn.ask(&self.bucket, self.session).await?;
        }
        let (name, payload) = (self.withdrawn.name(object.hash), PutPayload::from(bytes));
        self.kept.add(object, name, &payload, self.withdrawn.asked);
        put_as(&self.bucket, self.session, name, object, payload).await
    }

    async fn make_sure(&mut self) -> Result<()> {
        if self.kept.is_sure(self.bucket.now()) {
            return Ok(());
        }
        self.withdrawn.ask(&self.bucket, self.session).await?;
        for (object, name, kept) in &mut self.kept.put {
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
        self.kept.since = self.withdrawn.asked;
        Ok(())
    }

    fn forget(&mut self) {
        self.kept.forget();
    }
}

/// Puts a payload under a name. The name identifies the content, so any complete object of that
/// name is correct.
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
    /// Reads a payload, whose bytes are verified against its hash; returns `None` if it is missing.
    ///
    /// # Errors
    ///
    /// [`Error::Store`], [`Error::Payload`] if there are other bytes under its name, and
    /// [`Error::Withdrawal`] if its first name is missing, and the withdrawn names cannot be read.
    pub async fn get_object(&self, session: Uuid, object: ObjectId) -> Result<Option<Vec<u8>>> {
        let first = Name { hash: object.hash, before: 0 };
        if let Some(bytes) = self.get_as(session, first, object).await? {
            return Ok(Some(bytes));
        }
        // The known names are cached: a reader gets here for each payload that was put again.
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

    /// Reads a payload under the first of these names that exists.
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
