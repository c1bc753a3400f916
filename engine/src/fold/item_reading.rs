//! Reads what unread items say, from the records that hold them.
//!
//! # Invariants
//!
//! 1. A reading holds one window or one record, one object, and at most [`ASIDE_BYTES_MAX`] of items that do not stand in
//!    the order of their records.
//! 2. An object is read once where items that name it follow each other.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use foldlog_codec::body::{ItemId, ObjectId, Payload};

use super::log_source::LogSource;
use crate::error::{Error, Result};

/// How many items are looked at together.
const CHUNK_ITEMS: usize = 4096;

/// Records that are wanted are read in one walk where fewer than so many stand between them.
const NEAR_RECORDS: u64 = 512;

/// How many bytes of items are kept that are not yet their turn.
const ASIDE_BYTES_MAX: usize = 4 << 20;

/// Called with an item's name, its version and its bytes.
pub(crate) type Visit<'a> = dyn FnMut(ItemId, u32, &[u8]) -> Result<ControlFlow<()>> + 'a;

/// Called with an item's name, its version and its payload.
type VisitPayload<'a> = dyn FnMut((ItemId, u32), Payload<'_>) -> Result<ControlFlow<()>> + 'a;

impl LogSource {
    /// Hands what the items of a slice say to `visit`, in the order in which `names` comes, for as long as it wants more.
    ///
    /// # Errors
    ///
    /// What reading says, or what `visit` says; [`Error::Inconsistent`] where a record does not hold such an item.
    pub(crate) fn read_items(
        &self,
        slice: u32,
        names: impl Iterator<Item = (ItemId, u32)>,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        let mut object: Option<(ObjectId, Arc<[u8]>)> = None;
        self.read_payloads(slice, names, &mut |(id, version), payload| {
            let Some(named) = payload.object() else { return visit(id, version, payload.bytes()) };
            if object.as_ref().is_none_or(|(read, _)| *read != named) {
                // The one before is let go of first.
                object = None;
                object = Some((named, self.objects.get(&named)?.into()));
            }
            let bytes = object.as_ref().map(|(_, bytes)| Arc::clone(bytes)).unwrap_or_default();
            visit(id, version, &bytes)
        })
    }

    /// Reads items that are to be kept: those that name one object share its bytes.
    ///
    /// # Errors
    ///
    /// As [`read_items`](LogSource::read_items).
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

    /// Reads items that do not stand in the order of their records, as many as may be kept.
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

/// Hands the payloads of items to `visit`, which stand in the order of their records.
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
            let reason = format!("the record does not hold item {} of slice {slice}", id.ordinal);
            return Err(Error::Inconsistent { sequence: id.sequence, reason });
        }
    }
    Ok(ControlFlow::Continue(()))
}
