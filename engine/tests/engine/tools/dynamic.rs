//! Tools created at run time, and the call that a tool undoes.

use foldlog::tools::{DynTool, Recovery};
use foldlog::{Cause, Outcome, Value};
use serde_json::json;

use super::*;

/// Arguments that a model may send for a call without arguments.
const NOTHING: [&str; 4] = ["", " \n", "{}", " { } "];

fn schema() -> serde_json::Value {
    json!({
        "type": "object",
        "properties": {"paper": {"type": "string"}},
        "required": ["paper"],
        "additionalProperties": false,
    })
}

/// Returns a run with closures as tools.
fn run_with(tools: ToolRegistry) -> Run {
    let mut run = Run::new();
    run.runner = ToolRunner::new(run.runner.state().clone(), tools);
    run
}

/// Writes a paper, as a tool created at run time.
fn write(arguments: &serde_json::Value, context: &ToolContext) -> Result<(), ToolError> {
    let paper = arguments["paper"].as_str().ok_or(ToolError::InvalidArguments("no paper".to_owned()))?;
    context.resources().get::<Desk>().unwrap().put(paper, "written");
    context.session().dynamic().dispatch("plan.step_added", json!({"title": paper, "part": 1}))?;
    match paper {
        "torn" => Err(ToolError::failed("it tore")),
        "blown" => panic!("away"),
        _ => Ok(()),
    }
}

fn written(arguments: &serde_json::Value) -> ToolResult<serde_json::Value> {
    ToolResult::ok("done", json!({"paper": arguments["paper"], "lines": 1}))
}

#[test]
fn a_tool_made_at_run_time_is_a_transaction_as_any_other() {
    let blocking = DynTool::new("write", schema(), |arguments, context| {
        write(&arguments, context)?;
        Ok(written(&arguments))
    });
    // A host with other tasks: it resumes the tool only when it is polled again.
    let future = DynTool::new_async("write", schema(), |arguments, context| async move {
        futures_lite::future::yield_now().await;
        write(&arguments, &context)?;
        futures_lite::future::yield_now().await;
        Ok(written(&arguments))
    });
    let execute = |run: &Run, call: &ToolCall| run.runner.execute(call, &ExecuteOptions::default()).unwrap();
    is_a_transaction(blocking, execute);
    is_a_transaction(future.clone(), execute);
    is_a_transaction(future, |run, call| {
        futures_lite::future::block_on(run.runner.execute_async(call, &ExecuteOptions::default())).unwrap()
    });
}

