//! Operations within operations.

use foldlog::Settlement;
use foldlog::audit::Fate;
use foldlog::tools::Recovery;

use super::*;

/// Runs other calls within itself, then does as it is told.
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
    assert_eq!(fates, [Fate::Committed, Fate::Failed, Fate::Abandoned, Fate::Abandoned]);
}

#[test]
fn a_process_that_ends_in_an_inner_call_leaves_both_to_be_recovered() {
    let mut run = Run::with(Idempotency::Manual);
    run.desk.put("paper", "as it was");
    let died =
        delegating(&run).execute(&delegate(&[("two", Then::Die)], Then::Succeed), &ExecuteOptions::default());
    assert!(died.is_err());
    run.reopen(Idempotency::Manual);
    let open = run.session().recovery().interrupted.clone();
    assert_eq!(open.iter().map(|open| open.tool.as_str()).collect::<Vec<_>>(), ["delegate", "write"]);
    assert_eq!(open[1].parent, Some(open[0].operation));
    assert!(run.plan().is_empty());
    // The inner one is manual, so nobody but a person can say whether the outer one may run again, and it with it.
    let [recovered] = delegating(&run).recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(matches!(recovered.recovery, Recovery::NeedsSettling(_)));
    run.session()
        .settle(open[0].operation, &Settlement::RunAgain, "a person", "nothing was written")
        .unwrap();
    let [recovered] = delegating(&run).recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
    assert!(matches!(recovered.recovery, Recovery::RanAgain(report) if report.success));
    assert_eq!(
        run.state(),
        (vec!["delegated".into(), "two".into()], [("paper".into(), "two".into())].into())
    );
    let fates: Vec<_> = run.ledger().iter().map(|entry| (entry.tool.clone(), entry.outcome)).collect();
    let expected = [("delegate", Fate::Committed), ("write", Fate::Interrupted), ("write", Fate::Committed)];
    assert_eq!(fates, expected.map(|(tool, fate)| (tool.to_owned(), fate)));
}

#[test]
fn a_position_within_a_call_is_no_place_to_go_back_to() {
    let run = Run::new();
    let calls = [("one", Then::Succeed)];
    let report =
        delegating(&run).execute(&delegate(&calls, Then::Succeed), &ExecuteOptions::default()).unwrap();
    for position in report.begin..report.end {
        let refused = run.session().rollback_to(position);
        assert!(
            matches!(refused, Err(Error::InsideTransaction { operation, .. }) if operation <= position),
            "{position}: {refused:?}"
        );
        let refused = store_of(&run.disk).fork(run.id, position, &types(), Default::default());
        assert!(matches!(refused, Err(Error::InsideTransaction { .. })), "{position}");
    }
    run.session().rollback_to(report.end).unwrap();
    assert_eq!(run.plan(), ["delegated", "one"]);
    run.session().rollback_to(report.begin - 1).unwrap();
    assert!(run.plan().is_empty());
    assert_eq!(run.ledger()[0].outcome, Fate::Abandoned);
}
