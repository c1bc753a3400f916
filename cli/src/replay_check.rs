//! A fold of a session from its first record, which checks four properties. The third one is
//! checked by [`replay`](crate::verbs::replay) itself:
//!
//! 1. The fold succeeds: no record contradicts those before it, sequence numbers have no gaps,
//!    seals match.
//! 2. Rollback equivalence: STATE after a rollback to `n` equals STATE of a new fold along the path
//!    that was live at `n`, byte for byte. A rollback cannot be checked if a compaction has dropped
//!    the slices' contents at `n`, or right after the rollback.
//! 3. Lineage: the part that a fork shares with its parent equals the parent's, if the parent is in
//!    the same store.
//! 4. LOG only grows: at each checked rollback, a LOG slice still contains everything it contained
//!    at the rollback checked before, and the rollback itself changes no LOG slice.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use foldlog::inspect::{
    AlongPath, DifferenceKind, FoldComparison, ItemName, LogReader, SliceReader, StateReader,
};
use foldlog::{Divergence, DivergenceKind, LaneName, Policy, RecordKind, SequenceNumber, Value};
use foldlog_codec::body::Lane;
use foldlog_view::text::digest_text;
use foldlog_view::visits::FirstFailure;
use serde::Serialize;
use uuid::Uuid;

use crate::failure::Result;
use crate::progress::Progress;

/// Number of rollbacks that are checked unless all are.
const SAMPLE: usize = 16;

/// Result of a replay. The fields are those of `replay --json`.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayCheckReport {
    /// Id of the session.
    pub session: Uuid,
    /// Number of records that were folded.
    pub records: u64,
    /// Number of rollbacks in the log, including ends of calls that were rolled back.
    pub rollbacks: u64,
    /// Number of rollbacks that were checked.
    pub checked: u64,
    /// Number of rollbacks that cannot be checked, since a compaction has dropped the slices'
    /// contents there.
    pub compacted: u64,
    /// Number of items that the checks read.
    #[serde(skip)]
    pub compared: u64,
    /// Number of segments whose seals were checked.
    pub seals: u64,
    /// Whether a fork's shared part was compared with its parent.
    pub lineage: bool,
    /// Digest of all slices at the end, in hexadecimal.
    pub digest: String,
    /// First difference: `recorded` is the log's value, `produced` the fold's. `None` if there is
    /// none.
    pub difference: Option<Divergence>,
}

/// A difference between a log's value and its fold's.
struct Unlike {
    /// Sequence number of the record after which the values differ.
    sequence: SequenceNumber,
    slice: String,
    /// Path of the value within the slice.
    path: String,
    /// The log's value; `None` if there is none.
    recorded: Option<Value>,
    /// The fold's value; `None` if there is none.
    produced: Option<Value>,
}

impl Unlike {
    /// Returns the difference in the form that every replay reports.
    fn divergence(self, reader: &LogReader) -> Result<Divergence> {
        let Unlike { sequence, slice, path, recorded, produced } = self;
        let (mut lane, mut name) = (LaneName::default(), String::new());
        let names = reader.names();
        reader.records(sequence, sequence, |record| {
            lane = Lane::decode(record.kind, record.body).unwrap_or_default().into();
            let value = record.to_value(&names).unwrap_or_default();
            let of = ["event", "operation"].iter().find_map(|field| value.get(field)?.as_str());
            name = match of.filter(|_| record.kind == RecordKind::Dispatch) {
                Some(of) => format!("{} {of}", record.kind),
                None => record.kind.to_string(),
            };
            Ok(())
        })?;
        Ok(Divergence {
            sequence,
            lane,
            divergence: DivergenceKind::Changed,
            record: name,
            other: None,
            slice: Some(slice),
            path: format!("$.{path}"),
            recorded,
            produced,
            note: None,
        })
    }
}

/// Folds a log, and checks 16 of its rollbacks, or all of them if `thorough`. Does not check
/// lineage.
///
/// # Errors
///
/// [`Error::Engine`](foldlog_view::Error::Engine) if the log is corrupt, contradicts itself,
/// or cannot be read.
pub fn replay(reader: &LogReader, thorough: bool, mut progress: Progress) -> Result<ReplayCheckReport> {
    let rollbacks: BTreeMap<SequenceNumber, SequenceNumber> =
        reader.rollbacks().filter(|(at, to)| reader.is_known(*at) && reader.is_known(*to)).collect();
    let all = reader.rollbacks().count() as u64;
    let chosen = if thorough { rollbacks.keys().copied().collect() } else { sample(&rollbacks) };
    // The state is taken after each chosen rollback and after the record before it.
    let mut checks = Checks {
        rollbacks: &rollbacks,
        last: None,
        along: reader.walk_paths().expecting(chosen.iter().filter_map(|at| rollbacks.get(at)).copied()),
        comparison: FoldComparison::default(),
        whole: 0,
    };
    let (mut next, mut difference) = (SequenceNumber::MIN, None);
    let mut failure = FirstFailure::default();
    let end = reader.fold(|record, state| {
        let sequence = record.sequence;
        if sequence != next {
            let reason = format!("the next record should be {next}");
            return Err(foldlog::Error::Inconsistent { sequence, reason });
        }
        next += 1;
        progress.at(next.get());
        if difference.is_none() && (chosen.contains(&sequence) || chosen.contains(&next)) {
            difference = failure.note(checks.at(sequence, state()))?;
        }
        Ok(())
    });
    let end = failure.end(end)?;
    // Opening the log folded the same records, so its result must be equal.
    if difference.is_none() {
        difference = first_unlike(next.saturating_sub(1), &reader.state_reader()?, &end, |_| true)?;
    }
    Ok(ReplayCheckReport {
        session: reader.opening_record().session,
        records: next.get(),
        rollbacks: all,
        checked: chosen.len() as u64,
        compacted: all - rollbacks.len() as u64,
        compared: checks.whole + checks.comparison.items(),
        seals: reader.check_seals()?,
        lineage: false,
        digest: digest_text(&end.digest()?),
        difference: difference.map(|unlike| unlike.divergence(reader)).transpose()?,
    })
}

