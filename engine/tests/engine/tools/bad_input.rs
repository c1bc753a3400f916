//! Hostile and broken workspaces and stores in a real call over a real directory: the error names
//! the problem, the log records the outcome of the call, and the session continues or reports why
//! not.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::OperationStatus;
use foldlog_test_support::child;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Pid, Uid, mkfifo, setgid, setuid};

use super::*;
use crate::filesystem::digest::{self, Digest};

type Done = Result<(), ToolError>;

/// A tool that notes in STATE that it ran, and then does something.
struct Act(Box<dyn Fn(&ToolContext) -> Done + Send + Sync>);

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

impl Tool for Act {
    const NAME: &'static str = "act";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        context.session().dispatch(StepAdded { title: "acted".to_owned(), part: 0 })?;
        (self.0)(context)?;
        Ok(ToolResult::ok("done", ()))
    }
}

fn files(context: &ToolContext) -> Arc<dyn Filesystem> {
    context.resources().get::<dyn Filesystem>().unwrap()
}

/// A directory with a store, and the workspace of its session next to it.
struct Home {
    directory: tempfile::TempDir,
    state: ExecutionState,
}

fn store_at(directory: &Path) -> Store {
    Store::open(directory.join("store")).unwrap()
}

fn state_of(session: Session, root: &Path) -> Result<ExecutionState> {
    state_with(HostFilesystemOptions::default(), session, root)
}

fn state_with(options: HostFilesystemOptions, session: Session, root: &Path) -> Result<ExecutionState> {
    let store = session.dir().join("workspace");
    let files = HostFilesystem::open(root, store, options)?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    Ok(ExecutionState::builder(session, resources).checkpoints(CheckpointStore::new()).build())
}

impl Home {
    fn new() -> Home {
        Home::in_directory(tempfile::tempdir().unwrap())
    }

