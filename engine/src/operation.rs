//! What a log says of an operation: that it is open, that it is unsettled, and what of it could not be
//! undone.

use std::borrow::Cow;

use foldlog_codec::{body, image};
use foldlog_filesystem::Unrestored;
use serde::Serialize;
use smol_str::SmolStr;

/// Describes an operation that has begun and not ended.
pub type OpenOperation = image::OpenOperation<SmolStr>;

/// Describes an operation that was interrupted and has neither run again nor been settled since.
pub type UnsettledOperation = image::UnsettledOperation<SmolStr>;

/// Describes a change that a call made to a resource and that its rollback could not undo. The rest of the
/// resource was restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotUndone {
    /// Name of the resource.
    pub resource: String,
    /// What part of the resource kept its change: in a workspace, a path.
    pub path: String,
    /// What the change is, and why it could not be undone.
    pub reason: String,
}

/// Maximum number of entries that are recorded for a resource of a call. One more entry counts those left
/// out.
const NOT_UNDONE_MAX: usize = 100;

impl NotUndone {
    pub(crate) fn new(resource: &str, path: impl Into<String>, reason: impl Into<String>) -> NotUndone {
        NotUndone { resource: resource.to_owned(), path: path.into(), reason: reason.into() }
    }

    /// Converts the recorded form.
    pub(crate) fn of_record(recorded: &body::NotUndone<'_>) -> NotUndone {
        NotUndone::new(&recorded.resource, &*recorded.path, &*recorded.reason)
    }

    pub(crate) fn to_record(&self) -> body::NotUndone<'_> {
        let NotUndone { resource, path, reason } = self;
        body::NotUndone {
            resource: Cow::Borrowed(resource),
            path: Cow::Borrowed(path),
            reason: Cow::Borrowed(reason),
        }
    }

    /// Converts what `resource` reports, keeping the first [`NOT_UNDONE_MAX`] entries and a count of the
    /// others.
    pub(crate) fn of_resource(resource: &str, mut told: Vec<Unrestored>) -> Vec<NotUndone> {
        let more = told.len().saturating_sub(NOT_UNDONE_MAX);
        told.truncate(NOT_UNDONE_MAX);
        let told = told.into_iter().map(|one| NotUndone::new(resource, one.path, one.reason));
        let rest = (more > 0).then(|| NotUndone::new(resource, "", format!("and {more} paths more")));
        told.chain(rest).collect()
    }
}
