//! Evaluates prompts with a provider that keeps sessions: what it is sent, what is captured, and
//! what happens if its session is missing.

use std::cell::RefCell;
use std::sync::Arc;

use foldlog::conversation::TokenUsage;
use foldlog::{Clock, ExecutionState, ResourceRegistry, Session};
use foldlog_agent::adapter_state::*;
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::{Error, EvaluateOptions, Prompt, PromptResponse, ProviderAdapter, Result, ResumeFrom};

use super::world::*;

/// A fake adapter whose provider keeps sessions. It assigns ids, and knows which sessions are lost.
struct Program {
    options: AdapterStateOptions,
    directory: &'static str,
    gone: &'static [&'static str],
    /// Ids of the sessions that were started or resumed, and how.
    calls: RefCell<Vec<String>>,
}

impl Program {
    fn new(options: AdapterStateOptions) -> Program {
        Program { options, directory: "/work", gone: &[], calls: RefCell::default() }
    }

    fn calls(&self) -> Vec<String> {
        self.calls.take()
    }
}

impl StatefulAdapter for Program {
    fn adapter_type(&self) -> &str {
        CLAUDE
    }

    fn state_options(&self) -> Option<&AdapterStateOptions> {
        Some(&self.options)
    }

    fn workspace_path(&self) -> Option<&str> {
        Some(self.directory)
    }

    fn evaluate_with_state<O>(
        &self,
        prompt: &Prompt<O>,
        state: &ExecutionState,
        options: EvaluateOptions<'_>,
    ) -> Result<(PromptResponse<O>, Option<CapturedState>)> {
        let evaluation_id = options.evaluation_id.unwrap_or_else(|| "one".into());
        let session_id = match &options.resume_from {
            ResumeFrom::Adapter(resume) => {
                let state = resume.snapshot.state.read::<ClaudeAgentSDKState>()?.unwrap();
                self.calls.borrow_mut().push(format!("{:?} {}", resume.mode, state.session_id));
                if self.gone.contains(&state.session_id.as_str()) {
                    return Err(Error::SessionExpired {
                        adapter: CLAUDE.into(),
                        session_id: state.session_id,
                    });
                }
                state.session_id + "-copy"
            }
            _ => {
                self.calls.borrow_mut().push("fresh".into());
                format!("session-of-{evaluation_id}")
            }
        };
        let clock = Arc::clone(state.clock());
        let mut capture =
            StateCapture::begin(state.session(), evaluation_id.as_str(), CLAUDE, &self.options, clock)?;
        if let ResumeFrom::Adapter(resume) = &options.resume_from {
            capture = capture.resuming(&resume.snapshot);
        }
        let known = ClaudeAgentSDKState { prompt_name: prompt.name(), ..claude(&session_id) };
        let captured = capture.offer(&known, None, CaptureOccasion::Init)?;
        if prompt.key() == "crash" {
            return Err(Error::Cancelled);
        }
        let response = PromptResponse {
            prompt_name: prompt.name(),
            text: "done".into(),
            stop: None,
            unmetered: 0,
            output: Some(prompt.parse_output("done").unwrap()),
            evaluation_id,
            usage: TokenUsage::default(),
        };
        Ok((response, captured.map(|_| CapturedState::from_state(&known)).transpose()?))
    }
}

fn run(world: &World, session: &Session) -> ExecutionState {
    let resources = ResourceRegistry::builder().build().unwrap();
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    ExecutionState::builder(session.clone(), resources).clock(clock).build()
}

fn automatic() -> AdapterStateOptions {
    AdapterStateOptions { auto_resume: true, ..AdapterStateOptions::default() }
}

fn evaluation(id: &str) -> EvaluateOptions<'static> {
    EvaluateOptions { evaluation_id: Some(id.into()), ..EvaluateOptions::default() }
}

/// Starts an evaluation that is cut short, and opens the session again.
fn crashed(world: &World, program: &Program, prompt: &Prompt) -> Session {
    let session = world.session();
    program.evaluate(prompt, &run(world, &session), evaluation("one")).unwrap_err();
    assert_eq!(program.calls(), ["fresh"]);
    world.reopened(session)
}

fn prompt() -> Prompt {
    Prompt::text("demo", "crash")
}

