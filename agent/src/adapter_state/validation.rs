use std::fmt;
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Utc};
use foldlog::{SequenceNumber, escape};

use super::{AdapterState, AdapterStateSnapshot, CompositeAdapterState};

/// Selects the checks before a provider's session is resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResumeValidation {
    /// In addition to [`Relaxed`](ResumeValidation::Relaxed): the directory, unless it was
    /// [moved](crate::adapter_state::AdapterStateOptions::moved_from), the prompt's name and the
    /// time of the last activity match, and no rollback abandoned the capture. A state without one
    /// of these values is refused.
    #[default]
    Strict,
    /// The state is marked as resumable, and names a session.
    Relaxed,
    /// No checks: any state is tried, even that of the evaluation's own completed session.
    None,
}

impl ResumeValidation {
    /// Returns the name of the mode: `strict`, `relaxed` or `none`.
    pub fn name(self) -> &'static str {
        match self {
            ResumeValidation::Strict => "strict",
            ResumeValidation::Relaxed => "relaxed",
            ResumeValidation::None => "none",
        }
    }
}

/// Contains the circumstances against which a state is checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ResumeContext {
    /// Directory in which the provider will run; `None` if it runs in none.
    pub workspace_path: Option<String>,
    /// Directories that were moved to `workspace_path`.
    pub moved_from: Vec<String>,
    /// Name of the prompt.
    pub prompt_name: String,
    /// Present time.
    pub now: DateTime<Utc>,
}

/// Identifies a check that a state can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResumeCheck {
    /// The state is marked as resumable.
    Resumable,
    /// The state names a session.
    SessionId,
    /// The provider will run in the same directory as before.
    WorkspacePath,
    /// The prompt has the same name as the one that started the session.
    PromptName,
    /// The last activity is recent enough.
    Recency,
    /// The capture is on the live path: no rollback abandoned it.
    LivePath,
}

impl ResumeCheck {
    /// Returns the name of the check: `resumable`, `session_id`, `workspace_path`, `prompt_name`,
    /// `recency` or `live_path`.
    pub fn name(self) -> &'static str {
        match self {
            ResumeCheck::Resumable => "resumable",
            ResumeCheck::SessionId => "session_id",
            ResumeCheck::WorkspacePath => "workspace_path",
            ResumeCheck::PromptName => "prompt_name",
            ResumeCheck::Recency => "recency",
            ResumeCheck::LivePath => "live_path",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            ResumeCheck::Resumable | ResumeCheck::SessionId => "start a new session",
            ResumeCheck::WorkspacePath => {
                "resume in the recorded directory, declare that it was moved here, or validate less strictly"
            }
            ResumeCheck::PromptName => "resume with the recorded prompt, or validate less strictly",
            ResumeCheck::Recency => "start a new session, allow a greater age, or validate less strictly",
            ResumeCheck::LivePath => {
                "start a new session, or validate less strictly: the provider's session is then forked at the \
                 point to which the log was rolled back"
            }
        }
    }
}

/// Reports that a state must not be resumed in the present circumstances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeRefusal {
    /// Record of the state.
    pub sequence: SequenceNumber,
    /// Name of the adapter's type.
    pub adapter: String,
    /// The failed check.
    pub check: ResumeCheck,
    /// Value in the state.
    pub recorded: String,
    /// Expected value.
    pub expected: String,
}

impl fmt::Display for ResumeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResumeRefusal { sequence, adapter, check, recorded, expected } = self;
        write!(
            f,
            "the state of adapter `{}` in record {sequence} fails the check `{}`: it has {}, expected {}: {}",
            escape::text(adapter),
            check.name(),
            escape::text(recorded),
            escape::text(expected),
            check.advice()
        )
    }
}

impl std::error::Error for ResumeRefusal {}

impl ResumeValidation {
    /// Checks whether a state may be resumed. `max_age` is the greatest time since its last
    /// activity. For a state without that time, the time of the capture counts. In a
    /// [`CompositeAdapterState`], each resumable part is checked.
    ///
    /// # Errors
    ///
    /// A [`ResumeRefusal`] with the first failed check and both values.
    pub fn check(
        self,
        snapshot: &AdapterStateSnapshot,
        context: &ResumeContext,
        max_age: Duration,
    ) -> Result<(), ResumeRefusal> {
        let checking = ResumeChecker { snapshot, context };
        if self != ResumeValidation::None
            && let Ok(Some(parts)) = snapshot.state.read::<CompositeAdapterState>()
        {
            checking.resumable()?;
            let resumable = parts.states.into_values().filter(AdapterState::resumable);
            return resumable.into_iter().try_for_each(|state| {
                let part = AdapterStateSnapshot { state, ..snapshot.clone() };
                self.check(&part, context, max_age)
            });
        }
        match self {
            ResumeValidation::None => Ok(()),
            ResumeValidation::Relaxed => checking.names_a_session(),
            ResumeValidation::Strict => {
                checking.names_a_session()?;
                checking.same_directory()?;
                checking.same_prompt()?;
                checking.on_live_path()?;
                checking.recent(max_age)
            }
        }
    }

