//! Removes from a bucket the payloads and packs that no chunk names any more: a step of a
//! collection.
//!
//! | step | a crash leaves |
//! |---|---|
//! | 1. The store's time is read, and the session's directory of payloads listed | nothing |
//! | 2. The log is read to its end: payloads that a chunk of the chain names are needed. If a record of the log does not decode here, all are | nothing |
//! | 3. Unneeded payloads that were withdrawn [`MIN_AGE`](crate::MIN_AGE) before that time are removed | the rest, for the next collection |
//! | 4. The names of unneeded payloads of that age are withdrawn | nothing: a withdrawal counts as a whole or not at all |
//!
//! The rules of [`payloads`](super::payloads) ensure that the payloads removed in step 3 are not
//! needed. Payloads that are missing in a list remain until the next time. A collection that is
//! paused between steps 2 and 4 may withdraw a name that is needed by then. Such a payload is not
//! removed while it is needed, and the next writer that names it puts it again.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use object_store::path::Path;
use uuid::Uuid;

use super::bucket::{Bucket, age_at};
use super::collect::Collection;
use super::payloads::Withdrawn;
use crate::error::Result;
use crate::referenced_payloads::ReferencedPayloads;
use crate::withdrawal::{NAMES_MAX, Name, Withdrawal};

const REMOVE: &str = "remove unreferenced payloads";

/// The listed payloads of a session.
pub(crate) struct PayloadListing {
    /// Name, length in bytes, and time of the put.
    payloads: Vec<(Name, u64, DateTime<Utc>)>,
    /// The store's time before any read of the log.
    time: DateTime<Utc>,
}

impl PayloadListing {
    /// Lists a session's payloads, at the store's time `time` or later; returns `None` if there are
    /// none.
    pub(crate) async fn read(
        bucket: &Bucket,
        session: Uuid,
        time: DateTime<Utc>,
    ) -> Result<Option<PayloadListing>> {
        let listed = bucket.list_objects(session, "objects", REMOVE).await?;
        let payload = |found: object_store::ObjectMeta| {
            Some((Name::parse(found.location.filename()?)?, found.size, found.last_modified))
        };
        let payloads: Vec<_> = listed.into_iter().filter_map(payload).collect();
        Ok((!payloads.is_empty()).then_some(PayloadListing { payloads, time }))
    }

    /// Removes unneeded payloads that were withdrawn long enough ago, and withdraws the other
    /// unneeded ones.
    pub(crate) async fn collect(
        mut self,
        collection: &mut Collection<'_>,
        needed: &ReferencedPayloads,
    ) -> Result<()> {
        let Collection { bucket, session, min_age, dry_run, ref mut report, .. } = *collection;
        self.payloads.retain(|(name, ..)| !needed.holds(&name.hash));
        if self.payloads.is_empty() {
            return Ok(());
        }
        let mut withdrawn = Withdrawn::default();
        withdrawn.ask(bucket, session).await?;
        let mut ages: BTreeMap<u64, Duration> = BTreeMap::new();
        let (mut gone, mut new): (Vec<Path>, Vec<Name>) = (Vec::new(), Vec::new());
        for (name, len, modified) in self.payloads {
            let Some(number) = withdrawn.names.get(&name) else {
                // One that was put just now may be named by the next chunk.
                if age_at(self.time, modified) >= min_age {
                    new.push(name);
                }
                report.payloads_left += 1;
                continue;
            };
            let age = match ages.get(number) {
                Some(age) => *age,
                None => bucket.age(&bucket.withdrawal_key(session, *number), self.time).await?,
            };
            ages.insert(*number, age);
            if age >= min_age {
                gone.push(bucket.payload_key(session, name));
                report.payloads += 1;
                report.payload_bytes += len;
            } else {
                report.payloads_left += 1;
            }
        }
        if dry_run {
            return Ok(());
        }
        bucket.remove_all(gone, REMOVE).await?;
        new.sort_unstable();
        for (names, number) in new.chunks(NAMES_MAX).zip(withdrawn.last + 1..) {
            let withdrawal = Withdrawal { session, number, names: names.to_vec() };
            let key = bucket.withdrawal_key(session, number);
            bucket.create_alone(&key, withdrawal.encode()?, REMOVE).await?;
        }
        Ok(())
    }
}
