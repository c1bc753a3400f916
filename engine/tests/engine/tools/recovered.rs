//! Recoveries over a real directory, killed in turn at each system call that changes something.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::{Outcome, Policy, State};
use foldlog_test_support::child;
use foldlog_test_support::killed::{Call, Killed, calls, kill_at, step, tell_done};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::filesystem::digest::{self, Digest};

const RECOVERS: &str = "tools::recovered::part_of_a_child_that_recovers";

/// A normal run kills at every n-th of these calls.
const EVERY: usize = 17;

/// Enough files in one directory to be restored by two threads.
const MANY: usize = 40;

fn store_at(directory: &Path) -> Store {
    Store::open(directory.join("store")).unwrap()
}

fn runner_at(directory: &Path, session: Session) -> ToolRunner {
    let store = session.dir().join("workspace");
    let root = directory.join("workspace");
    let files = HostFilesystem::open(&root, store, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new().with(Upheaval))
}

/// Changes something of every kind, and is killed.
struct Upheaval;

#[derive(Deserialize, JsonSchema)]
struct Root {
    root: String,
}

impl Tool for Upheaval {
    const NAME: &'static str = "upheaval";
    type Parameters = Root;
    type Output = ();

    fn call(&self, Root { root }: Root, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let at = |path: &str| Path::new(&root).join(path);
        let files = context.resources().get::<dyn Filesystem>().unwrap();
        files.write("new/deep/er", b"new")?;
        files.write("overwritten", b"by the tool")?;
        files.append("appended", b", and more")?;
        files.delete("deleted")?;
        files.rename("renamed", "elsewhere/by another name")?;
        context.session().dispatch(StepAdded { title: "half way".to_owned(), part: 1 })?;
        fs::rename(at("directory"), at("directory of another name"))?;
        fs::remove_dir_all(at("gone"))?;
        fs::create_dir(at("empty"))?;
        for (path, mode) in [("opened up", 0o777), ("closed", 0o500), (".", 0o711)] {
            fs::set_permissions(at(path), Permissions::from_mode(mode))?;
        }
        fs::remove_file(at("becomes a link"))?;
        symlink("overwritten", at("becomes a link"))?;
        fs::remove_file(at("link"))?;
        symlink("/somewhere else", at("link"))?;
        fs::remove_file(at("becomes a directory"))?;
        fs::create_dir(at("becomes a directory"))?;
        fs::remove_dir_all(at("many"))?;
        context.session().dispatch(Noted { text: "all of it".to_owned() })?;
        kill(Pid::this(), Signal::SIGKILL).unwrap();
        unreachable!("it was killed")
    }
}

