//! `foldlog task validate`: checks and repairs the state of a session.

use foldlog::{Event, SessionTypes, Slice, SliceOp, Store};
use foldlog_tasks::{
    NewTask, Task, TaskChanges, TaskCreated, TaskId, TaskModified, TaskTreeState, Tasks, declare,
};
use foldlog_tests::verbs::foldlog;

use super::{demo, options};

#[test]
fn what_does_not_hold_is_told_with_its_repair_and_repaired_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = store.create(&declare(SessionTypes::builder()).build().unwrap()).unwrap();
    let id = |id: &str| TaskId::new(id).unwrap();
    for name in ["site", "pages"] {
        session.dispatch(TaskCreated { task: NewTask::new(id(name), "A task") }).unwrap();
    }
    let sound = session.log().position().unwrap();
    // Like an import, which calls no reducer.
    let mut tasks: Vec<Task> = TaskTreeState::from_session(&session).unwrap().tasks.into_values().collect();
    tasks.iter_mut().filter(|task| task.id == id("pages")).for_each(|task| task.parent = Some(id("lost")));
    let broken = session.seed::<Tasks>(tasks).unwrap();
    let dir = session.dir().to_str().unwrap().to_owned();
    session.close().unwrap();

    let ran = foldlog(["task", "validate", &dir, "--at", &sound.to_string()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, &*format!("position {sound}: valid\n")), "{ran:?}");
    let ran = foldlog(["task", "validate", &dir]);
    let expected = format!(
        "position {broken}: not valid: 1 critical\n\
         critical parents-exist: the parent `lost` of task `pages` is missing  (repair: make task `pages` a root)\n"
    );
    assert_eq!((ran.code, &ran.stdout), (1, &expected), "{ran:?}");
    let ran = foldlog(["task", "validate", &dir, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, &json["is_valid"], &json["position"]), (1, &false.into(), &broken.get().into()));
    assert_eq!(json["issues"][0]["error"]["error"], "orphaned_task");
    assert_eq!(json["repair_plan"]["steps"][0]["step"], "task_modified");
    // A repair requires a name.
    assert_eq!(foldlog(["task", "validate", &dir, "--repair"]).code, 2);
    assert_eq!(foldlog(["task", "validate", &dir, "--by", "ada"]).code, 2);

    let ran = foldlog(["task", "validate", &dir, "--repair", "--by", "ada", "--reason", "lost in an import"]);
    let repaired = format!("{expected}repaired parents-exist: make task `pages` a root  (record ");
    let told = ran.stdout.starts_with(&repaired) && ran.stdout.ends_with(")\nnow valid\n");
    assert!(ran.code == 0 && told, "{ran:?}");
    let ran = foldlog(["task", "validate", &dir, "--repair", "--by", "ada"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.ends_with(": valid\nnothing to repair\n"), "{ran:?}");
    let ran = foldlog(["state", &dir, "--slice", "recovery_actions"]);
    assert!(ran.stdout.contains("lost in an import") && ran.stdout.contains("repair_begun"), "{ran:?}");
}

/// Sets a task to this value, valid or not: an event of a host's own.
#[derive(serde::Serialize, serde::Deserialize)]
struct Imported(Task);

impl Event for Imported {
    const NAME: &'static str = "host.imported";
}

struct Audit;

impl Slice for Audit {
    const NAME: &'static str = "audit";
    type Item = TaskModified;
}

/// `--repair` opened a session with only the types of long-running work, and failed if the host had
/// events of its own on these slices.
#[test]
fn a_session_whose_host_is_elsewhere_is_repaired_unless_its_host_takes_the_repairs_events_too() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let host = || {
        declare(SessionTypes::builder())
            .reducer::<Tasks, Imported>(|_, event, _| Ok(SliceOp::Upsert(event.0.clone())))
    };
    let id = |id: &str| TaskId::new(id).unwrap();
    let broken = |types: SessionTypes| {
        let session = store.create(&types).unwrap();
        session.dispatch(TaskCreated { task: NewTask::new(id("pages"), "A task") }).unwrap();
        let changes = TaskChanges { priority: Some(1), ..TaskChanges::default() };
        session.dispatch(TaskModified { task_id: id("pages"), changes }).unwrap();
        let mut task = TaskTreeState::from_session(&session).unwrap().tasks.into_values().next().unwrap();
        task.parent = Some(id("lost"));
        session.dispatch(Imported(task)).unwrap();
        let dir = session.dir().to_str().unwrap().to_owned();
        session.close().unwrap();
        dir
    };
    let dir = broken(host().build().unwrap());
    let ran = foldlog(["task", "validate", &dir, "--repair", "--by", "ada"]);
    assert!(ran.code == 0 && ran.stdout.ends_with(")\nnow valid\n"), "{ran:?}");
    // The host continues with the repaired state.
    let session = store.session_ids().unwrap()[0];
    let session = store.open_session(session, &host().build().unwrap()).unwrap();
    assert_eq!(TaskTreeState::from_session(&session).unwrap().root_tasks, [id("pages")]);
    session.close().unwrap();

    let dir = broken(host().slice::<Audit>().append_all::<Audit>().build().unwrap());
    let before = foldlog(["show", &dir]);
    let ran = foldlog(["task", "validate", &dir, "--repair", "--by", "ada"]);
    let told = "the session's host also applies `task_modified` to `audit`, which a repair without the host cannot do";
    assert!(
        ran.code == 2 && ran.stderr.contains(told) && ran.stderr.contains("nothing was changed"),
        "{ran:?}"
    );
    assert_eq!(foldlog(["show", &dir]), before);
}

/// The demo calls tools over a workspace, talks to a model, fails, and is killed: its state is
/// valid nevertheless.
#[test]
fn sessions_with_tools_and_conversations_hold() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("demo");
    let ran = demo(&["demo", "--dir", store.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let mut count = 0;
    for session in std::fs::read_dir(store.join("sessions")).unwrap() {
        let session = session.unwrap().path();
        let ran = foldlog(["task", "validate", session.to_str().unwrap()]);
        assert!(ran.code == 0 && !ran.stdout.contains("error "), "{ran:?}");
        count += 1;
    }
    assert!(count > 0);
}
