//! Sub-agents with their own sessions, on the workspace of the call that drives them.

use std::collections::btree_map::Entry;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::{ChildFate, FateInParent, OperationStatus};
use foldlog::tools::{ChildChoice, ChildReport, ChildStop, Recovery};
use foldlog::{Parent, SessionOptions, Settlement};
use foldlog_test_support::child;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug)]
#[serde(rename_all = "snake_case")]
enum Step {
    /// This sub-agent writes a file by its own call.
    Child { number: u32, file: String, then: Then },
    /// The tool writes a file itself.
    Own { file: String },
    /// The same, only if the call runs again.
    Resumed { number: u32, file: String },
    /// The outcome of the tool at this point; its process may be killed the first time.
    Then(Then),
    /// The same, only if the call runs again.
    ResumedThen(Then),
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug)]
struct Work {
    /// Sub-agents that are opened before anything else.
    opened: Vec<u32>,
    steps: Vec<Step>,
}

fn child_writes(number: u32, file: &str, then: Then) -> Step {
    Step::Child { number, file: file.to_owned(), then }
}

fn own(file: &str) -> Step {
    Step::Own { file: file.to_owned() }
}

fn work(opened: &[u32], steps: &[Step]) -> Work {
    Work { opened: opened.to_vec(), steps: steps.to_vec() }
}

/// Counts a real execution in a file outside of the workspace, and returns the count.
fn note(directory: &Path, what: &str) -> usize {
    let mut file = fs::OpenOptions::new().append(true).create(true).open(directory.join("ran")).unwrap();
    writeln!(file, "{what}").unwrap();
    times(directory, what)
}

fn times(directory: &Path, what: &str) -> usize {
    let ran = fs::read_to_string(directory.join("ran")).unwrap_or_default();
    ran.lines().filter(|line| *line == what).count()
}

/// Returns a tool's result, unless its process dies here for the first time.
fn then(directory: &Path, what: &str, then: Then) -> Result<ToolResult<()>, ToolError> {
    match then {
        Then::Fail => return Err(ToolError::failed("not like that")),
        Then::Die if note(directory, &format!("died at {what}")) == 1 => {
            kill(Pid::this(), Signal::SIGKILL).unwrap();
        }
        _ => {}
    }
    Ok(ToolResult::ok(format!("{what} is done"), ()))
}

/// The sub-agent's tool: writes a file.
struct Scrawl {
    directory: PathBuf,
    idempotency: Idempotency,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct File {
    file: String,
    then: Then,
}

impl Tool for Scrawl {
    const NAME: &'static str = "scrawl";
    type Parameters = File;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        self.idempotency
    }

    fn call(
        &self,
        File { file, then: how }: File,
        context: &ToolContext,
    ) -> Result<ToolResult<()>, ToolError> {
        note(&self.directory, &file);
        context.resources().get::<dyn Filesystem>().unwrap().write(&file, b"by a sub-agent")?;
        context.session().dispatch(StepAdded { title: file.clone(), part: 0 })?;
        then(&self.directory, &file, how)
    }
}

/// The tool that drives sub-agents, whose steps are the calls of an answer.
struct Drive {
    directory: PathBuf,
    idempotency: Idempotency,
    within: Idempotency,
}

impl Drive {
    fn open(&self, context: &ToolContext, number: u32) -> Result<ToolRunner, ToolError> {
        let scrawl = Scrawl { directory: self.directory.clone(), idempotency: self.within };
        Ok(ToolRunner::new(context.child(number, &types())?, ToolRegistry::new().with(scrawl)))
    }
}

