//! Workspaces in a replay: the host and its tools find them as recorded, on copies, whatever the
//! present state of the directories.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions, InMemoryFilesystem};
use foldlog::inspect::LogReader;
use foldlog::replay::{Replay, ReplayMode};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    DivergenceKind, Error, ExecutionState, Idempotency, ResourceRegistry, Session, SessionOptions,
};
use foldlog_test_support::replayed_host::{Diary, Noted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::host::{Nothing, Stored, bytes_in, types};

struct Directory(tempfile::TempDir);

impl Directory {
    fn new() -> Directory {
        let directory = Directory(tempfile::tempdir().unwrap());
        fs::create_dir(directory.work()).unwrap();
        fs::write(directory.work().join("notes.txt"), "first\n").unwrap();
        directory
    }

    fn work(&self) -> PathBuf {
        self.0.path().join("work")
    }

    fn open(&self) -> Arc<HostFilesystem> {
        let store = self.0.path().join("snapshots");
        Arc::new(HostFilesystem::open(self.work(), store, HostFilesystemOptions::default()).unwrap())
    }

    fn registry(&self) -> ResourceRegistry {
        ResourceRegistry::builder().filesystem(self.open()).build().unwrap()
    }
}

fn files(context: &ToolContext) -> Arc<dyn Filesystem> {
    context.resources().get::<dyn Filesystem>().unwrap()
}

#[derive(Clone, Copy, PartialEq)]
enum Changed {
    Nothing,
    WhatIsWritten,
    WhatIsRead,
}

type Runs = Arc<AtomicU64>;

#[derive(Serialize, Deserialize, JsonSchema)]
struct Line {
    line: String,
}

/// Rewrites a file, and then fails if the line is empty.
struct Write(Runs, Changed);

impl Tool for Write {
    const NAME: &'static str = "write";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let text = if self.1 == Changed::WhatIsWritten { format!("{}!", line.line) } else { line.line };
        files(context).write("notes.txt", text.as_bytes()).unwrap();
        context.session().dispatch(Noted::new(2, "written"))?;
        if text.is_empty() {
            Err(ToolError::failed("nothing to write"))
        } else {
            Ok(ToolResult::ok("written", ()))
        }
    }
}

/// Reads the file, through the filesystem and with a program.
struct Read(Runs, Changed);

impl Tool for Read {
    const NAME: &'static str = "read";
    type Parameters = Nothing;
    type Output = String;

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<String>, ToolError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let mut text = String::from_utf8(files(context).read("notes.txt").unwrap()).unwrap();
        let root = context.resources().get::<HostFilesystem>().unwrap().root().to_owned();
        let printed = context.command("cat").arg("notes.txt").current_dir(root).output()?;
        assert_eq!(String::from_utf8(printed.stdout).unwrap(), text);
        if self.1 == Changed::WhatIsRead {
            text.push('?');
        }
        Ok(ToolResult::ok("read", text))
    }
}

/// Stands for an effect outside that must not be repeated: no replay runs it.
struct Send(Runs);

impl Tool for Send {
    const NAME: &'static str = "send";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        files(context).write("sent.txt", b"sent").unwrap();
        Ok(ToolResult::ok("sent", ()))
    }
}

