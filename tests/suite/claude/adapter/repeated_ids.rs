//! Two calls of one answer that have the same id. Hooks and results name a call only by its id. The
//! frames arrive in the orders in which 2.1.100 and 2.1.332 send them.

use foldlog::conversation::Role;
use foldlog::inspect::{LedgerEntry, LogReader};
use foldlog_agent::pairing::{MessageFormat, RepairChange, repair, validate};
use serde_json::{Value, json};

use super::world::{EVALUATION, Host, World, native};

/// The id of all calls here.
const ID: &str = "t1";

/// A block that requests a call.
fn block(tool: &str, input: &Value) -> Value {
    json!({"type": "tool_use", "id": ID, "name": tool, "input": input})
}

/// A line of the first answer.
fn line(id: &str, blocks: &[Value]) -> Value {
    json!({"emit": {"type": "assistant", "session_id": "$session", "parent_tool_use_id": null, "uuid": id,
        "message": {"id": "msg_1", "role": "assistant", "model": "m", "content": blocks}}})
}

fn line_without_id(blocks: &[Value]) -> Value {
    let mut line = line("", blocks);
    line["emit"].as_object_mut().unwrap().remove("uuid");
    line
}

/// The request of a hook.
fn hook(event: &str, tool: &str, input: &Value, output: &str) -> Value {
    let input = json!({"hook_event_name": event, "tool_name": tool, "tool_input": input, "tool_use_id": ID,
        "tool_response": output, "error": output});
    json!({"subtype": "hook_callback", "callback_id": event, "input": input, "tool_use_id": ID})
}

/// The hook before a call; the program waits for the reply.
fn before(tool: &str, input: &Value) -> Value {
    json!({"ask": hook("PreToolUse", tool, input, "")})
}

fn after(tool: &str, input: &Value, output: &str) -> Value {
    json!({"ask": hook("PostToolUse", tool, input, output)})
}

/// The result of a call, as sent to the model.
fn told(text: &str, is_error: bool) -> Value {
    let block = json!({"type": "tool_result", "tool_use_id": ID, "content": text, "is_error": is_error});
    json!({"emit": {"type": "user", "session_id": "$session", "parent_tool_use_id": null,
        "message": {"role": "user", "content": [block]}}})
}

fn turn(steps: impl IntoIterator<Item = Value>) -> World {
    let begin = [json!({"turn": true})];
    let end = [json!({"text": "done"}), json!({"result": "done"})];
    World::new(&begin.into_iter().chain(steps).chain(end).collect::<Vec<_>>().into())
}

/// Runs a turn. Returns the arguments of each call with the text of its result, as the conversation
/// pairs them. Checks that the conversation is valid for a provider once the ids are changed.
fn pairs(host: &Host) -> Vec<(Value, String)> {
    host.ask_with(&host.adapter().with_options(native(&["Read", "Write"])), "Go.").unwrap();
    let messages = host.session().conversation().read(EVALUATION).unwrap().unwrap().sent_messages();
    let repaired = repair(MessageFormat::Anthropic, &messages);
    validate(MessageFormat::Anthropic, &repaired.messages).unwrap();
    let is_rename = |change: &RepairChange| matches!(change, RepairChange::IdRenamed { .. });
    assert!(repaired.changes.iter().all(is_rename), "{:?}", repaired.changes);
    let calls = repaired.messages.iter().flat_map(|message| &message.tool_calls);
    let result = |id: &str| {
        let mut results = repaired.messages.iter().filter(|message| message.role == Role::Tool);
        results.find(|message| message.tool_call_id.as_deref() == Some(id)).unwrap().content.clone().unwrap()
    };
    calls.map(|call| (serde_json::from_str(&call.arguments).unwrap(), result(&call.call_id))).collect()
}

fn calls(world: &World) -> Vec<LedgerEntry> {
    LogReader::open(world.dir()).unwrap().ledger().unwrap()
}

/// Checks that two calls are separate operations. Returns their ordinals, if one answer requests
/// both.
fn ordinals(world: &World) -> Option<[u32; 2]> {
    let entries = calls(world);
    let [first, second] = &entries[..] else { panic!("{entries:?}") };
    assert_ne!(first.operation, second.operation);
    assert!(entries.iter().all(|entry| entry.call_id.as_deref() == Some(ID)), "{entries:?}");
    let (first, second) = (first.asked_by.unwrap(), second.asked_by.unwrap());
    assert_ne!(first, second);
    (first.answer == second.answer).then_some([first.ordinal, second.ordinal])
}

