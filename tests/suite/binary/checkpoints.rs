//! `foldlog task checkpoints`, `task restore` and `recover --strategy`: the checkpoints of a
//! session, and a restore without its host.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use foldlog::filesystem::HostFilesystem;
use foldlog::tools::resources::BudgetTracker;
use foldlog::{Event, ExecutionState, ResourceRegistry, SessionTypes, Slice, Store};
use foldlog_tasks::{
    CheckpointManager, NewTask, TaskCreated, TaskId, TaskTreeState, declare, open_without_host,
};
use foldlog_tests::verbs::foldlog;

use super::options;

#[derive(serde::Serialize, serde::Deserialize)]
struct Noted(String);

impl Event for Noted {
    const NAME: &'static str = "host.noted";
}

/// A slice of the host's own, which the binary does not know.
struct Notes;

impl Slice for Notes {
    const NAME: &'static str = "host.notes";
    type Item = Noted;
}

#[test]
fn checkpoints_are_listed_and_a_session_is_restored_or_recovered_without_its_host() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let types = declare(SessionTypes::builder()).slice::<Notes>().append_all::<Notes>().build().unwrap();
    let session = store.create(&types).unwrap();
    let manager = CheckpointManager::new(session.clone());
    let create = |name: &str| {
        session.dispatch(Noted(name.to_owned())).unwrap();
        session.dispatch(TaskCreated { task: NewTask::new(TaskId::new(name).unwrap(), name) }).unwrap();
    };
    create("design");
    manager.create(Some("designed \u{1b}[31m")).unwrap();
    create("build");
    let (id, dir) = (session.id(), session.dir().to_str().unwrap().to_owned());
    // While another process has the session open, nothing is restored.
    let words = ["task", "restore", &dir, "1", "--by", "ada", "--reason", "it went wrong"];
    let ran = foldlog(words);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{ran:?}");
    assert!(ran.stderr.contains("already open for writing"), "{ran:?}");
    drop(manager);
    session.close().unwrap();

    let ran = foldlog(["task", "checkpoints", &dir]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.starts_with("checkpoint_001  2"), "{ran:?}");
    assert!(
        ran.stdout.contains("manual  \"designed \\u{1b}[31m\"  <- latest\n    1 task, 0 completed; "),
        "{ran:?}"
    );
    let ran = foldlog(["task", "checkpoints", &dir, "--json"]);
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(document["checkpoints"][0]["manifest"]["total_tasks"], 1);

    let ran = foldlog(["recover", &dir, "--strategies"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.stdout
            .starts_with("no effects of a crash were found\nif the log is intact, no strategy is needed"),
        "{ran:?}"
    );
    assert!(ran.stdout.contains("\nlatest: this session at position "), "{ran:?}");
    assert!(ran.stdout.contains("1 task, 0 completed; 0 messages; 0 files; 1 update lost\n"), "{ran:?}");
    let told = foldlog(["recover", &dir, "--strategies", "--json"]).stdout;
    assert_eq!(told.matches(r#""strategy":"latest""#).count(), 1, "as `--strategy` takes it: {told}");
    let ran = foldlog(["recover", &dir, "--strategy", "checkpoint:9", "--by", "ada", "--reason", "x"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let ran = foldlog(["recover", &dir, "--strategy", "guess", "--by", "ada", "--reason", "x"]);
    assert!(ran.stderr.contains("use latest, checkpoint:ID, updates or partial"), "{ran:?}");

    let ran = foldlog(words);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("restoring from position "), "{ran:?}");
    assert!(ran.stdout.contains("restoring checkpoint_002 undoes this\n"), "{ran:?}");
    let (session, _) = open_without_host(&store, id).unwrap();
    assert_eq!(TaskTreeState::from_session(&session).unwrap().tasks.len(), 1);
    session.close().unwrap();
    let ran = foldlog([
        "task",
        "restore",
        &dir,
        "checkpoint_002",
        "--by",
        "ada",
        "--reason",
        "it did not",
        "--json",
    ]);
    assert_eq!(ran.code, 0, "{ran:?}");
    // The host opens the session again with all of its own types.
    let session = store.open_session(id, &types).unwrap();
    assert_eq!(
        (session.view::<Notes>().unwrap().len(), TaskTreeState::from_session(&session).unwrap().tasks.len()),
        (2, 2)
    );
    session.close().unwrap();

    let to = directory.path().join("to");
    let to = to.to_str().unwrap();
    for strategy in ["updates", "partial"] {
        let ran =
            foldlog(["recover", &dir, "--strategy", strategy, "--to", to, "--by", "ada", "--reason", "x"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.stdout.contains(&format!("{strategy}: a new session at position ")), "{ran:?}");
        assert!(ran.stdout.contains("recovered: "), "{ran:?}");
    }
    assert_eq!(Store::open(to).unwrap().session_ids().unwrap().len(), 2);
}

/// Neither `restore` nor a strategy could restore workspaces; they only reported that the host
/// does.
#[test]
fn a_checkpoint_brings_back_the_workspaces_whose_directories_are_given() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("store")).unwrap();
    let session = store.create(&declare(SessionTypes::builder()).build().unwrap()).unwrap();
    let (id, dir) = (session.id(), session.dir().to_str().unwrap().to_owned());
    let workspace = directory.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    let page = || fs::read_to_string(workspace.join("page")).unwrap();
    fs::write(workspace.join("page"), "as it was").unwrap();
    {
        let files =
            HostFilesystem::open(&workspace, session.dir().join("files"), Default::default()).unwrap();
        let resources = ResourceRegistry::builder().filesystem(Arc::new(files));
        let resources = resources.snapshotable(Arc::new(BudgetTracker::default())).build().unwrap();
        let run = ExecutionState::new(session.clone(), resources);
        CheckpointManager::new(session.clone()).with_resources(run).create(None).unwrap();
    }
    session.close().unwrap();
    fs::write(workspace.join("page"), "spoiled").unwrap();

    let words = ["task", "restore", &dir, "1", "--by", "ada", "--reason", "it went wrong"];
    let ran = foldlog(words);
    assert_eq!((ran.code, page().as_str()), (0, "spoiled"), "{ran:?}");
    assert!(
        ran.stderr.contains("note: `workspace` is unchanged: --workspace workspace=DIR restores it"),
        "{ran:?}"
    );
    let named = format!("workspace={}", workspace.display());
    let ran = foldlog(words.iter().copied().chain(["--workspace", &named]));
    assert_eq!((ran.code, page().as_str()), (0, "as it was"), "{ran:?}");
    assert!(ran.stdout.contains("workspace `workspace` is as it was at the checkpoint: "), "{ran:?}");
    assert!(ran.stderr.contains("is unchanged") && !ran.stderr.contains("`workspace` is"), "{ran:?}");

    fs::write(workspace.join("page"), "spoiled again").unwrap();
    let words = ["recover", &dir, "--strategy", "checkpoint:1", "--by", "ada", "--reason", "x", "--json"];
    let ran = foldlog(words);
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, page().as_str()), (0, "spoiled again"), "{ran:?}");
    assert_eq!(document["workspaces"]["restored"].as_array().unwrap().len(), 0, "{ran:?}");
    let ran = foldlog(words.iter().copied().chain(["--workspace", &named]));
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, page().as_str()), (0, "as it was"), "{ran:?}");
    assert_eq!(document["workspaces"]["restored"][0]["name"], "workspace", "{ran:?}");

    // A new session has no workspace, and a checkpoint without captures restores none.
    let ran = foldlog([
        "recover",
        &dir,
        "--strategy",
        "partial",
        "--by",
        "a",
        "--reason",
        "x",
        "--workspace",
        &named,
    ]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let (session, _) = open_without_host(&store, id).unwrap();
    CheckpointManager::new(session.clone()).create(Some("bare")).unwrap();
    session.close().unwrap();
    let ran =
        foldlog(["task", "restore", &dir, "latest", "--by", "a", "--reason", "x", "--workspace", &named]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("has no captures of workspaces"), "{ran:?}");
}

