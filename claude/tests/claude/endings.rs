//! Shows how the endings of the program's own tools are recorded, and what happens to their
//! changes.

use std::fs;

use foldlog::conversation::Role;
use foldlog::inspect::LogReader;
use foldlog_agent::adapter_state::StatefulAdapter;
use serde_json::{Value, json};

use crate::api::{Answers, Api, call, text};
use crate::world::{World, cli};
use crate::{ledger, native, results, said};

fn bash(id: &str, command: &str, timeout_ms: u64) -> Answers {
    Answers::With(vec![call(
        id,
        "Bash",
        &json!({"command": command, "timeout": timeout_ms, "description": "d"}),
    )])
}

/// `npm install && npm test` lost the installed packages if a test failed.
#[test]
fn a_command_that_exits_with_3_keeps_its_changes_and_one_whose_time_is_over_does_not() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let page = world.workspace().join("page");
    let edit = json!({"file_path": page, "old_string": "nowhere", "new_string": "x"});
    let api = Api::answering(vec![
        bash("toolu_1", "echo built > built; echo red; exit 3", 60_000),
        bash("toolu_2", "echo half > late; sleep 30", 1_500),
        bash("toolu_3", "echo term > term; exit 143", 60_000),
        bash("toolu_4", "grep nowhere built", 60_000),
        Answers::With(vec![call("toolu_5", "Edit", &edit)]),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&["Bash", "Edit"]));
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Work.")).unwrap();
    assert_eq!(response.text, "done");
    let kept = ["built", "late", "term"].map(|name| world.workspace().join(name).exists());
    assert_eq!(kept, [true, false, true]);
    let log = LogReader::open(world.session.dir()).unwrap();
    let ledger = log.ledger().unwrap();
    let ended: Vec<_> = ledger.iter().map(|entry| (entry.outcome.name(), entry.exit_code)).collect();
    let expected = [("committed", Some(3)), ("failed", None), ("committed", Some(143)), ("committed", None)];
    assert_eq!(ended[..4], expected);
    assert!(ledger.iter().skip(4).all(|entry| entry.outcome.name() == "failed"), "{ledger:?}");
    // The conversation contains the result that the model got, and the context that a hook added.
    // Newer versions also add reminders.
    let conversation = world.session.conversation().read("run").unwrap().unwrap();
    let sent = conversation.sent_messages();
    let recorded = sent.iter().filter(|message| message.role == Role::Tool);
    let seen = api.seen();
    let last = seen.last().unwrap();
    let mut beside = 0;
    for (recorded, (id, told, is_error)) in recorded.zip(&results(last)) {
        let text = recorded.content.as_deref().unwrap();
        let (text, context) = text.rsplit_once("\n\nThe call failed.").unwrap_or((text, ""));
        beside += usize::from(!context.is_empty());
        assert!(told.starts_with(text), "{id}: {told}, and not {text}");
        assert!(last.to_string().contains(context), "{id}: {context} is not in {last}");
        assert_eq!(recorded.is_error, *is_error, "{id}: {text}");
    }
    assert!(beside > 0, "no call was rolled back");
}

/// Returns the path of a large output that the program reports to the model.
fn saved(texts: &str) -> String {
    let (_, path) = texts.split_once("Full output saved to: ").unwrap();
    path.split(['\n', '\\']).next().unwrap().to_owned()
}

/// The file was removed with the directories of the run, although the model read its path in later
/// runs too.
#[test]
fn a_large_output_that_the_program_saves_is_there_behind_a_kill_and_in_the_next_run() {
    let Some(cli) = cli() else { return };
    let world = World::new();
    let api = Api::answering(vec![
        bash("toolu_1", "seq 1 400000", 60_000),
        bash("toolu_2", "kill -9 $PPID; sleep 1", 60_000),
        Answers::With(vec![text("done")]),
    ]);
    let adapter = world.adapter(&cli, &api, native(&["Bash"]));
    adapter.evaluate(&world.prompt(), &world.state, world.asking("Count.")).unwrap_err();
    let path = saved(&said(&world.session).into_iter().map(|(_, text)| text).collect::<String>());
    let lines = || fs::read_to_string(&path).unwrap().lines().count();
    assert_eq!(lines(), 400_000);
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Count.")).unwrap();
    assert_eq!(response.text, "done");
    let request: &Value = &api.seen().last().unwrap().clone();
    assert_eq!(saved(&results(request)[0].1), path);
    assert_eq!(lines(), 400_000);
    assert_eq!(ledger(&world.session)[0], ("Bash".to_owned(), "committed".to_owned()));
}
