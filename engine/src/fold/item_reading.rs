//! Reads the bytes of unread items from their records.
//!
//! # Invariants
//!
//! 1. A read has in memory one window or one record, one object, and at most [`ASIDE_BYTES_MAX`] of
//!    items that are not in the order of their records.
//! 2. For consecutive items that name the same object, the object is read once.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use foldlog_codec::RecordKind;
use foldlog_codec::body::{ItemId, ObjectId, Payload};

use super::log_source::{LogSource, NEAR_RECORDS};
use crate::error::{Error, Result};

/// Number of items that are sorted together, without the remaining ones of the last record.
const CHUNK_ITEMS: usize = 4096;

/// Maximum bytes of items that wait in memory for their visit.
const ASIDE_BYTES_MAX: usize = 4 << 20;

pub(crate) type ItemVisitor<'a> = dyn FnMut(ItemId, u32, &[u8]) -> Result<ControlFlow<()>> + 'a;

type VisitPayload<'a> = dyn FnMut((ItemId, u32), Payload<'_>) -> Result<ControlFlow<()>> + 'a;

impl LogSource {
    /// Passes the bytes of a slice's items to `visit`, in the order of `names`, until it breaks.
    ///
    /// # Errors
    ///
    /// [`Error::Inconsistent`] if a record does not contain a named item, [`Error::Io`] if a
    /// segment cannot be read, [`Error::Object`] if an object is missing or damaged; the error of
    /// `visit`.
    pub(crate) fn read_items(
        &self,
        slice: u32,
        names: impl Iterator<Item = (ItemId, u32)>,
        visit: &mut ItemVisitor<'_>,
    ) -> Result<()> {
        let mut object: Option<(ObjectId, Arc<[u8]>)> = None;
        self.read_payloads(slice, names, &mut |(id, version), payload| {
            let Some(named) = payload.object() else { return visit(id, version, payload.bytes()) };
            if object.as_ref().is_none_or(|(read, _)| *read != named) {
                // The previous object is dropped first.
                object = None;
                object = Some((named, self.objects.get(&named)?.into()));
            }
            let bytes = object.as_ref().map(|(_, bytes)| Arc::clone(bytes)).unwrap_or_default();
            visit(id, version, &bytes)
        })
    }

    /// Passes the bytes of a slice's items to `visit`, in the order of `names`, to be retained:
    /// items that name the same object share its bytes.
    pub(crate) fn read_shared_items(
        &self,
        slice: u32,
        names: impl Iterator<Item = (ItemId, u32)>,
        visit: &mut dyn FnMut(Arc<[u8]>) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.read_payloads(slice, names, &mut |_, payload| visit(self.objects.shared(payload)?))
    }

    fn read_payloads(
        &self,
        slice: u32,
        names: impl Iterator<Item = (ItemId, u32)>,
        visit: &mut VisitPayload<'_>,
    ) -> Result<()> {
        let mut names = names.peekable();
        let mut chunk = Vec::new();
        while names.peek().is_some() {
            chunk.clear();
            chunk.extend(names.by_ref().take(CHUNK_ITEMS));
            // The items of one record stay together, so that it is read only once.
            let record = chunk.last().map(|(id, _)| id.sequence);
            chunk.extend(std::iter::from_fn(|| names.next_if(|(id, _)| Some(id.sequence) == record)));
            if self.read_chunk(slice, &chunk, visit)?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn read_chunk(
        &self,
        slice: u32,
        chunk: &[(ItemId, u32)],
        visit: &mut VisitPayload<'_>,
    ) -> Result<ControlFlow<()>> {
        if chunk.is_sorted_by(|(before, _), (after, _)| before < after) {
            return each_payload(self, slice, chunk, visit);
        }
        let mut aside = self.set_aside(slice, chunk)?;
        for name in chunk {
            let flow = match aside.remove(&name.0) {
                Some(payload) => visit(*name, Payload::new(&payload))?,
                None => each_payload(self, slice, &[*name], visit)?,
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reads items that are not in the order of their records, as many as fit into the limit.
    fn set_aside(&self, slice: u32, chunk: &[(ItemId, u32)]) -> Result<BTreeMap<ItemId, Box<[u8]>>> {
        let mut sorted = chunk.to_vec();
        sorted.sort_unstable();
        let (mut aside, mut left) = (BTreeMap::new(), ASIDE_BYTES_MAX);
        let _ = each_payload(self, slice, &sorted, &mut |(id, _), payload| {
            Ok(match left.checked_sub(payload.bytes().len()) {
                Some(rest) => {
                    left = rest;
                    aside.insert(id, payload.bytes().into());
                    ControlFlow::Continue(())
                }
                None => ControlFlow::Break(()),
            })
        })?;
        Ok(aside)
    }
}

/// Passes the payloads of items, which are in the order of their records, to `visit`.
fn each_payload(
    source: &LogSource,
    slice: u32,
    names: &[(ItemId, u32)],
    visit: &mut VisitPayload<'_>,
) -> Result<ControlFlow<()>> {
    let near = |before: &(ItemId, u32), after: &(ItemId, u32)| {
        after.0.sequence.since(before.0.sequence) < NEAR_RECORDS
    };
    for run in names.chunk_by(near) {
        let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { continue };
        let (mut rest, mut flow) = (run, ControlFlow::Continue(()));
        source.places.read_until(&source.storage, first.sequence, last.sequence, &mut |record| {
            if rest.first().is_none_or(|(id, _)| id.sequence != record.sequence) {
                return Ok(ControlFlow::Continue(()));
            }
            if record.kind == RecordKind::Dropped {
                let (position, earliest) = (record.sequence, source.places.next_sequence.saturating_sub(1));
                return Err(Error::Compacted { position, earliest });
            }
            for (ordinal, payload, _) in source.items_in(&record, slice)? {
                let Some((name, others)) = rest.split_first() else { break };
                if name.0 == (ItemId { sequence: record.sequence, ordinal }) {
                    rest = others;
                    flow = visit(*name, Payload::new(&payload))?;
                    if flow.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if flow.is_break() {
            return Ok(flow);
        }
        if let Some((id, _)) = rest.first() {
            let reason = format!("the record does not contain item {} of slice {slice}", id.ordinal);
            return Err(Error::Inconsistent { sequence: id.sequence, reason });
        }
    }
    Ok(ControlFlow::Continue(()))
}
