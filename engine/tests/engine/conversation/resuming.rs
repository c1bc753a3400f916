//! Where a conversation resumes after changes of its session.

use foldlog::conversation::{
    NewAnswer, NewInput, NewRequest, PromptIdentity, ResumePoint, Role, ToolCallRecord,
};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{ExecutionState, ResourceRegistry, SequenceNumber, Session, SessionTypes, Store};

const EVALUATION: &str = "review-1";

fn prompt() -> PromptIdentity {
    PromptIdentity { namespace: "reviews".to_owned(), key: "code".to_owned(), digest: [7; 32] }
}

fn call(id: &str, name: &str) -> ToolCallRecord {
    ToolCallRecord { call_id: id.to_owned(), name: name.to_owned(), arguments: "{ }".to_owned() }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

struct Look;

impl Tool for Look {
    const NAME: &'static str = "look";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        Ok(ToolResult::ok("nothing there", ()))
    }
}

/// Says something in the conversation through its own handle, and fails.
struct Fail;

impl Tool for Fail {
    const NAME: &'static str = "fail";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        context.session().conversation().record_input(&NewInput::user(EVALUATION, "from within"))?;
        Err(ToolError::failed("it is broken"))
    }
}

struct Story {
    _directory: tempfile::TempDir,
    store: Store,
    types: SessionTypes,
}

impl Story {
    fn new() -> Story {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        Story { _directory: directory, store, types: SessionTypes::builder().build().unwrap() }
    }

    fn runner(&self, session: &Session) -> ToolRunner {
        let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
        ToolRunner::new(state, ToolRegistry::new().with(Look).with(Fail))
    }

    fn reopened(&self, session: Session) -> Session {
        let id = session.id();
        session.close().unwrap();
        self.store.open_session(id, &self.types).unwrap()
    }
}

fn asked(session: &Session) -> SequenceNumber {
    session
        .conversation()
        .record_request(&NewRequest { evaluation_id: EVALUATION.to_owned(), ..NewRequest::default() })
        .unwrap()
}

fn answered(session: &Session, content: Option<&str>, calls: Vec<ToolCallRecord>) -> SequenceNumber {
    let request = Some(asked(session));
    let (evaluation_id, content) = (EVALUATION.to_owned(), content.map(str::to_owned));
    session
        .conversation()
        .record_answer(&NewAnswer { evaluation_id, request, content, calls, ..NewAnswer::default() })
        .unwrap()
}

fn run(story: &Story, session: &Session, answer: SequenceNumber, ordinal: u32, tool: &str) {
    let call = ToolCall::new(tool, "{}").with_origin(answer, ordinal);
    story.runner(session).execute(&call, &ExecuteOptions::default()).unwrap();
}

fn point(session: &Session) -> ResumePoint {
    session.conversation().resume(None).unwrap().point
}

#[test]
fn each_step_of_a_conversation_says_what_comes_next_also_in_another_process() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    assert_eq!(point(&session), ResumePoint::NotRecorded);
    session.conversation().record_input(&NewInput::system(EVALUATION, "Review.", prompt())).unwrap();
    assert_eq!(point(&session), ResumePoint::AwaitProvider);
    // A request without a recorded answer is sent again.
    asked(&session);
    let session = story.reopened(session);
    assert_eq!(point(&session), ResumePoint::AwaitProvider);
    // Providers may give two calls of an answer the same id.
    let calls = vec![call("c1", "look"), call("c1", "fail")];
    let answer = answered(&session, None, calls);
    let session = story.reopened(session);
    assert_eq!(point(&session), ResumePoint::RunTools(vec![0, 1]));
    run(&story, &session, answer, 1, "fail");
    let session = story.reopened(session);
    assert_eq!(point(&session), ResumePoint::RunTools(vec![0]));
    run(&story, &session, answer, 0, "look");
    assert_eq!(point(&session), ResumePoint::AwaitProvider);
    let turn = session.conversation().record_turn(EVALUATION, false).unwrap();
    assert_eq!(
        session.conversation().record_turn(EVALUATION, false).unwrap(),
        turn,
        "a turn is recorded once"
    );
    answered(&session, Some("Done."), Vec::new());
    assert_eq!(point(&session), ResumePoint::Complete);
    session.conversation().record_turn(EVALUATION, true).unwrap();
    let session = story.reopened(session);
    assert_eq!(point(&session), ResumePoint::Complete);
    session.conversation().record_input(&NewInput::user(EVALUATION, "And now?")).unwrap();
    assert_eq!(point(&session), ResumePoint::AwaitProvider);

    let state = session.conversation().read(EVALUATION).unwrap().unwrap().state().unwrap();
    assert_eq!((state.prompt_ns.as_str(), state.prompt_key.as_str()), ("reviews", "code"));
    let numbers: Vec<u64> = state.turns.iter().map(|turn| turn.turn_number).collect();
    assert_eq!(numbers, [1, 2]);
    let results: Vec<_> =
        state.turns[0].tool_messages.iter().map(|message| message.content.as_deref()).collect();
    assert_eq!(results, [Some("nothing there"), Some("it is broken")]);
    assert!(state.turns[0].tool_messages[1].is_error);
}