fn is_a_transaction(write: DynTool, execute: impl Fn(&Run, &ToolCall) -> ToolReport) {
    let run = run_with(ToolRegistry::new().with_dynamic(write.description("Writes a paper.")));
    assert_eq!(run.runner.tools().names(), ["write"]);
    assert_eq!(run.runner.tools().describe("write").unwrap(), ("Writes a paper.", schema()));
    let call = |arguments: &str| execute(&run, &ToolCall::new("write", arguments));
    let report = call(r#"{"paper": "letter"}"#);
    let value = report.value.unwrap().to_json().unwrap();
    assert_eq!((report.outcome, value), (Outcome::Committed, json!({"paper": "letter", "lines": 1})));
    for (arguments, cause) in [
        (r#"{"paper": "torn"}"#, Cause::Error),
        (r#"{"paper": "blown"}"#, Cause::Panic),
        (r#"{"paper": 7}"#, Cause::InvalidArguments),
        (r#"{"paper": "x", "ink": "red"}"#, Cause::InvalidArguments),
        (r#"{"pape"#, Cause::InvalidArguments),
        ("[]", Cause::InvalidArguments),
        ("", Cause::InvalidArguments),
    ] {
        let report = call(arguments);
        assert_eq!((report.outcome, report.cause), (Outcome::Failed, Some(cause)), "{arguments}");
    }
    assert_eq!(
        run.state(),
        (vec!["letter".to_owned()], [("letter".to_owned(), "written".to_owned())].into())
    );
    assert_eq!(call("").message, "missing parameters: paper");
}

/// A provider sent `""` for a call of a tool without parameters, and the call failed.
#[test]
fn no_arguments_at_all_are_an_empty_object_for_every_tool() {
    struct Typed;
    impl Tool for Typed {
        const NAME: &'static str = "typed";
        type Parameters = Nothing;
        type Output = ();

        fn call(&self, _: Nothing, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
            Ok(ToolResult::ok("called", ()))
        }
    }
    let dynamic = DynTool::new("dynamic", json!({"type": "object"}), |arguments, _| {
        Ok(ToolResult::ok("called", arguments))
    });
    let run = run_with(ToolRegistry::new().with(Typed).with_dynamic(dynamic));
    for (arguments, tool) in
        NOTHING.into_iter().flat_map(|nothing| [(nothing, "typed"), (nothing, "dynamic")])
    {
        let report = run.runner.execute(&ToolCall::new(tool, arguments), &ExecuteOptions::default()).unwrap();
        assert!(report.success, "{tool} {arguments:?}: {}", report.message);
    }
    let mut recorded = Vec::new();
    let read = run.session().log().records(0, u64::MAX, |record| {
        if record.kind == foldlog::RecordKind::ToolBegin {
            recorded.push(
                foldlog_codec::body::ToolBegin::decode(record.body).unwrap().arguments.bytes().to_vec(),
            );
        }
        Ok(())
    });
    read.unwrap();
    assert_eq!(Value::decode(&recorded[0]).unwrap(), Value::from(""), "what was sent is what is recorded");
}

/// A tool that kills its process in its first run and its first undo. It keeps the interrupted
/// calls that it receives.
fn letter(disk: &MemoryStorage, lives: &Arc<Mutex<(u32, Vec<InterruptedCall>)>>) -> DynTool {
    let (disk, lives, disk_too, lives_too) = (disk.clone(), lives.clone(), disk.clone(), lives.clone());
    let send = DynTool::new("send", schema(), move |_, context| {
        context.resources().get::<Desk>().unwrap().put("letter", "sent");
        let mut lives = lives.lock().unwrap();
        lives.0 += 1;
        if lives.0 <= 2 {
            disk.crash(CrashKind::Process);
        }
        Ok(ToolResult::ok("sent", json!(null)))
    });
    send.undo(move |arguments, undone, context| {
        assert_eq!(arguments["paper"], "letter");
        assert_ne!(context.operation(), undone.operation, "the undoing is an operation of its own");
        let mut lives = lives_too.lock().unwrap();
        lives.1.push(undone.clone());
        if lives.1.len() == 1 {
            disk_too.crash(CrashKind::Process);
        }
        Ok(ToolResult::ok("called back", json!(null)))
    })
}

/// A tool that undid a call knew only its arguments, and not its operation.
#[test]
fn a_tool_is_told_which_call_it_undoes() {
    let mut run = Run::new();
    run.desk.put("letter", "as it was");
    let lives = Arc::default();
    let mut operations = Vec::new();
    let with_tools = |run: &mut Run| {
        let tools = ToolRegistry::new().with_dynamic(letter(&run.disk, &lives));
        run.runner = ToolRunner::new(run.runner.state().clone(), tools);
    };
    with_tools(&mut run);
    let call =
        ToolCall { call_id: Some("toolu_1".into()), ..ToolCall::new("send", r#"{"paper": "letter"}"#) };
    assert!(run.runner.execute(&call, &ExecuteOptions::default()).is_err());
    // Killed in the first run, within the first undo, and in the second run.
    for _ in 0..3 {
        run.reopen(Idempotency::Manual);
        with_tools(&mut run);
        operations.push(run.session().log().recovery().interrupted[0].operation);
        let recovered = run.runner.recover(&ExecuteOptions::default());
        if let Ok(recovered) = recovered
            && let [one] = recovered.as_slice()
            && let Recovery::RanAgain(report) = &one.recovery
        {
            assert!(report.success);
        }
    }
    assert!(!run.session().calls().is_interrupted());
    let told = std::mem::take(&mut lives.lock().unwrap().1);
    let runs: Vec<u32> = told.iter().map(|undone| undone.run).collect();
    assert_eq!(runs, [1, 1, 2], "the first undoing was interrupted itself");
    for undone in &told {
        assert_eq!(undone.operation, operations[0], "the key of what it did");
        assert_eq!((undone.call_id.as_deref(), undone.origin, undone.parent), (Some("toolu_1"), None, None));
        assert_eq!(undone.arguments, r#"{"paper": "letter"}"#);
        let desk: BTreeMap<String, String> =
            rmp_serde::from_slice(undone.captures["desk"].as_ref().unwrap()).unwrap();
        assert_eq!(desk["letter"], "as it was", "what the begin captured");
    }
    assert_eq!(told[0].begin, operations[0].sequence());
    assert!(told[2].begin > told[1].begin && told[0].began_us > 0);
}
