//! Tools that act outside only: they run in parallel, the result of each is recorded at once, and
//! forbidden actions are refused without a race.

use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};

use foldlog::Outcome;
use foldlog::tools::Recovery;

use super::*;

type Does = dyn Fn(&str, &ToolContext) -> Result<ToolResult<()>, ToolError> + Send + Sync;

struct Asks {
    does: Box<Does>,
    idempotency: Idempotency,
}

#[derive(Deserialize, JsonSchema)]
struct Named {
    name: String,
}

impl Tool for Asks {
    const NAME: &'static str = "asks";
    type Parameters = Named;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        self.idempotency
    }

    fn outside_only(&self) -> bool {
        true
    }

    fn call(&self, named: Named, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        (self.does)(&named.name, context)
    }
}

fn asks(name: &str) -> ToolCall {
    ToolCall::new("asks", format!(r#"{{"name":"{name}"}}"#))
}

fn done(name: &str) -> Result<ToolResult<()>, ToolError> {
    Ok(ToolResult::ok(name, ()))
}

fn asking(
    state: &ExecutionState,
    idempotency: Idempotency,
    does: impl Fn(&str, &ToolContext) -> Result<ToolResult<()>, ToolError> + Send + Sync + 'static,
) -> ToolRunner {
    let tools = ToolRegistry::new().with(Asks { does: Box::new(does), idempotency });
    ToolRunner::new(state.clone(), tools)
}

/// Four requests of 300 ms took 1.2 s, one after the other.
#[test]
fn calls_that_act_outside_run_at_the_same_time_in_an_answer_and_in_threads() {
    let run = Run::new();
    // It opens only once all four have arrived.
    let meet = Arc::new(Barrier::new(4));
    let runner = asking(run.runner.state(), Idempotency::Manual, move |name, _| {
        meet.wait();
        done(name)
    });
    let calls: Vec<ToolCall> = ["a", "b", "c", "d"].map(asks).into();
    let reports = runner.execute_together(&calls, &ExecuteOptions::default());
    let told: Vec<String> = reports.into_iter().map(|report| report.unwrap().message).collect();
    assert_eq!(told, ["a", "b", "c", "d"], "results come in the order of the calls");
    std::thread::scope(|scope| {
        for call in &calls {
            scope.spawn(|| assert!(runner.execute(call, &ExecuteOptions::default()).unwrap().success));
        }
    });
    assert_eq!(run.invoked().len(), 8);
}

/// A finished payment was recorded only after its slowest sibling had ended, and was made again
/// after a crash.
#[test]
fn what_one_has_done_is_recorded_while_a_slower_one_runs() {
    let run = Run::new();
    let session = run.session().clone();
    let (opens, opened): (Sender<()>, Receiver<()>) = channel();
    let opened = Mutex::new(opened);
    let runner = asking(run.runner.state(), Idempotency::Manual, move |name, _| {
        if name == "slow" {
            let opened = opened.lock().unwrap().recv_timeout(std::time::Duration::from_secs(10));
            opened.map_err(|_| ToolError::failed("nobody has ended"))?;
        }
        done(name)
    });
    let opens = Mutex::new(Some(opens));
    let _subscription = session.log().subscribe(move |record| {
        // The slow one, which is the first, continues only after the end of the other one is
        // delivered.
        if record.kind() == foldlog::RecordKind::ToolEnd
            && let Some(opens) = opens.lock().unwrap().take()
        {
            opens.send(()).unwrap();
        }
    });
    let reports = runner.execute_together(&[asks("slow"), asks("fast")], &ExecuteOptions::default());
    let reports: Vec<ToolReport> = reports.into_iter().map(Result::unwrap).collect();
    assert_eq!(reports.iter().map(|report| report.message.as_str()).collect::<Vec<_>>(), ["slow", "fast"]);
    assert!(reports[0].begin < reports[1].begin && reports[1].end < reports[0].end);
}

#[test]
fn what_such_a_tool_may_not_do_is_refused() {
    let run = Run::new();
    run.desk.put("paper", "as it was");
    let resources = ResourceRegistry::builder()
        .snapshotable(Arc::new(run.desk.clone()))
        .snapshotable(Arc::<BudgetTracker>::default())
        .resource(Arc::new(Uuid::from_u128(7)))
        .build()
        .unwrap();
    let state = ExecutionState::new(run.session().clone(), resources);
    let inner = ToolRunner::new(state.clone(), run.runner.tools().clone());
    let runner = asking(&state, Idempotency::Manual, move |name, context| {
        let refused =
            |told: Option<Error>| assert!(matches!(told, Some(Error::ReadsOnly { .. })), "{told:?}");
        refused(context.session().dispatch(StepAdded { title: "no".to_owned(), part: 0 }).err());
        let within =
            inner.within(context).execute(&call("p", "x", Then::Succeed), &ExecuteOptions::default());
        refused(within.err());
        let program = context.command("true").status();
        assert!(matches!(program, Err(ToolError::Engine(Error::ReadsOnly { .. }))), "{program:?}");
        // Resources that are captured for other calls are not captured for these, so they are not
        // available.
        assert!(context.resources().get::<Desk>().is_none());
        assert!(context.resources().get::<BudgetTracker>().is_none());
        assert!(context.resources().get::<Uuid>().is_some(), "what nobody captures is theirs");
        context.session().dispatch(Noted { text: "LOG is theirs too".to_owned() })?;
        done(name)
    });
    assert!(runner.execute(&asks("a"), &ExecuteOptions::default()).unwrap().success);
    assert_eq!((run.plan().len(), notes(run.session())), (0, 1));
}

/// A read-only call runs again automatically. An interrupted request may have been received.
#[test]
fn an_interrupted_one_runs_again_only_as_it_declares() {
    for (idempotency, again) in
        [(Idempotency::Manual, false), (Idempotency::Keyed, true), (Idempotency::Natural, true)]
    {
        let mut run = Run::new();
        run.write("paper", "planned", Then::Succeed).unwrap();
        let disk = run.disk.clone();
        let dies = move |name: &str, context: &ToolContext| {
            if !context.is_resume() {
                disk.crash(CrashKind::Process);
            }
            done(name)
        };
        asking(run.runner.state(), idempotency, dies.clone())
            .execute(&asks("a"), &ExecuteOptions::default())
            .unwrap_err();
        run.reopen(idempotency);
        let open = run.session().calls().open_operations();
        assert!(open[0].outside_only && open[0].reads_only, "{open:?}");
        // STATE is unchanged, since such a call cannot change it.
        assert_eq!(run.plan(), ["planned"]);
        let runner = asking(run.runner.state(), idempotency, dies);
        let [recovered] = runner.recover(&ExecuteOptions::default()).unwrap().try_into().unwrap();
        match recovered.recovery {
            Recovery::RanAgain(report) => assert!(again && report.success, "{idempotency:?}"),
            Recovery::NeedsSettling(_) => assert!(!again, "{idempotency:?}"),
            other => panic!("{idempotency:?}: {other:?}"),
        }
        assert_eq!(run.plan(), ["planned"]);
        let entry = run.ledger().into_iter().find(|entry| entry.tool == "asks").unwrap();
        assert_eq!(entry.runs, 1 + u64::from(again));
    }
}

/// Two of them are open when the process ends, and a third one's failure has rolled back nothing of
/// theirs.
#[test]
fn one_that_fails_takes_nothing_of_its_siblings_with_it() {
    let run = Run::new();
    let meet = Arc::new(Barrier::new(2));
    let runner = asking(run.runner.state(), Idempotency::Manual, move |name, context| {
        context.session().dispatch(Noted { text: name.to_owned() })?;
        meet.wait();
        if name == "fails" { Err(ToolError::failed("no")) } else { done(name) }
    });
    let reports = runner.execute_together(&[asks("fails"), asks("stays")], &ExecuteOptions::default());
    let outcomes: Vec<Outcome> = reports.into_iter().map(|report| report.unwrap().outcome).collect();
    assert_eq!(outcomes, [Outcome::Failed, Outcome::Committed]);
    assert_eq!(notes(run.session()), 2);
    let state = run.session().dynamic().state().unwrap().digest();
    let reader = LogReader::open_on(Arc::new(run.disk.clone()), run.session().dir()).unwrap();
    assert_eq!(reader.state().unwrap().digest(), state);
}
