//! Reads operations from the log: facts recorded for recovery, start records, end records and
//! settlements.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldlog_codec::body::{
    CallOrigin, Cause, Lane, Observed, Outcome, Payload, ResourceSnapshot, Settle, Suspension, ToolBegin,
    ToolEnd,
};
use foldlog_codec::msgpack::{self, Value};
use foldlog_codec::{OperationId, Record, RecordKind, SequenceNumber};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::SessionCalls;
use super::log_view::LogView;
use super::settle::{RecordedSettlement, Settlement};
use crate::error::{Error, Result};
use crate::fold::log_source::LogSource;
use crate::fold::record_kinds::RecordRules;
use crate::log::objects::Objects;
use crate::operation::{
    CHILD_SESSION, ChildAnnounced, NotUndone, PutBack, ROLLBACK, ReplacedContent, RollbackBegun,
};
use crate::options::Durability;
use crate::types::{Item, ToolInvocations, ToolInvoked, encode};

/// Number of latest calls that are searched for a capture of a resource. Calls that only read
/// record none.
const LATEST_CALLS: usize = 64;

/// Captures in their recorded form, by the names of the resources; `None` for one that does not
/// outlive its process.
pub(crate) type RecordedCaptures = BTreeMap<String, Option<Vec<u8>>>;

/// The parts of a start record that are needed to run the tool again.
pub(crate) struct BeginRead {
    /// One MessagePack string.
    pub(crate) arguments: Vec<u8>,
    pub(crate) origin: Option<CallOrigin>,
    pub(crate) resources: RecordedCaptures,
    /// Cause for closing the call without running it, and the text for the model, as one
    /// MessagePack string.
    pub(crate) closed: Option<(Cause, Vec<u8>)>,
}

/// Contents of an end record, with resolved payloads.
pub(crate) struct EndRead {
    pub(crate) invoked: ToolInvoked,
    pub(crate) value: Option<Value>,
    pub(crate) message: String,
    pub(crate) overrides: Option<serde_json::Value>,
    pub(crate) suspension: Option<Suspension>,
    pub(crate) put_back: PutBack,
}

/// Returns the result in an end record, and the text that the model saw.
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

/// Returns the captures that a record of any kind names: the start or end of a call, a rollback, or
/// a snapshot.
pub(crate) fn captures_named_by(record: &Record<'_>, objects: &Objects) -> Result<RecordedCaptures> {
    let bad = Error::unread(record.sequence);
    if record.kind == RecordKind::Observed {
        let observed = Observed::decode(record.body).map_err(bad)?;
        let begun = RollbackBegun::read(&observed, objects);
        return Ok(begun.map(RollbackBegun::into_recorded).unwrap_or_default());
    }
    match RecordRules::of(record.kind).captures {
        Some(captures) => captures_of(captures(record.body).map_err(bad)?, objects),
        None => Ok(RecordedCaptures::new()),
    }
}

/// Returns captures in their recorded form, by the names of the resources.
pub(crate) fn captures_of(
    resources: Vec<ResourceSnapshot<'_>>,
    objects: &Objects,
) -> Result<RecordedCaptures> {
    let captures = resources.into_iter().map(|ResourceSnapshot { resource, snapshot }| {
        let snapshot = snapshot.map(|snapshot| objects.resolve(snapshot).map(Cow::into_owned));
        Ok((resource.into_owned(), snapshot.transpose()?))
    });
    captures.collect()
}

