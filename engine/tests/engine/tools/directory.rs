//! The law of tools over a real directory: whatever a call did to files and STATE, and however and
//! whenever it failed, both are as before, and LOG has exactly one item of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::tools::{CompositeSnapshot, Operation};
use foldlog::{Durability, Outcome, State};
use foldlog_test_support::child;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proptest::prelude::*;

use super::*;
use crate::filesystem::digest::{self, Digest};
use crate::filesystem::random::{SCRIPTS, Step, carry_out, steps};

/// Number of calls in a normal run; `FOLDLOG_TOOL_RUNS` sets another one.
const RUNS: u32 = 60;

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
enum Way {
    Error,
    Panic,
    SayNo,
    BadArguments,
    Expand,
    Deadline,
    Cancel,
    Drop,
    Kill,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
struct Work {
    steps: Vec<Step>,
    /// Number of actions before it fails.
    until: usize,
    script: Option<usize>,
    /// Whether it leaves a program running that writes for ever.
    lingers: bool,
    way: Way,
}

fn work() -> impl Strategy<Value = Work> {
    let way = prop_oneof![
        1 => Just(Way::Error),
        1 => Just(Way::Panic),
        1 => Just(Way::SayNo),
        1 => Just(Way::BadArguments),
        1 => Just(Way::Expand),
        1 => Just(Way::Deadline),
        1 => Just(Way::Cancel),
        1 => Just(Way::Drop),
        2 => Just(Way::Kill),
    ];
    let script = prop::option::weighted(0.3, 0..SCRIPTS.len());
    (steps(), 0..25_usize, script, prop::bool::weighted(0.2), way)
        .prop_map(|(steps, until, script, lingers, way)| Work { steps, until, script, lingers, way })
}

struct Desk {
    directory: tempfile::TempDir,
    id: Uuid,
}

fn store_at(directory: &Path) -> Store {
    Store::open_with(
        directory.join("store"),
        StoreOptions { durability: Durability::Process, ..StoreOptions::default() },
    )
    .unwrap()
}

fn workspace(directory: &Path) -> PathBuf {
    directory.join("workspace")
}

/// Returns the runner of a session, with tools that follow their arguments.
fn runner_on(directory: &Path, session: Session) -> ToolRunner {
    let store = session.dir().join("workspace");
    let files = HostFilesystem::open(workspace(directory), store, HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    ToolRunner::new(
        ExecutionState::new(session, resources),
        ToolRegistry::new().with(Worker { directory: directory.to_owned() }),
    )
}

/// Does the work, in files and in STATE, up to its end.
fn carry(directory: &Path, context: &ToolContext, work: &Work) -> Result<(), ToolError> {
    let root = workspace(directory);
    if work.lingers {
        let script = "while :; do mkdir -p lingering; echo x >> lingering/file; done";
        context.command("/bin/sh").args(["-c", script]).current_dir(&root).start()?;
    }
    for (path, act) in work.steps.iter().take(work.until) {
        carry_out(&root, path, act);
        context.session().dispatch(StepAdded { title: "a step".to_owned(), part: 1 })?;
    }
    if let Some(script) = work.script {
        let script = context.command("/bin/sh").args(["-c", SCRIPTS[script]]).current_dir(&root);
        script.status()?;
    }
    context.session().dispatch(Noted { text: "worked".to_owned() })?;
    Ok(())
}

struct Worker {
    directory: PathBuf,
}

#[derive(Deserialize, JsonSchema)]
struct Told {
    /// The work, as nested JSON.
    work: String,
}

impl Tool for Worker {
    const NAME: &'static str = "work";
    type Parameters = Told;
    type Output = ();

    fn call(&self, told: Told, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let work: Work = serde_json::from_str(&told.work).unwrap();
        carry(&self.directory, context, &work)?;
        match work.way {
            Way::Error => Err(ToolError::failed("no")),
            Way::Panic => panic!("as told"),
            Way::SayNo => Ok(ToolResult::unsuccessful("no")),
            Way::Expand => {
                Err(ToolError::VisibilityExpansion { overrides: 1.into(), reason: "more".to_owned() })
            }
            Way::Kill => {
                kill(Pid::this(), Signal::SIGKILL).unwrap();
                unreachable!("it was killed")
            }
            Way::Deadline => {
                // Until its deadline; then its handle is no longer valid.
                while !context.is_cancelled() {
                    std::thread::yield_now();
                }
                let late = context.session().dispatch(StepAdded { title: "late".to_owned(), part: 1 });
                assert!(matches!(late, Err(Error::DeadlineExceeded { .. })), "{late:?}");
                Ok(ToolResult::ok("too late", ()))
            }
            Way::BadArguments | Way::Cancel | Way::Drop => unreachable!("these never get here"),
        }
    }
}

fn told(work: &Work) -> ToolCall {
    let work = serde_json::to_string(work).unwrap();
    ToolCall::new("work", serde_json::json!({ "work": work }).to_string())
}

/// The child: a call within which its process is killed.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_is_killed_within_a_call() {
    let Some(argument) = child::argument() else { return };
    let (id, directory) = argument.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let work: Work = serde_json::from_slice(&fs::read(directory.join("work.json")).unwrap()).unwrap();
    let session = store_at(directory).open_session(id.parse().unwrap(), &types()).unwrap();
    let _ = runner_on(directory, session).execute(&told(&work), &ExecuteOptions::default());
    unreachable!("it was killed");
}

impl Desk {
    fn new(before: &[Step]) -> Desk {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(workspace(directory.path())).unwrap();
        before.iter().for_each(|(path, act)| carry_out(&workspace(directory.path()), path, act));
        let session = store_at(directory.path()).create(&types()).unwrap();
        session.dispatch(StepAdded { title: "before".to_owned(), part: 0 }).unwrap();
        let id = session.id();
        session.close().unwrap();
        Desk { directory, id }
    }