#[test]
fn a_resumed_evaluation_gets_the_captured_session_and_returns_the_state_of_its_own() {
    let world = World::new();
    let program = Program::new(AdapterStateOptions::default());
    let session = crashed(&world, &program, &prompt());
    let found = find_resumable_state(&session, CLAUDE).unwrap().unwrap();
    let state = run(&world, &session);

    let other = Prompt::text("demo", "done");
    let error = program.validate(&other, &state, found.clone()).unwrap_err();
    assert!(
        matches!(&error, Error::ResumeRefused(refusal) if refusal.check == ResumeCheck::PromptName),
        "{error}"
    );

    let resume = program.validate(&prompt(), &state, found).unwrap();
    let options = EvaluateOptions { resume_from: ResumeFrom::Adapter(Box::new(resume)), ..evaluation("two") };
    let (response, captured) = program.evaluate_with_state(&other, &state, options).unwrap();
    assert_eq!((response.text.as_str(), response.output.as_deref()), ("done", Some("done")));
    let captured = captured.unwrap().read::<ClaudeAgentSDKState>().unwrap().unwrap();
    assert_eq!(captured.session_id, "session-of-one-copy");
    assert_eq!(program.calls(), ["Fork session-of-one"]);
}

#[test]
fn a_plain_evaluation_resumes_only_where_the_host_wants_that() {
    let world = World::new();
    for (options, expected) in
        [(AdapterStateOptions::default(), "fresh"), (automatic(), "Fork session-of-one")]
    {
        let program = Program::new(options);
        let session = crashed(&world, &program, &prompt());
        program.evaluate(&prompt(), &run(&world, &session), evaluation("two")).unwrap_err();
        assert_eq!(program.calls(), [expected]);
    }
}

/// With resumed states, an evaluation without an id got a new one, although the log had an
/// unfinished evaluation.
#[test]
fn a_plain_evaluation_without_an_id_goes_on_with_the_one_that_the_log_holds() {
    let world = World::new();
    let session = crashed(&world, &Program::new(automatic()), &prompt());
    session.conversation().record_input(&foldlog::conversation::NewInput::user("one", "hello")).unwrap();
    let state = run(&world, &session);
    let options = EvaluateOptions::default();
    Program::new(automatic()).evaluate(&prompt(), &state, options).unwrap_err();
    assert_eq!(states(&session).last().unwrap().evaluation_id, "one");
}

#[test]
fn a_plain_evaluation_that_may_not_resume_what_it_finds_fails_unless_a_fresh_one_is_asked_for() {
    let world = World::new();
    let session = crashed(&world, &Program::new(automatic()), &prompt());
    let elsewhere = Program { directory: "/other", ..Program::new(automatic()) };
    let state = run(&world, &session);
    let error = elsewhere.evaluate(&prompt(), &state, evaluation("two")).unwrap_err();
    assert!(
        matches!(&error, Error::ResumeRefused(refusal) if refusal.check == ResumeCheck::WorkspacePath),
        "{error}"
    );
    assert!(elsewhere.calls().is_empty(), "nobody was asked");
    let fresh = EvaluateOptions { resume_from: ResumeFrom::Fresh, ..evaluation("two") };
    elsewhere.evaluate(&Prompt::text("demo", "done"), &state, fresh).unwrap();
    assert_eq!(elsewhere.calls(), ["fresh"]);
}

#[test]
fn an_evaluation_whose_session_the_provider_lost_begins_a_fresh_one_and_the_log_says_why() {
    let world = World::new();
    let session = crashed(&world, &Program::new(automatic()), &prompt());
    let forgetful = Program { gone: &["session-of-one"], ..Program::new(automatic()) };
    let done = Prompt::text("demo", "crash");
    forgetful.evaluate(&done, &run(&world, &session), evaluation("two")).unwrap_err();
    assert_eq!(forgetful.calls(), ["Fork session-of-one", "fresh"]);
    let occasions: Vec<_> =
        states(&session).into_iter().map(|state| (state.evaluation_id, state.occasion)).collect();
    let expected = [("one", "init"), ("two", "expired"), ("two", "init")];
    assert_eq!(
        occasions,
        expected.map(|(evaluation, occasion)| (evaluation.to_owned(), occasion.to_owned()))
    );
}

#[test]
fn an_adapter_whose_provider_keeps_no_session_returns_no_state_and_writes_no_record_of_one() {
    let world = World::new();
    let session = world.session();
    let adapter = ProviderAdapter::new(ScriptedProvider::new([ScriptedReply::text("fine")]));
    let state = run(&world, &session);
    let prompt = Prompt::text("demo", "plain");
    let (response, captured) =
        adapter.evaluate_with_state(&prompt, &state, EvaluateOptions::default()).unwrap();
    assert_eq!((response.text.as_str(), captured), ("fine", None));
    assert_eq!(states(&session), []);

    let foreign = AdapterResume {
        snapshot: snapshot(CapturedState::from_state(&claude("abc123")).unwrap()),
        mode: ResumeMode::Fork,
        at_entry: None,
    };
    let options =
        EvaluateOptions { resume_from: ResumeFrom::Adapter(Box::new(foreign)), ..EvaluateOptions::default() };
    let error = adapter.evaluate_with_state(&prompt, &state, options).unwrap_err().to_string();
    assert!(error.contains("the state of adapter `claude_agent_sdk` cannot be resumed"), "{error}");
}
