//! The steps of an evaluation, from the prompt to the response, and their records.

use foldlog::conversation::EntryContent;
use foldlog::conversation::Role::{self, Assistant, Tool, User};
use foldlog::inspect::{self, LogReader};
use foldlog::{Outcome, ToolInvocations};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::events::{PromptExecutions, PromptRenderings};
use foldlog_agent::{MarkdownSection, Prompt, SectionVisibility};
use foldlog_codec::RecordKind;
use serde_json::{Value, json};

use super::world::{EVALUATION, World, asking, prompt, tools};

fn said(role: Role, text: &str) -> (Role, String) {
    (role, text.to_owned())
}

#[test]
fn a_text_comes_back_is_recorded_and_is_answered_from_the_log_from_then_on() {
    let world = World::new(&json!([{"turn": true}, {"text": "It snows."}, {"result": "It snows."}]));
    world.run(|host| {
        let response = host.ask("Oslo?").unwrap();
        assert_eq!((response.text.as_str(), response.evaluation_id.as_str()), ("It snows.", EVALUATION));
        assert_eq!(
            (response.prompt_name.as_str(), response.stop.as_deref()),
            ("tests:page", Some("completed"))
        );
        assert_eq!(host.said(), [said(User, "Oslo?"), said(Assistant, "It snows.")]);
        assert_eq!(host.ask("Oslo?").unwrap().text, "It snows.");
    });
    assert_eq!(world.starts().len(), 1);
}

#[test]
fn a_tool_of_the_host_runs_as_a_transaction_and_its_result_reaches_the_model() {
    let world = World::new(&json!([
        {"turn": true},
        {"tool": "add", "input": {"text": "one"}}, {"tool": "add", "input": {"text": "break"}},
        {"tool": "weather", "input": {"city": "Oslo"}},
        {"text": "$results"}, {"result": "$results"},
    ]));
    let results = "toolu_1: added one|toolu_2: Tool error: it broke|toolu_3: snow";
    world.run(|host| {
        assert_eq!(host.ask("Write.").unwrap().text, results);
        assert_eq!(host.page(), ["one"]);
        let said = host.said();
        let roles: Vec<_> = said.iter().map(|(role, _)| *role).collect();
        assert_eq!(roles, [User, Assistant, Tool, Assistant, Tool, Assistant, Tool, Assistant]);
        assert_eq!(said[4], (Tool, "it broke".to_owned()));
    });
    let outcomes: Vec<_> = world.ledger().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, ["committed", "failed", "committed"]);
    assert_eq!(world.file("page").as_deref(), Some("one\n"));
}

/// The program's session is recorded before the program starts, and an answer before its calls
/// start. The last state follows the event of the executed prompt.
#[test]
fn the_steps_of_an_evaluation_are_recorded_in_their_order() {
    let world = World::new(&json!([
        {"turn": true}, {"tool": "add", "input": {"text": "one"}}, {"text": "done"}, {"result": "done"},
    ]));
    world.run(|host| host.ask("Write.").unwrap().text);
    let mut steps = Vec::new();
    inspect::walk(&world.dir(), &mut |frame| {
        let body = String::from_utf8_lossy(frame.record.body).into_owned();
        let holds = |text: &str| body.contains(text);
        let step = match frame.record.kind {
            RecordKind::Dispatch if holds("prompt_digest") => "rendered",
            RecordKind::Dispatch if holds("elapsed_us") && holds("is_resume") => "executed",
            RecordKind::Observed if holds("claude.session_id") => "id",
            RecordKind::Observed if holds("claude.started") => "started",
            RecordKind::AdapterState => "state",
            RecordKind::Answer => "answer",
            RecordKind::ToolBegin => "call begins",
            RecordKind::ToolEnd => "call ends",
            RecordKind::Turn => "turn",
            _ => return Ok(()),
        };
        steps.push(step);
        Ok(())
    })
    .unwrap();
    steps.dedup();
    assert_eq!(
        steps,
        [
            "rendered",
            "id",
            "state",
            "started",
            "answer",
            "call begins",
            "call ends",
            "turn",
            "answer",
            "turn",
            "state",
            "executed"
        ]
    );
}

