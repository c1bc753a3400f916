//! The state of a growing log: its slices, and the earlier positions that later records need.
//!
//! Appending, opening, reading the history and auditing all apply records with
//! [`LiveState::apply`], so that a live session and a replay of its log cannot differ.
//! (`History::fold_on` is separate: it folds one path, without rollbacks. Tests compare this fold
//! with it.)
//!
//! | part | in a session | in an audit | in an outline |
//! |---|---|---|---|
//! | projection | all slices, LOG slices by their last items | names and places of items | names, tags, operations |
//! | targets of the log's rollbacks | stored | stored | not stored |
//! | positions of snapshots and of open operations | stored | not stored: an audit knows all positions beforehand | not stored |
//! | rollbacks and live path | stored | not stored: a scan found them all | not stored |

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog_codec::body::{Dispatch, Rollback};
use foldlog_codec::{Record, RecordKind, SequenceNumber};

use super::live_path::LivePath;
use super::memory::{KeptFor, Watch};
use super::positions::Positions;
use super::projection::{AppliedEvent, DecodedValues, FoldContext, LogSlices, Projection};
use super::record_kinds::RecordBody;
use crate::error::Result;
use crate::items::AnyValue;
use crate::items::rows::NewValue;
use crate::log::objects::Objects;
use crate::types::SessionTypes;

/// The inputs of a fold other than the records.
#[derive(Clone, Copy)]
pub(crate) struct FoldSources<'a> {
    pub(crate) objects: &'a Objects,
    /// Types of the host. Without them items stay undecoded.
    pub(crate) types: Option<&'a SessionTypes>,
}

/// The state of a log: its projection, and the earlier positions that later records need.
#[derive(Default)]
pub(crate) struct LiveState {
    pub(crate) projection: Projection,
    pub(crate) positions: Positions,
    pub(crate) rollbacks: BTreeMap<SequenceNumber, Rollback>,
    pub(crate) path: LivePath,
    /// Counts the memory of the fold, if it is limited.
    pub(crate) watch: Option<Watch>,
}

impl LiveState {
    pub(crate) fn new(log_slices: LogSlices) -> LiveState {
        LiveState { projection: Projection::new(log_slices), ..LiveState::default() }
    }

    /// Decodes a record of a log and applies it.
    ///
    /// # Errors
    ///
    /// The errors of [`apply`](LiveState::apply); [`Error::OverBudget`](crate::Error::OverBudget)
    /// if the fold exceeds its memory limit.
    pub(crate) fn apply_record(&mut self, record: &Record<'_>, sources: FoldSources<'_>) -> Result<()> {
        if record.kind == RecordKind::Dispatch
            && let Some((event, data)) = Dispatch::plain_event(record.body)
        {
            return match self.projection.log_slices() {
                LogSlices::Outline => {
                    self.projection.pass_over_event(record.sequence)?;
                    self.count_applied(record.sequence, record.body.len())
                }
                _ => {
                    let event = AppliedEvent { event, data, value: None };
                    self.apply_event_record(record.sequence, event, record.body.len(), sources)
                }
            };
        }
        if let Some(watch) = &mut self.watch {
            watch.before(record, &self.projection)?;
        }
        self.apply(record.sequence, RecordBody::decode(record)?, DecodedValues::Nothing, sources)?;
        self.count_applied(record.sequence, record.body.len())
    }

    /// Applies a plain event of a log. Its record has a body of `len` bytes.
    pub(super) fn apply_event_record(
        &mut self,
        sequence: SequenceNumber,
        event: AppliedEvent<'_, AnyValue>,
        len: usize,
        sources: FoldSources<'_>,
    ) -> Result<()> {
        if let (Some(watch), Some(object)) = (&mut self.watch, event.data.object())
            && !matches!(self.projection.log_slices(), LogSlices::Unread | LogSlices::Outline)
        {
            watch.before_object(sequence, object.len, &self.projection)?;
        }
        self.apply_event(sequence, event, sources)?;
        self.count_applied(sequence, len)
    }

