//! Operations within operations.

use foldlog::Settlement;
use foldlog::inspect::OperationStatus;
use foldlog::storage::Fault;
use foldlog::tools::Recovery;

use super::*;

/// Runs other calls within itself, and then ends as its parameters say.
struct Delegate {
    runner: Mutex<Option<ToolRunner>>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Delegated {
    calls: Vec<Write>,
    then: Then,
}

impl Tool for Delegate {
    const NAME: &'static str = "delegate";
    type Parameters = Delegated;
    type Output = usize;

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, params: Delegated, context: &ToolContext) -> Result<ToolResult<usize>, ToolError> {
        let runner = self.runner.lock().unwrap().clone().unwrap().within(context);
        context.session().dispatch(StepAdded { title: "delegated".to_owned(), part: 9 })?;
        for params in &params.calls {
            runner.execute(&call(&params.paper, &params.text, params.then), &ExecuteOptions::default())?;
        }
        match params.then {
            Then::Succeed => Ok(ToolResult::ok("done", params.calls.len())),
            _ => Err(ToolError::failed("the sub-agent gave up")),
        }
    }
}

fn delegating(run: &Run) -> ToolRunner {
    let tools = run.runner.tools().clone().with(Delegate { runner: Mutex::new(Some(run.runner.clone())) });
    ToolRunner::new(run.runner.state().clone(), tools)
}

fn delegate(calls: &[(&str, Then)], then: Then) -> ToolCall {
    let calls = calls.iter().map(|(text, then)| Write {
        paper: "paper".to_owned(),
        text: (*text).to_owned(),
        then: *then,
    });
    ToolCall::new("delegate", serde_json::to_string(&Delegated { calls: calls.collect(), then }).unwrap())
}

#[test]
fn an_inner_call_that_fails_takes_back_its_own_work_alone() {
    let run = Run::new();
    let calls = [("one", Then::Succeed), ("two", Then::Fail), ("three", Then::Succeed)];
    let report =
        delegating(&run).execute(&delegate(&calls, Then::Succeed), &ExecuteOptions::default()).unwrap();
    assert!(report.success);
    assert_eq!(
        run.state(),
        (vec!["delegated".into(), "one".into(), "three".into()], [("paper".into(), "three".into())].into())
    );
    let invoked = run.invoked();
    assert_eq!(invoked.iter().filter(|one| one.parent == Some(report.operation)).count(), 3);
}

#[test]
fn an_outer_call_that_fails_abandons_what_was_committed_within_it() {
    let run = Run::new();
    run.write("paper", "before", Then::Succeed).unwrap();
    let before = run.state();
    let calls = [("one", Then::Succeed), ("two", Then::Succeed)];
    let report = delegating(&run).execute(&delegate(&calls, Then::Fail), &ExecuteOptions::default()).unwrap();
    assert!(!report.success);
    assert_eq!(run.state(), before);
    let fates: Vec<_> = run.ledger().iter().map(|entry| entry.outcome).collect();
    assert_eq!(
        fates,
        [
            OperationStatus::Committed,
            OperationStatus::Failed,
            OperationStatus::Abandoned,
            OperationStatus::Abandoned
        ]
    );
}

#[test]
fn a_process_that_ends_in_an_inner_call_leaves_both_to_be_recovered() {
    let mut run = Run::with(Idempotency::Manual);
    run.desk.put("paper", "as it was");
    let died =
        delegating(&run).execute(&delegate(&[("two", Then::Die)], Then::Succeed), &ExecuteOptions::default());
    assert!(died.is_err());
    run.reopen(Idempotency::Manual);
    let open = run.session().log().recovery().interrupted.clone();
    assert_eq!(open.iter().map(|open| open.tool.as_str()).collect::<Vec<_>>(), ["delegate", "write"]);
    assert_eq!(open[1].parent, Some(open[0].operation));
    assert!(run.plan().is_empty());
    // The inner call is manual, so only a person can decide whether the outer one may run again
    // with it.
    let [recovered] = delegating(&run).recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(matches!(recovered.recovery, Recovery::NeedsSettling(_)));
    run.session()
        .calls()
        .settle(open[0].operation, &Settlement::run_again(), "a person", "nothing was written")
        .unwrap();
    let [recovered] = delegating(&run).recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(matches!(recovered.recovery, Recovery::RanAgain(report) if report.success));
    assert_eq!(
        run.state(),
        (vec!["delegated".into(), "two".into()], [("paper".into(), "two".into())].into())
    );
    let fates: Vec<_> = run.ledger().iter().map(|entry| (entry.tool.clone(), entry.outcome)).collect();
    let expected = [
        ("delegate", OperationStatus::Committed),
        ("write", OperationStatus::Interrupted),
        ("write", OperationStatus::Committed),
    ];
    assert_eq!(fates, expected.map(|(tool, fate)| (tool.to_owned(), fate)));
}

