use chrono::DateTime;
use foldlog::tools::ExecutionState;

use super::capture::retire;
use super::{
    AdapterResume, AdapterStateOptions, AdapterStateSnapshot, CaptureOccasion, CapturedState, ResumeContext,
    ResumePlan, plan_resume,
};
use crate::adapter::{EvaluateOptions, PromptResponse, ProviderAdapter, ResumeFrom, evaluation_to_go_on};
use crate::error::{Error, Result};
use crate::prompt::Prompt;
use crate::provider::Provider;

/// Evaluates prompts with a provider that may store a session of its own.
pub trait StatefulAdapter {
    /// Returns the name of the adapter's type. Its states are recorded under it.
    fn adapter_type(&self) -> &str;

    /// Evaluates a prompt, in the provider's session that `options` name with
    /// [`ResumeFrom::Adapter`], else in a fresh one. Returns the output and the last captured
    /// state. The state is `None` if the provider stores no session, if the host captures no
    /// states, or if the capture failed. An adapter records its states with
    /// [`StateCapture`](super::StateCapture).
    ///
    /// # Errors
    ///
    /// [`Error::SessionExpired`] if the provider no longer has the session; nothing was sent to the
    /// model then. Else those of the adapter; compare [`ProviderAdapter::evaluate`].
    fn evaluate_with_state<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        options: EvaluateOptions<'_>,
    ) -> Result<(PromptResponse<O>, Option<CapturedState>)>;

    /// Returns the host's choices for states; `None`, the default, if the provider stores no
    /// session.
    fn state_options(&self) -> Option<&AdapterStateOptions> {
        None
    }

    /// Returns the directory in which the provider runs; `None` by default.
    fn workspace_path(&self) -> Option<&str> {
        None
    }

    /// Returns the circumstances against which a state is checked before it is resumed now, by the
    /// run's clock.
    fn resume_context<O>(&self, prompt: &Prompt<O>, state: &ExecutionState) -> ResumeContext {
        ResumeContext {
            workspace_path: self.workspace_path().map(str::to_owned),
            moved_from: self.state_options().map(|options| options.moved_from.clone()).unwrap_or_default(),
            prompt_name: prompt.name(),
            now: DateTime::from_timestamp_micros(state.clock().now_us()).unwrap_or_default(),
        }
    }

    /// Checks a capture, so that it can be resumed with [`ResumeFrom::Adapter`].
    ///
    /// # Errors
    ///
    /// [`Error::ResumeRefused`] if it must not be resumed in the present circumstances.
    fn validate<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        snapshot: AdapterStateSnapshot,
    ) -> Result<AdapterResume> {
        let options = self.state_options().cloned().unwrap_or_default();
        let context = self.resume_context(prompt, state);
        options.resume_validation.check(&snapshot, &context, options.max_age).map_err(Box::new)?;
        Ok(AdapterResume { snapshot, mode: options.resume_mode, at_entry: None })
    }

    /// Evaluates a prompt. With [`AdapterStateOptions::auto_resume`] and [`ResumeFrom::Auto`],
    /// resumes the session that [`plan_resume`] finds. If the provider no longer has it, records
    /// that and starts a fresh one.
    ///
    /// # Errors
    ///
    /// [`Error::ResumeRefused`] if a session was found that must not be resumed in the present
    /// circumstances. A fresh one then starts only if the caller requests [`ResumeFrom::Fresh`].
    /// Else those of [`evaluate_with_state`](StatefulAdapter::evaluate_with_state).
    fn evaluate<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        mut options: EvaluateOptions<'_>,
    ) -> Result<PromptResponse<O>> {
        let wants = self.state_options().filter(|wants| wants.auto_resume);
        let Some(wants) = wants.filter(|_| matches!(options.resume_from, ResumeFrom::Auto)) else {
            return Ok(self.evaluate_with_state(prompt, state, options)?.0);
        };
        let (session, context) = (state.session(), self.resume_context(prompt, state));
        let evaluation_id = evaluation_to_go_on(session, options.evaluation_id.take(), options.record)?;
        options.evaluation_id = Some(evaluation_id.clone());
        let plan = plan_resume(session, &evaluation_id, self.adapter_type(), wants, &context)?;
        let ResumePlan::Resume(resume) = plan else {
            return Ok(self.evaluate_with_state(prompt, state, options)?.0);
        };
        let first =
            EvaluateOptions { resume_from: ResumeFrom::Adapter(resume.clone()), ..options.reborrow() };
        match self.evaluate_with_state(prompt, state, first) {
            Err(Error::SessionExpired { .. }) => {
                retire(session, &evaluation_id, &resume.snapshot, CaptureOccasion::Expired)?;
                Ok(self.evaluate_with_state(prompt, state, options)?.0)
            }
            result => Ok(result?.0),
        }
    }
}

/// For a provider that stores no session: captures nothing, and refuses the states of other
/// adapters.
impl<P: Provider> StatefulAdapter for ProviderAdapter<P> {
    fn adapter_type(&self) -> &str {
        self.provider().name()
    }

    fn evaluate_with_state<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        options: EvaluateOptions<'_>,
    ) -> Result<(PromptResponse<O>, Option<CapturedState>)> {
        Ok((ProviderAdapter::evaluate(self, prompt, state, options)?, None))
    }
}
