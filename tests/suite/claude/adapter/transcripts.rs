//! Transcripts of a program that was killed before it had mirrored all of its work.

use serde_json::json;

use super::world::World;

/// The lines of an answer are mirrored with a delay of up to some 100 ms: its call may have ended
/// by then.
#[test]
fn a_call_that_committed_is_told_to_the_model_although_no_line_of_it_was_mirrored() {
    let world = World::new(&json!([
        {"turn": true},
        {"mirror": true},
        {"tool": "add", "input": {"text": "one"}, "id": "t1"},
        {"die": 9},
    ]));
    world.run_unreplayed(|host| host.ask("Go.").unwrap_err());
    // The model of the second program sees the content of the rewritten file.
    world.stand_in.play(&json!([{"turn": true}, {"text": "$results"}, {"result": "$results"}]));
    let text = world.run_unreplayed(|host| {
        assert_eq!(host.page(), ["one"]);
        host.ask("Go.").unwrap().text
    });
    assert_eq!(text, "t1: added one");
}

/// A copy contains the whole history of the copied session, which the program mirrors piece by
/// piece.
#[test]
fn a_copy_that_was_mirrored_in_part_keeps_the_history_of_its_original() {
    let world = World::new(&json!([
        {"turn": true},
        {"tool": "add", "input": {"text": "one"}, "id": "t1"},
        {"mirror": true},
        {"die": 9},
    ]));
    world.run_unreplayed(|host| host.ask("Go.").unwrap_err());
    world.stand_in.play(&json!([
        {"turn": true},
        {"emit": {"type": "transcript_mirror", "filePath": "/projects/p/$session.jsonl", "entries": [
            {"type": "user", "uuid": "00000000-0000-4000-8000-000000000001", "parentUuid": null, "sessionId": "$session",
                "message": {"role": "user", "content": "Go."}},
        ]}},
        {"tool": "add", "input": {"text": "two"}, "id": "t2"},
        {"die": 9},
    ]));
    world.run_unreplayed(|host| host.ask("Go.").unwrap_err());
    world.stand_in.play(&json!([{"turn": true}, {"text": "$results"}, {"result": "$results"}]));
    let text = world.run_unreplayed(|host| {
        assert_eq!(host.page(), ["one", "two"]);
        host.ask("Go.").unwrap().text
    });
    assert_eq!(text, "t1: added one|t2: added two");
}

/// The program does not accept a file without a message as a session.
#[test]
fn a_session_of_which_no_message_was_mirrored_is_replaced_and_told_the_conversation() {
    let world = World::new(&json!([
        {"turn": true},
        {"tool": "add", "input": {"text": "one"}, "id": "t1"},
        {"emit": {"type": "transcript_mirror", "filePath": "/projects/p/$session.jsonl", "entries": [
            {"type": "queue-operation", "operation": "enqueue", "sessionId": "$session"},
        ]}},
        {"die": 9},
    ]));
    world.run_unreplayed(|host| host.ask("Go.").unwrap_err());
    world.stand_in.play(&json!([{"turn": true}, {"text": "$prompt"}, {"result": "$prompt"}]));
    let text = world.run_unreplayed(|host| host.ask("Go.").unwrap().text);
    assert!(text.contains("added one"), "{text}");
    assert!(
        !world.arguments().iter().any(|argument| argument.starts_with("--resume")),
        "{:?}",
        world.arguments()
    );
}
