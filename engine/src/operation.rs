//! Records of an operation: open, unsettled and suspended operations, changes that could not be
//! undone, replaced content, and child sessions.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use foldlog_codec::msgpack::Value;
use foldlog_codec::{OperationId, SequenceNumber, body, image, msgpack};
use foldlog_filesystem::UnrestoredPath;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Error;
use crate::log::objects::Objects;
use crate::session::operation_records::RecordedCaptures;

pub use image::{OpenOperation, SuspendedOperation, UnsettledOperation};

/// Tool name of a restore in the log. Its arguments contain the position that the restore returns
/// to.
pub(crate) const RESTORE: &str = "foldlog.restore";

/// Arguments of a [restore](RESTORE), recorded as JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct RestoreArguments {
    pub(crate) position: SequenceNumber,
    /// Distinguishes a rewind from other restores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rewind: Option<RewindArguments>,
}

impl RestoreArguments {
    /// Decodes the recorded form: JSON in one MessagePack string. Returns `None` if the arguments
    /// have another form, for example if they are stored as an object.
    pub(crate) fn read(recorded: &[u8]) -> Option<RestoreArguments> {
        let text: String = msgpack::from_slice(recorded).ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// Arguments of a rewind, in addition to its position.
#[derive(Serialize, Deserialize)]
pub(crate) struct RewindArguments {
    pub(crate) overwrite: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) undoes: Option<OperationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Whether the rewind fills directories in which the session has not worked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) fills: bool,
    /// Whether only files are restored. True if the rewind undoes the rollback of the call
    /// `undoes`, which is no rewind, or undoes such an undo.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) undoes_rollback: bool,
}

/// Name of the records that announce a child session. The ids of child sessions are also hashed
/// from it.
pub(crate) const CHILD_SESSION: &str = "foldlog.child_session";

/// Name of the records that identify the programs of a call after the process has ended.
pub(crate) const PROGRAMS: &str = "foldlog.programs";

/// Name of the records with the captures of the resources before a rollback. An end record names
/// these captures too, but only after the restore is complete.
pub(crate) const ROLLBACK: &str = "foldlog.rollback";

/// State of the resources when the rollback of a call started. The programs of the call had ended
/// by then.
#[derive(Serialize, Deserialize)]
pub(crate) struct RollbackBegun {
    /// Start record of the call.
    pub(crate) begin: SequenceNumber,
    /// Captures by resource name, in the form that the resources recorded.
    pub(crate) resources: BTreeMap<String, Value>,
}

impl RollbackBegun {
    /// Decodes the observation of a rollback. Returns `None` for other observations, and for forms
    /// that this version does not write.
    pub(crate) fn read(observed: &body::Observed<'_>, objects: &Objects) -> Option<RollbackBegun> {
        let data = (observed.name == ROLLBACK).then(|| objects.resolve(observed.data).ok())?;
        msgpack::from_slice(&data?).ok()
    }

    pub(crate) fn into_recorded(self) -> RecordedCaptures {
        self.resources.into_iter().map(|(name, value)| (name, Some(value.encode()))).collect()
    }
}

/// Announces a child session in the log of its parent. It is written before the session is created
/// or opened again, before the child first changes the resources in a run of the operation, and
/// before the child continues after another child changed them.
///
/// The changes of a child between two such announcements are a *stint*. Stints of an operation are
/// numbered from 1, over all its runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChildAnnounced {
    pub(crate) operation: OperationId,
    pub(crate) ordinal: u32,
    /// Id of the session, as text.
    session: String,
    /// Last stint of each child, by the child's number, that the resources contain once this child
    /// has started its own. `None` if the child is only opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holds: Option<Vec<(u32, u64)>>,
}

impl ChildAnnounced {
    pub(crate) fn new(operation: OperationId, ordinal: u32, session: Uuid) -> ChildAnnounced {
        ChildAnnounced { operation, ordinal, session: session.to_string(), holds: None }
    }

    /// Returns the announcement of a stint of the child. `holds` contains the stints that are then
    /// in the resources.
    pub(crate) fn of_stint(&self, holds: &BTreeMap<u32, u64>) -> ChildAnnounced {
        let holds = holds.iter().map(|(child, stint)| (*child, *stint)).collect();
        ChildAnnounced { holds: Some(holds), ..self.clone() }
    }

    /// Returns the session's id; `None` if the record has no valid id.
    pub(crate) fn session(&self) -> Option<Uuid> {
        self.session.parse().ok()
    }
}

/// Describes a change of a resource that the rollback of a call could not undo. The rest of the
/// resource was restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotUndone {
    /// Name of the resource.
    pub resource: String,
    /// Part of the resource that still has the change: in a workspace, a path.
    pub path: String,
    /// Description of the change, and the reason why it could not be undone.
    pub reason: String,
}

/// Maximum number of recorded entries per resource of a call. One additional entry counts the
/// omitted ones.
const NOT_UNDONE_MAX: usize = 100;

impl NotUndone {
    pub(crate) fn new(resource: &str, path: impl Into<String>, reason: impl Into<String>) -> NotUndone {
        NotUndone { resource: resource.to_owned(), path: path.into(), reason: reason.into() }
    }

    /// Records that the state after the call was not captured before the rollback. It names no
    /// resource, because it is not a change.
    pub(crate) fn from_capture_error(error: &Error) -> NotUndone {
        NotUndone::new("", "", format!("what the call had left was not captured: {error}"))
    }

