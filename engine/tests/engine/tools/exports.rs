//! Exports of sessions in which tools run or ran.

use std::collections::BTreeSet;

use foldlog::{Export, ImportOptions, Policy};

use super::*;

fn import(export: &Export, options: ImportOptions) -> Result<Session> {
    store_of(&MemoryStorage::new()).import(export, &types(), options)
}

#[test]
fn an_export_taken_within_a_call_begins_no_session() {
    // It was imported with half of the call's changes, which could not be rolled back.
    let run = Run::new();
    run.write("letter", "whole", Then::Succeed).unwrap();
    let options = ExecuteOptions::default();
    let operation = run.runner.begin(&call("p", "x", Then::Succeed), &options).unwrap();
    let inner =
        run.runner.within(operation.context()).begin(&call("p", "y", Then::Succeed), &options).unwrap();
    inner.context().session().dispatch(StepAdded { title: "half".to_owned(), part: 0 }).unwrap();
    let (policies, at) =
        (BTreeSet::from([Policy::State, Policy::Log]), run.session().log().position().unwrap());
    let reader = LogReader::open_on(Arc::new(run.disk.clone()), run.session().dir()).unwrap();
    let open = vec![operation.id(), inner.id()];
    inner.end(ToolResult::ok("done", 0)).unwrap();
    let outer = run.session().log().export().unwrap();
    assert_eq!(outer.open_operations, [operation.id()]);
    operation.end(ToolResult::ok("done", 0)).unwrap();

    for export in
        [run.session().log().export_at(at, &policies).unwrap(), reader.export_at(at, &policies).unwrap()]
    {
        assert_eq!(export.open_operations, open);
        let read = Export::from_json(&export.to_json().unwrap()).unwrap();
        assert_eq!(read, export);
        let refused = import(&read, ImportOptions::default()).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "not a snapshot export: it was taken while operations {}, {} were open",
                open[0], open[1]
            )
        );
    }
    let after = run.session().log().export().unwrap();
    assert!(after.open_operations.is_empty() && !after.to_json().unwrap().contains("open_operations"));
    assert_eq!(plan(&import(&after, ImportOptions::default()).unwrap()), ["whole", "half"]);
}

#[test]
fn an_export_of_what_waits_for_recovery_begins_no_session() {
    let mut run = Run::new();
    run.session().sync().unwrap();
    assert!(run.write("letter", "half done", Then::Die).is_err());
    run.reopen(Idempotency::Manual);
    let operation = run.session().log().recovery().interrupted[0].operation;
    let export = run.session().log().export().unwrap();
    assert_eq!(export.open_operations, [operation]);
    assert!(matches!(import(&export, ImportOptions::default()), Err(Error::Export(_))));
    run.runner.recover(&ExecuteOptions::default()).unwrap();
    assert!(run.session().log().export().unwrap().open_operations.is_empty());
}

#[test]
fn another_programs_calls_are_kept_beside_the_engines_own() {
    // Their slice has the name of the engine's but other items, so nothing of the export was
    // imported.
    let json = r#"{"version":"1","created_at":"2026-01-02T03:04:05.000006+00:00","policies":{"tool_invoked":"log"},
      "slices":[{"slice_type":"tool_invoked","item_type":"ToolInvoked","items":[{"name":"read","params":{},"success":true}]}]}"#;
    let export = Export::from_json(json).unwrap();
    assert!(matches!(import(&export, ImportOptions::default()), Err(Error::Export(_))));
    let options = ImportOptions { keep_unknown: true, ..ImportOptions::default() };
    let session = import(&export, options.clone()).unwrap();
    assert!(session.log().slice::<ToolInvocations>().unwrap().is_empty());
    let again = session.log().export().unwrap();
    let [kept] = again.slices.as_slice() else { panic!("{again:?}") };
    assert_eq!(
        (kept.slice_type.as_str(), kept.item_type.as_str(), again.policies["tool_invoked.imported"].as_str()),
        ("tool_invoked.imported", "ToolInvoked", "log")
    );
    assert_eq!(kept.items, export.slices[0].items);
    // Calls in the session add one item each from now on.
    let state = ExecutionState::new(session, ResourceRegistry::default());
    let runner = ToolRunner::new(state, ToolRegistry::new());
    let operation = runner.begin(&ToolCall::new("read", "{}"), &ExecuteOptions::default()).unwrap();
    operation.end(ToolResult::ok("done", 0)).unwrap();
    assert_eq!(runner.state().session().log().slice::<ToolInvocations>().unwrap().len(), 1);
    // The engine's own items are unchanged.
    let run = Run::new();
    run.write("letter", "whole", Then::Succeed).unwrap();
    let own = import(&run.session().log().export().unwrap(), options).unwrap();
    assert_eq!(own.log().slice::<ToolInvocations>().unwrap().len(), 1);
}
