use chrono::DateTime;
use foldlog::tools::ExecutionState;

use super::capture::retire;
use super::{
    AdapterResume, AdapterStateOptions, AdapterStateSnapshot, CaptureOccasion, CapturedState, ResumeContext,
    ResumePlan, plan_resume,
};
use crate::adapter::{
    EvaluateOptions, PromptResponse, ProviderAdapter, ResumeFrom, evaluation_to_go_on, new_id,
};
use crate::error::{Error, Result};
use crate::prompt::Prompt;
use crate::provider::Provider;

/// Evaluates prompts with a provider that may keep a session of its own.
pub trait StatefulAdapter {
    /// Returns the name of the adapter's type. Its states are recorded under it.
    fn adapter_type(&self) -> &str;

    /// Evaluates a prompt, in the provider's session that `options` name with [`ResumeFrom::Adapter`], else in a fresh
    /// one. Returns the output, and the state that was captured last: `None` if the provider keeps no session, if the
    /// host captures no states, or if the state could not be captured. An adapter records its states with
    /// [`StateCapture`](super::StateCapture).
    ///
    /// # Errors
    ///
    /// [`Error::SessionExpired`] if the provider no longer has the session: then nothing was asked. Else those of the
    /// adapter; compare [`ProviderAdapter::evaluate`].
    fn evaluate_with_state<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        options: EvaluateOptions<'_>,
    ) -> Result<(PromptResponse<O>, Option<CapturedState>)>;

    /// Returns what the host decided about states; `None`, as by default, if the provider keeps no session.
    fn state_options(&self) -> Option<&AdapterStateOptions> {
        None
    }

    /// Returns the directory in which the provider runs; by default it runs in none.
    fn workspace_path(&self) -> Option<&str> {
        None
    }

    /// Returns what a state is checked against before it is resumed now, by the run's clock.
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
    /// [`Error::ResumeRefused`] if it may not be resumed here and now.
    fn validate<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        snapshot: AdapterStateSnapshot,
    ) -> Result<AdapterResume> {
        let options = self.state_options().cloned().unwrap_or_default();
        AdapterResume::from_snapshot(snapshot, &options, &self.resume_context(prompt, state))
    }

    /// Evaluates a prompt. If the host wants sessions to be resumed ([`AdapterStateOptions::auto_resume`]) and the
    /// caller says nothing else, resumes the one that [`plan_resume`] finds. If the provider no longer has it, records
    /// that and begins a fresh one.
    ///
    /// # Errors
    ///
    /// [`Error::ResumeRefused`] if a session was found that may not be resumed here and now: nothing begins afresh then
    /// unless the caller asks for [`ResumeFrom::Fresh`]. Else those of
    /// [`evaluate_with_state`](StatefulAdapter::evaluate_with_state).
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
        let evaluation_id = match options.evaluation_id.take() {
            Some(given) => given,
            None if options.record => evaluation_to_go_on(session)?,
            None => new_id(session)?,
        };
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

/// Asks a provider that keeps no session: captures nothing, and refuses the states of other adapters.
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
