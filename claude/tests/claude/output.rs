//! Structured outputs: by the program's own check against a schema, by the tool `respond`, and at
//! the second attempt.

use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::{MarkdownSection, Prompt};
use foldlog_claude::{OutputBy, RunOptions};
use serde_json::json;

use crate::api::{Answers, Api, call, text};
use crate::results;
use crate::world::{World, cli};

#[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
struct Forecast {
    snow: bool,
}

#[test]
fn a_structured_output_comes_by_the_programs_schema_or_by_the_tool_respond() {
    let Some(cli) = cli() else { return };
    for (output_by, tool) in
        [(OutputBy::JsonSchema, "StructuredOutput"), (OutputBy::RespondTool, "mcp__wink__respond")]
    {
        let world = World::new();
        let api = Api::answering(vec![
            Answers::With(vec![call("toolu_1", tool, &json!({"snow": true}))]),
            Answers::With(vec![text("that is it")]),
        ]);
        let adapter = world.adapter(&cli, &api, RunOptions { output_by, ..RunOptions::default() });
        let prompt = Prompt::<Forecast>::structured("tests", "forecast")
            .with_section(MarkdownSection::new("task", "Say whether it snows."));
        let response = adapter.evaluate(&prompt, &world.state, world.asking("Oslo?")).unwrap();
        assert_eq!(response.output, Some(Forecast { snow: true }), "{tool}");
        let again = adapter.evaluate(&prompt, &world.state, world.asking("Oslo?")).unwrap();
        assert_eq!(again.output, Some(Forecast { snow: true }), "{tool}");
    }
}

#[test]
fn without_a_call_of_respond_there_is_no_output_and_no_error() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let api = Api::answering(vec![Answers::With(vec![text("no JSON")])]);
    let options = RunOptions { output_by: OutputBy::RespondTool, ..RunOptions::default() };
    let adapter = world.adapter(&cli, &api, options);
    let prompt = Prompt::<Forecast>::structured("tests", "forecast");
    let response = adapter.evaluate(&prompt, &world.state, world.asking("Oslo?")).unwrap();
    assert_eq!((response.output, response.text.as_str()), (None, "no JSON"));
}

#[test]
fn an_output_that_is_no_forecast_or_only_a_text_is_asked_for_again() {
    let Some(cli) = cli() else { return };
    let wrong = call("toolu_1", "StructuredOutput", &json!({"snow": "much"}));
    for first in [wrong, text("It snows.")] {
        let world = World::new();
        let api = Api::answering(vec![
            Answers::With(vec![first.clone()]),
            Answers::With(vec![call("toolu_2", "StructuredOutput", &json!({"snow": true}))]),
            Answers::With(vec![text("that is it")]),
        ]);
        let adapter = world.adapter(&cli, &api, RunOptions::default());
        let prompt = Prompt::<Forecast>::structured("tests", "forecast");
        let response = adapter.evaluate(&prompt, &world.state, world.asking("Oslo?")).unwrap();
        assert_eq!(response.output, Some(Forecast { snow: true }), "{first}");
        if first["type"] == "tool_use" {
            let told = results(&api.seen()[1]);
            assert!(told[0].2 && told[0].1.contains("snow"), "the model is not told what is wrong: {told:?}");
        }
    }
}
