//! The steps of an evaluation, from the prompt to the response.

use foldlog::conversation::Role::{Assistant, Tool, User};
use serde_json::json;

use super::world::World;

fn said(role: foldlog::conversation::Role, text: &str) -> (foldlog::conversation::Role, String) {
    (role, text.to_owned())
}

#[test]
fn a_text_comes_back_is_recorded_and_is_answered_from_the_log_from_then_on() {
    let world = World::new(&json!([{"turn": true}, {"text": "It snows."}, {"result": "It snows."}]));
    world.run(|host| {
        let response = host.ask("Oslo?").unwrap();
        assert_eq!(response.text, "It snows.");
        assert_eq!(host.said(), [said(User, "Oslo?"), said(Assistant, "It snows.")]);
        assert_eq!((response.usage.input, response.usage.output), (10, 20));
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
