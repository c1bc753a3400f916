//! Lists of names and numbers in error messages.

use std::fmt::Display;
use std::sync::Arc;

use foldlog_codec::body::SuspensionForm;
use foldlog_codec::{OperationId, SequenceNumber, escape};

use super::Error;
use crate::names::{UnregisteredEvent, list};
use crate::operation::OpenOperation;

pub(crate) fn operation_numbers(operations: &[OperationId]) -> String {
    joined(operations.iter(), ", ")
}

fn joined<T: Display>(all: impl Iterator<Item = T>, separator: &str) -> String {
    all.map(|one| one.to_string()).collect::<Vec<_>>().join(separator)
}

/// Formats the declared event with the name nearest to an undeclared one.
pub(super) fn or_nearest(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!(": did you mean `{}`?", escape::text(nearest)),
        None => ": no event is declared".to_owned(),
    }
}

/// Formats the last record of a log.
pub(super) fn last_text(last: Option<SequenceNumber>) -> String {
    last.map_or_else(|| "the log is empty".to_owned(), |last| format!("the log's last record is {last}"))
}

/// Formats the condition of a suspended operation.
pub(super) fn waiting_text(form: SuspensionForm) -> &'static str {
    match form {
        SuspensionForm::Asks => "an approval",
        SuspensionForm::Awaits => "its result",
        SuspensionForm::Within => "a call within it",
        SuspensionForm::Other(_) => "something that this version of foldlog does not know",
    }
}

/// Formats an operation, or a call that has no operation yet.
pub(super) fn operation_text(operation: Option<OperationId>) -> String {
    operation.map_or_else(
        || "a call that waited for others".to_owned(),
        |operation| format!("operation {operation}"),
    )
}

/// Lists open operations with their tools, separated by commas.
pub(super) fn operations_text(operations: &[OpenOperation]) -> String {
    joined(operations.iter().map(|open| format!("{} (`{}`)", open.operation, escape::text(&open.tool))), ", ")
}

/// Lists resources, each with its error.
pub(super) fn failures(failed: &[(String, Arc<Error>)]) -> String {
    joined(failed.iter().map(|(resource, error)| format!("`{}` ({error})", escape::text(resource))), ", ")
}

/// Lists events whose reducers are missing, separated by semicolons, with the remedies of the host.
pub(super) fn unregistered_text(events: &[UnregisteredEvent]) -> String {
    let events = joined(events.iter(), "; ");
    format!("{events}; declare the reducers, or list those that were removed on purpose with `retired`")
}

/// Lists the resources that were restored, as a suffix to the list of failed ones. Empty if there
/// are none.
pub(super) fn also_restored(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; restored: {}", list(names)) }
}