impl Tool for Drive {
    const NAME: &'static str = "drive";
    type Parameters = Work;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        self.idempotency
    }

    fn call(&self, work: Work, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let mut agents = BTreeMap::new();
        for number in work.opened {
            agents.insert(number, self.open(context, number)?);
        }
        for (at, step) in (0..).zip(work.steps) {
            let then_of =
                |step: &Step| if let Step::Child { then, .. } = step { *then } else { Then::Succeed };
            let within = then_of(&step);
            match step {
                Step::Own { file } => {
                    context.resources().get::<dyn Filesystem>().unwrap().write(&file, b"by the tool")?;
                }
                Step::Resumed { .. } if !context.is_resume() => {}
                Step::Resumed { number, file } | Step::Child { number, file, .. } => {
                    let agent = match agents.entry(number) {
                        Entry::Occupied(opened) => opened.into_mut(),
                        Entry::Vacant(place) => place.insert(self.open(context, number)?),
                    };
                    let arguments = serde_json::to_string(&File { file, then: within }).unwrap();
                    let call = ToolCall::new("scrawl", arguments).with_origin(0, at);
                    agent.execute(&call, &ExecuteOptions::default())?;
                }
                Step::ResumedThen(_) if !context.is_resume() => {}
                Step::ResumedThen(how) | Step::Then(how) => {
                    drop(then(&self.directory, &format!("step {at}"), how)?)
                }
            }
        }
        Ok(ToolResult::ok("driven", ()))
    }
}

struct Ground {
    directory: tempfile::TempDir,
    id: Uuid,
}

fn store_in(directory: &Path) -> Store {
    Store::open(directory.join("store")).unwrap()
}

fn files_of(directory: &Path, session: &Session) -> ResourceRegistry {
    let (root, store) = (directory.join("workspace"), session.dir().join("workspace"));
    let files = HostFilesystem::open(root, store, HostFilesystemOptions::default()).unwrap();
    ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap()
}

fn run_in(directory: &Path, session: Session, idempotency: Idempotency, within: Idempotency) -> ToolRunner {
    let resources = files_of(directory, &session);
    let drive = Drive { directory: directory.to_owned(), idempotency, within };
    ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new().with(drive))
}

fn call_of(work: &Work) -> ToolCall {
    ToolCall::new("drive", serde_json::to_string(work).unwrap())
}

impl Ground {
    fn new() -> Ground {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("workspace")).unwrap();
        fs::write(directory.path().join("workspace/before"), "as it was").unwrap();
        let session = store_in(directory.path()).create(&types()).unwrap();
        let id = session.id();
        session.close().unwrap();
        Ground { directory, id }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn open(&self, idempotency: Idempotency, within: Idempotency) -> ToolRunner {
        let session = store_in(self.path()).open_session(self.id, &types()).unwrap();
        run_in(self.path(), session, idempotency, within)
    }

    fn natural(&self) -> ToolRunner {
        self.open(Idempotency::Natural, Idempotency::Natural)
    }

    /// Runs the work in a separate process, which is killed meanwhile.
    fn killed(&self, work: &Work) {
        self.killed_as(work, "natural");
    }

    /// The same with tools that are `natural`, `manual` for the sub-agents, or `both manual`.
    fn killed_as(&self, work: &Work, how: &str) {
        let work = serde_json::to_string(&(how, work)).unwrap();
        let part = "tools::children::part_of_a_process_that_is_killed";
        let mut process = child::start(part, &format!("{} {} {work}", self.id, self.path().display()));
        process.ended();
        assert!(
            fs::read_to_string(self.path().join("ran")).unwrap().contains("died at"),
            "it was not killed"
        );
    }

