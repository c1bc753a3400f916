//! Compares what a replayed host produces with what is recorded, beside the next record and further on.

use foldlog_codec::Kind;

use super::recording::Recorded;
use crate::divergence::{Difference, LeaveOut, compare, record_name};
use crate::names::Names;

/// Compares records with one that the host has produced.
pub(super) struct Comparison<'a> {
    pub(super) kind: Kind,
    pub(super) produced: &'a [u8],
    /// Names of the log, and those that the host has declared for the record.
    pub(super) names: &'a Names,
    pub(super) left_out: &'a LeaveOut,
}

impl Comparison<'_> {
    /// Returns whether a recorded record is of the produced one's kind and name.
    pub(super) fn is_alike(&self, recorded: &Recorded) -> bool {
        self.kind == recorded.kind && self.name(&recorded.body) == self.name(self.produced)
    }

    /// Returns the name of a record of the produced one's kind.
    pub(super) fn name(&self, body: &[u8]) -> String {
        record_name(self.kind, body, self.names)
    }

    /// Returns the first difference to a recorded record that is alike; `None` if nothing that is compared differs.
    pub(super) fn difference(&self, recorded: &Recorded) -> Option<Difference> {
        compare(self.kind, &recorded.body, self.produced, self.names, self.left_out)
    }

    /// Returns whether nothing that is compared differs from a recorded record.
    pub(super) fn is_same(&self, recorded: &Recorded) -> bool {
        recorded.is(self.kind, self.produced)
            || self.is_alike(recorded) && self.difference(recorded).is_none()
    }
}