    /// Returns whether the state after a call was not captured, so that its rollback cannot be
    /// undone.
    pub fn is_uncaptured(&self) -> bool {
        self.resource.is_empty()
    }

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

    /// Converts the report of `resource`: the first [`NOT_UNDONE_MAX`] entries, and a count of the
    /// others.
    pub(crate) fn of_resource(resource: &str, mut told: Vec<UnrestoredPath>) -> Vec<NotUndone> {
        let more = told.len().saturating_sub(NOT_UNDONE_MAX);
        told.truncate(NOT_UNDONE_MAX);
        let told = told.into_iter().map(|one| NotUndone::new(resource, one.path, one.reason));
        let rest = (more > 0).then(|| NotUndone::new(resource, "", format!("and {more} paths more")));
        told.chain(rest).collect()
    }
}

/// Lists the contents of a resource that the rollback of a call replaced or removed, including
/// changes by others. The end record names a capture of these contents, which
/// [`undo_rewind`](crate::ExecutionState::undo_rewind) restores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedContent {
    /// Name of the resource.
    pub resource: String,
    /// Parts that were given an earlier content or earlier permissions: in a workspace, paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Parts that were removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// Number of paths that are counted but not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Maximum number of recorded paths per resource of a call.
const REPLACED_MAX: usize = 1_000;

impl ReplacedContent {
    /// Lists the first [`REPLACED_MAX`] paths. Returns `None` if there are none.
    pub(crate) fn of_resource(
        resource: &str,
        mut changed: Vec<String>,
        mut removed: Vec<String>,
    ) -> Option<ReplacedContent> {
        let all = changed.len() + removed.len();
        changed.truncate(REPLACED_MAX);
        removed.truncate(REPLACED_MAX - changed.len());
        let more = (all - changed.len() - removed.len()) as u64;
        (all > 0).then(|| ReplacedContent { resource: resource.to_owned(), changed, removed, more })
    }

    /// Adds the content of the resource that another restore replaced.
    fn append(&mut self, other: ReplacedContent) {
        let known: BTreeSet<&String> = self.changed.iter().chain(&self.removed).collect();
        let is_new = |path: &String| !known.contains(path);
        let changed: Vec<String> = other.changed.into_iter().filter(is_new).collect();
        let removed: Vec<String> = other.removed.into_iter().filter(is_new).collect();
        self.changed.extend(changed);
        self.removed.extend(removed);
        self.changed.sort_unstable();
        self.removed.sort_unstable();
        self.more = self.more.max(other.more);
    }

    /// Returns a copy that counts all paths and lists none: for a record on a full disk.
    pub(crate) fn without_paths(&self) -> ReplacedContent {
        let named = (self.changed.len() + self.removed.len()) as u64;
        let (resource, more) = (self.resource.clone(), self.more + named);
        ReplacedContent { resource, changed: Vec::new(), removed: Vec::new(), more }
    }

    pub(crate) fn to_record(&self) -> body::ReplacedParts<'_> {
        let borrowed = |paths: &'_ [String]| paths.iter().map(|path| Cow::Owned(path.clone())).collect();
        body::ReplacedParts {
            resource: Cow::Borrowed(&self.resource),
            changed: borrowed(&self.changed),
            removed: borrowed(&self.removed),
            more: self.more,
        }
    }

    /// Describes the first paths of all resources in one line; `None` if no content was replaced.
    pub fn text(all: &[ReplacedContent]) -> Option<String> {
        let named = |one: &ReplacedContent| {
            let changed = one.changed.iter().cloned();
            changed.chain(one.removed.iter().map(|path| format!("{path} (removed)"))).collect::<Vec<_>>()
        };
        let paths: Vec<String> = all.iter().flat_map(named).collect();
        let more = all.iter().map(|one| one.more).sum::<u64>() + paths.len().saturating_sub(TOLD_MAX) as u64;
        let told = paths.iter().take(TOLD_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        match (paths.is_empty(), more.strip_prefix(", and ")) {
            (true, None) => None,
            (true, Some(count)) => Some(format!("{count} paths")),
            (false, _) => Some(format!("{told}{more}")),
        }
    }
}

impl From<&body::ReplacedParts<'_>> for ReplacedContent {
    fn from(recorded: &body::ReplacedParts<'_>) -> ReplacedContent {
        let owned = |paths: &[Cow<'_, str>]| paths.iter().map(ToString::to_string).collect();
        ReplacedContent {
            resource: recorded.resource.to_string(),
            changed: owned(&recorded.changed),
            removed: owned(&recorded.removed),
            more: recorded.more,
        }
    }
}

/// Maximum number of paths in a [text](ReplacedContent::text).
const TOLD_MAX: usize = 20;

/// Outcome of a restore of resources.
#[derive(Clone, Debug, Default)]
pub(crate) struct PutBack {
    pub(crate) not_undone: Vec<NotUndone>,
    pub(crate) replaced: Vec<ReplacedContent>,
}

impl PutBack {
    pub(crate) fn append(&mut self, other: PutBack) {
        self.not_undone.extend(other.not_undone);
        for replaced in other.replaced {
            match self.replaced.iter_mut().find(|known| known.resource == replaced.resource) {
                Some(known) => known.append(replaced),
                None => self.replaced.push(replaced),
            }
        }
    }
}