/// Selects at most [`SAMPLE`] rollbacks, spread evenly, including the first and the last.
fn sample(rollbacks: &BTreeMap<SequenceNumber, SequenceNumber>) -> BTreeSet<SequenceNumber> {
    let last = rollbacks.len().saturating_sub(1);
    let places: BTreeSet<usize> = (0..SAMPLE).map(|place| place * last / (SAMPLE - 1)).collect();
    rollbacks.keys().enumerate().filter(|(place, _)| places.contains(place)).map(|(_, at)| *at).collect()
}

/// Checks rollbacks one after the other. Each check reads the changes since the previous one; it
/// reads whole slices only to report a difference.
struct Checks<'a> {
    rollbacks: &'a BTreeMap<SequenceNumber, SequenceNumber>,
    /// Slices at the last check.
    last: Option<StateReader>,
    /// Folds STATE along the path to each target, usually from the last target on.
    along: AlongPath<'a>,
    comparison: FoldComparison,
    /// Number of items read, except those that `comparison` counts.
    whole: u64,
}

impl Checks<'_> {
    fn at(&mut self, sequence: SequenceNumber, state: StateReader) -> Result<Option<Unlike>> {
        if let Some(to) = self.rollbacks.get(&sequence).copied() {
            let along = self.along.state_reader(to)?;
            if !self.comparison.is_same(&along, &state) {
                self.whole += items_len(&state);
                let found = first_unlike(sequence, &along, &state, |policy| policy == Policy::State)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        let found = match &self.last {
            Some(last) if !self.comparison.logs_grew(last, &state) => {
                self.whole += items_len(&state);
                log_grows(sequence, last, &state)?
            }
            _ => None,
        };
        self.last = Some(state);
        Ok(found)
    }
}

fn items_len(state: &StateReader) -> u64 {
    state.slices().map(|slice| slice.len() as u64).sum()
}

/// Returns the first item of a LOG slice that differs from the item in `before`.
fn log_grows(sequence: SequenceNumber, before: &StateReader, state: &StateReader) -> Result<Option<Unlike>> {
    for before in before.slices().filter(|slice| slice.policy() == Policy::Log) {
        let after = state.slice(before.name());
        let mut names = after.iter().flat_map(SliceReader::names);
        let unlike = before.names().enumerate().map(|(place, name)| (place, name, names.next()));
        let Some((place, name, found)) =
            unlike.into_iter().find(|(_, name, found)| found.as_ref() != Some(name))
        else {
            continue;
        };
        let found = after.zip(found).map(|(after, name)| value(&after, name)).transpose()?;
        return Ok(Some(Unlike {
            sequence,
            slice: before.name().to_owned(),
            path: format!("items[{place}]"),
            recorded: Some(value(&before, name)?),
            produced: found,
        }));
    }
    Ok(None)
}

/// Reads and decodes one item of a slice.
fn value(slice: &SliceReader<'_>, name: ItemName) -> Result<Value> {
    let mut value = Value::Nil;
    slice.read_these(std::iter::once(name), |name, bytes| {
        value = Value::decode(bytes).map_err(|error| foldlog::Error::Decode {
            name: slice.name().to_owned(),
            sequence: name.sequence,
            reason: error.to_string(),
        })?;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(value)
}

/// Returns the first difference of two folds of one log, in the slices whose policy passes
/// `wanted`. Items of one log with equal names are equal, so contents are read only if names
/// differ.
fn first_unlike(
    sequence: SequenceNumber,
    expected: &StateReader,
    found: &StateReader,
    wanted: impl Fn(Policy) -> bool,
) -> Result<Option<Unlike>> {
    let is_unlike = |slice: &SliceReader<'_>, other: &StateReader| {
        wanted(slice.policy())
            && match other.slice(slice.name()) {
                Some(other) => slice.len() != other.len() || !slice.names().eq(other.names()),
                None => !slice.is_empty(),
            }
    };
    let unlike = expected.slices().any(|slice| is_unlike(&slice, found))
        || found.slices().any(|slice| is_unlike(&slice, expected));
    if !unlike {
        return Ok(None);
    }
    let mut first = None;
    expected.slice_differences(found, wanted, &mut |difference| {
        first = Some(Unlike {
            sequence,
            slice: difference.slice.unwrap_or_default(),
            path: difference.path,
            recorded: (difference.change != DifferenceKind::Added).then_some(difference.before),
            produced: (difference.change != DifferenceKind::Removed).then_some(difference.after),
        });
        // The first one is enough.
        Ok(ControlFlow::Break(()))
    })?;
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_from_the_first_rollback_to_the_last() {
        let rollbacks = |count: u64| (0..count).map(|at| ((10 * at + 5).into(), at.into())).collect();
        assert!(sample(&rollbacks(0)).is_empty());
        assert_eq!(sample(&rollbacks(1)).len(), 1);
        assert_eq!(sample(&rollbacks(16)).len(), 16);
        let chosen = sample(&rollbacks(1000));
        assert_eq!(chosen.len(), 16);
        assert_eq!((chosen.first(), chosen.last()), (Some(&5.into()), Some(&9995.into())));
    }
}
