//! What the log says of operations: facts that are recorded for recovery, and begins, ends and settlements
//! read back.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldlog_codec::body::{
    self, CallOrigin, Cause, ExternalEffects, Observed, Outcome, Payload, ResourceSnapshot, Settle,
    Suspension, ToolBegin, ToolEnd,
};
use foldlog_codec::msgpack::{self, Value};
use foldlog_codec::{OperationId, Record, RecordKind, SequenceNumber};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Session;
use super::log_view::LogView;
use super::settle::{RecordedSettlement, Settlement};
use crate::error::{Error, Result};
use crate::fold::conversation_reading;
use crate::fold::log_source::LogSource;
use crate::log::objects::Objects;
use crate::operation::{
    CHILD_SESSION, ChildAnnounced, NotUndone, PutBack, ROLLBACK, ReplacedContent, RollbackBegun,
};
use crate::options::Durability;
use crate::types::{ToolInvocations, ToolInvoked, encode};

/// Number of latest calls that are searched for a capture of a resource. Calls that only read record none.
const LATEST_CALLS: usize = 64;

/// Captures in their recorded form, by the resources' names; `None` for one that does not outlive its process.
pub(crate) type RecordedCaptures = BTreeMap<String, Option<Vec<u8>>>;

/// Holds what the record of a begin says that is needed to run the tool again.
pub(crate) struct BeginRead {
    /// One MessagePack string.
    pub(crate) arguments: Vec<u8>,
    pub(crate) origin: Option<CallOrigin>,
    pub(crate) resources: RecordedCaptures,
    /// Why the call was closed without running, and the text that the model reads, as one MessagePack string.
    pub(crate) closed: Option<(Cause, Vec<u8>)>,
}

/// Holds what the record of an end says, its payloads resolved.
pub(crate) struct EndRead {
    pub(crate) outcome: Outcome,
    pub(crate) cause: Option<Cause>,
    pub(crate) outside: ExternalEffects,
    pub(crate) elapsed_us: u64,
    pub(crate) value: Option<Value>,
    pub(crate) message: String,
    pub(crate) overrides: Option<serde_json::Value>,
    pub(crate) suspension: Option<Suspension>,
    pub(crate) put_back: PutBack,
}

/// Returns what an end says of the result, and the text that the model saw.
fn decode_result(
    end: SequenceNumber,
    body: &ToolEnd<'_>,
    source: &LogSource,
) -> Result<(Option<Value>, String)> {
    let value =
        |payload: Payload<'_>| Value::decode(&source.objects.resolve(payload)?).map_err(Error::unread(end));
    let shown = body.shown.map(value).transpose()?;
    let shown = shown.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok((body.result.map(value).transpose()?, shown))
}

/// Returns the captures that a record names, whatever its kind: that of a call's begin or end, of a rollback, or of a snapshot.
pub(crate) fn captures_named_by(record: &Record<'_>, objects: &Objects) -> Result<RecordedCaptures> {
    let bad = Error::unread(record.sequence);
    let resources = match record.kind {
        RecordKind::TOOL_BEGIN => ToolBegin::decode(record.body).map_err(bad)?.resources,
        RecordKind::TOOL_END => ToolEnd::decode(record.body).map_err(bad)?.resources,
        RecordKind::SNAPSHOT => body::SnapshotBody::decode(record.body).map_err(bad)?.resources,
        RecordKind::OBSERVED => {
            let observed = Observed::decode(record.body).map_err(bad)?;
            let begun = RollbackBegun::read(&observed, objects);
            return Ok(begun.map(RollbackBegun::into_recorded).unwrap_or_default());
        }
        _ => return Ok(RecordedCaptures::new()),
    };
    captures_of(resources, objects)
}

/// Returns captures in their recorded form, by the resources' names.
pub(super) fn captures_of(
    resources: Vec<ResourceSnapshot<'_>>,
    objects: &Objects,
) -> Result<RecordedCaptures> {
    let captures = resources.into_iter().map(|ResourceSnapshot { resource, snapshot }| {
        let snapshot = snapshot.map(|snapshot| objects.resolve(snapshot).map(Cow::into_owned));
        Ok((resource.into_owned(), snapshot.transpose()?))
    });
    captures.collect()
}

