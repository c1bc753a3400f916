//! `tool_begin`: the start of a call.

use foldlog_codec::body::ToolBegin;

use super::{Author, MaybeOwned, RecordBody, RecordRules};

pub(super) const RULES: RecordRules = RecordRules {
    captures: Some(|body| Ok(ToolBegin::decode(body)?.resources)),
    not_compared: &["$.resources", "$.shown"],
    generated: &["$.call_id", "$.resources"],
    json_texts: &["$.arguments"],
    subject: |body, _| Some(ToolBegin::decode(body).ok()?.tool.into_owned()),
    title: |body, _| ToolBegin::decode(body).ok().map(title),
    payloads: |body| Some(vec![("arguments", ToolBegin::decode(body).ok()?.arguments)]),
    ..RecordRules::synced(Author::RunStart, |record| {
        ToolBegin::decode(record.body).map(MaybeOwned::from).map(RecordBody::ToolBegin)
    })
};

fn title(begin: ToolBegin<'_>) -> String {
    let mut title = begin.tool.into_owned();
    if let Some(call_id) = &begin.call_id {
        title.push_str(&format!(" {call_id}"));
    }
    let others = [
        ("within", begin.parent),
        ("again", begin.again),
        ("undoes", begin.undoes),
        ("verifies", begin.verifies),
    ];
    for (what, operation) in others {
        if let Some(operation) = operation {
            title.push_str(&format!(", {what} {operation}"));
        }
    }
    title
}
