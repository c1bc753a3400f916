use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use chrono::{DateTime, Utc};
use foldlog::filesystem::FilesystemSnapshot;
use foldlog::{Event, Slice};
use serde::{Deserialize, Serialize};

use crate::working_tree::HeadChange;

/// An agent of one session of a program. Its calls are usually serial: a call that is open when the
/// next one begins counts as interrupted, unless its end is reported later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lane {
    /// Name of the program, such as `claude`.
    pub program: String,
    /// The program's id of the session.
    pub session: String,
    /// The program's id of the sub-agent; `None` for the main agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
}

/// A call or an undo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Number in the timeline, from 1.
    pub number: u64,
    /// Kind of the step.
    #[serde(flatten)]
    pub kind: StepKind,
    /// Time of the beginning.
    pub opened_at: DateTime<Utc>,
    /// Time of the end; `None` while the step is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_at: Option<DateTime<Utc>>,
    /// How the step ended; `None` while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Paths that the step owns; its changes of other paths are not its own. `None` if it may
    /// change any path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paths: Option<BTreeSet<String>>,
    /// Reason why the step was not captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_captured: Option<String>,
    /// Whether the step's captures are removed after those of all other steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// Paths that the user changed after the step began and before its tool was started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub yours: Vec<String>,
    /// Paths of which it is unknown whether the user changed them before the tool was started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub possibly_yours: Vec<String>,
    /// Linked working tree of git within the root in which the call was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_tree: Option<String>,
    /// Changes of the `HEAD` of working trees while the step was open. An undo does not reverse them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub head_changes: Vec<HeadChange>,
    /// Lengths of the logs of `HEAD` at the beginning, by working tree, while the step is open.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) head_logs: BTreeMap<String, u64>,
}

/// Kind of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// A call of a tool by an agent.
    Call(Box<Call>),
    /// An undo of other steps by a person.
    Undo(Undo),
}

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Agent that made the call.
    pub lane: Lane,
    /// The program's id of the call.
    pub id: String,
    /// Name of the tool.
    pub tool: String,
    /// Arguments, as JSON; cut after 64 KiB.
    pub arguments: String,
    /// One line about the call: a command or a path.
    pub title: String,
    /// Result or error, as JSON or text; cut after 64 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Exit code of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// Duration of the tool in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Whether the program has asked the user for permission: changes before the answer are the
    /// user's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_asked_for: bool,
    /// Whether the command continues in the background: its later changes count as the user's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_background: bool,
    /// Process of the program. When it has ended, so has the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// Roots in whose timelines the call is a step, the session's own first; empty if that is this
    /// one alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roots: Vec<String>,
    /// Paths outside of all these roots that the call names, so that it could have written there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<String>,
}

/// An undo of steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undo {
    /// Numbers of the undone steps, in ascending order.
    pub of: Vec<u64>,
    /// Whether only some of their changes were to be undone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_partial: bool,
    /// Whether changes stay because of later ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_conflicts: bool,
    /// Directories that it creates or removes, in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<String>,
    /// Whether the lanes of the undone calls have been informed, so that their models know.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_reported: bool,
}

impl Undo {
    /// Returns whether it brings calls back: whether it reverses an undo that is no redo.
    pub fn is_redo(&self, steps: &[Step]) -> bool {
        // Each with whether it is undone, or brought back.
        let mut left: Vec<(u64, bool)> = self.of.iter().map(|of| (*of, true)).collect();
        while let Some((number, is_undone)) = left.pop() {
            match steps.iter().find(|step| step.number == number).and_then(Step::undo) {
                // An undo undoes only steps before it, so this ends.
                Some(undo) => {
                    left.extend(undo.of.iter().filter(|of| **of < number).map(|of| (*of, !is_undone)));
                }
                None if !is_undone => return true,
                None => {}
            }
        }
        false
    }
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It succeeded.
    Succeeded,
    /// It failed, or ended without success in an unknown way.
    Failed,
    /// Its end was never reported.
    Interrupted,
}

