//! Structured outputs: through the program's schema, and through the tool `respond`.

use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::{Error, EvaluationPhase};
use foldlog_claude::{ClaudeAgentSDKAdapter, OutputBy, RunOptions};
use serde_json::{Value, json};

use super::world::{EVALUATION, Forecast, Host, World, asking, forecast, native};

fn by_respond(host: &Host) -> ClaudeAgentSDKAdapter {
    host.adapter().with_options(RunOptions { output_by: OutputBy::RespondTool, ..native(&[]) })
}

/// The model calls the tool by its name on the bridge. An output with an unknown field was refused
/// as a whole, although the program checks no schema of this tool, and the model was not informed.
#[test]
fn the_output_is_what_the_tool_respond_was_given_last() {
    let world = World::new(&json!([
        {"turn": true},
        {"tool": "respond", "input": {"snow": false}},
        {"tool": "respond", "input": {"snow": true, "why": {"it": ["is", "cold"]}, "a/b~c": 1}},
        {"text": "that is it"}, {"result": "that is it"},
    ]));
    world.run(|host| {
        assert_eq!(host.forecast_with(&by_respond(host)).unwrap().output, Some(Forecast { snow: true }));
        // From the log.
        assert_eq!(host.forecast_with(&by_respond(host)).unwrap().output, Some(Forecast { snow: true }));
    });
    assert_eq!(world.starts().len(), 1);
    let allowed = world.argument("--allowedTools").unwrap();
    assert!(allowed.split(',').any(|name| name == "mcp__wink__respond"), "{allowed}");
    assert_eq!(world.replies()[0], ("The answer is taken.".to_owned(), false));
    assert_eq!(world.argument("--json-schema"), None);
    assert!(world.ledger().is_empty(), "an output is no call of a tool that may be rolled back");
}

