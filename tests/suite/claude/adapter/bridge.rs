//! The bridge between the program and the host's tools.

use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::{MarkdownSection, Prompt, SectionVisibility};
use serde_json::{Value, json};

use super::world::{World, asking, tools};

fn listed(world: &World) -> Vec<Value> {
    let heard = world.stand_in.heard();
    let mut lists = heard.iter().map(|line| &line["response"]["response"]["mcp_response"]["result"]["tools"]);
    lists.find_map(|tools| tools.as_array().cloned()).unwrap()
}

#[test]
fn each_tool_is_one_entry_of_the_server_wink_with_its_schema() {
    let world = World::new(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    world.run(|host| host.ask("Go.").unwrap().text);
    let servers: Value = serde_json::from_str(&world.argument("--mcp-config").unwrap()).unwrap();
    assert_eq!(servers, json!({"mcpServers": {"wink": {"type": "sdk", "name": "wink"}}}));
    let listed = listed(&world);
    let names: Vec<_> = listed.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["add", "weather"]);
    assert_eq!(listed[0]["description"], "Adds a line to the page.");
    assert_eq!(listed[0]["inputSchema"]["properties"]["text"]["type"], "string");
    assert_eq!(listed[0]["inputSchema"]["required"], json!(["text"]));
    // Read-only tools may run in parallel.
    let hints: Vec<_> = listed.iter().map(|tool| tool["annotations"]["readOnlyHint"].clone()).collect();
    assert_eq!(hints, [json!(false), json!(true)]);
}

#[test]
fn a_prompt_without_tools_has_no_server() {
    let world = World::new(&json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}]));
    let prompt =
        || -> Prompt { Prompt::text("tests", "bare").with_section(MarkdownSection::new("task", "Go.")) };
    world.run(|host| host.adapter().evaluate(&prompt(), &host.state, asking("Go.")).unwrap().text);
    assert_eq!((world.argument("--mcp-config"), world.argument("--allowedTools")), (None, None));
}

/// The texts are those that the model reads about a call.
#[test]
fn results_refused_arguments_failures_and_panics_are_told_apart() {
    let world = World::new(&json!([
        {"turn": true},
        {"tool": "add", "input": {"text": "one"}},
        {"tool": "add", "input": {"text": "two", "more": 1}},
        {"tool": "add", "input": {}},
        {"tool": "add", "input": {"text": "break"}},
        {"tool": "add", "input": {"text": "panic"}},
        {"tool": "weather", "input": {"city": "Nowhere"}},
        {"text": "done"}, {"result": "done"},
    ]));
    world.run(|host| {
        host.ask("Go.").unwrap();
        assert_eq!(host.page(), ["one"]);
    });
    let replies = world.replies();
    assert_eq!(replies[0], ("added one".to_owned(), false));
    for (at, named) in [(1, "more"), (2, "text")] {
        let (text, is_error) = &replies[at];
        assert!(text.starts_with("Invalid parameters: ") && text.contains(named) && *is_error, "{text}");
    }
    assert_eq!(replies[3], ("Tool error: it broke".to_owned(), true));
    assert!(replies[4].0.starts_with("Tool error: ") && replies[4].0.contains("planned"), "{replies:?}");
    assert_eq!(replies[5], ("Tool error: no such city".to_owned(), true));
    let outcomes: Vec<_> = world.ledger().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, ["committed", "failed", "failed", "failed", "failed", "failed"]);
    assert_eq!(world.file("page").as_deref(), Some("one\n"));
}

/// A call of a hidden or unknown tool is no call of the session.
#[test]
fn a_tool_that_the_prompt_does_not_show_is_refused_and_does_not_run() {
    let call = |name: &str| {
        json!({"ask": {"subtype": "mcp_message", "server_name": "wink", "message": {"jsonrpc": "2.0", "id": 9,
            "method": "tools/call", "params": {"name": name, "arguments": {"text": "one"},
                "_meta": {"claudecode/toolUseId": "toolu_9"}}}}})
    };
    let world = World::new(&json!([{"turn": true}, call("add"), {"text": "ok"}, {"result": "ok"}]));
    let prompt = || -> Prompt {
        Prompt::text("tests", "hidden")
            .with_section(
                MarkdownSection::new("page", "Use `add`.")
                    .with_summary("There is a page.")
                    .with_visibility(SectionVisibility::Summary)
                    .with_tools(["add"]),
            )
            .with_tools(tools())
    };
    world.run(|host| {
        host.adapter().evaluate(&prompt(), &host.state, asking("Go.")).unwrap();
        assert!(host.page().is_empty());
    });
    assert_eq!(world.replies(), [("There is no tool `add`.".to_owned(), true)]);
    assert_eq!(world.ledger(), [("add".to_owned(), "failed".to_owned())]);
}

/// The program uses the full names of the host's tools, and asks no permission for them.
#[test]
fn hooks_and_permissions_let_the_hosts_tools_pass_and_no_others() {
    let asks = |tool: &str| {
        json!({"ask": {"subtype": "can_use_tool", "tool_name": tool, "input": {"a": 1},
            "permission_suggestions": [], "tool_use_id": "toolu_7"}})
    };
    let tools =
        ["mcp__wink__add", "mcp__wink__other", "mcp__other__add", "Write", "StructuredOutput", "Task"];
    let mut steps = vec![json!({"turn": true})];
    steps.extend(tools.map(asks));
    steps.extend([json!({"text": "ok"}), json!({"result": "ok"})]);
    let world = World::new(&json!(steps));
    world.run(|host| host.ask("Go.").unwrap().text);
    let heard = world.stand_in.heard();
    let behaviours: Vec<_> =
        heard.iter().filter_map(|line| line["response"]["response"]["behavior"].as_str()).collect();
    assert_eq!(behaviours, ["allow", "deny", "deny", "deny", "deny", "deny"]);
}

/// Read-only calls arrive together, and each is answered.
#[test]
fn calls_that_come_together_are_each_answered_once() {
    let world = World::new(&json!([
        {"turn": true},
        {"together": [{"tool": "weather", "input": {"city": "Oslo"}}, {"tool": "add", "input": {"text": "one"}},
            {"tool": "weather", "input": {"city": "Nowhere"}}]},
        {"text": "$results"}, {"result": "$results"},
    ]));
    world.run(|host| {
        let expected = "toolu_1: snow|toolu_2: added one|toolu_3: Tool error: no such city";
        assert_eq!(host.ask("Go.").unwrap().text, expected);
        assert_eq!(host.calls().len(), 3);
        assert_eq!(host.said().len(), 6);
    });
}
