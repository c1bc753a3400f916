//! `foldlog task list`: the tasks of a session, as a tree.

use foldlog::{SessionTypes, Store};
use foldlog_tasks::{NewTask, TaskCreated, TaskId, TaskStatus, TaskStatusChanged, TaskTreeState, declare};
use foldlog_tests::verbs::foldlog;

use super::options;

fn id(id: &str) -> TaskId {
    TaskId::new(id).unwrap()
}

#[test]
fn tasks_are_drawn_as_a_tree_with_what_each_waits_for_at_any_position() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = store.create(&declare(SessionTypes::builder()).build().unwrap()).unwrap();
    let create = |task: NewTask| session.dispatch(TaskCreated { task }).unwrap();
    let change = |name: &str, old_status, new_status, reason: Option<&str>| {
        let reason = reason.map(str::to_owned);
        session.dispatch(TaskStatusChanged { task_id: id(name), old_status, new_status, reason }).unwrap()
    };
    use TaskStatus::{Blocked, Completed, Failed, InProgress, Pending};
    let begin = session.log().position().unwrap();
    create(NewTask::new(id("site"), "Build the site"));
    create(NewTask::new(id("pages"), "Write the pages").with_parent(id("site")));
    create(NewTask::new(id("logo"), "Draw \u{1b}[31mthe logo\n").with_parent(id("site")));
    create(NewTask { priority: 3, ..NewTask::new(id("ship"), "Ship it").requires(id("pages")) });
    create(NewTask::new(id("bill"), "Send the bill"));
    let planned = session.log().position().unwrap();
    change("bill", Pending, Blocked, Some("nobody knows the price"));
    change("site", Pending, InProgress, None);
    change("pages", Pending, InProgress, None);
    change("pages", InProgress, Failed, Some("the disk is full"));
    change("pages", Failed, Pending, None);
    let before = change("pages", Pending, InProgress, None);
    change("pages", InProgress, Completed, None);
    let tree = TaskTreeState::from_session(&session).unwrap();
    let dir = session.dir().to_str().unwrap().to_owned();
    session.close().unwrap();

    let ran = foldlog(["task", "list", &dir]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let expected = "\
position 14 of 14: 5 tasks: 2 pending, 1 blocked, 1 in progress, 1 completed
[>] site  Build the site  <- active
  [x] pages  Write the pages  (started 2 times, failed 1)
  [ ] logo  Draw \\u{1b}[31mthe logo\\n
[ ] ship  Ship it  (priority 3)
[#] bill  Send the bill  (blocked: nobody knows the price)
next: ship, logo
";
    assert_eq!(ran.stdout, expected);
    let ran = foldlog(["task", "list", &dir, "--at", &before.to_string()]);
    assert!(
        ran.stdout.contains("  [>] pages  Write the pages  (started 2 times, failed 1)  <- active\n"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("[ ] ship  Ship it  (waits for pages; priority 3)\n"), "{ran:?}");
    assert!(ran.stdout.ends_with("next: logo\n"), "{ran:?}");
    let ran = foldlog(["task", "list", &dir, "--at", &planned.to_string()]);
    assert!(ran.stdout.contains("[ ] site  Build the site  (waits for its parts)\n"), "{ran:?}");
    assert!(ran.stdout.ends_with("next: pages, logo, bill\n"), "{ran:?}");
    let ran = foldlog(["task", "list", &dir, "--json"]);
    assert_eq!(serde_json::from_str::<TaskTreeState>(&ran.stdout).unwrap(), tree);
    let ran = foldlog(["task", "list", &dir, "--at", &begin.to_string()]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("the session has no tasks at position"), "{ran:?}");

    // The former names of the commands work, and the help lists only the new ones.
    let help = foldlog(["--help"]).stdout;
    for (former, name, options) in [
        ("tasks", "list", &[][..]),
        ("validate", "validate", &["--json"]),
        ("checkpoints", "checkpoints", &["--json"]),
        ("restore", "restore", &["1", "--by", "ada", "--reason", "none"]),
    ] {
        let words = |words: &[&str]| foldlog([words, &[&dir], options].concat());
        assert_eq!(words(&[former]), words(&["task", name]), "{former}");
        assert!(!help.contains(&format!("\n  {former} ")), "{help}");
        assert_eq!(foldlog(["help", former]).code, 0);
    }
}
