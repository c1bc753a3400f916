//! What a log says of an operation: that it is open, that it waits for a decision, what of it could not be undone.

use std::borrow::Cow;

use foldlog_codec::{body, image};
use foldlog_filesystem::Unrestored;
use serde::Serialize;
use smol_str::SmolStr;

/// An operation that has begun and not ended.
pub type OpenOperation = image::OpenOperation<SmolStr>;

/// An operation that was interrupted and neither run again nor settled since.
pub type UnsettledOperation = image::UnsettledOperation<SmolStr>;

/// Something that a call did to a resource and that was not undone with it: the resource is as it was but for this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotUndone {
    /// The resource's name.
    pub resource: String,
    /// What of the resource: a path of a workspace, say.
    pub path: String,
    /// What about it, and why.
    pub reason: String,
}

/// So many of them are told of one call; of further ones, how many there are.
const NOT_UNDONE_MAX: usize = 100;

impl NotUndone {
    pub(crate) fn new(resource: &str, path: impl Into<String>, reason: impl Into<String>) -> NotUndone {
        NotUndone { resource: resource.to_owned(), path: path.into(), reason: reason.into() }
    }

    /// As a record tells it.
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

    /// Those of one resource, not more than are told.
    pub(crate) fn of_resource(resource: &str, mut told: Vec<Unrestored>) -> Vec<NotUndone> {
        let more = told.len().saturating_sub(NOT_UNDONE_MAX);
        told.truncate(NOT_UNDONE_MAX);
        let told = told.into_iter().map(|one| NotUndone::new(resource, one.path, one.reason));
        let rest = (more > 0).then(|| NotUndone::new(resource, "", format!("and {more} paths more")));
        told.chain(rest).collect()
    }
}