    fn in_directory(directory: tempfile::TempDir) -> Home {
        let root = directory.path().join("workspace");
        fs::create_dir_all(root.join("directory")).unwrap();
        fs::write(root.join("directory/file"), "as it was").unwrap();
        let session = store_at(directory.path()).create(&types()).unwrap();
        let state = state_of(session, &root).unwrap();
        Home { state, directory }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    fn digest(&self) -> Digest {
        digest::of(&self.root())
    }

    fn session(&self) -> &Session {
        self.state.session()
    }

    fn runner(&self, act: impl Fn(&ToolContext) -> Done + Send + Sync + 'static) -> ToolRunner {
        ToolRunner::new(self.state.clone(), ToolRegistry::new().with(Act(Box::new(act))))
    }

    fn call(&self, act: impl Fn(&ToolContext) -> Done + Send + Sync + 'static) -> Result<ToolReport> {
        let call = ToolCall::new("act", "{}").with_id(format!("call {:?}", self.session().log().position()));
        self.runner(act).execute(&call, &ExecuteOptions::default())
    }

    /// Starts the next process, which has not recovered yet.
    fn reopen(&mut self) {
        let (id, root) = (self.session().id(), self.root());
        self.session().clone().close().unwrap();
        let session = store_at(self.directory.path()).open_session(id, &types()).unwrap();
        self.state = state_of(session, &root).unwrap();
    }

    fn fates(&self) -> Vec<OperationStatus> {
        let ledger = LogReader::open(self.session().dir()).unwrap().ledger().unwrap();
        ledger.into_iter().map(|entry| entry.outcome).collect()
    }

    fn invoked(&self) -> u64 {
        self.session().log().slice::<ToolInvocations>().unwrap().len()
    }

    /// Makes a call that the workspace prevents from starting. Returns its error; nothing is
    /// recorded.
    fn refused(&self) -> String {
        let (position, plan) = (self.session().log().position(), plan(self.session()));
        let error = self.call(|_| unreachable!("it is not run")).unwrap_err();
        assert_eq!(
            (self.session().log().position(), super::plan(self.session())),
            (position, plan),
            "{error}"
        );
        assert!(self.session().calls().open_operations().is_empty());
        error.to_string()
    }

    /// Makes a call that fails, and returns the message for the model. Only its entries are left.
    fn failed(&self, act: impl Fn(&ToolContext) -> Done + Send + Sync + 'static) -> String {
        let (files, plan, invoked) = (self.digest(), plan(self.session()), self.invoked());
        let report = self.call(act).unwrap();
        assert!(!report.success && report.cause == Some(Cause::Error), "{report:?}");
        // Files that no capture contains were moved there.
        let _ = fs::remove_dir_all(self.root().join(".foldlog-aside"));
        assert_eq!(self.digest(), files, "{report:?}");
        assert_eq!(super::plan(self.session()), plan, "{report:?}");
        assert_eq!(
            (self.invoked(), self.fates().pop()),
            (invoked + 1, Some(OperationStatus::Failed)),
            "{report:?}"
        );
        report.message
    }

    fn goes_on(&self) {
        let (calls, steps) = (self.invoked(), plan(self.session()).len());
        let report = self.call(|context| Ok(files(context).write("next", b"done")?)).unwrap();
        assert!(report.success, "{report:?}");
        assert_eq!(fs::read(self.at("next")).unwrap(), b"done");
        assert_eq!((self.invoked(), plan(self.session()).len()), (calls + 1, steps + 1));
        assert_eq!(self.fates().pop(), Some(OperationStatus::Committed));
    }

    fn recover(&self) -> Result<Vec<foldlog::tools::RecoveredOperation>> {
        self.runner(|_| Ok(())).recover(&ExecuteOptions::default())
    }

    /// Checks that a recovery failed with the reason, changed nothing, and is still pending.
    fn stays_interrupted(&self, said: &str, named: &Path) {
        assert!(said.contains(named.to_str().unwrap()), "{said}");
        assert!(self.session().calls().is_interrupted());
        assert_eq!(self.fates(), [OperationStatus::Open]);
        let refused = self.session().dispatch(StepAdded { title: "too early".to_owned(), part: 0 });
        assert!(matches!(refused, Err(Error::Interrupted { .. })), "{refused:?}");
        assert_eq!(fs::read(self.at("directory/file")).unwrap(), b"half done");
    }

    fn objects(&self) -> Vec<PathBuf> {
        let directories = fs::read_dir(self.session().dir().join("workspace/objects")).unwrap();
        let directories =
            directories.map(|directory| directory.unwrap().path()).filter(|directory| directory.is_dir());
        let mut objects: Vec<PathBuf> = directories
            .flat_map(|directory| fs::read_dir(directory).unwrap().map(|object| object.unwrap().path()))
            .collect();
        objects.sort();
        objects
    }
}

/// Damages these files, and returns their former contents.
fn damage(paths: &[PathBuf]) -> Vec<(PathBuf, Vec<u8>)> {
    let damage = |path: &PathBuf| {
        let sound = fs::read(path).unwrap();
        replace(path, &sound[..sound.len() / 2]);
        (path.clone(), sound)
    };
    paths.iter().map(damage).collect()
}

/// Writes a file that only its owner's permissions protect.
fn replace(path: &Path, bytes: &[u8]) {
    let _ = fs::remove_file(path);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_call_through_a_link_out_of_the_workspace_fails_by_its_name_and_is_taken_back() {
    let home = Home::new();
    let outside = home.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "kept").unwrap();
    symlink("../outside", home.at("out")).unwrap();
    symlink("../outside/secret", home.at("to secret")).unwrap();
    let before = digest::of(&outside);
    type Through = fn(&dyn Filesystem) -> foldlog::filesystem::Result<()>;
    let ways: [(Through, &str); 6] = [
        (|files| files.read("out/secret").map(drop), "out/secret"),
        (|files| files.write("out/secret", b"gone"), "out/secret"),
        (|files| files.append("to secret", b"gone"), "to secret"),
        (|files| files.delete("out/secret"), "out/secret"),
        (|files| files.rename("out/secret", "stolen"), "out/secret"),
        (|files| files.rename("directory/file", "out/left"), "out/left"),
    ];
    for (through, named) in ways {
        let said = home.failed(move |context| {
            files(context).write("directory/file", b"half done")?;
            Ok(through(&*files(context))?)
        });
        assert!(said.contains(named), "{said}");
        assert_eq!(digest::of(&outside), before, "{said}");
    }
    // A link created by the tool leads out no more than another, and is removed with the call.
    let root = home.root();
    let said = home.failed(move |context| {
        symlink("/etc", root.join("new link"))?;
        Ok(files(context).read("new link/passwd").map(drop)?)
    });
    assert!(said.contains("new link"), "{said}");
    home.goes_on();
}

#[test]
fn a_call_with_a_path_that_leads_up_fails_by_its_name_and_is_taken_back() {
    let home = Home::new();
    fs::write(home.directory.path().join("secret"), "kept").unwrap();
    for path in ["../secret", "directory/../../secret", "directory/../directory/file", "/etc/passwd", ".."] {
        for write in [false, true] {
            let said = home.failed(move |context| {
                files(context).write("directory/file", b"half done")?;
                if write {
                    return Ok(files(context).write(path, b"gone")?);
                }
                Ok(files(context).read(path).map(drop)?)
            });
            assert!(said.contains(path), "{said}");
        }
    }
    assert_eq!(fs::read(home.directory.path().join("secret")).unwrap(), b"kept");
    home.goes_on();
}

#[test]
fn a_file_that_cannot_be_read_keeps_a_call_from_beginning_or_from_being_committed() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let argument = directory.path().display().to_string();
    let mut process = child::start("tools::bad_input::part_of_one_without_privileges", &argument);
    let said = process.hear("said").unwrap_or_default();
    if said == "skipped" {
        foldlog_test_support::skipped("privileges cannot be dropped here");
        return;
    }
    assert!(process.passed() && said == "done", "{said}");
}