/// The program may send the result of a call after the next call of the answer, in another turn,
/// has started. The transcript lacked additional text of that result for the model.
#[test]
fn a_result_that_is_told_behind_the_begin_of_the_next_call_is_kept_as_it_was_told() {
    let (one, two) = (json!({"n": 1}), json!({"n": 2}));
    let world = turn([
        line("l1", &[block("Write", &one)]),
        before("Write", &one),
        json!({"write": {"page": "half"}}),
        json!({"ask": hook("PostToolUseFailure", "Write", &one, "first")}),
        line("l2", &[block("Write", &two)]),
        before("Write", &two),
        told("first", true),
        json!({"write": {"page": "two"}}),
        after("Write", &two, "second"),
        told("second", false),
    ]);
    world.run(|host| {
        let [(first, failed), (second, kept)] = &pairs(host)[..] else { panic!("two calls") };
        assert_eq!((first, second, kept.as_str()), (&one, &two, "second"));
        assert!(failed.starts_with("first\n\nThe call failed."), "{failed}");
    });
    assert_eq!(world.file("page").as_deref(), Some("two"));
}

fn outcomes(world: &World) -> Vec<String> {
    world.ledger().into_iter().map(|(_, outcome)| outcome).collect()
}

/// The second call was taken for the first: it had no operation, and its changes were in no
/// transaction.
#[test]
fn two_calls_of_one_answer_with_the_same_id_are_two_operations() {
    let (one, two) = (json!({"n": 1}), json!({"n": 2}));
    let world = turn([
        line("l1", &[block("Write", &one)]),
        line("l2", &[block("Write", &two)]),
        // A repeated line requests no other call.
        line("l1", &[block("Write", &one)]),
        before("Write", &one),
        json!({"write": {"page": "one"}}),
        after("Write", &one, "first"),
        told("first", false),
        before("Write", &two),
        json!({"write": {"page": "half"}}),
        json!({"ask": hook("PostToolUseFailure", "Write", &two, "second")}),
        told("second", true),
    ]);
    world.run(|host| {
        let [(first, kept), (second, failed)] = &pairs(host)[..] else { panic!("two calls") };
        assert_eq!((first, kept.as_str(), second), (&one, "first", &two));
        assert!(failed.starts_with("second\n\nThe call failed."), "{failed}");
    });
    assert_eq!(world.file("page").as_deref(), Some("one"));
    assert_eq!(
        (ordinals(&world), outcomes(&world)),
        (Some([0, 1]), vec!["committed".into(), "failed".into()])
    );
}

/// 2.1.332 announces a call before it sends the next block, and announces the next call before it
/// sends the result.
#[test]
fn a_call_whose_twin_comes_in_a_later_part_of_the_answer_is_an_operation_of_its_own() {
    let (one, two) = (json!({"n": 1}), json!({"n": 2}));
    let mut second = before("Write", &two);
    (second["id"], second["wait"]) = ("second".into(), false.into());
    let world = turn([
        line("l1", &[block("Write", &one)]),
        before("Write", &one),
        line("l2", &[block("Write", &two)]),
        second,
        json!({"unanswered": "second"}),
        after("Write", &one, "first"),
        json!({"answer": "second"}),
        line("l1", &[block("Write", &one)]),
        told("first, in other words", false),
        after("Write", &two, "second"),
        told("second, in other words", false),
    ]);
    world.run(|host| {
        let pairs = pairs(host);
        assert_eq!(pairs[1], (two.clone(), "second, in other words".into()));
        assert_eq!((&pairs[0].0, pairs.len()), (&one, 2));
        assert!(pairs[0].1.starts_with("first"), "{pairs:?}");
    });
    assert_eq!((ordinals(&world), outcomes(&world)), (None, vec!["committed".to_owned(); 2]));
}

/// Results arrive in the order in which calls end. The text of the first result closed the other
/// call.
#[test]
fn results_of_calls_with_the_same_id_belong_to_the_calls_that_ended_in_that_order() {
    let (one, two) = (json!({"file_path": "one"}), json!({"file_path": "two"}));
    let world = turn([
        line_without_id(&[block("Read", &one), block("Read", &two)]),
        before("Read", &one),
        before("Read", &two),
        after("Read", &two, "{}"),
        told("text of two", false),
        after("Read", &one, "{}"),
        told("text of one", false),
    ]);
    world.run(|host| {
        assert_eq!(pairs(host), [(one.clone(), "text of one".into()), (two.clone(), "text of two".into())]);
    });
    assert_eq!((ordinals(&world), outcomes(&world)), (Some([0, 1]), vec!["committed".to_owned(); 2]));
}