#[test]
fn what_a_failed_tool_said_is_gone_and_what_others_said_meanwhile_stays() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    session.conversation().record_input(&NewInput::system(EVALUATION, "Review.", prompt())).unwrap();
    let answer = answered(&session, None, vec![call("c1", "fail")]);
    let runner = story.runner(&session);
    let begun = runner
        .begin(&ToolCall::new("fail", "{}").with_origin(answer, 0), &ExecuteOptions::default())
        .unwrap();
    session.conversation().record_input(&NewInput::user(EVALUATION, "meanwhile")).unwrap();
    let other = NewAnswer { evaluation_id: "another".to_owned(), ..NewAnswer::default() };
    session.conversation().record_answer(&other).unwrap();
    begun
        .context()
        .session()
        .conversation()
        .record_input(&NewInput::user(EVALUATION, "from within"))
        .unwrap();
    let texts = |session: &Session| -> Vec<String> {
        let messages = session.conversation().read(EVALUATION).unwrap().unwrap().messages();
        messages
            .into_iter()
            .filter(|message| message.role == Role::User)
            .filter_map(|one| one.content)
            .collect()
    };
    assert_eq!(texts(&session), ["meanwhile", "from within"]);
    begun.abort("enough").unwrap();
    let session = story.reopened(session);
    assert_eq!(texts(&session), ["meanwhile"]);
    let conversation = session.conversation().read(EVALUATION).unwrap().unwrap();
    assert_eq!(conversation.abandoned_entries().len(), 1);
    // Messages that arrive during a call follow its result.
    let sent: Vec<Role> = conversation.sent_messages().iter().map(|message| message.role).collect();
    assert_eq!(sent, [Role::System, Role::Assistant, Role::Tool, Role::User]);
    assert_eq!(session.conversation().evaluations(), [EVALUATION, "another"]);
}

#[test]
fn rolled_back_to_before_an_answer_the_provider_is_asked_anew() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    let said =
        session.conversation().record_input(&NewInput::system(EVALUATION, "Review.", prompt())).unwrap();
    let answer = answered(&session, Some("first"), vec![call("c1", "look")]);
    run(&story, &session, answer, 0, "look");
    session.rollback_to(said).unwrap();
    let session = story.reopened(session);
    assert_eq!(point(&session), ResumePoint::AwaitProvider);
    let conversation = session.conversation().read(EVALUATION).unwrap().unwrap();
    assert_eq!(conversation.entries().len(), 1);
    // At the position of the answer, the answer is included.
    let then = session.conversation().read_at(EVALUATION, answer).unwrap().unwrap();
    assert_eq!(then.last_answer().unwrap().0, answer);
    let reader = foldlog::inspect::LogReader::open(session.dir()).unwrap();
    assert_eq!(reader.conversation_at(EVALUATION, answer).unwrap().unwrap(), then);
}

/// A message between the last answer and the record of its turn was ignored until another message
/// arrived.
#[test]
fn what_is_said_behind_the_last_answer_is_answered_though_the_turn_is_recorded_after_it() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    session.conversation().record_input(&NewInput::system(EVALUATION, "Review.", prompt())).unwrap();
    answered(&session, Some("Done."), Vec::new());
    session.conversation().record_input(&NewInput::user(EVALUATION, "One more thing.")).unwrap();
    session.conversation().record_turn(EVALUATION, true).unwrap();
    let session = story.reopened(session);
    assert_eq!(point(&session), ResumePoint::AwaitProvider);
}

#[test]
fn a_message_with_an_id_of_the_host_is_recorded_once() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    let hello = NewInput::user(EVALUATION, "hello").with_id("mail-7");
    let first = session.conversation().record_input(&hello).unwrap();
    let session = story.reopened(session);
    assert_eq!(session.conversation().record_input(&hello).unwrap(), first);
    let other = NewInput::user("another", "hello").with_id("mail-7");
    assert_ne!(
        session.conversation().record_input(&other).unwrap(),
        first,
        "ids are those of one conversation"
    );
}

