//! `settle`: a decision about an operation.

use foldlog_codec::body::Settle;

use super::{Author, RecordBody, RecordRules, present_payloads};

pub(super) const RULES: RecordRules = RecordRules {
    title: |body, _| Settle::decode(body).ok().map(|settle| title(&settle)),
    payloads: |body| {
        let settle = Settle::decode(body).ok()?;
        Some(present_payloads([("result", settle.result), ("shown", settle.shown)]))
    },
    ..RecordRules::synced(Author::Settler, |record| Settle::decode(record.body).map(RecordBody::Settle))
};

fn title(settle: &Settle<'_>) -> String {
    let mut title = format!("operation {}: {} by {}", settle.operation, settle.decision_name(), settle.by);
    if let Some(digest) = settle.arguments {
        // The first twelve digits identify the arguments, and fit into the column.
        let digits: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        title.push_str(&format!(", arguments {digits}"));
    }
    title
}