    /// Makes the refusal of a capture that a rollback abandoned.
    pub(super) fn refuse_abandoned(snapshot: &AdapterStateSnapshot) -> ResumeRefusal {
        ResumeRefusal {
            sequence: snapshot.sequence,
            adapter: snapshot.state.adapter_type().to_owned(),
            check: ResumeCheck::LivePath,
            recorded: ABANDONED.to_owned(),
            expected: LIVE.to_owned(),
        }
    }
}

const ABANDONED: &str = "a state that a rollback abandoned";
const LIVE: &str = "a state on the live path";

struct ResumeChecker<'a> {
    snapshot: &'a AdapterStateSnapshot,
    context: &'a ResumeContext,
}

impl ResumeChecker<'_> {
    fn require(
        &self,
        holds: bool,
        check: ResumeCheck,
        recorded: impl FnOnce() -> String,
        expected: impl FnOnce() -> String,
    ) -> Result<(), ResumeRefusal> {
        if holds {
            return Ok(());
        }
        Err(ResumeRefusal {
            sequence: self.snapshot.sequence,
            adapter: self.snapshot.state.adapter_type().to_owned(),
            check,
            recorded: recorded(),
            expected: expected(),
        })
    }

    fn names_a_session(&self) -> Result<(), ResumeRefusal> {
        let id = self.snapshot.state.text("session_id");
        let no_id = || "no session id".to_owned();
        self.require(id.is_some(), ResumeCheck::SessionId, no_id, || "a session id".to_owned())?;
        self.resumable()
    }

    fn resumable(&self) -> Result<(), ResumeRefusal> {
        let (no, yes) =
            (|| "a state that cannot be resumed".to_owned(), || "a state that can be resumed".to_owned());
        self.require(self.snapshot.state.resumable(), ResumeCheck::Resumable, no, yes)
    }

    fn same_directory(&self) -> Result<(), ResumeRefusal> {
        let recorded = self.snapshot.state.text("workspace_path");
        let expected = self.context.workspace_path.as_deref();
        let was_moved = |recorded: &str| {
            expected.is_some()
                && self.context.moved_from.iter().any(|before| Path::new(before) == Path::new(recorded))
        };
        let holds = recorded.map(Path::new) == expected.map(Path::new) || recorded.is_some_and(was_moved);
        self.require(
            holds,
            ResumeCheck::WorkspacePath,
            || quote_or_nothing(recorded),
            || quote_or_nothing(expected),
        )
    }

    fn same_prompt(&self) -> Result<(), ResumeRefusal> {
        let recorded = self.snapshot.state.text("prompt_name");
        let expected = Some(self.context.prompt_name.as_str());
        self.require(
            recorded == expected,
            ResumeCheck::PromptName,
            || quote_or_nothing(recorded),
            || quote_or_nothing(expected),
        )
    }

    fn on_live_path(&self) -> Result<(), ResumeRefusal> {
        self.require(
            self.snapshot.is_live,
            ResumeCheck::LivePath,
            || ABANDONED.to_owned(),
            || LIVE.to_owned(),
        )
    }

    fn recent(&self, max_age: Duration) -> Result<(), ResumeRefusal> {
        let active_at = self.snapshot.last_activity_at();
        // A time in the future comes from another clock, and counts as now.
        let age = self.context.now.signed_duration_since(active_at).to_std().unwrap_or_default();
        let active = || format!("last activity at {}", active_at.to_rfc3339());
        let limit = || format!("at most {} s before {}", max_age.as_secs(), self.context.now.to_rfc3339());
        self.require(age <= max_age, ResumeCheck::Recency, active, limit)
    }
}

impl AdapterStateSnapshot {
    /// Returns the time of the last activity of the provider's session: the state's
    /// `last_activity_at`, else the time of the capture.
    pub fn last_activity_at(&self) -> DateTime<Utc> {
        self.state.time("last_activity_at").unwrap_or(self.captured_at)
    }
}

fn quote_or_nothing(text: Option<&str>) -> String {
    text.map_or_else(|| "nothing".to_owned(), |text| format!("`{text}`"))
}
