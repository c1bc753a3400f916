//! Slices and conversations in the preview of a rewind, compared with the log after the rewind.

use std::ops::ControlFlow;

use foldlog::conversation::NewInput;
use foldlog::inspect::{Difference, DifferenceKind, LogReader};
use foldlog::tools::{RewindOptions, RewindPreview};
use foldlog::{Policy, SequenceNumber, Value};
use foldlog_test_support::room::Room;

/// Formats each difference as one line.
fn told(differences: &[Difference]) -> Vec<String> {
    let line = |one: &Difference| {
        let json = |value: &Value| serde_json::to_string(&value.json_form()).unwrap();
        let of = one.slice.as_ref().or(one.conversation.as_ref()).unwrap();
        format!("{of} {} {:?} {} {}", one.path, one.change, json(&one.before), json(&one.after))
    };
    differences.iter().map(line).collect()
}

/// Returns the differences of two positions by the log, reduced to those that a preview lists.
fn said(reader: &LogReader, from: SequenceNumber, to: SequenceNumber) -> Vec<Difference> {
    let at = |position| reader.state_reader_at(position).unwrap();
    let mut found = Vec::new();
    let mut take = |difference| {
        found.push(difference);
        Ok(ControlFlow::Continue(()))
    };
    at(from).slice_differences(&at(to), |policy| policy == Policy::State, &mut take).unwrap();
    reader.conversation_differences(from, to, &mut take).unwrap();
    found
}

#[test]
fn a_preview_names_the_values_and_messages_that_go_and_come_back() {
    let room = Room::new();
    let (options, session) = (RewindOptions::default(), room.session());
    session.conversation().record_input(&NewInput::user("evaluation", "do it")).unwrap();
    room.call("true");
    let then = room.at();
    room.call("echo one > page");
    session.conversation().record_input(&NewInput::user("evaluation", "go on")).unwrap();
    session.conversation().record_input(&NewInput::user("another", "hello")).unwrap();

    let preview = room.state().preview_rewind(then, &options).unwrap();
    assert_eq!(
        told(&preview.differences),
        [
            r#"current_step items[0].title Changed "echo one > page" "true""#,
            r#"plan items[1] Removed {"title":"echo one > page","part":0} null"#,
            r#"step_of_part items[0].title Changed "echo one > page" "true""#,
            r#"evaluation messages[1] Removed {"role":"user","content":"go on"} null"#,
            r#"another messages[0] Removed {"role":"user","content":"hello"} null"#,
        ],
    );
    // It round-trips through JSON.
    let json = serde_json::to_string(&preview).unwrap();
    assert_eq!(serde_json::from_str::<RewindPreview>(&json).unwrap(), preview);

    // The same number of messages replaces others: these are differences all the same.
    room.rewind(then);
    session.conversation().record_input(&NewInput::user("evaluation", "stop")).unwrap();
    session.conversation().record_input(&NewInput::user("another", "bye")).unwrap();
    let undo = room.state().preview_undo(&options).unwrap();
    let of_messages: Vec<_> = undo.differences.iter().filter(|one| one.conversation.is_some()).collect();
    let kinds: Vec<_> = of_messages.iter().map(|one| one.change).collect();
    let (removed, added) = (DifferenceKind::Removed, DifferenceKind::Added);
    assert_eq!(kinds, [removed, added, removed, added], "{undo:?}");
    assert_eq!(undo.conversations.len(), 2, "{undo:?}");

    // The log gives the same differences from its bytes alone.
    let dir = session.dir().to_owned();
    session.sync().unwrap();
    let reader = LogReader::open(&dir).unwrap();
    assert_eq!(preview.differences, said(&reader, preview.from, then));
    assert_eq!(undo.differences, said(&reader, undo.from, undo.to));
    let at = |position| reader.state_reader_at(position).unwrap();
    assert!(at(then).tag_differences(&at(undo.from)).is_empty());
}