    fn open(&self) -> ToolRunner {
        let session = store_at(self.directory.path()).open_session(self.id, &types()).unwrap();
        runner_on(self.directory.path(), session)
    }

    fn seen(&self, runner: &ToolRunner) -> (Digest, State, u64) {
        let mut state = runner.state().session().dynamic().state().unwrap();
        state.slices.retain(|_, slice| slice.policy == foldlog::Policy::State && !slice.items.is_empty());
        let log = runner.state().session().log().slice::<ToolInvocations>().unwrap().len();
        state.position = None;
        (digest::of(&workspace(self.directory.path())), state, log)
    }

    /// Fails a call in this process, and returns the number of calls: none, if its deadline passed
    /// before the first capture.
    fn fail(&self, runner: &ToolRunner, work: &Work) -> u64 {
        let begin = || -> Operation { runner.begin(&told(work), &ExecuteOptions::default()).unwrap() };
        let options = match work.way {
            Way::Deadline => {
                ExecuteOptions { deadline: Some(Duration::from_millis(30)), ..ExecuteOptions::default() }
            }
            _ => ExecuteOptions::default(),
        };
        match work.way {
            Way::BadArguments => {
                let call = ToolCall::new("work", r#"{"work": "x", "more": 1}"#);
                assert_eq!(runner.execute(&call, &options).unwrap().cause, Some(Cause::InvalidArguments));
            }
            Way::Cancel => {
                let operation = begin();
                carry(self.directory.path(), operation.context(), work).unwrap();
                assert_eq!(operation.abort("no more").unwrap().cause, Some(Cause::Cancelled));
            }
            Way::Drop => {
                let operation = begin();
                carry(self.directory.path(), operation.context(), work).unwrap();
                drop(operation);
                // The next call restores.
                let next = runner.begin(&told(work), &ExecuteOptions::default()).unwrap();
                next.abort("only to see").unwrap();
            }
            Way::Expand => {
                let result = runner.execute(&told(work), &options);
                assert!(matches!(result, Err(Error::VisibilityExpansion { .. })), "{result:?}");
            }
            Way::Deadline => {
                let result = runner.execute(&told(work), &options);
                if matches!(result, Err(Error::DeadlineExceeded { operation: None })) {
                    return 0;
                }
                assert!(is_late(&result), "{result:?}");
            }
            _ => assert!(!runner.execute(&told(work), &options).unwrap().success),
        }
        1 + u64::from(work.way == Way::Drop)
    }

    /// Lets a child begin the call and be killed within it; then recovers.
    fn killed(&self, work: &Work) -> ToolRunner {
        fs::write(self.directory.path().join("work.json"), serde_json::to_vec(work).unwrap()).unwrap();
        let argument = format!("{} {}", self.id, self.directory.path().display());
        let mut process =
            child::start("tools::directory::part_of_a_child_that_is_killed_within_a_call", &argument);
        process.ended();
        let runner = self.open();
        assert_eq!(runner.state().session().log().recovery().interrupted.len(), 1);
        let recovered = runner.recover(&ExecuteOptions::default()).unwrap();
        assert_eq!(recovered.len(), 1, "it is left to be settled");
        runner
    }
}

fn runs() -> u32 {
    std::env::var("FOLDLOG_TOOL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 100, failure_persistence: None, ..ProptestConfig::with_cases(runs()) })]

    #[test]
    fn a_call_that_fails_leaves_files_and_state_as_they_were(before in steps(), work in work()) {
        let desk = Desk::new(&before);
        let mut runner = desk.open();
        let (files, state, calls) = desk.seen(&runner);
        let more;
        if work.way == Way::Kill {
            drop(runner);
            runner = desk.killed(&work);
            more = 1;
        } else {
            more = desk.fail(&runner, &work);
        }
        let (files_after, state_after, calls_after) = desk.seen(&runner);
        prop_assert_eq!(&files_after, &files);
        prop_assert_eq!(&state_after, &state);
        prop_assert_eq!(calls_after, calls + more);
        if more > 0 {
            let last = runner.state().session().log().slice::<ToolInvocations>().unwrap().get(calls).unwrap().unwrap();
            prop_assert_ne!(last.outcome, Outcome::Committed);
        }
        // The run continues.
        let files = runner.state().resources().get::<dyn Filesystem>().unwrap();
        prop_assert!(files.exists(".").unwrap());
    }
}

/// JSON has no bytes: the token that identifies a workspace's directory came back from a composite
/// snapshot's JSON as a list of numbers, which no restore could read.
#[test]
fn a_composite_snapshot_comes_back_from_its_json_and_restores_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(workspace(directory.path())).unwrap();
    let page = workspace(directory.path()).join("page");
    fs::write(&page, "before").unwrap();
    let session = store_at(directory.path()).create(&types()).unwrap();
    let runner = runner_on(directory.path(), session);
    let snapshot = runner.state().snapshot(None).unwrap();
    let read = CompositeSnapshot::from_json(&snapshot.to_json().unwrap()).unwrap();
    let recorded =
        |taken: &CompositeSnapshot| taken.recorded_captures().remove("workspace").flatten().unwrap();
    let recalled = |taken| HostFilesystem::recall(&recorded(taken)).unwrap();
    assert_eq!(recalled(&read), recalled(&snapshot));
    fs::write(&page, "after").unwrap();
    runner.state().restore(&read).unwrap();
    assert_eq!(fs::read_to_string(&page).unwrap(), "before");
}
