//! `tool_end`: the end of a call.

use std::borrow::Cow;

use foldlog_codec::Record;
use foldlog_codec::body::{Outcome, ToolEnd};

use super::{Author, MaybeOwned, RecordBody, RecordRules, present_payloads};
use crate::error::{Error, Result};
use crate::fold::log_source::AddedItem;
use crate::fold::projection::INVOKED_VERSION;
use crate::names::DeclaredNames;

pub(super) const RULES: RecordRules = RecordRules {
    added_items,
    captures: Some(|body| Ok(ToolEnd::decode(body)?.resources)),
    not_compared: &["$.elapsed_us", "$.not_undone[*].reason"],
    generated: &["$.call_id", "$.resources"],
    excluded_in_both: |body| {
        let outcome = ToolEnd::decode(body).ok()?.outcome;
        (!matches!(outcome, Outcome::Committed | Outcome::Suspended)).then_some("$.shown")
    },
    subject: |body, _| Some(ToolEnd::decode(body).ok()?.tool.into_owned()),
    title: |body, _| ToolEnd::decode(body).ok().map(|end| title(&end)),
    payloads: |body| {
        let end = ToolEnd::decode(body).ok()?;
        Some(present_payloads([("result", end.result), ("shown", end.shown)]))
    },
    ..RecordRules::synced(Author::RunEnd, |record| {
        ToolEnd::decode(record.body).map(MaybeOwned::from).map(RecordBody::ToolEnd)
    })
};

fn title(end: &ToolEnd<'_>) -> String {
    let cause = end.cause.as_ref().map(|cause| format!(": {}", cause.name())).unwrap_or_default();
    let form = end.suspension.as_ref().map(|it| format!(": {}", it.form.name())).unwrap_or_default();
    let exit = end.exit_code.filter(|code| *code != 0);
    let exit = exit.map(|code| format!(": exit code {code}")).unwrap_or_default();
    let ended = if end.has_unknown_end() { ": ended unknown" } else { "" };
    format!("{} of {} {}{cause}{form}{exit}{ended}", end.tool, end.begin, end.outcome.name())
}

fn added_items<'a>(record: &Record<'a>, slice: u32, _: &DeclaredNames) -> Result<Vec<AddedItem<'a>>> {
    let end = ToolEnd::decode(record.body).map_err(Error::unread(record.sequence))?;
    let invoked = (end.slice == slice).then(|| (0, Cow::from(end.encode_invocation()), INVOKED_VERSION));
    Ok(invoked.into_iter().collect())
}