/// Each evaluation has its own session of the program, unless the adapter is stateful or the log
/// resumes one.
#[test]
fn each_evaluation_begins_a_session_of_its_own() {
    let world = World::new(&json!([{"turn": true}, {"text": "$history"}, {"result": "$history"}]));
    world.run(|host| {
        let adapter = host.adapter();
        for text in ["first", "second"] {
            let options = foldlog_agent::EvaluateOptions { evaluation_id: Some(text.into()), ..asking(text) };
            assert_eq!(adapter.evaluate(&prompt(), &host.state, options).unwrap().text, text);
        }
        assert_eq!(adapter.session_id(), None, "an adapter that is not stateful keeps a session");
    });
    let starts = world.starts();
    let arguments = |start: &Value| -> Vec<String> {
        let arguments = start["arguments"].as_array().unwrap().iter();
        arguments.map(|argument| argument.as_str().unwrap().to_owned()).collect()
    };
    let [first, second] = &starts[..] else { panic!("{starts:?}") };
    let [first, second] = [arguments(first), arguments(second)];
    let id = |arguments: &[String]| {
        arguments.iter().find(|argument| argument.starts_with("--session-id=")).unwrap().clone()
    };
    assert_ne!(id(&first), id(&second));
    assert!(!first.iter().chain(&second).any(|argument| argument.starts_with("--resume")));
}