impl SessionCalls<'_> {
    /// Records a fact for recovery.
    pub(crate) fn record_fact<T: Serialize>(&self, name: &'static str, data: &T) -> Result<SequenceNumber> {
        let data = encode(name, data)?;
        self.session.inputs().write_observation(name, &data)
    }

    /// Records that a child session is about to be created or to work, through the handle of its
    /// operation. The record is at least as durable as the child's records.
    pub(crate) fn announce_child(&self, child: &ChildAnnounced) -> Result<()> {
        self.record_fact(CHILD_SESSION, child)?;
        if self.session.log().durability() == Durability::Process { Ok(()) } else { self.session.sync() }
    }

    /// Records the state of the resources before a rollback. The record is at least as durable as
    /// the rollback. If there is no space for it, the rollback takes place without.
    pub(crate) fn record_rollback(&self, begun: &RollbackBegun) -> Result<()> {
        let (inner, data) = (&self.session.inner, encode(ROLLBACK, begun)?);
        let state = inner.settleable()?;
        let recorded = inner.write_observed(state, inner.now_us(), ROLLBACK, &data, &Lane::default());
        let durable = match recorded {
            Ok(_) if self.session.log().durability() != Durability::Process => self.session.sync(),
            recorded => recorded.map(drop),
        };
        match durable {
            Err(Error::Full { .. }) => Ok(()),
            durable => durable,
        }
    }

    /// Returns the state of the resources before the first rollback of the call with the start
    /// record `begin`, from records through `through`; empty if there was none.
    pub(crate) fn captures_before_rollback(
        &self,
        begin: SequenceNumber,
        through: SequenceNumber,
    ) -> Result<RecordedCaptures> {
        let begun: Vec<RollbackBegun> = self.observed_within(ROLLBACK, begin, through)?;
        let first = begun.into_iter().find(|begun| begun.begin == begin);
        Ok(first.map(RollbackBegun::into_recorded).unwrap_or_default())
    }

    /// Returns the facts named `name` that were recorded from record `from` through record
    /// `through`.
    pub(crate) fn observed_within<T: DeserializeOwned>(
        &self,
        name: &'static str,
        from: SequenceNumber,
        through: SequenceNumber,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        self.session.inputs().visit_observed(name, from, through, &mut |_, value| {
            found.push(value);
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the captures that a recovery restores, of the first open operation that may have
    /// made changes, by the names of the resources, in their recorded form.
    ///
    /// A capture is `None` if it was lost with its process. The map is empty if no such operation
    /// was left open, by another process or by a failed write of an end record.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the log cannot be read,
    /// [`Error::Object`](crate::Error::Object) if an object is missing or damaged.
    pub fn open_captures(&self) -> Result<BTreeMap<String, Option<Vec<u8>>>> {
        let first = self.left_open().into_iter().find(|open| !open.reads_only);
        first.map_or_else(|| Ok(BTreeMap::new()), |open| Ok(self.read_begin(open.begin)?.resources))
    }

    /// Returns the captures in records of an earlier process that this process's first append makes
    /// durable, by the names of the resources.
    pub(crate) fn unattested_captures(&self) -> Result<BTreeMap<String, Vec<Vec<u8>>>> {
        let (source, from) = {
            let state = self.session.inner.state.lock();
            (self.session.inner.log_source(&state), state.log.unattested_from())
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

    /// Reads the start record of an operation, with resolved payloads.
    pub(crate) fn read_begin(&self, begin: SequenceNumber) -> Result<BeginRead> {
        let found = self.session.read_record(begin, |record, source| {
            let body = ToolBegin::decode(record.body).map_err(Error::unread(begin))?;
            let resources = captures_of(body.resources, &source.objects)?;
            let arguments = source.objects.resolve(body.arguments)?.into_owned();
            let closed = match body.closed {
                Some(closed) => Some((closed.cause, source.objects.resolve(closed.shown)?.into_owned())),
                None => None,
            };
            Ok(BeginRead { arguments, origin: body.origin, resources, closed })
        })?;
        let reason = "the log does not contain its start record";
        found.ok_or(Error::NoSuchOperation { operation: begin.into(), reason })
    }

    /// Returns the last known capture of a resource: at the end of a committed call or, if
    /// `committed` is `false`, also at the start of any other call.
    pub(crate) fn last_captured(&self, resource: &str, committed: bool) -> Result<Option<Vec<u8>>> {
        let (mut found, mut looks_left) = (None, LATEST_CALLS);
        self.calls_back(&mut |call| {
            if !committed || call.outcome == Outcome::Committed {
                found = self.captures_after(call)?.remove(resource).flatten();
            }
            looks_left -= 1;
            Ok(found.is_none() && looks_left > 0)
        })?;
        Ok(found)
    }

    /// Returns the captures after a call: at its end if it is committed, and at its start if not.
    fn captures_after(&self, call: &Item<ToolInvoked>) -> Result<RecordedCaptures> {
        match call.position() {
            Some((end, _)) if call.outcome == Outcome::Committed => self.read_end_resources(end),
            _ => Ok(self.read_begin(call.begin)?.resources),
        }
    }

    /// Returns the captures that the latest call with captures left, the captures that a recovery
    /// of that call found (empty without a recovery), and whether that call belongs to this session
    /// rather than to a fork's parent. `None` if none of the latest 64 calls recorded any. A fork
    /// works on separate resources.
    pub(crate) fn captures_of_last_call(&self) -> Result<Option<(RecordedCaptures, RecordedCaptures, bool)>> {
        let own_from = self.opened_sequence();
        let (mut last, mut looks_left) = (None, LATEST_CALLS);
        self.calls_back(&mut |call| {
            let left = self.captures_after(call)?;
            if !left.is_empty() {
                let found = match call.position() {
                    Some((end, _)) if call.outcome != Outcome::Committed => self.read_end_resources(end)?,
                    _ => RecordedCaptures::new(),
                };
                last = Some((left, found, call.begin >= own_from));
            }
            looks_left -= 1;
            Ok(last.is_none() && looks_left > 0)
        })?;
        Ok(last)
    }

    /// Returns the captures of all resources after a recovery of the session: the captures at the
    /// start of the first open call that may have made changes. If there is none, the captures of
    /// the latest call, at its end if it is committed, and at its start if not. Empty if no call
    /// has recorded any.
    pub(crate) fn captures_left(&self) -> Result<RecordedCaptures> {
        self.captures_left_since(SequenceNumber::MIN)
    }

    /// Returns the same captures, without those by calls of the session's parent: a fork works on
    /// separate resources.
    pub(crate) fn own_captures_left(&self) -> Result<RecordedCaptures> {
        self.captures_left_since(self.opened_sequence())
    }

    fn captures_left_since(&self, first: SequenceNumber) -> Result<RecordedCaptures> {
        if let Some(open) = self.changing_operation() {
            return Ok(self.read_begin(open.begin)?.resources);
        }
        let mut left = RecordedCaptures::new();
        self.calls_back(&mut |call| {
            if call.begin < first {
                return Ok(false);
            }
            left = self.captures_after(call)?;
            Ok(left.is_empty())
        })?;
        Ok(left)
    }

    /// Returns the sequence number of the `Opened` record of this session, not of an ancestor.
    fn opened_sequence(&self) -> SequenceNumber {
        self.session.inner.state.lock().opened_sequence()
    }

    /// Passes the end record of an operation to `read`, with the source of its payloads.
    fn read_tool_end<T>(
        &self,
        end: SequenceNumber,
        read: impl Fn(ToolEnd<'_>, &LogSource) -> Result<T>,
    ) -> Result<T> {
        let found = self.session.read_record(end, |record, source| {
            read(ToolEnd::decode(record.body).map_err(Error::unread(end))?, source)
        })?;
        let reason = "the log does not contain its end record";
        found.ok_or(Error::NoSuchOperation { operation: end.into(), reason })
    }

    /// Returns the captures that an end record names; none if the changes of the call were rolled
    /// back.
    pub(crate) fn captures_kept_at(&self, end: SequenceNumber) -> Result<RecordedCaptures> {
        self.read_tool_end(end, |body, source| match body.rolls_back {
            true => Ok(RecordedCaptures::new()),
            false => captures_of(body.resources, &source.objects),
        })
    }

    /// Returns the contents that the rollback of a call replaced or removed in resources, from its
    /// end record.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchOperation`](crate::Error::NoSuchOperation) if `end` is not the end of a call,
    /// [`Error::Io`](crate::Error::Io) if the log cannot be read.
    pub fn replaced_by(&self, end: SequenceNumber) -> Result<Vec<ReplacedContent>> {
        self.read_tool_end(end, |body, _| Ok(body.replaced.iter().map(ReplacedContent::from).collect()))
    }

    /// Returns whether the rollback of a call replaced contents and its record names a capture of
    /// them, so that it can be undone.
    pub fn has_captured_rollback(&self, end: SequenceNumber) -> Result<bool> {
        Ok(!self.captures_replaced_at(end)?.is_empty())
    }

    /// Returns the captures before a call's rollback of the resources in which it replaced
    /// contents, according to the end record.
    pub(crate) fn captures_replaced_at(&self, end: SequenceNumber) -> Result<RecordedCaptures> {
        self.read_tool_end(end, |body, source| {
            let mut captures = captures_of(body.resources, &source.objects)?;
            captures.retain(|name, recorded| {
                recorded.is_some() && body.replaced.iter().any(|replaced| replaced.resource == *name)
            });
            Ok(captures)
        })
    }

    pub(crate) fn read_end_resources(&self, end: SequenceNumber) -> Result<RecordedCaptures> {
        self.read_tool_end(end, |body, source| captures_of(body.resources, &source.objects))
    }

    /// Returns the result of a call and the text that the model saw, from its end record.
    pub fn result_at(&self, end: SequenceNumber) -> Result<(Option<Value>, String)> {
        self.read_tool_end(end, |body, source| decode_result(end, &body, source))
    }

    /// Returns the contents of an end record, except for the captures.
    pub(crate) fn read_whole_end(&self, end: SequenceNumber) -> Result<EndRead> {
        self.read_tool_end(end, |body, source| {
            let (value, message) = decode_result(end, &body, source)?;
            let overrides = body.overrides.map(|payload| {
                msgpack::from_slice(&source.objects.resolve(payload)?).map_err(Error::unread(end))
            });
            Ok(EndRead {
                invoked: ToolInvoked::from_end(&body),
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

    /// Returns the last ended run of the call of an origin that counts, with its end record. An
    /// interrupted run counts regardless of later rollbacks, any other one if its end is live now.
    pub(crate) fn last_ended(&self, origin: CallOrigin) -> Result<Option<(SequenceNumber, ToolInvoked)>> {
        let ended = {
            let mut state = self.session.inner.state.lock();
            let position = state.last_position();
            if state.live.projection.conversations.entry(origin.answer).is_none() {
                let log = self.session.inner.log::<ToolInvocations>(&mut state)?;
                drop(state);
                let is_live = |end| self.session.inner.state.lock().live.path.is_live(end, position);
                return last_ended_in(&log, origin, is_live);
            }
            let live = state.live.path.down_from(position);
            state.live.projection.conversations.last_end(origin, live)
        };
        ended
            .map(|end| self.read_tool_end(end, |body, _| Ok((end, ToolInvoked::from_end(&body)))))
            .transpose()
    }

    /// Returns the last decision about an operation after the record `from`, before it runs again.
    /// At `from` it started, began to wait, or was settled. A decision at `from` counts.
    pub(crate) fn read_settlement(
        &self,
        operation: OperationId,
        from: SequenceNumber,
    ) -> Result<Option<RecordedSettlement>> {
        Ok(self.settlements_of(operation, from, true)?.pop())
    }

    /// Returns the last approval of an operation that counts in this session and has not expired,
    /// regardless of later runs: it applies to each run that follows from it.
    pub(crate) fn read_approval(&self, operation: OperationId) -> Result<Option<RecordedSettlement>> {
        let now_us = self.session.inner.judged_us();
        let from = operation.sequence().max(self.opened_sequence());
        let mut settlements = self.settlements_of(operation, from, false)?.into_iter();
        let counts = |one: &RecordedSettlement| {
            one.settlement.until.is_none_or(|until| until.timestamp_micros() > now_us)
        };
        Ok(settlements.rfind(|one| one.settlement.arguments.is_some()).filter(counts))
    }

    /// Returns the decisions about an operation from the record `from` on. With `until_run_again`,
    /// returns only those before the operation runs again.
    pub(super) fn settlements_of(
        &self,
        operation: OperationId,
        from: SequenceNumber,
        until_run_again: bool,
    ) -> Result<Vec<RecordedSettlement>> {
        let (source, mut found, mut ran_again) = (self.session.log_source(), Vec::new(), false);
        source.places.read(&source.storage, from, SequenceNumber::MAX, &mut |record| {
            let (sequence, bad) = (record.sequence, Error::unread(record.sequence));
            match record.kind {
                // The record at which its last run started may itself start a repeated run.
                RecordKind::ToolBegin if until_run_again && sequence != from => {
                    ran_again |= ToolBegin::decode(record.body).map_err(bad)?.again == Some(operation);
                }
                RecordKind::Settle if !ran_again => {
                    let settle = Settle::decode(record.body).map_err(bad)?;
                    if settle.operation == operation {
                        let settlement = Settlement::of_record(&settle, |payload| {
                            Value::decode(&source.objects.resolve(payload)?).map_err(bad)
                        })?;
                        let (by, reason) = (settle.by, settle.reason);
                        found.push(RecordedSettlement { sequence, settlement, by, reason });
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Searches for the last ended run of the call of an origin that counts, as
/// [`last_ended`](crate::SessionCalls::last_ended) does, if the answer is no record of a
/// conversation.
fn last_ended_in(
    log: &LogView<ToolInvoked>,
    origin: CallOrigin,
    is_live: impl Fn(SequenceNumber) -> bool,
) -> Result<Option<(SequenceNumber, ToolInvoked)>> {
    let mut last = None;
    // No call ends before the answer that requested it.
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
