//! Several runs, each with its own session and store, on one workspace: they take turns, and none
//! rolls back committed changes of another.

use std::fs;
use std::path::{Path, PathBuf};

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::OperationStatus;
use foldlog_test_support::child;

use super::*;

/// Number of calls of each process. Every third fails.
const CALLS: usize = 30;

/// Increments a counter in a file that all processes share, and creates another file of its own.
struct Count {
    directory: PathBuf,
    name: String,
}

#[derive(Deserialize, JsonSchema)]
struct Nth {
    nth: usize,
}

impl Tool for Count {
    const NAME: &'static str = "count";
    type Parameters = Nth;
    type Output = ();

    fn call(&self, Nth { nth }: Nth, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        // Outside of the workspace, where nothing is rolled back: a second call would find it
        // there.
        let inside = self.directory.join("inside");
        fs::OpenOptions::new().write(true).create_new(true).open(&inside)?;
        let files = context.resources().get::<dyn Filesystem>().unwrap();
        let count: usize = String::from_utf8(files.read("count")?).unwrap().parse().unwrap();
        files.write("count", (count + 1).to_string().as_bytes())?;
        files.write(&format!("{} {nth}", self.name), b"")?;
        context.session().dispatch(StepAdded { title: nth.to_string(), part: 0 })?;
        fs::remove_file(inside)?;
        if nth % 3 == 0 { Err(ToolError::failed("not this one")) } else { Ok(ToolResult::ok("counted", ())) }
    }
}

fn runner_at(directory: &Path, name: &str) -> ToolRunner {
    let session = Store::open(directory.join(name)).unwrap().create(&types()).unwrap();
    let (root, store) = (directory.join("workspace"), session.dir().join("workspace"));
    let files = HostFilesystem::open(root, store, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    let counts = Count { directory: directory.to_owned(), name: name.to_owned() };
    ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new().with(counts))
}

/// Makes the calls; those that should fail must fail for no other reason.
fn count(directory: &Path, name: &str) {
    let runner = runner_at(directory, name);
    for nth in 0..CALLS {
        let call = ToolCall::new("count", format!(r#"{{"nth": {nth}}}"#));
        let report = runner.execute(&call, &ExecuteOptions::default()).unwrap();
        let expected = if nth % 3 == 0 { "not this one" } else { "counted" };
        assert_eq!(report.message, expected, "{name} {nth}");
    }
    let session = runner.state().session();
    let committed: Vec<String> = (0..CALLS).filter(|nth| nth % 3 != 0).map(|nth| nth.to_string()).collect();
    assert_eq!(plan(session), committed);
    let ledger = LogReader::open(session.dir()).unwrap().ledger().unwrap();
    let of = |fate| ledger.iter().filter(|entry| entry.outcome == fate).count();
    assert_eq!(
        (of(OperationStatus::Committed), of(OperationStatus::Failed)),
        (committed.len(), CALLS - committed.len())
    );
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_process_that_counts() {
    let Some(argument) = child::argument() else { return };
    let (name, directory) = argument.split_once(' ').unwrap();
    child::tell("ready", name);
    let _ = std::io::stdin().read_line(&mut String::new());
    count(Path::new(directory), name);
}

fn begun() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("workspace")).unwrap();
    fs::write(directory.path().join("workspace/count"), "0").unwrap();
    directory
}

/// Checks that every committed call of each process has left its file, no failed one has, and each
/// was counted.
fn is_counted(directory: &Path, names: &[&str]) {
    let mut expected: Vec<String> = Vec::new();
    for name in names {
        expected.extend((0..CALLS).filter(|nth| nth % 3 != 0).map(|nth| format!("{name} {nth}")));
    }
    let count = expected.len().to_string();
    expected.push("count".to_owned());
    expected.sort();
    let root = directory.join("workspace");
    let found = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = found.collect();
    found.sort();
    assert_eq!(found, expected);
    assert_eq!(fs::read_to_string(root.join("count")).unwrap(), count);
}

#[test]
fn two_processes_on_one_workspace_take_turns_and_neither_takes_back_what_the_other_committed() {
    let directory = begun();
    let names = ["one", "other"];
    let start = |name: &&str| {
        let argument = format!("{name} {}", directory.path().display());
        child::start("tools::workspaces::part_of_a_process_that_counts", &argument)
    };
    let mut processes: Vec<child::Started> = names.iter().map(start).collect();
    processes.iter_mut().for_each(|process| assert!(process.hear("ready").is_some()));
    // They start together, once both are ready.
    processes.iter_mut().for_each(child::Started::go_on);
    assert!(processes.iter_mut().all(child::Started::passed), "what they said stands above");
    is_counted(directory.path(), &names);
}

#[test]
fn two_sessions_of_one_process_on_one_workspace_take_turns_too() {
    let directory = begun();
    let names = ["one", "other"];
    std::thread::scope(|scope| {
        for name in names {
            scope.spawn(|| count(directory.path(), name));
        }
    });
    is_counted(directory.path(), &names);
}