/// The system prompt consists of the rendered sections, including those that overrides show.
#[test]
fn the_rendered_prompt_is_the_system_prompt_and_overrides_change_it() {
    let world = World::new(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    let prompt: Prompt = Prompt::text("tests", "sections")
        .with_section(
            MarkdownSection::new("task", "Write about ${what}.")
                .with_parameter("what", "snow")
                .with_title("Task"),
        )
        .with_section(
            MarkdownSection::new("details", "All of them.")
                .with_summary("There are details.")
                .with_visibility(SectionVisibility::Summary),
        );
    world.run(|host| {
        let mut options = asking("Go.");
        options.visibility_overrides =
            [("details".parse().unwrap(), SectionVisibility::Full)].into_iter().collect();
        host.adapter().evaluate(&prompt, &host.state, options).unwrap();
    });
    let shown = world.argument("--system-prompt").unwrap();
    assert!(shown.contains("Task") && shown.contains("Write about snow."), "{shown}");
    assert!(shown.contains("All of them.") && !shown.contains("There are details."), "{shown}");
}

#[test]
fn the_events_of_an_evaluation_are_records() {
    let world = World::new(&json!([
        {"turn": true},
        {"tool": "add", "input": {"text": "one"}}, {"tool": "add", "input": {"text": "break"}},
        {"text": "done"}, {"result": "done", "total_cost_usd": 0.0125},
    ]));
    let begins = world.run(|host| {
        host.ask("Write.").unwrap();
        let rendered = host.session().log().slice::<PromptRenderings>().unwrap();
        let rendered = rendered.iter().next().unwrap().unwrap();
        assert_eq!((rendered.prompt_key.as_str(), rendered.adapter.as_str()), ("page", "claude_agent_sdk"));
        assert_eq!(rendered.tools, ["add", "weather"]);
        let conversation = host.session().conversation().read(EVALUATION).unwrap().unwrap();
        let entry = |sequence| {
            let is_it = |entry: &&foldlog::conversation::ConversationRecord| Some(entry.sequence) == sequence;
            &conversation.entries().iter().find(is_it).unwrap().content
        };
        // The text of the prompt.
        let EntryContent::Input { message, .. } = entry(rendered.input) else { panic!("{rendered:?}") };
        let text = prompt().render(&Default::default()).unwrap().text;
        assert_eq!((message.role, message.content.as_deref()), (Role::System, Some(text.as_str())));
        let invoked = host.session().log().slice::<ToolInvocations>().unwrap();
        let invoked: Vec<_> = invoked.iter().map(Result::unwrap).collect();
        // The arguments of each call, and its result for the model.
        let told = invoked.iter().map(|one| {
            let origin = one.origin.unwrap();
            let EntryContent::Answer { message, .. } = entry(Some(origin.answer)) else { panic!("{one:?}") };
            let arguments = message.tool_calls[origin.ordinal as usize].arguments.clone();
            let result = conversation.entries().iter().find_map(|entry| match &entry.content {
                EntryContent::CallEnded { operation, shown, .. } if *operation == one.operation => {
                    shown.clone()
                }
                _ => None,
            });
            (arguments, result.unwrap())
        });
        let told: Vec<_> = told.collect();
        let expected = [(r#"{"text":"one"}"#, "added one"), (r#"{"text":"break"}"#, "it broke")];
        assert_eq!(told, expected.map(|(given, told)| (given.to_owned(), told.to_owned())));
        let begins: Vec<_> = invoked.iter().map(|one| one.begin).collect();
        let invoked: Vec<_> = invoked
            .iter()
            .map(|one| (one.tool.to_string(), one.call_id.clone().unwrap().to_string(), one.outcome))
            .collect();
        let call = |id: &str, outcome| ("add".to_owned(), id.to_owned(), outcome);
        assert_eq!(invoked, [call("toolu_1", Outcome::Committed), call("toolu_2", Outcome::Failed)]);
        let executed = host.session().log().slice::<PromptExecutions>().unwrap();
        let executed = executed.iter().next().unwrap().unwrap();
        assert_eq!((executed.input_tokens, executed.output_tokens), (30, 20));
        assert_eq!((executed.tool_calls, executed.cost_micros), (2, Some(12_500)));
        assert_eq!(executed.model.as_deref(), Some("claude-stand-in"));
        assert!(!executed.is_resume);
        let EntryContent::Answer { message, .. } = entry(executed.answer) else { panic!("{executed:?}") };
        assert_eq!(message.content.as_deref(), Some("done"));
        begins
    });
    let log = LogReader::open(world.dir()).unwrap();
    for (begin, given) in begins.into_iter().zip(["one", "break"]) {
        let mut found = 0;
        log.records(begin, begin, |record| {
            found += u32::from(record.kind == RecordKind::ToolBegin);
            let body = String::from_utf8_lossy(record.body);
            assert!(body.contains(given), "{body:?}");
            Ok(())
        })
        .unwrap();
        assert_eq!(found, 1);
    }
}

/// Log lines may be lost. Therefore the session also records when a run started, what it resumed,
/// and how it ended.
#[test]
fn what_a_log_line_says_of_a_run_stands_in_its_records() {
    let world =
        World::new(&json!([{"turn": true}, {"text": "first"}, {"result": "first", "total_cost_usd": 0.5}]));
    world.run(|host| {
        for text in ["Go.", "More."] {
            host.ask(text).unwrap();
        }
        let conversation = host.session().conversation().read(EVALUATION).unwrap().unwrap();
        let requests: Vec<(String, Value)> = conversation
            .entries()
            .iter()
            .filter_map(|entry| match &entry.content {
                EntryContent::Request { model, parameters, .. } => {
                    Some((model.clone()?, serde_json::from_str(parameters.as_ref()?).ok()?))
                }
                _ => None,
            })
            .collect();
        let [(model, began), (_, resumed)] = &requests[..] else { panic!("{requests:?}") };
        // sdk.invoke.start: the model and the session; `PromptRendered` contains the name of the
        // prompt and its tools.
        assert_eq!(model, "default");
        assert!(began["session_id"].is_string() && began["resume"].is_null(), "{began}");
        // sdk.resuming_session: the resumed session, and its copy.
        assert_eq!(resumed["resume"], began["session_id"]);
        assert!(resumed["session_id"].is_string() && resumed["session_id"] != resumed["resume"], "{resumed}");
        // sdk.invoke.complete: duration, tokens and cost, and the session in the last state.
        let executed = host.session().log().slice::<PromptExecutions>().unwrap();
        let executed: Vec<_> = executed.iter().map(Result::unwrap).collect();
        assert_eq!(executed.len(), 2);
        assert_eq!((executed[0].input_tokens, executed[0].output_tokens), (10, 20));
        assert_eq!((executed[0].cost_micros, executed[0].is_resume), (Some(500_000), false));
        assert!(executed[0].elapsed_us > 0 && executed[1].is_resume);
        let last = host.states().pop().unwrap();
        assert_eq!(last.state.state()["session_id"], resumed["session_id"]);
    });
}

/// Texts, thinking, calls and results are distinguished, and unknown blocks are recorded as they
/// are.
#[test]
fn blocks_of_all_kinds_are_recorded_and_unknown_ones_kept() {
    let block = |block: serde_json::Value| {
        json!({"emit": {"type": "assistant", "parent_tool_use_id": null, "session_id": "$session",
            "message": {"id": "msg_x", "model": "m", "content": [block], "usage": {"input_tokens": 10, "output_tokens": 1}}}})
    };
    let world = World::new(&json!([
        {"turn": true},
        {"emit": {"type": "rate_limit_event", "of": "whatever"}},
        block(json!({"type": "thinking", "thinking": "hm", "signature": "s"})),
        block(json!({"type": "novelty", "of": 1})),
        block(json!({"type": "text", "text": "one "})),
        block(json!({"type": "text", "text": "two"})),
        {"result": "one two"},
    ]));
    world.run(|host| {
        assert_eq!(host.ask("Go.").unwrap().text, "one two");
        let conversation = host.session().conversation().read(EVALUATION).unwrap().unwrap();
        let last = conversation.sent_messages().pop().unwrap();
        assert_eq!(last.content.as_deref(), Some("one two"));
        let blocks = last.blocks.unwrap();
        let blocks: serde_json::Value = serde_json::from_str(&blocks.json).unwrap();
        let kinds: Vec<_> = blocks.as_array().unwrap().iter().map(|block| block["type"].clone()).collect();
        assert_eq!(kinds, ["thinking", "novelty", "text", "text"]);
    });
}

/// An unrecorded evaluation has no conversation, but its tools are transactions nevertheless.
#[test]
fn an_evaluation_that_is_not_recorded_leaves_the_records_of_its_tools_alone() {
    let world = World::new(&json!([
        {"turn": true}, {"tool": "add", "input": {"text": "one"}}, {"tool": "add", "input": {"text": "break"}},
        {"text": "done"}, {"result": "done"},
    ]));
    world.run_unreplayed(|host| {
        let options = foldlog_agent::EvaluateOptions { record: false, ..asking("Write.") };
        let response = host.adapter().evaluate(&prompt(), &host.state, options).unwrap();
        assert_eq!(response.text, "done");
        assert!(host.session().conversation().read(EVALUATION).unwrap().is_none());
        assert_eq!(host.page(), ["one"]);
    });
    let outcomes: Vec<_> = world.ledger().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, ["committed", "failed"]);
    assert_eq!(world.file("page").as_deref(), Some("one\n"));
}

/// A tool opens a section of the prompt: its call's result contains the section, whose tools are
/// available from then on.
#[test]
fn a_tool_that_shows_more_of_the_prompt_gives_the_model_the_prompt_anew() {
    let world = World::new(&json!([
        {"turn": true}, {"tool": "more", "input": {}}, {"text": "$results"}, {"result": "$results"},
    ]));
    let prompt = || -> Prompt {
        Prompt::text("tests", "more")
            .with_section(
                MarkdownSection::new("details", "All of them.")
                    .with_summary("There are details.")
                    .with_visibility(SectionVisibility::Summary),
            )
            .with_tools(tools().with(More))
    };
    world.run(|host| {
        let response = host.adapter().evaluate(&prompt(), &host.state, asking("Go.")).unwrap();
        assert!(response.text.contains("The prompt shows more now:"), "{}", response.text);
        assert!(response.text.contains("All of them."), "{}", response.text);
        let roles: Vec<_> = host.said().into_iter().map(|(role, _)| role).collect();
        assert_eq!(roles, [User, Assistant, Tool, Assistant]);
    });
    assert!(world.argument("--system-prompt").unwrap().contains("There are details."));
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

struct More;

impl foldlog::tools::Tool for More {
    const NAME: &'static str = "more";
    type Parameters = Nothing;
    type Output = ();

    fn call(
        &self,
        _: Nothing,
        _: &foldlog::tools::ToolContext,
    ) -> Result<foldlog::tools::ToolResult<()>, foldlog::tools::ToolError> {
        Err(foldlog::tools::ToolError::VisibilityExpansion {
            overrides: json!({"details": "full"}),
            reason: "they are needed".to_owned(),
        })
    }
}
