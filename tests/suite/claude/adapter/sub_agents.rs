//! Sub-agents of the program, whose calls overlap. The frames arrive in the order in which 2.1.332
//! sends them, unless a test states another one.

use std::fs;
use std::path::Path;

use foldlog::conversation::Role::{Assistant, Tool, User};
use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_agent::pairing::{MessageFormat, validate};
use serde_json::{Value, json};

use super::recovery::{Left, wait_for};
use super::world::{EVALUATION, Host, World, adapter_of, asking, native, prompt};

/// Tools that the tests allow.
const TOOLS: [&str; 4] = ["Agent", "Read", "Task", "Write"];

/// A call of the program, and its tool.
#[derive(Clone, Copy)]
struct ProgramCall<'a> {
    id: &'a str,
    tool: &'a str,
}

/// An answer that requests calls: its id, the call that started the answering sub-agent, and the
/// calls with their tools.
fn asks(id: &str, parent: Option<&str>, calls: &[ProgramCall<'_>]) -> Value {
    let call = |ProgramCall { id, tool }: &ProgramCall<'_>| json!({"type": "tool_use", "id": id, "name": tool, "input": {}});
    let content: Vec<Value> = calls.iter().map(call).collect();
    json!({"emit": {"type": "assistant", "parent_tool_use_id": parent, "session_id": "$session",
        "message": {"id": id, "model": "m", "content": content, "usage": {"input_tokens": 5, "output_tokens": 1}}}})
}

/// The result of a call, as sent to the model.
fn told(id: &str, parent: Option<&str>, text: &str) -> Value {
    let block = json!({"type": "tool_result", "tool_use_id": id, "content": text, "is_error": false});
    json!({"emit": {"type": "user", "parent_tool_use_id": parent, "session_id": "$session",
        "message": {"role": "user", "content": [block]}}})
}

/// The request of a hook.
fn hook(event: &str, call: ProgramCall<'_>, agent: Option<&str>, response: &Value) -> Value {
    let ProgramCall { id, tool } = call;
    let mut input = json!({"hook_event_name": event, "tool_name": tool, "tool_input": {}, "tool_use_id": id,
        "tool_response": response});
    if let Some(agent) = agent {
        input["agent_id"] = agent.into();
    }
    json!({"subtype": "hook_callback", "callback_id": event, "tool_use_id": id, "input": input})
}

/// The hook before a call; the program does not wait for the reply.
fn before(call: ProgramCall<'_>, agent: Option<&str>) -> Value {
    json!({"ask": hook("PreToolUse", call, agent, &Value::Null), "id": call.id, "wait": false})
}

/// The hook after a call.
fn after(call: ProgramCall<'_>, agent: Option<&str>, response: &Value) -> Value {
    json!({"ask": hook("PostToolUse", call, agent, response)})
}

/// A request whose answer shows that the run has processed all earlier ones.
fn taken() -> Value {
    json!({"ask": {"subtype": "can_use_tool", "tool_name": "Read", "input": {}, "tool_use_id": "none"}})
}

fn waits(id: &str) -> Value {
    json!({"unanswered": id})
}

fn runs(id: &str) -> Value {
    json!({"answer": id})
}

fn started(agent: &str, call: &str) -> Value {
    json!({"emit": {"type": "system", "subtype": "task_started", "task_id": agent, "tool_use_id": call}})
}

/// An answer with two sub-agents, block by block, and their starts.
fn two_begin() -> Vec<Value> {
    vec![
        json!({"turn": true}),
        asks("m1", None, &[ProgramCall { id: "ag1", tool: "Agent" }]),
        before(ProgramCall { id: "ag1", tool: "Agent" }, None),
        runs("ag1"),
        asks("m1", None, &[ProgramCall { id: "ag2", tool: "Agent" }]),
        before(ProgramCall { id: "ag2", tool: "Agent" }, None),
        runs("ag2"),
        started("a1", "ag1"),
        started("a2", "ag2"),
    ]
}

/// The end of a sub-agent, and its result for the run.
fn ends(call: &str, text: &str) -> [Value; 2] {
    let response = json!({"status": "completed", "content": [{"type": "text", "text": text}]});
    [after(ProgramCall { id: call, tool: "Agent" }, None, &response), told(call, None, text)]
}

fn end() -> [Value; 2] {
    [json!({"text": "ok"}), json!({"result": "ok"})]
}

fn ask(host: &Host) -> String {
    let adapter = host.adapter().with_options(native(&TOOLS));
    host.ask_with(&adapter, "Go.").unwrap().text
}

/// Returns the roles in the conversation of a sub-agent, with the tools that it called.
fn child(host: &Host, call: &str) -> Vec<String> {
    let conversation = host.session().conversation().read(&format!("{EVALUATION}/{call}")).unwrap().unwrap();
    let said = conversation.sent_messages().into_iter().map(|one| {
        let calls: Vec<String> = one.tool_calls.into_iter().map(|call| call.call_id).collect();
        format!("{:?} {}{}", one.role, one.content.unwrap_or_default(), calls.join("+"))
    });
    said.collect()
}

fn committed(tools: &[&str]) -> Vec<(String, String)> {
    tools.iter().map(|tool| ((*tool).to_owned(), "committed".to_owned())).collect()
}

/// The hook of a sub-agent's call arrives before the answer that requests it. The call was recorded
/// in the conversation of the run. The second one closed the working sub-agents, within the first:
/// "operation 53 runs on this thread".
#[test]
fn calls_of_two_sub_agents_take_turns_and_belong_to_their_own_conversations() {
    let (first, second) = (ProgramCall { id: "w1", tool: "Write" }, ProgramCall { id: "w2", tool: "Write" });
    let mut steps = two_begin();
    steps.extend([
        before(first, Some("a1")),
        taken(),
        waits("w1"),
        asks("m2", Some("ag1"), &[first]),
        runs("w1"),
        before(second, Some("a2")),
        asks("m3", Some("ag2"), &[second]),
        taken(),
        waits("w2"),
        json!({"write": {"page": "one"}}),
        after(first, Some("a1"), &"ok".into()),
        runs("w2"),
        told("w1", Some("ag1"), "ok"),
        json!({"write": {"note": "two"}}),
        after(second, Some("a2"), &"ok".into()),
        told("w2", Some("ag2"), "ok"),
    ]);
    steps.extend(ends("ag2", "two is done"));
    steps.extend(ends("ag1", "one is done"));
    steps.extend(end());
    let world = World::new(&json!(steps));
    world.run(|host| {
        assert_eq!(ask(host), "ok");
        let roles: Vec<_> = host.said().into_iter().map(|(role, _)| role).collect();
        assert_eq!(roles, [User, Assistant, Tool, Tool, Assistant]);
        let calls: Vec<String> = host.calls().into_iter().map(|call| call.call_id).collect();
        assert_eq!(calls, ["ag1", "ag2"]);
        assert_eq!(child(host, "ag1"), ["Assistant w1", "Tool ok", "Assistant one is done"]);
        assert_eq!(child(host, "ag2"), ["Assistant w2", "Tool ok", "Assistant two is done"]);
    });
    assert_eq!(world.ledger(), committed(&["Write", "Write"]));
    assert_eq!((world.file("page").as_deref(), world.file("note").as_deref()), (Some("one"), Some("two")));
}

/// A call of the run waits for a call of a sub-agent, whose failure restores the workspace before
/// the other starts.
#[test]
fn a_call_of_the_run_waits_for_one_of_a_sub_agent_that_fails() {
    let (inner, outer) = (ProgramCall { id: "w1", tool: "Write" }, ProgramCall { id: "w2", tool: "Write" });
    let mut steps = two_begin();
    steps.extend([
        asks("m1", None, &[outer]),
        before(inner, Some("a1")),
        asks("m2", Some("ag1"), &[inner]),
        runs("w1"),
        json!({"write": {"page": "half"}}),
        before(outer, None),
        taken(),
        waits("w2"),
        json!({"ask": hook("PostToolUseFailure", inner, Some("a1"), &"no".into())}),
        runs("w2"),
        json!({"write": {"note": "whole"}}),
        after(outer, None, &"ok".into()),
        told("w2", None, "ok"),
    ]);
    steps.extend(ends("ag1", "one is done"));
    steps.extend(ends("ag2", "two is done"));
    steps.extend(end());
    let world = World::new(&json!(steps));
    world.run(|host| {
        assert_eq!(ask(host), "ok");
        let calls: Vec<String> = host.calls().into_iter().map(|call| call.call_id).collect();
        assert_eq!(calls, ["ag1", "ag2", "w2"]);
    });
    assert_eq!((world.file("page"), world.file("note").as_deref()), (None, Some("whole")));
    let failed = ("Write".to_owned(), "failed".to_owned());
    assert_eq!(world.ledger(), [&[failed], &committed(&["Write"])[..]].concat());
}

/// The rest of an answer after a started call is recorded as another answer. Its sub-agent works
/// meanwhile, and its results wait until the sub-agent of the first part has ended: the turn of the
/// first part closed it as unknown.
#[test]
fn a_sub_agent_of_a_later_part_of_an_answer_works_beside_one_of_the_first_part() {
    let (read, first, second) = (
        ProgramCall { id: "r", tool: "Read" },
        ProgramCall { id: "w1", tool: "Write" },
        ProgramCall { id: "w2", tool: "Write" },
    );
    let mut steps = vec![
        json!({"turn": true}),
        asks("m1", None, &[ProgramCall { id: "ag1", tool: "Agent" }, read]),
        before(ProgramCall { id: "ag1", tool: "Agent" }, None),
        runs("ag1"),
        started("a1", "ag1"),
        before(read, None),
        runs("r"),
        after(read, None, &"text".into()),
        told("r", None, "text"),
        asks("m1", None, &[ProgramCall { id: "ag2", tool: "Agent" }]),
        before(ProgramCall { id: "ag2", tool: "Agent" }, None),
        runs("ag2"),
        started("a2", "ag2"),
        before(second, Some("a2")),
        asks("m3", Some("ag2"), &[second]),
        runs("w2"),
        after(second, Some("a2"), &"ok".into()),
        told("w2", Some("ag2"), "ok"),
    ];
    steps.extend(ends("ag2", "two is done"));
    steps.extend([
        before(first, Some("a1")),
        asks("m2", Some("ag1"), &[first]),
        runs("w1"),
        after(first, Some("a1"), &"ok".into()),
        told("w1", Some("ag1"), "ok"),
    ]);
    steps.extend(ends("ag1", "one is done"));
    steps.extend(end());
    let world = World::new(&json!(steps));
    world.run(|host| {
        assert_eq!(ask(host), "ok");
        let said = host.said();
        let roles: Vec<_> = said.iter().map(|(role, _)| *role).collect();
        assert_eq!(roles, [User, Assistant, Tool, Tool, Assistant, Tool, Assistant], "{said:?}");
        let results: Vec<&str> =
            said.iter().filter(|(role, _)| *role == Tool).map(|(_, text)| text.as_str()).collect();
        assert_eq!(results, ["one is done", "text", "two is done"]);
    });
    assert_eq!(world.ledger(), committed(&["Read", "Write", "Write"]));
}

/// 2.1.332 sends only hooks, and no answers, of a sub-agent that another sub-agent started.
#[test]
fn a_sub_agent_of_a_sub_agent_has_its_own_conversation_though_its_answers_are_not_sent() {
    let (nested, write) = (ProgramCall { id: "ag3", tool: "Agent" }, ProgramCall { id: "w1", tool: "Write" });
    let mut steps = two_begin();
    steps.extend([
        before(nested, Some("a1")),
        asks("m2", Some("ag1"), &[nested]),
        runs("ag3"),
        started("a3", "ag3"),
        before(write, Some("a3")),
        runs("w1"),
        json!({"write": {"page": "one"}}),
        after(write, Some("a3"), &"ok".into()),
        after(nested, Some("a1"), &json!({"content": [{"type": "text", "text": "three is done"}]})),
        told("ag3", Some("ag1"), "three is done"),
    ]);
    steps.extend(ends("ag1", "one is done"));
    steps.extend(ends("ag2", "two is done"));
    steps.extend(end());
    let world = World::new(&json!(steps));
    world.run(|host| {
        assert_eq!(ask(host), "ok");
        assert_eq!(child(host, "ag1"), ["Assistant ag3", "Tool three is done", "Assistant one is done"]);
        let nested = child(host, "ag3");
        assert_eq!((nested[0].as_str(), nested[2].as_str()), ("Assistant w1", "Assistant three is done"));
    });
    assert_eq!(world.ledger(), committed(&["Write"]));
}

/// A version that sends the answers of sub-agents late, or not at all, does not stop the run.
#[test]
fn a_call_of_a_sub_agent_whose_answer_does_not_come_begins_all_the_same() {
    let write = ProgramCall { id: "w1", tool: "Write" };
    let mut steps = two_begin();
    steps.extend([
        before(write, Some("a1")),
        runs("w1"),
        json!({"write": {"page": "one"}}),
        after(write, Some("a1"), &"ok".into()),
        asks("m2", Some("ag1"), &[write]),
        told("w1", Some("ag1"), "ok"),
    ]);
    steps.extend(ends("ag1", "one is done"));
    steps.extend(ends("ag2", "two is done"));
    steps.extend(end());
    let world = World::new(&json!(steps));
    world.run(|host| {
        assert_eq!(ask(host), "ok");
        assert_eq!(child(host, "ag1"), ["Assistant w1", "Tool ok", "Assistant one is done"]);
    });
    assert_eq!(world.ledger(), committed(&["Write"]));
}

/// The program may abandon a sub-agent whose call waits for a call of another: the call never
/// starts.
#[test]
fn a_call_that_waits_when_its_sub_agent_is_given_up_does_not_begin() {
    let (first, second) = (ProgramCall { id: "w1", tool: "Write" }, ProgramCall { id: "w2", tool: "Write" });
    let mut steps = two_begin();
    steps.extend([
        before(first, Some("a1")),
        asks("m2", Some("ag1"), &[first]),
        runs("w1"),
        before(second, Some("a2")),
        asks("m3", Some("ag2"), &[second]),
        taken(),
        waits("w2"),
        told("ag2", None, "given up"),
        json!({"write": {"page": "one"}}),
        after(first, Some("a1"), &"ok".into()),
        told("w1", Some("ag1"), "ok"),
        taken(),
        waits("w2"),
    ]);
    steps.extend(ends("ag1", "one is done"));
    steps.extend(end());
    let world = World::new(&json!(steps));
    world.run(|host| {
        assert_eq!(ask(host), "ok");
        assert!(
            child(host, "ag2")[1].starts_with("Tool The program told no result"),
            "{:?}",
            child(host, "ag2")
        );
    });
    let skipped = ("Write".to_owned(), "failed".to_owned());
    assert_eq!(world.ledger(), [&committed(&["Write"])[..], &[skipped]].concat());
}

/// No message reports the end of a call that was abandoned while it ran: the call of another
/// sub-agent waited for it forever.
#[test]
fn a_call_that_runs_when_its_sub_agent_is_given_up_is_rolled_back() {
    let (first, second) = (ProgramCall { id: "w1", tool: "Write" }, ProgramCall { id: "w2", tool: "Write" });
    let mut steps = two_begin();
    steps.extend([
        before(first, Some("a1")),
        asks("m2", Some("ag1"), &[first]),
        runs("w1"),
        json!({"write": {"page": "half"}}),
        before(second, Some("a2")),
        asks("m3", Some("ag2"), &[second]),
        taken(),
        waits("w2"),
        told("ag1", None, "given up"),
        runs("w2"),
        json!({"write": {"note": "whole"}}),
        after(second, Some("a2"), &"ok".into()),
        told("w2", Some("ag2"), "ok"),
    ]);
    steps.extend(ends("ag2", "two is done"));
    steps.extend(end());
    let world = World::new(&json!(steps));
    world.run(|host| assert_eq!(ask(host), "ok"));
    assert_eq!((world.file("page"), world.file("note").as_deref()), (None, Some("whole")));
    let failed = ("Write".to_owned(), "failed".to_owned());
    assert_eq!(world.ledger(), [&[failed], &committed(&["Write"])[..]].concat());
}

/// The answer that started the sub-agents was recorded only with their results. A process that
/// ended before lost the answer, which was paid for, and the work of the sub-agents' calls: the
/// model called them again.
#[test]
fn an_answer_whose_sub_agents_were_at_work_is_not_lost_with_its_process() {
    let write = |id: &str, file: &str| json!({"native": "Write", "id": id, "input": {"file_path": file}, "write": {file: "x"}});
    let world = World::new(&json!([
        {"turn": true},
        {"native": "Agent", "id": "ag1", "input": {"prompt": "look"}, "mirror": true, "steps": [
            write("w1", "page"), {"native": "Write", "id": "w2", "input": {}, "write": {"page": "half", "ready": ""}, "gate": "never"},
        ]},
    ]));
    let script = world.stand_in.path("script");
    let adapter = |cwd: &Path| adapter_of(&script, cwd).with_options(native(&TOOLS));
    let (left, state) = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            world.run_unreplayed(|host| host.ask_with(&adapter(&world.workspace()), "Go.").map(drop))
        });
        wait_for(&world.workspace().join("ready"));
        let left = Left::of(&world);
        let state = left.state();
        let recovered = adapter(&left.workspace()).recover(&prompt(), &state).unwrap();
        assert_eq!(recovered.undone.len(), 1);
        assert!(first.join().unwrap().is_err(), "the program outlived the recovery");
        (left, state)
    });
    world.stand_in.play(&json!([{"turn": true}, {"text": "$results"}, {"result": "$results"}]));
    let text = adapter(&left.workspace()).evaluate(&prompt(), &state, asking("And now?")).unwrap().text;
    assert!(text.starts_with("ag1: The process ended while this sub-agent worked."), "{text}");
    assert!(text.contains("Its call of `Write` with {\"file_path\":\"page\"}: ok"), "{text}");
    assert!(text.contains("(failed): The call was interrupted; its effects were undone."), "{text}");
    assert_eq!(fs::read_to_string(left.workspace().join("page")).unwrap(), "x");
    let said = left.session.conversation().read(EVALUATION).unwrap().unwrap().sent_messages();
    assert_eq!(validate(MessageFormat::Anthropic, &said), Ok(()));
    let roles: Vec<_> = said.iter().skip(1).map(|one| one.role).collect();
    assert_eq!(roles, [User, Assistant, Tool, User, Assistant], "{said:?}");
    assert_eq!(said[2].tool_calls[0].call_id, "ag1");
}