#[test]
fn a_conversation_goes_out_with_an_export_and_comes_in_again() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    session.conversation().record_input(&NewInput::system(EVALUATION, "Review.", prompt())).unwrap();
    session.conversation().record_input(&NewInput::user(EVALUATION, "x".repeat(70_000))).unwrap();
    let answer = answered(&session, None, vec![call("c1", "look"), call("c1", "fail")]);
    run(&story, &session, answer, 0, "look");
    run(&story, &session, answer, 1, "fail");
    session.conversation().record_turn(EVALUATION, false).unwrap();
    let export = session.log().export().unwrap();
    let state = session.conversation().read(EVALUATION).unwrap().unwrap();
    // The auditor prints what the session returns.
    let mut written = Vec::new();
    let reader = foldlog::inspect::LogReader::open(session.dir()).unwrap();
    let policies = [foldlog::Policy::State, foldlog::Policy::Log].into();
    reader.write_export(session.log().position().unwrap(), &policies, Vec::new(), &mut written).unwrap();
    let read = foldlog::Export::from_json(std::str::from_utf8(&written).unwrap()).unwrap();
    assert_eq!(read.slices, export.slices);
    let named = "weakincentives.runtime.conversation:ConversationState";
    assert!(read.slices.iter().any(|slice| slice.slice_type == named && slice.item_type == named));

    let again = story.store.import(&read, &story.types, foldlog::ImportOptions::default()).unwrap();
    assert_eq!(point(&again), ResumePoint::AwaitProvider);
    let imported = again.conversation().read(EVALUATION).unwrap().unwrap();
    assert_eq!(imported.prompt(), Some(&prompt()));
    let told = |conversation: &foldlog::conversation::Conversation| -> Vec<_> {
        let told = conversation.sent_messages().into_iter();
        told.map(|one| (one.role, one.content, one.tool_calls, one.tool_call_id, one.name)).collect()
    };
    assert_eq!(told(&imported), told(&state));
    let turns = imported.state().unwrap().turns;
    assert_eq!((turns.len(), turns[0].turn_number), (1, 1));
}

/// A fork did not know its parent's conversation until it was opened again.
#[test]
fn a_fork_goes_on_with_the_conversation_as_it_was_at_its_position() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    session.conversation().record_input(&NewInput::system(EVALUATION, "Review.", prompt())).unwrap();
    let answer = answered(&session, None, vec![call("c1", "look")]);
    let then = session.conversation().read(EVALUATION).unwrap().unwrap();
    run(&story, &session, answer, 0, "look");
    session.rollback_to(answer).unwrap();
    session.conversation().record_input(&NewInput::user(EVALUATION, "of the parent alone")).unwrap();
    let fork =
        story.store.fork(session.id(), answer, &story.types, foldlog::SessionOptions::default()).unwrap();
    let told = |conversation: &foldlog::conversation::Conversation| -> Vec<_> {
        conversation.entries().iter().map(|entry| (entry.sequence, entry.time)).collect()
    };
    assert_eq!(told(&fork.conversation().read(EVALUATION).unwrap().unwrap()), told(&then));
    assert_eq!(point(&fork), ResumePoint::RunTools(vec![0]));
    run(&story, &fork, answer, 0, "look");
    assert_eq!(point(&fork), ResumePoint::AwaitProvider);
    let live = fork.conversation().read(EVALUATION).unwrap().unwrap();
    let fork = story.reopened(fork);
    assert_eq!(fork.conversation().read(EVALUATION).unwrap().unwrap(), live);
}

/// A message that arrives during a request is unknown to its answer, and yet the conversation
/// counted as complete.
#[test]
fn what_is_said_while_a_request_is_under_way_is_answered() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    session.conversation().record_input(&NewInput::system(EVALUATION, "Review.", prompt())).unwrap();
    let request = Some(asked(&session));
    session.conversation().record_input(&NewInput::user(EVALUATION, "Wait, one more thing.")).unwrap();
    let (evaluation_id, content) = (EVALUATION.to_owned(), Some("Done.".to_owned()));
    session
        .conversation()
        .record_answer(&NewAnswer { evaluation_id, request, content, ..NewAnswer::default() })
        .unwrap();
    assert_eq!(point(&session), ResumePoint::AwaitProvider);
    let sent = session.conversation().read(EVALUATION).unwrap().unwrap().sent_messages();
    assert_eq!(sent.last().unwrap().role, Role::User);
}