#[test]
fn a_position_within_a_call_is_no_place_to_go_back_to() {
    let run = Run::new();
    let calls = [("one", Then::Succeed)];
    let report =
        delegating(&run).execute(&delegate(&calls, Then::Succeed), &ExecuteOptions::default()).unwrap();
    for position in report.begin.through(report.end - 1) {
        let refused = run.session().rollback_to(position);
        assert!(
            matches!(refused, Err(Error::InsideTransaction { operation, .. }) if operation <= position.into()),
            "{position}: {refused:?}"
        );
        let refused = store_of(&run.disk).fork(run.id, position, &types(), Default::default());
        assert!(matches!(refused, Err(Error::InsideTransaction { .. })), "{position}");
    }
    run.session().rollback_to(report.end).unwrap();
    assert_eq!(run.plan(), ["delegated", "one"]);
    run.session().rollback_to(report.begin - 1).unwrap();
    assert!(run.plan().is_empty());
    assert_eq!(run.ledger()[0].outcome, OperationStatus::Abandoned);
}

/// Creates child sessions, writes in each, and is killed within its first run.
struct Parental {
    disk: MemoryStorage,
    idempotency: Idempotency,
    begun: Arc<Mutex<Vec<Vec<Uuid>>>>,
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

impl Tool for Parental {
    const NAME: &'static str = "parental";
    type Parameters = Nothing;
    type Output = u64;