/// Creates the files from before that.
fn furnish(root: &Path) {
    let directories = ["directory/in directory", "gone/with/all", "closed", "many"];
    directories.iter().for_each(|directory| fs::create_dir_all(root.join(directory)).unwrap());
    let files = ["overwritten", "appended", "deleted", "renamed", "opened up", "becomes a link"];
    let deep = ["becomes a directory", "directory/in directory/file", "gone/with/all/of it", "closed/within"];
    let many = (0..MANY).map(|n| format!("many/{n}"));
    for file in files.into_iter().chain(deep).map(str::to_owned).chain(many) {
        fs::write(root.join(&file), format!("{file}, as it was")).unwrap();
    }
    symlink("directory", root.join("link")).unwrap();
    fs::set_permissions(root.join("opened up"), Permissions::from_mode(0o4640)).unwrap();
    fs::set_permissions(root.join("gone"), Permissions::from_mode(0o1777)).unwrap();
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_is_killed_within_an_upheaval() {
    let Some(argument) = child::argument() else { return };
    let (id, directory) = argument.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let session = store_at(directory).open_session(id.parse().unwrap(), &types()).unwrap();
    let root = directory.join("workspace").display().to_string();
    let call = ToolCall::new("upheaval", serde_json::json!({ "root": root }).to_string());
    let _ = runner_at(directory, session).execute(&call, &ExecuteOptions::default());
    unreachable!("it was killed");
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_recovers() {
    let Some(argument) = child::argument() else { return };
    let (id, directory) = argument.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let session = store_at(directory).open_session(id.parse().unwrap(), &types()).unwrap();
    let runner = runner_at(directory, session.clone());
    runner.recover(&ExecuteOptions::default()).unwrap();
    drop(runner);
    session.close().unwrap();
    tell_done();
}

struct Desk {
    directory: tempfile::TempDir,
    id: Uuid,
}

impl Desk {
    fn new() -> Desk {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("workspace")).unwrap();
        furnish(&directory.path().join("workspace"));
        let session = store_at(directory.path()).create(&types()).unwrap();
        session.dispatch(StepAdded { title: "before".to_owned(), part: 0 }).unwrap();
        let id = session.id();
        session.close().unwrap();
        Desk { directory, id }
    }

    fn argument(&self) -> String {
        format!("{} {}", self.id, self.directory.path().display())
    }

    fn open(&self) -> ToolRunner {
        let session = store_at(self.directory.path()).open_session(self.id, &types()).unwrap();
        runner_at(self.directory.path(), session)
    }

    /// Returns every file, and every slice of STATE.
    fn seen(&self, session: &Session) -> (Digest, State) {
        let mut state = session.dynamic().state().unwrap();
        state.slices.retain(|_, slice| slice.policy == Policy::State && !slice.items.is_empty());
        state.position = None;
        (digest::of(&self.directory.path().join("workspace")), state)
    }

    /// Returns a desk whose process was killed within its call, and the state before the call.
    fn upheaved() -> (Desk, (Digest, State)) {
        let desk = Desk::new();
        let runner = desk.open();
        let before = desk.seen(runner.state().session());
        drop(runner);
        let within = "tools::recovered::part_of_a_child_that_is_killed_within_an_upheaval";
        child::start(within, &desk.argument()).ended();
        assert_ne!(digest::of(&desk.directory.path().join("workspace")), before.0, "it came to its end");
        (desk, before)
    }
}

/// Kills one process within its call, and the next one during its recovery at this system call;
/// then recovers. Returns whether the second was killed too.
fn is_killed_twice(call: &Call) -> bool {
    let (desk, before) = Desk::upheaved();
    let Killed { was_killed, was_done } = kill_at(call, RECOVERS, &desk.argument());
    assert!(was_killed || was_done, "{call:?}: the recovery failed");

    let runner = desk.open();
    let session = runner.state().session();
    assert!(
        !was_done || session.log().recovery().interrupted.is_empty(),
        "{call:?}: it recovered, and left something open"
    );
    let recovered = runner.recover(&ExecuteOptions::default()).unwrap();
    assert_eq!(recovered.len(), 1, "{call:?}: it waits to be settled");
    assert_eq!(desk.seen(session), before, "{call:?}");
    let log = session.log().slice::<ToolInvocations>().unwrap();
    let outcomes: Vec<Outcome> = log.iter().map(|item| item.unwrap().outcome).collect();
    assert_eq!(outcomes, [Outcome::Interrupted], "{call:?}");
    was_killed
}

/// Protects: a recovery may be killed, and the next one restores the same. `FOLDLOG_MATRIX=all`
/// kills at every call.
#[test]
fn a_recovery_that_is_killed_at_any_change_of_a_file_is_begun_again_and_ends_the_same() {
    if !child::is_traced_here() {
        return;
    }
    let (desk, _) = Desk::upheaved();
    let calls = calls(RECOVERS, &desk.argument(), desk.directory.path());
    let tried: Vec<&Call> = calls.iter().step_by(step(EVERY)).collect();
    let killed = tried.iter().filter(|call| is_killed_twice(call)).count();
    println!("{killed} recoveries killed at {} of {} calls", tried.len(), calls.len());
    // Two threads share their work differently each time.
    assert!(calls.len() > 60 && killed * 10 >= tried.len() * 7, "{killed} of {}", tried.len());
}