/// Results were matched by order, and a missing result left a call open that another program may
/// have run.
#[test]
fn an_import_takes_results_by_the_ids_of_their_calls_and_says_which_are_not_known() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    session.conversation().record_input(&NewInput::system(EVALUATION, "Review.", prompt())).unwrap();
    let answer = answered(&session, None, vec![call("a", "look"), call("b", "look")]);
    run(&story, &session, answer, 0, "look");
    run(&story, &session, answer, 1, "fail");
    session.conversation().record_turn(EVALUATION, false).unwrap();
    let json = session.log().export().unwrap().to_json().unwrap();
    let changed = |change: &dyn Fn(&mut Vec<serde_json::Value>)| {
        let mut export: serde_json::Value = serde_json::from_str(&json).unwrap();
        let slices = export["slices"].as_array_mut().unwrap();
        let own =
            slices.iter_mut().find(|slice| slice["slice_type"].as_str().unwrap().contains("Conversation"));
        change(own.unwrap()["items"][0]["turns"][0]["tool_messages"].as_array_mut().unwrap());
        let export = foldlog::Export::from_json(&export.to_string()).unwrap();
        story.store.import(&export, &story.types, foldlog::ImportOptions::default())
    };
    let results = |session: &Session| -> Vec<_> {
        let sent = session.conversation().read(EVALUATION).unwrap().unwrap().sent_messages();
        sent.into_iter()
            .filter(|one| one.role == Role::Tool)
            .map(|one| (one.tool_call_id, one.content))
            .collect()
    };
    let swapped = changed(&|results| results.reverse()).unwrap();
    assert_eq!(results(&swapped), results(&session));
    let missing = changed(&|results| drop(results.remove(0))).unwrap();
    assert_eq!(results(&missing)[1], results(&session)[1]);
    assert_eq!(results(&missing)[0].1.as_deref(), Some("What became of this call is not known."));
    assert_eq!(point(&missing), ResumePoint::AwaitProvider, "no call runs that may have run elsewhere");
    let orphan = changed(&|results| results[0]["tool_call_id"] = "c".into()).unwrap_err();
    assert!(orphan.to_string().contains("does not request"), "{orphan}");
}

/// Only the record written last was checked, and that may be on an abandoned path.
#[test]
fn an_id_is_known_whichever_of_its_records_counts() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    let said = || NewInput::user(EVALUATION, "Go on.").with_id("message 1");
    session.conversation().record_input(&NewInput::system(EVALUATION, "Review.", prompt())).unwrap();
    let before = session.log().position().unwrap();
    let first = session.conversation().record_input(&said()).unwrap();
    session.rollback_to(before).unwrap();
    let second = session.conversation().record_input(&said()).unwrap();
    assert!(second > first, "the first one counts no more");
    session.rollback_to(first).unwrap();
    assert_eq!(session.conversation().record_input(&said()).unwrap(), first, "it counts again");
    let session = story.reopened(session);
    assert_eq!(session.conversation().record_input(&said()).unwrap(), first);
    session.rollback_to(second).unwrap();
    assert_eq!(session.conversation().record_input(&said()).unwrap(), second);
}

/// A result that a host recorded again after a restart appeared twice in the log.
#[test]
fn a_result_with_an_id_is_recorded_once() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    let answer = answered(&session, None, vec![call("a", "elsewhere"), call("b", "elsewhere")]);
    let result = |ordinal, id: &str| {
        let origin = foldlog::CallOrigin { answer, ordinal };
        NewInput::tool_result(EVALUATION, origin, "a", "it ran elsewhere").with_id(id)
    };
    let first = session.conversation().record_input(&result(0, "result 0")).unwrap();
    assert_eq!(session.conversation().record_input(&result(0, "result 0")).unwrap(), first);
    let session = story.reopened(session);
    assert_eq!(session.conversation().record_input(&result(0, "result 0")).unwrap(), first);
    assert!(session.conversation().record_input(&result(1, "result 1")).unwrap() > first);
    assert_eq!(point(&session), ResumePoint::AwaitProvider);
}

/// Says something with an id through its own handle, and succeeds.
struct Tell;

impl Tool for Tell {
    const NAME: &'static str = "tell";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        context
            .session()
            .conversation()
            .record_input(&NewInput::user(EVALUATION, "It is done.").with_id("report"))?;
        Ok(ToolResult::ok("told", ()))
    }
}

/// A message of a tool did not count as a duplicate of another handle's, even after the tool had
/// succeeded.
#[test]
fn what_a_tool_said_is_known_to_all_once_the_tool_has_succeeded() {
    let story = Story::new();
    let session = story.store.create(&story.types).unwrap();
    let answer = answered(&session, None, vec![call("a", "tell"), call("b", "tell")]);
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build().unwrap());
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Tell));
    let tell = |ordinal| {
        let call = ToolCall::new("tell", "{}").with_origin(answer, ordinal);
        runner.execute(&call, &ExecuteOptions::default()).unwrap()
    };
    let told = tell(0).begin + 1;
    let again = NewInput::user(EVALUATION, "It is done.").with_id("report");
    assert_eq!(session.conversation().record_input(&again).unwrap(), told);
    tell(1);
    let held = session.conversation().read(EVALUATION).unwrap().unwrap();
    let reports = held.messages().into_iter().filter(|one| one.role == Role::User).count();
    assert_eq!(reports, 1);
}