/// The child, since root can read every file.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_one_without_privileges() {
    let Some(directory) = child::argument() else { return };
    let nobody = 65534;
    if Uid::effective().is_root()
        && (setgid(Gid::from_raw(nobody)).is_err() || setuid(Uid::from_raw(nobody)).is_err())
    {
        child::tell("said", "skipped");
        return;
    }
    let home = Home::in_directory(tempfile::tempdir_in(directory).unwrap());
    let secret = home.at("directory/secret");
    fs::write(&secret, "x").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o000)).unwrap();
    let said = home.refused();
    assert!(said.contains("directory/secret") && said.contains("denied"), "{said}");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    home.goes_on();
    // A file that the call leaves behind.
    let said = home.failed(move |_| {
        fs::write(&secret, "other")?;
        Ok(fs::set_permissions(&secret, Permissions::from_mode(0o000))?)
    });
    assert!(said.contains("directory/secret") && said.contains("denied"), "{said}");
    assert_eq!(fs::read(home.at("directory/secret")).unwrap(), b"x");
    home.goes_on();
    child::tell("said", "done");
}

#[test]
fn a_pipe_or_a_socket_keeps_a_call_from_beginning_or_from_being_committed() {
    let home = Home::new();
    let pipe = |path: &Path| mkfifo(path, Mode::from_bits_truncate(0o600)).map_err(std::io::Error::from);
    let socket = |path: &Path| UnixListener::bind(path).map(drop);
    type Make = fn(&Path) -> std::io::Result<()>;
    for (make, name) in [(pipe as Make, "directory/pipe"), (socket as Make, "directory/socket")] {
        make(&home.at(name)).unwrap();
        let said = home.refused();
        assert!(said.contains(name), "{said}");
        fs::remove_file(home.at(name)).unwrap();
        home.goes_on();
        // A directory that the call leaves behind in place of a file.
        let path = home.at(name);
        let file = home.at("directory/file");
        let said = home.failed(move |_| {
            fs::remove_file(&file)?;
            make(&file)?;
            Ok(make(&path)?)
        });
        assert!(said.contains("directory/"), "{said}");
        home.goes_on();
    }
}