impl Session {
    /// Records a fact for recovery.
    pub(crate) fn record_fact<T: Serialize>(&self, name: &'static str, data: &T) -> Result<SequenceNumber> {
        let data = encode(name, data)?;
        self.write_observation(name, &data)
    }

    /// Records, through the handle of the operation that a child session works for, that the child is about to be created
    /// or to work. The record survives what the child's own records survive.
    pub(crate) fn announce_child(&self, child: &ChildAnnounced) -> Result<()> {
        self.record_fact(CHILD_SESSION, child)?;
        if self.durability() == Durability::Process { Ok(()) } else { self.sync() }
    }

    /// Records what the resources are before a rollback. The record survives what the rollback survives. Where there is no space for
    /// it, the rollback is carried out without.
    pub(crate) fn record_rollback(&self, begun: &RollbackBegun) -> Result<()> {
        let recorded = self.observe_interrupted(ROLLBACK, &encode(ROLLBACK, begun)?);
        let durable = match recorded {
            Ok(_) if self.durability() != Durability::Process => self.sync(),
            recorded => recorded.map(drop),
        };
        match durable {
            Err(Error::Full { .. }) => Ok(()),
            durable => durable,
        }
    }

    /// Returns what the resources were when the first rollback of the call began that began with the record `begin`, of those up to the
    /// record `through`; empty if there was none.
    pub(crate) fn captures_before_rollback(
        &self,
        begin: SequenceNumber,
        through: SequenceNumber,
    ) -> Result<RecordedCaptures> {
        let begun: Vec<RollbackBegun> = self.observed_within(ROLLBACK, begin, through)?;
        let first = begun.into_iter().find(|begun| begun.begin == begin);
        Ok(first.map(RollbackBegun::into_recorded).unwrap_or_default())
    }

    /// Returns the facts named `name` that were recorded from record `from` on.
    pub(crate) fn observed_from<T: DeserializeOwned>(
        &self,
        name: &'static str,
        from: SequenceNumber,
    ) -> Result<Vec<T>> {
        self.observed_within(name, from, SequenceNumber::MAX)
    }

