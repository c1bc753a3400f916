//! Conversations whose tools ask a person, or leave their results to one. The provider waits until
//! all questions are answered, in whichever process that happens.

use crate::story;

use foldlog::conversation::ResumePoint;
use foldlog::tools::{ExecuteOptions, Tool, ToolContext, ToolError, ToolResult, ToolRunner};
use foldlog::{Error as EngineError, PendingQuestion, Settlement, SuspensionForm, Value};
use foldlog_agent::{Error, EvaluateOptions, PromptResponse, UserMessage};
use story::{Desk, Line, Script};

const EVALUATION: &str = "the story";

fn options<'a>() -> EvaluateOptions<'a> {
    let messages = vec![UserMessage { id: "task".to_owned(), text: "Write the page.".to_owned() }];
    EvaluateOptions { evaluation_id: Some(EVALUATION.to_owned()), messages, ..EvaluateOptions::default() }
}

fn evaluate(desk: &Desk, script: &Script) -> Result<PromptResponse<String>, Error> {
    script.adapter().evaluate(&desk.prompt(), &desk.state, options())
}

/// Calls that ask and others that do not, one that is refused, one whose result comes from a
/// person, and an expansion next to a question.
fn script() -> Script {
    Script::new(vec![
        ("first", vec![("c1", "ask", "a"), ("c2", "add", "x"), ("c1", "ask", "no")]),
        ("second", vec![("c3", "hand", "b"), ("c4", "look", "c")]),
        ("third", vec![("c5", "ask", "d"), ("c6", "more", "details"), ("c7", "add", "z")]),
        ("done", vec![]),
    ])
    .checked()
}

/// Answers a question as a person would.
fn answer(desk: &Desk, asked: &PendingQuestion) -> foldlog::Result<()> {
    let settlement = match asked.form {
        SuspensionForm::Awaits => Settlement::committed(Some(Value::from("It was read."))),
        _ if asked.question == "Add no?" => Settlement::failed().showing("No."),
        _ => Settlement::approved(asked.digest),
    };
    desk.session().calls().settle(asked.operation, &settlement, "Ada", "").map(drop)
}