    fn count_applied(&mut self, sequence: SequenceNumber, len: usize) -> Result<()> {
        match &mut self.watch {
            Some(watch) => watch.count_applied(sequence, len, &self.projection),
            None => Ok(()),
        }
    }

    fn count_kept(&mut self, why: KeptFor, sequence: SequenceNumber) {
        if let Some(watch) = &mut self.watch {
            watch.keep(why, sequence, &self.projection);
        }
    }

    fn forget_kept(&mut self, why: KeptFor, sequence: SequenceNumber) {
        if let Some(watch) = &mut self.watch {
            watch.forget(why, sequence);
        }
    }

    /// Applies a record, and retains the positions that later ones need.
    ///
    /// # Errors
    ///
    /// The errors of [`Projection::apply`]; the projection is then unchanged.
    pub(crate) fn apply(
        &mut self,
        sequence: SequenceNumber,
        content: RecordBody<'_>,
        decoded_values: DecodedValues<'_>,
        sources: FoldSources<'_>,
    ) -> Result<()> {
        let log_slices = self.projection.log_slices();
        let rollback = content.rollback();
        let ended = if let RecordBody::ToolEnd(end) = &content { Some(end.begin) } else { None };
        let begins = matches!(&content, RecordBody::ToolBegin(begin) if !begin.reads_only);
        let is_snapshot = matches!(&content, RecordBody::Snapshot);
        // No later record can roll back to this position. Data that is not shared with a retained
        // position can be changed without a copy.
        if let Some(begin) = ended.filter(|_| rollback.is_none()) {
            self.positions.end(begin);
            self.forget_kept(KeptFor::Operation, begin);
        }
        self.positions.before_change(&self.projection);
        let (positions, FoldSources { objects, types }) = (&self.positions, sources);
        let folding = FoldContext { objects, types, frozen: &|to| positions.get(to) };
        self.projection.apply(sequence, content, decoded_values, &folding)?;
        if log_slices == LogSlices::Outline {
            return Ok(());
        }
        if let Some(rollback) = rollback
            && self.positions.count_rollback(rollback.to)
        {
            self.forget_kept(KeptFor::Rollback, rollback.to);
        }
        self.keep_target(sequence);
        if !matches!(log_slices, LogSlices::InLog | LogSlices::StateUnread) {
            return Ok(());
        }
        if let Some(rollback) = rollback {
            self.path.add(sequence, rollback.to);
            self.rollbacks.insert(sequence, rollback);
        }
        if begins {
            self.positions.begin(sequence, None);
            self.count_kept(KeptFor::Operation, sequence);
        }
        if let Some(begin) = ended {
            self.positions.end(begin);
            self.forget_kept(KeptFor::Operation, begin);
        }
        if is_snapshot && self.projection.is_exact() {
            let dropped = self.positions.keep_snapshot(sequence, Arc::new(self.projection.freeze()));
            self.count_kept(KeptFor::Snapshot, sequence);
            if let Some(dropped) = dropped {
                self.forget_kept(KeptFor::Snapshot, dropped);
            }
        }
        Ok(())
    }

    /// Applies a plain event, the kind of nearly every record, without the extra steps of
    /// [`apply`](LiveState::apply).
    #[inline]
    pub(crate) fn apply_event<V: NewValue>(
        &mut self,
        sequence: SequenceNumber,
        event: AppliedEvent<'_, V>,
        FoldSources { objects, types }: FoldSources<'_>,
    ) -> Result<()> {
        self.positions.before_change(&self.projection);
        let folding = FoldContext { objects, types, frozen: &|_| None };
        self.projection.apply_event(sequence, event, &folding)?;
        self.keep_target(sequence);
        Ok(())
    }

    /// Retains the position of the record that was just applied, if a rollback of the log targets
    /// it.
    #[inline]
    pub(crate) fn keep_target(&mut self, sequence: SequenceNumber) {
        if self.positions.wants(sequence) {
            self.positions.keep_target(sequence, Arc::new(self.projection.freeze()));
            self.count_kept(KeptFor::Rollback, sequence);
        }
    }
}
