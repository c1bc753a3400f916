//! Names records for listings.

use std::collections::BTreeSet;

use foldlog::{Record, RecordKind};
use foldlog_codec::body::{
    Action, AdapterState, AnswerBody, Declare, Dispatch, Import, Input, Lane, Observed, Parent,
    PromptAccepted, Replicated, Request, Rollback, SessionOpening, Settle, Shortened, SnapshotBody,
    ToolBegin, ToolEnd, Turn,
};
use foldlog_codec::record::RecordNames;

use crate::text::{DIGEST_DIGITS, count_text, digest_text};

/// Returns a record's name in a listing: its event, a snapshot's tag, the target of a rollback, the
/// tool of a call or the evaluation of a conversation. The name of its lane follows, if the host
/// named one. The name is not escaped: pass it through
/// [`escape::text`](foldlog_codec::escape::text) before printing it to a terminal.
pub fn record_name(record: &Record<'_>, names: &RecordNames) -> String {
    let name = own_name(record, names);
    match Lane::decode(record.kind, record.body).unwrap_or_default().name {
        Some(lane) if name.is_empty() => format!("lane {lane}"),
        Some(lane) => format!("{name}, lane {lane}"),
        None => name,
    }
}

/// Returns a record's name by its body.
fn own_name(record: &Record<'_>, names: &RecordNames) -> String {
    let name = match record.kind {
        RecordKind::Opened => SessionOpening::decode(record.body).map(|opened| opened_name(&opened)),
        RecordKind::Declare => Declare::decode(record.body).map(|declare| {
            let mut declared: Vec<&str> = declare.events.iter().map(|event| event.name.as_str()).collect();
            let events: BTreeSet<&str> = declared.iter().copied().collect();
            // The implicit slice of an undeclared event has the event's name, so it is listed once.
            let slices = declare.slices.iter().map(|slice| slice.name.as_str());
            declared.extend(slices.filter(|slice| !events.contains(slice)));
            declared.join(", ")
        }),
        RecordKind::Dispatch => Dispatch::decode(record.body).map(|dispatch| dispatch_name(&dispatch, names)),
        RecordKind::Snapshot => {
            SnapshotBody::decode(record.body).map(|snapshot| snapshot.tag.unwrap_or_default())
        }
        RecordKind::Rollback => Rollback::decode(record.body).map(|rollback| format!("to {}", rollback.to)),
        RecordKind::Import => Import::decode(record.body)
            .map(|import| import.from.map_or_else(String::new, |from| format!("of {from}"))),
        RecordKind::ToolBegin => ToolBegin::decode(record.body).map(|begin| begin_name(&begin)),
        RecordKind::ToolEnd => ToolEnd::decode(record.body).map(|end| {
            let cause = end.cause.map(|cause| format!(": {}", cause.name())).unwrap_or_default();
            let form = end.suspension.map(|it| format!(": {}", it.form.name())).unwrap_or_default();
            let exit = end.exit_code.filter(|code| *code != 0);
            let exit = exit.map(|code| format!(": exit code {code}")).unwrap_or_default();
            let ended = if end.has_unknown_end() { ": ended unknown" } else { "" };
            format!("{} of {} {}{cause}{form}{exit}{ended}", end.tool, end.begin, end.outcome.name())
        }),
        RecordKind::Observed => Observed::decode(record.body).map(|observed| observed.name),
        RecordKind::Replicated => Replicated::decode(record.body)
            .map(|Replicated { at, by, epoch }| format!("{at}, epoch {epoch} of {by}")),
        RecordKind::Settle => Settle::decode(record.body).map(|settle| {
            let arguments = settle.arguments.map(|digest| {
                let digits: String = digest_text(&digest).chars().take(DIGEST_DIGITS).collect();
                format!(", arguments {digits}")
            });
            let (operation, decision) = (settle.operation, settle.decision_name());
            format!("operation {operation}: {decision} by {}{}", settle.by, arguments.unwrap_or_default())
        }),
        _ => return conversation_name(record).unwrap_or_default(),
    };
    name.unwrap_or_default()
}

