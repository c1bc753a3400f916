//! Conversations whose process is killed: another process opens the session, recovers it and
//! resumes the evaluation. No answer is paid for twice, no committed tool runs twice, and the
//! conversation ends as if it had not been interrupted. Tests with generated conversations are in
//! `tests/suite/conversation/killed/`.

use crate::story;

use std::collections::BTreeMap;

use foldlog::conversation::{EntryContent, NewAnswer, NewInput, ResumePoint, Role, ToolCallRecord};
use foldlog::storage::CrashKind;
use foldlog::tools::{ExecuteOptions, RecoveredOperation, Recovery, ToolRegistry, ToolRunner};
use foldlog::{
    CallOrigin, Durability, Export, Idempotency, ImportOptions, Outcome, Session, Store, ToolInvocations,
};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply};
use foldlog_agent::{
    Error, EvaluateOptions, PromptAcceptance, PromptResponse, ProviderAdapter, ResumeFrom, UserMessage,
};
use story::{Desk, Said, Script, types};

const EVALUATION: &str = "the story";

fn options<'a>() -> EvaluateOptions<'a> {
    let messages = vec![UserMessage { id: "task".to_owned(), text: "Write the page.".to_owned() }];
    EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), messages, ..EvaluateOptions::default() }
}

/// Several calls in each answer, repeated ids within one answer and in later ones, a tool that
/// fails, an unknown tool, an expansion that skips its sibling, and a last answer without calls.
fn script() -> Script {
    Script::new(vec![
        ("first", vec![("c1", "look", "a"), ("c1", "look", "b"), ("c2", "add", "x")]),
        ("second", vec![("c1", "break", "y"), ("c3", "fly", "away"), ("c1", "add", "y")]),
        ("third", vec![("c4", "look", "c"), ("c5", "more", "details"), ("c6", "add", "z")]),
        ("fourth", vec![("c6", "add", "z"), ("c7", "look", "d")]),
        ("done", vec![]),
    ])
    .checked()
}

/// Evaluates the prompt. If the feature exists, every second request of a script is evaluated as a
/// future.
fn evaluate(desk: &Desk, script: &Script) -> Result<PromptResponse<String>, Error> {
    #[cfg(feature = "async")]
    if script.asked().len() % 2 == 1 {
        let provider = foldlog_agent::provider::BlockingProvider::new(script.provider());
        let adapter = std::sync::Arc::new(ProviderAdapter::new(provider).with_limits(story::limits()));
        let evaluation = adapter.evaluate_async(&desk.prompt().into(), &desk.state, options());
        return tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(evaluation);
    }
    script.adapter().evaluate(&desk.prompt(), &desk.state, options())
}

/// Returns the committed tools, by the notes that they write.
fn committed(desk: &Desk) -> Vec<String> {
    let conversation = desk.session().conversation().read(EVALUATION).unwrap();
    let messages: BTreeMap<_, _> = conversation
        .iter()
        .flat_map(|conversation| conversation.entries())
        .filter_map(|entry| match &entry.content {
            foldlog::conversation::EntryContent::Answer { message, .. } => {
                Some((entry.sequence, message.clone()))
            }
            _ => None,
        })
        .collect();
    let log = desk.session().log().slice::<ToolInvocations>().unwrap();
    let committed = log.iter().map(|item| item.unwrap()).filter(|item| item.outcome == Outcome::Committed);
    let noted = |origin: foldlog::CallOrigin| {
        let call = &messages[&origin.answer].tool_calls[origin.ordinal as usize];
        story::noted(call)
    };
    committed.filter_map(|item| item.origin.map(noted)).collect()
}

struct Uncut {
    sent: Vec<Said>,
    page: Vec<String>,
    records: u64,
}

fn uncut(script: &Script) -> Uncut {
    let desk = Desk::new();
    let before = desk.session().log().position().unwrap().get();
    let response = evaluate(&desk, script).unwrap();
    assert!(response.text.starts_with("done"));
    let records = desk.session().log().position().unwrap().get() - before;
    Uncut { sent: desk.sent(EVALUATION), page: desk.page(), records }
}

