//! What the log says of operations: facts that are recorded for whoever recovers, and begins, ends and settlements
//! read back.

use std::borrow::Cow;
use std::collections::BTreeMap;

use foldlog_codec::body::{CallOrigin, Decision, Observed, Outcome, Payload, Settle, ToolBegin, ToolEnd};
use foldlog_codec::msgpack::{self, Value};
use foldlog_codec::{Kind, OperationId, SequenceNumber};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Session;
use super::operations::Settlement;
use super::schedule::WriteScope;
use super::writing::PendingRecord;
use crate::error::{Error, Result};
use crate::fold::record_body::RecordBody;
use crate::types::{ToolInvocations, encode};

/// Calls that only read say nothing of resources; behind more than these it is no longer looked for what one says.
const LATEST_CALLS: usize = 64;

/// What a begin says that is needed to run the tool again.
pub(crate) struct BeginRead {
    /// One MessagePack string.
    pub(crate) arguments: Vec<u8>,
    pub(crate) origin: Option<CallOrigin>,
    pub(crate) resources: BTreeMap<String, Option<Vec<u8>>>,
}

impl Session {
    /// Records a fact for whoever recovers the session.
    pub(crate) fn observe<T: Serialize>(&self, name: &'static str, data: &T) -> Result<SequenceNumber> {
        let state = self.writable(WriteScope::Log)?;
        let time_us = self.inner.now_us();
        let data = encode(name, data)?;
        let body = Observed { name: name.to_owned(), data: Payload::new(&data) }.encode();
        self.inner.write(state, time_us, [PendingRecord::new(Kind::OBSERVED, &body, RecordBody::Observed)])
    }

    /// The facts of that name that were recorded from a record on.
    pub(crate) fn observed<T: DeserializeOwned>(
        &self,
        name: &'static str,
        from: SequenceNumber,
    ) -> Result<Vec<T>> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let mut found = Vec::new();
        source.places.read(&source.storage, from, SequenceNumber::MAX, &mut |record| {
            if record.kind == Kind::OBSERVED {
                let bad = Error::unread(record.sequence);
                let observed = Observed::decode(record.body).map_err(bad)?;
                if observed.name == name {
                    found.push(msgpack::from_slice(&source.objects.resolve(observed.data)?).map_err(bad)?);
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// What the first operation that was left open, and may have changed something, had captured of each resource, by the
    /// resources' names, as the resources recorded it: what a recovery restores. `None` for one that did not outlive its
    /// process; empty where nothing was left open.
    ///
    /// # Errors
    ///
    /// What reading the log says.
    pub fn open_captures(&self) -> Result<BTreeMap<String, Option<Vec<u8>>>> {
        let first = self.left_open().into_iter().find(|open| !open.reads_only);
        first.map_or_else(|| Ok(BTreeMap::new()), |open| self.read_begin(open.begin, |begin| begin.resources))
    }

    /// The captures in records of an earlier process that this one's first append makes durable, by the resources' names.
    pub(crate) fn unattested_captures(&self) -> Result<BTreeMap<String, Vec<Vec<u8>>>> {
        let (source, from) = {
            let state = self.inner.state.lock();
            (self.inner.log_source(&state), state.log.unattested_from())
        };
        let mut found = BTreeMap::<String, Vec<Vec<u8>>>::new();
        let Some(from) = from else { return Ok(found) };
        source.places.read(&source.storage, from, SequenceNumber::MAX, &mut |record| {
            let bad = Error::unread(record.sequence);
            let resources = match record.kind {
                Kind::TOOL_BEGIN => ToolBegin::decode(record.body).map_err(bad)?.resources,
                Kind::TOOL_END => ToolEnd::decode(record.body).map_err(bad)?.resources,
                _ => return Ok(()),
            };
            for resource in resources {
                let Some(snapshot) = resource.snapshot else { continue };
                let recorded = source.objects.resolve(snapshot)?.into_owned();
                found.entry(resource.resource.into_owned()).or_default().push(recorded);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Hands the begin of an operation on to `read`, its payloads resolved.
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
            let resources = body.resources.iter().map(|resource| {
                let snapshot =
                    resource.snapshot.map(|it| source.objects.resolve(it).map(|it| it.into_owned()));
                Ok((resource.resource.clone().into_owned(), snapshot.transpose()?))
            });
            let resources = resources.collect::<Result<_>>()?;
            let arguments = source.objects.resolve(body.arguments)?.into_owned();
            found = Some(BeginRead { arguments, origin: body.origin, resources });
            Ok(())
        })?;
        let missing =
            Error::NoSuchOperation { operation: begin.into(), reason: "the log does not hold its begin" };
        found.map(read).ok_or(missing)
    }

    /// What the latest calls recorded of a resource where it was last known: after one that was committed, before one that
    /// was not.
    pub(crate) fn last_captured(&self, resource: &str) -> Result<Option<Vec<u8>>> {
        let latest = self.log::<ToolInvocations>()?.tail(LATEST_CALLS)?;
        for item in latest.iter().rev() {
            let mut resources = match item.position() {
                Some((end, _)) if item.outcome == Outcome::Committed => self.read_end_resources(end)?,
                _ => self.read_begin(item.begin, |begin| begin.resources)?,
            };
            if let Some(Some(recorded)) = resources.remove(resource) {
                return Ok(Some(recorded));
            }
        }
        Ok(None)
    }

    fn read_end_resources(&self, end: SequenceNumber) -> Result<BTreeMap<String, Option<Vec<u8>>>> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let mut found = BTreeMap::new();
        source.places.read(&source.storage, end, end, &mut |record| {
            for resource in ToolEnd::decode(record.body).map_err(Error::unread(end))?.resources {
                let snapshot = resource.snapshot.map(|it| source.objects.resolve(it).map(Cow::into_owned));
                found.insert(resource.resource.into_owned(), snapshot.transpose()?);
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The result of an operation, and what the model saw of it, as its end holds them.
    pub(crate) fn read_end(&self, end: SequenceNumber) -> Result<(Option<Value>, String)> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let bad = Error::unread(end);
        let mut found = (None, String::new());
        source.places.read(&source.storage, end, end, &mut |record| {
            let body = ToolEnd::decode(record.body).map_err(bad)?;
            let value = |payload: Payload<'_>| Value::decode(&source.objects.resolve(payload)?).map_err(bad);
            let shown = body.shown.map(value).transpose()?;
            let shown = shown.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
            found = (body.result.map(value).transpose()?, shown);
            Ok(())
        })?;
        Ok(found)
    }

    /// What somebody decided about an operation, looked for from a record on: the decision, its result, by whom and why.
    pub(crate) fn read_settlement(
        &self,
        operation: OperationId,
        from: SequenceNumber,
    ) -> Result<Option<Settlement>> {
        let source = self.inner.log_source(&self.inner.state.lock());
        let mut found = None;
        source.places.read(&source.storage, from, SequenceNumber::MAX, &mut |record| {
            if record.kind != Kind::SETTLE {
                return Ok(());
            }
            let bad = Error::unread(record.sequence);
            let settle = Settle::decode(record.body).map_err(bad)?;
            if settle.operation == operation {
                let value =
                    |payload: Payload<'_>| Value::decode(&source.objects.resolve(payload)?).map_err(bad);
                found = Some(match settle.decision {
                    Decision::Committed => Settlement::Committed(settle.result.map(value).transpose()?),
                    Decision::Failed => Settlement::Failed,
                    Decision::RunAgain => Settlement::RunAgain,
                });
            }
            Ok(())
        })?;
        Ok(found)
    }
}