/// Overwrites a large file repeatedly until it is dropped.
struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Busy {
    fn with(path: &Path) -> Busy {
        // Long enough that no read of it falls between two writes.
        fs::write(path, vec![0; 16 << 20]).unwrap();
        let (stop, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(Barrier::new(3)));
        let write = || {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            let (stop, begun) = (Arc::clone(&stop), Arc::clone(&begun));
            thread::spawn(move || {
                begun.wait();
                for at in (0..).step_by(4096) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    file.write_all_at(b"x", at % (16 << 20)).unwrap();
                }
            })
        };
        let threads = [(); 2].map(|()| write()).into();
        begun.wait();
        Busy { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn a_file_that_changes_while_it_is_read_keeps_a_call_from_beginning_or_from_being_committed() {
    let home = Home::new();
    let path = home.at("directory/busy");
    let busy = Busy::with(&path);
    let said = home.refused();
    assert!(said.contains("directory/busy") && said.contains("while it was read"), "{said}");
    drop(busy);
    fs::remove_file(&path).unwrap();
    home.goes_on();
    // By a program that the tool left running.
    let left = Arc::new(Mutex::new(None));
    let leaves = Arc::clone(&left);
    let said = home.failed(move |_| {
        *leaves.lock().unwrap() = Some(Busy::with(&path));
        Ok(())
    });
    assert!(said.contains("directory/busy") && said.contains("while it was read"), "{said}");
    drop(left.lock().unwrap().take());
    home.goes_on();
}

/// A rollback also restored the log with the files, and every record since the start record was
/// lost.
#[test]
fn a_session_inside_its_own_workspace_runs_no_tool() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("workspace");
    fs::create_dir(&root).unwrap();
    let session = store_at(&root).create(&types()).unwrap();
    let dir = session.dir().to_owned();
    // The default place of the snapshots is inside too.
    let refused = state_of(session.clone(), &root).unwrap_err().to_string();
    assert!(refused.contains("inside the workspace") && refused.contains(dir.to_str().unwrap()), "{refused}");
    // If the snapshots are elsewhere, the log is still inside.
    let snapshots = directory.path().join("snapshots");
    let files = HostFilesystem::open(&root, snapshots, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    let home = Home { directory, state: ExecutionState::new(session, resources) };
    let said = home.refused();
    assert!(said.contains("workspace") && said.contains(dir.to_str().unwrap()), "{said}");
    assert!(home.state.snapshot(None).is_err());
    assert!(home.fates().is_empty());
    home.session().dispatch(StepAdded { title: "without tools".to_owned(), part: 0 }).unwrap();
    // With another workspace the same session continues.
    let elsewhere = Home::new();
    let state = state_of(home.session().clone(), &elsewhere.root()).unwrap();
    let home = Home { directory: elsewhere.directory, state };
    home.goes_on();
}

#[test]
fn a_workspace_that_is_gone_keeps_a_call_from_beginning_until_it_is_back() {
    let home = Home::new();
    home.goes_on();
    let away = home.directory.path().join("away");
    fs::rename(home.root(), &away).unwrap();
    let said = home.refused();
    assert!(said.contains(home.root().to_str().unwrap()) && said.contains("gone"), "{said}");
    assert_eq!(home.fates(), [OperationStatus::Committed]);
    home.session().dispatch(StepAdded { title: "meanwhile".to_owned(), part: 0 }).unwrap();
    fs::rename(&away, home.root()).unwrap();
    home.goes_on();
}

#[test]
fn a_call_that_takes_its_workspace_away_fails_and_says_that_the_workspace_is_not_as_it_was() {
    for answers in [true, false] {
        let home = Home::new();
        let before = home.digest();
        let (root, away) = (home.root(), home.directory.path().join("away"));
        let moved = away.clone();
        let result = home.call(move |context| {
            files(context).write("directory/file", b"half done")?;
            fs::rename(&root, &moved)?;
            if answers { Ok(()) } else { Err(ToolError::failed("no")) }
        });
        match result.unwrap_err() {
            Error::RestoreFailed { restored, failed } => {
                let [(name, error)] = failed.as_slice() else { panic!("{failed:?}") };
                assert!(name == "workspace" && restored.is_empty());
                let said = error.to_string();
                assert!(said.contains(home.root().to_str().unwrap()) && said.contains("gone"), "{said}");
            }
            other => panic!("{other}"),
        }
        // Everything restorable is restored, and the call stays open until the rest is too.
        assert!(plan(home.session()).is_empty());
        assert_eq!((home.fates(), home.invoked()), (vec![OperationStatus::Open], 0));
        assert!(home.session().calls().is_interrupted());
        let refused = home.call(|_| unreachable!("it is not run"));
        assert!(matches!(refused, Err(Error::Interrupted { .. })), "{refused:?}");
        assert!(home.recover().unwrap_err().to_string().contains("gone"));
        // Once the directory is back, it is restored.
        fs::rename(&away, home.root()).unwrap();
        assert_ne!(home.digest(), before);
        home.recover().unwrap();
        assert_eq!((home.digest(), home.fates()), (before, vec![OperationStatus::Interrupted]));
        home.goes_on();
    }
}

#[test]
fn an_object_that_was_damaged_is_written_anew_by_the_call_that_needs_it() {
    let mut home = Home::new();
    // Without times, so that equal content has equal objects.
    let options = || HostFilesystemOptions::default().times(false);
    home.state = state_with(options(), home.session().clone(), &home.root()).unwrap();
    let write = |text: &'static str| {
        move |context: &ToolContext| -> Done { Ok(files(context).write("directory/file", text.as_bytes())?) }
    };
    home.call(write("one")).unwrap();
    let before = home.objects();
    home.call(write("two")).unwrap();
    let of_two: Vec<PathBuf> = home.objects().into_iter().filter(|path| !before.contains(path)).collect();
    assert!(of_two.len() >= 3, "a content, its directories and a commit: {of_two:?}");
    home.call(write("three")).unwrap();
    let damaged = damage(&of_two);
    home.reopen();
    home.state = state_with(options(), home.session().clone(), &home.root()).unwrap();
    assert!(home.call(write("two")).unwrap().success);
    for (path, sound) in damaged {
        assert_eq!(fs::read(&path).unwrap(), sound, "{}", path.display());
    }
    home.failed(move |context| {
        files(context).write("directory/file", b"four")?;
        Err(ToolError::failed("no"))
    });
    assert_eq!(fs::read(home.at("directory/file")).unwrap(), b"two");
    home.goes_on();
}

#[test]
fn a_call_whose_snapshot_is_damaged_fails_and_names_the_object_and_changes_nothing_more() {
    let home = Home::new();
    let before = home.digest();
    let (directory, damaged) = (home.session().dir().join("workspace"), Arc::new(Mutex::new(Vec::new())));
    let (damages, objects) = (Arc::clone(&damaged), directory.join("objects"));
    let result = home.call(move |context| {
        files(context).write("directory/file", b"half done")?;
        let directories = fs::read_dir(&objects)?.map(|directory| directory.unwrap().path());
        let objects = directories.filter(|directory| directory.is_dir()).flat_map(|directory| {
            fs::read_dir(directory).unwrap().map(|object| object.unwrap().path()).collect::<Vec<_>>()
        });
        damages.lock().unwrap().extend(damage(&objects.collect::<Vec<_>>()));
        Err(ToolError::failed("no"))
    });
    let error = result.unwrap_err();
    let said = error.to_string();
    assert!(matches!(&error, Error::RestoreFailed { failed, .. } if failed[0].0 == "workspace"), "{said}");
    let damaged = damaged.lock().unwrap();
    assert!(damaged.iter().any(|(path, _)| said.contains(path.to_str().unwrap())), "{said}");
    assert_eq!(fs::read(home.at("directory/file")).unwrap(), b"half done");
    assert!(plan(home.session()).is_empty());
    assert_eq!((home.fates(), home.invoked()), (vec![OperationStatus::Open], 0));
    // With the objects from a copy of the store, everything is restored.
    damaged.iter().for_each(|(path, sound)| replace(path, sound));
    home.recover().unwrap();
    assert_eq!((home.digest(), home.fates()), (before, vec![OperationStatus::Interrupted]));
    home.goes_on();
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_is_killed_half_way() {
    let Some(argument) = child::argument() else { return };
    let (id, directory) = argument.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let session = store_at(directory).open_session(id.parse().unwrap(), &types()).unwrap();
    let state = state_of(session, &directory.join("workspace")).unwrap();
    let act = |context: &ToolContext| {
        files(context).write("directory/file", b"half done")?;
        kill(Pid::this(), Signal::SIGKILL).unwrap();
        Ok(())
    };
    let runner = ToolRunner::new(state, ToolRegistry::new().with(Act(Box::new(act))));
    let _ = runner.execute(&ToolCall::new("act", "{}"), &ExecuteOptions::default());
    unreachable!("it was killed");
}

#[test]
fn a_session_whose_workspace_or_snapshot_is_not_there_stays_interrupted_until_it_is() {
    let mut home = Home::new();
    let (id, before) = (home.session().id(), home.digest());
    home.session().clone().close().unwrap();
    let argument = format!("{id} {}", home.directory.path().display());
    child::start("tools::bad_input::part_of_a_child_that_is_killed_half_way", &argument).ended();
    let session = store_at(home.directory.path()).open_session(id, &types()).unwrap();
    home.state = state_of(session, &home.root()).unwrap();

    let away = home.directory.path().join("away");
    fs::rename(home.root(), &away).unwrap();
    let said = home.recover().unwrap_err().to_string();
    fs::rename(&away, home.root()).unwrap();
    home.stays_interrupted(&said, &home.root());

    for object in home.objects() {
        // A new process each time, without cached content of damaged objects.
        home.reopen();
        let damaged = damage(std::slice::from_ref(&object));
        let error = home.recover().unwrap_err();
        assert!(matches!(error, Error::RestoreFailed { .. }), "{error}");
        home.stays_interrupted(&error.to_string(), &object);
        damaged.iter().for_each(|(path, sound)| replace(path, sound));
    }
    home.recover().unwrap();
    assert_eq!((home.digest(), home.fates()), (before, vec![OperationStatus::Interrupted]));
    home.goes_on();
}