/// Resumes a killed evaluation, and checks that nothing happened twice. The host recovers the open
/// calls and runs them again. Without tools, like the binary, it leaves that to the evaluation.
fn finish(desk: &mut Desk, script: &Script, at: &str, has_tools: bool) {
    desk.open();
    let tools = if has_tools { desk.tools() } else { ToolRegistry::new() };
    ToolRunner::new(desk.state.clone(), tools).recover(&ExecuteOptions::default()).unwrap();
    let done = committed(desk);
    let ran: Vec<usize> = done.iter().map(|what| desk.ran.times(what)).collect();
    let conversation = desk.session().conversation().read(EVALUATION).unwrap();
    let answers: Vec<String> = conversation
        .iter()
        .flat_map(|conversation| conversation.messages())
        .filter(|message| message.role == Role::Assistant)
        .map(|message| message.content.unwrap())
        .collect();
    for (place, (_, calls)) in script.answers.iter().enumerate() {
        // All other calls are unique to their answer.
        let is_own = |call: &&ToolCallRecord| call.name != "more" && call.arguments.starts_with("{\"");
        let has_run = |call: &ToolCallRecord| desk.ran.times(&story::noted(call)) > 0;
        let ran = calls.iter().filter(is_own).any(has_run);
        assert!(!ran || place < answers.len(), "{at}: tools ran for an answer that is lost");
    }
    let asked = script.asked().len();
    let response = evaluate(desk, script).unwrap_or_else(|error| panic!("{at}: {error}"));
    assert!(response.text.starts_with("done"), "{at}");
    let again: Vec<usize> = script.asked().split_off(asked);
    assert_eq!(
        again,
        (answers.len()..script.answers.len()).collect::<Vec<_>>(),
        "{at}: a recorded answer was asked for again"
    );
    let kept = desk.session().conversation().read(EVALUATION).unwrap().unwrap().messages();
    let kept: Vec<_> = kept.into_iter().filter(|message| message.role == Role::Assistant).collect();
    for (answer, kept) in answers.iter().zip(kept) {
        assert_eq!(Some(answer), kept.content.as_ref(), "{at}: an answer was replaced");
    }
    let ran_now: Vec<usize> = done.iter().map(|what| desk.ran.times(what)).collect();
    assert_eq!(ran_now, ran, "{at}: a tool that had committed ran again: {done:?}");
}

#[test]
fn a_conversation_that_is_killed_at_any_record_ends_as_if_it_had_not_been() {
    let whole = uncut(&script());
    assert!(whole.records > 30, "{}", whole.records);
    for records in 1..=whole.records {
        let (mut desk, script) = (Desk::new(), script());
        desk.kill_behind(records);
        let at = format!("killed behind {records} of {} records", whole.records);
        let cut = evaluate(&desk, &script);
        // The last records only report the end to people, and are written together.
        assert!(cut.is_err() || records + 1 >= whole.records, "{at}");
        finish(&mut desk, &script, &at, records % 2 == 0);
        assert_eq!(desk.sent(EVALUATION), whole.sent, "{at}");
        assert_eq!(desk.page(), whole.page, "{at}");
        assert_eq!(
            desk.session().conversation().resume(Some(EVALUATION)).unwrap().point,
            ResumePoint::Complete,
            "{at}"
        );
    }
}

#[test]
fn a_conversation_that_is_killed_again_while_it_is_resumed_ends_so_too() {
    let whole = uncut(&script());
    for first in (1..whole.records).step_by(3) {
        for second in [1, 2, 4, 7] {
            let (mut desk, script) = (Desk::new(), script());
            let at = format!("killed behind {first} records, and {second} later");
            desk.kill_behind(first);
            let _ = evaluate(&desk, &script);
            desk.open();
            desk.kill_behind(second);
            let _ = desk.runner().recover(&ExecuteOptions::default());
            let _ = evaluate(&desk, &script);
            finish(&mut desk, &script, &at, second % 2 == 0);
            assert_eq!(
                (desk.sent(EVALUATION), desk.page()),
                (whole.sent.clone(), whole.page.clone()),
                "{at}"
            );
        }
    }
}