#[test]
fn the_tool_respond_is_there_for_a_structured_output_alone_and_describes_itself() {
    let world =
        World::new(&json!([{"turn": true}, {"tool": "respond", "input": {"snow": true}}, {"result": ""}]));
    world.run(|host| host.forecast_with(&by_respond(host)).unwrap().output);
    let heard = world.stand_in.heard();
    let lists = heard.iter().map(|line| &line["response"]["response"]["mcp_response"]["result"]["tools"]);
    let listed = lists.filter_map(Value::as_array).next().unwrap();
    let respond = listed.iter().find(|tool| tool["name"] == "respond").unwrap();
    assert_eq!(
        respond["description"],
        "Provide your final structured response. You MUST use this tool to answer."
    );
    assert_eq!(respond["inputSchema"]["properties"]["snow"]["type"], "boolean");

    let text = World::new(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    text.run(|host| host.ask_with(&by_respond(host), "Go.").unwrap().text);
    assert!(!text.argument("--allowedTools").unwrap().contains("respond"));
    assert!(!text.argument("--system-prompt").unwrap().contains("Response Format"));
}

#[test]
fn the_system_prompt_says_how_to_respond_and_embeds_the_schema() {
    let world =
        World::new(&json!([{"turn": true}, {"tool": "respond", "input": {"snow": true}}, {"result": ""}]));
    world.run(|host| host.forecast_with(&by_respond(host)).unwrap().output);
    let system = world.argument("--system-prompt").unwrap();
    let expected = "\n## Response Format\n\nYou MUST provide your final answer by calling the `respond` tool with a JSON\nobject \
                    matching the required schema. Do not provide your answer as plain text.\n\nRequired output schema:\n```json\n";
    let (_, embedded) = system.split_once(expected).unwrap();
    let schema: Value = serde_json::from_str(embedded.trim_end().trim_end_matches("```")).unwrap();
    assert_eq!(schema["properties"]["snow"]["type"], "boolean");
}

#[test]
fn the_output_is_what_the_program_checked_against_the_schema() {
    let world = World::new(&json!([
        {"turn": true}, {"native": "StructuredOutput", "input": {"snow": true}, "output": "Structured output provided successfully"},
        {"result": "", "structured_output": {"snow": true}},
    ]));
    world.run(|host| {
        assert_eq!(host.forecast_with(&host.adapter()).unwrap().output, Some(Forecast { snow: true }));
        assert_eq!(host.forecast_with(&host.adapter()).unwrap().output, Some(Forecast { snow: true }));
    });
    assert_eq!(world.starts().len(), 1);
    let schema: Value = serde_json::from_str(&world.argument("--json-schema").unwrap()).unwrap();
    assert_eq!(schema["properties"]["snow"]["type"], "boolean");
    // For an unknown dialect, the program silently skips its check.
    assert_eq!(schema.get("$schema"), None);
    assert_eq!(world.argument("--tools").as_deref(), Some("StructuredOutput"));
    assert!(!world.argument("--system-prompt").unwrap().contains("Response Format"));
    assert!(world.ledger().is_empty());
}

/// The specification's extraction returns `None` then. The host may report that the output is
/// missing, and the model continues.
#[test]
fn without_a_call_of_respond_there_is_no_output_and_no_error() {
    let refuses = json!([{"turn": true}, {"text": "I will not."}, {"result": "I will not."}]);
    let responds = json!([{"turn": true}, {"tool": "respond", "input": {"snow": true}}, {"result": ""}]);
    let world = World::new(&refuses);
    world.run(|host| {
        world.stand_in.play(&refuses);
        let response = host.forecast_with(&by_respond(host)).unwrap();
        assert_eq!((response.output, response.text.as_str()), (None, "I will not."));
        // From the log.
        let again = host.forecast_with(&by_respond(host)).unwrap();
        assert_eq!((again.output, again.text.as_str()), (None, "I will not."));
        world.stand_in.play(&responds);
        let response = by_respond(host).evaluate(&forecast(), &host.state, asking("It is missing.")).unwrap();
        assert_eq!(response.output, Some(Forecast { snow: true }));
    });
    assert_eq!(world.starts().len(), 2);
}

/// The program sends each call of an answer in its own message, and the last one counts, whether
/// the same process or the next one reads the output.
#[test]
fn of_two_calls_of_respond_in_one_answer_the_last_is_the_output() {
    let answer = |last: Value| {
        json!({"text": "first", "calls": [
        {"tool": "respond", "input": {"snow": false}}, last,
    ], "mirror": true})
    };
    let last = json!({"tool": "respond", "input": {"snow": true}});
    let world = World::new(&json!([{"turn": true}, {"model": [answer(last), {"text": "that is it"}]}]));
    world.run(|host| {
        assert_eq!(host.forecast_with(&by_respond(host)).unwrap().output, Some(Forecast { snow: true }));
        let conversation = host.session().conversation().read(EVALUATION).unwrap().unwrap();
        let calls: Vec<_> =
            conversation.sent_messages().iter().map(|message| message.tool_calls.len()).collect();
        assert!(calls.contains(&2), "the calls are of several answers: {calls:?}");
    });
    let last = json!({"tool": "respond", "input": {"snow": true}, "die": 9});
    let world = World::new(&json!([{"turn": true}, {"model": [answer(last)]}]));
    world.run_unreplayed(|host| host.forecast_with(&by_respond(host)).unwrap_err());
    world.stand_in.play(&json!([{"turn": true}, {"text": "As I said."}, {"result": "As I said."}]));
    world.run_unreplayed(|host| {
        assert_eq!(host.forecast_with(&by_respond(host)).unwrap().output, Some(Forecast { snow: true }));
    });
}

/// The process ended after the call, and the model does not repeat it.
#[test]
fn what_respond_was_given_before_a_run_was_cut_short_is_the_output() {
    let world = World::new(
        &json!([{"turn": true}, {"tool": "respond", "input": {"snow": true}}, {"mirror": true}, {"die": 9}]),
    );
    world.run_unreplayed(|host| host.forecast_with(&by_respond(host)).unwrap_err());
    world.stand_in.play(&json!([{"turn": true}, {"text": "As I said."}, {"result": "As I said."}]));
    world.run_unreplayed(|host| {
        for _ in 0..2 {
            assert_eq!(host.forecast_with(&by_respond(host)).unwrap().output, Some(Forecast { snow: true }));
        }
    });
}

#[test]
fn a_schema_that_the_model_never_follows_gives_no_output() {
    let world = World::new(&json!([{"turn": true}, {"text": "I will not."}, {"result": "I will not."}]));
    world.run(|host| {
        let error = host.forecast_with(&host.adapter()).unwrap_err();
        assert!(matches!(&error, Error::OutputMissing { output } if output == "Forecast"), "{error:?}");
        assert_eq!(error.phase(), Some(EvaluationPhase::Response));
    });
}

#[test]
fn an_output_of_another_form_is_refused() {
    let world =
        World::new(&json!([{"turn": true}, {"tool": "respond", "input": {"snow": "much"}}, {"result": ""}]));
    world.run(|host| {
        let error = host.forecast_with(&by_respond(host)).unwrap_err();
        assert!(matches!(error, Error::OutputInvalid { .. }), "{error:?}");
    });
}