/// Only their positions distinguish identical calls.
#[test]
fn calls_that_are_alike_are_told_apart_by_their_places() {
    let input = json!({"n": 1});
    let world = turn([
        line("l1", &[block("Write", &input)]),
        line("l2", &[block("Write", &input)]),
        before("Write", &input),
        told("first", true),
        before("Write", &input),
        after("Write", &input, "second"),
        told("second", false),
    ]);
    world.run(|host| {
        assert_eq!(pairs(host), [(input.clone(), "first".into()), (input.clone(), "second".into())]);
    });
    assert_eq!(
        (ordinals(&world), outcomes(&world)),
        (Some([0, 1]), vec!["failed".into(), "committed".into()])
    );
}

/// A call that is refused before its start has a result, but no hook.
#[test]
fn a_call_that_never_begins_leaves_the_hooks_to_its_twin() {
    let (one, two) = (json!({}), json!({"n": 2}));
    let world = turn([
        line("l1", &[block("Write", &one), block("Write", &two)]),
        told("the arguments are refused", true),
        before("Write", &two),
        after("Write", &two, "second"),
        told("second", false),
    ]);
    world.run(|host| {
        let expected =
            [(one.clone(), "the arguments are refused".to_owned()), (two.clone(), "second".to_owned())];
        assert_eq!(pairs(host), expected);
    });
    let entries = calls(&world);
    let origins: Vec<u32> = entries.iter().map(|entry| entry.asked_by.unwrap().ordinal).collect();
    assert_eq!((origins, outcomes(&world)), (vec![1], vec!["committed".to_owned()]));
}

#[test]
fn two_denied_calls_of_one_answer_with_the_same_id_are_both_recorded() {
    let (one, two) = (json!({"n": 1}), json!({"n": 2}));
    let permission =
        json!({"ask": {"subtype": "can_use_tool", "tool_name": "Bash", "input": two, "tool_use_id": ID}});
    let world = turn([
        line("l1", &[block("Bash", &one)]),
        line("l2", &[block("Bash", &two)]),
        before("Bash", &one),
        told("denied", true),
        before("Bash", &two),
        permission,
        told("denied", true),
    ]);
    world.run(|host| assert_eq!(pairs(host).len(), 2));
    assert_eq!((ordinals(&world), outcomes(&world)), (Some([0, 1]), vec!["failed".to_owned(); 2]));
}

#[test]
fn two_calls_of_the_hosts_tools_with_the_same_id_both_run() {
    let call = |text: &str| {
        json!({"ask": {"subtype": "mcp_message", "server_name": "wink", "message": {"jsonrpc": "2.0", "id": 5,
            "method": "tools/call", "params": {"name": "add", "arguments": {"text": text},
                "_meta": {"claudecode/toolUseId": ID}}}}})
    };
    let (one, two) = (json!({"text": "one"}), json!({"text": "two"}));
    let world = turn([
        line("l1", &[block("mcp__wink__add", &one), block("mcp__wink__add", &two)]),
        // The arguments determine the call, and not the order.
        call("two"),
        told("added two", false),
        call("one"),
        told("added one", false),
    ]);
    world.run_unreplayed(|host| {
        assert_eq!(pairs(host), [(one.clone(), "added one".into()), (two.clone(), "added two".into())]);
        assert_eq!(host.page(), ["two", "one"]);
    });
    assert_eq!((ordinals(&world), outcomes(&world)), (Some([1, 0]), vec!["committed".to_owned(); 2]));
}

/// The same block in another line without an id is the same call.
#[test]
fn a_block_that_comes_again_is_one_call() {
    let input = json!({"n": 1});
    let world = turn([
        line_without_id(&[block("Write", &input)]),
        line_without_id(&[block("Write", &input)]),
        before("Write", &input),
        line_without_id(&[block("Write", &input)]),
        after("Write", &input, "ok"),
        line_without_id(&[block("Write", &input)]),
        told("ok", false),
    ]);
    world.run(|host| assert_eq!(pairs(host), [(input.clone(), "ok".into())]));
    assert_eq!(outcomes(&world), ["committed"]);
}