/// Writes, reads, fails, sends, and notes the workspace's content in between.
fn host(session: &Session, registry: ResourceRegistry, runs: &Runs, changed: Changed) -> foldlog::Result<()> {
    let tools = ToolRegistry::new()
        .with(Write(Arc::clone(runs), changed))
        .with(Read(Arc::clone(runs), changed))
        .with(Send(Arc::clone(runs)));
    let state = ExecutionState::new(session.clone(), registry);
    let runner = ToolRunner::new(state.clone(), tools);
    let call = |tool: &str, arguments: &str| {
        runner.execute(&ToolCall::new(tool, arguments), &ExecuteOptions::default()).map(drop)
    };
    let look = || -> foldlog::Result<()> {
        let files = state.resources().get::<dyn Filesystem>().unwrap();
        let seen = String::from_utf8(files.read("notes.txt").unwrap()).unwrap();
        session.dispatch(Noted::new(4, &format!("{seen} {}", files.exists("sent.txt").unwrap()))).map(drop)
    };
    call("read", "{}")?;
    look()?;
    call("write", r#"{"line":"second\n"}"#)?;
    look()?;
    call("read", "{}")?;
    call("write", r#"{"line":""}"#)?;
    look()?;
    call("send", "{}")?;
    look()?;
    call("write", r#"{"line":"third\n"}"#)?;
    call("read", "{}")?;
    look()
}

/// Runs a host live, and then deletes the workspace.
fn lived(directory: &Directory, stored: &Stored) -> LogReader {
    let session = stored.store().create(&types()).unwrap();
    host(&session, directory.registry(), &Runs::default(), Changed::Nothing).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    fs::remove_file(directory.work().join("notes.txt")).unwrap();
    fs::write(directory.work().join("other.txt"), "of another run").unwrap();
    LogReader::open(dir).unwrap()
}

/// A host's next step may depend on the workspace, which may be lost or changed before the log is
/// replayed.
#[test]
fn a_host_sees_its_workspace_as_it_was_and_the_directory_stays_as_it_is() {
    let (directory, stored) = (Directory::new(), Stored::new());
    let log = lived(&directory, &stored);
    let before = bytes_in(directory.0.path());
    let runs = Runs::default();
    let registry = directory.registry();
    let report = Replay::new(&log, &types())
        .run(|session| host(&session, registry.clone(), &runs, Changed::Nothing))
        .unwrap();
    assert!(report.compared > 5, "{report:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 0, "a tool ran");
    drop(registry);
    assert!(bytes_in(directory.0.path()) == before, "the workspace or its store has changed");
}

#[test]
fn tools_that_may_run_twice_run_again_on_a_copy_of_the_workspace_as_it_was() {
    let (directory, stored) = (Directory::new(), Stored::new());
    let log = lived(&directory, &stored);
    let before = bytes_in(directory.0.path());
    let (runs, registry) = (Runs::default(), directory.registry());
    let replay = Replay::new(&log, &types()).mode(ReplayMode::RunTools);
    replay.run(|session| host(&session, registry.clone(), &runs, Changed::Nothing)).unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 6, "three writes and three reads, and nothing is sent");
    drop(registry);
    assert!(bytes_in(directory.0.path()) == before, "the workspace or its store has changed");
}

#[test]
fn a_tool_that_leaves_other_files_or_reads_something_else_is_found_at_the_end_of_its_call() {
    let (directory, stored) = (Directory::new(), Stored::new());
    let log = lived(&directory, &stored);
    let run = |changed| {
        let replay = Replay::new(&log, &types()).mode(ReplayMode::RunTools).all();
        replay
            .run(|session| host(&session, directory.registry(), &Runs::default(), changed))
            .unwrap()
            .divergences
    };
    let found: Vec<_> = run(Changed::WhatIsWritten).iter().map(ToString::to_string).collect();
    let left = "at $.resources.workspace (paths at which the tool left it otherwise): recorded [], produced [\"notes.txt\"]";
    // The end record of the failed write also names its files: its rollback captured them.
    assert_eq!(found.iter().filter(|found| found.contains(left)).count(), 3, "{found:#?}");
    // Later calls start from the recorded state, and the third write now succeeds.
    assert!(found.iter().all(|found| found.contains("tool_end")), "{found:#?}");
    let found: Vec<_> = run(Changed::WhatIsRead).iter().map(ToString::to_string).collect();
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(
        found[1].contains("differs at $.result: recorded \"second\\n\", produced \"second\\n?\""),
        "{found:#?}"
    );
}

/// A replay that ended within a call, after a write of its tool, failed as if the copies had
/// failed.
#[test]
fn a_replay_that_ends_within_a_tool_that_runs_again_has_found_nothing() {
    let (directory, stored) = (Directory::new(), Stored::new());
    let log = lived(&directory, &stored);
    let registry = directory.registry();
    for through in 1..log.records_len() {
        let replay = Replay::new(&log, &types()).mode(ReplayMode::RunTools).through(through);
        let report =
            replay.run(|session| host(&session, registry.clone(), &Runs::default(), Changed::Nothing));
        report.unwrap_or_else(|error| panic!("through {through}: {error}"));
    }
}

/// The content of files in memory is not recorded, so no tool can run on them again.
#[test]
fn a_tool_whose_resources_have_no_recorded_capture_does_not_run_again() {
    struct Count(Runs);
    impl Tool for Count {
        const NAME: &'static str = "count";
        type Parameters = Nothing;
        type Output = ();

        fn idempotency(&self) -> Idempotency {
            Idempotency::Natural
        }

        fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            files(context).write("counted", b"").unwrap();
            Ok(ToolResult::ok("counted", ()))
        }
    }
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let runs = Runs::default();
    let host = |session: Session| {
        let resources =
            ResourceRegistry::builder().filesystem(Arc::new(InMemoryFilesystem::new())).build()?;
        let tools = ToolRegistry::new().with(Count(Arc::clone(&runs)));
        let runner = ToolRunner::new(ExecutionState::new(session, resources), tools);
        runner.execute(&ToolCall::new("count", "{}"), &ExecuteOptions::default()).map(drop)
    };
    host(session.clone()).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    Replay::new(&log, &types()).mode(ReplayMode::RunTools).run(host).unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn a_replay_whose_workspace_snapshots_are_gone_ends_with_the_reason() {
    let (directory, stored) = (Directory::new(), Stored::new());
    let log = lived(&directory, &stored);
    fs::remove_dir_all(directory.0.path().join("snapshots/objects")).unwrap();
    let mut ended = None;
    let registry = directory.registry();
    let host = |session: Session| {
        let state = ExecutionState::new(session.clone(), registry.clone());
        drop(state.resources().get::<dyn Filesystem>());
        ended = session.dispatch(Noted::new(4, "behind it")).err();
    };
    let told = Replay::new(&log, &types()).run(host).unwrap_err();
    for error in [ended.unwrap(), told] {
        assert!(matches!(error, Error::Poisoned { .. }), "{error:?}");
        assert!(error.to_string().contains("snapshots/objects"), "{error}");
    }
}

/// A produced start record has no captures. One that came too early passed for a call that is not
/// recorded, and so the missing record before it was not named.
#[test]
fn a_record_left_out_before_a_call_over_a_captured_workspace_is_the_one_that_is_named() {
    let (directory, stored) = (Directory::new(), Stored::new());
    let host = |session: &Session, registry: ResourceRegistry, second: bool| -> foldlog::Result<()> {
        let tools = ToolRegistry::new().with(Write(Runs::default(), Changed::Nothing));
        let runner = ToolRunner::new(ExecutionState::new(session.clone(), registry), tools);
        session.dispatch(Noted::new(4, "first"))?;
        if second {
            session.dispatch(Noted::new(6, "second"))?;
        }
        let call = ToolCall::new("write", r#"{"line":"third\n"}"#);
        runner.execute(&call, &ExecuteOptions::default())?;
        session.dispatch(Noted::new(8, "fourth")).map(drop)
    };
    let session = stored.store().create(&types()).unwrap();
    host(&session, directory.registry(), true).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    for mode in [ReplayMode::FromLog, ReplayMode::RunTools] {
        let replay = Replay::new(&log, &types()).mode(mode);
        let error = replay.run(|session| host(&session, directory.registry(), false)).unwrap_err();
        let Error::Diverged(found) = error else { panic!("{error}") };
        assert_eq!((found.divergence, found.record.as_str()), (DivergenceKind::Missing, "dispatch noted"));
        assert_eq!(found.sequence, log.opened_sequence() + 3, "{found}");
        let report =
            replay.all().run(|session| host(&session, directory.registry(), false).unwrap()).unwrap();
        assert_eq!(report.divergences, [*found], "{mode:?}");
    }
}

/// A host that stores captures in its session's directory could not be replayed after a fork: its
/// parent's captures were looked up there.
#[test]
fn a_fork_that_went_live_is_replayed_from_its_own_captures() {
    let (directory, stored) = (Directory::new(), Stored::new());
    let runs = Runs::default();
    // Resumes after the last line that was written.
    let host = |session: &Session| -> foldlog::Result<()> {
        let kept = session.dir().join("files");
        let files = HostFilesystem::open(directory.work(), kept, HostFilesystemOptions::default()).unwrap();
        let registry = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
        let tools = ToolRegistry::new()
            .with(Write(Arc::clone(&runs), Changed::Nothing))
            .with(Read(Arc::clone(&runs), Changed::Nothing));
        let runner = ToolRunner::new(ExecutionState::new(session.clone(), registry), tools);
        let call = |tool: &str, arguments: &str| {
            runner.execute(&ToolCall::new(tool, arguments), &ExecuteOptions::default()).map(drop)
        };
        for line in session.log().slice::<Diary>()?.len()..3 {
            call("read", "{}")?;
            call("write", &format!("{{\"line\":\"{line}\"}}"))?;
        }
        Ok(())
    };
    let store = stored.store();
    let session = store.create(&types()).unwrap();
    host(&session).unwrap();
    let log = LogReader::open(session.dir()).unwrap();
    session.close().unwrap();
    let mut ends = Vec::new();
    log.records(log.opened_sequence(), u64::MAX, |record| {
        ends.extend((record.kind == foldlog::RecordKind::ToolEnd).then_some(record.sequence));
        Ok(())
    })
    .unwrap();
    fs::write(directory.work().join("notes.txt"), "0").unwrap();
    let replay = Replay::new(&log, &types()).through(ends[1]);
    let fork = replay.go_live(&store, SessionOptions::default(), |session| host(&session).map(|()| session));
    let dir = fork.unwrap().unwrap().dir().to_owned();
    let log = LogReader::open(dir).unwrap();
    for (mode, again) in [(ReplayMode::FromLog, 0), (ReplayMode::RunTools, 4)] {
        runs.store(0, Ordering::SeqCst);
        Replay::new(&log, &types()).mode(mode).run(|session| host(&session)).unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), again, "{mode:?}");
    }
}

/// Writes through a link of the workspace, with the standard library.
struct WriteByLink;

impl Tool for WriteByLink {
    const NAME: &'static str = "write_by_link";
    type Parameters = Line;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, line: Line, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<HostFilesystem>().unwrap();
        fs::write(files.root().join("way/link"), line.line)
            .map_err(|error| ToolError::failed(error.to_string()))?;
        Ok(ToolResult::ok("written", ()))
    }
}

/// A copy contains the workspace's links. One with the workspace's absolute path led a tool that
/// ran again out of its copy and into the workspace.
#[test]
fn a_tool_does_not_run_again_on_a_copy_with_a_link_that_leads_to_the_workspace() {
    for target in ["notes.txt", "not-there-yet", "way/../notes.txt"] {
        let (directory, stored) = (Directory::new(), Stored::new());
        fs::create_dir(directory.work().join("way")).unwrap();
        std::os::unix::fs::symlink(directory.work().join(target), directory.work().join("way/link")).unwrap();
        let host = |session: Session| {
            let tools = ToolRegistry::new().with(WriteByLink);
            let runner = ToolRunner::new(ExecutionState::new(session, directory.registry()), tools);
            let call = ToolCall::new(WriteByLink::NAME, r#"{"line":"written"}"#);
            runner.execute(&call, &ExecuteOptions::default()).map(drop)
        };
        let session = stored.store().create(&types()).unwrap();
        let dir = session.dir().to_owned();
        host(session.clone()).unwrap();
        session.close().unwrap();
        let written = directory.work().join(target);
        fs::write(&written, "of today").unwrap();
        let log = LogReader::open(dir).unwrap();
        Replay::new(&log, &types()).run(host).unwrap();
        let mut told = String::new();
        let replayed = Replay::new(&log, &types()).mode(ReplayMode::RunTools).run(|session| {
            let ran = host(session);
            told = ran.as_ref().map_err(ToString::to_string).unwrap_err().clone();
            ran
        });
        let error = replayed.unwrap_err().to_string();
        assert!(error.contains("way/link") && told.contains("way/link"), "{error} / {told}");
        assert_eq!(fs::read_to_string(written).unwrap(), "of today", "the workspace has changed");
    }
}