    fn idempotency(&self) -> Idempotency {
        self.idempotency
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        let mut ids = Vec::new();
        for ordinal in 0..2 {
            let child = context.child_session(ordinal, &types())?;
            assert_eq!(child.id(), context.child_session_id(ordinal));
            let run = child.view::<Plan>()?.len();
            child.dispatch(StepAdded { title: format!("run {run} of child {ordinal}"), part: 0 })?;
            ids.push(child.id());
            child.close()?;
        }
        let mut begun = self.begun.lock().unwrap();
        begun.push(ids);
        if begun.len() == 1 {
            self.disk.crash(CrashKind::Process);
        }
        Ok(ToolResult::ok("done", 2))
    }
}

#[test]
fn the_sessions_that_a_call_begins_are_the_same_when_it_is_run_again() {
    for idempotency in [Idempotency::Natural, Idempotency::Keyed] {
        let mut run = Run::with(idempotency);
        let begun = Arc::new(Mutex::new(Vec::new()));
        let with = |run: &Run| {
            let parental = Parental { disk: run.disk.clone(), idempotency, begun: Arc::clone(&begun) };
            ToolRunner::new(run.runner.state().clone(), ToolRegistry::new().with(parental))
        };
        let call = ToolCall::new("parental", "{}");
        assert!(with(&run).execute(&call, &ExecuteOptions::default()).is_err(), "it was killed");
        run.reopen(idempotency);
        let [recovered] = with(&run).recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
        let Recovery::RanAgain(ran_again) = recovered.recovery else { panic!("{recovered:?}") };
        // Another call has others.
        assert!(with(&run).execute(&call, &ExecuteOptions::default()).unwrap().success);
        let [first, again, other] = begun.lock().unwrap().clone().try_into().unwrap();
        assert_eq!(first, again, "{idempotency:?}");
        let all: std::collections::BTreeSet<Uuid> = first.iter().chain(&other).copied().collect();
        assert_eq!(
            (all.len(), run.session().store().children(run.session().id()).unwrap()),
            (4, all.iter().copied().collect())
        );

        let store = store_of(&run.disk);
        for (ordinal, id) in first.iter().enumerate() {
            let child = store.open_session(*id, &types()).unwrap();
            // The call is the same one, whichever of its runs created the session.
            let (session, operation) = (run.id, Some(ran_again.operation));
            assert_eq!(child.parent(), Some(foldlog::Parent::Child { session, operation }));
            // The child is not rolled back with the call: the second run found the first one's
            // changes.
            let runs = [0, 1].map(|run| format!("run {run} of child {ordinal}"));
            assert_eq!(plan(&child), runs, "{idempotency:?}");
        }
        // The log names each before it exists.
        let mut named = Vec::new();
        let reader = LogReader::open_on(Arc::new(run.disk.clone()), run.session().dir()).unwrap();
        reader
            .records(0, u64::MAX, |record| {
                if record.kind == foldlog::RecordKind::Observed {
                    let told = String::from_utf8_lossy(record.body).into_owned();
                    named.extend(all.iter().filter(|id| told.contains(&id.to_string())).copied());
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(named, [first, again, other].concat());
    }
}

/// Creates a child session; its process is killed at one of the changes of the disk in its first
/// run.
struct Interrupted {
    disk: MemoryStorage,
    nth: u64,
    runs: Arc<Mutex<u64>>,
}

impl Tool for Interrupted {
    const NAME: &'static str = "interrupted";
    type Parameters = Nothing;
    type Output = u64;

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<u64>, ToolError> {
        let run = {
            let mut runs = self.runs.lock().unwrap();
            *runs += 1;
            *runs
        };
        if run == 1 {
            self.disk.inject(Fault::Die { nth: self.nth, bytes: 40 });
        }
        let child = context.child_session(0, &types())?;
        child.dispatch(StepAdded { title: format!("run {run}"), part: 0 })?;
        let steps = child.view::<Plan>()?.len();
        child.close()?;
        if run == 1 {
            self.disk.crash(CrashKind::Process);
        }
        Ok(ToolResult::ok("done", steps))
    }
}

/// If the process was killed after the directory was created and before the first record was
/// written, the call found no session in its later runs, and could create none.
#[test]
fn a_session_whose_beginning_was_cut_short_is_begun_by_the_call_when_it_is_run_again() {
    let (mut found, mut leftovers) = (std::collections::BTreeSet::new(), 0);
    for nth in 1..20 {
        let mut run = Run::with(Idempotency::Natural);
        let runs = Arc::new(Mutex::new(0));
        let with = |run: &Run| {
            let tool = Interrupted { disk: run.disk.clone(), nth, runs: Arc::clone(&runs) };
            ToolRunner::new(run.runner.state().clone(), ToolRegistry::new().with(tool))
        };
        assert!(with(&run).execute(&ToolCall::new("interrupted", "{}"), &ExecuteOptions::default()).is_err());
        run.disk.clear_faults();
        run.reopen(Idempotency::Natural);
        let sessions = store_of(&run.disk).sessions().unwrap();
        leftovers +=
            sessions.iter().filter(|(_, read)| matches!(read, Err(Error::NotASession { .. }))).count();
        let [recovered] = with(&run).recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
        let Recovery::RanAgain(report) = recovered.recovery else { panic!("{nth}: {recovered:?}") };
        assert!(report.success, "{nth}: {report:?}");
        let [child] = run.session().store().children(run.session().id()).unwrap().try_into().unwrap();
        let child = store_of(&run.disk).open_session(child, &types()).unwrap();
        let steps = plan(&child);
        assert_eq!(steps.last().map(String::as_str), Some("run 2"), "{nth}");
        found.insert(steps.len());
        assert!(store_of(&run.disk).sessions().unwrap().iter().all(|(_, read)| read.is_ok()));
    }
    // The second run finds the first one's records if the session existed by then.
    assert_eq!(found, [1, 2].into());
    assert!(leftovers > 2, "{leftovers}");
}

#[test]
fn a_call_that_is_over_begins_no_session() {
    let run = Run::new();
    let operation = run.runner.begin(&delegate(&[], Then::Succeed), &ExecuteOptions::default()).unwrap();
    let context = operation.context().clone();
    operation.abort("no more").unwrap();
    assert!(matches!(context.child_session(0, &types()), Err(Error::Revoked { .. })));
    assert!(run.session().store().children(run.session().id()).unwrap().is_empty());
}