/// Returns the name of a record of a conversation: its content and its evaluation.
fn conversation_name(record: &Record<'_>) -> Result<String, foldlog_codec::Error> {
    let (said, scope) = match record.kind {
        RecordKind::Input => {
            let input = Input::decode(record.body)?;
            let call_id = input.call_id.map(|call_id| format!(" {call_id}")).unwrap_or_default();
            (format!("{}{call_id}", input.role.name()), input.scope)
        }
        RecordKind::Request => {
            let request = Request::decode(record.body)?;
            let said = match &request.failure {
                Some(failure) => format!("{} failed: {}", failure.request, failure.cause),
                None => format!("attempt {}", request.attempt),
            };
            (said, request.scope)
        }
        RecordKind::Answer => {
            let answer = AnswerBody::decode(record.body)?;
            let stop = answer.stop.map(|stop| format!(", {stop}")).unwrap_or_default();
            (format!("{}{stop}", count_text(answer.calls.len() as u64, "call")), answer.scope)
        }
        RecordKind::Turn => {
            let turn = Turn::decode(record.body)?;
            let complete = if turn.complete { ", complete" } else { "" };
            (format!("turn {}{complete}", turn.number), turn.scope)
        }
        RecordKind::Shortened => {
            let shortened = Shortened::decode(record.body)?;
            (format!("{} to {}", shortened.from, shortened.to), shortened.scope)
        }
        RecordKind::PromptAccepted => {
            let accepted = PromptAccepted::decode(record.body)?;
            (format!("{}:{} by {}", accepted.now.namespace, accepted.now.key, accepted.by), accepted.scope)
        }
        RecordKind::AdapterState => {
            let state = AdapterState::decode(record.body)?;
            let spent = if state.resumable { "" } else { ", not resumable" };
            (format!("{} {}{spent}", state.adapter, state.occasion), state.scope)
        }
        _ => return Ok(String::new()),
    };
    Ok(format!("{said} in {}", scope.evaluation))
}

fn begin_name(begin: &ToolBegin<'_>) -> String {
    let mut name = begin.tool.clone().into_owned();
    if let Some(call_id) = &begin.call_id {
        name.push_str(&format!(" {call_id}"));
    }
    let others = [
        ("within", begin.parent),
        ("again", begin.again),
        ("undoes", begin.undoes),
        ("verifies", begin.verifies),
    ];
    for (what, operation) in others {
        if let Some(operation) = operation {
            name.push_str(&format!(", {what} {operation}"));
        }
    }
    name
}

fn opened_name(opened: &SessionOpening) -> String {
    match opened.parent {
        Some(Parent::Fork { session, position, .. }) => format!("fork of {session} at {position}"),
        Some(Parent::Child { session, operation: Some(operation) }) => {
            // The operation comes first, since the column is too narrow for a session's id.
            format!("child of operation {operation} of {session}")
        }
        Some(Parent::Child { session, operation: None }) => format!("child of {session}"),
        None => String::new(),
    }
}

fn dispatch_name(dispatch: &Dispatch<'_>, names: &RecordNames) -> String {
    let operation = match &dispatch.action {
        Action::Event { event, .. } => {
            return names
                .events
                .get(event)
                .map_or_else(|| format!("event-{event}"), |(name, _)| name.clone());
        }
        Action::Tag { key, .. } => return format!("tag {key}"),
        Action::Seed => "seed",
        Action::Clear => "clear",
        Action::Reset => "reset",
    };
    let slices = dispatch.effects.iter().flatten().map(|effect| {
        names.slices.get(&effect.slice).cloned().unwrap_or_else(|| format!("slice-{}", effect.slice))
    });
    std::iter::once(operation.to_owned()).chain(slices).collect::<Vec<_>>().join(" ")
}