/// Evaluates until the end, and answers each question on the way. Returns the number of
/// suspensions.
fn finish(desk: &Desk, script: &Script) -> usize {
    for suspended in 0..10 {
        match evaluate(desk, script) {
            Ok(response) => {
                assert!(response.text.starts_with("done"));
                return suspended;
            }
            Err(Error::Suspended { operations, calls }) => {
                let pending = desk.session().calls().pending_questions().unwrap();
                assert!(!pending.is_empty() && calls.len() == operations.len());
                let resume = desk.session().conversation().resume(Some(EVALUATION)).unwrap();
                assert_eq!(resume.point, ResumePoint::NeedsSettle(operations));
                pending.iter().for_each(|asked| answer(desk, asked).unwrap());
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it is suspended for ever")
}

#[test]
fn the_provider_waits_for_the_answers_while_the_other_calls_run() {
    let (desk, script) = (Desk::new(), script());
    let Err(Error::Suspended { calls, .. }) = evaluate(&desk, &script) else { panic!("it asks") };
    let questions: Vec<&str> = calls.iter().map(|call| call.question.as_str()).collect();
    assert_eq!(questions, ["Add a?", "Add no?"]);
    assert_eq!((desk.page(), script.asked()), (vec!["x".to_owned()], vec![0]), "the sibling has run");
    let Err(error @ Error::Suspended { .. }) = evaluate(&desk, &script) else { panic!("it still asks") };
    let text = error.to_string();
    assert!(text.contains("`SessionCalls::settle`, and resume") && text.contains("Add a?"), "{text}");
    assert_eq!(finish(&desk, &script), 3);
    assert_eq!(script.asked(), [0, 1, 2, 3], "each answer was asked for once");
    assert_eq!(desk.page(), ["x", "a", "b", "d"]);
    let said: Vec<String> = desk.sent(EVALUATION).into_iter().filter_map(|said| said.content).collect();
    for expected in ["added a, as Ada agreed", "No.", "It was read.", "added d, as Ada agreed"] {
        assert!(said.iter().any(|said| said == expected), "{expected} is not among {said:?}");
    }
}

/// Wherever a process ends, each question is answered at most once and each answer counts, no call
/// runs without one, and the conversation ends as if it had not been interrupted.
#[test]
fn a_conversation_that_is_killed_at_any_record_while_it_asks_ends_as_if_it_had_not_been() {
    let (whole, of_whole) = (Desk::new(), script());
    let before = whole.session().log().position().unwrap().get();
    finish(&whole, &of_whole);
    let records = whole.session().log().position().unwrap().get() - before;
    for killed in 1..records {
        let (mut desk, script) = (Desk::new(), script());
        desk.kill_behind(killed);
        // The answering person is part of the process, and is lost with it.
        while let Err(Error::Suspended { .. }) = evaluate(&desk, &script) {
            let pending = desk.session().calls().pending_questions().unwrap_or_default();
            if pending.is_empty() || pending.iter().any(|asked| answer(&desk, asked).is_err()) {
                break;
            }
        }
        desk.reopen();
        finish(&desk, &script);
        let at = format!("killed behind {killed} of {records} records");
        assert_eq!(desk.sent(EVALUATION), whole.sent(EVALUATION), "{at}");
        assert_eq!(desk.page().len(), whole.page().len(), "{at}");
        assert!(desk.ran.times("ask no") == 0, "{at}");
        assert_eq!(
            desk.session().conversation().resume(Some(EVALUATION)).unwrap().point,
            ResumePoint::Complete,
            "{at}"
        );
    }
}

/// Runs a conversation of its own in a child session, whose tools ask.
struct Delegate(story::Ran);

impl Tool for Delegate {
    const NAME: &'static str = "delegate";
    type Parameters = Line;
    type Output = ();

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        context.session().dispatch(Line { text: format!("delegated {}", line.text) })?;
        let child = context.child(0, &story::types())?;
        let tools = story::tools(&self.0, foldlog::Idempotency::Natural);
        let script = Script::new(vec![("child", vec![("k1", "ask", "within")]), ("child done", vec![])]);
        let response = script.adapter().evaluate(&story::prompt_of(tools), &child, options())?;
        Ok(ToolResult::ok(response.text.split(" nonce ").next().unwrap_or_default(), ()))
    }
}

/// A parent whose child asks is rolled back, so that it leaves no changes, and runs again once the
/// question is answered.
#[test]
fn a_tool_whose_conversation_asks_is_rolled_back_and_runs_again_once_that_is_answered() {
    let mut desk = Desk::new();
    let script = Script::new(vec![("first", vec![("c1", "delegate", "it")]), ("done", vec![])]).checked();
    let run = |desk: &Desk| {
        let tools = desk.tools().with(Delegate(desk.ran.clone()));
        script.adapter().evaluate(&story::prompt_of(tools), &desk.state, options())
    };
    let Err(Error::Suspended { calls, .. }) = run(&desk) else { panic!("the child asks") };
    assert_eq!((calls.len(), calls[0].question.as_str()), (1, "Add within?"));
    assert_ne!(calls[0].session, desk.id, "the child's session holds the question");
    assert_eq!((desk.page(), desk.session().calls().pending_questions().unwrap()), (vec![], vec![]));
    let again = run(&desk);
    assert!(matches!(&again, Err(Error::Suspended { calls: again, .. }) if *again == calls), "{again:?}");

    desk.reopen();
    let store = desk.store();
    let (session, operation) = (calls[0].session, calls[0].operation);
    let digest = store.open_untyped(session).unwrap().calls().pending_questions().unwrap()[0].digest;
    store.settle(session, operation, &Settlement::approved(digest), "Ada", "").unwrap();
    let response = run(&desk).unwrap();
    assert!(response.text.starts_with("done"));
    assert_eq!((desk.page(), desk.ran.times("ask within")), (vec!["delegated it".to_owned()], 1));
    let said: Vec<String> = desk.sent(EVALUATION).into_iter().filter_map(|said| said.content).collect();
    assert!(said.iter().any(|said| said == "child done"), "{said:?}");
}

/// A call without a conversation: the host answers the question, and runs it again.
#[test]
fn a_hosts_own_call_is_suspended_in_the_same_way() {
    let desk = Desk::new();
    let runner = ToolRunner::new(desk.state.clone(), desk.tools());
    let call = foldlog::tools::ToolCall::new("ask", r#"{"text":"a"}"#);
    let asked = runner.execute(&call, &ExecuteOptions::default());
    assert!(matches!(asked, Err(EngineError::Suspended { .. })), "{asked:?}");
    answer(&desk, &desk.session().calls().pending_questions().unwrap()[0]).unwrap();
    runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(desk.page(), ["a"]);
}
