//! A stateful adapter: evaluations that continue in one session of the program.

use foldlog_agent::EvaluateOptions;
use foldlog_agent::adapter_state::{AdapterStateOptions, StatefulAdapter};
use foldlog_claude::ClaudeAgentSDKAdapter;
use serde_json::json;

use super::world::{Host, World, asking, prompt};

fn history() -> serde_json::Value {
    json!([{"turn": true}, {"text": "$history"}, {"result": "$history"}])
}

/// Evaluates in a new conversation, and returns what the model remembers.
fn ask(adapter: &ClaudeAgentSDKAdapter, host: &Host, text: &str) -> String {
    let options = EvaluateOptions { evaluation_id: Some(text.to_owned()), ..asking(text) };
    adapter.evaluate(&prompt(), &host.state, options).unwrap().text
}

#[test]
fn the_model_remembers_until_the_session_is_reset() {
    let world = World::new(&history());
    world.run(|host| {
        let adapter = host.adapter().with_state_options(AdapterStateOptions::default()).stateful();
        assert_eq!(adapter.session_id(), None);
        assert_eq!(ask(&adapter, host, "one"), "one");
        let id = adapter.session_id().unwrap();
        assert_eq!(ask(&adapter, host, "two"), "one|two");
        assert_eq!(adapter.session_id(), Some(id.clone()), "the id of the session changed");
        adapter.reset_session();
        assert_eq!(adapter.session_id(), None);
        assert_eq!(ask(&adapter, host, "three"), "three");
        assert_ne!(adapter.session_id(), Some(id));
    });
    assert_eq!(world.starts().len(), 3);
}

/// The copy's id was chosen outside of the log: a replay chose another one, and diverged.
#[test]
fn a_fork_goes_on_in_a_copy_and_the_session_itself_stays_as_it_was() {
    let world = World::new(&history());
    world.run(|host| {
        let adapter = host.adapter().with_state_options(AdapterStateOptions::default()).stateful();
        assert_eq!(adapter.fork_session(), None, "there is no session to be copied");
        assert_eq!(ask(&adapter, host, "one"), "one");
        let id = adapter.session_id().unwrap();
        let copy = adapter.fork_session().unwrap();
        assert_eq!(adapter.session_id(), Some(copy.clone()));
        assert_eq!(ask(&adapter, host, "two"), "one|two");
        assert_ne!(copy, id);
        assert_eq!(adapter.session_id(), Some(copy));
        assert_eq!(ask(&adapter, host, "three"), "one|two|three");
    });
    let arguments = world.starts()[1]["arguments"].to_string();
    assert!(arguments.contains("--fork-session") && arguments.contains("--session-id="), "{arguments}");
}

/// A session of the program belongs to the log that knows it.
#[test]
fn another_session_does_not_go_on_where_this_one_stopped() {
    let (world, other) = (World::new(&history()), World::new(&history()));
    world.run_unreplayed(|host| {
        let adapter = host.adapter().with_state_options(AdapterStateOptions::default()).stateful();
        assert_eq!(ask(&adapter, host, "one"), "one");
        other.run_unreplayed(|other| assert_eq!(ask(&adapter, other, "two"), "two"));
    });
}

/// A recorded answer needs no session of the program, and leaves the current one unchanged.
#[test]
fn what_is_complete_is_answered_from_the_log_by_a_stateful_adapter_too() {
    let world = World::new(&history());
    world.run(|host| {
        let adapter = host.adapter().with_state_options(AdapterStateOptions::default()).stateful();
        assert_eq!(ask(&adapter, host, "one"), "one");
        assert_eq!(ask(&adapter, host, "one"), "one");
        assert_eq!(ask(&adapter, host, "two"), "one|two");
    });
    assert_eq!(world.starts().len(), 2);
}
