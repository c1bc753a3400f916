//! Builds the JSON forms of the records of operations.

use std::borrow::Cow;

use super::{Budget, Object, Part, RecordNames, array, hex, optional, payload};
use crate::body::{
    CallOrigin, NotUndone, ReplacedParts, ResourceSnapshot, Settle, Suspension, ToolBegin, ToolEnd,
};
use crate::msgpack::Value;
use crate::{Error, OperationId};

pub(super) fn resources(resources: Vec<ResourceSnapshot<'_>>) -> Result<Part<'_>, Error> {
    array(resources.into_iter(), |resource| {
        let mut object = Object::with_capacity(2);
        object.set("resource", Value::from(resource.resource.into_owned()));
        object.set("snapshot", optional(resource.snapshot)?);
        Ok(object.into_part())
    })
}

fn not_undone(not_undone: Vec<NotUndone<'_>>) -> Result<Part<'_>, Error> {
    array(not_undone.into_iter(), |one| {
        let mut object = Object::with_capacity(3);
        object.set("resource", Value::from(one.resource.into_owned()));
        object.set("path", Value::from(one.path.into_owned()));
        object.set("reason", Value::from(one.reason.into_owned()));
        Ok(object.into_part())
    })
}

fn replaced_resources(replaced: Vec<ReplacedParts<'_>>) -> Result<Part<'_>, Error> {
    let paths = |paths: Vec<Cow<'_, str>>| {
        Value::Array(paths.into_iter().map(|path| Value::from(path.into_owned())).collect())
    };
    array(replaced.into_iter(), |one| {
        let mut object = Object::with_capacity(4);
        object.set("resource", Value::from(one.resource.into_owned()));
        object.set("changed", paths(one.changed));
        object.set("removed", paths(one.removed));
        object.set("more", Value::from(one.more));
        Ok(object.into_part())
    })
}

pub(super) fn tool_begin<'a>(object: &mut Object<'a>, begin: ToolBegin<'a>) -> Result<(), Error> {
    call(object, begin.tool, begin.call_id, begin.origin, begin.parent, begin.undoes, begin.verifies);
    object.set("arguments", payload(begin.arguments)?);
    object.set("idempotency", Value::from(begin.idempotency.name()));
    object.set("reads_only", Value::from(begin.reads_only));
    if begin.outside_only {
        object.set("outside_only", Value::from(true));
    }
    object.set("runs_again", begin.again.map_or(Value::Nil, Value::from));
    object.set("resources", resources(begin.resources)?);
    if let Some(closed) = begin.closed {
        object.set("closed", Value::from(closed.cause.name()));
        object.set("shown", payload(closed.shown)?);
    }
    Ok(())
}

pub(super) fn tool_end<'a>(
    object: &mut Object<'a>,
    end: ToolEnd<'a>,
    names: &RecordNames,
    budget: &mut Budget,
) -> Result<(), Error> {
    object.set("begin", Value::from(end.begin));
    object.set("operation", Value::from(end.operation()));
    call(object, end.tool, end.call_id, end.origin, end.parent, end.undoes, end.verifies);
    object.set("outcome", Value::from(end.outcome.name()));
    object.set("cause", end.cause.map_or(Value::Nil, |cause| Value::from(cause.name())));
    if let Some(exit_code) = end.exit_code {
        object.set("exit_code", Value::from(i64::from(exit_code)));
    }
    object.set("rolls_back", Value::from(end.rolls_back));
    object.set("outside_effects", Value::from(end.outside.name()));
    object.set("elapsed_us", Value::from(end.elapsed_us));
    object.set("result", optional(end.result)?);
    object.set("shown", optional(end.shown)?);
    object.set("overrides", optional(end.overrides)?);
    if let Some(waits) = end.suspension {
        object.set("suspension", suspension(waits));
    }
    object.set("resources", resources(end.resources)?);
    if !end.not_undone.is_empty() {
        object.set("not_undone", not_undone(end.not_undone)?);
    }
    if !end.replaced.is_empty() {
        object.set("replaced", replaced_resources(end.replaced)?);
    }
    object.set("slice", budget.name(&names.slice(end.slice), 0)?);
    Ok(())
}

fn call(
    object: &mut Object<'_>,
    tool: Cow<'_, str>,
    call_id: Option<Cow<'_, str>>,
    origin: Option<CallOrigin>,
    parent: Option<OperationId>,
    undoes: Option<OperationId>,
    verifies: Option<OperationId>,
) {
    object.set("tool", Value::from(tool.into_owned()));
    object.set("call_id", call_id.map_or(Value::Nil, |call_id| Value::from(call_id.into_owned())));
    object.set("asked_by", asked_by(origin));
    object.set("parent", parent.map_or(Value::Nil, Value::from));
    object.set("undoes", undoes.map_or(Value::Nil, Value::from));
    if let Some(verifies) = verifies {
        object.set("verifies", Value::from(verifies));
    }
}

/// Builds the value of the answer and ordinal with which a model requested a call.
pub(super) fn asked_by(origin: Option<CallOrigin>) -> Value {
    origin.map_or(Value::Nil, |origin| {
        Value::Array(vec![Value::from(origin.answer), Value::from(u64::from(origin.ordinal))])
    })
}

pub(super) fn settle<'a>(object: &mut Object<'a>, settle: Settle<'a>) -> Result<(), Error> {
    object.set("operation", Value::from(settle.operation));
    object.set("decision", Value::from(settle.decision_name()));
    object.set("by", Value::from(settle.by));
    object.set("reason", Value::from(settle.reason));
    object.set("result", optional(settle.result)?);
    if let Some(shown) = settle.shown {
        object.set("shown", optional(Some(shown))?);
    }
    if let Some(arguments) = settle.arguments {
        object.set("arguments", Value::from(hex(&arguments)));
    }
    if let Some(until_us) = settle.until_us {
        object.set("until_us", Value::from(until_us));
    }
    Ok(())
}

fn suspension(suspension: Suspension) -> Value {
    let Suspension { form, arguments, expires_us, inner } = suspension;
    let mut fields = vec![("form", Value::from(form.name())), ("arguments", Value::from(hex(&arguments)))];
    fields.extend(expires_us.map(|expires_us| ("expires_us", Value::from(expires_us))));
    if let Some(inner) = inner {
        fields.extend(inner.session.map(|session| ("session", Value::from(session.to_string()))));
        fields.push(("operation", Value::from(inner.operation)));
    }
    Value::Map(fields.into_iter().map(|(name, value)| (Value::from(name), value)).collect())
}
