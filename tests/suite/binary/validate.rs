//! `foldlog validate`: whether the state of a session holds, and its repair.

use foldlog::{SessionTypes, Store};
use foldlog_agent::persistence::{NewTask, Task, TaskCreated, TaskId, TaskTreeState, Tasks, declare};
use foldlog_tests::verbs::foldlog;

use super::{demo, options};

#[test]
fn what_does_not_hold_is_told_with_its_repair_and_repaired_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_with(folder.path(), options()).unwrap();
    let session = store.create(&declare(SessionTypes::builder()).build().unwrap()).unwrap();
    let id = |id: &str| TaskId::new(id).unwrap();
    for name in ["site", "pages"] {
        session.dispatch(TaskCreated { task: NewTask::new(id(name), "A task") }).unwrap();
    }
    let sound = session.position().unwrap();
    // As an import does, which asks no reducer.
    let mut tasks: Vec<Task> = TaskTreeState::of(&session).unwrap().tasks.into_values().collect();
    tasks.iter_mut().filter(|task| task.id == id("pages")).for_each(|task| task.parent = Some(id("lost")));
    let broken = session.seed::<Tasks>(tasks).unwrap();
    let dir = session.dir().to_str().unwrap().to_owned();
    session.close().unwrap();

    let ran = foldlog(["validate", &dir, "--at", &sound.to_string()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, &*format!("position {sound}: valid\n")), "{ran:?}");
    let ran = foldlog(["validate", &dir]);
    let expected = format!(
        "position {broken}: not valid: 1 critical\n\
         critical parents-exist: the parent `lost` of task `pages` is missing  (repair: make task `pages` a root)\n"
    );
    assert_eq!((ran.code, &ran.stdout), (1, &expected), "{ran:?}");
    let ran = foldlog(["validate", &dir, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, &json["is_valid"], &json["position"]), (1, &false.into(), &broken.get().into()));
    assert_eq!(json["issues"][0]["error"]["error"], "orphaned_task");
    assert_eq!(json["repair_plan"]["steps"][0]["step"], "task_modified");
    // Nobody repairs without saying who it is.
    assert_eq!(foldlog(["validate", &dir, "--repair"]).code, 2);
    assert_eq!(foldlog(["validate", &dir, "--by", "ada"]).code, 2);

    let ran = foldlog(["validate", &dir, "--repair", "--by", "ada", "--reason", "lost in an import"]);
    let repaired = format!("{expected}repaired parents-exist: make task `pages` a root  (record ");
    let told = ran.stdout.starts_with(&repaired) && ran.stdout.ends_with(")\nnow valid\n");
    assert!(ran.code == 0 && told, "{ran:?}");
    let ran = foldlog(["validate", &dir, "--repair", "--by", "ada"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.ends_with(": valid\nnothing is to be repaired\n"), "{ran:?}");
    let ran = foldlog(["state", &dir, "--slice", "recovery_actions"]);
    assert!(ran.stdout.contains("lost in an import") && ran.stdout.contains("repair_begun"), "{ran:?}");
}

/// The demo calls tools over a workspace, talks to a model, fails, and is killed: its state holds all the same.
#[test]
fn sessions_with_tools_and_conversations_hold() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("demo");
    let ran = demo(&["demo", "--dir", store.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let mut count = 0;
    for session in std::fs::read_dir(store.join("sessions")).unwrap() {
        let session = session.unwrap().path();
        let ran = foldlog(["validate", session.to_str().unwrap()]);
        assert!(ran.code == 0 && !ran.stdout.contains("error "), "{ran:?}");
        count += 1;
    }
    assert!(count > 0);
}