    /// Returns the facts named `name` that were recorded from record `from` through record `through`.
    pub(crate) fn observed_within<T: DeserializeOwned>(
        &self,
        name: &'static str,
        from: SequenceNumber,
        through: SequenceNumber,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        self.visit_observed(name, from, through, &mut |_, value| {
            found.push(value);
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns what a recovery restores: the captures of the first open operation that may have changed
    /// something, by the names of the resources, as the resources recorded them. A capture is `None` if it
    /// did not outlive its process. The map is empty if no operation is open that another process, or an end
    /// that could not be written, left.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the log cannot be read, [`Error::Object`](crate::Error::Object) if
    /// an object is missing or damaged.
    pub fn open_captures(&self) -> Result<BTreeMap<String, Option<Vec<u8>>>> {
        let first = self.left_open().into_iter().find(|open| !open.reads_only);
        first.map_or_else(|| Ok(BTreeMap::new()), |open| self.read_begin(open.begin, |begin| begin.resources))
    }

    /// Returns the captures, by the names of the resources, in records of an earlier process that this
    /// process's first append makes durable.
    pub(crate) fn unattested_captures(&self) -> Result<BTreeMap<String, Vec<Vec<u8>>>> {
        let (source, from) = {
            let state = self.inner.state.lock();
            (self.inner.log_source(&state), state.log.unattested_from())
        };
        let mut found = BTreeMap::<String, Vec<Vec<u8>>>::new();
        let Some(from) = from else { return Ok(found) };
        source.places.read(&source.storage, from, SequenceNumber::MAX, &mut |record| {
            for (resource, recorded) in captures_named_by(&record, &source.objects)? {
                found.entry(resource).or_default().extend(recorded);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Hands the begin of an operation to `read`, its payloads resolved.
    pub(crate) fn read_begin<T>(
        &self,
        begin: SequenceNumber,
        read: impl FnOnce(BeginRead) -> T,
    ) -> Result<T> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let mut found = None;
        source.places.read(&source.storage, begin, begin, &mut |record| {
            let bad = Error::unread(begin);
            let body = ToolBegin::decode(record.body).map_err(bad)?;
            let resources = captures_of(body.resources, &source.objects)?;
            let arguments = source.objects.resolve(body.arguments)?.into_owned();
            let closed = match body.closed {
                Some(closed) => Some((closed.cause, source.objects.resolve(closed.shown)?.into_owned())),
                None => None,
            };
            found = Some(BeginRead { arguments, origin: body.origin, resources, closed });
            Ok(())
        })?;
        let missing =
            Error::NoSuchOperation { operation: begin.into(), reason: "the log does not hold its begin" };
        found.map(read).ok_or(missing)
    }

    /// Returns the last known capture of a resource: that of the end of a committed call, or, unless only `committed` calls count, that
    /// of the begin of another.
    pub(crate) fn last_captured(&self, resource: &str, committed: bool) -> Result<Option<Vec<u8>>> {
        let latest = self.log::<ToolInvocations>()?.tail(LATEST_CALLS)?;
        for item in latest.iter().rev() {
            let mut resources = match item.position() {
                Some((end, _)) if item.outcome == Outcome::Committed => self.read_end_resources(end)?,
                _ if committed => continue,
                _ => self.read_begin(item.begin, |begin| begin.resources)?,
            };
            if let Some(Some(recorded)) = resources.remove(resource) {
                return Ok(Some(recorded));
            }
        }
        Ok(None)
    }

    /// Returns the captures that the latest call of this session left, of those that recorded any, and those of what a recovery of that call
    /// found, which are empty unless there was one. `None` if none of the latest 65 calls recorded any. Says too whether that call is this
    /// session's own: a fork works on resources of its own.
    pub(crate) fn captures_of_last_call(&self) -> Result<Option<(RecordedCaptures, RecordedCaptures, bool)>> {
        let own_from = self.opened_sequence();
        let calls = self.log::<ToolInvocations>()?;
        // Nearly always the latest call has some: the others are read only where it does not.
        let (mut end, mut count) = (calls.len(), 1);
        for _ in 0..2 {
            let from = end.saturating_sub(count);
            let items: Vec<_> = calls.between(from, end).collect::<Result<_>>()?;
            for item in items.iter().rev() {
                let at_end = match item.position() {
                    Some((end, _)) => self.read_end_resources(end)?,
                    None => RecordedCaptures::new(),
                };
                let (left, found) = match item.outcome {
                    Outcome::Committed => (at_end, RecordedCaptures::new()),
                    _ => (self.read_begin(item.begin, |begin| begin.resources)?, at_end),
                };
                if !left.is_empty() {
                    return Ok(Some((left, found, item.begin >= own_from)));
                }
            }
            (end, count) = (from, LATEST_CALLS as u64);
        }
        Ok(None)
    }

    /// Returns the captures of all resources that a recovery of the session leaves: those of the begin of the first
    /// open call that may have changed something, or else those that the latest call left, at its end if it is
    /// committed and at its begin otherwise. Empty if no call has recorded any; in the replay of a fork, if none of its own has.
    pub(crate) fn captures_left(&self) -> Result<RecordedCaptures> {
        if let Some(open) = self.changing_operation() {
            return self.read_begin(open.begin, |begin| begin.resources);
        }
        // A fork works on resources of its own, so that what its parent captured says nothing of them.
        let first = if self.replays() { self.opened_sequence() } else { SequenceNumber::MIN };
        let calls = self.log::<ToolInvocations>()?;
        // Nearly always the latest call has some: the others are read only where it does not.
        let (mut end, mut count) = (calls.len(), 1);
        while end > 0 {
            let from = end.saturating_sub(count);
            let items: Vec<_> = calls.between(from, end).collect::<Result<_>>()?;
            for item in items.iter().rev() {
                if item.begin < first {
                    return Ok(BTreeMap::new());
                }
                let resources = match item.position() {
                    Some((end, _)) if item.outcome == Outcome::Committed => self.read_end_resources(end)?,
                    _ => self.read_begin(item.begin, |begin| begin.resources)?,
                };
                if !resources.is_empty() {
                    return Ok(resources);
                }
            }
            (end, count) = (from, LATEST_CALLS as u64);
        }
        Ok(BTreeMap::new())
    }

    /// Returns the sequence number of the session's own `Opened` record.
    fn opened_sequence(&self) -> SequenceNumber {
        self.inner.state.lock().openings.last().map_or(SequenceNumber::MIN, |(sequence, _)| *sequence)
    }

    /// Hands the end of an operation to `read`, with the source of its payloads.
    fn read_tool_end<T>(
        &self,
        end: SequenceNumber,
        read: impl Fn(ToolEnd<'_>, &LogSource) -> Result<T>,
    ) -> Result<T> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let mut found = None;
        source.places.read(&source.storage, end, end, &mut |record| {
            found = Some(read(ToolEnd::decode(record.body).map_err(Error::unread(end))?, &source)?);
            Ok(())
        })?;
        let missing =
            Error::NoSuchOperation { operation: end.into(), reason: "the log does not hold its end" };
        found.ok_or(missing)
    }

    /// Returns the captures that the record of an end names.
    pub(crate) fn captures_at_end_of(&self, end: SequenceNumber) -> Result<RecordedCaptures> {
        self.read_end_resources(end)
    }

    /// Returns the captures that the record of an end names; none if what the call changed was rolled back.
    pub(crate) fn captures_kept_at(&self, end: SequenceNumber) -> Result<RecordedCaptures> {
        self.read_tool_end(end, |body, source| match body.rolls_back {
            true => Ok(RecordedCaptures::new()),
            false => captures_of(body.resources, &source.objects),
        })
    }

    /// Returns what the rollback of a call replaced or removed in resources, from the record of its end.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperation`](crate::Error::NoSuchOperation) if `end` is not the end of a call, [`Error::Io`](crate::Error::Io)
    /// if the log cannot be read.
    pub fn replaced_by(&self, end: SequenceNumber) -> Result<Vec<ReplacedContent>> {
        self.read_tool_end(end, |body, _| Ok(body.replaced.iter().map(ReplacedContent::from).collect()))
    }

    /// Returns whether the rollback of a call replaced something of which its record names a capture, so that it can be undone.
    ///
    /// # Errors
    ///
    /// Those of [`replaced_by`](Session::replaced_by).
    pub fn has_captured_rollback(&self, end: SequenceNumber) -> Result<bool> {
        Ok(!self.captures_replaced_at(end)?.is_empty())
    }

    /// Returns the captures that a call's rollback found, of which the record of its end says that something was replaced.
    pub(crate) fn captures_replaced_at(&self, end: SequenceNumber) -> Result<RecordedCaptures> {
        self.read_tool_end(end, |body, source| {
            let mut captures = captures_of(body.resources, &source.objects)?;
            captures.retain(|name, recorded| {
                recorded.is_some() && body.replaced.iter().any(|replaced| replaced.resource == *name)
            });
            Ok(captures)
        })
    }

    /// Returns the captures in the record of a call's end.
    pub(crate) fn read_end_resources(&self, end: SequenceNumber) -> Result<RecordedCaptures> {
        self.read_tool_end(end, |body, source| captures_of(body.resources, &source.objects))
    }

    /// Returns the result of a call and the text that the model saw, from the record of its end.
    ///
    /// # Errors
    ///
    /// Those of [`replaced_by`](Session::replaced_by).
    pub fn result_at(&self, end: SequenceNumber) -> Result<(Option<Value>, String)> {
        self.read_tool_end(end, |body, source| decode_result(end, &body, source))
    }

    /// Returns all that the record of an end says but for the captures.
    pub(crate) fn read_whole_end(&self, end: SequenceNumber) -> Result<EndRead> {
        self.read_tool_end(end, |body, source| {
            let (value, message) = decode_result(end, &body, source)?;
            let overrides = body.overrides.map(|payload| {
                msgpack::from_slice(&source.objects.resolve(payload)?).map_err(Error::unread(end))
            });
            Ok(EndRead {
                outcome: body.outcome,
                cause: body.cause,
                outside: body.outside,
                elapsed_us: body.elapsed_us,
                value,
                message,
                overrides: overrides.transpose()?,
                suspension: body.suspension,
                put_back: PutBack {
                    not_undone: body.not_undone.iter().map(NotUndone::of_record).collect(),
                    replaced: body.replaced.iter().map(ReplacedContent::from).collect(),
                },
            })
        })
    }

    /// Returns the last run of the call of an origin that has ended and counts, and the record of its end. A run that was
    /// interrupted counts whatever was rolled back since, any other one if its end is live now.
    pub(crate) fn last_ended(&self, origin: CallOrigin) -> Result<Option<(SequenceNumber, ToolInvoked)>> {
        let ended = {
            let mut state = self.inner.state.lock();
            let position = state.last_position();
            if state.live.projection.conversations.entry(origin.answer).is_none() {
                let log = self.inner.log::<ToolInvocations>(&mut state)?;
                drop(state);
                let is_live = |end| self.inner.state.lock().live.path.is_live(end, position);
                return last_ended_in(&log, origin, is_live);
            }
            let live = state.live.path.down_from(position);
            state.live.projection.conversations.last_end(origin, live)
        };
        ended
            .map(|end| self.read_tool_end(end, |body, _| Ok((end, ToolInvoked::from_end(&body)))))
            .transpose()
    }

    /// Returns the last decision about an operation behind the record `from`, at which it began, began to wait, or was decided
    /// about, and before it runs again. A decision at `from` counts.
    pub(crate) fn read_settlement(
        &self,
        operation: OperationId,
        from: SequenceNumber,
    ) -> Result<Option<RecordedSettlement>> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let (mut found, mut ran_again) = (None, false);
        source.places.read(&source.storage, from, SequenceNumber::MAX, &mut |record| {
            let bad = Error::unread(record.sequence);
            // The record at which its last run began is the begin of a run again itself, where it had run before.
            if record.kind == RecordKind::TOOL_BEGIN && record.sequence != from && !ran_again {
                ran_again = ToolBegin::decode(record.body).map_err(bad)?.again == Some(operation);
            }
            if record.kind != RecordKind::SETTLE || ran_again {
                return Ok(());
            }
            let settle = Settle::decode(record.body).map_err(bad)?;
            if settle.operation == operation {
                let value =
                    |payload: Payload<'_>| Value::decode(&source.objects.resolve(payload)?).map_err(bad);
                let settlement = Settlement::of_record(&settle, value)?;
                found = Some(RecordedSettlement {
                    sequence: record.sequence,
                    settlement,
                    by: settle.by,
                    reason: settle.reason,
                });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the last approval of an operation that counts in this session and has not expired, whatever the operation
    /// did since: it holds for each run that follows from it.
    pub(crate) fn read_approval(&self, operation: OperationId) -> Result<Option<RecordedSettlement>> {
        let (source, opened, now_us) = {
            let state = self.inner.state.lock();
            let opened = state.openings.last().map_or(SequenceNumber::MIN, |(sequence, _)| *sequence);
            (self.inner.log_source(&state), opened, self.inner.judged_us(&state))
        };
        let from = operation.sequence().max(opened);
        let mut found = None;
        source.places.read(&source.storage, from, SequenceNumber::MAX, &mut |record| {
            if record.kind != RecordKind::SETTLE {
                return Ok(());
            }
            let sequence = record.sequence;
            let settle = Settle::decode(record.body).map_err(Error::unread(sequence))?;
            if let Some(arguments) = settle.arguments.filter(|_| settle.operation == operation) {
                let until = settle.until_us.map(conversation_reading::time);
                let settlement = Settlement { until, ..Settlement::approved(arguments) };
                let (by, reason) = (settle.by, settle.reason);
                found = Some((settle.until_us, RecordedSettlement { sequence, settlement, by, reason }));
            }
            Ok(())
        })?;
        let counts = |until_us: Option<i64>| until_us.is_none_or(|until_us| until_us > now_us);
        Ok(found.filter(|(until_us, _)| counts(*until_us)).map(|(_, approval)| approval))
    }
}

/// Looks for the last run of the call of an origin that has ended and counts, where the answer is no record of a conversation.
fn last_ended_in(
    log: &LogView<ToolInvoked>,
    origin: CallOrigin,
    is_live: impl Fn(SequenceNumber) -> bool,
) -> Result<Option<(SequenceNumber, ToolInvoked)>> {
    let mut last = None;
    // No call ends before the answer that asked for it.
    for item in log.items_after(origin.answer) {
        let item = item?;
        let end = item.position().map_or(SequenceNumber::MIN, |(end, _)| end);
        let is_own = item.origin == Some(origin) && item.undoes.is_none() && item.verifies.is_none();
        if is_own && (item.outcome == Outcome::Interrupted || is_live(end)) {
            last = Some((end, ToolInvoked::clone(&item)));
        }
    }
    Ok(last)
}
