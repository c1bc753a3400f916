//! Payloads that a writer has put, until the records that name them are acknowledged.

use std::time::Duration;

use foldlog_codec::body::ObjectId;

use crate::volume::KNOWN_FOR;

/// Maximum number of bytes of a session's payloads that a writer keeps until then.
pub(crate) const KEPT_BYTES_MAX: u64 = 64 << 20;

/// The payloads that were put and that no acknowledged record names yet, each with its name in the
/// place, and with its bytes as long as these are few.
#[derive(Debug)]
pub(crate) struct KeptPayloads<N, B> {
    pub(crate) put: Vec<(ObjectId, N, Option<B>)>,
    bytes: u64,
    bytes_max: u64,
    /// Time at which none of them was withdrawn; `None` if there are none.
    pub(crate) since: Option<Duration>,
}

impl<N, B: Clone> KeptPayloads<N, B> {
    /// Keeps up to `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> KeptPayloads<N, B> {
        KeptPayloads { put: Vec::new(), bytes: 0, bytes_max, since: None }
    }

    /// Notes that a payload is about to be put under a name that was not withdrawn at `since`.
    pub(crate) fn add(&mut self, object: ObjectId, name: N, bytes: &B, since: Option<Duration>) {
        self.since = self.since.or(since);
        let is_kept = self.bytes.saturating_add(object.len) <= self.bytes_max;
        self.bytes += if is_kept { object.len } else { 0 };
        self.put.push((object, name, is_kept.then(|| bytes.clone())));
    }

    /// Returns whether none of them can have been withdrawn and removed.
    pub(crate) fn is_sure(&self, now: Duration) -> bool {
        self.since.is_none_or(|since| now.saturating_sub(since) <= KNOWN_FOR)
    }

    /// Forgets them: the records that name them are acknowledged.
    pub(crate) fn forget(&mut self) {
        *self = KeptPayloads::new(self.bytes_max);
    }
}