/// After a power cut, unsynced records are lost or torn. Answers whose tools have run remain, and
/// so do committed changes.
#[test]
fn a_conversation_whose_power_is_cut_at_any_record_ends_as_if_it_had_not_been() {
    let whole = uncut(&script());
    for durability in [Durability::Boundary, Durability::Every] {
        for records in 1..=whole.records {
            let (mut desk, script) = (Desk::at(Idempotency::Natural, durability), script());
            let at = format!("{durability:?}, cut behind {records} records");
            desk.crash_behind(records, CrashKind::Power { seed: records });
            let _ = evaluate(&desk, &script);
            finish(&mut desk, &script, &at, records % 2 == 1);
            assert_eq!(
                (desk.sent(EVALUATION), desk.page()),
                (whole.sent.clone(), whole.page.clone()),
                "{at}"
            );
        }
    }
}

/// One of two parallel calls had run when the process ended (adk-python#7108). The resumed process
/// sent the answer with one result, the provider refused it, and the other call never ran.
#[test]
fn an_unanswered_parallel_call_runs_when_the_conversation_is_resumed() {
    let script =
        Script::new(vec![("both", vec![("a", "add", "one"), ("b", "add", "two")]), ("done", vec![])]);
    let mut desk = Desk::new();
    for records in 1.. {
        desk = Desk::new();
        desk.kill_behind(records);
        assert!(evaluate(&desk, &script).is_err(), "the process was never killed between the two");
        desk.open();
        let is_between = !desk.session().calls().is_interrupted()
            && desk.session().conversation().resume(Some(EVALUATION)).unwrap().point
                == ResumePoint::RunTools(vec![1]);
        if is_between {
            break;
        }
    }
    evaluate(&desk, &script).unwrap();
    assert_eq!((desk.ran.times("add one"), desk.ran.times("add two")), (1, 1));
    assert_eq!(desk.page(), ["one", "two"]);
    let results: Vec<_> = desk.sent(EVALUATION).into_iter().filter(|said| said.role == Role::Tool).collect();
    assert_eq!(results.iter().map(|said| said.call_id.as_deref().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
}

/// A host that was killed before it reported the result evaluates again, without a request.
#[test]
fn a_complete_evaluation_gives_its_recorded_answer_and_asks_nobody() {
    let (mut desk, script) = (Desk::new(), script());
    let first = evaluate(&desk, &script).unwrap();
    desk.reopen();
    let records = desk.session().log().position();
    let again = evaluate(&desk, &script).unwrap();
    assert_eq!(again, first);
    assert_eq!((script.asked().len(), desk.session().log().position()), (5, records));
}

/// It is unknown whether the tool did its work, so it does not run again before a decision.
#[test]
fn a_tool_that_may_have_done_its_work_waits_for_a_decision() {
    let script = Script::new(vec![("one", vec![("a", "add", "one")]), ("done", vec![])]);
    let mut desk = Desk::with(Idempotency::Manual);
    for records in 1.. {
        desk = Desk::with(Idempotency::Manual);
        desk.kill_behind(records);
        assert!(evaluate(&desk, &script).is_err());
        desk.open();
        if desk.session().calls().is_interrupted() {
            break;
        }
    }
    // Nothing continues before the recovery.
    assert!(matches!(evaluate(&desk, &script), Err(Error::Engine(foldlog::Error::Interrupted { .. }))));
    desk.reopen();
    let ran = desk.ran.times("add one");
    let Err(Error::ToolIdempotency { operation, tool }) = evaluate(&desk, &script) else {
        panic!("it went on")
    };
    assert_eq!((tool.as_str(), desk.ran.times("add one")), ("add", ran));
    desk.session()
        .calls()
        .settle(operation, &foldlog::Settlement::failed(), "a person", "it did nothing")
        .unwrap();
    evaluate(&desk, &script).unwrap();
    assert_eq!((desk.ran.times("add one"), script.asked().last()), (ran, Some(&1)));
    let sent = desk.sent(EVALUATION);
    assert!(sent.iter().any(|said| said.role == Role::Tool && said.is_error), "{sent:?}");
}

/// A recovery ran a call again although its answer had been rolled back. STATE contained
/// unrequested changes, twice in the end.
#[test]
fn an_interrupted_call_does_not_run_again_once_its_answer_is_rolled_back() {
    let script = Script::new(vec![("one", vec![("a", "add", "one")]), ("done", vec![])]);
    let mut desk = Desk::new();
    for records in 1.. {
        desk = Desk::new();
        desk.kill_behind(records);
        assert!(evaluate(&desk, &script).is_err(), "no call was ever interrupted");
        desk.open();
        if desk.session().calls().is_interrupted() {
            break;
        }
    }
    // By a process without tools, like the binary.
    ToolRunner::new(desk.state.clone(), ToolRegistry::new()).recover(&ExecuteOptions::default()).unwrap();
    let first = desk.session().conversation().read(EVALUATION).unwrap().unwrap().entries()[0].sequence;
    desk.session().rollback_to(first).unwrap();
    let ran = desk.ran.times("add one");
    let recovered = desk.runner().recover(&ExecuteOptions::default()).unwrap();
    assert!(
        matches!(recovered[..], [RecoveredOperation { recovery: Recovery::NeedsSettling(_), .. }]),
        "{recovered:?}"
    );
    assert_eq!((desk.ran.times("add one"), desk.page()), (ran, vec![]));
    evaluate(&desk, &script).unwrap();
    assert_eq!((desk.ran.times("add one"), desk.page()), (ran + 1, vec!["one".to_owned()]));
}

#[test]
fn a_conversation_of_another_prompt_is_refused_with_both_identities_until_it_is_accepted() {
    let (mut desk, script) = (Desk::new(), script());
    desk.kill_behind(12);
    evaluate(&desk, &script).unwrap_err();
    desk.reopen();
    let changed = desk.prompt().with_section(foldlog_agent::MarkdownSection::new("new", "Something else."));
    let adapter = script.adapter();
    let Err(Error::ConversationStateMismatch { recorded, given }) =
        adapter.evaluate(&changed, &desk.state, options())
    else {
        panic!("it went on with another prompt")
    };
    assert_eq!((*recorded).clone(), desk.prompt().identity());
    assert_eq!((*given).clone(), changed.identity());
    desk.session()
        .conversation()
        .accept_prompt(EVALUATION, &recorded, &given, "a person", "it is better")
        .unwrap();
    adapter.evaluate(&changed, &desk.state, options()).unwrap();
    let system = desk.sent(EVALUATION).remove(0);
    assert!(system.content.unwrap().contains("Something else."));
}

/// The digest excludes the names, so only the namespace distinguishes these prompts.
#[test]
fn a_conversation_of_a_prompt_in_another_namespace_is_refused_with_and_without_its_digest() {
    let (mut desk, script) = (Desk::new(), script());
    desk.kill_behind(12);
    evaluate(&desk, &script).unwrap_err();
    desk.reopen();
    let other = story::prompt_in("elsewhere", desk.tools());
    let (recorded, given) = (desk.prompt().identity(), other.identity());
    assert_eq!((&recorded.key, recorded.digest), (&given.key, given.digest));
    let refused = script.adapter().evaluate(&other, &desk.state, options());
    assert!(
        matches!(&refused, Err(Error::ConversationStateMismatch { recorded: was, given: now })
            if (&**was, &**now) == (&recorded, &given)),
        "{refused:?}"
    );
    // A state names its prompt without a digest.
    let state = desk.session().conversation().read(EVALUATION).unwrap().unwrap().state().unwrap();
    for record in [true, false] {
        let elsewhere = Desk::new();
        let resume_from = ResumeFrom::Conversation(Box::new(state.clone()));
        let from = EvaluateOptions { resume_from, record, ..EvaluateOptions::default() };
        let refused = script.adapter().evaluate(&other, &elsewhere.state, from);
        assert!(matches!(refused, Err(Error::ConversationStateMismatch { .. })), "{refused:?}");
    }
}

/// The host had to record the acceptance separately before it evaluated again.
#[test]
fn a_changed_prompt_is_accepted_by_an_option_and_recorded_once() {
    let accepts = || {
        let acceptance = PromptAcceptance { by: "a person".to_owned(), reason: "it is better".to_owned() };
        EvaluateOptions { accept_prompt: Some(acceptance), ..options() }
    };
    let accepted = |desk: &Desk| -> Vec<_> {
        let conversation = desk.session().conversation().read(EVALUATION).unwrap().unwrap();
        let accepted = conversation.entries().iter().filter_map(|entry| match &entry.content {
            EntryContent::PromptAccepted { was, now, by, reason } => {
                Some((was.clone(), now.clone(), by.clone(), reason.clone()))
            }
            _ => None,
        });
        accepted.collect()
    };
    let (mut desk, script) = (Desk::new(), script());
    desk.kill_behind(12);
    evaluate(&desk, &script).unwrap_err();
    desk.reopen();
    let adapter = script.adapter();
    // The prompt is the same: there is nothing to accept.
    desk.kill_behind(2);
    adapter.evaluate(&desk.prompt(), &desk.state, accepts()).unwrap_err();
    desk.reopen();
    assert_eq!(accepted(&desk), []);

    let changed = desk.prompt().with_section(foldlog_agent::MarkdownSection::new("new", "Something else."));
    let refused = adapter.evaluate(&changed, &desk.state, options());
    assert!(matches!(refused, Err(Error::ConversationStateMismatch { .. })), "{refused:?}");
    let (was, now) = (desk.prompt().identity(), changed.identity());
    for _ in 0..2 {
        adapter.evaluate(&changed, &desk.state, accepts()).unwrap();
        let expected = (was.clone(), now.clone(), "a person".to_owned(), "it is better".to_owned());
        assert_eq!(accepted(&desk), [expected]);
    }
    let system = desk.sent(EVALUATION).remove(0);
    assert!(system.content.unwrap().contains("Something else."));
}

/// A state names its prompt without a digest.
#[test]
fn a_conversation_from_elsewhere_goes_on_with_another_prompt_if_the_host_accepts_it() {
    let (desk, script) = (Desk::new(), script());
    evaluate(&desk, &script).unwrap();
    let mut state = desk.session().conversation().read(EVALUATION).unwrap().unwrap().state().unwrap();
    state.turns.truncate(1);
    state.prompt_key = "another".to_owned();
    for record in [true, false] {
        let other = Desk::new();
        let again = self::script();
        let from = |accept_prompt| EvaluateOptions {
            resume_from: ResumeFrom::Conversation(Box::new(state.clone())),
            record,
            accept_prompt,
            ..EvaluateOptions::default()
        };
        let refused = again.adapter().evaluate(&other.prompt(), &other.state, from(None));
        assert!(matches!(refused, Err(Error::ConversationStateMismatch { .. })), "{refused:?}");
        let acceptance = PromptAcceptance { by: "a person".to_owned(), reason: "it moved".to_owned() };
        again.adapter().evaluate(&other.prompt(), &other.state, from(Some(acceptance))).unwrap();
        let conversation = other.session().conversation().read(EVALUATION).unwrap();
        assert_eq!(conversation.is_some(), record);
        if let Some(conversation) = conversation {
            assert_eq!(conversation.prompt(), Some(&other.prompt().identity()));
        }
    }
}

/// Another program's export names the prompt without a digest, and was treated as one of a changed
/// prompt.
#[test]
fn a_conversation_without_a_digest_of_its_prompt_goes_on_with_the_prompt_of_its_names() {
    let script = script();
    let mut desk = Desk::new();
    desk.kill_behind(24);
    evaluate(&desk, &script).unwrap_err();
    desk.reopen();
    let held = desk.session().conversation().read(EVALUATION).unwrap().unwrap().state().unwrap();
    assert!(!held.turns.is_empty());
    let mut export =
        serde_json::from_str(&desk.session().log().export().unwrap().to_json().unwrap()).unwrap();
    without_digests(&mut export);
    let export = Export::from_json(&export.to_string()).unwrap();
    let imported = desk.store().import(&export, &types(), ImportOptions::default()).unwrap();
    let elsewhere = Desk { id: imported.id(), state: story::state_of(imported), ..Desk::new() };
    let renderings =
        || elsewhere.session().log().slice::<foldlog_agent::events::PromptRenderings>().unwrap().len();
    let (rendered, turns) = (renderings(), script.asked().len());
    let other = foldlog_agent::Prompt::text("story", "another page").with_tools(desk.tools());
    let refused = script.adapter().evaluate(&other, &elsewhere.state, options());
    assert!(matches!(refused, Err(Error::ConversationStateMismatch { .. })), "{refused:?}");
    let response = script.adapter().evaluate(&desk.prompt(), &elsewhere.state, options()).unwrap();
    assert!(response.text.starts_with("done"), "{}", response.text);
    assert!(!script.asked()[turns..].contains(&0), "it began anew");
    assert_eq!(renderings(), rendered + 1, "the prompt is rendered for the expansion alone");
}

/// Removes the fields of a prompt that only foldlog writes.
fn without_digests(json: &mut serde_json::Value) {
    match json {
        serde_json::Value::Object(fields) => {
            if fields.contains_key("turns") {
                fields.remove("prompt_digest");
            }
            fields.values_mut().for_each(without_digests);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(without_digests),
        _ => {}
    }
}

/// A state from elsewhere becomes the start of the conversation. The outcome of its open call is
/// unknown, so the call does not run, and the model is informed.
#[test]
fn a_conversation_from_elsewhere_goes_on_and_its_open_calls_do_not_run() {
    let (desk, script) = (Desk::new(), script());
    evaluate(&desk, &script).unwrap();
    let mut state = desk.session().conversation().read(EVALUATION).unwrap().unwrap().state().unwrap();
    state.turns.truncate(1);
    state.turns[0].tool_messages.pop();
    for record in [true, false] {
        let other = Desk::new();
        let again = self::script();
        let resume_from = ResumeFrom::Conversation(Box::new(state.clone()));
        let options = EvaluateOptions { resume_from, record, ..EvaluateOptions::default() };
        let response = again.adapter().evaluate(&other.prompt(), &other.state, options).unwrap();
        assert_eq!((response.evaluation_id.as_str(), again.asked()), (EVALUATION, vec![1, 2, 3, 4]));
        assert_eq!(other.ran.times("add x"), 0, "nobody knows whether it ran");
        let point = other.session().conversation().resume(None).unwrap().point;
        assert_eq!(point == ResumePoint::NotRecorded, !record);
        if record {
            let unknown = other.sent(EVALUATION).remove(5);
            assert!(unknown.content.unwrap().contains("not known"));
            assert_eq!(unknown.call_id.as_deref(), Some("c2"));
        }
    }
}

/// A process is killed during an import. The next one imports the rest, and no imported call runs,
/// even if a process resumes the partial import.
#[test]
fn an_import_that_is_killed_is_done_by_the_next_process() {
    let (desk, script) = (Desk::new(), script());
    evaluate(&desk, &script).unwrap();
    let mut state = desk.session().conversation().read(EVALUATION).unwrap().unwrap().state().unwrap();
    state.turns.truncate(2);
    let from = || EvaluateOptions {
        resume_from: ResumeFrom::Conversation(Box::new(state.clone())),
        ..EvaluateOptions::default()
    };
    let imports =
        |desk: &Desk, script: &Script| script.adapter().evaluate(&desk.prompt(), &desk.state, from());
    let whole = Desk::new();
    imports(&whole, &self::script()).unwrap();
    let ran = whole.ran.lines();
    for records in 1..13 {
        let (mut desk, script) = (Desk::new(), self::script());
        desk.kill_behind(records);
        imports(&desk, &script).unwrap_err();
        desk.reopen();
        imports(&desk, &script).unwrap();
        assert_eq!(desk.sent(EVALUATION), whole.sent(EVALUATION), "killed behind {records} records");
        assert_eq!(desk.ran.lines(), ran);

        let (mut desk, script) = (Desk::new(), self::script());
        desk.kill_behind(records);
        imports(&desk, &script).unwrap_err();
        desk.reopen();
        let held = desk.session().conversation().read(EVALUATION).unwrap().map_or(0, |held| {
            held.messages().iter().filter(|message| message.role == Role::Assistant).count()
        });
        evaluate(&desk, &script).unwrap();
        let imported = ["look a", "look b", "add x", "add y"].into_iter().take([0, 3, 4][held]);
        assert!(
            imported.into_iter().all(|what| desk.ran.times(what) == 0),
            "killed behind {records} records"
        );
    }
}

/// A failed call became a successful one when a conversation was exported or imported. No export
/// contained a conversation without a rendered prompt.
#[test]
fn an_exported_conversation_keeps_its_failures_and_needs_no_prompt() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let session = store.create(&types()).unwrap();
    session.conversation().record_input(&NewInput::user("one", "go")).unwrap();
    let calls = vec![ToolCallRecord { call_id: "a".into(), name: "add".into(), arguments: "{}".into() }];
    let answer = NewAnswer { evaluation_id: "one".to_owned(), calls, ..NewAnswer::default() };
    let answer = session.conversation().record_answer(&answer).unwrap();
    let origin = CallOrigin { answer, ordinal: 0 };
    let failed = NewInput { is_error: true, ..NewInput::tool_result("one", origin, "a", "no") };
    session.conversation().record_input(&failed).unwrap();
    session.conversation().record_turn("one", false).unwrap();
    let sent = |session: &Session| -> Vec<Said> {
        let conversation = session.conversation().read("one").unwrap().unwrap();
        conversation.sent_messages().iter().map(Said::of).collect()
    };
    let before = sent(&session);
    assert!(before[2].is_error);
    let state = session.conversation().read("one").unwrap().unwrap().state().unwrap();
    assert_eq!((state.system_message.content.as_deref(), state.turns.len()), (None, 1));
    let json = session.log().export().unwrap().to_json().unwrap();
    let export = Export::from_json(&json).unwrap();
    let imported = store.import(&export, &types(), ImportOptions::default()).unwrap();
    assert_eq!(sent(&imported), before);

    // In another session, recorded or not, it continues with the given prompt.
    for record in [true, false] {
        let desk = Desk::new();
        let provider = ScriptedProvider::new([ScriptedReply::text("done")]);
        let resume_from = ResumeFrom::Conversation(Box::new(state.clone()));
        let options = EvaluateOptions { resume_from, record, ..EvaluateOptions::default() };
        let adapter = ProviderAdapter::new(provider);
        adapter.evaluate(&desk.prompt(), &desk.state, options).unwrap();
        let sent: Vec<Said> = adapter.provider().seen_requests()[0].messages.iter().map(Said::of).collect();
        assert_eq!((sent[0].role, &sent[1..]), (Role::System, &before[..]), "recorded: {record}");
    }
}
