//! Lists of names and numbers in error messages.

use std::sync::Arc;

use foldlog_codec::{OperationId, SequenceNumber, escape};

use super::Error;
use crate::operation::OpenOperation;

pub(super) fn numbers(operations: &[OperationId]) -> String {
    operations.iter().map(OperationId::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn last_text(last: Option<SequenceNumber>) -> String {
    last.map_or_else(
        || "the log holds no record".to_owned(),
        |last| format!("the log's last record is {last}"),
    )
}

pub(super) fn operation_text(operation: Option<OperationId>) -> String {
    operation.map_or_else(
        || "a call that waited for others".to_owned(),
        |operation| format!("operation {operation}"),
    )
}

pub(super) fn operations_text(operations: &[OpenOperation]) -> String {
    operations
        .iter()
        .map(|open| format!("{} (`{}`)", open.operation, escape::text(&open.tool)))
        .collect::<Vec<_>>()
        .join(", ")
}

pub(super) fn failures(failed: &[(String, Arc<Error>)]) -> String {
    failed
        .iter()
        .map(|(resource, error)| format!("`{}` ({error})", escape::text(resource)))
        .collect::<Vec<_>>()
        .join(", ")
}

pub(super) fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("`{}`", escape::text(name))).collect::<Vec<_>>().join(", ")
}

pub(super) fn also_restored(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; restored: {}", list(names)) }
}
