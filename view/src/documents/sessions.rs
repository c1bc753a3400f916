//! Rows of the sessions of a store, with the status of each.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

#[cfg(feature = "server")]
use foldlog::Store;
use foldlog::conversation::ResumePoint;
use foldlog::inspect::{self, ResumableConversation, SessionFence, SessionOverview, StandingOperation};
use foldlog::{Error, Holder, OperationId, Parent, Replicated, SequenceNumber};
use foldlog_codec::escape;
use foldlog_codec::record::time_text;
use serde::Serialize;
use uuid::Uuid;

#[cfg(feature = "server")]
use crate::Result;
#[cfg(feature = "server")]
use crate::clock::now;
use crate::session_dirs::{holds_anything, lost_segments};

/// Status of a session. If several apply, a session is listed with the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Its log is damaged.
    Damaged,
    /// The session cannot be read, and no damage is known.
    #[default]
    Unreadable,
    /// A process has it open for writing.
    Running,
    /// A tool's call has started and not ended, and no process has the session open.
    Interrupted,
    /// A call was interrupted, and has neither run again nor been settled.
    Unsettled,
    /// A call waits for an answer.
    Suspended,
    /// A conversation stopped before its end and needs to be resumed by its host.
    Resumable,
    /// Its last writer ended without closing it, between two calls.
    Unclosed,
    /// Its last writer closed it.
    Closed,
}

impl Status {
    /// All statuses, the worst first.
    pub const ALL: [Status; 9] = [
        Status::Damaged,
        Status::Unreadable,
        Status::Running,
        Status::Interrupted,
        Status::Unsettled,
        Status::Suspended,
        Status::Resumable,
        Status::Unclosed,
        Status::Closed,
    ];

    /// Returns the name that listings and JSON use.
    pub fn name(self) -> &'static str {
        match self {
            Status::Damaged => "damaged",
            Status::Unreadable => "unreadable",
            Status::Running => "running",
            Status::Interrupted => "interrupted",
            Status::Unsettled => "unsettled",
            Status::Suspended => "suspended",
            Status::Resumable => "resumable",
            Status::Unclosed => "unclosed",
            Status::Closed => "closed",
        }
    }
}

/// Row of a session. The fields are those of `sessions --json`.
#[derive(Debug, Default, Serialize)]
pub struct SessionListRow {
    /// Id of the session.
    pub session: Uuid,
    /// The first status that applies.
    pub status: Status,
    /// Number of records; `None` if the session cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// Size of the log in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<u64>,
    /// Number of objects in the directory.
    pub objects: u64,
    /// Size of these objects in bytes.
    pub object_bytes: u64,
    /// Time of the session's own first record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
    /// Time of its last record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_at: Option<Time>,
    /// Tags with their values.
    pub tags: BTreeMap<String, String>,
    /// Session from which this one was created.
    pub parent: Option<ParentRow>,
    /// Place of the replica that contains the records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicated: Option<Replicated>,
    /// Claim of another worker that fences the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fenced: Option<SessionFence>,
    /// Process that has the session open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<WriterProcess>,
    /// Calls that have started and not ended.
    pub open: Vec<SessionOperationRow>,
    /// Calls that were interrupted.
    pub unsettled: Vec<SessionOperationRow>,
    /// Calls that wait for an answer.
    pub suspended: Vec<SessionOperationRow>,
    /// Conversations that stopped before their end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resumable: Vec<Resumable>,
    /// Place of the first damage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<DamageRow>,
    /// Reason why the session cannot be read, or not completely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// All statuses that apply.
    #[serde(skip)]
    pub statuses: Vec<Status>,
    /// Whether the error is a damage of the log.
    #[serde(skip)]
    pub is_damage: bool,
}

/// Names the session from which another one was created.
#[derive(Debug, Serialize)]
pub struct ParentRow {
    /// Id of the parent.
    pub session: Uuid,
    /// `fork` or `child`.
    pub how: &'static str,
    /// Position of the fork.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<SequenceNumber>,
    /// Operation for which a child works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationId>,
}

/// Time in microseconds since 1970, which serialises as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&time_text(self.0))
    }
}

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Names the process that has a session open, as far as the process left a note.
#[derive(Debug, Serialize)]
pub struct WriterProcess {
    /// Id of the process.
    pub pid: Option<u32>,
    /// Name of its host.
    pub host: Option<String>,
    /// Time at which it opened the session.
    pub since: Option<String>,
    /// Whether it has ended.
    pub ended: bool,
}

/// Describes a call that has not ended, or that waits.
#[derive(Debug, Serialize)]
pub struct SessionOperationRow {
    /// Id of the operation.
    pub operation: OperationId,
    /// Name of its tool.
    pub tool: String,
    /// Time of its start.
    pub since: Time,
    /// Workspaces by name, each with its path at that time.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub workspaces: BTreeMap<String, String>,
}

/// Describes a conversation that its host has to resume.
#[derive(Debug, Serialize)]
pub struct Resumable {
    /// Id of the evaluation.
    pub evaluation: String,
    /// `provider` or `calls`.
    pub next: &'static str,
    /// Ordinals of the calls to run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<u32>,
    /// Time of the last record.
    pub since: Time,
}

impl Resumable {
    fn from_conversation(conversation: &ResumableConversation) -> Resumable {
        let ResumableConversation { evaluation_id, point, last_at_us } = conversation;
        let (next, calls) = match point {
            ResumePoint::RunTools(calls) => ("calls", calls.clone()),
            _ => ("provider", Vec::new()),
        };
        Resumable { evaluation: evaluation_id.to_string(), next, calls, since: Time(*last_at_us) }
    }
}