#[test]
fn the_sound_files_of_a_damaged_tree_become_a_session_once_somebody_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path().join("store"), options()).unwrap();
    let session = store.create(&declare(SessionTypes::builder()).build().unwrap()).unwrap();
    session
        .dispatch(TaskCreated { task: NewTask::new(TaskId::new("design").unwrap(), "Design it") })
        .unwrap();
    let (id, dir) = (session.id().to_string(), session.dir().to_str().unwrap().to_owned());
    session.close().unwrap();
    let (tree, to) = (directory.path().join("tree"), directory.path().join("to"));
    let (tree, to) = (tree.to_str().unwrap(), to.to_str().unwrap());
    assert_eq!(foldlog(["export", &dir, "--format", "aca", "--to", tree]).code, 0);
    let file = Path::new(tree).join(".aca/sessions").join(&id).join("logs/execution/task_design.json");
    fs::write(file, "{}").unwrap();

    // Both the tree and the log are examined.
    let ran = foldlog(["recover", &dir, "--strategies", "--tree", tree]);
    assert!(ran.code == 0 && ran.stdout.contains("task_design.json: "), "{ran:?}");
    let ran = foldlog(["import", "aca", tree, "--store", to]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("--partial"), "{ran:?}");
    let ran = foldlog(["import", "aca", tree, "--store", to, "--partial"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let lost = "    lost: execution_logs: what happened to task design: logs/execution/task_design.json has 2 bytes, not ";
    assert!(
        ran.stdout.contains("partial: a new session at position ") && ran.stdout.contains(lost),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("nothing was imported") && !Path::new(to).exists(), "{ran:?}");
    let ran = foldlog([
        "import",
        "aca",
        tree,
        "--store",
        to,
        "--partial",
        "--by",
        "ada",
        "--reason",
        "a bad disk",
        "--json",
    ]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let made = Path::new(to).join("sessions").join(document["session"].as_str().unwrap());
    let ran = foldlog(["task", "list", made.to_str().unwrap()]);
    assert!(ran.stdout.contains("[ ] design  Design it"), "{ran:?}");
    let ran = foldlog(["import", "aca", tree, "--store", to, "--partial", "--by", "ada"]);
    assert_eq!(ran.code, 2, "{ran:?}");
}