    /// Recovers in a separate process, which is killed while it runs the work again.
    fn killed_again(&self) {
        let part = "tools::children::part_of_a_process_that_recovers_and_is_killed";
        child::start(part, &format!("{} {}", self.id, self.path().display())).ended();
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path().join("workspace")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn ledger(&self, session: Uuid) -> Vec<LedgerEntry> {
        self.reader(session).ledger().unwrap()
    }

    fn reader(&self, session: Uuid) -> LogReader {
        LogReader::open(store_in(self.path()).session_dir(session)).unwrap()
    }

    fn fates(&self, session: Uuid) -> Vec<OperationStatus> {
        self.ledger(session).iter().map(|entry| entry.outcome).collect()
    }

    /// Returns the children of the session's last operation.
    fn children(&self) -> Vec<Uuid> {
        let ledger = self.ledger(self.id);
        ledger.last().unwrap().children.iter().map(|child| child.session).collect()
    }
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_process_that_is_killed() {
    let Some(argument) = child::argument() else { return };
    let [id, directory, work] = argument.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    let directory = Path::new(directory);
    let session = store_in(directory).open_session(id.parse().unwrap(), &types()).unwrap();
    let (how, work): (String, Work) = serde_json::from_str(work).unwrap();
    let of = |manual: &[&str]| match manual.contains(&how.as_str()) {
        true => Idempotency::Manual,
        false => Idempotency::Natural,
    };
    let runner = run_in(directory, session, of(&["both manual"]), of(&["manual", "both manual"]));
    let ended = runner.execute(&call_of(&work), &ExecuteOptions::default());
    panic!("it was to be killed: {ended:?}");
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_process_that_recovers_and_is_killed() {
    let Some(argument) = child::argument() else { return };
    let (id, directory) = argument.split_once(' ').unwrap();
    let session = store_in(Path::new(directory)).open_session(id.parse().unwrap(), &types()).unwrap();
    let runner = run_in(Path::new(directory), session, Idempotency::Natural, Idempotency::Natural);
    panic!("it was to be killed: {:?}", runner.recover(&ExecuteOptions::default()));
}

/// A tool that drove a sub-agent in its own session on the same directory was refused, or waited
/// for itself: the call held the directory's lease, and its mark named another session.
#[test]
fn a_sub_agent_works_in_a_session_of_its_own_under_the_lease_of_the_call_that_drives_it() {
    let ground = Ground::new();
    let runner = ground.natural();
    let steps = [child_writes(0, "a", Then::Succeed), own("b"), child_writes(0, "c", Then::Succeed)];
    let report = runner.execute(&call_of(&work(&[], &steps)), &ExecuteOptions::default()).unwrap();
    assert!(report.success, "{report:?}");
    assert_eq!(ground.files(), ["a", "b", "before", "c"]);
    assert!(plan(runner.state().session()).is_empty(), "what a child dispatches is its own");
    let [entry] = ground.ledger(ground.id).try_into().unwrap();
    let [child] = entry.children.try_into().unwrap();
    assert_eq!((child.ordinal, child.fate), (0, ChildFate::Kept));
    assert_eq!(ground.fates(child.session), [OperationStatus::Committed, OperationStatus::Committed]);
    let (session, operation) = (ground.id, Some(report.operation));
    assert_eq!(
        ground.reader(child.session).opening_record().parent,
        Some(Parent::Child { session, operation })
    );
}

#[test]
fn a_sub_agents_call_that_fails_takes_back_its_own_work_alone() {
    let ground = Ground::new();
    let steps = [own("a"), child_writes(0, "b", Then::Succeed), child_writes(0, "c", Then::Fail), own("d")];
    let call = call_of(&work(&[], &steps));
    assert!(ground.natural().execute(&call, &ExecuteOptions::default()).unwrap().success);
    assert_eq!(ground.files(), ["a", "b", "before", "d"]);
    assert_eq!(ground.fates(ground.children()[0]), [OperationStatus::Committed, OperationStatus::Failed]);
}

#[test]
fn a_call_that_fails_abandons_what_its_sub_agents_have_committed_and_both_ledgers_say_so() {
    let ground = Ground::new();
    let steps =
        [child_writes(0, "a", Then::Succeed), child_writes(1, "b", Then::Succeed), Step::Then(Then::Fail)];
    let report = ground.natural().execute(&call_of(&work(&[], &steps)), &ExecuteOptions::default()).unwrap();
    assert!(!report.success);
    assert_eq!(ground.files(), ["before"]);
    let [entry] = ground.ledger(ground.id).try_into().unwrap();
    assert!(entry.children.iter().all(|child| child.fate == ChildFate::Abandoned), "{entry:?}");
    for child in ground.children() {
        assert_eq!(ground.fates(child), [OperationStatus::Abandoned]);
        // A copy of the child's log alone does not tell.
        let alone = tempfile::tempdir().unwrap();
        let copy = alone.path().join("copy");
        fs::create_dir(&copy).unwrap();
        for entry in fs::read_dir(store_in(ground.path()).session_dir(child)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
            }
        }
        let reader = LogReader::open(&copy).unwrap();
        assert!(matches!(reader.fate_in_parent(), FateInParent::Unknown { .. }));
        assert_eq!(reader.ledger().unwrap()[0].outcome, OperationStatus::Committed);
    }
}

#[test]
fn a_rollback_of_the_parent_abandons_its_childrens_work_too() {
    let ground = Ground::new();
    let runner = ground.natural();
    let call = call_of(&work(&[], &[child_writes(0, "a", Then::Succeed)]));
    let report = runner.execute(&call, &ExecuteOptions::default()).unwrap();
    let [child] = ground.children().try_into().unwrap();
    assert_eq!(ground.fates(child), [OperationStatus::Committed]);
    runner.state().session().rollback_to(report.begin - 1).unwrap();
    assert_eq!(
        (ground.fates(ground.id), ground.fates(child)),
        (vec![OperationStatus::Abandoned], vec![OperationStatus::Abandoned])
    );
}

/// Kills the process at each of the steps, and lets the next one finish. Files, ledgers and
/// executions equal those of a process that was never killed, except for the interrupted calls.
#[test]
fn a_process_that_is_killed_within_a_sub_agent_or_between_two_is_followed_by_one_that_goes_on() {
    let steps = |dies: usize| {
        let how = |at| if at == dies { Then::Die } else { Then::Succeed };
        vec![
            own("0 own"),
            child_writes(0, "1 first", how(1)),
            Step::Then(how(2)),
            child_writes(0, "3 first", how(3)),
            own("4 own"),
            Step::Then(how(5)),
            child_writes(1, "6 second", how(6)),
            own("7 own"),
            Step::Then(how(8)),
        ]
    };
    for dies in [1, 2, 3, 5, 6, 8] {
        let ground = Ground::new();
        let work = work(&[], &steps(dies));
        ground.killed(&work);
        // No other session works on the child's unfinished changes.
        let other = Store::open(ground.path().join("other")).unwrap().create(&types()).unwrap();
        let others = run_in(ground.path(), other, Idempotency::Natural, Idempotency::Natural);
        let refused = others.execute(&call_of(&work), &ExecuteOptions::default());
        assert!(
            matches!(&refused, Err(Error::ResourceDirty { session, .. }) if *session == ground.id),
            "{dies}: {refused:?}"
        );
        let [recovered] = ground.natural().recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
        assert!(matches!(&recovered.recovery, Recovery::RanAgain(report) if report.success), "{recovered:?}");
        assert_eq!(
            ground.files(),
            ["0 own", "1 first", "3 first", "4 own", "6 second", "7 own", "before"],
            "killed at {dies}"
        );
        for (at, file) in [(1, "1 first"), (3, "3 first"), (6, "6 second")] {
            assert_eq!(
                times(ground.path(), file),
                if at == dies { 2 } else { 1 },
                "{file}, killed at {dies}"
            );
        }
        let children = ground.children();
        let store = store_in(ground.path());
        let plans = children.iter().map(|child| plan(&store.open_read_only(*child, &types()).unwrap()));
        assert_eq!(plans.collect::<Vec<_>>(), [vec!["1 first", "3 first"], vec!["6 second"]]);
        let fates: Vec<OperationStatus> = children.iter().flat_map(|child| ground.fates(*child)).collect();
        assert_eq!(fates, [OperationStatus::Committed; 3], "killed at {dies}");
        assert!(ground.ledger(ground.id)[0].children.iter().all(|child| child.fate == ChildFate::Kept));
    }
}

/// Two sub-agents alternate, so each one's last capture lacks later work of the other. The process
/// is killed once more before either has continued, which must not change whose work is the latest.
#[test]
fn sub_agents_that_work_by_turns_go_on_from_what_the_last_of_them_left() {
    for opened in [[0, 1], [1, 0]] {
        let steps = [
            Step::ResumedThen(Then::Die),
            child_writes(0, "a", Then::Succeed),
            child_writes(1, "b", Then::Succeed),
            child_writes(0, "c", Then::Succeed),
            Step::Then(Then::Die),
            child_writes(1, "d", Then::Succeed),
            Step::Resumed { number: 0, file: "e".to_owned() },
            child_writes(1, "f", Then::Die),
        ];
        let ground = Ground::new();
        ground.killed(&work(&opened, &steps));
        ground.killed_again();
        ground.killed_again();
        let [recovered] = ground.natural().recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
        assert!(matches!(&recovered.recovery, Recovery::RanAgain(report) if report.success), "{recovered:?}");
        assert_eq!(ground.files(), ["a", "b", "before", "c", "d", "e", "f"], "{opened:?}");
        assert!(["a", "b", "c", "d", "e"].iter().all(|file| times(ground.path(), file) == 1));
    }
}

/// A resumed child restores its last capture. If another child has worked since, that would lose
/// its work, so the call is refused and fails.
#[test]
fn a_child_that_is_opened_after_another_has_gone_on_is_refused_rather_than_that_work_is_lost() {
    let steps = [
        child_writes(0, "a", Then::Succeed),
        Step::Resumed { number: 0, file: "new".to_owned() },
        child_writes(1, "b", Then::Succeed),
        Step::Then(Then::Die),
    ];
    let ground = Ground::new();
    ground.killed(&work(&[], &steps));
    let [recovered] = ground.natural().recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    let Recovery::RanAgain(report) = recovered.recovery else { panic!("{recovered:?}") };
    assert!(
        !report.success && report.message.contains("open all children before any of them works"),
        "{report:?}"
    );
    assert_eq!(ground.files(), ["before"]);
    // Children that were opened before continue.
    let ground = Ground::new();
    ground.killed(&work(&[0, 1], &steps));
    let [recovered] = ground.natural().recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(matches!(&recovered.recovery, Recovery::RanAgain(report) if report.success), "{recovered:?}");
    assert_eq!(ground.files(), ["a", "b", "before", "new"]);
}

/// Only a person can judge the sub-agent's tool. The host learns which child stopped, and where.
#[test]
fn a_parent_learns_where_its_child_stopped_and_what_may_be_done() {
    let ground = Ground::new();
    let work = work(&[], &[child_writes(0, "a", Then::Succeed), child_writes(0, "b", Then::Die)]);
    ground.killed_as(&work, "manual");
    let manual = || ground.open(Idempotency::Natural, Idempotency::Manual);
    // Before the recovery the child has an open call; the query changes nothing.
    let operation = manual().state().session().calls().open_operations()[0].operation;
    let asked = manual().state().session().calls().children_of(operation).unwrap();
    assert!(matches!(&asked[0].stop, ChildStop::At { open, .. } if open.len() == 1), "{asked:?}");
    let [recovered] = manual().recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    let [report]: [ChildReport; 1] = recovered.children.clone().try_into().unwrap();
    let ChildStop::At { open, unsettled, .. } = &report.stop else { panic!("{report:?}") };
    assert!(open.is_empty());
    let [waits] = unsettled.as_slice() else { panic!("{report:?}") };
    assert_eq!(report.choices(), [ChildChoice::Settle(vec![waits.operation]), ChildChoice::Abandon]);
    assert_eq!((report.ordinal, report.operation), (0, operation));
    // The call ran again and failed, since the child's call was not settled.
    assert!(matches!(&recovered.recovery, Recovery::RanAgain(report) if !report.success), "{recovered:?}");
    assert_eq!(ground.fates(report.session), [OperationStatus::Abandoned, OperationStatus::Interrupted]);
    assert_eq!(ground.files(), ["before"]);
}

/// If the parent's tool does not run again automatically, a person has time to settle the child's
/// call first.
#[test]
fn a_childs_call_is_settled_before_its_parent_runs_again() {
    let ground = Ground::new();
    let work = work(&[], &[child_writes(0, "a", Then::Succeed), child_writes(0, "b", Then::Die), own("c")]);
    ground.killed_as(&work, "both manual");
    let manual = || ground.open(Idempotency::Manual, Idempotency::Manual);
    let [recovered] = manual().recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(matches!(recovered.recovery, Recovery::NeedsSettling(_)), "{recovered:?}");
    let [child] = recovered.children.try_into().unwrap();
    let choices = child.choices();
    let [ChildChoice::Settle(waits), ChildChoice::Abandon] = choices.as_slice() else { panic!("{child:?}") };
    let store = store_in(ground.path());
    store.settle(child.session, waits[0], &Settlement::run_again(), "a person", "no `b` is there").unwrap();
    let runner = manual();
    let session = runner.state().session();
    let [child] = session.calls().children_of(recovered.operation).unwrap().try_into().unwrap();
    assert_eq!(child.choices(), [ChildChoice::Resume, ChildChoice::Abandon]);
    session.calls().settle(recovered.operation, &Settlement::run_again(), "a person", "go on").unwrap();
    let [recovered] = runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(matches!(&recovered.recovery, Recovery::RanAgain(report) if report.success), "{recovered:?}");
    assert_eq!(ground.files(), ["a", "b", "before", "c"]);
    assert_eq!((times(ground.path(), "a"), times(ground.path(), "b")), (1, 2));
}

/// The parent is settled as failed, so the child does not continue.
#[test]
fn a_child_is_abandoned_by_settling_its_parent_as_failed() {
    let ground = Ground::new();
    let work = work(&[], &[child_writes(0, "a", Then::Succeed), Step::Then(Then::Die)]);
    ground.killed_as(&work, "both manual");
    let runner = ground.open(Idempotency::Manual, Idempotency::Manual);
    let [recovered] = runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    let [child] = recovered.children.try_into().unwrap();
    assert_eq!(child.choices(), [ChildChoice::Resume, ChildChoice::Abandon]);
    assert_eq!(ground.fates(child.session), [OperationStatus::Committed], "nobody has decided");
    runner
        .state()
        .session()
        .calls()
        .settle(recovered.operation, &Settlement::failed(), "a person", "no more")
        .unwrap();
    assert_eq!(ground.fates(child.session), [OperationStatus::Abandoned]);
    assert_eq!(ground.files(), ["before"]);
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_process_that_holds_a_session() {
    let Some(argument) = child::argument() else { return };
    let (id, directory) = argument.split_once(' ').unwrap();
    let held = store_in(Path::new(directory)).open_session(id.parse().unwrap(), &types()).unwrap();
    child::tell("holds", held.id());
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_child_that_another_process_has_open_is_refused_and_the_error_says_who_has_it() {
    let ground = Ground::new();
    ground.killed(&work(&[], &[child_writes(0, "a", Then::Succeed), Step::Then(Then::Die)]));
    let [child] = ground.children().try_into().unwrap();
    let part = "tools::children::part_of_a_process_that_holds_a_session";
    let mut other = child::start(part, &format!("{child} {}", ground.path().display()));
    assert!(other.hear("holds").is_some());
    let [recovered] = ground.natural().recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    let Recovery::RanAgain(report) = recovered.recovery else { panic!("{recovered:?}") };
    let holder = other.id().to_string();
    assert!(!report.success && report.message.contains(&holder), "{report:?}");
    assert_eq!(ground.files(), ["before"]);
    other.go_on();
    assert!(other.passed());
}

#[test]
fn a_session_that_the_operation_did_not_begin_is_no_child_of_it() {
    let ground = Ground::new();
    let runner = ground.natural();
    let operation = runner.begin(&ToolCall::new("elsewhere", "{}"), &ExecuteOptions::default()).unwrap();
    let context = operation.context();
    let id = Some(context.child_session_id(0));
    let options = SessionOptions { id, ..SessionOptions::default() };
    store_in(ground.path()).create_with(&types(), options).unwrap().close().unwrap();
    let refused = context.child(0, &types());
    assert!(
        matches!(&refused, Err(Error::WrongChild { operation, .. }) if *operation == context.operation()),
        "{refused:?}"
    );
    assert!(context.child(1, &types()).is_ok());
    operation.abort("no more").unwrap();
}