/// Names the place of the first damage.
#[derive(Debug, Serialize)]
pub struct DamageRow {
    /// Segment in which the intact part ends.
    #[serde(serialize_with = "escape::serialize_path")]
    pub segment: PathBuf,
    /// Offset in the segment, in bytes.
    pub offset: u64,
    /// Sequence number of the first record that is not intact.
    pub sequence: SequenceNumber,
}

/// Returns whether a session's directory contains no records, and nothing that is created after the
/// first record.
pub fn is_nothing(found: &foldlog::Result<SessionOverview>, dir: &Path) -> bool {
    matches!(found, Err(Error::NotASession { .. })) && lost_segments(dir).is_none() && !holds_anything(dir)
}

/// Returns the rows of the given sessions of a store, in their order. Directories without records
/// are skipped.
#[cfg(feature = "server")]
pub(crate) fn rows_of(store: &Store, ids: &[Uuid], memory_bytes: Option<u64>) -> Result<Vec<SessionListRow>> {
    let mut running = inspect::running_sessions(store.path(), ids)?;
    let now_us = now().timestamp_micros();
    let rows = ids.iter().filter_map(|id| {
        let dir = store.session_dir(*id);
        let found = inspect::overview(&dir, now_us, memory_bytes);
        (!is_nothing(&found, &dir))
            .then(|| SessionListRow::from_overview(*id, &dir, found, running.remove(id)))
    });
    Ok(rows.collect())
}

impl SessionListRow {
    /// Describes the session in the directory `dir` by its overview and the process that has it
    /// open.
    pub fn from_overview(
        session: Uuid,
        dir: &Path,
        found: foldlog::Result<SessionOverview>,
        holder: Option<Holder>,
    ) -> SessionListRow {
        let running =
            holder.map(|Holder { pid, host, since, ended }| WriterProcess { pid, host, since, ended });
        let fenced = inspect::read_fence(dir);
        let row = SessionListRow { session, fenced, running, ..SessionListRow::default() };
        match found {
            Ok(overview) => row.read(overview),
            Err(error) => row.unread(dir, error),
        }
    }

    fn read(mut self, overview: SessionOverview) -> SessionListRow {
        let SessionOverview { records, log_bytes, created_at_us, last_at_us, closed, .. } = overview;
        (self.records, self.log_bytes) = (Some(records), Some(log_bytes));
        (self.created_at, self.last_at) = (Some(Time(created_at_us)), Some(Time(last_at_us)));
        (self.objects, self.object_bytes) = (overview.objects, overview.object_bytes);
        self.tags = overview.tags;
        self.parent = overview.parent.map(ParentRow::from_parent);
        self.replicated = overview.replicated;
        self.open = overview.open.iter().map(SessionOperationRow::from_operation).collect();
        self.unsettled = overview.unsettled.iter().map(SessionOperationRow::from_operation).collect();
        self.suspended = overview.suspended.iter().map(SessionOperationRow::from_operation).collect();
        self.resumable = overview.resumable.iter().map(Resumable::from_conversation).collect();
        if let Some(end) = overview.sound_end {
            self.error = Some(end.damage.to_string());
            self.is_damage = end.damage.is_damage();
            self.damage =
                Some(DamageRow { segment: end.segment, offset: end.offset, sequence: end.sequence });
        }
        let is_running = self.running.is_some();
        let all = [
            (Status::Damaged, self.damage.is_some()),
            (Status::Running, is_running),
            (Status::Interrupted, !is_running && !self.open.is_empty()),
            (Status::Unsettled, !self.unsettled.is_empty()),
            (Status::Suspended, !self.suspended.is_empty()),
            (Status::Resumable, !is_running && !self.resumable.is_empty()),
            (Status::Closed, closed && !is_running),
        ];
        self.statuses = all.into_iter().filter(|(_, is_true)| *is_true).map(|(status, _)| status).collect();
        if self.statuses.is_empty() || (!closed && self.statuses.iter().all(|one| *one > Status::Interrupted))
        {
            self.statuses.push(Status::Unclosed);
        }
        self.statuses.sort_unstable();
        self.status = self.statuses.first().copied().unwrap_or(Status::Unclosed);
        self
    }

    fn unread(mut self, dir: &Path, error: Error) -> SessionListRow {
        // If the directory cannot be examined, `error` reports it.
        (self.objects, self.object_bytes) = inspect::kept_objects(dir).unwrap_or_default();
        let lost = lost_segments(dir).filter(|_| matches!(error, Error::NotASession { .. }));
        self.is_damage = lost.is_some() || error.is_damage();
        self.error = Some(match lost {
            Some(reason) => format!("{}: {reason}", escape::path(dir)),
            None => error.to_string(),
        });
        self.status = if self.is_damage { Status::Damaged } else { Status::Unreadable };
        self.statuses = vec![self.status];
        if self.running.is_some() {
            self.statuses.push(Status::Running);
        }
        self
    }
}

impl SessionOperationRow {
    fn from_operation(operation: &StandingOperation) -> SessionOperationRow {
        let StandingOperation { operation, tool, begun_at_us, workspaces } = operation;
        let (tool, workspaces) = (tool.to_string(), workspaces.clone());
        SessionOperationRow { operation: *operation, tool, since: Time(*begun_at_us), workspaces }
    }
}

impl ParentRow {
    fn from_parent(parent: Parent) -> ParentRow {
        match parent {
            Parent::Fork { session, position, .. } => {
                ParentRow { session, how: "fork", position: Some(position), operation: None }
            }
            Parent::Child { session, operation } => {
                ParentRow { session, how: "child", position: None, operation }
            }
        }
    }
}
