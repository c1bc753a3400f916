//! Stores large payloads of records as objects. The record contains references to them.

use foldlog_codec::body::Payload;

use super::{SessionInner, WriterState};
use crate::error::Result;

impl SessionInner {
    pub(super) fn is_large(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 > self.store.options.object_bytes_min
    }

    /// Stores the large payloads of a record, and returns a reference for each, in order.
    pub(super) fn references<'p, 'a: 'p>(
        &self,
        state: &WriterState,
        payloads: impl Iterator<Item = &'p mut Payload<'a>>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut references = Vec::new();
        // Large payloads are rare; collecting a result for each payload would waste moves.
        for payload in payloads.filter(|payload| self.is_large(payload.bytes())) {
            references.extend(self.store_if_large(state, payload.bytes())?);
        }
        Ok(references)
    }

    /// Replaces the large payloads by the references that [`references`](SessionInner::references)
    /// returned for them.
    pub(super) fn refer<'p, 'a: 'p>(
        &self,
        payloads: impl Iterator<Item = &'p mut Payload<'a>>,
        references: &'a [Vec<u8>],
    ) {
        let large = payloads.filter(|payload| self.is_large(payload.bytes()));
        large.zip(references).for_each(|(payload, reference)| *payload = Payload::new(reference));
    }

    /// Stores large bytes as an object, and returns the reference.
    pub(super) fn store_if_large(&self, state: &WriterState, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        if !self.is_large(bytes) {
            return Ok(None);
        }
        Ok(Some(self.put_object(state, bytes)?.reference()))
    }
}
