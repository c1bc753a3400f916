//! Ends of tool calls: each rolls STATE back unless it commits, and adds an item to the LOG slice
//! of invocations.

use std::sync::Arc;

use foldlog_codec::SequenceNumber;
use foldlog_codec::body::{ItemId, Payload, Policy, ToolEnd};

use super::slice_state::new_item;
use super::{FoldContext, INVOKED_VERSION, LogSlices, Projection};
use crate::error::{Error, Result};
use crate::items::row::{RowItem, SliceRow};
use crate::types::{Slice, ToolInvocations, ToolInvoked};

impl Projection {
    /// Ends an operation: rolls back the tool's changes unless the end is a commit, and adds the
    /// call's item to its LOG slice.
    pub(super) fn tool_end(
        &mut self,
        sequence: SequenceNumber,
        end: &ToolEnd<'_>,
        folding: &FoldContext<'_>,
    ) -> Result<()> {
        self.operations.check_end(end).map_err(|(operation, reason)| Error::Inconsistent {
            sequence,
            reason: format!("operation {operation}: {reason}"),
        })?;
        if self.log_slices != LogSlices::Outline {
            let row = self.invoked_item(sequence, end, folding)?;
            if let Some(rollback) = end.rollback() {
                self.rollback(sequence, &rollback, folding)?;
            }
            self.push_invoked(end, row);
        }
        Arc::make_mut(&mut self.operations).end(sequence, end);
        Ok(())
    }

    /// Applies the end of an operation in a fold along a live path. The records that it rolls back
    /// are not on that path, and such a fold has no operations.
    pub(crate) fn apply_end_along(
        &mut self,
        sequence: SequenceNumber,
        end: &ToolEnd<'_>,
        folding: &FoldContext<'_>,
    ) -> Result<()> {
        self.begin(sequence)?;
        let row = self.invoked_item(sequence, end, folding)?;
        self.push_invoked(end, row);
        self.next_sequence += 1;
        self.end_gathering(sequence)
    }

    fn push_invoked(&mut self, end: &ToolEnd<'_>, row: SliceRow) {
        if let Some(slice) = self.slices.get_mut(end.slice as usize) {
            slice.items.push(row);
        }
    }

    /// Builds the item that the end of an operation adds to its LOG slice.
    fn invoked_item(
        &self,
        sequence: SequenceNumber,
        end: &ToolEnd<'_>,
        folding: &FoldContext<'_>,
    ) -> Result<SliceRow> {
        let bad = |reason: String| Error::Inconsistent { sequence, reason };
        let slice = self.slices.get(end.slice as usize).filter(|slice| slice.policy == Policy::Log);
        let Some(slice) = slice else { return Err(bad(format!("slice {} is not a LOG slice", end.slice))) };
        let (id, version) = (ItemId { sequence, ordinal: 0 }, INVOKED_VERSION);
        // A host that knows the slice knows it as `ToolInvocations`, so the item need not be
        // encoded and read back.
        let name = self.names.slice(end.slice).map(|declared| declared.name.as_str());
        let is_known = slice.decoder.is_some() && !slice.unread && name == Some(ToolInvocations::NAME);
        let item = match is_known {
            true => RowItem::Typed(Arc::new(ToolInvoked::from_end(end))),
            false => {
                new_item(slice, sequence, Payload::new(&end.encode_invocation()), version, None, folding)?
            }
        };
        Ok(SliceRow { id, version, item })
    }
}
