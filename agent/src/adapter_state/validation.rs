use std::fmt;
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Utc};
use foldlog::{SequenceNumber, escape};

use super::{AdapterState, AdapterStateSnapshot, CompositeAdapterState};
use crate::named;

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

named! {
    /// Identifies a check that a state can fail.
    #[non_exhaustive]
    ResumeCheck {
        /// The state is marked as resumable.
        Resumable = "resumable",
        /// The state names a session.
        SessionId = "session_id",
        /// The provider will run in the same directory as before.
        WorkspacePath = "workspace_path",
        /// The prompt has the same name as the one that started the session.
        PromptName = "prompt_name",
        /// The last activity is recent enough.
        Recency = "recency",
        /// The capture is on the live path: no rollback abandoned it.
        LivePath = "live_path",
    }
}

impl ResumeCheck {
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
        let state = &snapshot.state;
        let require = |holds: bool, check: ResumeCheck, recorded: String, expected: String| match holds {
            true => Ok(()),
            false => Err(refusal(snapshot, check, recorded, expected)),
        };
        let is_resumable = || {
            let [no, yes] = ["a state that cannot be resumed", "a state that can be resumed"];
            require(state.resumable(), ResumeCheck::Resumable, no.to_owned(), yes.to_owned())
        };
        if self == ResumeValidation::None {
            return Ok(());
        }
        if let Ok(Some(parts)) = state.read::<CompositeAdapterState>() {
            is_resumable()?;
            let resumable = parts.states.into_values().filter(AdapterState::resumable);
            return resumable.into_iter().try_for_each(|state| {
                let part = AdapterStateSnapshot { state, ..snapshot.clone() };
                self.check(&part, context, max_age)
            });
        }
        let has_id = state.text("session_id").is_some();
        require(has_id, ResumeCheck::SessionId, "no session id".to_owned(), "a session id".to_owned())?;
        is_resumable()?;
        if self == ResumeValidation::Relaxed {
            return Ok(());
        }
        let (recorded, expected) = (state.text("workspace_path"), context.workspace_path.as_deref());
        let is_same = recorded.map(Path::new) == expected.map(Path::new) || was_moved(recorded, context);
        require(is_same, ResumeCheck::WorkspacePath, quote_or_nothing(recorded), quote_or_nothing(expected))?;
        let (recorded, expected) = (state.text("prompt_name"), Some(context.prompt_name.as_str()));
        let is_same = recorded == expected;
        require(is_same, ResumeCheck::PromptName, quote_or_nothing(recorded), quote_or_nothing(expected))?;
        if !snapshot.is_live {
            return Err(ResumeValidation::refuse_abandoned(snapshot));
        }
        let active_at = snapshot.last_activity_at();
        // A time in the future comes from another clock, and counts as now.
        let age = context.now.signed_duration_since(active_at).to_std().unwrap_or_default();
        let active = format!("last activity at {}", active_at.to_rfc3339());
        let limit = format!("at most {} s before {}", max_age.as_secs(), context.now.to_rfc3339());
        require(age <= max_age, ResumeCheck::Recency, active, limit)
    }

    /// Makes the refusal of a capture that a rollback abandoned.
    pub(super) fn refuse_abandoned(snapshot: &AdapterStateSnapshot) -> ResumeRefusal {
        let [recorded, expected] = ["a state that a rollback abandoned", "a state on the live path"];
        refusal(snapshot, ResumeCheck::LivePath, recorded.to_owned(), expected.to_owned())
    }
}

fn refusal(
    snapshot: &AdapterStateSnapshot,
    check: ResumeCheck,
    recorded: String,
    expected: String,
) -> ResumeRefusal {
    let (sequence, adapter) = (snapshot.sequence, snapshot.state.adapter_type().to_owned());
    ResumeRefusal { sequence, adapter, check, recorded, expected }
}

/// Returns whether the directory of a state was moved to the present one.
fn was_moved(recorded: Option<&str>, context: &ResumeContext) -> bool {
    let is_recorded = |before: &String| recorded.map(Path::new) == Some(Path::new(before));
    context.workspace_path.is_some() && context.moved_from.iter().any(is_recorded)
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