impl Step {
    /// Returns the call, unless the step is an undo.
    pub fn call(&self) -> Option<&Call> {
        match &self.kind {
            StepKind::Call(call) => Some(call),
            StepKind::Undo(_) => None,
        }
    }

    /// Returns the undo, unless the step is a call.
    pub fn undo(&self) -> Option<&Undo> {
        match &self.kind {
            StepKind::Call(_) => None,
            StepKind::Undo(undo) => Some(undo),
        }
    }

    /// Returns whether the step has not ended.
    pub fn is_open(&self) -> bool {
        self.closed_at.is_none()
    }

    /// Returns the length of the path of the step's working tree, if that contains a path. The root
    /// contains all paths.
    pub(crate) fn works_around(&self, path: &str) -> Option<usize> {
        let top = self.working_tree.as_deref().unwrap_or_default();
        let is_in = path.strip_prefix(top).is_some_and(|rest| top.is_empty() || rest.starts_with('/'));
        is_in.then_some(top.len())
    }

    /// Returns whether a changed directory can be a change of this undo. The captures around a killed
    /// undo also contain later changes by the user, until the next event or command.
    pub(crate) fn can_undo_change(&self, directory: &str) -> bool {
        let Some(undo) = self.undo().filter(|_| self.outcome == Some(Outcome::Interrupted)) else {
            return true;
        };
        let mut planned = undo.directories.iter().chain(self.paths.iter().flatten());
        planned.any(|path| Path::new(path).starts_with(directory))
    }

    /// Returns whether the step owns a path.
    pub(crate) fn owns(&self, path: &str) -> bool {
        self.paths.as_ref().is_some_and(|paths| paths.contains(path))
    }
}

/// A new state of a step. One record contains both, so that a kill cannot part them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StepChanged {
    /// The new state.
    pub step: Step,
    /// The moment at which the step begins or ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moment: Option<Moment>,
}

impl Event for StepChanged {
    const NAME: &'static str = "step_changed";
}

/// The present state of each step.
pub(crate) struct Steps;

impl Slice for Steps {
    const NAME: &'static str = "steps";
    type Item = Step;
}

/// The beginning or the end of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Number of the step.
    pub step: u64,
    /// Whether the step begins or ends.
    pub edge: Edge,
    /// Capture of the root; `None` if it could not be captured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture: Option<FilesystemSnapshot>,
    /// Whether the capture was removed, so that changes up to here are unknown. `CapturesCollected`
    /// records it.
    #[serde(skip)]
    pub(crate) is_removed: bool,
}

impl Moment {
    pub(crate) fn new(step: u64, edge: Edge, capture: Option<FilesystemSnapshot>) -> Moment {
        Moment { step, edge, capture, is_removed: false }
    }
}

/// One of the two ends of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edge {
    /// The beginning.
    Opened,
    /// The end.
    Closed,
}

/// The captures of the earliest moments were removed, to free space.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CapturesCollected {
    /// Number of moments, from the first one.
    pub(crate) moments: u64,
    /// Places of those whose captures are kept.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) kept: BTreeSet<u64>,
}

impl CapturesCollected {
    /// Returns whether the capture of the moment at a place, counted from 0, was removed.
    pub(crate) fn contains(&self, place: u64) -> bool {
        place < self.moments && !self.kept.contains(&place)
    }
}

impl Event for CapturesCollected {
    const NAME: &'static str = "captures_collected";
}

/// The latest collection.
pub(crate) struct Collections;

impl Slice for Collections {
    const NAME: &'static str = "collections";
    type Item = CapturesCollected;
}

/// A session of a program works in a further root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RootAdded {
    pub(crate) program: String,
    pub(crate) session: String,
    pub(crate) root: String,
}

impl Event for RootAdded {
    const NAME: &'static str = "root_added";
}

/// The further roots of all sessions.
pub(crate) struct FurtherRoots;

impl Slice for FurtherRoots {
    const NAME: &'static str = "further_roots";
    type Item = RootAdded;
}

/// All moments, in the order in which they were captured.
pub(crate) struct Moments;

impl Slice for Moments {
    const NAME: &'static str = "moments";
    type Item = Moment;
}
